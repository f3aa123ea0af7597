//! The common interface of all layers around a log: bytes in, bytes of the contents out.

use crate::{excerpt::shorten, problem::InputProblem};

/// A filter that removes one envelope from a log.
///
/// A layer is fed chunks of any size and appends the contents to [`LayerOutput::log`]. It does no
/// I/O. It never fails: unreadable input is [reported](LayerOutput::add_problem) with its line
/// number in the envelope.
pub(super) trait Layer: Send + std::fmt::Debug {
    /// Reads the next bytes of the envelope.
    fn feed(&mut self, bytes: &[u8], output: &mut LayerOutput);

    /// Emits records that look complete, because nothing arrived for a while.
    fn idle(&mut self, output: &mut LayerOutput) {
        let _ = output;
    }

    /// Emits or rejects all buffered input, because the input has ended.
    fn finish(&mut self, output: &mut LayerOutput);

    /// Returns the prefix that the layer adds in front of each line, in the syntax of
    /// `log_line_prefix`; `None` if it adds none, or does not know yet.
    fn added_prefix(&self) -> Option<&'static str> {
        None
    }
}

/// Output of layers that has not been taken yet.
#[derive(Debug, Default)]
pub(super) struct LayerOutput {
    /// Contents of the envelope.
    pub(super) log: Vec<u8>,
    /// Problems with the envelope, such as unreadable input.
    pub(super) problems: Vec<Issue>,
}

/// A problem with an envelope. The first three problems of a kind are separate issues; the third
/// issue also counts the later ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Issue {
    /// The kind of problem.
    pub reason: InputProblem,
    /// Number of occurrences.
    pub count: u64,
    /// Line of the first occurrence, from 1; in a replay file of pgreplay, the number of the item;
    /// 0 for an archive.
    pub line: u64,
    /// The first line of the affected input, or a message about it, shortened.
    pub excerpt: String,
}

impl LayerOutput {
    /// Reports a problem. Only the first few problems of each reason are stored, and later ones are
    /// counted, so that a file full of them needs little memory.
    pub(super) fn add_problem(&mut self, reason: InputProblem, line: u64, excerpt: &[u8]) {
        match self
            .problems
            .iter_mut()
            .filter(|problem| problem.reason == reason)
            .nth(SAMPLES_MAX - 1)
        {
            Some(problem) => problem.count += 1,
            None => self.problems.push(Issue { reason, count: 1, line, excerpt: shorten(excerpt) }),
        }
    }
}

/// Maximum number of samples for one reason between two calls that take the problems.
const SAMPLES_MAX: usize = 3;

/// Appends one entry of a log service as lines of a log: newlines inside it are followed by a tab,
/// as the server writes them, unless another line of the same message begins there.
pub(super) fn push_entry(text: &[u8], log: &mut Vec<u8>) {
    let text = text.strip_suffix(b"\n").unwrap_or(text);
    let head = &text[..text.len().min(COMMON_PREFIX_BYTES)];
    let mut rest = text;
    while let Some(newline) = memchr::memchr(b'\n', rest) {
        log.extend_from_slice(&rest[..=newline]);
        rest = &rest[newline + 1..];
        let is_line_of_its_own = head.len() == COMMON_PREFIX_BYTES && rest.starts_with(head);
        if !rest.starts_with(b"\t") && !is_line_of_its_own {
            log.push(b'\t');
        }
    }
    log.extend_from_slice(rest);
    log.push(b'\n');
}

/// Length in bytes of the beginning that a message's lines share: a time down to the minute.
pub(super) const COMMON_PREFIX_BYTES: usize = 16;

#[test]
fn entry_with_several_lines_is_one_message() {
    let mut log = Vec::new();
    push_entry(b"2026-11-20 12:00:00.000 UTC LOG:  a\nb\n\tc\n", &mut log);
    push_entry(
        b"2026-11-20 12:00:00.000 UTC LOG:  d\n2026-11-20 12:00:00.000 UTC DETAIL:  e",
        &mut log,
    );
    let expected = "2026-11-20 12:00:00.000 UTC LOG:  a\n\tb\n\tc\n\
                    2026-11-20 12:00:00.000 UTC LOG:  d\n2026-11-20 12:00:00.000 UTC DETAIL:  e\n";
    assert_eq!(String::from_utf8_lossy(&log), expected);
}

#[test]
fn number_of_stored_problems_is_bounded() {
    let mut output = LayerOutput::default();
    (1..=1000).for_each(|line| output.add_problem(InputProblem::NotARecord, line, b"x"));
    assert_eq!(output.problems.len(), SAMPLES_MAX);
    assert_eq!(output.problems.iter().map(|problem| problem.count).sum::<u64>(), 1000);
}
