//! Finds the records in chunks of a jsonlog.
//!
//! A raw newline never occurs inside a record, so each line can be parsed on its own. Lines that
//! are not valid records are left to the reader, which reports them.

use super::{
    JsonLogKey, KeySpans, NO_KEYS, decode_frame, fast_path::ObjectFastPath, parse, session_fields,
};
use crate::{
    clock::LogClock,
    formats::recent_sessions::RecentSessions,
    record::{
        frame::{ChunkFrames, RecordFrame},
        message_fields::MessageFields,
        spans::FieldSpan,
    },
    scan::bitmasks::Bitmasks,
};

/// A framer for chunks of a jsonlog.
#[derive(Clone, Debug)]
pub(crate) struct JsonFramer {
    max_record_bytes: usize,
    clock: LogClock,
    /// Quotes, backslashes and newlines of the chunk that is being framed.
    masks: Bitmasks,
    fast_path: ObjectFastPath,
    recent: RecentSessions<3>,
}

impl JsonFramer {
    pub(super) fn new(max_record_bytes: usize, clock: LogClock) -> Self {
        let (masks, fast_path, recent) =
            (Bitmasks::default(), ObjectFastPath::default(), RecentSessions::default());
        Self { max_record_bytes, clock, masks, fast_path, recent }
    }

    pub(crate) fn frames(&mut self, chunk: &[u8], out: &mut ChunkFrames) {
        let mut masks = std::mem::take(&mut self.masks);
        masks.scan(chunk, *b"\"\\\n");
        self.recent.start_chunk();
        let newline = |from: usize| masks.next(from, |[_, _, newlines]| *newlines);
        let mut newlines = 0;
        // The first line may have begun in an earlier chunk, so framing starts after it.
        let mut before = newline(0);
        while let Some(start) = before.map(|before| before + 1)
            && let Some(end) = newline(start)
        {
            newlines += 1;
            self.line(chunk, (start, end), &masks, newlines, out);
            before = Some(end);
        }
        self.masks = masks;
    }

    fn line(
        &mut self,
        chunk: &[u8],
        (start, end): (usize, usize),
        masks: &Bitmasks,
        newlines: u32,
        out: &mut ChunkFrames,
    ) {
        let scratch_len = out.scratch.len();
        // Spans are offsets in the chunk, so the parser also gets the bytes before the line.
        let line = &chunk[..end];
        let mut keys = NO_KEYS;
        if end - start > self.max_record_bytes {
            return;
        }
        let mut found =
            self.fast_path.parse(chunk, (start, end), masks, &mut keys, &mut out.scratch);
        if found.is_none() {
            out.scratch.truncate(scratch_len);
            keys = NO_KEYS;
            found = parse(line, start, &mut keys, &mut out.scratch);
        }
        match found.map(|()| decode_frame(&keys, line, &mut self.clock, &out.scratch)) {
            Some(Ok(frame)) => {
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
            // The reader finds the same problem and reports it.
            _ => {
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
