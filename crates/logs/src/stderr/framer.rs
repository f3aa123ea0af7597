//! Records of a stderr log that are beyond doubt, framed without regard to sessions.
//!
//! A record is beyond doubt when all its lines have the prefix, say the same of whose they are, and the
//! line after it certainly begins another record: no names a session might have could make it read
//! otherwise. All else is left to [`Stderr`](super::Stderr).

use super::{Group, decode};
use crate::{
    clock::Clock,
    frame::{Frame, Frames},
    pieces::number,
    prefix::{Field, Match, Prefix},
    record::Label,
};

/// Frames pieces of a log with a known prefix.
#[derive(Clone, Debug)]
pub(crate) struct StderrFramer {
    pub(super) prefix: Prefix,
    pub(super) with_returns: bool,
    pub(super) max_record_bytes: usize,
    pub(super) version: u32,
    pub(super) clock: Clock,
}

/// A line: where it begins and ends, and how many newlines came before it in the piece.
#[derive(Clone, Copy)]
struct Line {
    start: usize,
    end: usize,
    newlines: u64,
}

/// A record that is being put together.
struct Open {
    group: Group,
    newlines: u64,
    /// Bytes before the label of its first line. Further lines of it nearly always repeat them.
    label_at: usize,
}

impl StderrFramer {
    pub(crate) fn frames(&mut self, piece: &[u8], out: &mut Frames) {
        (out.version, out.with_names) = (self.version, self.prefix.has_names());
        let mut lines = Lines::after_first(piece);
        let mut open: Option<Open> = None;
        let doubt_bytes = self.prefix.doubt_bytes();
        while let Some(line) = lines.next() {
            let text = &piece[line.start..line.end];
            let repeated = open.as_ref().and_then(|record| record.repeated(piece, text));
            let found = repeated.or_else(|| self.prefix.matches_plainly(text));
            let (found, severity) = match found.map(|found| (found, found.label)) {
                Some((found, Label::Main(severity))) => (found, severity),
                Some((found, Label::Field(part))) => {
                    open = open.filter(|record| record.owns(piece, text, &found));
                    if let Some(Open { group, .. }) = &mut open {
                        group.parts[part as usize] = Some((line.start + found.text, line.end));
                        group.last_line =
                            number(found.field(text, Field::Line)).or(group.last_line);
                    }
                    continue;
                }
                None => {
                    open = None;
                    continue;
                }
            };
            let begun = open.take();
            if doubt_bytes.is_some_and(|bytes| may_read_otherwise(text, found.text, bytes)) {
                continue;
            }
            if let Some(begun) = begun {
                self.push(&begun, piece, line.start, out);
            }
            let number = number(found.field(text, Field::Line));
            let group = Group::new(line.start, line.end, found, severity, number);
            let label_at = label_before(text, found.text.saturating_sub(3));
            open = Some(Open { group, newlines: line.newlines, label_at });
        }
    }

    fn push(&mut self, record: &Open, piece: &[u8], end: usize, out: &mut Frames) {
        let group = &record.group;
        if end - group.start > self.max_record_bytes {
            return;
        }
        match decode(group, piece, self.with_returns, &mut self.clock, &mut out.scratch) {
            Ok(frame) => {
                let (start, newlines) = (group.start, record.newlines);
                out.frames.push(Frame { start, end, newlines, ..frame });
            }
            // The reader will find the same and say so.
            Err(_) => drop(self.clock.take_assumption()),
        }
    }
}

/// Where the label begins that ends before `end`.
fn label_before(text: &[u8], end: usize) -> usize {
    let is_label = |byte: &u8| byte.is_ascii_uppercase() || byte.is_ascii_digit();
    end - text[..end].iter().rev().take_while(|byte| is_label(byte)).count()
}

impl Open {
    /// What a line reads as that begins with the same bytes as the record, up to the label.
    #[inline]
    fn repeated(&self, piece: &[u8], text: &[u8]) -> Option<Match> {
        let before = piece[self.group.start..].get(..self.label_at)?;
        let (label, len) = Label::parse(text.strip_prefix(before)?)?;
        let mut found = self.group.main;
        (found.label, found.text) = (label, self.label_at + len);
        Some(found)
    }

    /// Whether a line says the same as the record's first of whose it is.
    fn owns(&self, piece: &[u8], text: &[u8], found: &Match) -> bool {
        let own = &piece[self.group.start..self.group.end];
        OWNERS.iter().all(|field| found.field(text, *field) == self.group.main.field(own, *field))
    }
}

/// Fields that all lines of a record have in common.
const OWNERS: [Field; 5] =
    [Field::Pid, Field::SessionId, Field::User, Field::Database, Field::Application];

/// Whether a label stands behind the one that was found, so that longer names could end there.
fn may_read_otherwise(line: &[u8], text: usize, within: usize) -> bool {
    let window = &line[..line.len().min(text + within)];
    memchr::memchr_iter(b':', &window[text..]).any(|colon| {
        if !window[text + colon..].starts_with(b":  ") {
            return false;
        }
        let start = label_before(window, text + colon);
        (start..text + colon).any(|at| Label::parse(&window[at..]).is_some())
    })
}

/// Lines that are whole in a piece: the byte after each shows that it does not go on.
struct Lines<'a> {
    piece: &'a [u8],
    at: usize,
    newlines: u64,
}

impl<'a> Lines<'a> {
    /// The lines of a piece but for what its first newline ends: who knows where that began.
    fn after_first(piece: &'a [u8]) -> Self {
        let mut lines = Self { piece, at: 0, newlines: 0 };
        if lines.next().is_none() {
            lines.at = piece.len();
        }
        lines
    }

    #[inline]
    fn next(&mut self) -> Option<Line> {
        let Self { at: start, newlines, .. } = *self;
        let mut from = start;
        loop {
            let end = from + memchr::memchr(b'\n', self.piece.get(from..)?)? + 1;
            self.newlines += 1;
            match self.piece.get(end) {
                Some(b'\t') => from = end,
                Some(_) => {
                    self.at = end;
                    return Some(Line { start, end, newlines });
                }
                None => return None,
            }
        }
    }
}
