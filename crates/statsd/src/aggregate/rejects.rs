//! What could not be used, by reason, with the first few of an interval to look at.

use crate::grammar::{BadLine, Reason};

/// So many lines are kept per interval and shard. The rest of a flood is counted and costs no more.
const RECENT_MAX: usize = 16;
/// So much of a line is kept.
const LINE_BYTES_MAX: usize = 256;

/// Counts by reason, and samples.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rejects {
    counts: [u64; Reason::ALL.len()],
    /// The first ones.
    pub recent: Vec<Recent>,
}

/// A line that could not be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recent {
    /// Why.
    pub reason: Reason,
    /// The line, or its beginning. Invalid UTF-8 is replaced, control characters are escaped.
    pub line: String,
}

impl Rejects {
    /// Notes one.
    pub fn add(&mut self, bad: BadLine<'_>) {
        self.counts[bad.reason as usize] += 1;
        if self.recent.len() < RECENT_MAX {
            let line = &bad.line[..bad.line.len().min(LINE_BYTES_MAX)];
            let line = String::from_utf8_lossy(line).escape_debug().to_string();
            self.recent.push(Recent { reason: bad.reason, line });
        }
    }

    /// Adds `count` that share a reason; `line` stands for all of them.
    pub fn add_many(&mut self, count: u64, bad: BadLine<'_>) {
        if let Some(others) = count.checked_sub(1) {
            self.add(bad);
            self.counts[bad.reason as usize] += others;
        }
    }

    /// Adds the counts of `other`, and its lines as far as there is room.
    pub fn merge(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(other.counts) {
            *count += more;
        }
        let room = RECENT_MAX.saturating_sub(self.recent.len());
        self.recent.extend(other.recent.iter().take(room).cloned());
    }

    /// How many for one reason.
    #[must_use]
    pub fn count(&self, reason: Reason) -> u64 {
        self.counts[reason as usize]
    }

    /// How many for any.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }
}
