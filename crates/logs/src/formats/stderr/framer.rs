//! Frames the unambiguous records of a stderr log, without regard to sessions.
//!
//! A record is unambiguous if the prefixes of all its lines show the same session, and the line
//! after it starts another record regardless of the names that a session might have.
//! [`Stderr`](super::Stderr) reads everything else.

use howdah_log_input::{LineLabel, LogSeverity, MessageField};
use howdah_traffic::{SqlState, Timestamp};

use super::{
    ExtraFields, FIELDS, RecentPrefixes, fast_path::is_label_byte, prefix_fields, trim_line_end,
    unfold, unfold_fields,
};
use crate::{
    clock::{Assumption, LogClock, read_epoch},
    prefix::{CompiledPrefix, PrefixField, first_length},
    record::{
        frame::{ChunkFrames, RecordFrame, SessionFields},
        message_fields::MessageFields,
        spans::{
            FieldSpan, known_name, parse_i64, parse_pid, parse_session_id, parse_session_id_at,
            parse_u64,
        },
    },
    scan::structural_index::{Delimiter, StructuralIndex},
};

/// A framer for chunks of a stderr log with a known prefix.
#[derive(Clone, Debug)]
pub(crate) struct StderrFramer {
    pub(super) prefix: CompiledPrefix,
    /// Whether the prefix has no padding: see [`CompiledPrefix::is_unpadded`].
    pub(super) is_unpadded: bool,
    /// Recently read prefixes; `None` if prefixes do not repeat within a session.
    pub(super) recent: Option<RecentPrefixes>,
    pub(super) has_carriage_returns: bool,
    pub(super) max_record_bytes: usize,
    pub(super) version: u32,
    pub(super) clock: LogClock,
    /// Index of the chunk that is being framed.
    pub(super) index: StructuralIndex,
    /// The fields of the prefix that was read last.
    pub(super) prefix_frame: RecordFrame,
    pub(super) prefix_session: SessionFields,
}

/// A line of a chunk, found with the structural index, and the number of newlines before it.
#[derive(Clone, Copy)]
pub(super) struct StderrLine {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) newlines: u32,
    /// Index of the first delimiter in the line.
    pub(super) first_delimiter: usize,
    /// Whether tabs continue the line over several lines of the file.
    pub(super) is_folded: bool,
    /// Offset of the first colon followed by two spaces, which usually ends the label.
    pub(super) colon: Option<usize>,
    /// Whether the line contains another colon followed by two spaces, so that the first may not
    /// end the label.
    has_more_colons: bool,
}

/// The record that is being assembled.
pub(super) struct OpenRecord {
    pub(super) is_open: bool,
    /// Whether the record has already been added as the last frame, except for its end. If so, only
    /// `start`, `newlines`, `first_delimiter` and `label_at` are valid.
    pub(super) is_framed: bool,
    /// The record's offset in the chunk, and the number of newlines before it.
    pub(super) start: u32,
    pub(super) newlines: u32,
    /// Index of the first delimiter in the record.
    pub(super) first_delimiter: usize,
    /// Index of the record's session fields.
    pub(super) session: u32,
    pub(super) severity: LogSeverity,
    pub(super) time: Timestamp,
    pub(super) assumption: Option<Assumption>,
    /// Fields of a prefix that does not repeat; empty unless `has_prefix_frame`.
    prefix_frame: RecordFrame,
    pub(super) has_prefix_frame: bool,
    /// The message, with its line end.
    pub(super) message: FieldSpan,
    pub(super) fields: ExtraFields,
    /// Whether a further field, such as DETAIL, is present.
    pub(super) has_fields: bool,
    pub(super) is_folded: bool,
    /// Number of bytes before the label of the record's first line. Further lines usually repeat
    /// these bytes.
    pub(super) label_at: usize,
}

/// A parsed line. Fields of its prefix other than time and session are in the framer's
/// [`prefix_frame`](StderrFramer::prefix_frame); cached prefixes have none.
pub(super) struct ParsedLine {
    /// `None` if the time is not valid.
    pub(super) time: Option<Timestamp>,
    pub(super) assumption: Option<Assumption>,
    /// Index of the line's session fields.
    pub(super) session: u32,
    pub(super) label: LineLabel,
    /// Offsets of the label in the line, and of the text after it.
    pub(super) label_at: usize,
    pub(super) text: usize,
    pub(super) has_prefix_frame: bool,
}

impl StderrFramer {
    pub(crate) fn frames(&mut self, chunk: &[u8], out: &mut ChunkFrames) {
        (out.version, out.has_ambiguous_names) = (self.version, self.prefix.has_names());
        if let Some(seen) = &mut self.recent {
            seen.start_chunk();
        }
        let mut index = std::mem::take(&mut self.index);
        index.scan(chunk);
        self.frame_lines(chunk, &index, out);
        self.index = index;
    }

    fn frame_lines(&mut self, chunk: &[u8], index: &StructuralIndex, out: &mut ChunkFrames) {
        let mut lines = StderrLines::after_first(chunk, index);
        let mut open = OpenRecord::NONE;
        let ambiguity_window = self.prefix.ambiguity_window();
        while let Some(line) = lines.next() {
            // Three attempts, cheapest first: a further line of the open record, the fast path for
            // a line that starts a record, and the complete parser.
            if open.append_repeated(chunk, &line, out) {
                continue;
            }
            if let Some(fast) = self.read_fast(chunk, &line, out)
                && !(line.has_more_colons && ambiguity_window.is_some())
            {
                if open.is_framed {
                    self.close_framed(line.start, out);
                } else if open.is_open {
                    self.finish(&open, chunk, index, line.start, out);
                }
                let is_simple = !line.is_folded && !self.has_carriage_returns;
                open.start_fast(chunk, &line, &fast, is_simple, out);
                continue;
            }
            // The record that the fast path framed last may continue with this line.
            open.reopen(out);
            let Some(read) = self.read_line(chunk, line, out) else {
                open.is_open = false;
                continue;
            };
            let LineLabel::Main(severity) = read.label else {
                open.is_open =
                    open.is_open && self.append_line(&mut open, &read, chunk, &line, out);
                continue;
            };
            let text = read.text;
            let may_be_misread = ambiguity_window.is_some_and(|bytes| {
                let is_label = line.colon == Some(line.start + text - 3);
                (line.has_more_colons || !is_label)
                    && is_ambiguous(&chunk[line.start..line.end], text, bytes)
            });
            // If this line is ambiguous, the end of the record before it is uncertain as well.
            if open.is_open && !may_be_misread {
                self.finish(&open, chunk, index, line.start, out);
            }
            open.is_open = false;
            if let Some(time) = read.time.filter(|_| !may_be_misread) {
                open.start_record(&line, &read, time, severity);
                open.has_prefix_frame = read.has_prefix_frame;
                if read.has_prefix_frame {
                    open.prefix_frame = self.prefix_frame;
                }
            }
        }
        // The rest of a record that is still open is in the next chunk.
        open.reopen(out);
    }

    /// Parses prefix and label of a line; returns `None` if it has none.
    #[inline(never)]
    fn read_line(
        &mut self,
        chunk: &[u8],
        line: StderrLine,
        out: &mut ChunkFrames,
    ) -> Option<ParsedLine> {
        if self.is_unpadded {
            let read = if self.recent.is_some() {
                self.read_repeated(chunk, line, out)
            } else {
                self.read_unpadded(chunk, line, out)
            };
            if read.is_some() {
                return read;
            }
        }
        self.read_uncommon(chunk, line, out)
    }

    #[cold]
    fn read_uncommon(
        &mut self,
        chunk: &[u8],
        line: StderrLine,
        out: &mut ChunkFrames,
    ) -> Option<ParsedLine> {
        self.clock.take_assumption();
        let text = &chunk[line.start..line.end];
        let found = self.prefix.matches_unnamed(text)?;
        // The reader finds the same invalid time and reports it.
        let fields = prefix_fields(&found, line.start, &chunk[..line.end], &mut self.clock).ok();
        let (frame, session) = fields.unwrap_or((RecordFrame::EMPTY, SessionFields::EMPTY));
        (self.prefix_frame, self.prefix_session) = (frame, session);
        Some(ParsedLine {
            time: fields.map(|_| frame.time),
            assumption: frame.assumption,
            session: out.session_index(&session, chunk),
            label: found.label,
            label_at: label_start(text, found.text.saturating_sub(3)),
            text: found.text,
            has_prefix_frame: true,
        })
    }

    /// Like [`read_line`](Self::read_line), for a prefix that is the same in many lines and may be
    /// cached.
    #[inline]
    fn read_repeated(
        &mut self,
        chunk: &[u8],
        line: StderrLine,
        out: &mut ChunkFrames,
    ) -> Option<ParsedLine> {
        let text = &chunk[line.start..line.end];
        let Some((time, len)) = self.clock.read_next(text) else {
            return self.read_unpadded(chunk, line, out);
        };
        let label_at = label_start(text, line.colon? - line.start);
        let (prefix, labelled) = (text.get(len..label_at)?, &text[label_at..]);
        let (label, label_len) = LineLabel::parse(labelled)?;
        if let Some(seen) = &mut self.recent
            && let Some(session) = seen.find(prefix, line.start + len, out)
        {
            let (time, assumption) = (Some(time), self.clock.take_assumption());
            let text = label_at + label_len;
            return Some(ParsedLine {
                time,
                assumption,
                session,
                label,
                label_at,
                text,
                has_prefix_frame: false,
            });
        }
        let read = self.read_unpadded(chunk, line, out)?;
        if let Some(seen) = &mut self.recent
            && read.label_at == label_at
        {
            seen.insert(prefix, self.prefix_session.shifted_left(line.start + len), read.session);
        }
        Some(read)
    }

    /// Like [`read_line`](Self::read_line), for a prefix that has a time and no padding.
    #[inline]
    fn read_unpadded(
        &mut self,
        chunk: &[u8],
        line: StderrLine,
        out: &mut ChunkFrames,
    ) -> Option<ParsedLine> {
        let Self { prefix, clock, .. } = self;
        clock.take_assumption();
        let (mut frame, mut session) = (RecordFrame::EMPTY, SessionFields::EMPTY);
        let mut pid = None;
        let (label, text) =
            prefix.visit_fields(&chunk[line.start..line.end], |field, at, rest, len| {
                let at = line.start + at;
                let span = |len: usize| FieldSpan::input(at, at + len);
                let name = |len: usize| known_name(span(len), chunk, &[]);
                match (field, len) {
                    (PrefixField::User, Some(len)) => session.user = name(len),
                    (PrefixField::Database, Some(len)) => session.database = name(len),
                    (PrefixField::Application, Some(len)) => session.application = name(len),
                    (PrefixField::BackendType, Some(len)) => session.backend_type = span(len),
                    (PrefixField::Tag, Some(len)) => frame.tag = span(len),
                    (PrefixField::Millis, _) => {
                        if let Some((time, len)) = clock.read_next(rest) {
                            frame.time = time;
                            return Some(len);
                        }
                    }
                    (PrefixField::SessionId, _) => {
                        if let Some((start, process, len)) = parse_session_id_at(rest) {
                            (session.session_start, pid) = (Some(start), pid.or(Some(process)));
                            session.session_id = span(len);
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
                    PrefixField::Millis | PrefixField::Seconds => frame.time = clock.read(text)?,
                    PrefixField::Epoch => frame.time = read_epoch(text)?,
                    PrefixField::Pid => pid = parse_pid(text).or(pid),
                    PrefixField::SessionId => {
                        let id = parse_session_id(text);
                        session.session_id = span(len);
                        session.session_start =
                            id.map(|(start, _)| start).or(session.session_start);
                        pid = pid.or(id.map(|(_, pid)| pid));
                    }
                    PrefixField::Start => {
                        // A session id in the prefix contains the same start.
                        session.session_start =
                            session.session_start.or_else(|| clock.read_start(text));
                    }
                    PrefixField::Remote if len > 0 => session.remote = name(len),
                    PrefixField::Host if session.remote == FieldSpan::ABSENT => {
                        session.remote = name(len);
                    }
                    PrefixField::LeaderPid => session.has_leader = len > 0,
                    PrefixField::Vxid => frame.vxid = span(len),
                    PrefixField::QueryId => frame.query_id = parse_i64(text),
                    PrefixField::Line => frame.lines = parse_u64(text).map(|line| (line, line)),
                    PrefixField::SqlState => frame.sqlstate = SqlState::new(text),
                    _ => {}
                }
                Some(len)
            })?;
        session.pid = pid;
        let assumption = clock.take_assumption();
        (self.prefix_frame, self.prefix_session) = (frame, session);
        Some(ParsedLine {
            time: Some(frame.time),
            assumption,
            session: out.session_index(&session, chunk),
            label,
            label_at: label_start(&chunk[line.start..], text - 3),
            text,
            has_prefix_frame: true,
        })
    }

    /// Sets the end of the last frame, or removes the frame if it is too long.
    #[inline]
    fn close_framed(&self, end: usize, out: &mut ChunkFrames) {
        let Some(last) = out.frames.last_mut() else { return };
        last.end = end as u32;
        if end - last.start as usize > self.max_record_bytes {
            out.frames.pop();
        }
    }

    /// Adds the frame of a record that ends at `end`, unless it is too long.
    #[inline]
    fn finish(
        &self,
        record: &OpenRecord,
        chunk: &[u8],
        index: &StructuralIndex,
        end: usize,
        out: &mut ChunkFrames,
    ) {
        let OpenRecord { start, newlines, session, severity, time, assumption, .. } = *record;
        if end - start as usize > self.max_record_bytes {
            return;
        }
        let has_carriage_returns = self.has_carriage_returns;
        let end = end as u32;
        let frame = RecordFrame {
            start,
            end,
            newlines,
            session,
            time,
            assumption,
            severity,
            ..RecordFrame::EMPTY
        };
        if !record.is_folded && !record.has_fields && !record.has_prefix_frame {
            let message = trim_line_end(chunk, record.message, has_carriage_returns);
            let message_fields = MessageFields::parse(severity, message.text(chunk, &[]));
            return out.frames.push(RecordFrame { message, message_fields, ..frame });
        }
        self.finish_rest(record, frame, chunk, index, out);
    }

    /// Finishes a record with more than a message of one line.
    fn finish_rest(
        &self,
        record: &OpenRecord,
        mut frame: RecordFrame,
        chunk: &[u8],
        index: &StructuralIndex,
        out: &mut ChunkFrames,
    ) {
        if record.has_prefix_frame {
            let RecordFrame { query_id, lines, sqlstate, vxid, tag, .. } = record.prefix_frame;
            frame = RecordFrame { query_id, lines, sqlstate, vxid, tag, ..frame };
        }
        let has_carriage_returns = self.has_carriage_returns;
        let OpenRecord { message, fields, .. } = record;
        let scratch = &mut out.scratch;
        if !record.is_folded {
            let bare = |text, _: &mut _| trim_line_end(chunk, text, has_carriage_returns);
            unfold_fields(&mut frame, *message, fields, chunk, scratch, bare);
        } else if has_carriage_returns {
            let unfold = |text, scratch: &mut _| unfold(chunk, text, has_carriage_returns, scratch);
            unfold_fields(&mut frame, *message, fields, chunk, scratch, unfold);
        } else {
            let unfold = |text, scratch: &mut _| {
                unfold_indexed(index, record.first_delimiter, chunk, text, scratch)
            };
            unfold_fields(&mut frame, *message, fields, chunk, scratch, unfold);
        }
        frame.message_fields =
            MessageFields::parse(frame.severity, frame.message.text(chunk, scratch));
        out.frames.push(frame);
    }

    /// Appends a line to the open record if the line is part of it; returns whether it is.
    #[cold]
    fn append_line(
        &self,
        record: &mut OpenRecord,
        read: &ParsedLine,
        chunk: &[u8],
        line: &StderrLine,
        out: &ChunkFrames,
    ) -> bool {
        let (Some(_), LineLabel::Field(field)) = (read.time, read.label) else { return false };
        let session = |number: u32| out.sessions.get(number as usize);
        let (Some(first), Some(further)) = (session(record.session), session(read.session)) else {
            return false;
        };
        if read.session != record.session && !is_same_session(first, further, chunk) {
            return false;
        }
        record.add_field(field, FieldSpan::input(line.start + read.text, line.end), line);
        let lines = if read.has_prefix_frame { self.prefix_frame.lines } else { None };
        if let (Some((_, last)), Some((further, _))) = (&mut record.prefix_frame.lines, lines) {
            *last = further;
        }
        true
    }
}

/// Like [`unfold`] for lines without carriage returns, but finds the newlines in the index, from
/// delimiter `first` on.
fn unfold_indexed(
    index: &StructuralIndex,
    first: usize,
    chunk: &[u8],
    text: FieldSpan,
    scratch: &mut Vec<u8>,
) -> FieldSpan {
    let text = trim_line_end(chunk, text, false);
    let range = text.range();
    let newlines = index.newlines_from(first).skip_while(|at| *at < range.start);
    let from = scratch.len();
    let mut copied = range.start;
    for newline in newlines.take_while(|at| *at < range.end) {
        scratch.extend_from_slice(&chunk[copied..=newline]);
        // A tab follows the newline, or the line would end here.
        copied = newline + 2;
    }
    if copied == range.start {
        return text;
    }
    scratch.extend_from_slice(chunk.get(copied..range.end).unwrap_or_default());
    FieldSpan::scratch(from, scratch.len())
}

/// Returns the offset at which the label that ends before `end` starts.
fn label_start(text: &[u8], end: usize) -> usize {
    end - text[..end].iter().rev().take_while(|byte| is_label_byte(**byte)).count()
}

impl OpenRecord {
    const NONE: Self = Self {
        is_open: false,
        is_framed: false,
        start: 0,
        newlines: 0,
        first_delimiter: 0,
        session: 0,
        severity: LogSeverity::Log,
        time: Timestamp::from_micros(0),
        assumption: None,
        prefix_frame: RecordFrame::EMPTY,
        has_prefix_frame: false,
        message: FieldSpan::ABSENT,
        fields: [FieldSpan::ABSENT; FIELDS],
        has_fields: false,
        is_folded: false,
        label_at: 0,
    };

    /// Starts a record with this line.
    #[inline]
    pub(super) fn start_record(
        &mut self,
        line: &StderrLine,
        read: &ParsedLine,
        time: Timestamp,
        severity: LogSeverity,
    ) {
        (self.start, self.newlines, self.first_delimiter) =
            (line.start as u32, line.newlines, line.first_delimiter);
        (self.session, self.severity) = (read.session, severity);
        (self.time, self.assumption) = (time, read.assumption);
        self.message = FieldSpan::input(line.start + read.text, line.end);
        if self.has_fields {
            self.fields = [FieldSpan::ABSENT; FIELDS];
            self.has_fields = false;
        }
        (self.is_open, self.is_folded, self.label_at) = (true, line.is_folded, read.label_at);
    }

    /// Adds a further field with this text.
    #[inline]
    pub(super) fn add_field(&mut self, field: MessageField, text: FieldSpan, line: &StderrLine) {
        self.fields[field as usize] = text;
        self.has_fields = true;
        self.is_folded |= line.is_folded;
    }
}

/// Whether a further line has the same process, session id and names as the record's first line.
fn is_same_session(first: &SessionFields, further: &SessionFields, chunk: &[u8]) -> bool {
    let names = |fields: &SessionFields| {
        [fields.session_id, fields.user, fields.database, fields.application]
            .map(|span| span.text(chunk, &[]))
    };
    first.pid == further.pid && names(first) == names(further)
}

/// Whether the line contains another label after the one found, so that the prefix would end there
/// if its names were longer.
fn is_ambiguous(line: &[u8], text: usize, within: usize) -> bool {
    let window = &line[..line.len().min(text + within)];
    if !has_colon_and_spaces(&window[text..]) {
        return false;
    }
    memchr::memchr_iter(b':', &window[text..]).any(|colon| {
        if !window[text + colon..].starts_with(b":  ") {
            return false;
        }
        let start = label_start(window, text + colon);
        (start..text + colon).any(|at| LineLabel::parse(&window[at..]).is_some())
    })
}

/// Whether a text contains a colon followed by two spaces. Checks each byte independently, so that
/// the compiler can vectorize the loop.
#[inline]
fn has_colon_and_spaces(text: &[u8]) -> bool {
    let (Some(second), Some(third)) = (text.get(1..), text.get(2..)) else { return false };
    let bytes = text.iter().zip(second).zip(third);
    bytes.fold(0, |found, ((colon, space), other)| {
        found | u8::from(*colon == b':') & u8::from(*space == b' ') & u8::from(*other == b' ')
    }) != 0
}

/// An iterator over the lines of a chunk that are certainly complete, because no tab follows their
/// newline.
struct StderrLines<'a> {
    chunk: &'a [u8],
    index: &'a StructuralIndex,
    /// Index of the next delimiter.
    next_delimiter: usize,
    at: usize,
    newlines: u32,
}

impl<'a> StderrLines<'a> {
    /// Skips everything up to the first newline, whose line began in an earlier chunk.
    fn after_first(chunk: &'a [u8], index: &'a StructuralIndex) -> Self {
        let mut lines = Self { chunk, index, next_delimiter: 0, at: 0, newlines: 0 };
        lines.next();
        lines
    }

    #[inline]
    fn next(&mut self) -> Option<StderrLine> {
        let Self { at: start, newlines, next_delimiter: first, .. } = *self;
        let (mut colon, mut has_more_colons) = (None, false);
        loop {
            let delimiter = self.index.get(self.next_delimiter)?;
            self.next_delimiter += 1;
            let newline = match delimiter {
                Delimiter::Newline(at) => at,
                Delimiter::Colon(at) => {
                    has_more_colons |= colon.is_some();
                    colon = colon.or(Some(at));
                    continue;
                }
            };
            self.newlines += 1;
            let end = newline + 1;
            match self.chunk.get(end) {
                Some(b'\t') => {}
                Some(_) => {
                    self.at = end;
                    let is_folded = self.newlines - newlines > 1;
                    return Some(StderrLine {
                        start,
                        end,
                        newlines,
                        first_delimiter: first,
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
