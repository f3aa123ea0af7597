//! [`WriteTracker`] and [`LsnHistory`]: track which standbys have replayed a client's writes
//! (read-your-writes).
//!
//! ```text
//! client writes      ReadyForQuery: its token is the number of the next check, 8
//! check 8            the primary is at 0/5000: all commits acknowledged by then are below that
//! check 9            a standby has replayed up to 0/4F00: the position of the primary at check 7
//! check 12           it has replayed up to 0/5000: as of check 8, so the client may read there
//! ```
//! The position of a commit is never queried: the position of the primary at the next check is at
//! or after it. So each client and each standby has the number of a check, and routing a read costs
//! one comparison. Checks are numbered across the whole process, so the numbers stay valid when the
//! configuration is reloaded.

use std::{
    collections::VecDeque,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
};

use super::thinning::thin;

/// The number of the next health check.
static NEXT_SEQ: AtomicU64 = AtomicU64::new(1);

/// The number of a health check, allocated just before the check is sent.
///
/// 0 precedes all checks: a standby need not have replayed anything to satisfy it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct CheckSeq(u64);

impl CheckSeq {
    /// Allocates the number of a check, which must be sent afterwards.
    pub fn allocate() -> Self {
        Self(NEXT_SEQ.fetch_add(1, Ordering::SeqCst))
    }

    pub(super) const fn get(self) -> u64 {
        self.0
    }

    pub(super) const fn from_number(number: u64) -> Self {
        Self(number)
    }

    /// Returns the number of the next check to be sent. That check covers everything acknowledged
    /// so far.
    pub(crate) fn upcoming() -> Self {
        Self(NEXT_SEQ.load(Ordering::SeqCst))
    }
}

/// The writes of a client: for each shard, the check whose primary WAL position a standby must have
/// replayed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CausalToken(Vec<CheckSeq>);

impl CausalToken {
    /// Records a write on a shard.
    pub(crate) fn raise(&mut self, shard: u32, written: CheckSeq) {
        let Ok(at) = usize::try_from(shard) else { return };
        if self.0.len() <= at {
            self.0.resize(at + 1, CheckSeq::default());
        }
        self.0[at] = self.0[at].max(written);
    }

    /// Adds the writes that a sub-request has recorded in its own token.
    pub(crate) fn merge(&mut self, part: &Self) {
        for (shard, written) in (0..).zip(&part.0) {
            self.raise(shard, *written);
        }
    }

    /// Returns the check whose position a standby of this shard must have replayed; 0 if the client
    /// did not write there.
    pub(crate) fn for_shard(&self, shard: usize) -> CheckSeq {
        self.0.get(shard).copied().unwrap_or_default()
    }

    /// Returns the shards that the client wrote to.
    pub(crate) fn shards(&self) -> impl Iterator<Item = u32> {
        let shards = (0..).zip(&self.0);
        shards.filter(|(_, written)| **written > CheckSeq::default()).map(|(shard, _)| shard)
    }
}

/// The latest writes in a cluster and the checks that cover them; shared by the workers and the
/// monitor.
#[derive(Debug, Default)]
pub struct WriteTracker {
    /// The highest number of a check that covers a client's write.
    newest_write: AtomicU64,
    /// Whether the primary must be checked for a recorded write; cleared before that check is sent.
    check_requested: AtomicBool,
    /// The number of the last check that read the primary's WAL insert position.
    answered: AtomicU64,
    /// Whether a check of the standbys was requested, because a client waits for one to catch up.
    replay_requested: AtomicBool,
}

impl WriteTracker {
    /// Records a write. Returns the check whose position a standby must have replayed, and whether
    /// the primary must be checked for it now.
    pub(crate) fn record_write(&self) -> (CheckSeq, bool) {
        // The order matters: the check that clears the request must be sent after the write is
        // recorded, so that it covers the write.
        let written = self.record_deferrable_write();
        (written, !self.check_requested.swap(true, Ordering::SeqCst))
    }

    /// Records a write for which checking the primary is not urgent. Returns the check whose
    /// position a standby must have replayed.
    pub(crate) fn record_deferrable_write(&self) -> CheckSeq {
        let written = CheckSeq::upcoming();
        self.newest_write.fetch_max(written.0, Ordering::SeqCst);
        written
    }

    /// Clears the request for a check of the primary; called just before the check is sent.
    pub fn start_primary_check(&self) {
        self.check_requested.store(false, Ordering::SeqCst);
    }

    /// Whether the primary must be checked to make a write visible on standbys.
    pub fn is_primary_check_due(&self) -> bool {
        self.check_requested.load(Ordering::SeqCst)
    }

    /// Whether a client that reads its own writes has ever written.
    pub fn has_writes(&self) -> bool {
        self.newest_write.load(Ordering::Relaxed) > 0
    }

    /// Whether another check of a standby that had replayed `replayed` may allow more reads there.
    pub fn can_advance(&self, replayed: CheckSeq) -> bool {
        let newest = self.newest_write.load(Ordering::SeqCst);
        replayed.0 < newest.min(self.answered.load(Ordering::SeqCst))
    }

    /// Records that the primary has replied to a check with its WAL insert position.
    fn record_answer(&self, check: CheckSeq) {
        self.answered.store(check.0, Ordering::SeqCst);
    }

    /// Requests that standbys be checked, because a client waits for one to catch up.
    pub(crate) fn request_replay(&self) {
        self.replay_requested.store(true, Ordering::SeqCst);
    }

    /// Returns whether a check of the standbys was requested, and clears the request. Clients that
    /// still wait set it again.
    pub fn take_replay_request(&self) -> bool {
        self.replay_requested.swap(false, Ordering::SeqCst)
    }
}

/// Maximum number of entries in an [`LsnHistory`].
const ENTRIES_MAX: usize = 512;

/// The primary's WAL insert position at each past check.
///
/// Check numbers and positions both increase. A full history is thinned: the older its entries, the
/// fewer remain, so a standby with a large lag finds only a coarse entry until it catches up.
#[derive(Debug, Default)]
pub(crate) struct LsnHistory {
    /// Index of the primary in the list of servers, and its timeline.
    primary: Option<(usize, u32)>,
    entries: VecDeque<(CheckSeq, u64)>,
}

impl LsnHistory {
    /// Records the WAL insert position of the primary. Unflushed WAL is included, since a commit
    /// may be acknowledged before the flush.
    pub(crate) fn record(
        &mut self,
        primary: (usize, u32),
        check: CheckSeq,
        insert_lsn: u64,
        tracker: &WriteTracker,
    ) {
        if self.primary.replace(primary) != Some(primary) {
            self.entries.clear();
        }
        // If positions are equal, only the one at the latest check is useful. A lower position
        // means that the server has crashed and lost unflushed WAL.
        while self.entries.back().is_some_and(|(_, lsn)| *lsn >= insert_lsn) {
            self.entries.pop_back();
        }
        if self.entries.len() >= ENTRIES_MAX {
            thin(&mut self.entries, ENTRIES_MAX, |(check, _)| check.0);
        }
        self.entries.push_back((check, insert_lsn));
        tracker.record_answer(check);
    }

    /// Returns the last check at which the primary was not ahead of the position that a standby on
    /// `timeline` has replayed. Positions on different timelines are not comparable, since the
    /// timelines may have diverged before these positions.
    pub(crate) fn replayed(&self, timeline: u32, lsn: u64) -> CheckSeq {
        if self.primary.is_none_or(|(_, of_primary)| of_primary != timeline) {
            return CheckSeq::default();
        }
        let beyond = self.entries.partition_point(|(_, entry_lsn)| *entry_lsn <= lsn);
        beyond.checked_sub(1).and_then(|at| self.entries.get(at)).map_or(CheckSeq(0), |it| it.0)
    }
}

/// Offset on a WAL page below which no record that starts on the page can end. Page headers take 24
/// bytes, or 40 at the start of a segment, and a record at least 24.
const PAGE_HEADER_BYTES: u64 = 48;

/// Returns a position that a standby's reported position reaches once the standby has replayed all
/// WAL before `next_insert`, and no sooner. The insert position may be just after the header of a
/// page that has no record yet; a standby then still reports the end of the previous page. So a
/// position within or just after a page header is mapped to the start of its page. That is also
/// correct if a record continues onto the page, because no other record ends between the start of
/// the page and that record's end.
pub fn end_of_wal(next_insert: u64, page_bytes: u64) -> u64 {
    match next_insert.checked_rem(page_bytes) {
        Some(on_page) if on_page < PAGE_HEADER_BYTES => next_insert - on_page,
        _ => next_insert,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_after_write_covers_it() {
        let tracker = WriteTracker::default();
        let before = CheckSeq::allocate();
        let (written, is_first) = tracker.record_write();
        assert!(
            before < written && is_first && !tracker.record_write().1,
            "a check is due already"
        );
        assert!(!tracker.can_advance(before), "the primary must answer first");
        tracker.start_primary_check();
        let check = CheckSeq::allocate();
        assert!(check >= written);
        // A write before the primary's reply requires another check.
        let (second, is_first) = tracker.record_write();
        assert!(is_first && second > check);
        let mut history = LsnHistory::default();
        history.record((0, 1), check, 500, &tracker);
        assert!(history.replayed(1, 499) < written && history.replayed(1, 500) >= written);
        assert!(
            history.replayed(1, 10_000) < second,
            "the position of the second write is unknown"
        );
        assert!(tracker.can_advance(before) && !tracker.can_advance(check));
    }

    #[test]
    fn standby_has_replayed_up_to_last_entry_reached() {
        let (tracker, mut history) = (WriteTracker::default(), LsnHistory::default());
        let record = |history: &mut LsnHistory, number: u64, lsn: u64| {
            history.record((0, 1), CheckSeq(number), lsn, &tracker);
        };
        assert_eq!(history.replayed(1, 100), CheckSeq(0));
        record(&mut history, 1, 100);
        record(&mut history, 2, 200);
        record(&mut history, 5, 200);
        record(&mut history, 6, 300);
        let replayed = |history: &LsnHistory, lsn| history.replayed(1, lsn).0;
        assert_eq!(
            [99, 100, 200, 299, 300, 900].map(|it| replayed(&history, it)),
            [0, 1, 5, 5, 6, 6]
        );
        // The primary has crashed and lost unflushed WAL.
        record(&mut history, 8, 250);
        assert_eq!([249, 250, 300].map(|it| replayed(&history, it)), [5, 8, 8]);
    }

    #[test]
    fn lsns_of_different_timelines_are_not_compared() {
        let (tracker, mut history) = (WriteTracker::default(), LsnHistory::default());
        history.record((0, 1), CheckSeq(1), 100, &tracker);
        history.record((1, 2), CheckSeq(2), 90, &tracker);
        assert_eq!(history.replayed(1, 1000), CheckSeq(0), "it follows the previous primary");
        assert_eq!(history.replayed(0, 1000), CheckSeq(0), "its timeline is unknown");
        assert_eq!(history.replayed(2, 90), CheckSeq(2));
    }

    #[test]
    fn standby_hours_behind_still_finds_an_entry() {
        let (tracker, mut history) = (WriteTracker::default(), LsnHistory::default());
        for number in 1..=100_000 {
            history.record((0, 1), CheckSeq(number), number * 10, &tracker);
        }
        assert!(history.entries.len() <= ENTRIES_MAX);
        // The result is coarse for old entries, exact for recent ones, and never too high.
        for (lsn, least) in [(500_000, 43_000), (990_000, 98_000), (999_990, 99_999)] {
            let found = history.replayed(1, lsn).0;
            assert!((least..=lsn / 10).contains(&found), "{lsn}: {found}");
        }
    }

    #[test]
    fn page_without_record_counts_as_end_of_previous_page() {
        for (lsn, end) in [
            (0x300_0028, 0x300_0000),
            (0x300_2018, 0x300_2000),
            (0x300_2000, 0x300_2000),
            (0x300_2030, 0x300_2030),
            (0x300_1ff8, 0x300_1ff8),
        ] {
            assert_eq!(end_of_wal(lsn, 8192), end, "{lsn:x}");
        }
        assert_eq!(end_of_wal(7, 0), 7, "the page size is unknown");
    }
}
