//! Lines of a jsonlog that are records, framed without regard to anything else.
//!
//! A newline always ends a line, so all that can be in doubt is a line that is no object.

use super::{Key, Keys, NO_KEYS, decode_frame, owner_of, parse, quick::Quick};
use crate::{
    clock::Clock,
    frame::{Frame, Frames},
    masks::Masks,
    message::Said,
    pieces::Span,
    seen::Seen,
};

/// Frames pieces of a jsonlog.
#[derive(Clone, Debug)]
pub(crate) struct JsonFramer {
    max_record_bytes: usize,
    clock: Clock,
    /// Quotes, backslashes and newlines of the piece that is being framed.
    masks: Masks,
    quick: Quick,
    seen: Seen<3>,
}

impl JsonFramer {
    pub(super) fn new(max_record_bytes: usize, clock: Clock) -> Self {
        let (masks, quick, seen) = (Masks::default(), Quick::default(), Seen::default());
        Self { max_record_bytes, clock, masks, quick, seen }
    }

    pub(crate) fn frames(&mut self, piece: &[u8], out: &mut Frames) {
        let mut masks = std::mem::take(&mut self.masks);
        masks.find(piece, *b"\"\\\n");
        self.seen.begin_piece();
        let newline = |from: usize| masks.next(from, |[_, _, newlines]| *newlines);
        let mut newlines = 0;
        // Who knows where the first line began.
        let mut before = newline(0);
        while let Some(start) = before.map(|before| before + 1)
            && let Some(end) = newline(start)
        {
            newlines += 1;
            self.line(piece, (start, end), &masks, newlines, out);
            before = Some(end);
        }
        self.masks = masks;
    }

    fn line(
        &mut self,
        piece: &[u8],
        (start, end): (usize, usize),
        masks: &Masks,
        newlines: u32,
        out: &mut Frames,
    ) {
        let scratch_len = out.scratch.len();
        // Spans are offsets into the piece, so the parser gets all before the line, too.
        let line = &piece[..end];
        let mut keys = NO_KEYS;
        if end - start > self.max_record_bytes {
            return;
        }
        let mut found = self.quick.parse(piece, (start, end), masks, &mut keys, &mut out.scratch);
        if found.is_none() {
            out.scratch.truncate(scratch_len);
            keys = NO_KEYS;
            found = parse(line, start, &mut keys, &mut out.scratch);
        }
        match found.map(|()| decode_frame(&keys, line, &mut self.clock, &out.scratch)) {
            Some(Ok(frame)) => {
                let said = Said::by(frame.severity, frame.message.text(line, &out.scratch));
                let tail =
                    [Key::Application, Key::BackendType, Key::Leader].map(|key| keys[key as usize]);
                let owner = self.seen.owner(head(&keys), tail, line, out, |out| {
                    out.owner(&owner_of(&keys, line, &out.scratch), line)
                });
                let (start, end) = (start as u32, end as u32 + 1);
                out.frames.push(Frame { start, end, newlines, owner, said, ..frame });
            }
            // The reader will find the same and say so.
            _ => {
                out.scratch.truncate(scratch_len);
                self.clock.take_assumption();
            }
        }
    }
}

/// What stands between time and session id, if all that says whose a line is, and is not at its end, is there
/// as it is.
#[inline]
fn head(keys: &Keys) -> Option<Span> {
    let span = |key: Key| keys[key as usize];
    let from = span(Key::Time).end_in_input()?;
    let to = span(Key::SessionId).end_in_input()?;
    let is_inside = |key: Key| match span(key) {
        Span::ABSENT => true,
        span => span.start_in_input().is_some_and(|at| (from..to).contains(&at)),
    };
    let named = [Key::User, Key::Database, Key::Pid, Key::Remote];
    (from < to && named.into_iter().all(is_inside)).then(|| Span::input(from, to))
}
