//! [`Watched`]: a cluster whose servers are asked how they are, a thread for each of them.
//!
//! A thread has a connection of its own, beside the pools: a pool that is full says nothing about its
//! server, and limits are not to keep us from knowing. It asks at once when a worker's connection has
//! ended, and often while there is no primary. What it learns changes a few bits that workers look at
//! when they choose, and a letter tells them when somebody may wait for that.
//!
//! While clients read what they wrote, the primary is asked soon after each write, and then each standby that has
//! not replayed as much, more and more rarely the longer it does not get on.

mod probe;

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use howdah_connect::Endpoint;
use howdah_net::Waker;

use self::probe::{Probe, ProbeError};
use super::{
    directory::PoolEntry,
    front::Front,
    mail::{Mailbox, WorkerMessage},
    names::Addresses,
};
use crate::{
    ClusterState, Member, Time,
    cluster::{ClusterTopology, Dispute, Question, Seen, Standing, WentBack},
    config::{ClusterPool, ConfiguredRole},
};

/// Between two checks while there is no primary, or an answer came too late.
const SOON: Duration = Duration::from_millis(100);

/// Between two checks, however often one is wished for.
const APART: Duration = Duration::from_millis(20);

/// While a standby does not get on that somebody wants to read at, it is asked half as often each time, down to this
/// many times.
const FRUITLESS_MAX: u32 = 8;

/// Checks in a row that may be made so soon.
const ROUNDS_MAX: u32 = 3000;

/// Between two looks at whether the pooler is still there.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What was told of a server in the log.
#[derive(Clone, Copy, Debug, Default)]
struct Told {
    role: &'static str,
    is_foreign: bool,
    is_dead: bool,
    /// It is a primary of an older timeline, and there is no other.
    is_lone: bool,
}

/// A cluster whose servers are watched.
#[derive(Debug)]
pub(super) struct Watched {
    /// The database's name in the settings.
    pub(super) name: String,
    /// Which of its shards it is; 0 where it has none.
    pub(super) shard: u32,
    pub(super) is_sharded: bool,
    pub(super) cluster: ClusterPool,
    pub(super) state: Arc<ClusterState>,
    /// Locked before what was told.
    court: Mutex<ClusterTopology>,
    /// What was told of each server in the log.
    told_log: Mutex<Vec<Told>>,
    has_dispute: AtomicBool,
    /// Whether a server was last seen to be another than the settings say.
    contradicts: Box<[AtomicBool]>,
    /// How often somebody wished for a check.
    wishes: AtomicU32,
    /// Of its threads.
    wakers: Mutex<Vec<Option<Waker>>>,
    has_begun: AtomicBool,
    is_over: AtomicBool,
    /// Version of what workers were told last.
    told: AtomicU32,
}

impl Watched {
    pub(super) fn new(name: &str, (shard, shards): (u32, usize), cluster: ClusterPool) -> Self {
        let settings = &cluster.settings;
        let roles = cluster.servers.iter().map(|server| server.role);
        let servers = cluster.servers.len();
        let state = ClusterState::new(roles, settings.ban);
        let court = ClusterTopology::new(&cluster, Arc::clone(&state));
        Self {
            name: name.to_owned(),
            shard,
            is_sharded: shards > 1,
            state,
            cluster,
            court: Mutex::new(court),
            contradicts: (0..servers).map(|_| AtomicBool::new(false)).collect(),
            wishes: AtomicU32::new(0),
            wakers: Mutex::new((0..servers).map(|_| None).collect()),
            has_begun: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            told_log: Mutex::new(vec![Told::default(); servers]),
            has_dispute: AtomicBool::new(false),
            told: AtomicU32::new(0),
        }
    }

    /// The shard, where there are several.
    pub(super) fn shown_shard(&self) -> Option<u32> {
        self.is_sharded.then_some(self.shard)
    }

    /// Has its threads end.
    pub(super) fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.ask_now();
    }

    /// Has all of its servers be asked at once: one that ended may have a successor among the others.
    pub(super) fn ask_now(&self) {
        self.wishes.fetch_add(1, Ordering::Release);
        self.wakers().iter().flatten().for_each(Waker::wake);
    }

    /// Somebody has written who wants to read that: has the primary be asked how far it is.
    pub(super) fn ask_primary(&self) {
        self.wake(Member::may_write);
    }

    /// Has those look whether they are to ask that are about such members.
    fn wake(&self, is_it: impl Fn(&Member) -> bool) {
        let members = self.state.members.iter();
        for (waker, _) in self.wakers().iter().zip(members).filter(|(_, member)| is_it(member)) {
            waker.iter().for_each(Waker::wake);
        }
    }

    fn wakers(&self) -> MutexGuard<'_, Vec<Option<Waker>>> {
        self.wakers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether an answer of a server is wanted for somebody who reads what it wrote.
    fn is_wanted(&self, member: &Member) -> bool {
        let tide = &self.state.tide;
        if member.may_write() { tide.is_due() } else { tide.rises_above(member.replayed()) }
    }

    /// Those of its servers that are called so, by host or by host and port.
    pub(super) fn members_at(&self, name: &str) -> impl Iterator<Item = (String, &Arc<Member>)> {
        let is_it = move |endpoint: &Endpoint| match endpoint {
            Endpoint::Tcp { host, .. } => host == name || endpoint.to_string() == name,
            Endpoint::Unix { path } => {
                path.parent().is_some_and(|it| it.as_os_str() == name)
                    || endpoint.to_string() == name
            }
        };
        let members = self.cluster.servers.iter().zip(&self.state.members);
        let found = members.filter(move |(server, _)| is_it(&server.endpoint));
        found.map(|(server, member)| (server.endpoint.to_string(), member))
    }

    fn court(&self) -> MutexGuard<'_, ClusterTopology> {
        self.court.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn told(&self) -> MutexGuard<'_, Vec<Told>> {
        self.told_log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what a server says of itself. Gives whether it still holds.
    fn heard(&self, server: usize, asked: (Question, u32), seen: &Seen, now: Time) -> bool {
        let (mut court, mut told) = (self.court(), self.told());
        let holds = court.heard(server, asked, seen, now);
        self.tell_log(&mut court, &mut told);
        if self.cluster.servers[server].role != ConfiguredRole::Auto {
            self.contradict(server, seen);
        }
        holds
    }

    /// Takes that a server does not answer.
    fn unheard(&self, server: usize, reason: &str, now: Time) {
        let (mut court, mut told) = (self.court(), self.told());
        if court.unheard(server, reason, now) {
            let (database, server) = (&self.name, &self.cluster.servers[server].endpoint);
            tracing::warn!(database, shard = self.shown_shard(), %server, reason, "server not responding");
        }
        self.tell_log(&mut court, &mut told);
    }

    /// Begins anew with what those of its servers say that answer.
    pub(super) fn forget(&self, now: Time) {
        let (mut court, mut told) = (self.court(), self.told());
        court.forget(now);
        self.tell_log(&mut court, &mut told);
        drop((court, told));
        self.ask_now();
    }

    /// Tells what servers have become. That there are two primaries is an alarm.
    fn tell_log(&self, court: &mut ClusterTopology, told: &mut [Told]) {
        let database = &self.name;
        if let Some(WentBack { server, timeline, before }) = court.take_went_back() {
            let server = &self.cluster.servers[server].endpoint;
            tracing::error!(
                database, shard = self.shown_shard(), %server, timeline, before,
                "the timeline went back: no server is of the newer one any more, and standbys stream \
                 from this primary, which is written to from now on"
            );
        }
        let mut standings = self.state.members.iter().map(|member| member.standing());
        let has_primary = standings.any(|standing| standing == Standing::Primary);
        for (at, told) in told.iter_mut().enumerate() {
            let report = self.state.members[at].report();
            let standing = self.state.members[at].standing();
            let server = &self.cluster.servers[at].endpoint;
            let (role, timeline) = (report.role, report.found.timeline);
            let is_foreign = report.found.is_foreign;
            let is_dead = self.state.members[at].is_dead();
            let is_lone = standing == Standing::Stale && !has_primary;
            let before = std::mem::replace(told, Told { role, is_foreign, is_dead, is_lone });
            if is_dead && !before.is_dead {
                tracing::warn!(
                    database, shard = self.shown_shard(), %server,
                    "a server has answered no check for cluster.check-failure-timeout: what runs there is given up"
                );
            }
            if is_foreign && !before.is_foreign {
                let (system, primarys) = (report.found.system, court.system());
                tracing::warn!(
                    database, shard = self.shown_shard(), %server, system, primarys_system = primarys,
                    "a server is of another system than the primary: nobody is let to it; \
                     cluster.require-same-system-identifier = false would let them"
                );
            }
            if is_lone && !before.is_lone {
                tracing::error!(
                    database, shard = self.shown_shard(), %server, timeline,
                    "the only primary is of an older timeline than one that was known: nobody is let to \
                     it. If the newer one is gone for good, RESET CLUSTER with the database's name has \
                     it forgotten"
                );
            }
            if before.role == role || is_lone {
                continue;
            }
            if standing == Standing::Stale {
                tracing::error!(
                    database, shard = self.shown_shard(), %server, timeline,
                    "two primaries: this one is of an older timeline, and nobody is let to it"
                );
            } else {
                tracing::info!(database, shard = self.shown_shard(), %server, role, "a server's role");
            }
        }
        let dispute = court.dispute();
        let was_told = self.has_dispute.swap(dispute.is_some(), Ordering::Relaxed);
        let shard = self.shown_shard();
        match dispute.filter(|_| !was_told) {
            Some(Dispute::Systems) => tracing::error!(
                database,
                shard,
                "primaries of several systems: SHOW MEMBERS has their identifiers, and nobody is written to"
            ),
            Some(Dispute::Timeline) => tracing::error!(
                database,
                shard,
                "several primaries of one timeline: nobody is written to; take those out that are \
                 not of this database, or name the primary (role = \"primary\")"
            ),
            None => {}
        }
    }

    /// Tells that a server is not what the settings say it is.
    fn contradict(&self, server: usize, seen: &Seen) {
        let entry = &self.cluster.servers[server];
        let is_right = seen.is_in_recovery == (entry.role == ConfiguredRole::Replica);
        if self.contradicts[server].swap(!is_right, Ordering::Relaxed) == is_right && !is_right {
            let (database, said, server) = (&self.name, entry.role.as_str(), &entry.endpoint);
            let is_in_recovery = seen.is_in_recovery;
            let shard = self.shown_shard();
            tracing::error!(database, shard, %server, said, is_in_recovery, "a server is not what it is said to be");
        }
    }

    fn has_primary(&self) -> bool {
        let mut members = self.state.members.iter();
        members.any(|member| member.may_write())
    }
}

/// Has a cluster be watched, if it is not yet.
pub(super) fn begin(watched: &Arc<Watched>, front: &Arc<Front>, mailboxes: &Arc<[Arc<Mailbox>]>) {
    if watched.has_begun.swap(true, Ordering::Relaxed) {
        // There may have been nobody for long by whose name they could be asked.
        return watched.ask_now();
    }
    for server in 0..watched.cluster.servers.len() {
        let (watched, front, mailboxes) =
            (Arc::clone(watched), Arc::clone(front), Arc::clone(mailboxes));
        let watch = move || match Probe::new() {
            Ok(probe) => watch(&watched, server, probe, &front, &mailboxes),
            Err(error) => tracing::error!(%error, "cannot watch a server"),
        };
        if let Err(error) = thread::Builder::new().name(format!("check-{server}")).spawn(watch) {
            tracing::error!(%error, "cannot watch a server");
        }
    }
}

fn watch(
    watched: &Watched,
    server: usize,
    mut probe: Probe,
    front: &Front,
    mailboxes: &[Arc<Mailbox>],
) {
    let settings = &watched.cluster.settings;
    let member = &watched.state.members[server];
    match probe.waker() {
        Ok(waker) => watched.wakers()[server] = Some(waker),
        Err(error) => tracing::warn!(%error, "a server is asked at its times only"),
    }
    let (mut attempt, mut rounds, mut addresses) = (0, 0, Addresses::default());
    let endpoint = &watched.cluster.servers[server].endpoint;
    let mut kept: Option<Arc<PoolEntry>> = None;
    let mut fruitless = 0;
    let is_over = || front.is_over() || watched.is_over.load(Ordering::Relaxed);
    while !is_over() {
        let wishes = watched.wishes.load(Ordering::Acquire);
        let doubts = member.doubts();
        let deadline = Instant::now() + settings.check_timeout;
        let ttl = front.directory.config().timeouts.dns_max_ttl;
        let names = front.directory.names();
        if addresses.have_changed(endpoint, names, (ttl, Instant::now())) {
            tracing::info!(database = watched.name, server = %endpoint, "its name has another address");
            member.is_elsewhere();
            probe.forget();
        }
        // Another is looked for when this one is no more what it was.
        let is_current = |entry: &Arc<PoolEntry>| {
            let now = front.directory.by_id(entry.id);
            now.is_some_and(|now| Arc::ptr_eq(&now, entry))
        };
        let entry = kept.take().filter(is_current);
        let entry = entry.or_else(|| front.directory.checker(watched, server, attempt));
        let tide = &watched.state.tide;
        if member.may_write() {
            tide.asks_primary();
        }
        let (question, replayed) = (Question::ask(), member.replayed());
        let result = match &entry {
            Some(entry) => probe.ask(entry, front, deadline, tide.is_used()),
            None => Err(ProbeError::NoUser),
        };
        if let Some(why) = probe.take_lack() {
            let (database, shard) = (&watched.name, watched.shown_shard());
            tracing::warn!(
                database, shard, server = %endpoint, why,
                "read-your-writes: not all that is asked may be known; reads may stay at the primary"
            );
        }
        let now = front.now();
        let mut pause = settings.check_interval;
        match result {
            Ok(seen) => {
                kept.clone_from(&entry);
                if !watched.heard(server, (question, doubts), &seen, now) {
                    pause = APART;
                }
            }
            Err(ProbeError::Unreachable(reason)) => watched.unheard(server, &reason, now),
            Err(ProbeError::NoUser) => member.doubt(),
            Err(error) => {
                // It is there, so reads may go on.
                attempt += 1;
                member.answered(now);
                let server = &watched.cluster.servers[server].endpoint;
                let (database, error) = (&watched.name, error.to_string());
                tracing::debug!(database, %server, error, "a server cannot be asked");
            }
        }
        let version = watched.state.version();
        if watched.told.swap(version, Ordering::Relaxed) != version {
            mailboxes.iter().for_each(|mailbox| mailbox.send(WorkerMessage::ClustersTurned));
        }
        let gets_on = member.replayed() > replayed;
        if gets_on && tide.take_awaited() {
            mailboxes.iter().for_each(|mailbox| mailbox.send(WorkerMessage::ClustersTurned));
        }
        if member.may_write() {
            watched.wake(|other| !other.may_write() && watched.is_wanted(other));
        }
        let waits_on = !gets_on && !member.may_write() && watched.is_wanted(member);
        fruitless = if waits_on { (fruitless + 1).min(FRUITLESS_MAX) } else { 0 };
        // Where there is none for long, there may be none at all: standbys only.
        rounds = if watched.has_primary() { 0 } else { rounds + 1 };
        if (1..ROUNDS_MAX).contains(&rounds) && entry.is_some() {
            pause = pause.min(SOON);
        }
        let asked = Instant::now();
        let mut is_wished = false;
        while !is_over() {
            is_wished |= watched.wishes.load(Ordering::Acquire) != wishes;
            let until = match () {
                () if is_wished => asked + APART.min(pause),
                () if watched.is_wanted(member) => asked + pause.min(APART * (1 << fruitless)),
                () => asked + pause,
            };
            if Instant::now() >= until {
                break;
            }
            if probe.rest(until.min(Instant::now() + LOOK_EVERY)) {
                // Whoever answers next may have been started since.
                member.doubt();
                watched.ask_now();
            }
        }
    }
}
