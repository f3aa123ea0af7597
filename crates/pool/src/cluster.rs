//! Several servers behind one database: who may serve whom.
//!
//! ```text
//! database, user ─► home pool (its clients, no servers)
//!                     ├─► member pool of db1 ── servers, limits, failures
//!                     ├─► member pool of db2
//!                     └─► member pool of db3
//! ```
//!
//! A client has a home, and whenever it needs a server, a member of it that a worker's [`Balance`](balance::Balance)
//! chooses. What is known of a member is one for all workers and pools ([`Member`]): whoever learns
//! something writes it there, and what a worker has to know for a choice is a few bits, copied when
//! their version has changed. [`judge`] says which of several servers is the primary.
//!
//! A database of several shards has a cluster for each: nothing is known of one by another.

mod balance;
mod balances;
mod court;
mod judge;
mod lag;
mod member;
mod thin;
mod tide;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use serde::{Deserialize, Serialize};

pub use self::member::{Ban, Member, MemberReport, MemberState};
pub(crate) use self::{
    balances::{Balances, Choice, Request, Seat},
    court::ClusterTopology,
    judge::{Dispute, Judge, Seen, Standing, WentBack},
    lag::Track,
    tide::{CausalToken, Marks, Question, WriteTracker, end_of_wal},
};
use crate::{config::ConfiguredRole, ids::PoolId};

/// Which servers of a cluster would do for a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ServerRole {
    /// Any that answers: the primary takes reads, too.
    #[default]
    Any,
    /// The one that takes writes.
    Primary,
    /// A standby.
    Replica,
    /// A standby, or any if there is none that would do.
    PreferReplica,
}

impl ServerRole {
    /// Every role.
    pub const ALL: [Self; 4] = [Self::Any, Self::Primary, Self::Replica, Self::PreferReplica];

    /// The word that stands for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Any => "any",
            Self::Primary => "primary",
            Self::Replica => "replica",
            Self::PreferReplica => "prefer-replica",
        }
    }

    /// What a word of libpq's `target_session_attrs` asks for. A session that may only read is one at
    /// a standby: that a primary makes its sessions read-only by default is not looked for.
    pub fn of_session_attributes(word: &str) -> Option<Self> {
        Some(match word {
            "any" => Self::Any,
            "read-write" | "primary" => Self::Primary,
            "read-only" | "standby" => Self::Replica,
            "prefer-standby" => Self::PreferReplica,
            _ => return None,
        })
    }
}

/// Which of the servers that would do is taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Strategy {
    /// Each in its turn.
    #[default]
    RoundRobin,
    /// Any, each as often as the others.
    Random,
    /// The one that works on least.
    LeastOutstanding,
    /// Each in its turn, as often as its weight says.
    Weighted,
    /// Of two that are picked at random, the one that answers sooner for what it has to do; who is much slower
    /// than others is asked only to see whether it still is.
    Latency,
}

impl Strategy {
    /// The word that stands for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::RoundRobin => "round-robin",
            Self::Random => "random",
            Self::LeastOutstanding => "least-outstanding",
            Self::Weighted => "weighted",
            Self::Latency => "latency",
        }
    }
}

/// A cluster, as the pools of one user in one database have it: part of the home pool's settings.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// At least one and at most 64.
    pub members: Box<[ClusterMember]>,
    /// Which of them is taken.
    pub strategy: Strategy,
    /// How long a client waits while none would do.
    pub failover_timeout: Option<Duration>,
    /// How long a member that is back gets less than its part.
    pub slow_start: Duration,
    /// Shared by all pools of the same servers.
    pub state: Arc<ClusterState>,
}

/// A server of a cluster, as the pools of one user in one database have it.
#[derive(Clone, Debug)]
pub struct ClusterMember {
    /// The pool of its servers.
    pub pool: PoolId,
    /// What is known of it.
    pub state: Arc<Member>,
    /// Its part, for [`Strategy::Weighted`].
    pub weight: u32,
}

/// Of which cluster a pool is a member: part of the member pool's settings.
#[derive(Clone, Debug)]
pub struct MemberPlace {
    /// The pool that its clients are at home in.
    pub home: PoolId,
    /// Of which shard it is a server; 0 where there is one.
    pub shard: u32,
    /// What is known of the server.
    pub state: Arc<Member>,
    /// How long a client waits while logins fail.
    pub failover_timeout: Option<Duration>,
}

/// What is known of the servers of a cluster; shared by workers, and by pools of several users.
#[derive(Debug)]
pub struct ClusterState {
    /// In the order of the settings.
    pub(crate) members: Box<[Arc<Member>]>,
    pub(crate) tide: Arc<WriteTracker>,
    version: Arc<AtomicU32>,
}

impl ClusterState {
    /// Servers of whom nothing is known but what they are said to be. A replica that fails is banned
    /// for `ban`.
    pub fn new(roles: impl IntoIterator<Item = ConfiguredRole>, ban: Duration) -> Arc<Self> {
        let version = Arc::new(AtomicU32::new(1));
        let tide = Arc::new(WriteTracker::default());
        let member =
            |role| Arc::new(Member::new(role, ban, Arc::clone(&tide), Arc::clone(&version)));
        let members = roles.into_iter().map(member).collect();
        Arc::new(Self { members, tide, version })
    }

    /// Changes with everything that a choice depends on.
    #[inline]
    pub(crate) fn version(&self) -> u32 {
        self.version.load(Ordering::Acquire)
    }

    /// Ends all bans.
    pub(crate) fn unban_all(&self) {
        for member in &self.members {
            member.unban();
        }
    }
}

#[test]
fn libpqs_words_are_roles() {
    for (word, role) in [
        ("any", Some(ServerRole::Any)),
        ("read-write", Some(ServerRole::Primary)),
        ("primary", Some(ServerRole::Primary)),
        ("read-only", Some(ServerRole::Replica)),
        ("standby", Some(ServerRole::Replica)),
        ("prefer-standby", Some(ServerRole::PreferReplica)),
        ("replica", None),
    ] {
        assert_eq!(ServerRole::of_session_attributes(word), role, "{word}");
    }
}
