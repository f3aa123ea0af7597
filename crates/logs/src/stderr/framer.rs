//! Records of a stderr log that are beyond doubt, framed without regard to sessions.
//!
//! A record is beyond doubt when all its lines have the prefix, say the same of whose they are, and the
//! line after it certainly begins another record: no names a session might have could make it read
//! otherwise. All else is left to [`Stderr`](super::Stderr).

use howdah_traffic::SqlState;

use super::{Folding, PARTS, Parts, Seen, known, prefix_fields, texts};
use crate::{
    clock::{Clock, read_epoch},
    frame::{Frame, Frames},
    pieces::{Span, number, process, session_id, session_id_at, signed},
    prefix::{Field, Prefix, first_length},
    record::Label,
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
}

/// A line: where it begins and ends, and how many newlines came before it in the piece.
#[derive(Clone, Copy)]
struct Line {
    start: usize,
    end: usize,
    newlines: u64,
    /// It goes over several lines of the file.
    is_folded: bool,
}

/// A record that is being put together. Its frame is the last there is, and lacks the texts.
struct Open {
    /// The message, with its line end.
    main: Span,
    parts: Parts,
    is_folded: bool,
    /// Where its first line begins, and the bytes before the label of it. Further lines of it nearly
    /// always repeat them.
    start: usize,
    label_at: usize,
}

/// A line that was read on its own. Its fields are in a frame.
struct Read {
    /// The time is one.
    is_timed: bool,
    label: Label,
    /// Where the text behind the label begins in the line.
    text: usize,
}

impl StderrFramer {
    pub(crate) fn frames(&mut self, piece: &[u8], out: &mut Frames) {
        (out.version, out.with_names) = (self.version, self.prefix.has_names());
        let mut lines = Lines::after_first(piece);
        let mut open: Option<Open> = None;
        let doubt_bytes = self.prefix.doubt_bytes();
        while let Some(line) = lines.next() {
            let text = &piece[line.start..line.end];
            if let Some(record) = &mut open
                && record.takes_repeated(piece, text, line)
            {
                continue;
            }
            // Frames are large, so a line is read into the place where its frame would stay.
            out.frames.push(Frame::EMPTY);
            let read = out.frames.last_mut().and_then(|frame| self.read(piece, line, frame));
            let is_main = read.as_ref().is_some_and(|read| matches!(read.label, Label::Main(_)));
            if !is_main {
                open = self.continued(open, read, piece, line, out);
                continue;
            }
            let Some(read) = read else { continue };
            let is_doubtful =
                doubt_bytes.is_some_and(|bytes| may_read_otherwise(text, read.text, bytes));
            if let Some(begun) = open.take()
                && (is_doubtful || !self.finish(&begun, piece, line.start, out))
            {
                // The last one takes its place.
                out.frames.swap_remove(out.frames.len() - 2);
            }
            if is_doubtful || !read.is_timed {
                out.frames.pop();
            } else if let Some(frame) = out.frames.last_mut() {
                open = Some(Open::begin(&read, text, line, frame));
            }
        }
        // What it still lacks is in the next piece.
        if open.is_some() {
            out.frames.pop();
        }
    }

    /// The open record after a line that begins none. The frame of the line is dropped, and that of the
    /// record if the line does not belong to it.
    fn continued(
        &self,
        open: Option<Open>,
        read: Option<Read>,
        piece: &[u8],
        line: Line,
        out: &mut Frames,
    ) -> Option<Open> {
        let read_frame = out.frames.pop();
        let mut record = open?;
        if let (Some(Read { is_timed: true, label: Label::Field(part), text }), Some(further)) =
            (read, read_frame)
            && let Some(frame) = out.frames.last_mut()
            && is_same_owner(frame, &further, piece)
        {
            record.take(part as usize, text, line);
            if let (Some((_, last)), Some((further, _))) = (&mut frame.lines, further.lines) {
                *last = further;
            }
            return Some(record);
        }
        out.frames.pop();
        None
    }

    /// Reads prefix and label of a line.
    #[inline]
    fn read(&mut self, piece: &[u8], line: Line, frame: &mut Frame) -> Option<Read> {
        if self.is_plain {
            let read = match self.seen.is_some() {
                true => self.read_again(piece, line, frame),
                false => self.read_plainly(piece, line, frame),
            };
            if let Some(read) = read {
                return Some(read);
            }
            *frame = Frame::EMPTY;
        }
        self.clock.take_assumption();
        let found = self.prefix.matches_plainly(&piece[line.start..line.end])?;
        // The reader will find the same of a time that is none, and say so.
        let fields = prefix_fields(&found, line.start, &piece[..line.end], &mut self.clock);
        let is_timed = fields.is_ok();
        *frame = fields.unwrap_or(Frame::EMPTY);
        Some(Read { is_timed, label: found.label, text: found.text })
    }

    /// The same for a line whose prefix may have been read before.
    #[inline]
    fn read_again(&mut self, piece: &[u8], line: Line, frame: &mut Frame) -> Option<Read> {
        let text = &piece[line.start..line.end];
        let Some((time, len)) = self.clock.read_next(text) else {
            return self.read_plainly(piece, line, frame);
        };
        let rest = &text[len..];
        let place = Seen::place(rest);
        if let (Some(seen), Some(place)) = (&self.seen, place)
            && let Some((fields, label, prefix_len)) = seen.find(place, rest)
        {
            *frame = fields.moved(line.start + len);
            (frame.time, frame.assumption) = (time, self.clock.take_assumption());
            return Some(Read { is_timed: true, label, text: len + prefix_len });
        }
        let read = self.read_plainly(piece, line, frame)?;
        if let (Some(seen), Some(place)) = (&mut self.seen, place)
            && let Some(bytes) = text.get(len..read.text)
        {
            seen.keep(place, bytes, read.label, frame.moved_back(line.start + len));
        }
        Some(read)
    }

    /// The same for the prefix of most logs and lines that are as they should be.
    #[inline]
    fn read_plainly(&mut self, piece: &[u8], line: Line, frame: &mut Frame) -> Option<Read> {
        let Self { prefix, clock, .. } = self;
        let mut pid = None;
        let (label, text) = prefix.walk(&piece[line.start..line.end], |field, at, rest, len| {
            let at = line.start + at;
            let span = |len: usize| Span::input(at, at + len);
            let name = |len: usize| known(span(len), piece, &[]);
            match (field, len) {
                (Field::User, Some(len)) => frame.user = name(len),
                (Field::Database, Some(len)) => frame.database = name(len),
                (Field::Application, Some(len)) => frame.application = name(len),
                (Field::BackendType, Some(len)) => frame.backend_type = span(len),
                (Field::Tag, Some(len)) => frame.tag = span(len),
                (Field::Millis, _) => {
                    if let Some((time, len)) = clock.read_next(rest) {
                        frame.time = time;
                        return Some(len);
                    }
                }
                (Field::SessionId, _) => {
                    if let Some((start, process, len)) = session_id_at(rest) {
                        (frame.session_start, pid) = (Some(start), pid.or(Some(process)));
                        frame.session_id = span(len);
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
                    frame.session_id = span(len);
                    frame.session_start = id.map(|(start, _)| start).or(frame.session_start);
                    pid = pid.or(id.map(|(_, pid)| pid));
                }
                Field::Start => {
                    // A session's id, before or behind, says the same.
                    frame.session_start = frame.session_start.or_else(|| clock.read_start(text));
                }
                Field::Remote if len > 0 => frame.remote = name(len),
                Field::Host if frame.remote == Span::ABSENT => frame.remote = name(len),
                Field::LeaderPid => frame.has_leader = len > 0,
                Field::Vxid => frame.vxid = span(len),
                Field::QueryId => frame.query_id = signed(text),
                Field::Line => frame.lines = number(text).map(|line| (line, line)),
                Field::SqlState => frame.sqlstate = SqlState::new(text),
                _ => {}
            }
            Some(len)
        })?;
        frame.pid = pid;
        frame.assumption = clock.take_assumption();
        Some(Read { is_timed: true, label, text })
    }

    /// Gives the frame before the last its texts, those of `record`, which ends at `end`. False if it is
    /// too long.
    #[inline]
    fn finish(&self, record: &Open, piece: &[u8], end: usize, out: &mut Frames) -> bool {
        let Frames { frames, scratch, .. } = out;
        let Some(frame) = frames.len().checked_sub(2).and_then(|at| frames.get_mut(at)) else {
            return false;
        };
        frame.end = end;
        let folding = Folding { with_returns: self.with_returns, is_sure: !record.is_folded };
        texts(frame, record.main, &record.parts, piece, folding, scratch);
        end - frame.start <= self.max_record_bytes
    }
}

/// Where the label begins that ends before `end`.
fn label_before(text: &[u8], end: usize) -> usize {
    let is_label = |byte: &u8| byte.is_ascii_uppercase() || byte.is_ascii_digit();
    end - text[..end].iter().rev().take_while(|byte| is_label(byte)).count()
}

impl Open {
    /// A record that begins with this line.
    #[inline]
    fn begin(read: &Read, text: &[u8], line: Line, frame: &mut Frame) -> Self {
        (frame.start, frame.newlines) = (line.start, line.newlines);
        if let Label::Main(severity) = read.label {
            frame.severity = severity;
        }
        Self {
            main: Span::input(line.start + read.text, line.end),
            parts: [Span::ABSENT; PARTS],
            is_folded: line.is_folded,
            start: line.start,
            label_at: label_before(text, read.text.saturating_sub(3)),
        }
    }

    /// Takes a further line of the record, if it begins with the same bytes as the first, up to the label.
    #[inline]
    fn takes_repeated(&mut self, piece: &[u8], text: &[u8], line: Line) -> bool {
        let label = || {
            let before = piece[self.start..].get(..self.label_at)?;
            Label::parse(text.strip_prefix(before)?)
        };
        match label() {
            Some((Label::Field(part), len)) => {
                self.take(part as usize, self.label_at + len, line);
                true
            }
            _ => false,
        }
    }

    /// Takes a further line, whose text begins at `text`.
    fn take(&mut self, part: usize, text: usize, line: Line) {
        self.parts[part] = Span::input(line.start + text, line.end);
        self.is_folded |= line.is_folded;
    }
}

/// Whether a line says the same as the record's first of whose it is.
fn is_same_owner(first: &Frame, further: &Frame, piece: &[u8]) -> bool {
    let owner = |frame: &Frame| {
        [frame.session_id, frame.user, frame.database, frame.application]
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
                    let is_folded = self.newlines - newlines > 1;
                    return Some(Line { start, end, newlines, is_folded });
                }
                None => return None,
            }
        }
    }
}
