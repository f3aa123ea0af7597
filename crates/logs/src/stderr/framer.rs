//! Records of a stderr log that are beyond doubt, framed without regard to sessions.
//!
//! A record is beyond doubt when all its lines have the prefix, say the same of whose they are, and the
//! line after it certainly begins another record: no names a session might have could make it read
//! otherwise. All else is left to [`Stderr`](super::Stderr).

use howdah_traffic::{SqlState, Timestamp};

use super::{
    PARTS, Parts, Seen, known, prefix_fields, quick::is_of_label, texts, unfold, without_line_end,
};
use crate::{
    clock::{Assumption, Clock, read_epoch},
    frame::{Frame, Frames, Owner},
    marks::{Mark, Marks},
    message::Said,
    pieces::{Span, number, process, session_id, session_id_at, signed},
    prefix::{Field, Prefix, first_length},
    record::{Label, Part, Severity},
};

/// Frames pieces of a log with a known prefix.
#[derive(Clone, Debug)]
pub(crate) struct StderrFramer {
    pub(super) prefix: Prefix,
    /// Of the prefix: see [`Prefix::is_plain`].
    pub(super) is_plain: bool,
    /// Prefixes that were read before, if they may come again.
    pub(super) seen: Option<Seen>,
    pub(super) with_returns: bool,
    pub(super) max_record_bytes: usize,
    pub(super) version: u32,
    pub(super) clock: Clock,
    /// Of the piece that is being framed.
    pub(super) marks: Marks,
    /// Of the line whose prefix was read last.
    pub(super) cold: Frame,
    pub(super) cold_owner: Owner,
}

/// A line: where it begins and ends, and how many newlines came before it in the piece.
#[derive(Clone, Copy)]
pub(super) struct Line {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) newlines: u32,
    /// The number of the first mark in it.
    pub(super) mark: usize,
    /// It goes over several lines of the file.
    pub(super) is_folded: bool,
    /// Where its first colon with two spaces behind is: its label's, nearly always.
    pub(super) colon: Option<usize>,
    /// There is another one.
    has_more_colons: bool,
}

/// A record that is being put together, if there is one.
pub(super) struct Open {
    pub(super) is_open: bool,
    /// It is the last frame already, but for its end. Only `start`, `newlines` and `label_at` are here.
    pub(super) is_framed: bool,
    /// Where it begins in the piece, and newlines before it.
    pub(super) start: u32,
    pub(super) newlines: u32,
    /// The number of the first mark in it.
    pub(super) mark: usize,
    /// The number of its owner.
    pub(super) owner: u32,
    pub(super) severity: Severity,
    pub(super) time: Timestamp,
    pub(super) assumption: Option<Assumption>,
    /// What a prefix says that does not repeat; nothing unless `is_cold`.
    cold: Frame,
    pub(super) is_cold: bool,
    /// The message, with its line end.
    pub(super) main: Span,
    pub(super) parts: Parts,
    /// Some of the parts are there.
    pub(super) has_parts: bool,
    pub(super) is_folded: bool,
    /// The bytes before the label of its first line. Further lines of it nearly always repeat them.
    pub(super) label_at: usize,
}

/// A line that was read. What its prefix says beside the time and whose it is, is in the framer's
/// [`cold`](StderrFramer::cold) frame; there is nothing of it in prefixes that repeat.
pub(super) struct Read {
    /// `None` if it is no time.
    pub(super) time: Option<Timestamp>,
    pub(super) assumption: Option<Assumption>,
    /// The number of its owner.
    pub(super) owner: u32,
    pub(super) label: Label,
    /// Where the label begins in the line, and the text behind it.
    pub(super) label_at: usize,
    pub(super) text: usize,
    pub(super) is_cold: bool,
}

impl StderrFramer {
    pub(crate) fn frames(&mut self, piece: &[u8], out: &mut Frames) {
        (out.version, out.with_names) = (self.version, self.prefix.has_names());
        if let Some(seen) = &mut self.seen {
            seen.begin_piece();
        }
        let mut marks = std::mem::take(&mut self.marks);
        marks.find(piece);
        self.frame_lines(piece, &marks, out);
        self.marks = marks;
    }

    fn frame_lines(&mut self, piece: &[u8], marks: &Marks, out: &mut Frames) {
        let mut lines = Lines::after_first(piece, marks);
        let mut open = Open::NONE;
        let doubt_bytes = self.prefix.doubt_bytes();
        while let Some(line) = lines.next() {
            if open.takes_repeated(piece, &line, out) {
                continue;
            }
            if let Some(quick) = self.read_quickly(piece, &line, out)
                && !(line.has_more_colons && doubt_bytes.is_some())
            {
                if open.is_framed {
                    self.end_framed(line.start, out);
                } else if open.is_open {
                    self.finish(&open, piece, marks, line.start, out);
                }
                let is_simple = !line.is_folded && !self.with_returns;
                open.begin_quickly(piece, &line, &quick, is_simple, out);
                continue;
            }
            open.take_back(out);
            let Some(read) = self.read(piece, line, out) else {
                open.is_open = false;
                continue;
            };
            let Label::Main(severity) = read.label else {
                open.is_open = open.is_open && self.continues(&mut open, &read, piece, &line, out);
                continue;
            };
            let text = read.text;
            let is_doubtful = doubt_bytes.is_some_and(|bytes| {
                let is_label = line.colon == Some(line.start + text - 3);
                (line.has_more_colons || !is_label)
                    && may_read_otherwise(&piece[line.start..line.end], text, bytes)
            });
            if open.is_open && !is_doubtful {
                self.finish(&open, piece, marks, line.start, out);
            }
            open.is_open = false;
            if let Some(time) = read.time.filter(|_| !is_doubtful) {
                open.begin(&line, &read, time, severity);
                open.is_cold = read.is_cold;
                if read.is_cold {
                    open.cold = self.cold;
                }
            }
        }
        // What a record still lacks that is open now is in the next piece.
        open.take_back(out);
    }

    /// Reads prefix and label of a line.
    #[inline(never)]
    fn read(&mut self, piece: &[u8], line: Line, out: &mut Frames) -> Option<Read> {
        if self.is_plain {
            let read = match self.seen.is_some() {
                true => self.read_again(piece, line, out),
                false => self.read_plainly(piece, line, out),
            };
            if read.is_some() {
                return read;
            }
        }
        self.read_somehow(piece, line, out)
    }

    #[cold]
    fn read_somehow(&mut self, piece: &[u8], line: Line, out: &mut Frames) -> Option<Read> {
        self.clock.take_assumption();
        let text = &piece[line.start..line.end];
        let found = self.prefix.matches_plainly(text)?;
        // The reader will find the same of a time that is none, and say so.
        let fields = prefix_fields(&found, line.start, &piece[..line.end], &mut self.clock).ok();
        let (frame, owner) = fields.unwrap_or((Frame::EMPTY, Owner::EMPTY));
        (self.cold, self.cold_owner) = (frame, owner);
        Some(Read {
            time: fields.map(|_| frame.time),
            assumption: frame.assumption,
            owner: out.owner(&owner, piece),
            label: found.label,
            label_at: label_before(text, found.text.saturating_sub(3)),
            text: found.text,
            is_cold: true,
        })
    }

    /// The same for a line whose prefix may have been read before.
    #[inline]
    fn read_again(&mut self, piece: &[u8], line: Line, out: &mut Frames) -> Option<Read> {
        let text = &piece[line.start..line.end];
        let Some((time, len)) = self.clock.read_next(text) else {
            return self.read_plainly(piece, line, out);
        };
        let label_at = label_before(text, line.colon? - line.start);
        let (prefix, labelled) = (text.get(len..label_at)?, &text[label_at..]);
        let (label, label_len) = Label::parse(labelled)?;
        if let Some(seen) = &mut self.seen
            && let Some(owner) = seen.find(prefix, line.start + len, out)
        {
            let (time, assumption) = (Some(time), self.clock.take_assumption());
            let text = label_at + label_len;
            return Some(Read { time, assumption, owner, label, label_at, text, is_cold: false });
        }
        let read = self.read_plainly(piece, line, out)?;
        if let Some(seen) = &mut self.seen
            && read.label_at == label_at
        {
            seen.keep(prefix, self.cold_owner.moved_back(line.start + len), read.owner);
        }
        Some(read)
    }

    /// The same for the prefix of most logs and lines that are as they should be.
    #[inline]
    fn read_plainly(&mut self, piece: &[u8], line: Line, out: &mut Frames) -> Option<Read> {
        let Self { prefix, clock, .. } = self;
        clock.take_assumption();
        let (mut frame, mut owner) = (Frame::EMPTY, Owner::EMPTY);
        let mut pid = None;
        let (label, text) = prefix.walk(&piece[line.start..line.end], |field, at, rest, len| {
            let at = line.start + at;
            let span = |len: usize| Span::input(at, at + len);
            let name = |len: usize| known(span(len), piece, &[]);
            match (field, len) {
                (Field::User, Some(len)) => owner.user = name(len),
                (Field::Database, Some(len)) => owner.database = name(len),
                (Field::Application, Some(len)) => owner.application = name(len),
                (Field::BackendType, Some(len)) => owner.backend_type = span(len),
                (Field::Tag, Some(len)) => frame.tag = span(len),
                (Field::Millis, _) => {
                    if let Some((time, len)) = clock.read_next(rest) {
                        frame.time = time;
                        return Some(len);
                    }
                }
                (Field::SessionId, _) => {
                    if let Some((start, process, len)) = session_id_at(rest) {
                        (owner.session_start, pid) = (Some(start), pid.or(Some(process)));
                        owner.session_id = span(len);
                        return Some(len);
                    }
                }
                _ => {}
            }
            if len.is_some() {
                return len;
            }
            let len = first_length(field, rest)?;
            let text = &rest[..len];
            match field {
                Field::Millis | Field::Seconds => frame.time = clock.read(text)?,
                Field::Epoch => frame.time = read_epoch(text)?,
                Field::Pid => pid = process(text).or(pid),
                Field::SessionId => {
                    let id = session_id(text);
                    owner.session_id = span(len);
                    owner.session_start = id.map(|(start, _)| start).or(owner.session_start);
                    pid = pid.or(id.map(|(_, pid)| pid));
                }
                Field::Start => {
                    // A session's id, before or behind, says the same.
                    owner.session_start = owner.session_start.or_else(|| clock.read_start(text));
                }
                Field::Remote if len > 0 => owner.remote = name(len),
                Field::Host if owner.remote == Span::ABSENT => owner.remote = name(len),
                Field::LeaderPid => owner.has_leader = len > 0,
                Field::Vxid => frame.vxid = span(len),
                Field::QueryId => frame.query_id = signed(text),
                Field::Line => frame.lines = number(text).map(|line| (line, line)),
                Field::SqlState => frame.sqlstate = SqlState::new(text),
                _ => {}
            }
            Some(len)
        })?;
        owner.pid = pid;
        let assumption = clock.take_assumption();
        (self.cold, self.cold_owner) = (frame, owner);
        Some(Read {
            time: Some(frame.time),
            assumption,
            owner: out.owner(&owner, piece),
            label,
            label_at: label_before(&piece[line.start..], text - 3),
            text,
            is_cold: true,
        })
    }

    /// Ends the record that is framed last, unless it is too long.
    #[inline]
    fn end_framed(&self, end: usize, out: &mut Frames) {
        let Some(last) = out.frames.last_mut() else { return };
        last.end = end as u32;
        if end - last.start as usize > self.max_record_bytes {
            out.frames.pop();
        }
    }

    /// Adds the frame of a record that ends at `end`, unless it is too long.
    #[inline]
    fn finish(&self, record: &Open, piece: &[u8], marks: &Marks, end: usize, out: &mut Frames) {
        let Open { start, newlines, owner, severity, time, assumption, .. } = *record;
        if end - start as usize > self.max_record_bytes {
            return;
        }
        let with_returns = self.with_returns;
        let end = end as u32;
        let frame =
            Frame { start, end, newlines, owner, time, assumption, severity, ..Frame::EMPTY };
        if !record.is_folded && !record.has_parts && !record.is_cold {
            let message = without_line_end(piece, record.main, with_returns);
            let said = Said::by(severity, message.text(piece, &[]));
            return out.frames.push(Frame { message, said, ..frame });
        }
        self.finish_rest(record, frame, piece, marks, out);
    }

    /// The same for one that has more than a message of one line.
    fn finish_rest(
        &self,
        record: &Open,
        mut frame: Frame,
        piece: &[u8],
        marks: &Marks,
        out: &mut Frames,
    ) {
        if record.is_cold {
            let Frame { query_id, lines, sqlstate, vxid, tag, .. } = record.cold;
            frame = Frame { query_id, lines, sqlstate, vxid, tag, ..frame };
        }
        let with_returns = self.with_returns;
        let Open { main, parts, .. } = record;
        let scratch = &mut out.scratch;
        if !record.is_folded {
            let bare = |text, _: &mut _| without_line_end(piece, text, with_returns);
            texts(&mut frame, *main, parts, piece, scratch, bare);
        } else if with_returns {
            let unfold = |text, scratch: &mut _| unfold(piece, text, with_returns, scratch);
            texts(&mut frame, *main, parts, piece, scratch, unfold);
        } else {
            let unfold =
                |text, scratch: &mut _| unfold_by(marks, record.mark, piece, text, scratch);
            texts(&mut frame, *main, parts, piece, scratch, unfold);
        }
        frame.said = Said::by(frame.severity, frame.message.text(piece, scratch));
        out.frames.push(frame);
    }

    /// Whether a line that begins no record belongs to the open one, which then has it.
    #[cold]
    fn continues(
        &self,
        record: &mut Open,
        read: &Read,
        piece: &[u8],
        line: &Line,
        out: &Frames,
    ) -> bool {
        let (Some(_), Label::Field(part)) = (read.time, read.label) else { return false };
        let owner = |number: u32| out.owners.get(number as usize);
        let (Some(first), Some(further)) = (owner(record.owner), owner(read.owner)) else {
            return false;
        };
        if read.owner != record.owner && !is_same_owner(first, further, piece) {
            return false;
        }
        record.take(part, Span::input(line.start + read.text, line.end), line);
        let lines = if read.is_cold { self.cold.lines } else { None };
        if let (Some((_, last)), Some((further, _))) = (&mut record.cold.lines, lines) {
            *last = further;
        }
        true
    }
}

/// Like [`unfold`] of lines without carriage returns, for whoever knows where the newlines are: among the
/// marks from `first` on.
fn unfold_by(marks: &Marks, first: usize, piece: &[u8], text: Span, scratch: &mut Vec<u8>) -> Span {
    let text = without_line_end(piece, text, false);
    let range = text.range();
    let newlines = marks.newlines_from(first).skip_while(|at| *at < range.start);
    let from = scratch.len();
    let mut copied = range.start;
    for newline in newlines.take_while(|at| *at < range.end) {
        scratch.extend_from_slice(&piece[copied..=newline]);
        // A tab is behind, or the line would end here.
        copied = newline + 2;
    }
    if copied == range.start {
        return text;
    }
    scratch.extend_from_slice(piece.get(copied..range.end).unwrap_or_default());
    Span::scratch(from, scratch.len())
}

/// Where the label begins that ends before `end`.
fn label_before(text: &[u8], end: usize) -> usize {
    end - text[..end].iter().rev().take_while(|byte| is_of_label(**byte)).count()
}

impl Open {
    const NONE: Self = Self {
        is_open: false,
        is_framed: false,
        start: 0,
        newlines: 0,
        mark: 0,
        owner: 0,
        severity: Severity::Log,
        time: Timestamp::from_micros(0),
        assumption: None,
        cold: Frame::EMPTY,
        is_cold: false,
        main: Span::ABSENT,
        parts: [Span::ABSENT; PARTS],
        has_parts: false,
        is_folded: false,
        label_at: 0,
    };

    /// A record that begins with this line.
    #[inline]
    pub(super) fn begin(&mut self, line: &Line, read: &Read, time: Timestamp, severity: Severity) {
        (self.start, self.newlines, self.mark) = (line.start as u32, line.newlines, line.mark);
        (self.owner, self.severity) = (read.owner, severity);
        (self.time, self.assumption) = (time, read.assumption);
        self.main = Span::input(line.start + read.text, line.end);
        if self.has_parts {
            self.parts = [Span::ABSENT; PARTS];
            self.has_parts = false;
        }
        (self.is_open, self.is_folded, self.label_at) = (true, line.is_folded, read.label_at);
    }

    /// Takes a further line, of which this is the text.
    #[inline]
    pub(super) fn take(&mut self, part: Part, text: Span, line: &Line) {
        self.parts[part as usize] = text;
        self.has_parts = true;
        self.is_folded |= line.is_folded;
    }
}

/// Whether a line says the same as the record's first of whose it is.
fn is_same_owner(first: &Owner, further: &Owner, piece: &[u8]) -> bool {
    let owner = |owner: &Owner| {
        [owner.session_id, owner.user, owner.database, owner.application]
            .map(|span| span.text(piece, &[]))
    };
    first.pid == further.pid && owner(first) == owner(further)
}

/// Whether a label stands behind the one that was found, so that longer names could end there.
fn may_read_otherwise(line: &[u8], text: usize, within: usize) -> bool {
    let window = &line[..line.len().min(text + within)];
    if !has_colon_and_spaces(&window[text..]) {
        return false;
    }
    memchr::memchr_iter(b':', &window[text..]).any(|colon| {
        if !window[text + colon..].starts_with(b":  ") {
            return false;
        }
        let start = label_before(window, text + colon);
        (start..text + colon).any(|at| Label::parse(&window[at..]).is_some())
    })
}

/// Whether there is a colon with two spaces behind. Looks at each byte without asking what the one before
/// was, many at a time.
#[inline]
fn has_colon_and_spaces(text: &[u8]) -> bool {
    let (Some(second), Some(third)) = (text.get(1..), text.get(2..)) else { return false };
    let bytes = text.iter().zip(second).zip(third);
    bytes.fold(0, |found, ((colon, space), other)| {
        found | u8::from(*colon == b':') & u8::from(*space == b' ') & u8::from(*other == b' ')
    }) != 0
}

/// Lines that are whole in a piece: the byte after each shows that it does not go on.
struct Lines<'a> {
    piece: &'a [u8],
    marks: &'a Marks,
    /// The next mark.
    mark: usize,
    at: usize,
    newlines: u32,
}

impl<'a> Lines<'a> {
    /// The lines of a piece but for what its first newline ends: who knows where that began.
    fn after_first(piece: &'a [u8], marks: &'a Marks) -> Self {
        let mut lines = Self { piece, marks, mark: 0, at: 0, newlines: 0 };
        lines.next();
        lines
    }

    #[inline]
    fn next(&mut self) -> Option<Line> {
        let Self { at: start, newlines, mark: first, .. } = *self;
        let (mut colon, mut has_more_colons) = (None, false);
        loop {
            let mark = self.marks.at(self.mark)?;
            self.mark += 1;
            let newline = match mark {
                Mark::Newline(at) => at,
                Mark::Colon(at) => {
                    has_more_colons |= colon.is_some();
                    colon = colon.or(Some(at));
                    continue;
                }
            };
            self.newlines += 1;
            let end = newline + 1;
            match self.piece.get(end) {
                Some(b'\t') => {}
                Some(_) => {
                    self.at = end;
                    let is_folded = self.newlines - newlines > 1;
                    let mark = first;
                    return Some(Line {
                        start,
                        end,
                        newlines,
                        mark,
                        is_folded,
                        colon,
                        has_more_colons,
                    });
                }
                None => return None,
            }
        }
    }
}
