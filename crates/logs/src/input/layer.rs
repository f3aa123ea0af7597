//! What every layer around a log has in common: bytes in, bytes of what is inside out.

use crate::summary::{Reason, shorten};

/// Takes one wrapping off a log.
///
/// A layer is fed pieces of any size and appends what is inside to [`Found::inside`]. It does no I/O.
/// It never fails: what it cannot read is a [`Found::problem`], with the line of the outside.
pub(super) trait Layer: Send + std::fmt::Debug {
    /// Takes the next bytes of the outside.
    fn feed(&mut self, bytes: &[u8], found: &mut Found);

    /// Nothing came for a while: what looks complete is handed over.
    fn idle(&mut self, found: &mut Found) {
        let _ = found;
    }

    /// Nothing will come any more.
    fn finish(&mut self, found: &mut Found);

    /// What was put in front of the server's own prefix, in its syntax.
    fn added_prefix(&self) -> Option<&'static str> {
        None
    }
}

/// What a layer found.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// Bytes of the log inside.
    pub(super) inside: Vec<u8>,
    /// What could not be read, or is not ours.
    pub(super) problems: Vec<Issue>,
}

/// Something met in the outside, once or more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Issue {
    pub(crate) reason: Reason,
    pub(crate) count: u64,
    /// Line of the first one, from 1.
    pub(crate) line: u64,
    /// The beginning of the first one.
    pub(crate) excerpt: String,
}

impl Found {
    /// Notes a problem. Neighbours of one reason are counted together, so that a file of nothing
    /// else costs no memory.
    pub(super) fn problem(&mut self, reason: Reason, line: u64, excerpt: &[u8]) {
        match self.problems.iter_mut().filter(|met| met.reason == reason).nth(SAMPLES_MAX - 1) {
            Some(met) => met.count += 1,
            None => self.problems.push(Issue { reason, count: 1, line, excerpt: shorten(excerpt) }),
        }
    }
}

/// Samples of one reason between two looks at the problems.
const SAMPLES_MAX: usize = 3;

/// Appends one entry of a log service as lines of a log: newlines inside it are followed by a tab,
/// as the server writes them, unless another line of the same message begins there.
pub(super) fn push_entry(text: &[u8], inside: &mut Vec<u8>) {
    let text = text.strip_suffix(b"\n").unwrap_or(text);
    let head = &text[..text.len().min(LIKENESS_BYTES)];
    let mut rest = text;
    while let Some(newline) = memchr::memchr(b'\n', rest) {
        inside.extend_from_slice(&rest[..=newline]);
        rest = &rest[newline + 1..];
        let is_line_of_its_own = head.len() == LIKENESS_BYTES && rest.starts_with(head);
        if !rest.starts_with(b"\t") && !is_line_of_its_own {
            inside.push(b'\t');
        }
    }
    inside.extend_from_slice(rest);
    inside.push(b'\n');
}

/// Bytes in which the lines of one message are alike: of a time, down to the minute.
pub(super) const LIKENESS_BYTES: usize = 16;

#[test]
fn entries_of_several_lines_stay_one_message() {
    let mut inside = Vec::new();
    push_entry(b"2026-11-20 12:00:00.000 UTC LOG:  a\nb\n\tc\n", &mut inside);
    push_entry(
        b"2026-11-20 12:00:00.000 UTC LOG:  d\n2026-11-20 12:00:00.000 UTC DETAIL:  e",
        &mut inside,
    );
    let expected = "2026-11-20 12:00:00.000 UTC LOG:  a\n\tb\n\tc\n\
                    2026-11-20 12:00:00.000 UTC LOG:  d\n2026-11-20 12:00:00.000 UTC DETAIL:  e\n";
    assert_eq!(String::from_utf8_lossy(&inside), expected);
}

#[test]
fn problems_without_end_take_no_memory() {
    let mut found = Found::default();
    (1..=1000).for_each(|line| found.problem(Reason::NotARecord, line, b"x"));
    assert_eq!(found.problems.len(), SAMPLES_MAX);
    assert_eq!(found.problems.iter().map(|met| met.count).sum::<u64>(), 1000);
}
