//! Frames the chunks of a file on several processors, and feeds them to the importer in order.
//!
//! ```text
//!  reader ─► chunk 7 ─► queue ─┬─► thread ─┐
//!                              ├─► thread ─┼─► framed ─► chunk 4, 5, … in order ─► importer
//!                              └─► reader ─┘
//! ```
//!
//! For short records, framing is nearly half of the work. Reading a chunk from the file and framing
//! it do not depend on other chunks, so threads do both. The reading thread also frames while it
//! waits for the next chunk, which keeps two processors busy regardless of the ratio of framing to
//! importing. The result equals that of [`Importer::feed`], because the importer gets the same
//! chunks in the same order.

use howdah_log_input::FileRange;
use std::{
    collections::VecDeque,
    io,
    num::NonZero,
    sync::Arc,
    thread::{self, JoinHandle},
};

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::{
    error::ImportError, formats::reader::Framer, importer::Importer, record::frame::ChunkFrames,
    tracker::EventSink,
};

/// Threads that frame chunks for one importer.
#[derive(Debug)]
pub(crate) struct FramingThreads {
    threads_max: usize,
    threads: Vec<JoinHandle<()>>,
    shared: Arc<FramingQueue>,
    framer: Option<Arc<Framer>>,
    /// The importer's framer version when `framer` was copied from it.
    framer_version: u64,
    /// Sequence numbers of the next chunk to submit and of the next to receive.
    submitted: u64,
    received: u64,
    spare: Vec<FramingJob>,
    /// The error of a range that could not be read.
    failure: Option<io::Error>,
}

/// State shared between the threads.
#[derive(Debug, Default)]
struct FramingQueue {
    queue: Mutex<FramingQueueState>,
    /// Signals that a job was queued, or that the queue was closed.
    job_added: Condvar,
    /// Signals that a job was framed.
    job_framed: Condvar,
}

#[derive(Debug, Default)]
struct FramingQueueState {
    to_frame: VecDeque<FramingJob>,
    framed: Vec<FramingJob>,
    is_closed: bool,
}

/// A chunk to frame, and its frames once that is done.
#[derive(Debug, Default)]
struct FramingJob {
    number: u64,
    /// The part of a file to read the chunk from; `None` if `chunk` already has its bytes.
    range: Option<FileRange>,
    failure: Option<io::Error>,
    chunk: Vec<u8>,
    frames: ChunkFrames,
    framer: Option<Arc<Framer>>,
}

impl FramingJob {
    fn run(&mut self, own: &mut ThreadFramer) {
        if let Some(range) = self.range.take() {
            self.failure = range.read(&mut self.chunk).err();
        }
        if let Some(framer) = &self.framer {
            own.for_framer(framer).frames(&self.chunk, &mut self.frames);
        }
    }
}

/// A thread's own copy of a framer, because its clock caches the last second.
#[derive(Default)]
struct ThreadFramer(Option<(Arc<Framer>, Framer)>);

impl ThreadFramer {
    fn for_framer(&mut self, framer: &Arc<Framer>) -> &mut Framer {
        let known = self.0.take().filter(|(known, _)| Arc::ptr_eq(known, framer));
        let copy = || (framer.clone(), Framer::clone(framer));
        &mut self.0.insert(known.unwrap_or_else(copy)).1
    }
}

impl FramingThreads {
    /// Like [`with_threads`](Self::with_threads), with one thread for each processor except the
    /// caller's, but at most [`THREADS_MAX`].
    pub(crate) fn new() -> Self {
        let processors = thread::available_parallelism().map_or(1, NonZero::get);
        Self::with_threads((processors - 1).min(THREADS_MAX))
    }

    /// Creates an instance with up to `threads` threads, which start once the importer has a
    /// framer.
    pub(crate) fn with_threads(threads: usize) -> Self {
        Self {
            threads_max: threads,
            threads: Vec::new(),
            shared: Arc::default(),
            framer: None,
            framer_version: 0,
            submitted: 0,
            received: 0,
            spare: Vec::new(),
            failure: None,
        }
    }

    /// Whether threads frame the chunks that follow, in which case they can also read file ranges.
    /// Starts the threads if the importer has a framer.
    pub(crate) fn is_active(&mut self, importer: &Importer) -> bool {
        self.threads_max > 0 && importer.framer().is_some() && self.start_threads()
    }

    /// Like [`feed`](Self::feed) for a range of a file; the threads must be
    /// [active](Self::is_active). A read error is reported by [`take_failure`](Self::take_failure).
    pub(crate) fn feed_range(
        &mut self,
        importer: &mut Importer,
        range: FileRange,
        sink: &mut dyn EventSink,
    ) -> Result<(), ImportError> {
        self.submit(importer, |job| job.range = Some(range));
        self.limit_in_flight(importer, sink)
    }

    /// Returns the error of a range that could not be read completely, if there was one.
    pub(crate) fn take_failure(&mut self) -> Option<io::Error> {
        self.failure.take()
    }

    /// Like [`feed`](Self::feed), but may exchange `buffer` for a free one instead of copying its
    /// bytes.
    pub(crate) fn feed_buffer(
        &mut self,
        importer: &mut Importer,
        buffer: &mut Vec<u8>,
        sink: &mut dyn EventSink,
    ) -> Result<(), ImportError> {
        if !self.is_active(importer) || buffer.len() > CHUNK_BYTES {
            return self.feed(importer, buffer, sink);
        }
        self.submit(importer, |job| std::mem::swap(&mut job.chunk, buffer));
        self.limit_in_flight(importer, sink)
    }

    /// Submits bytes for framing. If too many chunks are then in flight, waits for the oldest and
    /// feeds them to the importer. Without [active](Self::is_active) threads, feeds the bytes
    /// directly.
    ///
    /// # Errors
    ///
    /// See [`Importer::feed`]. An error may be returned some chunks late; all queued chunks are
    /// then discarded.
    pub(crate) fn feed(
        &mut self,
        importer: &mut Importer,
        bytes: &[u8],
        sink: &mut dyn EventSink,
    ) -> Result<(), ImportError> {
        if !self.is_active(importer) {
            self.flush(importer, sink)?;
            return importer.feed_to(bytes, sink);
        }
        for chunk in bytes.chunks(CHUNK_BYTES) {
            self.submit(importer, |job| {
                job.chunk.clear();
                job.chunk.extend_from_slice(chunk);
            });
            self.limit_in_flight(importer, sink)?;
        }
        Ok(())
    }

    /// Feeds framed chunks to the importer until few enough are in flight.
    fn limit_in_flight(
        &mut self,
        importer: &mut Importer,
        sink: &mut dyn EventSink,
    ) -> Result<(), ImportError> {
        while self.submitted - self.received > self.threads.len() as u64 * CHUNKS_PER_THREAD {
            self.feed_next(importer, sink)?;
        }
        Ok(())
    }

    /// Feeds all queued chunks to the importer.
    ///
    /// # Errors
    ///
    /// See [`feed`](Self::feed).
    pub(crate) fn flush(
        &mut self,
        importer: &mut Importer,
        sink: &mut dyn EventSink,
    ) -> Result<(), ImportError> {
        while self.received < self.submitted {
            self.feed_next(importer, sink)?;
        }
        Ok(())
    }

    /// Starts the threads unless they are running; returns false if the system cannot start any.
    fn start_threads(&mut self) -> bool {
        while self.threads.len() < self.threads_max {
            let shared = self.shared.clone();
            match thread::Builder::new()
                .name("log-framer".to_owned())
                .spawn(move || shared.run_thread())
            {
                Ok(thread) => self.threads.push(thread),
                Err(_) => self.threads_max = self.threads.len(),
            }
        }
        !self.threads.is_empty()
    }

    /// Queues a chunk; `fill` sets the job's bytes or its file range.
    fn submit(&mut self, importer: &Importer, fill: impl FnOnce(&mut FramingJob)) {
        if self.framer.is_none() || self.framer_version != importer.framer_version() {
            self.framer = importer.framer().cloned().map(Arc::new);
            self.framer_version = importer.framer_version();
        }
        let mut job = self.spare.pop().unwrap_or_default();
        job.number = self.submitted;
        job.framer = self.framer.clone();
        job.frames.clear();
        fill(&mut job);
        self.submitted += 1;
        self.shared.lock().to_frame.push_back(job);
        self.shared.job_added.notify_one();
    }

    fn feed_next(
        &mut self,
        importer: &mut Importer,
        sink: &mut dyn EventSink,
    ) -> Result<(), ImportError> {
        let mut job = self.shared.wait_framed(self.received);
        self.received += 1;
        self.failure = self.failure.take().or(job.failure.take());
        let result = importer.feed_chunk(&job.chunk, &job.frames, sink);
        self.spare.push(job);
        if result.is_err() {
            while self.received < self.submitted {
                self.spare.push(self.shared.wait_framed(self.received));
                self.received += 1;
            }
        }
        result
    }
}

impl FramingQueue {
    /// Locks the queue. No code can panic while it holds the lock, so the state is always
    /// consistent.
    fn lock(&self) -> MutexGuard<'_, FramingQueueState> {
        self.queue.lock()
    }

    /// Frames chunks until the queue is closed.
    fn run_thread(&self) {
        let mut own = ThreadFramer::default();
        let mut queue = self.lock();
        loop {
            if let Some(mut job) = queue.to_frame.pop_front() {
                drop(queue);
                job.run(&mut own);
                queue = self.lock();
                queue.framed.push(job);
                self.job_framed.notify_one();
            } else if queue.is_closed {
                return;
            } else {
                self.job_added.wait(&mut queue);
            }
        }
    }

    /// Returns the framed chunk with this number, framing queued chunks while it is not ready.
    fn wait_framed(&self, number: u64) -> FramingJob {
        let mut own = ThreadFramer::default();
        let mut queue = self.lock();
        loop {
            if let Some(at) = queue.framed.iter().position(|job| job.number == number) {
                return queue.framed.swap_remove(at);
            }
            if let Some(mut job) = queue.to_frame.pop_front() {
                drop(queue);
                job.run(&mut own);
                queue = self.lock();
                queue.framed.push(job);
            } else {
                self.job_framed.wait(&mut queue);
            }
        }
    }
}

impl Drop for FramingThreads {
    fn drop(&mut self) {
        self.shared.lock().is_closed = true;
        self.shared.job_added.notify_all();
        for thread in self.threads.drain(..) {
            // A thread that panicked has no result.
            let _ = thread.join();
        }
    }
}

/// Chunk size, small enough that a chunk's frames fit in the processor's second-level cache.
const CHUNK_BYTES: usize = 256 << 10;

/// Maximum number of chunks in flight for each thread.
const CHUNKS_PER_THREAD: u64 = 3;

/// Maximum number of threads; one importer cannot keep up with more.
const THREADS_MAX: usize = 7;

#[cfg(test)]
mod tests;
