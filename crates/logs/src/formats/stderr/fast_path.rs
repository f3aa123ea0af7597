//! The fast path for typical lines: the same time as in the previous line, to the second; a cached
//! prefix; and `LOG:`.
//!
//! The fast path only compares bytes at known offsets with those of lines that were parsed before.
//! [`StderrFramer`] parses all other lines completely.

use howdah_log_input::{LineLabel, LogSeverity, MessageField};
use howdah_traffic::Timestamp;

use super::{
    RecordText,
    framer::{OpenRecord, ParsedLine, StderrFramer, StderrLine},
};
use crate::{
    clock::Assumption,
    record::{
        frame::{ChunkFrames, RecordFrame},
        message_fields::MessageFields,
        spans::{FieldSpan, short_eq},
    },
};

const LABEL: &[u8] = LogSeverity::Log.as_str().as_bytes();

/// A line that starts a message of severity LOG, as parsed by the fast path.
pub(super) struct FastLine {
    time: Timestamp,
    assumption: Option<Assumption>,
    /// Index of the line's session fields in the chunk.
    session: u32,
    /// Offset of the label in the line.
    label_at: usize,
}

impl StderrFramer {
    /// Reads time, prefix and label of a line that starts a message. Returns `None` unless all
    /// three are as predicted.
    #[inline]
    pub(super) fn read_fast(
        &mut self,
        chunk: &[u8],
        line: &StderrLine,
        out: &mut ChunkFrames,
    ) -> Option<FastLine> {
        let seen = self.recent.as_mut()?;
        let text = chunk.get(line.start..line.colon?)?;
        let (before, label) = text.split_last_chunk::<{ LABEL.len() }>()?;
        // After a label byte, `LOG:` is the end of a longer label, and the prefix ends before that
        // one.
        if label != LABEL || before.last().is_none_or(|byte| LineLabel::is_keyword_byte(*byte)) {
            return None;
        }
        let (time, len) = self.clock.read_next(&chunk[line.start..])?;
        let assumption = self.clock.take_assumption();
        let session = seen.find(before.get(len..)?, line.start + len, out)?;
        Some(FastLine { time, assumption, session, label_at: before.len() })
    }
}

impl OpenRecord {
    /// Starts a record with this line. If the line `is_simple`, it contains the message verbatim,
    /// and the frame is added immediately.
    #[inline]
    pub(super) fn start_fast(
        &mut self,
        chunk: &[u8],
        line: &StderrLine,
        fast: &FastLine,
        is_simple: bool,
        out: &mut ChunkFrames,
    ) {
        let FastLine { time, assumption, session, label_at } = *fast;
        let text = label_at + LABEL.len() + 3;
        // A simple line is a whole record unless more lines follow, in which case `reopen` removes
        // the frame.
        self.is_framed = is_simple;
        if !is_simple {
            let (label, time) = (LineLabel::Main(LogSeverity::Log), Some(time));
            let read = ParsedLine {
                time,
                assumption,
                session,
                label,
                label_at,
                text,
                has_prefix_frame: false,
            };
            return self.start_record(line, &read, fast.time, LogSeverity::Log);
        }
        (self.is_open, self.label_at) = (false, label_at);
        (self.start, self.newlines, self.first_delimiter) =
            (line.start as u32, line.newlines, line.first_delimiter);
        let message = FieldSpan::input(line.start + text, line.end - 1);
        out.frames.push(RecordFrame {
            message_fields: MessageFields::parse(LogSeverity::Log, message.text(chunk, &[])),
            start: line.start as u32,
            end: line.end as u32,
            newlines: line.newlines,
            session,
            time,
            assumption,
            message,
            ..RecordFrame::EMPTY
        });
    }

    /// Reopens the record whose frame was added last, if it may continue, and removes the frame, so
    /// that lines can be appended.
    pub(super) fn reopen(&mut self, out: &mut ChunkFrames) {
        if !std::mem::take(&mut self.is_framed) {
            return;
        }
        let Some(frame) = out.frames.pop() else { return };
        let RecordFrame { start, newlines, session, severity, time, assumption, .. } = frame;
        (self.start, self.newlines, self.session) = (start, newlines, session);
        (self.severity, self.time, self.assumption) = (severity, time, assumption);
        self.text = RecordText { message: frame.message.with_newline(), ..RecordText::EMPTY };
        for (field, text) in [
            (MessageField::Detail, frame.detail),
            (MessageField::Context, frame.context),
            (MessageField::Statement, frame.statement),
        ] {
            self.text.add_field(field, text.with_newline(), false);
        }
        (self.is_open, self.has_prefix_frame) = (true, false);
    }

    /// Appends a further line to the open record. Returns false if no record is open, if the line
    /// does not begin with the same bytes as the record's first line up to the label, or if its
    /// label is not that of a further field.
    #[inline]
    pub(super) fn append_repeated(
        &mut self,
        chunk: &[u8],
        line: &StderrLine,
        out: &mut ChunkFrames,
    ) -> bool {
        if !self.is_open && !self.is_framed {
            return false;
        }
        let at = line.start + self.label_at;
        // Length of the label, if the prefix is as long as that of the first line.
        let Some(len) = line.colon.and_then(|colon| colon.checked_sub(at)) else { return false };
        // No field has a label as short as `LOG`.
        if len <= LABEL.len() || len > LineLabel::LONGEST {
            return false;
        }
        let (first, further) = (self.start as usize, line.start);
        let prefixes = (chunk.get(first..first + self.label_at), chunk.get(further..at));
        let (Some(first), Some(further)) = prefixes else { return false };
        if !short_eq(first, further) {
            return false;
        }
        let Some(label) = chunk.get(at..line.end) else { return false };
        let Some((LineLabel::Field(field), _)) = LineLabel::parse(label) else { return false };
        let text = at + len + 3;
        if self.is_framed && !line.is_folded {
            let field = out.frames.last_mut().and_then(|frame| field_span(frame, field));
            if let Some(field) = field {
                *field = FieldSpan::input(text, line.end - 1);
                return true;
            }
        }
        self.reopen(out);
        self.text.add_field(field, FieldSpan::input(text, line.end), line.is_folded);
        true
    }
}

/// Returns the span of a further field in a frame; `None` if frames do not store the field
/// verbatim.
#[inline]
fn field_span(frame: &mut RecordFrame, field: MessageField) -> Option<&mut FieldSpan> {
    match field {
        MessageField::Detail => Some(&mut frame.detail),
        MessageField::Context => Some(&mut frame.context),
        MessageField::Statement => Some(&mut frame.statement),
        MessageField::Hint
        | MessageField::Query
        | MessageField::Location
        | MessageField::Backtrace => None,
    }
}
