//! Pieces of a file framed on all processors, and taken in order on one.
//!
//! ```text
//!  reader ─► piece 7 ─► to frame ─┬─► worker ─┐
//!                                 ├─► worker ─┼─► framed ─► piece 4, 5, … in order ─► importer
//!                                 └─► reader ─┘
//! ```
//!
//! Framing is nearly half of the work for short records, and needs no piece but its own; so does reading
//! from a file, which is done just before it. The reader helps while the piece that comes next is not ready,
//! so two processors are kept busy whatever the mix.
//! The outcome is that of [`Importer::feed`], because the importer takes the same pieces in the same order.

use std::{
    collections::VecDeque,
    io,
    num::NonZero,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
};

use crate::{
    error::ImportError, frame::Frames, importer::Importer, input::FileRange, reader::Framer,
    tracker::EventSink,
};

/// Threads that frame pieces for one importer.
#[derive(Debug)]
pub(crate) struct Crew {
    workers_max: usize,
    workers: Vec<JoinHandle<()>>,
    shared: Arc<Shared>,
    framer: Option<Arc<Framer>>,
    /// Which of the importer's framers that is.
    framer_number: u64,
    /// Number of the next piece to hand out, and of the next to take.
    given: u64,
    taken: u64,
    spare: Vec<Job>,
    /// Why a stretch could not be read.
    failure: Option<io::Error>,
}

/// What the threads have in common.
#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    /// There is something to frame, or nothing more will come.
    given: Condvar,
    /// Something was framed.
    framed: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    to_frame: VecDeque<Job>,
    framed: Vec<Job>,
    is_closed: bool,
}

/// A piece and what was found in it.
#[derive(Debug, Default)]
struct Job {
    number: u64,
    /// Where the piece has to be read from first.
    stretch: Option<FileRange>,
    failure: Option<io::Error>,
    piece: Vec<u8>,
    frames: Frames,
    framer: Option<Arc<Framer>>,
}

impl Job {
    fn do_with(&mut self, own: &mut Own) {
        if let Some(stretch) = self.stretch.take() {
            self.failure = stretch.read(&mut self.piece).err();
        }
        if let Some(framer) = &self.framer {
            own.of(framer).frames(&self.piece, &mut self.frames);
        }
    }
}

/// A thread's own copy of a framer, which remembers the second it read last.
#[derive(Default)]
struct Own(Option<(Arc<Framer>, Framer)>);

impl Own {
    fn of(&mut self, framer: &Arc<Framer>) -> &mut Framer {
        let known = self.0.take().filter(|(known, _)| Arc::ptr_eq(known, framer));
        let copy = || (framer.clone(), Framer::clone(framer));
        &mut self.0.insert(known.unwrap_or_else(copy)).1
    }
}

impl Crew {
    /// A crew for all processors but the reader's own.
    pub(crate) fn new() -> Self {
        let processors = thread::available_parallelism().map_or(1, NonZero::get);
        Self::of((processors - 1).min(WORKERS_MAX))
    }

    /// A crew of `workers` threads, which begin when there is work for them.
    pub(crate) fn of(workers: usize) -> Self {
        Self {
            workers_max: workers,
            workers: Vec::new(),
            shared: Arc::default(),
            framer: None,
            framer_number: 0,
            given: 0,
            taken: 0,
            spare: Vec::new(),
            failure: None,
        }
    }

    /// Whether workers frame what comes next, who can read it from a file as well.
    pub(crate) fn can_read(&mut self, importer: &Importer) -> bool {
        self.workers_max > 0 && importer.framer().is_some() && self.is_manned()
    }

    /// Like [`feed`](Self::feed) with the bytes of a stretch, if [`can_read`](Self::can_read). What could
    /// not be read is told by [`take_failure`](Self::take_failure).
    pub(crate) fn feed_stretch(
        &mut self,
        importer: &mut Importer,
        stretch: FileRange,
        visit: &mut dyn EventSink,
    ) -> Result<(), ImportError> {
        self.give(importer, |job| job.stretch = Some(stretch));
        self.keep_up(importer, visit)
    }

    /// Why a stretch could not be read as a whole, if that happened.
    pub(crate) fn take_failure(&mut self) -> Option<io::Error> {
        self.failure.take()
    }

    /// Like [`feed`](Self::feed) with all bytes of a buffer, for which another one is given back.
    pub(crate) fn feed_buffer(
        &mut self,
        importer: &mut Importer,
        buffer: &mut Vec<u8>,
        visit: &mut dyn EventSink,
    ) -> Result<(), ImportError> {
        if !self.can_read(importer) || buffer.len() > PIECE_BYTES {
            return self.feed(importer, buffer, visit);
        }
        self.give(importer, |job| std::mem::swap(&mut job.piece, buffer));
        self.keep_up(importer, visit)
    }

    /// Feeds the importer, if not with these bytes then with some from before.
    ///
    /// # Errors
    ///
    /// As for [`Importer::feed`]; they may come some pieces late, and then nothing is held any more.
    pub(crate) fn feed(
        &mut self,
        importer: &mut Importer,
        bytes: &[u8],
        visit: &mut dyn EventSink,
    ) -> Result<(), ImportError> {
        if !self.can_read(importer) {
            self.flush(importer, visit)?;
            return importer.feed_to(bytes, visit);
        }
        for piece in bytes.chunks(PIECE_BYTES) {
            self.give(importer, |job| {
                job.piece.clear();
                job.piece.extend_from_slice(piece);
            });
            self.keep_up(importer, visit)?;
        }
        Ok(())
    }

    /// Takes what is framed until little enough is ahead.
    fn keep_up(
        &mut self,
        importer: &mut Importer,
        visit: &mut dyn EventSink,
    ) -> Result<(), ImportError> {
        while self.given - self.taken > self.workers.len() as u64 * AHEAD {
            self.take_next(importer, visit)?;
        }
        Ok(())
    }

    /// Feeds the importer with all that is held.
    ///
    /// # Errors
    ///
    /// As for [`feed`](Self::feed).
    pub(crate) fn flush(
        &mut self,
        importer: &mut Importer,
        visit: &mut dyn EventSink,
    ) -> Result<(), ImportError> {
        while self.taken < self.given {
            self.take_next(importer, visit)?;
        }
        Ok(())
    }

    /// Starts the workers, if that was not done; false if the system gives none.
    fn is_manned(&mut self) -> bool {
        while self.workers.len() < self.workers_max {
            let shared = self.shared.clone();
            match thread::Builder::new().name("log-framer".to_owned()).spawn(move || shared.work())
            {
                Ok(worker) => self.workers.push(worker),
                Err(_) => self.workers_max = self.workers.len(),
            }
        }
        !self.workers.is_empty()
    }

    /// Hands out a piece, which `fill` puts in place of what is in a job, or tells where it is.
    fn give(&mut self, importer: &Importer, fill: impl FnOnce(&mut Job)) {
        if self.framer.is_none() || self.framer_number != importer.framer_number() {
            self.framer = importer.framer().cloned().map(Arc::new);
            self.framer_number = importer.framer_number();
        }
        let mut job = self.spare.pop().unwrap_or_default();
        job.number = self.given;
        job.framer = self.framer.clone();
        job.frames.clear();
        fill(&mut job);
        self.given += 1;
        self.shared.lock().to_frame.push_back(job);
        self.shared.given.notify_one();
    }

    fn take_next(
        &mut self,
        importer: &mut Importer,
        visit: &mut dyn EventSink,
    ) -> Result<(), ImportError> {
        let mut job = self.shared.framed(self.taken);
        self.taken += 1;
        self.failure = self.failure.take().or(job.failure.take());
        let result = importer.take_piece(&job.piece, &job.frames, visit);
        self.spare.push(job);
        if result.is_err() {
            while self.taken < self.given {
                self.spare.push(self.shared.framed(self.taken));
                self.taken += 1;
            }
        }
        result
    }
}

impl Shared {
    /// Nothing that holds the lock can panic half-way, so what a poisoned one guards is whole.
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Frames pieces until nothing more will come.
    fn work(&self) {
        let mut own = Own::default();
        let mut queue = self.lock();
        loop {
            if let Some(mut job) = queue.to_frame.pop_front() {
                drop(queue);
                job.do_with(&mut own);
                queue = self.lock();
                queue.framed.push(job);
                self.framed.notify_one();
            } else if queue.is_closed {
                return;
            } else {
                queue = self.given.wait(queue).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    /// The piece with this number, framed. Frames what nobody has begun with while it is not ready.
    fn framed(&self, number: u64) -> Job {
        let mut own = Own::default();
        let mut queue = self.lock();
        loop {
            if let Some(at) = queue.framed.iter().position(|job| job.number == number) {
                return queue.framed.swap_remove(at);
            }
            if let Some(mut job) = queue.to_frame.pop_front() {
                drop(queue);
                job.do_with(&mut own);
                queue = self.lock();
                queue.framed.push(job);
            } else {
                queue = self.framed.wait(queue).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        self.shared.lock().is_closed = true;
        self.shared.given.notify_all();
        for worker in self.workers.drain(..) {
            // A worker that panicked has nothing more to say.
            let _ = worker.join();
        }
    }
}

/// Bytes of a piece: its frames stay in a processor's own cache.
const PIECE_BYTES: usize = 256 << 10;

/// Pieces on their way for each worker.
const AHEAD: u64 = 3;

/// More than one thread can take the work of.
const WORKERS_MAX: usize = 7;

#[cfg(test)]
mod tests;
