//! Frames the unambiguous records of a stderr log, without regard to sessions.
//!
//! A record is unambiguous if the prefixes of all its lines show the same session, and the line
//! after it starts another record regardless of the names that a session might have. Any other line
//! is [`Ambiguous`](FramedLine::Ambiguous) and left to [`Stderr`](super::Stderr), which knows the
//! names of sessions and reads lines in their order.

use howdah_log_input::{LineLabel, LogSeverity, MessageField};
use howdah_traffic::Timestamp;

use super::{CONTINUATION, PrefixFields, RecentPrefixes, RecordText};
use crate::{
    clock::{Assumption, LogClock},
    prefix::{CompiledPrefix, PrefixField, first_length},
    record::{
        frame::{ChunkFrames, RecordFrame},
        spans::{FieldSpan, parse_session_id_at},
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
    pub(super) prefix_fields: PrefixFields,
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
    pub(super) text: RecordText,
    /// Number of bytes before the label of the record's first line. Further lines usually repeat
    /// these bytes.
    pub(super) label_at: usize,
}

/// A parsed line. Fields of its prefix other than time and session are in the framer's
/// [`prefix_fields`](StderrFramer::prefix_fields); cached prefixes have none.
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

/// The part that a line plays, as far as the line shows it.
enum FramedLine {
    /// The line starts a record of this severity.
    Main(ParsedLine, LogSeverity),
    /// The line continues a record with this field.
    Further(ParsedLine, MessageField),
    /// The line has no prefix, or another one if its session has longer names: it needs the
    /// [reader](super::Stderr), as does the record before it.
    Ambiguous,
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
            open.is_open = match self.read_line(chunk, line, ambiguity_window, out) {
                FramedLine::Ambiguous => false,
                FramedLine::Further(read, field) => {
                    open.is_open && self.append_line(&mut open, &read, field, chunk, &line, out)
                }
                FramedLine::Main(read, severity) => {
                    if open.is_open {
                        self.finish(&open, chunk, index, line.start, out);
                    }
                    // The reader finds the same invalid time and reports it.
                    read.time.is_some_and(|time| {
                        open.start_record(&line, &read, time, severity);
                        open.has_prefix_frame = read.has_prefix_frame;
                        if read.has_prefix_frame {
                            open.prefix_frame = self.prefix_fields.frame;
                        }
                        true
                    })
                }
            };
        }
        // The rest of a record that is still open is in the next chunk.
        open.reopen(out);
    }

    /// Parses prefix and label of a line. In a line that starts a record, another label within the
    /// window may end the prefix instead.
    #[inline(never)]
    fn read_line(
        &mut self,
        chunk: &[u8],
        line: StderrLine,
        ambiguity_window: Option<usize>,
        out: &mut ChunkFrames,
    ) -> FramedLine {
        let repeated = self.recent.is_some();
        let read = match self.is_unpadded {
            true if repeated => self.read_repeated(chunk, line, out),
            true => self.read_unpadded(chunk, line, out),
            false => None,
        };
        let Some(read) = read.or_else(|| self.read_uncommon(chunk, line, out)) else {
            return FramedLine::Ambiguous;
        };
        let severity = match read.label {
            LineLabel::Main(severity) => severity,
            LineLabel::Field(field) => return FramedLine::Further(read, field),
        };
        let may_be_misread = ambiguity_window.is_some_and(|bytes| {
            let is_label = line.colon == Some(line.start + read.text - 3);
            (line.has_more_colons || !is_label)
                && is_ambiguous(&chunk[line.start..line.end], read.text, bytes)
        });
        if may_be_misread { FramedLine::Ambiguous } else { FramedLine::Main(read, severity) }
    }

    #[cold]
    fn read_uncommon(
        &mut self,
        chunk: &[u8],
        line: StderrLine,
        out: &mut ChunkFrames,
    ) -> Option<ParsedLine> {
        let text = &chunk[line.start..line.end];
        let found = self.prefix.matches_unnamed(text)?;
        let fields =
            PrefixFields::from_match(&found, line.start, &chunk[..line.end], &mut self.clock);
        self.prefix_fields = fields.unwrap_or(PrefixFields::EMPTY);
        let PrefixFields { frame, session } = &self.prefix_fields;
        Some(ParsedLine {
            time: fields.map(|_| frame.time),
            assumption: frame.assumption,
            session: out.session_index(session, chunk),
            label: found.label,
            label_at: LineLabel::start(text, found.text.saturating_sub(3)),
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
        let label_at = LineLabel::start(text, line.colon? - line.start);
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
            seen.insert(
                prefix,
                self.prefix_fields.session.shifted_left(line.start + len),
                read.session,
            );
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
        let mut fields = PrefixFields::EMPTY;
        let text = &chunk[line.start..line.end];
        let (label, text_at) = prefix.visit_fields(text, |field, at, rest, len| {
            let span = |len: usize| FieldSpan::input(line.start + at, line.start + at + len);
            // The end of a time and of a session id is usually found while decoding it.
            match field {
                PrefixField::Millis => {
                    if let Some((time, len)) = clock.read_next(rest) {
                        fields.frame.time = time;
                        return Some(len);
                    }
                }
                PrefixField::SessionId => {
                    if let Some((start, pid, len)) = parse_session_id_at(rest) {
                        fields.set_session_id(span(len), Some((start, pid)));
                        return Some(len);
                    }
                }
                _ => {}
            }
            let len = len.or_else(|| first_length(field, rest))?;
            fields.set(field, span(len), chunk, clock)?;
            Some(len)
        })?;
        let assumption = clock.take_assumption();
        self.prefix_fields = fields;
        Some(ParsedLine {
            time: Some(fields.frame.time),
            assumption,
            session: out.session_index(&fields.session, chunk),
            label,
            label_at: LineLabel::start(text, text_at - 3),
            text: text_at,
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
        let end = end as u32;
        let mut frame = RecordFrame {
            start,
            end,
            newlines,
            session,
            time,
            assumption,
            severity,
            ..RecordFrame::EMPTY
        };
        if record.has_prefix_frame {
            let RecordFrame { query_id, lines, sqlstate, vxid, tag, .. } = record.prefix_frame;
            frame = RecordFrame { query_id, lines, sqlstate, vxid, tag, ..frame };
        }
        let newlines = |from: usize| {
            index.newlines_from(record.first_delimiter).skip_while(move |at| *at < from)
        };
        let scratch = &mut out.scratch;
        record.text.decode(&mut frame, chunk, self.has_carriage_returns, scratch, newlines);
        out.frames.push(frame);
    }

    /// Appends a line to the open record, if its prefix has the same session fields and a valid
    /// time; returns whether it has. Otherwise the reader decides whether it belongs to the record.
    #[cold]
    fn append_line(
        &self,
        record: &mut OpenRecord,
        read: &ParsedLine,
        field: MessageField,
        chunk: &[u8],
        line: &StderrLine,
        out: &ChunkFrames,
    ) -> bool {
        if read.time.is_none() || !out.is_same_session(record.session, read.session, chunk) {
            return false;
        }
        let text = FieldSpan::input(line.start + read.text, line.end);
        record.text.add_field(field, text, line.is_folded);
        let lines = if read.has_prefix_frame { self.prefix_fields.frame.lines } else { None };
        if let (Some((_, last)), Some((further, _))) = (&mut record.prefix_frame.lines, lines) {
            *last = further;
        }
        true
    }
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
        text: RecordText::EMPTY,
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
        self.text.start(FieldSpan::input(line.start + read.text, line.end), line.is_folded);
        (self.is_open, self.label_at) = (true, read.label_at);
    }
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
        let start = LineLabel::start(window, text + colon);
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
                Some(&CONTINUATION) => {}
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
