//! Mirrors as operators see them, and the log's word when one begins to drop what it is sent, or keeps up
//! again.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::{Duration, Instant},
};

use super::directory::{Directory, PoolEntry};
use crate::{
    Counts, Mirror, MirrorReport, MirrorView, PoolView, config::MirrorPool, mirror::DropReason,
};

/// Every mirror that the settings name, with what all its pools have.
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
            share: mirror.entry.sample_rate,
            report: counted.report(),
            counts: Counts::default(),
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

/// Nothing was dropped for this long: the mirror keeps up again.
const QUIET: Duration = Duration::from_secs(5);

/// Between two lines about one mirror, at least.
const TELL_EVERY: Duration = Duration::from_secs(10);

/// What the log was told of mirrors.
#[derive(Debug, Default)]
pub(super) struct Watch {
    known: HashMap<(String, String), Known>,
}

/// Of one mirror.
#[derive(Debug, Default)]
struct Known {
    dropped: u64,
    /// How many had been dropped, and when the last was, when there was a line about it.
    dropping: Option<u64>,
    last: Option<Instant>,
    /// How many had been run when the last was dropped.
    ran: u64,
    told: Option<Instant>,
}

/// What there is to tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum News {
    Drops,
    /// Again, after so many were dropped.
    KeepsUp(u64),
}

impl Watch {
    /// Looks at all mirrors, and tells the log what is new.
    pub(super) fn look(&mut self, directory: &Directory, now: Instant) {
        let mirrors = directory.mirrors();
        self.known.retain(|(database, name), _| {
            mirrors.iter().any(|(its, mirror, _)| its == database && mirror.name == *name)
        });
        for (database, mirror, counted) in mirrors {
            let report = counted.report();
            let known = self.known.entry((database.clone(), mirror.name.clone())).or_default();
            let mirror = mirror.name;
            match known.look(&report, now) {
                Some(News::Drops) => {
                    // The last error may have a client's values in its text: SHOW MIRRORS has it.
                    let reasons = reasons(&report);
                    tracing::warn!(
                        database,
                        mirror,
                        reasons,
                        "a mirror does not keep up: transactions are dropped"
                    );
                }
                Some(News::KeepsUp(dropped)) => {
                    tracing::info!(database, mirror, dropped, "a mirror keeps up again");
                }
                None => {}
            }
        }
    }
}

impl Known {
    fn look(&mut self, report: &MirrorReport, now: Instant) -> Option<News> {
        let dropped = at_fault(report).map(|(_, count)| count).sum();
        let before = std::mem::replace(&mut self.dropped, dropped);
        if dropped > before {
            (self.last, self.ran) = (Some(now), report.transactions);
        }
        let may_tell = self.told.is_none_or(|told| now.duration_since(told) >= TELL_EVERY);
        let quiet = self.last.is_none_or(|last| now.duration_since(last) >= QUIET);
        let news = match self.dropping {
            None if dropped > before && may_tell => {
                self.dropping = Some(before);
                News::Drops
            }
            Some(from) if quiet && report.transactions > self.ran && may_tell => {
                self.dropping = None;
                News::KeepsUp(dropped - from)
            }
            _ => return None,
        };
        self.told = Some(now);
        Some(news)
    }
}

/// How many were dropped for reasons that are the mirror's.
fn at_fault(report: &MirrorReport) -> impl Iterator<Item = (DropReason, u64)> {
    const ITS: [DropReason; 4] =
        [DropReason::Full, DropReason::Unreachable, DropReason::Timeout, DropReason::Lost];
    ITS.into_iter().map(|why| (why, report.dropped[why as usize]))
}

fn reasons(report: &MirrorReport) -> String {
    let found = at_fault(report).filter(|(_, count)| *count > 0);
    found.map(|(why, count)| format!("{} {count}", why.as_str())).collect::<Vec<_>>().join(", ")
}

#[test]
fn the_log_hears_of_a_mirror_when_it_begins_to_drop_and_when_it_has_stopped() {
    let start = Instant::now();
    let mut known = Known::default();
    let mut look = |second: u64, transactions, full, left| {
        let mut report = MirrorReport { transactions, ..MirrorReport::default() };
        report.dropped[DropReason::Full as usize] = full;
        report.dropped[DropReason::Left as usize] = left;
        known.look(&report, start + Duration::from_secs(second))
    };
    assert_eq!(look(0, 5, 0, 0), None);
    assert_eq!(look(1, 5, 0, 3), None, "that is not the mirror's fault");
    assert_eq!(look(2, 5, 1, 3), Some(News::Drops));
    assert_eq!(look(3, 9, 4, 3), None);
    assert_eq!(look(12, 9, 4, 3), None, "nothing was run since");
    assert_eq!(look(13, 10, 4, 3), Some(News::KeepsUp(4)));
    assert_eq!(look(14, 10, 5, 3), None, "it was told a moment ago");
    assert_eq!(look(24, 10, 6, 3), Some(News::Drops));
    assert_eq!(look(40, 12, 6, 3), Some(News::KeepsUp(1)));
}
