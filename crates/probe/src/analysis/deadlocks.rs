//! The deadlocks of a recording: sessions that were seen waiting for each other in a circle, and
//! those that the server counted although no sample saw them.
//!
//! A circle lasts until one of its members has waited for `deadlock_timeout`, and is then ended by
//! an error in that session. Sessions are sampled once a second, and more often while a wait is
//! new. The same members in the same transactions are one circle.
//!
//! The server counts a deadlock up to some seconds after it, or once the failed transaction block
//! ends. So a growth of the counter belongs to the latest circles before it that nothing was
//! counted for yet. A circle for which nothing is counted may have been resolved otherwise: the
//! server can reorder the queue of a lock, or a session can be cancelled.

use std::collections::{HashMap, HashSet};

use super::{
    units,
    window::{RecordingWindow, TimeSpan},
};
use crate::recorder::{RecordedSession, RecordedSessions};

/// The deadlocks of a recording, in time order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeadlockHistory {
    /// Circles of sessions that waited for each other.
    pub circles: Vec<WaitCircle>,
    /// Deadlocks that the server counted, but no sample saw.
    pub unseen: Vec<UnseenDeadlocks>,
}

/// Sessions that waited for each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitCircle {
    /// The first and the last sample that saw it.
    pub span: TimeSpan,
    /// Its sessions, each before one that it waits for, if the circle is a simple one.
    pub members: Vec<CircleMember>,
    /// Whether the server has counted a deadlock for it.
    pub is_counted: bool,
}

/// A session in a circle. Unknown texts are empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CircleMember {
    /// Process id.
    pub pid: u32,
    /// Type of the backend, as in `pg_stat_activity`.
    pub kind: String,
    /// Role.
    pub user: String,
    /// Name of the database.
    pub database: String,
    /// Name of the application.
    pub application: String,
    /// Client address, or `[local]`.
    pub client: String,
    /// The statement that waits, without literals.
    pub statement: String,
    /// Type of the lock, as in `pg_locks.locktype`.
    pub lock: String,
    /// The requested mode, as in `pg_locks.mode`.
    pub mode: String,
    /// The relation of the lock, or of the row that the session waits to change.
    pub relation: Option<String>,
    /// The members that it waits for.
    pub waits_for: Vec<u32>,
    /// Age of its transaction when the circle was last seen, in milliseconds.
    pub transaction_ms: Option<u64>,
}

/// Deadlocks that no sample saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnseenDeadlocks {
    /// The time between the two samples in which they were counted; they may be older by seconds.
    pub span: TimeSpan,
    /// Their number.
    pub count: u64,
}

/// Longest time between two samples that saw the same circle, in microseconds.
const SAMPLE_GAP_MAX_US: i64 = 5_000_000;
/// Inaccuracy of the start of a transaction, in microseconds: a sample takes a moment. A
/// transaction that begins after a deadlock differs by more, because its session had waited for
/// `deadlock_timeout`.
const START_TOLERANCE_US: i64 = 500_000;

/// Finds the deadlocks of a recording.
pub fn deadlocks(window: &RecordingWindow) -> DeadlockHistory {
    let mut samples: Vec<_> = window.sessions.iter().chain(&window.circles).collect();
    samples.sort_by_key(|sessions| sessions.at_us);
    let mut sightings: Vec<Sighting> = Vec::new();
    for sessions in samples {
        for rows in sessions.circles() {
            let circle = WaitCircle::new(window, sessions, &rows);
            let starts = rows.iter().map(|row| (row.pid, start_us(sessions, row))).collect();
            let known = sightings.iter_mut().rev().find(|known| known.is_same(&circle, &starts));
            match known {
                Some(known) => {
                    let from_us = known.circle.span.from_us;
                    known.circle = circle;
                    known.circle.span.from_us = from_us;
                }
                None => sightings.push(Sighting { circle, starts }),
            }
        }
    }
    let circles = sightings.into_iter().map(|sighting| sighting.circle).collect();
    count(window, circles)
}

/// A circle with the starts of its members' transactions, by process id.
struct Sighting {
    circle: WaitCircle,
    starts: HashMap<u32, Option<i64>>,
}

impl Sighting {
    fn is_same(&self, other: &WaitCircle, starts: &HashMap<u32, Option<i64>>) -> bool {
        let is_near = |one: &Option<i64>, two: &Option<i64>| match (one, two) {
            (Some(one), Some(two)) => one.abs_diff(*two) <= START_TOLERANCE_US.unsigned_abs(),
            _ => one == two,
        };
        other.span.from_us.saturating_sub(self.circle.span.to_us) <= SAMPLE_GAP_MAX_US
            && self.starts.len() == starts.len()
            && starts.iter().all(|(pid, start)| {
                self.starts.get(pid).is_some_and(|before| is_near(before, start))
            })
    }
}

fn start_us(sessions: &RecordedSessions, row: &RecordedSession) -> Option<i64> {
    let age_us = i64::try_from(row.transaction_ms?).ok()?.saturating_mul(1000);
    Some(sessions.at_us.saturating_sub(age_us))
}

/// Assigns the counted deadlocks to circles.
fn count(window: &RecordingWindow, mut circles: Vec<WaitCircle>) -> DeadlockHistory {
    let mut unseen = Vec::new();
    for counters in window.counters.iter().filter(|counters| counters.deadlocks > 0) {
        let mut left = counters.deadlocks;
        let earlier = |circle: &&mut WaitCircle| circle.span.from_us <= counters.at_us;
        for circle in circles.iter_mut().rev().filter(earlier).filter(|circle| !circle.is_counted) {
            if left == 0 {
                break;
            }
            circle.is_counted = true;
            left -= 1;
        }
        if left > 0 {
            let elapsed_us = i64::try_from(counters.elapsed_us).unwrap_or(i64::MAX);
            let from_us = counters.at_us.saturating_sub(elapsed_us);
            let span = TimeSpan { from_us, to_us: counters.at_us };
            unseen.push(UnseenDeadlocks { span, count: left });
        }
    }
    DeadlockHistory { circles, unseen }
}

impl WaitCircle {
    fn new(
        window: &RecordingWindow,
        sessions: &RecordedSessions,
        rows: &[&RecordedSession],
    ) -> Self {
        let pids: HashSet<u32> = rows.iter().map(|row| row.pid).collect();
        let member = |row: &&RecordedSession| {
            let name = |index| sessions.name(index).to_owned();
            let (lock, mode) =
                row.lock.map_or_else(Default::default, |(lock, mode)| (name(lock), name(mode)));
            CircleMember {
                pid: row.pid,
                kind: name(row.kind),
                user: name(row.user),
                database: name(row.database),
                application: name(row.application),
                client: name(row.client),
                statement: window.statement(row.statement).unwrap_or_default().to_owned(),
                lock,
                mode,
                relation: row.relation.map(|(database, oid)| window.name_of_oids(database, oid)),
                waits_for: row.blockers.iter().copied().filter(|pid| pids.contains(pid)).collect(),
                transaction_ms: row.transaction_ms,
            }
        };
        Self {
            span: TimeSpan { from_us: sessions.at_us, to_us: sessions.at_us },
            members: rows.iter().map(member).collect(),
            is_counted: false,
        }
    }

    /// Describes the circle in one line: `pid 11 and pid 12 on shop.public.orders`.
    pub fn line(&self) -> String {
        let pids: Vec<_> =
            self.members.iter().map(|member| format!("pid {}", member.pid)).collect();
        let names = match &pids[..] {
            [front @ .., last] if !front.is_empty() => format!("{} and {last}", front.join(", ")),
            all => all.join(", "),
        };
        let mut relations: Vec<&str> =
            self.members.iter().filter_map(|member| member.relation.as_deref()).collect();
        relations.sort_unstable();
        relations.dedup();
        let on = if relations.is_empty() { "" } else { " on " };
        let counted = if self.is_counted { "" } else { ", not counted by the server" };
        format!("{names}{on}{}{counted}", relations.join(", "))
    }
}

impl CircleMember {
    /// Describes its wait: ``pid 11 (psql, user bob) waits for pid 12:
    /// ShareLock on transactionid of shop.public.orders``.
    pub fn line(&self) -> String {
        let local = if self.client == "[local]" { "" } else { &*self.client };
        let user = if self.user.is_empty() { String::new() } else { format!("user {}", self.user) };
        let parts = [&*self.application, &*user, &*self.database, local];
        let parts: Vec<_> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        let details =
            if parts.is_empty() { String::new() } else { format!(" ({})", parts.join(", ")) };
        let kind = match &*self.kind {
            "" | "client backend" => "pid",
            kind => kind,
        };
        let pids: Vec<_> = self.waits_for.iter().map(|pid| format!("pid {pid}")).collect();
        let lock = match (&*self.lock, &self.relation) {
            ("", None) => String::new(),
            ("", Some(relation)) => format!(" on {relation}"),
            ("relation", Some(relation)) => format!(": {} on {relation}", self.mode),
            (lock, Some(relation)) => format!(": {} on {lock}, a row of {relation}", self.mode),
            (lock, None) => format!(": {} on {lock}", self.mode),
        };
        format!("{kind} {}{details} waits for {}{lock}", self.pid, pids.join(", "))
    }
}

impl UnseenDeadlocks {
    /// Describes them in one line.
    pub fn line(&self) -> String {
        let (from, to) =
            (units::time_of_day(self.span.from_us), units::time_of_day(self.span.to_us));
        format!("{} counted between {from} and {to}, which no sample saw", self.count)
    }
}

impl DeadlockHistory {
    /// Whether there was none.
    pub fn is_empty(&self) -> bool {
        self.circles.is_empty() && self.unseen.is_empty()
    }

    /// Returns the number of deadlocks that the server counted.
    pub fn counted(&self) -> u64 {
        let seen = self.circles.iter().filter(|circle| circle.is_counted).count() as u64;
        self.unseen.iter().fold(seen, |sum, unseen| sum.saturating_add(unseen.count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recorder::{FlightRecord, FlightRecording, RecordedCounters};

    const START_US: i64 = 1_414_072_716_000_000;

    /// A sample after some milliseconds: process ids, whom they wait for, and the millisecond in
    /// which their transactions began.
    fn sample(at_ms: i64, waits: &[(u32, &[u32], i64)]) -> RecordedSessions {
        let row = |(pid, blockers, began_ms): &(u32, &[u32], i64)| RecordedSession {
            pid: *pid,
            blockers: blockers.to_vec(),
            transaction_ms: Some((at_ms - began_ms).unsigned_abs()),
            relation: Some((5, 16_384)),
            ..RecordedSession::default()
        };
        RecordedSessions {
            at_us: START_US + at_ms * 1000,
            elapsed_us: 1_000_000,
            rows: waits.iter().map(row).collect(),
            ..RecordedSessions::default()
        }
    }

    fn counters(at_ms: i64, deadlocks: u64) -> FlightRecord {
        FlightRecord::Counters(RecordedCounters {
            at_us: START_US + at_ms * 1000,
            elapsed_us: 1_000_000,
            deadlocks,
            ..RecordedCounters::default()
        })
    }

    fn history(records: Vec<FlightRecord>) -> DeadlockHistory {
        let recording = FlightRecording { records, ..FlightRecording::default() };
        deadlocks(&RecordingWindow::from_recording(&recording))
    }

    #[test]
    fn samples_of_one_circle_are_one_deadlock_and_a_retry_is_another() {
        let once = |at_ms, began| sample(at_ms, &[(1, &[2], 100), (2, &[1], began)]);
        let found = history(vec![
            FlightRecord::WaitCircle(once(900, 200)),
            FlightRecord::Sessions(once(1010, 190)),
            counters(1010, 0),
            // The session whose transaction failed tries again.
            FlightRecord::Sessions(once(2010, 1300)),
            counters(2010, 1),
            counters(12_010, 1),
        ]);
        let spans: Vec<_> = found
            .circles
            .iter()
            .map(|circle| [circle.span.from_us, circle.span.to_us].map(|us| us - START_US))
            .collect();
        assert_eq!(spans, [[900_000, 1_010_000], [2_010_000, 2_010_000]]);
        assert!(found.circles.iter().all(|circle| circle.is_counted) && found.unseen.is_empty());
        assert_eq!(found.counted(), 2);
        assert_eq!(found.circles[0].line(), "pid 1 and pid 2 on 5/16384");
        assert_eq!(found.circles[0].members[1].waits_for, [1]);
    }

    #[test]
    fn counted_and_seen_deadlocks_may_differ() {
        let circle = sample(1000, &[(1, &[2], 0), (2, &[1], 0)]);
        let found = history(vec![
            counters(500, 1),
            FlightRecord::Sessions(circle.clone()),
            counters(2000, 3),
        ]);
        let unseen: Vec<_> = found.unseen.iter().map(|unseen| unseen.count).collect();
        assert_eq!((found.circles[0].is_counted, &unseen[..]), (true, &[1, 2][..]));
        assert_eq!(found.counted(), 4);
        let found = history(vec![FlightRecord::Sessions(circle), counters(2000, 0)]);
        assert!(!found.circles[0].is_counted && found.counted() == 0 && !found.is_empty());
        assert!(found.circles[0].line().ends_with("not counted by the server"));
    }
}
