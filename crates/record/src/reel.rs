//! [`CaptureHarness`]: a tape that is read where it is written, without a thread and without files.

use std::sync::{Arc, mpsc};

use howdah_traffic::{Event, Timestamp};

use crate::{
    decoder::Decoder,
    session::Rows,
    tally::Tally,
    tape::{CaptureBuffer, Lane, Piece},
};

/// A tape of one worker and who reads it: for trying out what becomes of what clients say and hear. Everybody is
/// `u` and in `d`; time 0 is that of the epoch.
#[derive(Debug)]
pub struct CaptureHarness {
    tape: Option<CaptureBuffer>,
    lane: Arc<Lane>,
    pieces: mpsc::Receiver<Piece>,
    decoder: Decoder,
}

impl CaptureHarness {
    /// With room for so many bytes, and so many of the rows of one message's COPYs.
    pub fn new(buffer_bytes: usize, rows_bytes_max: usize) -> Self {
        let (to, pieces) = mpsc::channel();
        let lane = Lane::new(0, buffer_bytes);
        let rows = Rows { counts: true, bytes_max: rows_bytes_max };
        let who_is = |_| Some(("u".into(), "d".into()));
        Self {
            tape: Some(CaptureBuffer::new(1, Arc::clone(&lane), to, rows_bytes_max > 0)),
            lane,
            pieces,
            decoder: Decoder::new(Box::new(who_is), rows, Timestamp::from_micros(0)),
        }
    }

    /// Where to write.
    ///
    /// # Panics
    ///
    /// After [`CaptureHarness::end`].
    #[expect(clippy::expect_used, reason = "a promise of the caller's")]
    pub fn tape(&mut self) -> &mut CaptureBuffer {
        self.tape.as_mut().expect("the tape has not ended")
    }

    /// Throws away what was written and not read yet, as if it had found no room.
    pub fn lose(&mut self) {
        self.lane.fill();
        self.tape().hand_over();
        self.lane.empty();
    }

    /// Gives the events of what was written.
    pub fn read(&mut self, give: &mut dyn FnMut(&Event)) {
        if let Some(tape) = &mut self.tape {
            tape.hand_over();
        }
        for piece in self.pieces.try_iter() {
            self.decoder.take(0, &piece.bytes, give);
            piece.lane.give_back(piece.bytes);
        }
    }

    /// Gives what is left.
    pub fn end(&mut self, give: &mut dyn FnMut(&Event)) {
        if let Some(tape) = self.tape.take() {
            tape.end();
        }
        self.read(give);
        self.decoder.end(give);
    }

    /// What was counted.
    pub fn tally(&self) -> Tally {
        let gaps = self.lane.gaps.load(std::sync::atomic::Ordering::Relaxed);
        Tally { gaps, ..self.decoder.tally }
    }
}
