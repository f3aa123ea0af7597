//! Messages of the server out of the pieces that syslog carries.
//!
//! The server sends a message to syslog in pieces: one for each line, and lines longer than 900 bytes
//! cut at white space. By default each piece says which it is, as `[7-2]`: the second of the process'
//! seventh message. Pieces of several processes may come mixed, and some may not come at all.
//!
//! The prefix of such a log usually has neither time nor process, since syslog has them. Then they are
//! put in front of each line, so that what comes out is a stderr log with the prefix
//! [`ADDED_PREFIX`] and the server's own.
//!
//! Source: `write_syslog` in `elog.c`; rsyslog manual, `parser.escapeControlCharactersOnReceive`.

use std::collections::VecDeque;

use super::layer::{Found, LIKENESS_BYTES};
use crate::{clock::stamp_len, record::Label, summary::Reason};

/// The prefix that stands in front of the server's own where that has no time.
const ADDED_PREFIX: &str = "%m [%p] ";

/// One piece as it came.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry<'a> {
    /// When, as `%m` has it.
    pub(super) time: &'a str,
    pub(super) host: &'a [u8],
    /// The program: `postgres`, unless `syslog_ident` says otherwise.
    pub(super) program: &'a [u8],
    pub(super) pid: &'a [u8],
    pub(super) text: &'a [u8],
    /// Line of the outside, from 1.
    pub(super) line: u64,
}

/// Puts messages together.
#[derive(Debug)]
pub(super) struct Assembly {
    bytes_max: usize,
    /// Messages in the order in which they began. Those in front wait for their last pieces.
    open: VecDeque<Message>,
    /// Entries seen.
    clock: u64,
    /// Whether the server's own prefix lacks the time; known from the first message with a label.
    adds_prefix: Option<bool>,
    /// Whether control characters stand as `#011`. Taken for granted until one is seen raw.
    escaped: bool,
    /// Programs that are a server, by what they wrote.
    programs: Vec<Vec<u8>>,
    host: Vec<u8>,
}

#[derive(Debug)]
struct Message {
    pid: Vec<u8>,
    /// Its number and that of its last piece, if they are told.
    number: Option<(u64, u64)>,
    /// Parts are missing: what there is must not be believed.
    broken: bool,
    closed: bool,
    last_entry: u64,
    /// Bytes of the last piece, as the server sent it.
    last_len: usize,
    time: String,
    text: Vec<u8>,
    /// Line of the outside on which it began.
    line: u64,
}

/// Longest piece that the server sends: `PG_SYSLOG_LIMIT`.
const PIECE_BYTES: usize = 900;

/// A character of several bytes is not cut: a full piece may be shorter by three.
const FULL_BYTES: usize = PIECE_BYTES - 3;

/// Entries after which a message is taken to be whole: its pieces are sent in one go.
const PATIENCE: u64 = 200;

/// Messages and programs that are held.
const OPEN_MAX: usize = 1000;
const PROGRAMS_MAX: usize = 16;

impl Assembly {
    pub(super) fn new(bytes_max: usize) -> Self {
        Self {
            bytes_max,
            open: VecDeque::new(),
            clock: 0,
            adds_prefix: None,
            escaped: true,
            programs: Vec::new(),
            host: Vec::new(),
        }
    }

    /// [`ADDED_PREFIX`], if it stands in front of what comes out.
    pub(super) fn added_prefix(&self) -> Option<&'static str> {
        self.adds_prefix().then_some(ADDED_PREFIX)
    }

    fn adds_prefix(&self) -> bool {
        self.adds_prefix == Some(true)
    }

    /// Takes the next piece.
    pub(super) fn take(&mut self, entry: &Entry<'_>, found: &mut Found) {
        self.clock += 1;
        if !self.is_server(entry) {
            return found.problem(Reason::OtherProgram, entry.line, entry.text);
        }
        if self.host.is_empty() {
            self.host = entry.host.to_vec();
        } else if self.host != entry.host {
            found.problem(Reason::SeveralServers, entry.line, entry.host);
        }
        let (number, raw) = split_number(entry.text);
        self.escaped &= !raw.iter().any(u8::is_ascii_control);
        let mut text = raw.to_vec();
        if self.escaped {
            unescape(&mut text);
        }
        if text.last() == Some(&b'\n') {
            text.pop();
        }
        if self.adds_prefix.is_none() {
            self.adds_prefix = label(&text).map(|(_, at)| !has_time(&text[..at]));
        }
        self.add(entry, number, &text, found);
        self.emit(found);
    }

    /// Hands over what there is: nothing came for a while, or nothing will.
    pub(super) fn flush(&mut self, found: &mut Found) {
        self.open.iter_mut().for_each(|message| message.closed = true);
        self.emit(found);
    }

    fn is_server(&mut self, entry: &Entry<'_>) -> bool {
        let Entry { program, text, .. } = entry;
        let is_known = program.starts_with(b"postgres")
            || program.starts_with(b"postmaster")
            || self.programs.iter().any(|known| known == program);
        if !is_known && self.programs.len() < PROGRAMS_MAX && label(text).is_some() {
            self.programs.push(program.to_vec());
            return true;
        }
        is_known
    }

    /// Adds a piece to its message, or begins one with it.
    fn add(
        &mut self,
        entry: &Entry<'_>,
        number: Option<(u64, Option<u64>)>,
        text: &[u8],
        found: &mut Found,
    ) {
        let (clock, bytes_max, len) = (self.clock, self.bytes_max, text.len());
        let last = self.open.iter_mut().rfind(|open| !open.closed && open.pid == entry.pid);
        if let Some(message) = last {
            let joint = match (message.number, number) {
                (Some((known, piece)), Some((new, Some(next)))) if known == new => {
                    message.broken |= next != piece + 1;
                    message.number = Some((new, next));
                    Some(message.goes_on_with(text))
                }
                (None, None) => message.belongs_without_number(text),
                _ => None,
            };
            if let Some(joint) = joint {
                message.push(joint, text, bytes_max);
                (message.last_entry, message.last_len) = (clock, len);
                return;
            }
            message.closed = true;
        }
        let starts_late = matches!(number, Some((_, Some(piece))) if piece > 1);
        if self.open.len() >= OPEN_MAX {
            self.flush(found);
        }
        self.open.push_back(Message {
            pid: entry.pid.to_vec(),
            number: number.map(|(number, piece)| (number, piece.unwrap_or(1))),
            broken: starts_late,
            closed: matches!(number, Some((_, None))),
            last_entry: clock,
            last_len: len,
            time: entry.time.to_owned(),
            text: text.to_vec(),
            line: entry.line,
        });
    }

    /// Hands over messages from the front, as far as they are whole.
    fn emit(&mut self, found: &mut Found) {
        while let Some(message) = self.open.front() {
            if !message.closed && self.clock - message.last_entry < PATIENCE {
                return;
            }
            if let Some(message) = self.open.pop_front() {
                self.push(&message, found);
            }
        }
    }

    fn push(&self, message: &Message, found: &mut Found) {
        if message.broken {
            return found.problem(Reason::LostParts, message.line, &message.text);
        }
        for line in message.text.split(|byte| *byte == b'\n') {
            if self.adds_prefix() && !line.starts_with(b"\t") {
                let Message { time, pid, .. } = message;
                found.inside.extend_from_slice(time.as_bytes());
                found.inside.extend_from_slice(b" [");
                found.inside.extend_from_slice(pid);
                found.inside.extend_from_slice(b"] ");
            }
            found.inside.extend_from_slice(line);
            found.inside.push(b'\n');
        }
    }
}

/// How a piece follows the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Joint {
    /// It goes on with the same line.
    SameLine,
    NewLine,
}

impl Message {
    /// How a piece of this message follows what is there. The server cuts a line at the last white
    /// space within 900 bytes, so the cut part and the next word together do not fit.
    fn goes_on_with(&self, text: &[u8]) -> Joint {
        let is_new_line = match text.first() {
            Some(b'\t') | None => true,
            Some(byte) if is_space(byte) => false,
            Some(_) => self.last_len < FULL_BYTES || self.begins_like(text),
        };
        let word = text.iter().skip(1).position(is_space).map_or(text.len(), |at| at + 1);
        let is_cut = self.last_len + word >= FULL_BYTES;
        if is_new_line || !is_cut { Joint::NewLine } else { Joint::SameLine }
    }

    /// The same where pieces are not numbered; `None` if a message begins with this one.
    fn belongs_without_number(&self, text: &[u8]) -> Option<Joint> {
        match label(text) {
            Some((Label::Main(_), _)) if self.goes_on_with(text) == Joint::NewLine => None,
            Some((Label::Field(_), _)) => Some(Joint::NewLine),
            _ => Some(self.goes_on_with(text)),
        }
    }

    /// Whether a line has the same prefix as the message.
    fn begins_like(&self, text: &[u8]) -> bool {
        self.text.len() >= LIKENESS_BYTES
            && text.get(..LIKENESS_BYTES) == self.text.get(..LIKENESS_BYTES)
    }

    fn push(&mut self, joint: Joint, text: &[u8], bytes_max: usize) {
        if self.text.len() + text.len() > bytes_max {
            // It will be found too long by whoever reads it; no more of it is needed for that.
            return;
        }
        if joint == Joint::NewLine {
            self.text.push(b'\n');
        }
        self.text.extend_from_slice(text);
    }
}

/// What `isspace` takes for white space.
fn is_space(byte: &u8) -> bool {
    matches!(byte, b' ' | b'\t'..=b'\r')
}

/// Splits `[7-2] ` or `[7] ` off: the message's number, and that of the piece.
fn split_number(text: &[u8]) -> (Option<(u64, Option<u64>)>, &[u8]) {
    let split = || {
        let end = memchr::memchr(b']', &text[..text.len().min(44)])?;
        let inner = std::str::from_utf8(text.strip_prefix(b"[")?.get(..end - 1)?).ok()?;
        let rest = text[end + 1..].strip_prefix(b" ")?;
        let number = match inner.split_once('-') {
            Some((message, piece)) => (message.parse().ok()?, Some(piece.parse().ok()?)),
            None => (inner.parse().ok()?, None),
        };
        Some((number, rest))
    };
    split().map_or((None, text), |(number, rest)| (Some(number), rest))
}

/// Undoes `#011`: rsyslog writes control characters as three octal digits.
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

/// The first label in a line, and where it begins.
pub(super) fn label(text: &[u8]) -> Option<(Label, usize)> {
    let head = &text[..text.len().min(LABEL_WINDOW_BYTES)];
    memchr::memmem::find_iter(head, b":  ").find_map(|colon| {
        let start = head[..colon]
            .iter()
            .rposition(|byte| !byte.is_ascii_uppercase() && !byte.is_ascii_digit());
        let start = start.map_or(0, |at| at + 1);
        Label::parse(&head[start..]).map(|(label, _)| (label, start))
    })
}

/// Farthest that a label is looked for.
const LABEL_WINDOW_BYTES: usize = 512;

/// Whether a prefix has a time of its own: `%t`, `%m` or `%n`.
pub(super) fn has_time(prefix: &[u8]) -> bool {
    (0..prefix.len()).any(|at| {
        let rest = &prefix[at..];
        stamp_len(rest, true).or(stamp_len(rest, false)).is_some()
            || super::stamp::epoch_len(rest).is_some()
    })
}

#[cfg(test)]
mod tests;
