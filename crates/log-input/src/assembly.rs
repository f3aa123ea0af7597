//! Assembles server messages from the fragments in which syslog receives them.
//!
//! The server sends a message to syslog in fragments: one for each line, with lines longer than 900
//! bytes cut at white space. By default each fragment is numbered, as in `[7-2]`: the second
//! fragment of the process's seventh message. Fragments of several processes may be interleaved,
//! and some may be lost.
//!
//! The prefix of such a log usually has neither time nor process id, because syslog adds them. If
//! it has no time, both are inserted at the front of each line that does not begin with a tab, so
//! that the result is a stderr log with the prefix [`ADDED_PREFIX`] followed by the server's own.
//!
//! Source: `write_syslog` in `elog.c`; rsyslog manual, `parser.escapeControlCharactersOnReceive`.

use std::collections::VecDeque;

use super::layer::{COMMON_PREFIX_BYTES, LayerOutput};
use crate::{label::LineLabel, problem::InputProblem, stamp_shape::stamp_len};

/// The prefix added in front of the server's own prefix if the latter has no time.
const ADDED_PREFIX: &str = "%m [%p] ";

/// One fragment of a message, with the fields of its envelope.
#[derive(Clone, Copy, Debug)]
pub(super) struct SyslogFragment<'a> {
    /// Time in the form of `%m`.
    pub(super) time: &'a str,
    pub(super) host: &'a [u8],
    /// Name of the program that wrote the fragment. That of a PostgreSQL server is `syslog_ident`,
    /// by default `postgres`.
    pub(super) program: &'a [u8],
    pub(super) pid: &'a [u8],
    pub(super) text: &'a [u8],
    /// Whether the program may be a server although its name is not a server's, which a label in
    /// its text then shows.
    pub(super) may_be_server: bool,
    /// Line number in the envelope, from 1.
    pub(super) line: u64,
}

/// An assembler of messages from fragments, which emits messages in the order in which they began.
#[derive(Debug)]
pub(super) struct Assembly {
    bytes_max: usize,
    /// Messages in the order in which they began. A complete one waits for those before it.
    open: VecDeque<SyslogMessage>,
    /// Number of fragments so far, which measures the age of messages.
    clock: u64,
    /// Whether the server's own prefix lacks the time; `None` until a message with a label shows
    /// it.
    adds_prefix: Option<bool>,
    /// Whether control characters are escaped as `#011`; assumed until a raw one occurs.
    is_escaped: bool,
    /// Names of other programs that count as servers, because they have written a fragment with a
    /// label.
    programs: Vec<Vec<u8>>,
    host: Vec<u8>,
}

#[derive(Debug)]
struct SyslogMessage {
    pid: Vec<u8>,
    /// Numbers of the message and of its last fragment, if the fragments are numbered.
    number: Option<(u64, u64)>,
    /// Whether a fragment is missing, so that the message must be rejected.
    is_broken: bool,
    is_closed: bool,
    last_entry: u64,
    /// Length of the last fragment as the server sent it: unescaped, and without a newline at its
    /// end.
    last_len: usize,
    time: String,
    text: Vec<u8>,
    /// Line number in the envelope where the message began, from 1.
    line: u64,
}

/// Maximum length of a fragment: `PG_SYSLOG_LIMIT`.
const FRAGMENT_BYTES: usize = 900;

/// Minimum length of a full fragment. A multi-byte character is not cut, so a full fragment may be
/// up to three bytes shorter than the maximum.
const FULL_FRAGMENT_BYTES_MIN: usize = FRAGMENT_BYTES - 3;

/// Number of other fragments after which a message is taken to be complete, since the server sends
/// all fragments of a message together.
const MESSAGE_SPREAD_MAX: u64 = 200;

/// Maximum number of open messages and of other programs.
const OPEN_MESSAGES_MAX: usize = 1000;
const PROGRAMS_MAX: usize = 16;

impl Assembly {
    pub(super) fn new(bytes_max: usize) -> Self {
        Self {
            bytes_max,
            open: VecDeque::new(),
            clock: 0,
            adds_prefix: None,
            is_escaped: true,
            programs: Vec::new(),
            host: Vec::new(),
        }
    }

    /// Returns [`ADDED_PREFIX`] if it is added in front of each line.
    pub(super) fn added_prefix(&self) -> Option<&'static str> {
        self.adds_prefix().then_some(ADDED_PREFIX)
    }

    fn adds_prefix(&self) -> bool {
        self.adds_prefix == Some(true)
    }

    /// Adds the next fragment, and emits the messages that are complete by now. Reports a fragment
    /// of another program, which is skipped, and one of another host, which is added.
    pub(super) fn push_fragment(
        &mut self,
        fragment: &SyslogFragment<'_>,
        output: &mut LayerOutput,
    ) {
        self.clock += 1;
        if !self.is_server(fragment) {
            return output.add_problem(InputProblem::OtherProgram, fragment.line, fragment.text);
        }
        if self.host.is_empty() {
            self.host = fragment.host.to_vec();
        } else if self.host != fragment.host {
            output.add_problem(InputProblem::SeveralServers, fragment.line, fragment.host);
        }
        let (number, raw) = split_number(fragment.text);
        self.is_escaped &= !raw.iter().any(u8::is_ascii_control);
        let mut text = raw.to_vec();
        if self.is_escaped {
            unescape(&mut text);
        }
        if text.last() == Some(&b'\n') {
            text.pop();
        }
        if self.adds_prefix.is_none() {
            self.adds_prefix = find_label(&text).map(|(_, at)| !has_time(&text[..at]));
        }
        self.add_fragment(fragment, number, &text, output);
        self.emit(output);
    }

    /// Emits all open messages, taking them to be complete.
    pub(super) fn flush(&mut self, output: &mut LayerOutput) {
        self.open.iter_mut().for_each(|message| message.is_closed = true);
        self.emit(output);
    }

    fn is_server(&mut self, fragment: &SyslogFragment<'_>) -> bool {
        let SyslogFragment { program, text, may_be_server, .. } = fragment;
        let is_known = program.starts_with(b"postgres")
            || program.starts_with(b"postmaster")
            || self.programs.iter().any(|known| known == program);
        let is_unknown = !is_known && *may_be_server && self.programs.len() < PROGRAMS_MAX;
        if is_unknown && find_label(text).is_some() {
            self.programs.push(program.to_vec());
            return true;
        }
        is_known
    }

    /// Adds a fragment to its message, or starts a message with it.
    fn add_fragment(
        &mut self,
        fragment: &SyslogFragment<'_>,
        number: Option<(u64, Option<u64>)>,
        text: &[u8],
        output: &mut LayerOutput,
    ) {
        let (clock, bytes_max, len) = (self.clock, self.bytes_max, text.len());
        let last = self.open.iter_mut().rfind(|open| !open.is_closed && open.pid == fragment.pid);
        if let Some(message) = last {
            let continuation = match (message.number, number) {
                (Some((known, fragment)), Some((new, Some(next)))) if known == new => {
                    message.is_broken |= next != fragment + 1;
                    message.number = Some((new, next));
                    Some(message.continuation(text))
                }
                (None, None) => message.unnumbered_continuation(text),
                _ => None,
            };
            if let Some(continuation) = continuation {
                message.push(continuation, text, bytes_max);
                (message.last_entry, message.last_len) = (clock, len);
                return;
            }
            message.is_closed = true;
        }
        let starts_late = matches!(number, Some((_, Some(fragment))) if fragment > 1);
        if self.open.len() >= OPEN_MESSAGES_MAX {
            self.flush(output);
        }
        self.open.push_back(SyslogMessage {
            pid: fragment.pid.to_vec(),
            number: number.map(|(number, fragment)| (number, fragment.unwrap_or(1))),
            is_broken: starts_late,
            is_closed: matches!(number, Some((_, None))),
            last_entry: clock,
            last_len: len,
            time: fragment.time.to_owned(),
            text: text.to_vec(),
            line: fragment.line,
        });
    }

    /// Emits messages from the front of the queue, up to the first incomplete one.
    fn emit(&mut self, output: &mut LayerOutput) {
        while let Some(message) = self.open.front() {
            if !message.is_closed && self.clock - message.last_entry < MESSAGE_SPREAD_MAX {
                return;
            }
            if let Some(message) = self.open.pop_front() {
                self.push(&message, output);
            }
        }
    }

    fn push(&self, message: &SyslogMessage, output: &mut LayerOutput) {
        if message.is_broken {
            return output.add_problem(InputProblem::LostParts, message.line, &message.text);
        }
        for line in message.text.split(|byte| *byte == b'\n') {
            if self.adds_prefix() && !line.starts_with(b"\t") {
                let SyslogMessage { time, pid, .. } = message;
                output.log.extend_from_slice(time.as_bytes());
                output.log.extend_from_slice(b" [");
                output.log.extend_from_slice(pid);
                output.log.extend_from_slice(b"] ");
            }
            output.log.extend_from_slice(line);
            output.log.push(b'\n');
        }
    }
}

/// The relation of a fragment to the previous one of its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Continuation {
    /// The fragment continues the same line.
    SameLine,
    NewLine,
}

impl SyslogMessage {
    /// Returns whether a fragment continues the message's last line or is a new line. The server
    /// cuts a line at the last white space within 900 bytes, so a fragment that continues a line
    /// starts with a word that would not have fit into the previous one.
    fn continuation(&self, text: &[u8]) -> Continuation {
        let is_new_line = match text.first() {
            Some(b'\t') | None => true,
            Some(byte) if is_space(byte) => false,
            Some(_) => self.last_len < FULL_FRAGMENT_BYTES_MIN || self.shares_prefix(text),
        };
        let word = text.iter().skip(1).position(is_space).map_or(text.len(), |at| at + 1);
        let is_cut = self.last_len + word >= FULL_FRAGMENT_BYTES_MIN;
        if is_new_line || !is_cut { Continuation::NewLine } else { Continuation::SameLine }
    }

    /// Like [`continuation`](Self::continuation), for an unnumbered fragment; `None` if it starts
    /// another message.
    fn unnumbered_continuation(&self, text: &[u8]) -> Option<Continuation> {
        match find_label(text) {
            Some((LineLabel::Main(_), _)) if self.continuation(text) == Continuation::NewLine => {
                None
            }
            Some((LineLabel::Field(_), _)) => Some(Continuation::NewLine),
            _ => Some(self.continuation(text)),
        }
    }

    /// Whether a line begins with the same [`COMMON_PREFIX_BYTES`] bytes as the message, usually
    /// the time of a prefix.
    fn shares_prefix(&self, text: &[u8]) -> bool {
        self.text.len() >= COMMON_PREFIX_BYTES
            && text.get(..COMMON_PREFIX_BYTES) == self.text.get(..COMMON_PREFIX_BYTES)
    }

    fn push(&mut self, continuation: Continuation, text: &[u8], bytes_max: usize) {
        if self.text.len() + text.len() > bytes_max {
            // The reader rejects this message as too long, so the rest is not needed.
            return;
        }
        if continuation == Continuation::NewLine {
            self.text.push(b'\n');
        }
        self.text.extend_from_slice(text);
    }
}

/// Whether a byte is white space according to C's `isspace`.
fn is_space(byte: &u8) -> bool {
    matches!(byte, b' ' | b'\t'..=b'\r')
}

/// Splits off `[7-2] ` or `[7] `: the numbers of the message and of the fragment.
fn split_number(text: &[u8]) -> (Option<(u64, Option<u64>)>, &[u8]) {
    let split = || {
        let end = memchr::memchr(b']', &text[..text.len().min(44)])?;
        let inner = std::str::from_utf8(text.strip_prefix(b"[")?.get(..end - 1)?).ok()?;
        let rest = text[end + 1..].strip_prefix(b" ")?;
        let number = match inner.split_once('-') {
            Some((message, fragment)) => (message.parse().ok()?, Some(fragment.parse().ok()?)),
            None => (inner.parse().ok()?, None),
        };
        Some((number, rest))
    };
    split().map_or((None, text), |(number, rest)| (Some(number), rest))
}

/// Unescapes `#011`: rsyslog writes control characters as three octal digits.
fn unescape(text: &mut Vec<u8>) {
    if memchr::memchr(b'#', text).is_none() {
        return;
    }
    let mut plain = Vec::with_capacity(text.len());
    let mut rest = text.as_slice();
    while let Some(at) = memchr::memchr(b'#', rest) {
        plain.extend_from_slice(&rest[..at]);
        let code = match rest.get(at + 1..at + 4) {
            Some([b'0', b, c]) if (b'0'..b'4').contains(b) && (b'0'..b'8').contains(c) => {
                Some((b - b'0') * 8 + (c - b'0'))
            }
            Some(b"177") => Some(0x7f),
            _ => None,
        };
        plain.push(code.unwrap_or(b'#'));
        rest = &rest[at + if code.is_some() { 4 } else { 1 }..];
    }
    plain.extend_from_slice(rest);
    *text = plain;
}

/// Returns the first label in a line, and its offset.
pub(super) fn find_label(text: &[u8]) -> Option<(LineLabel, usize)> {
    let head = &text[..text.len().min(LABEL_WINDOW_BYTES)];
    memchr::memmem::find_iter(head, b":  ").find_map(|colon| {
        let start = LineLabel::start(head, colon);
        LineLabel::parse(&head[start..]).map(|(label, _)| (label, start))
    })
}

/// Number of bytes at the front of a line that are searched for a label.
const LABEL_WINDOW_BYTES: usize = 512;

/// Whether a prefix contains a time: `%t`, `%m` or `%n`.
pub(super) fn has_time(prefix: &[u8]) -> bool {
    (0..prefix.len()).any(|at| {
        let rest = &prefix[at..];
        stamp_len(rest, true).or(stamp_len(rest, false)).is_some()
            || super::stamp::epoch_len(rest).is_some()
    })
}

#[cfg(test)]
mod tests;
