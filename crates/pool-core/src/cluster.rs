//! Databases with several servers: selects a server whenever a client needs one.
//!
//! ```text
//! database, user ─► owner pool (its clients, no servers)
//!                     ├─► member pool of db1 ── servers, limits, failures
//!                     ├─► member pool of db2
//!                     └─► member pool of db3
//! ```
//!
//! A client belongs to an owner pool. Whenever it needs a server, the worker's
//! [`MemberBalancer`](member_balancer::MemberBalancer) chooses a member. The state of a member
//! ([`MemberHealth`]) is shared by all workers and pools, and updated by the thread that observes a
//! change. A worker needs only a few bits of that state to choose, and copies them when their
//! version has changed. [`primary_detector`] determines which server is the primary.
//!
//! A database of several shards has one cluster per shard; they share no state.

mod lag;
mod member;
mod member_balancer;
mod primary_detector;
mod shard_balancers;
mod thinning;
mod topology;
mod write_tracker;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use serde::{Deserialize, Serialize};

pub(crate) use self::{
    lag::LagHistory,
    primary_detector::PrimaryDetector,
    shard_balancers::{MemberChoice, MemberRequest, ShardBalancers},
    write_tracker::{CausalToken, LsnHistory},
};
pub use self::{
    member::{CheckFindings, MemberBan, MemberHealth, MemberReport},
    primary_detector::{HealthReport, PrimaryConflict, ServerStatus, TimelineRegression},
    shard_balancers::MemberIndex,
    topology::{ClusterTopology, TopologySettings},
    write_tracker::{CheckSeq, WriteTracker, end_of_wal},
};
use crate::state::ids::PoolId;

/// The role of the servers that are suitable for a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum TargetRole {
    /// Any server that is up, including the primary.
    #[default]
    Any,
    /// The server that accepts writes.
    Primary,
    /// A standby, which accepts only reads.
    Replica,
    /// A standby, or any server if no standby is suitable.
    PreferReplica,
}

impl TargetRole {
    /// All roles, in order of declaration.
    pub const ALL: [Self; 4] = [Self::Any, Self::Primary, Self::Replica, Self::PreferReplica];

    /// Returns the role's keyword in configuration files and in SHOW.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Any => "any",
            Self::Primary => "primary",
            Self::Replica => "replica",
            Self::PreferReplica => "prefer-replica",
        }
    }

    /// Returns the role for a value of libpq's `target_session_attrs`; `None` for an unknown value.
    /// `read-only` means a standby; a primary whose sessions are read-only by default is not
    /// considered.
    pub fn from_session_attributes(value: &str) -> Option<Self> {
        Some(match value {
            "any" => Self::Any,
            "read-write" | "primary" => Self::Primary,
            "read-only" | "standby" => Self::Replica,
            "prefer-standby" => Self::PreferReplica,
            _ => return None,
        })
    }
}

/// The role that settings assign to a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum AssignedRole {
    /// Health checks detect the role, which may change.
    #[default]
    Auto,
    /// The server that accepts writes.
    Primary,
    /// A server that is used only for reads.
    Replica,
}

/// The method of selecting one of the eligible members.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum BalancingStrategy {
    /// The eligible members take turns.
    #[default]
    RoundRobin,
    /// A random member, with equal probability.
    Random,
    /// The member with the fewest busy connections and waiting clients in the worker.
    LeastOutstanding,
    /// Members take turns in proportion to their weight.
    Weighted,
    /// Picks two members at random and uses the one expected to reply sooner under its load. A much
    /// slower member gets only occasional requests, which show whether it is still slow.
    Latency,
}

/// A cluster that serves the clients of one user in one database; part of the owner pool's spec.
/// Each shard of a sharded database has its own.
#[derive(Clone, Debug)]
pub struct ClusterSpec {
    /// The members in configured order, 1 to 64.
    pub members: Box<[ClusterMember]>,
    /// How one of the suitable members is chosen.
    pub strategy: BalancingStrategy,
    /// How long a client waits while no member is suitable. If `None`, only
    /// [`crate::PoolTimeouts::query_wait`] applies.
    pub failover_timeout: Option<Duration>,
    /// How long a member that returned gets a reduced share of the load.
    pub slow_start: Duration,
    /// The servers' state, shared by all pools that use these servers.
    pub state: Arc<ClusterState>,
}

/// A server of a [`ClusterSpec`], with the pool of one user's connections to it.
#[derive(Clone, Debug)]
pub struct ClusterMember {
    /// The pool of connections to this server.
    pub pool: PoolId,
    /// The server's health, shared by all workers and pools.
    pub state: Arc<MemberHealth>,
    /// The member's share of the load relative to the other members, for
    /// [`BalancingStrategy::Weighted`].
    pub weight: u32,
}

/// The membership of a pool's server in a cluster; part of the member pool's spec.
#[derive(Clone, Debug)]
pub struct ClusterMembership {
    /// The owner pool, to which the clients belong.
    pub owner: PoolId,
    /// The shard of the server; 0 without sharding.
    pub shard: u32,
    /// The server's health, shared by all workers and pools.
    pub state: Arc<MemberHealth>,
    /// How long a client waits while logins to the server fail. If `None`, only
    /// [`crate::PoolTimeouts::query_wait`] applies.
    pub failover_timeout: Option<Duration>,
}

/// State of a cluster's servers, shared by workers and by the pools of all users.
#[derive(Debug)]
pub struct ClusterState {
    /// The servers in configured order.
    pub members: Box<[Arc<MemberHealth>]>,
    /// The positions of the WAL up to which clients have written.
    pub write_tracker: Arc<WriteTracker>,
    version: Arc<AtomicU32>,
}

impl ClusterState {
    /// Creates the state of servers that have not been checked yet: only their configured roles are
    /// known. A replica that fails is banned for `ban`, and then until it replies to a check.
    pub fn new(roles: impl IntoIterator<Item = AssignedRole>, ban: Duration) -> Arc<Self> {
        let version = Arc::new(AtomicU32::new(1));
        let write_tracker = Arc::new(WriteTracker::default());
        let member = |role| {
            Arc::new(MemberHealth::new(role, ban, Arc::clone(&write_tracker), Arc::clone(&version)))
        };
        let members = roles.into_iter().map(member).collect();
        Arc::new(Self { members, write_tracker, version })
    }

    /// Returns the version of the members' states. It changes whenever the eligibility or the
    /// address of a member changes.
    #[inline]
    pub fn version(&self) -> u32 {
        self.version.load(Ordering::Acquire)
    }

    /// Lifts the bans of all members.
    pub(crate) fn unban_all(&self) {
        for member in &self.members {
            member.unban();
        }
    }
}

#[test]
fn target_session_attrs_map_to_roles() {
    for (value, role) in [
        ("any", Some(TargetRole::Any)),
        ("read-write", Some(TargetRole::Primary)),
        ("primary", Some(TargetRole::Primary)),
        ("read-only", Some(TargetRole::Replica)),
        ("standby", Some(TargetRole::Replica)),
        ("prefer-standby", Some(TargetRole::PreferReplica)),
        ("replica", None),
    ] {
        assert_eq!(TargetRole::from_session_attributes(value), role, "{value}");
    }
}
