//! Finds the records in chunks of a jsonlog.
//!
//! A raw newline never occurs inside a record, so no complete line is ambiguous. Lines that are not
//! valid records are left to [`Json`](super::Json), which parses them again to report them.

use super::{JsonLogKey, KeySpans, NO_KEYS, ObjectParser, decode_frame, session_fields};
use crate::{
    clock::LogClock,
    formats::recent_sessions::RecentSessions,
    record::{
        frame::{ChunkFrames, RecordFrame},
        message_fields::MessageFields,
        spans::FieldSpan,
    },
};

/// A framer for chunks of a jsonlog.
#[derive(Clone, Debug)]
pub(crate) struct JsonFramer {
    max_record_bytes: usize,
    clock: LogClock,
    parser: ObjectParser,
    recent: RecentSessions<3>,
}

impl JsonFramer {
    pub(super) fn new(max_record_bytes: usize, clock: LogClock) -> Self {
        Self {
            max_record_bytes,
            clock,
            parser: ObjectParser::default(),
            recent: RecentSessions::default(),
        }
    }

    pub(crate) fn frames(&mut self, chunk: &[u8], out: &mut ChunkFrames) {
        self.parser.start_text(chunk);
        self.recent.start_chunk();
        let mut newlines = 0;
        // The first line may have begun in an earlier chunk, so framing starts after it.
        let mut before = self.parser.newline(0);
        while let Some(start) = before.map(|before| before + 1)
            && let Some(end) = self.parser.newline(start)
        {
            newlines += 1;
            self.line(chunk, (start, end), newlines, out);
            before = Some(end);
        }
    }

    fn line(
        &mut self,
        chunk: &[u8],
        (start, end): (usize, usize),
        newlines: u32,
        out: &mut ChunkFrames,
    ) {
        if end - start > self.max_record_bytes {
            return;
        }
        let scratch_len = out.scratch.len();
        let mut keys = NO_KEYS;
        if self.parser.parse(chunk, (start, end), &mut keys, &mut out.scratch).is_none() {
            return out.scratch.truncate(scratch_len);
        }
        let line = &chunk[..end];
        match decode_frame(&keys, line, &mut self.clock, &out.scratch) {
            Ok(frame) => {
                let message_fields =
                    MessageFields::parse(frame.severity, frame.message.text(line, &out.scratch));
                let tail = [JsonLogKey::Application, JsonLogKey::BackendType, JsonLogKey::Leader]
                    .map(|key| keys[key as usize]);
                let session = self.recent.session_index(head(&keys), tail, line, out, |out| {
                    out.session_index(&session_fields(&keys, line, &out.scratch), line)
                });
                let (start, end) = (start as u32, end as u32 + 1);
                out.frames.push(RecordFrame {
                    start,
                    end,
                    newlines,
                    session,
                    message_fields,
                    ..frame
                });
            }
            Err(_) => {
                out.scratch.truncate(scratch_len);
                self.clock.take_assumption();
            }
        }
    }
}

/// Returns the bytes from time to session id, if they contain all session fields verbatim, except
/// the fields that the server writes at the end of the line.
#[inline]
fn head(keys: &KeySpans) -> Option<FieldSpan> {
    let span = |key: JsonLogKey| keys[key as usize];
    let from = span(JsonLogKey::Time).input_end()?;
    let to = span(JsonLogKey::SessionId).input_end()?;
    let is_inside = |key: JsonLogKey| match span(key) {
        FieldSpan::ABSENT => true,
        span => span.input_start().is_some_and(|at| (from..to).contains(&at)),
    };
    let named = [JsonLogKey::User, JsonLogKey::Database, JsonLogKey::Pid, JsonLogKey::Remote];
    (from < to && named.into_iter().all(is_inside)).then(|| FieldSpan::input(from, to))
}
