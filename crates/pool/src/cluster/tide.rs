//! [`WriteTracker`] and [`Marks`]: what a standby has to have replayed before a client may read there that wrote.
//!
//! ```text
//! client writes      ReadyForQuery: its floor is the number of the next question, 8
//! question 8         the primary is at 0/5000: so all that was told to be written by then is below that
//! question 9         a standby has replayed up to 0/4F00: that is what the primary had at question 7
//! question 12        it has replayed up to 0/5000: as of question 8; the client may read there
//! ```
//!
//! The position of a commit is never asked for: the next position of the primary that is, for whoever wants to
//! know, is one that is not below. So a client has a number, and a standby has one, and a read costs a
//! comparison. Questions are numbered over the whole process, which makes numbers good for whatever is made of
//! the settings when they are read again.

use std::{
    collections::VecDeque,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
};

use super::thin::thin;

/// The number of the next question.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// A question to a server, by the order in which they were sent.
///
/// 0 is that before all others: every server has replayed what was written before it, as far as anybody asks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Question(u64);

impl Question {
    /// Numbers a question that is sent behind this call.
    pub(crate) fn ask() -> Self {
        Self(NEXT.fetch_add(1, Ordering::SeqCst))
    }

    pub(super) const fn number(self) -> u64 {
        self.0
    }

    pub(super) const fn numbered(number: u64) -> Self {
        Self(number)
    }

    /// The next: it will be sent behind this call, so its answer knows of all that is told by now.
    pub(crate) fn next() -> Self {
        Self(NEXT.load(Ordering::SeqCst))
    }
}

/// What a client wrote: for each shard the question by which a standby there has to have replayed all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CausalToken(Vec<Question>);

impl CausalToken {
    /// It wrote on a shard.
    pub(crate) fn rise(&mut self, shard: u32, floor: Question) {
        let Ok(at) = usize::try_from(shard) else { return };
        if self.0.len() <= at {
            self.0.resize(at + 1, Question::default());
        }
        self.0[at] = self.0[at].max(floor);
    }

    /// Takes what a part of it wrote.
    pub(crate) fn rise_to(&mut self, part: &Self) {
        for (shard, floor) in (0..).zip(&part.0) {
            self.rise(shard, *floor);
        }
    }

    /// Of a shard; 0 if it did not write there.
    pub(crate) fn of(&self, shard: usize) -> Question {
        self.0.get(shard).copied().unwrap_or_default()
    }

    /// The shards that it wrote on.
    pub(crate) fn shards(&self) -> impl Iterator<Item = u32> {
        let shards = (0..).zip(&self.0);
        shards.filter(|(_, floor)| **floor > Question::default()).map(|(shard, _)| shard)
    }
}

/// What clients of a cluster want to know of it, and what is known; shared by workers and who asks.
#[derive(Debug, Default)]
pub(crate) struct WriteTracker {
    /// The highest that a client waits for.
    wanted: AtomicU64,
    /// Somebody has written since the primary was asked last.
    is_due: AtomicBool,
    /// The last that the primary has answered.
    known: AtomicU64,
    /// Somebody waits for a standby to have replayed more.
    is_awaited: AtomicBool,
}

impl WriteTracker {
    /// Somebody has written. Gives what a standby has to have replayed for it, and whether the primary is to be
    /// asked for that.
    pub(crate) fn rise(&self) -> (Question, bool) {
        // In this order: who takes the wish away asks behind that.
        let floor = self.rise_some_time();
        (floor, !self.is_due.swap(true, Ordering::SeqCst))
    }

    /// Somebody has written, and it has no hurry to have the primary asked. Gives what a standby has to have
    /// replayed for it.
    pub(crate) fn rise_some_time(&self) -> Question {
        let floor = Question::next();
        self.wanted.fetch_max(floor.0, Ordering::SeqCst);
        floor
    }

    /// The primary is about to be asked.
    pub(crate) fn asks_primary(&self) {
        self.is_due.store(false, Ordering::SeqCst);
    }

    /// Whether the primary is to be asked.
    pub(crate) fn is_due(&self) -> bool {
        self.is_due.load(Ordering::SeqCst)
    }

    /// Whether anybody ever wrote who wants to read that.
    pub(crate) fn is_used(&self) -> bool {
        self.wanted.load(Ordering::Relaxed) > 0
    }

    /// Whether asking a standby again that has replayed so much may let somebody read there.
    pub(crate) fn rises_above(&self, replayed: Question) -> bool {
        let wanted = self.wanted.load(Ordering::SeqCst);
        replayed.0 < wanted.min(self.known.load(Ordering::SeqCst))
    }

    /// The primary has answered.
    fn is_known(&self, question: Question) {
        self.known.store(question.0, Ordering::SeqCst);
    }

    /// Somebody waits until a standby has replayed more.
    pub(crate) fn await_more(&self) {
        self.is_awaited.store(true, Ordering::SeqCst);
    }

    /// Whether somebody waits for that. Who does so still, says it again.
    pub(crate) fn take_awaited(&self) -> bool {
        self.is_awaited.swap(false, Ordering::SeqCst)
    }
}

/// Most marks that are kept.
const MARKS_MAX: usize = 512;

/// How far the primary was at which question.
///
/// Rising in both. Where a standby is far behind there are more than are kept: then the past becomes coarser, and
/// whoever catches up finds a mark in the end.
#[derive(Debug, Default)]
pub(crate) struct Marks {
    /// Which server is the primary, and its timeline.
    of: Option<(usize, u32)>,
    marks: VecDeque<(Question, u64)>,
}

impl Marks {
    /// Takes how far the primary was: up to where it had inserted WAL. What was not flushed yet counts, since
    /// a commit may have been told before it was.
    pub(crate) fn note(
        &mut self,
        of: (usize, u32),
        question: Question,
        inserted: u64,
        tide: &WriteTracker,
    ) {
        if self.of.replace(of) != Some(of) {
            self.marks.clear();
        }
        // The same place at a later question says more; a lower one is that of a server that has crashed, and
        // has lost what nobody had flushed.
        while self.marks.back().is_some_and(|(_, place)| *place >= inserted) {
            self.marks.pop_back();
        }
        if self.marks.len() >= MARKS_MAX {
            thin(&mut self.marks, MARKS_MAX, |(question, _)| question.0);
        }
        self.marks.push_back((question, inserted));
        tide.is_known(question);
    }

    /// The last question at which the primary had no more than a standby has replayed that is on a timeline.
    /// Of another one it says nothing, wherever it is: the two may have parted before.
    pub(crate) fn replayed(&self, timeline: u32, place: u64) -> Question {
        if self.of.is_none_or(|(_, of)| of != timeline) {
            return Question::default();
        }
        let beyond = self.marks.partition_point(|(_, mark)| *mark <= place);
        beyond.checked_sub(1).and_then(|at| self.marks.get(at)).map_or(Question(0), |it| it.0)
    }
}

/// Bytes at the front of a page of WAL that are no record: 24, or 40 at the front of a segment. No record
/// that begins behind them ends before this.
const PAGE_HEADER_BYTES: u64 = 48;

/// Where the last record ends, at the latest, of a server that would insert the next one at a place. That may be
/// behind the header of a page on which there is nothing yet, a place that a standby says it has reached only when
/// there is: it says the end of the page before. So a place within or just behind a header is that end. Where a
/// record goes on there, none can end between it and the place.
pub(crate) fn end_of_wal(next_insert: u64, page_bytes: u64) -> u64 {
    match next_insert.checked_rem(page_bytes) {
        Some(on_page) if on_page < PAGE_HEADER_BYTES => next_insert - on_page,
        _ => next_insert,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_behind_a_write_knows_of_it() {
        let tide = WriteTracker::default();
        let before = Question::ask();
        let (floor, is_first) = tide.rise();
        assert!(before < floor && is_first && !tide.rise().1, "it is to be asked already");
        assert!(!tide.rises_above(before), "the primary has to answer first");
        tide.asks_primary();
        let question = Question::ask();
        assert!(question >= floor);
        // Who writes before the answer has to have it asked again.
        let (second, is_first) = tide.rise();
        assert!(is_first && second > question);
        let mut marks = Marks::default();
        marks.note((0, 1), question, 500, &tide);
        assert!(marks.replayed(1, 499) < floor && marks.replayed(1, 500) >= floor);
        assert!(marks.replayed(1, 10_000) < second, "nobody knows where that is");
        assert!(tide.rises_above(before) && !tide.rises_above(question));
    }

    #[test]
    fn a_standby_is_as_far_as_the_last_mark_that_it_has_reached() {
        let (tide, mut marks) = (WriteTracker::default(), Marks::default());
        let note = |marks: &mut Marks, number: u64, place: u64| {
            marks.note((0, 1), Question(number), place, &tide);
        };
        assert_eq!(marks.replayed(1, 100), Question(0));
        note(&mut marks, 1, 100);
        note(&mut marks, 2, 200);
        note(&mut marks, 5, 200);
        note(&mut marks, 6, 300);
        let replayed = |marks: &Marks, place| marks.replayed(1, place).0;
        assert_eq!(
            [99, 100, 200, 299, 300, 900].map(|it| replayed(&marks, it)),
            [0, 1, 5, 5, 6, 6]
        );
        // It has crashed, and what it had not flushed is nowhere.
        note(&mut marks, 8, 250);
        assert_eq!([249, 250, 300].map(|it| replayed(&marks, it)), [5, 8, 8]);
    }

    #[test]
    fn other_timelines_are_not_compared() {
        let (tide, mut marks) = (WriteTracker::default(), Marks::default());
        marks.note((0, 1), Question(1), 100, &tide);
        marks.note((1, 2), Question(2), 90, &tide);
        assert_eq!(marks.replayed(1, 1000), Question(0), "it follows the primary that was");
        assert_eq!(marks.replayed(0, 1000), Question(0), "nobody knows whom it follows");
        assert_eq!(marks.replayed(2, 90), Question(2));
    }

    #[test]
    fn a_standby_that_is_hours_behind_finds_a_mark() {
        let (tide, mut marks) = (WriteTracker::default(), Marks::default());
        for number in 1..=100_000 {
            marks.note((0, 1), Question(number), number * 10, &tide);
        }
        assert!(marks.marks.len() <= MARKS_MAX);
        // Coarse where it is long ago, exact where it is not, and never too far.
        for (place, least) in [(500_000, 43_000), (990_000, 98_000), (999_990, 99_999)] {
            let found = marks.replayed(1, place).0;
            assert!((least..=place / 10).contains(&found), "{place}: {found}");
        }
    }

    #[test]
    fn a_page_without_a_record_counts_as_the_end_of_the_one_before() {
        for (place, end) in [
            (0x300_0028, 0x300_0000),
            (0x300_2018, 0x300_2000),
            (0x300_2000, 0x300_2000),
            (0x300_2030, 0x300_2030),
            (0x300_1ff8, 0x300_1ff8),
        ] {
            assert_eq!(end_of_wal(place, 8192), end, "{place:x}");
        }
        assert_eq!(end_of_wal(7, 0), 7, "the size of pages is not known");
    }
}
