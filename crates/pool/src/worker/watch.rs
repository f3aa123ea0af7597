//! [`Watched`]: a cluster whose servers are asked how they are, a thread for each of them.
//!
//! A thread has a connection of its own, beside the pools: a pool that is full says nothing about its
//! server, and limits are not to keep us from knowing. It asks at once when a worker's connection has
//! ended, and often while there is no primary. What it learns changes a few bits that workers look at
//! when they choose, and a letter tells them when somebody may wait for that.

mod probe;

use std::{
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use howdah_connect::Endpoint;

use self::probe::{Probe, ProbeError};
use super::{
    front::Front,
    mail::{Mail, Mailbox},
};
use crate::{
    ClusterState, Member, MemberState, Time,
    cluster::{Judge, Seen, Standing, Track},
    config::{ClusterPool, EntryRole},
};

/// Between two checks while there is no primary, or an answer came too late.
const SOON: Duration = Duration::from_millis(100);

/// Between two checks, however often one is wished for.
const APART: Duration = Duration::from_millis(20);

/// Between two looks at whether the pooler is still there.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A cluster whose servers are watched.
#[derive(Debug)]
pub(super) struct Watched {
    /// The database's name in the settings.
    pub(super) name: String,
    pub(super) cluster: ClusterPool,
    pub(super) state: Arc<ClusterState>,
    court: Mutex<Court>,
    /// How often somebody wished for a check.
    wishes: Mutex<u64>,
    wished: Condvar,
    has_begun: AtomicBool,
    is_over: AtomicBool,
    /// Version of what workers were told last.
    told: AtomicU32,
}

#[derive(Debug)]
struct Court {
    judge: Judge,
    track: Track,
    /// What was told of each server in the log.
    told: Vec<&'static str>,
}

impl Watched {
    pub(super) fn new(name: &str, cluster: ClusterPool) -> Self {
        let settings = &cluster.settings;
        let roles = cluster.servers.iter().map(|server| server.role);
        let servers = cluster.servers.len();
        let court = Court {
            judge: Judge::new(servers, settings.primary_return),
            track: Track::default(),
            told: vec![""; servers],
        };
        Self {
            name: name.to_owned(),
            state: ClusterState::new(roles, settings.ban),
            cluster,
            court: Mutex::new(court),
            wishes: Mutex::default(),
            wished: Condvar::new(),
            has_begun: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            told: AtomicU32::new(0),
        }
    }

    /// Has its threads end.
    pub(super) fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.ask_now();
    }

    /// Has all of its servers be asked at once: one that ended may have a successor among the others.
    pub(super) fn ask_now(&self) {
        *self.wishes.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.wished.notify_all();
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

    fn court(&self) -> MutexGuard<'_, Court> {
        self.court.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for as long, or until a wish comes that `seen` does not know of.
    fn wait(&self, pause: Duration, seen: &mut u64) {
        let deadline = Instant::now() + pause;
        let mut wishes = self.wishes.lock().unwrap_or_else(PoisonError::into_inner);
        while *wishes == *seen {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let woken = self.wished.wait_timeout(wishes, left);
            wishes = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        *seen = *wishes;
    }

    /// Takes what a server says of itself. Gives whether it still holds.
    fn heard(&self, server: usize, doubts: u32, seen: &Seen, now: Time) -> bool {
        let mut court = self.court();
        court.judge.hear(server, Some(seen.clone()), now);
        let standings = court.judge.standings(now);
        let standing = |at: usize| match self.cluster.servers[at].role {
            EntryRole::Auto => standings[at],
            EntryRole::Primary => Standing::Primary,
            EntryRole::Replica => Standing::Replica,
        };
        if standing(server) == Standing::Primary && !seen.is_in_recovery {
            court.track.note(server, seen.lsn, now);
        }
        let behind = court.track.behind(seen.lsn, now).filter(|_| seen.is_in_recovery);
        let settings = &self.cluster.settings;
        let lags = behind.is_some_and(|(bytes, time)| {
            settings.lag_max_bytes.is_some_and(|most| bytes > most.get())
                || settings.lag_max.is_some_and(|most| time > most)
        });
        let found = MemberState {
            timeline: seen.timeline,
            lsn: seen.lsn,
            lag_bytes: behind.map(|(bytes, _)| bytes),
            lag: behind.map(|(_, time)| time),
            lags,
        };
        for (at, member) in self.state.members.iter().enumerate().filter(|(at, _)| *at != server) {
            member.stands(standing(at));
        }
        let member = &self.state.members[server];
        let holds = member.check_succeeded(doubts, standing(server), found, now);
        self.tell_log(&mut court);
        if self.cluster.servers[server].role != EntryRole::Auto {
            self.contradict(server, seen, &mut court);
        }
        holds
    }

    /// Takes that a server does not answer.
    fn unheard(&self, server: usize, reason: &str, now: Time) {
        let mut court = self.court();
        court.judge.hear(server, None, now);
        // It may have been the last of whom nothing was known.
        let standings = court.judge.standings(now);
        for (member, standing) in self.state.members.iter().zip(standings) {
            member.stands(standing);
        }
        if self.state.members[server].check_failed(now, reason) {
            let (database, server) = (&self.name, &self.cluster.servers[server].endpoint);
            tracing::warn!(database, %server, reason, "a server does not answer");
        }
        self.tell_log(&mut court);
    }

    /// Tells what servers have become. That there are two primaries is an alarm.
    fn tell_log(&self, court: &mut Court) {
        for (at, told) in court.told.iter_mut().enumerate() {
            let report = self.state.members[at].report();
            let standing = self.state.members[at].standing();
            if std::mem::replace(told, report.role) == report.role {
                continue;
            }
            let (database, server) = (&self.name, &self.cluster.servers[at].endpoint);
            let (role, timeline) = (report.role, report.found.timeline);
            if standing == Standing::Stale {
                tracing::error!(
                    database, %server, timeline,
                    "two primaries: this one is of an older timeline, and nobody is let to it"
                );
            } else {
                tracing::info!(database, %server, role, "a server's role");
            }
        }
    }

    /// Tells that a server is not what the settings say it is.
    fn contradict(&self, server: usize, seen: &Seen, court: &mut Court) {
        let entry = &self.cluster.servers[server];
        let is_right = seen.is_in_recovery == (entry.role == EntryRole::Replica);
        let word = if is_right { entry.role.as_str() } else { "not what it is said to be" };
        if std::mem::replace(&mut court.told[server], word) != word && !is_right {
            let (database, said, server) = (&self.name, entry.role.as_str(), &entry.endpoint);
            let is_in_recovery = seen.is_in_recovery;
            tracing::error!(database, %server, said, is_in_recovery, "a server is not what it is said to be");
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
        let watch = move || watch(&watched, server, &front, &mailboxes);
        if let Err(error) = thread::Builder::new().name(format!("check-{server}")).spawn(watch) {
            tracing::error!(%error, "cannot watch a server");
        }
    }
}

fn watch(watched: &Watched, server: usize, front: &Front, mailboxes: &[Arc<Mailbox>]) {
    let settings = &watched.cluster.settings;
    let mut probe = Probe::default();
    let (mut wishes, mut attempt) = (0, 0);
    while !front.is_over() && !watched.is_over.load(Ordering::Relaxed) {
        let member = &watched.state.members[server];
        let doubts = member.doubts();
        let deadline = Instant::now() + settings.check_timeout;
        let entry = front.directory.checker(watched, server, attempt);
        let result = match &entry {
            Some(entry) => probe.ask(entry, front, deadline),
            None => Err(ProbeError::NoUser),
        };
        let now = front.now();
        let mut pause = settings.check_every;
        match result {
            Ok(seen) => {
                if !watched.heard(server, doubts, &seen, now) {
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
            mailboxes.iter().for_each(|mailbox| mailbox.send(Mail::ClustersTurned));
        }
        if !watched.has_primary() && entry.is_some() {
            pause = pause.min(SOON);
        }
        thread::sleep(APART.min(pause));
        let until = Instant::now() + pause;
        while Instant::now() < until {
            let before = wishes;
            watched
                .wait(LOOK_EVERY.min(until.saturating_duration_since(Instant::now())), &mut wishes);
            if wishes != before || front.is_over() {
                break;
            }
        }
    }
}
