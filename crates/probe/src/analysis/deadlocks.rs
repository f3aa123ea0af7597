//! The deadlocks of a recording: sessions that were seen waiting for each other in a circle, and
//! those that the server counted although no circle was seen.
//!
//! A circle lasts until one of its members has waited for `deadlock_timeout`, and is then ended by
//! an error in that session. The recorder looks for circles once a second, and more often while
//! sessions wait, and confirms each by a second look. Circles that have two members in common, with
//! the same waits of the same transactions, are one circle that others have joined or left. A retry
//! differs: the failed session has begun another wait.
//!
//! The server counts a deadlock up to some seconds after it, or once the failed transaction block
//! ends. So a growth of the counter belongs to the latest circles that had ended by then, but not
//! long before, and that nothing was counted for yet. A circle for which nothing is counted may
//! have been resolved otherwise: the server can reorder the queue of a lock, or a session can be
//! cancelled.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use super::{
    units,
    window::{RecordingWindow, TimeSpan},
};
use crate::recorder::{MemberWait, RecordedCircles, RecordedSession};

/// The deadlocks of a recording, in time order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeadlockHistory {
    /// Circles of sessions that waited for each other, for which the server counted a deadlock.
    pub deadlocks: Vec<WaitCircle>,
    /// Circles for which it counted none.
    pub circles: Vec<WaitCircle>,
    /// Deadlocks that the server counted, but no sample saw.
    pub unseen: Vec<UnseenDeadlocks>,
}

/// Sessions that waited for each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitCircle {
    /// The time at which its last member began to wait, or that of the first sample that saw it if
    /// that is unknown; and the last sample that saw it.
    pub span: TimeSpan,
    /// Its sessions, each before one that it waits for, if the circle is a simple one.
    pub members: Vec<CircleMember>,
}

/// A session in a circle. Unknown texts are empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CircleMember {
    /// Process id.
    pub pid: u32,
    /// Type of the backend, as in `pg_stat_activity`.
    pub kind: Arc<str>,
    /// Role.
    pub user: Arc<str>,
    /// Name of the database.
    pub database: Arc<str>,
    /// Name of the application.
    pub application: Arc<str>,
    /// Client address, or `[local]`.
    pub client: Arc<str>,
    /// The statement that waits, without literals.
    pub statement: Arc<str>,
    /// Type of the lock, as in `pg_locks.locktype`.
    pub lock: Arc<str>,
    /// The requested mode, as in `pg_locks.mode`.
    pub mode: Arc<str>,
    /// The relation of the lock, or of the row that the session waits to change.
    pub relation: Option<Arc<str>>,
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

/// Longest time between two samples that saw the same circle, and from the end of a deadlock to the
/// sample before the one in which it is counted, in microseconds.
const GAP_MAX_US: i64 = 12_000_000;
/// Longest plausible age of a circle, in microseconds.
const AGE_MAX_US: i64 = 86_400_000_000;

/// Finds the deadlocks of a recording.
pub fn deadlocks(window: &RecordingWindow) -> DeadlockHistory {
    let mut sightings: Vec<Sighting<'_>> = Vec::new();
    // The latest sighting of each wait.
    let mut latest: HashMap<MemberWait, usize> = HashMap::new();
    for (record, circles) in window.circles.iter().enumerate() {
        let waits: HashMap<u32, &MemberWait> =
            circles.waits.iter().map(|wait| (wait.pid, wait)).collect();
        for rows in circles.sessions.circles() {
            let at_us = circles.sessions.at_us;
            let of_rows: HashSet<MemberWait> =
                rows.iter().filter_map(|row| waits.get(&row.pid).copied().copied()).collect();
            let mut common: HashMap<usize, usize> = HashMap::new();
            for sighting in of_rows.iter().filter_map(|wait| latest.get(wait)) {
                *common.entry(*sighting).or_default() += 1;
            }
            let is_same = |index: usize| {
                common.get(&index).is_some_and(|count| *count >= 2)
                    && at_us.saturating_sub(sightings[index].to_us) <= GAP_MAX_US
            };
            let known = common.keys().copied().filter(|index| is_same(*index)).max();
            let index = known.unwrap_or(sightings.len());
            let from_us = match known {
                Some(known) => sightings[known].from_us,
                None => began_us(circles, rows.iter().filter_map(|row| waits.get(&row.pid))),
            };
            latest.extend(of_rows.into_iter().map(|wait| (wait, index)));
            let sighting = Sighting { from_us, to_us: at_us, record, rows };
            match sightings.get_mut(index) {
                Some(known) => *known = sighting,
                None => sightings.push(sighting),
            }
        }
    }
    sightings.sort_by_key(|sighting| sighting.to_us);
    let (are_counted, unseen) = count(window, &sightings);
    let mut texts = CircleTexts::new(window);
    let mut history = DeadlockHistory { unseen, ..DeadlockHistory::default() };
    for (sighting, is_counted) in sightings.iter().zip(are_counted) {
        let circle = texts.circle(sighting);
        if is_counted { history.deadlocks.push(circle) } else { history.circles.push(circle) }
    }
    history
}

/// The samples that saw one circle, with its members in the last of them.
struct Sighting<'w> {
    from_us: i64,
    to_us: i64,
    /// Index of the last record of it.
    record: usize,
    rows: Vec<&'w RecordedSession>,
}

/// Returns the time at which the last of the members began to wait, by the recorder's clock.
fn began_us<'w>(
    circles: &RecordedCircles,
    members: impl Iterator<Item = &'w &'w MemberWait>,
) -> i64 {
    let last_us = members.filter_map(|wait| wait.blocked_us).max().unwrap_or(circles.taken_us);
    let age_us = circles.taken_us.saturating_sub(last_us).clamp(0, AGE_MAX_US);
    circles.sessions.at_us.saturating_sub(age_us)
}

/// Assigns the counted deadlocks to circles, which are in the order of their ends; returns which
/// have one, and the deadlocks that are left.
fn count(
    window: &RecordingWindow,
    sightings: &[Sighting<'_>],
) -> (Vec<bool>, Vec<UnseenDeadlocks>) {
    let mut are_counted = vec![false; sightings.len()];
    let mut unseen = Vec::new();
    // Circles that ended before the current sample, without those that have a deadlock.
    let mut ended = Vec::new();
    let mut following = sightings.iter().enumerate().peekable();
    for counters in window.counters.iter().filter(|counters| counters.deadlocks > 0) {
        while let Some((index, circle)) =
            following.next_if(|(_, circle)| circle.to_us <= counters.at_us)
        {
            ended.push((index, circle.to_us));
        }
        let elapsed_us = i64::try_from(counters.elapsed_us).unwrap_or(i64::MAX);
        let from_us = counters.at_us.saturating_sub(elapsed_us);
        let earliest_us = from_us.saturating_sub(GAP_MAX_US);
        let mut left = counters.deadlocks;
        while left > 0
            && let Some((index, _)) = ended.pop_if(|(_, to_us)| *to_us >= earliest_us)
        {
            are_counted[index] = true;
            left -= 1;
        }
        if left > 0 {
            let span = TimeSpan { from_us, to_us: counters.at_us };
            unseen.push(UnseenDeadlocks { span, count: left });
        }
    }
    (are_counted, unseen)
}

/// The texts of circles, each of which exists once: files may come from anywhere.
struct CircleTexts<'w> {
    window: &'w RecordingWindow,
    /// Texts by the index of the record, and their index in it.
    names: HashMap<(usize, u32), Arc<str>>,
    relations: HashMap<(u32, u32), Arc<str>>,
    statements: HashMap<u64, Arc<str>>,
}

impl<'w> CircleTexts<'w> {
    fn new(window: &'w RecordingWindow) -> Self {
        let (names, relations) = (HashMap::new(), HashMap::new());
        Self { window, names, relations, statements: HashMap::new() }
    }

    fn circle(&mut self, sighting: &Sighting<'_>) -> WaitCircle {
        let pids: HashSet<u32> = sighting.rows.iter().map(|row| row.pid).collect();
        let members = sighting.rows.iter().map(|row| self.member(sighting.record, row, &pids));
        WaitCircle {
            members: members.collect(),
            span: TimeSpan { from_us: sighting.from_us, to_us: sighting.to_us },
        }
    }

    fn member(
        &mut self,
        record: usize,
        row: &RecordedSession,
        pids: &HashSet<u32>,
    ) -> CircleMember {
        let window = self.window;
        let sessions = &window.circles[record].sessions;
        let mut name = |index| {
            let entry = self.names.entry((record, index));
            Arc::clone(entry.or_insert_with(|| sessions.name(index).into()))
        };
        let (lock, mode) =
            row.lock.map_or_else(Default::default, |(lock, mode)| (name(lock), name(mode)));
        let statement = self.statements.entry(row.statement);
        let statement =
            statement.or_insert_with(|| window.statement(row.statement).unwrap_or_default().into());
        let relation = row.relation.map(|oids| {
            let known = self.relations.entry(oids);
            Arc::clone(known.or_insert_with(|| window.name_of_oids(oids.0, oids.1).into()))
        });
        CircleMember {
            pid: row.pid,
            kind: name(row.kind),
            user: name(row.user),
            database: name(row.database),
            application: name(row.application),
            client: name(row.client),
            statement: Arc::clone(statement),
            lock,
            mode,
            relation,
            waits_for: row.blockers.iter().copied().filter(|pid| pids.contains(pid)).collect(),
            transaction_ms: row.transaction_ms,
        }
    }
}

impl WaitCircle {
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
        format!("{names}{on}{}", relations.join(", "))
    }
}

impl CircleMember {
    /// Describes its wait: ``pid 11 (psql, user bob) waits for pid 12:
    /// ShareLock on transactionid of shop.public.orders``.
    pub fn line(&self) -> String {
        let local = if *self.client == *"[local]" { "" } else { &*self.client };
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
    /// Returns the number of deadlocks that the server counted.
    pub fn counted(&self) -> u64 {
        let seen = self.deadlocks.len() as u64;
        self.unseen.iter().fold(seen, |sum, unseen| sum.saturating_add(unseen.count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recorder::{
        FlightRecord, FlightRecording, RecordedCounters, RecordedSession, RecordedSessions,
    };

    const START_US: i64 = 1_414_072_716_000_000;
    /// The server's clock is not the recorder's.
    const SERVER_US: i64 = START_US - 7_000_000;

    /// A circle after some milliseconds: process ids, whom they wait for, the milliseconds in
    /// which their transactions and their waits began.
    fn circle(at_ms: i64, waits: &[(u32, &[u32], i64, i64)]) -> FlightRecord {
        let row = |(pid, blockers, began_ms, _): &(u32, &[u32], i64, i64)| RecordedSession {
            pid: *pid,
            blockers: blockers.to_vec(),
            transaction_ms: Some((at_ms - began_ms).unsigned_abs()),
            relation: Some((5, 16_384)),
            ..RecordedSession::default()
        };
        let wait = |(pid, _, began_ms, blocked_ms): &(u32, &[u32], i64, i64)| MemberWait {
            pid: *pid,
            transaction_us: Some(SERVER_US + began_ms * 1000),
            blocked_us: Some(SERVER_US + blocked_ms * 1000),
        };
        FlightRecord::WaitCircle(RecordedCircles {
            sessions: RecordedSessions {
                at_us: START_US + at_ms * 1000,
                rows: waits.iter().map(row).collect(),
                ..RecordedSessions::default()
            },
            taken_us: SERVER_US + at_ms * 1000,
            waits: waits.iter().map(wait).collect(),
        })
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

    fn spans(circles: &[WaitCircle]) -> Vec<[i64; 2]> {
        let ms = |circle: &WaitCircle| {
            [circle.span.from_us, circle.span.to_us].map(|us| (us - START_US) / 1000)
        };
        circles.iter().map(ms).collect()
    }

    #[test]
    fn sightings_of_one_circle_are_one_deadlock_and_a_retry_is_another() {
        let found = history(vec![
            circle(900, &[(1, &[2], 100, 700), (2, &[1], 200, 800)]),
            // Another session has joined.
            circle(1010, &[(1, &[2, 3], 100, 700), (2, &[1], 200, 800), (3, &[1], 0, 950)]),
            counters(1020, 0),
            // The session whose transaction failed tries again, at once.
            circle(2010, &[(1, &[2], 100, 700), (2, &[1], 1300, 1400)]),
            counters(2020, 1),
            // Once more in the same transaction, after a savepoint.
            circle(3010, &[(1, &[2], 100, 700), (2, &[1], 1300, 2400)]),
            counters(12_010, 2),
        ]);
        assert_eq!(spans(&found.deadlocks), [[800, 1010], [1400, 2010], [2400, 3010]]);
        assert!(found.circles.is_empty() && found.unseen.is_empty());
        assert_eq!(found.counted(), 3);
        assert_eq!(found.deadlocks[0].line(), "pid 1, pid 2 and pid 3 on 5/16384");
        assert_eq!(found.deadlocks[1].members[1].waits_for, [1]);
    }

    #[test]
    fn counted_and_seen_deadlocks_may_differ() {
        let seen = || circle(1000, &[(1, &[2], 0, 500), (2, &[1], 0, 600)]);
        let found = history(vec![counters(500, 1), seen(), counters(2000, 3)]);
        let unseen: Vec<_> = found.unseen.iter().map(|unseen| unseen.count).collect();
        assert_eq!((found.deadlocks.len(), &unseen[..]), (1, &[1, 2][..]));
        assert_eq!(found.counted(), 4);
        // Nothing was counted, or too late, or before the circle ended.
        for (at_ms, deadlocks) in [(2000, 0), (14_100, 1), (900, 1)] {
            let found = history(vec![seen(), counters(at_ms, deadlocks)]);
            assert_eq!(spans(&found.circles), [[600, 1000]]);
            assert_eq!((found.deadlocks.len(), found.counted()), (0, deadlocks));
        }
    }

    #[test]
    fn many_circles_are_found_in_linear_time() {
        let pairs: Vec<_> = (1..=32)
            .flat_map(|pair| [(2 * pair, 2 * pair + 1), (2 * pair + 1, 2 * pair)])
            .collect();
        let others: Vec<[u32; 1]> = pairs.iter().map(|(_, other)| [*other]).collect();
        let records = (0..500).map(|began_ms| {
            let waits: Vec<(u32, &[u32], i64, i64)> = pairs
                .iter()
                .zip(&others)
                .map(|((pid, _), other)| (*pid, &other[..], began_ms, 0))
                .collect();
            circle(5000, &waits)
        });
        let count = (0..500).map(|_| counters(6000, 1));
        let found = history(records.chain(count).collect());
        assert_eq!((found.deadlocks.len(), found.circles.len()), (500, 15_500));
    }
}
