//! Reverses the entries of log services that come newest first, as from `gcloud logging read` and
//! from consoles.
//!
//! The first time steps show the direction. Entries that run backwards are held until the end of
//! the file, up to a limit: a larger log cannot be reversed in memory.

use crate::problem::InputProblem;

/// A buffer that passes entries on from old to new, reversing them if they run from new to old.
#[derive(Debug, Default)]
pub(super) struct EntryOrder {
    direction: EntryDirection,
    /// Time of the previous entry.
    previous_time: Vec<u8>,
    /// Number of forward time steps minus the number of backward time steps.
    direction_sum: i32,
    steps: u32,
    /// Entries held back, in input order.
    entries: Vec<Vec<u8>>,
    entry_bytes: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum EntryDirection {
    #[default]
    Unknown,
    /// Entries pass through immediately, because they run from old to new or cannot be reversed.
    Forwards,
    Backwards,
}

/// Number of time steps that are sufficient to determine the direction.
const DECISIVE_STEPS: u32 = 3;
/// Maximum number of entries that are held back before the direction is known.
const UNDECIDED_ENTRIES_MAX: usize = 1000;
/// Maximum total size of entries that are held back to be reversed, in bytes.
const REORDER_BYTES_MAX: usize = 64 << 20;

impl EntryOrder {
    /// Adds the entry at the end of `out`, which begins at `start` and has the time `time`. Returns
    /// a problem once when the entries are found to run backwards, and once if they then become too
    /// many to reverse.
    pub(super) fn push(
        &mut self,
        time: &[u8],
        start: usize,
        out: &mut Vec<u8>,
    ) -> Option<InputProblem> {
        if self.direction == EntryDirection::Forwards {
            return None;
        }
        let entry = out.split_off(start);
        self.entry_bytes += entry.len();
        self.entries.push(entry);
        if self.direction == EntryDirection::Unknown {
            return self.detect_direction(time, out);
        }
        if self.entry_bytes <= REORDER_BYTES_MAX {
            return None;
        }
        self.release(out);
        Some(InputProblem::BackwardsTooLong)
    }

    /// Releases entries because nothing arrived for a while: a live log runs forwards.
    pub(super) fn idle(&mut self, out: &mut Vec<u8>) {
        if self.direction == EntryDirection::Unknown && !self.entries.is_empty() {
            self.release(out);
        }
    }

    /// Releases all entries, reversed if they ran backwards, because the input has ended. Returns a
    /// problem if only now they are found to run backwards.
    pub(super) fn finish(&mut self, out: &mut Vec<u8>) -> Option<InputProblem> {
        let was_unknown = self.direction == EntryDirection::Unknown;
        let is_backwards =
            self.direction == EntryDirection::Backwards || was_unknown && self.direction_sum < 0;
        if is_backwards {
            self.entries.reverse();
        }
        self.release(out);
        (was_unknown && is_backwards).then_some(InputProblem::Backwards)
    }

    /// Evaluates the time of the last entry. Once the direction is known, the entries are released
    /// or, if they run backwards, held back until the end. An entry without a time releases them.
    fn detect_direction(&mut self, time: &[u8], out: &mut Vec<u8>) -> Option<InputProblem> {
        if time.is_empty() {
            self.release(out);
            return None;
        }
        if time != self.previous_time {
            if !self.previous_time.is_empty() {
                self.steps += 1;
                self.direction_sum += if time > self.previous_time.as_slice() { 1 } else { -1 };
            }
            self.previous_time = time.to_vec();
        }
        if self.steps < DECISIVE_STEPS && self.entries.len() < UNDECIDED_ENTRIES_MAX {
            return None;
        }
        if self.direction_sum < 0 {
            self.direction = EntryDirection::Backwards;
            return Some(InputProblem::Backwards);
        }
        self.release(out);
        None
    }

    /// Emits the entries held back; later entries pass through.
    fn release(&mut self, out: &mut Vec<u8>) {
        self.direction = EntryDirection::Forwards;
        for entry in self.entries.drain(..) {
            out.extend(entry);
        }
        self.entry_bytes = 0;
    }
}

#[test]
fn entries_beyond_the_limit_pass_in_input_order() {
    let mut order = EntryOrder::default();
    let (mut out, mut reasons) = (Vec::new(), Vec::new());
    for number in (0..10_u32).rev() {
        let start = out.len();
        out.resize(start + (8 << 20), b'x');
        reasons.extend(order.push(format!("{number:02}").as_bytes(), start, &mut out));
        assert!(order.entry_bytes <= REORDER_BYTES_MAX);
    }
    reasons.extend(order.finish(&mut out));
    assert_eq!(reasons, [InputProblem::Backwards, InputProblem::BackwardsTooLong]);
    assert_eq!(out.len(), 10 * (8 << 20));
}
