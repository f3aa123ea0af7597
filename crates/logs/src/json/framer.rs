//! Lines of a jsonlog that are records, framed without regard to anything else.
//!
//! A newline always ends a line, so all that can be in doubt is a line that is no object.

use super::{NO_KEYS, decode, parse};
use crate::{
    clock::Clock,
    frame::{Frame, Frames},
};

/// Frames pieces of a jsonlog.
#[derive(Clone, Debug)]
pub(crate) struct JsonFramer {
    pub(super) max_record_bytes: usize,
    pub(super) clock: Clock,
}

impl JsonFramer {
    pub(crate) fn frames(&mut self, piece: &[u8], out: &mut Frames) {
        // Who knows where the first line began.
        let Some(first) = memchr::memchr(b'\n', piece) else { return };
        let mut start = first + 1;
        let ends = memchr::memchr_iter(b'\n', &piece[start..]);
        for (number, end) in ends.map(|end| first + 1 + end).enumerate() {
            self.line(piece, start, end, number as u32 + 1, out);
            start = end + 1;
        }
    }

    fn line(&mut self, piece: &[u8], start: usize, end: usize, newlines: u32, out: &mut Frames) {
        let scratch_len = out.scratch.len();
        // Spans are offsets into the piece, so the parser gets all before the line, too.
        let line = &piece[..end];
        let mut keys = NO_KEYS;
        let is_short = end - start <= self.max_record_bytes;
        let found = is_short && parse(line, start, &mut keys, &mut out.scratch).is_some();
        match found.then(|| decode(&keys, line, &mut self.clock, &out.scratch)) {
            Some(Ok((frame, owner))) => {
                let owner = out.owner(&owner, piece);
                let (start, end) = (start as u32, end as u32 + 1);
                out.frames.push(Frame { start, end, newlines, owner, ..frame });
            }
            // The reader will find the same and say so.
            _ => {
                out.scratch.truncate(scratch_len);
                self.clock.take_assumption();
            }
        }
    }
}
