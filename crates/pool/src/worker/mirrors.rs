//! Mirrors on the console, and log messages when a mirror starts to drop transactions or keeps up
//! again.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::{Duration, Instant},
};

use howdah_pool_config::MirrorPool;
use howdah_pool_core::{DropReason, Mirror, MirrorReport, PoolCounts};

use super::directory::{Directory, PoolEntry};
use crate::{MirrorView, PoolView};

/// Returns all configured mirrors, with the totals over their pools.
pub(super) fn views(
    directory: &Directory,
    entries: &[Arc<PoolEntry>],
    pools: &[PoolView],
) -> Vec<MirrorView> {
    let mut uses = HashSet::new();
    for entry in entries {
        for target in entry.spec.mirrors.iter() {
            uses.insert((Arc::as_ptr(&target.mirror), target.pool));
        }
    }
    let view = |(database, mirror, counted): (String, MirrorPool, Arc<Mirror>)| {
        let mut view = MirrorView {
            database,
            name: mirror.name,
            endpoint: mirror.endpoint,
            dbname: mirror.entry.dbname,
            sample_rate: mirror.entry.sample_rate,
            report: counted.report(),
            counts: PoolCounts::default(),
            queries: 0,
            query_time: Duration::ZERO,
        };
        for (entry, pool) in entries.iter().zip(pools) {
            if uses.contains(&(Arc::as_ptr(&counted), entry.id)) {
                view.counts += &pool.counts;
                view.queries += pool.tally.queries;
                view.query_time += pool.tally.query_time.total();
            }
        }
        view
    };
    directory.mirrors().into_iter().map(view).collect()
}

/// Minimum time without drops before a mirror counts as keeping up again.
const QUIET_PERIOD: Duration = Duration::from_secs(5);

/// Minimum interval between two log messages about a mirror.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Logs when a mirror starts to drop transactions, and when it keeps up again.
#[derive(Debug, Default)]
pub(super) struct MirrorLog {
    states: HashMap<(String, String), MirrorLogState>,
}

/// The counts and times that decide what to log about a mirror.
#[derive(Debug, Default)]
struct MirrorLogState {
    dropped: u64,
    /// The number of drops before the current period of drops; `None` unless the start of that
    /// period was logged.
    dropped_before: Option<u64>,
    last_drop: Option<Instant>,
    /// The number of transactions that the mirror had run at the time of the last drop.
    transactions_at_drop: u64,
    logged_at: Option<Instant>,
}

/// A change of a mirror's state to log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MirrorLogEvent {
    Dropping,
    /// The mirror keeps up again, after this many drops.
    KeepingUp(u64),
}

impl MirrorLog {
    /// Checks all mirrors and logs changes.
    pub(super) fn update(&mut self, directory: &Directory, now: Instant) {
        let mirrors = directory.mirrors();
        self.states.retain(|(database, name), _| {
            mirrors.iter().any(|(its, mirror, _)| its == database && mirror.name == *name)
        });
        for (database, mirror, counted) in mirrors {
            let report = counted.report();
            let known = self.states.entry((database.clone(), mirror.name.clone())).or_default();
            let mirror = mirror.name;
            match known.next_event(&report, now) {
                Some(MirrorLogEvent::Dropping) => {
                    // The last error is not logged, because it may contain a client's values. SHOW
                    // MIRRORS shows it.
                    let reasons = reasons(&report);
                    tracing::warn!(
                        database,
                        mirror,
                        reasons,
                        "mirror does not keep up: transactions are dropped"
                    );
                }
                Some(MirrorLogEvent::KeepingUp(dropped)) => {
                    tracing::info!(database, mirror, dropped, "mirror keeps up again");
                }
                None => {}
            }
        }
    }
}

impl MirrorLogState {
    fn next_event(&mut self, report: &MirrorReport, now: Instant) -> Option<MirrorLogEvent> {
        let dropped = drops_by_mirror(report).map(|(_, count)| count).sum();
        let before = std::mem::replace(&mut self.dropped, dropped);
        if dropped > before {
            (self.last_drop, self.transactions_at_drop) = (Some(now), report.transactions);
        }
        let may_log =
            self.logged_at.is_none_or(|logged| now.duration_since(logged) >= LOG_INTERVAL);
        let is_quiet = self.last_drop.is_none_or(|last| now.duration_since(last) >= QUIET_PERIOD);
        let event = match self.dropped_before {
            None if dropped > before && may_log => {
                self.dropped_before = Some(before);
                MirrorLogEvent::Dropping
            }
            Some(from)
                if is_quiet && report.transactions > self.transactions_at_drop && may_log =>
            {
                self.dropped_before = None;
                MirrorLogEvent::KeepingUp(dropped - from)
            }
            _ => return None,
        };
        self.logged_at = Some(now);
        Some(event)
    }
}

/// Returns the number of drops that the mirror caused, by reason.
fn drops_by_mirror(report: &MirrorReport) -> impl Iterator<Item = (DropReason, u64)> {
    const ITS: [DropReason; 4] = [
        DropReason::BufferFull,
        DropReason::Unreachable,
        DropReason::Timeout,
        DropReason::ConnectionLost,
    ];
    ITS.into_iter().map(|why| (why, report.dropped[why as usize]))
}

fn reasons(report: &MirrorReport) -> String {
    let found = drops_by_mirror(report).filter(|(_, count)| *count > 0);
    found.map(|(why, count)| format!("{} {count}", why.as_str())).collect::<Vec<_>>().join(", ")
}

#[test]
fn start_and_end_of_mirror_drops_are_logged() {
    let start = Instant::now();
    let mut known = MirrorLogState::default();
    let mut look = |second: u64, transactions, full, left| {
        let mut report = MirrorReport { transactions, ..MirrorReport::default() };
        report.dropped[DropReason::BufferFull as usize] = full;
        report.dropped[DropReason::ClientGone as usize] = left;
        known.next_event(&report, start + Duration::from_secs(second))
    };
    assert_eq!(look(0, 5, 0, 0), None);
    assert_eq!(look(1, 5, 0, 3), None, "not the mirror's fault");
    assert_eq!(look(2, 5, 1, 3), Some(MirrorLogEvent::Dropping));
    assert_eq!(look(3, 9, 4, 3), None);
    assert_eq!(look(12, 9, 4, 3), None, "no transaction was run since");
    assert_eq!(look(13, 10, 4, 3), Some(MirrorLogEvent::KeepingUp(4)));
    assert_eq!(look(14, 10, 5, 3), None, "logged a moment ago");
    assert_eq!(look(24, 10, 6, 3), Some(MirrorLogEvent::Dropping));
    assert_eq!(look(40, 12, 6, 3), Some(MirrorLogEvent::KeepingUp(1)));
}
