//! [`CaptureHarness`]: a capture buffer that is decoded in place, without threads and files.

use std::sync::{Arc, mpsc};

use howdah_traffic::{Event, Timestamp};

use crate::live::{
    buffer::{BufferChunk, BufferQueue, CaptureBuffer, CapturedParts},
    counts::RecorderCounts,
    decoder::TrafficDecoder,
    session::CopyRows,
};

/// The buffer and decoder of one worker, for tests of decoding. All sessions have the role `u` and
/// the database `d`; time 0 is the Unix epoch.
#[derive(Debug)]
pub struct CaptureHarness {
    buffer: Option<CaptureBuffer>,
    queue: Arc<BufferQueue>,
    chunks: mpsc::Receiver<BufferChunk>,
    decoder: TrafficDecoder,
}

impl CaptureHarness {
    /// Creates a harness. `buffer_bytes` is the queue size; `rows_bytes_max` limits the COPY rows
    /// of one message.
    pub fn new(buffer_bytes: usize, rows_bytes_max: usize) -> Self {
        let (to, pieces) = mpsc::channel();
        let lane = BufferQueue::new(0, buffer_bytes);
        let rows = CopyRows::Full { bytes_max: rows_bytes_max };
        let who_is = |_| Some(("u".into(), "d".into()));
        Self {
            buffer: Some(CaptureBuffer::new(
                1,
                Arc::clone(&lane),
                to,
                CapturedParts { copy_rows: rows_bytes_max > 0, results: true },
            )),
            queue: lane,
            chunks: pieces,
            decoder: TrafficDecoder::new(Box::new(who_is), rows, Timestamp::from_micros(0)),
        }
    }

    /// Returns the buffer to write to.
    ///
    /// # Panics
    ///
    /// Panics after [`CaptureHarness::finish`].
    #[expect(clippy::expect_used, reason = "the caller guarantees it")]
    pub fn buffer(&mut self) -> &mut CaptureBuffer {
        self.buffer.as_mut().expect("the buffer has not ended")
    }

    /// Drops the records that the buffer holds, as if the queue were full.
    pub fn drop_unread(&mut self) {
        self.queue.block();
        self.buffer().flush();
        self.queue.unblock();
    }

    /// Emits the events of the records that have been written.
    pub fn read(&mut self, emit: &mut dyn FnMut(&Event)) {
        if let Some(buffer) = &mut self.buffer {
            buffer.flush();
        }
        for chunk in self.chunks.try_iter() {
            self.decoder.decode(&chunk, emit);
            chunk.recycle();
        }
    }

    /// Emits the remaining events and ends the recording.
    pub fn finish(&mut self, emit: &mut dyn FnMut(&Event)) {
        if let Some(buffer) = self.buffer.take() {
            buffer.finish();
        }
        self.read(emit);
        self.decoder.finish(emit);
    }

    /// Returns the counts so far.
    pub fn tally(&self) -> RecorderCounts {
        RecorderCounts { gaps: self.queue.gaps(), ..self.decoder.counts() }
    }
}
