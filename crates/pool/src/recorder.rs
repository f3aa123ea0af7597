//! [`CaptureRecorder`]: the thread that writes a capture from the workers' buffers.
//!
//! The bytes are decoded by [`howdah_capture::live`]; the `worker` module starts and stops captures
//! on all workers.

mod digest_cache;
mod event_writer;

use std::{
    io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{self, Receiver, RecvTimeoutError},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use howdah_capture::{
    RedactionKey,
    live::{
        BufferChunk, BufferQueue, CaptureBuffer, CapturedParts, CopyRows, PoolLookup,
        RecorderCounts, TrafficDecoder,
    },
};
use howdah_dataset::{CaptureOrigin, CaptureSettings, CaptureWriter, CapturedServer, WriteError};
use howdah_traffic::Timestamp;
use parking_lot::Mutex;

use self::event_writer::EventWriter;

/// The settings of a capture that a [`CaptureRecorder`] writes.
#[derive(Debug)]
pub struct RecorderSettings {
    /// The folder for the capture; must be empty or not exist.
    pub path: PathBuf,
    /// How rows of COPY are captured.
    pub copy: CopyRows,
    /// Whether results are captured, unless values are redacted.
    pub results: bool,
    /// The key for redaction; if `None`, values are not redacted.
    pub redaction: Option<RedactionKey>,
    /// Maximum number of bytes queued for decoding, per worker.
    pub buffer_bytes: usize,
    /// Number of bytes of events after which a file is finished, at most 64 MiB.
    pub file_bytes: usize,
    /// Time after a file's first event at which the file is finished.
    pub file_time: Duration,
    /// Number of workers, each of which gets a buffer.
    pub workers: usize,
    /// The number of this capture in the process, from 1.
    pub capture_number: u32,
    /// The wall-clock time at time 0 of the workers' clock.
    pub clock_origin: Timestamp,
    /// The name of the capturing program and process, for the manifest.
    pub origin: String,
}

/// The handle of a thread that writes a capture, or has written one.
#[derive(Debug)]
pub struct CaptureRecorder {
    shared: Arc<RecorderShared>,
    queues: Vec<Arc<BufferQueue>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
struct RecorderShared {
    path: PathBuf,
    started: Timestamp,
    state: Mutex<RecorderState>,
    /// The captured server, which may become known only after the start.
    server: Mutex<Option<CapturedServer>>,
    /// Whether the capture is being stopped: the thread then ends after [`STOP_TIMEOUT`] even if a
    /// worker has not ended its buffer.
    is_stopping: AtomicBool,
}

#[derive(Clone, Debug, Default)]
struct RecorderState {
    tally: RecorderCounts,
    files: u32,
    error: Option<String>,
    is_finished: bool,
}

/// The status of a capture. While it runs, `tally` and `files` may be about a second old.
#[derive(Clone, Debug)]
pub struct RecorderStatus {
    /// The folder of the capture.
    pub path: PathBuf,
    /// Time at which the capture started.
    pub started: Timestamp,
    /// Counts of what was captured so far, and of what is missing.
    pub tally: RecorderCounts,
    /// Number of finished files.
    pub files: u32,
    /// Bytes queued in all workers' queues.
    pub queued_bytes: usize,
    /// The error that ended the capture, if any.
    pub error: Option<String>,
    /// Whether the capture has ended and everything is written, or writing has failed.
    pub is_finished: bool,
}

/// The reason why a capture could not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CaptureStartError {
    /// The folder cannot be used, for example because it is not empty.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// The operating system cannot create a thread.
    #[error("cannot start the recorder's thread")]
    Thread(#[from] io::Error),
}

/// Minimum interval at which the status is published.
const STATUS_INTERVAL: Duration = Duration::from_millis(500);

/// How long stopping a capture waits for workers to end their buffers.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

impl CaptureRecorder {
    /// Creates a capture in its folder and starts the thread that writes it. Returns the handle of
    /// the thread, and a buffer for each worker.
    ///
    /// # Errors
    ///
    /// See [`CaptureStartError`]. At most a capture without events remains.
    pub fn start(
        settings: RecorderSettings,
        who_is: PoolLookup,
    ) -> Result<(Self, Vec<CaptureBuffer>), CaptureStartError> {
        let origin = CaptureOrigin {
            files: vec![settings.origin.clone()],
            format: Some("wire".to_owned()),
            ..CaptureOrigin::default()
        };
        let capture = CaptureSettings { origin: origin.clone(), overwrite: false };
        let mut writer = CaptureWriter::create(&settings.path, capture)?;
        writer.limit_files(settings.file_bytes, settings.file_time);
        let (to, chunks) = mpsc::channel();
        let lanes: Vec<_> = (0..settings.workers)
            .map(|number| BufferQueue::new(number, settings.buffer_bytes))
            .collect();
        let has_values = settings.redaction.is_none();
        let parts = CapturedParts {
            copy_rows: matches!(settings.copy, CopyRows::Full { .. }) && has_values,
            results: settings.results && has_values,
        };
        let buffer = |queue: &Arc<BufferQueue>| {
            CaptureBuffer::new(settings.capture_number, Arc::clone(queue), to.clone(), parts)
        };
        let buffers = lanes.iter().map(buffer).collect();
        let shared = Arc::new(RecorderShared {
            path: settings.path,
            started: Timestamp::now(),
            state: Mutex::default(),
            server: Mutex::default(),
            is_stopping: AtomicBool::new(false),
        });
        let mut work = RecorderThread {
            decoder: TrafficDecoder::new(who_is, settings.copy, settings.clock_origin),
            writer: EventWriter::new(writer, settings.redaction.as_ref()),
            origin,
            queues: lanes.clone(),
            shared: Arc::clone(&shared),
        };
        let thread = thread::Builder::new().name("capture".to_owned()).spawn(move || {
            work.run(&chunks);
            work.finish();
        })?;
        Ok((Self { shared, queues: lanes, thread: Mutex::new(Some(thread)) }, buffers))
    }

    /// Returns the current status.
    pub fn status(&self) -> RecorderStatus {
        let RecorderState { tally, files, error, is_finished } = self.shared.state().clone();
        let RecorderShared { path, started, .. } = &*self.shared;
        let queued_bytes = self.queues.iter().map(|queue| queue.queued_bytes()).sum();
        RecorderStatus {
            path: path.clone(),
            started: *started,
            tally,
            files,
            queued_bytes,
            error,
            is_finished,
        }
    }

    /// Sets the captured server for the manifest; `None` if it is not known or there are several.
    pub fn set_server(&self, server: Option<CapturedServer>) {
        *self.shared.server.lock() = server;
    }

    /// Whether the capture has ended and everything is written, or writing has failed.
    pub fn is_finished(&self) -> bool {
        self.shared.state().is_finished
    }

    /// Returns the folder of the capture.
    pub fn path(&self) -> &Path {
        &self.shared.path
    }

    /// Stops the capture and waits until everything is written. The workers should end their
    /// buffers first; the call waits about 5 s for workers that have not.
    pub fn stop(&self) -> RecorderStatus {
        self.shared.is_stopping.store(true, Ordering::Relaxed);
        let thread = self.thread.lock().take();
        if let Some(thread) = thread
            && thread.join().is_err()
        {
            tracing::error!("the capture recorder's thread panicked");
        }
        self.status()
    }
}

impl RecorderShared {
    fn state(&self) -> parking_lot::MutexGuard<'_, RecorderState> {
        self.state.lock()
    }
}

/// The state of the recorder's thread.
#[derive(Debug)]
struct RecorderThread {
    decoder: TrafficDecoder,
    writer: EventWriter,
    origin: CaptureOrigin,
    queues: Vec<Arc<BufferQueue>>,
    shared: Arc<RecorderShared>,
}

impl RecorderThread {
    /// Decodes until all buffers have ended, writing fails, or [`STOP_TIMEOUT`] has passed after
    /// the request to stop.
    fn run(&mut self, chunks: &Receiver<BufferChunk>) {
        let mut open = self.queues.len();
        let mut published = Instant::now();
        let mut stopping_since = None;
        while open > 0 && !self.writer.has_failed() {
            match chunks.recv_timeout(STATUS_INTERVAL) {
                Ok(chunk) => {
                    let writer = &mut self.writer;
                    self.decoder.decode(&chunk, &mut |event| writer.record(event));
                    open -= usize::from(chunk.is_last());
                    chunk.recycle();
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if published.elapsed() >= STATUS_INTERVAL {
                self.publish_status();
                published = Instant::now();
                if self.shared.is_stopping.load(Ordering::Relaxed)
                    && stopping_since.get_or_insert(published).elapsed() > STOP_TIMEOUT
                {
                    return;
                }
            }
        }
    }

    /// Finishes the current file if due, and publishes the status.
    fn publish_status(&mut self) {
        self.update_origin();
        let counts = self.counts();
        let report = self.writer.report(&counts, None);
        self.writer.rotate_file(report);
        let mut state = self.shared.state();
        state.tally = counts;
        state.files = self.writer.files();
    }

    /// Passes the captured server to the writer for the manifest if it has changed.
    fn update_origin(&mut self) {
        let server = self.shared.server.lock();
        if *server != self.origin.server {
            self.origin.server.clone_from(&server);
            drop(server);
            self.writer.set_origin(self.origin.clone());
        }
    }

    /// Returns the combined counts of the decoder, the writer and the queues.
    fn counts(&self) -> RecorderCounts {
        let counts = self.writer.add_to(self.decoder.counts());
        RecorderCounts {
            gaps: self.queues.iter().map(|queue| queue.gaps()).sum(),
            lost_bytes: self.queues.iter().map(|queue| queue.lost_bytes()).sum(),
            ..counts
        }
    }

    fn finish(mut self) {
        self.queues.iter().for_each(|queue| queue.close());
        if !self.writer.has_failed() {
            let writer = &mut self.writer;
            self.decoder.finish(&mut |event| writer.record(event));
        }
        self.update_origin();
        let tally = self.counts();
        let (files, error) = self.writer.finish(&tally);
        let mut state = self.shared.state();
        state.files = files.unwrap_or(state.files);
        if let Some(error) = &error {
            let path = self.shared.path.display();
            tracing::error!(%path, error, "capture stopped after an error; clients are not affected");
        }
        (state.error, state.tally, state.is_finished) = (error, tally, true);
    }
}
