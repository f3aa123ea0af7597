//! Counts of unusable values by reason, with the first few lines.

use crate::grammar::{BadLine, RejectReason};

/// Maximum number of lines stored; the values of further lines are only counted.
const RECENT_MAX: usize = 16;
/// Maximum number of bytes of a line that are stored, before they are escaped.
const LINE_BYTES_MAX: usize = 256;

/// Counts of rejected values by reason, with some of their lines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rejects {
    counts: [u64; RejectReason::ALL.len()],
    /// The first rejected lines.
    pub recent: Vec<RejectedLine>,
}

/// A line that was rejected, with the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RejectedLine {
    /// The reason why the line, or a value in it, was rejected.
    pub reason: RejectReason,
    /// The first 256 bytes of the line, or of the key if only the key is known. Invalid UTF-8 is
    /// replaced; control characters, quotes and backslashes are escaped.
    pub line: String,
}

impl Rejects {
    /// Records one rejected value.
    pub fn add(&mut self, bad: BadLine<'_>) {
        self.counts[bad.reason as usize] += 1;
        if self.recent.len() < RECENT_MAX {
            let line = &bad.line[..bad.line.len().min(LINE_BYTES_MAX)];
            let line = String::from_utf8_lossy(line).escape_debug().to_string();
            self.recent.push(RejectedLine { reason: bad.reason, line });
        }
    }

    /// Records `count` rejected values with the same reason; only one line is stored for all of
    /// them.
    pub fn add_many(&mut self, count: u64, bad: BadLine<'_>) {
        if let Some(others) = count.checked_sub(1) {
            self.add(bad);
            self.counts[bad.reason as usize] += others;
        }
    }

    /// Adds rejected values that another process has counted, without their lines.
    pub(crate) fn add_count(&mut self, reason: RejectReason, count: u64) {
        self.counts[reason as usize] += count;
    }

    /// Adds the counts of `other`, and its lines up to the limit.
    pub fn merge(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(other.counts) {
            *count += more;
        }
        let room = RECENT_MAX.saturating_sub(self.recent.len());
        self.recent.extend(other.recent.iter().take(room).cloned());
    }

    /// Returns the number of values rejected for this reason.
    pub fn count(&self, reason: RejectReason) -> u64 {
        self.counts[reason as usize]
    }

    /// Returns the total over all reasons.
    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }
}
