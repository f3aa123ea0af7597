//! [`CaptureRecorder`]: the thread that writes a capture from the workers' buffers.

use std::{
    io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc::{self, Receiver, RecvTimeoutError},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use crate::redact::{RedactionKey, Redactor};
use howdah_dataset::{CaptureOrigin, CaptureSettings, CaptureWriter, WriteError};
use howdah_traffic::{Action, Event, EventHash, EventRef, Timestamp};

use crate::live::{
    buffer::{BufferChunk, BufferQueue, CaptureBuffer},
    counts::RecorderCounts,
    decoder::{Decoder, PoolLookup},
    digest_cache::DigestCache,
    session::CopyRowLimits,
};

/// How the rows of `COPY … FROM STDIN` are captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyRows {
    /// All rows, up to a number of bytes per message.
    Full {
        /// The limit in bytes.
        bytes_max: usize,
    },
    /// Only their size in bytes.
    Length,
    /// Not at all.
    Off,
}

/// The configuration of a recording.
#[derive(Debug)]
pub struct RecorderSettings {
    /// The folder of the capture, which must not contain one.
    pub path: PathBuf,
    /// How rows of COPY are captured.
    pub copy: CopyRows,
    /// The key for redaction; `None` keeps values.
    pub redaction: Option<RedactionKey>,
    /// Maximum bytes queued for decoding, per worker.
    pub buffer_bytes: usize,
    /// Bytes of events after which a file is finished.
    pub file_bytes: usize,
    /// Time after which a file is finished.
    pub file_time: Duration,
    /// The number of workers.
    pub workers: usize,
    /// The number of this capture in the process, from 1.
    pub capture_number: u32,
    /// The wall-clock time of time 0 of the workers' clock.
    pub clock_origin: Timestamp,
    /// The origin of the capture, for its manifest.
    pub origin: String,
}

/// A recording that is running or has ended.
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
    /// Set to stop the recording even if a worker has not ended its buffer.
    is_stopping: AtomicBool,
}

#[derive(Clone, Debug, Default)]
struct RecorderState {
    tally: RecorderCounts,
    files: u32,
    error: Option<String>,
    is_finished: bool,
}

/// The status of a recording.
#[derive(Clone, Debug)]
pub struct RecorderStatus {
    /// The folder.
    pub path: PathBuf,
    /// When it started.
    pub started: Timestamp,
    /// The counts so far.
    pub tally: RecorderCounts,
    /// Number of finished files.
    pub files: u32,
    /// Bytes queued in all workers' queues.
    pub queued_bytes: usize,
    /// The error that ended it.
    pub error: Option<String>,
    /// Whether it has ended.
    pub is_finished: bool,
}

/// A recording could not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CaptureStartError {
    /// The folder cannot be used.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// The system cannot create a thread.
    #[error("cannot start the recorder's thread")]
    Thread(#[from] io::Error),
}

/// How often the status is published when nothing arrives.
const STATUS_INTERVAL: Duration = Duration::from_millis(500);

/// How long a recording that is being stopped waits for workers to end their buffers.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

impl CaptureRecorder {
    /// Starts a recording; returns it with a buffer for each worker.
    ///
    /// # Errors
    ///
    /// See [`CaptureStartError`]; at most an empty folder is left.
    pub fn start(
        settings: RecorderSettings,
        who_is: PoolLookup,
    ) -> Result<(Self, Vec<CaptureBuffer>), CaptureStartError> {
        let origin = CaptureOrigin {
            files: vec![settings.origin.clone()],
            format: Some("wire".to_owned()),
            ..CaptureOrigin::default()
        };
        let mut writer =
            CaptureWriter::create(&settings.path, CaptureSettings { origin, overwrite: false })?;
        writer.limit_files(settings.file_bytes, settings.file_time);
        let (to, chunks) = mpsc::channel();
        let lanes: Vec<_> = (0..settings.workers)
            .map(|number| BufferQueue::new(number, settings.buffer_bytes))
            .collect();
        let keeps_rows =
            matches!(settings.copy, CopyRows::Full { .. }) && settings.redaction.is_none();
        let buffer = |queue: &Arc<BufferQueue>| {
            CaptureBuffer::new(settings.capture_number, Arc::clone(queue), to.clone(), keeps_rows)
        };
        let buffers = lanes.iter().map(buffer).collect();
        let shared = Arc::new(RecorderShared {
            path: settings.path,
            started: Timestamp::now(),
            state: Mutex::default(),
            is_stopping: AtomicBool::new(false),
        });
        let rows = match settings.copy {
            CopyRows::Full { bytes_max } => CopyRowLimits { counts_bytes: true, bytes_max },
            CopyRows::Length => CopyRowLimits { counts_bytes: true, bytes_max: 0 },
            CopyRows::Off => CopyRowLimits { counts_bytes: false, bytes_max: 0 },
        };
        let mut work = RecorderThread {
            decoder: Decoder::new(who_is, rows, settings.clock_origin),
            sink: EventWriter {
                writer,
                redactor: settings.redaction.as_ref().map(Redactor::new),
                hash: EventHash::default(),
                digests: DigestCache::default(),
                events: 0,
                too_long: 0,
                calls: 0,
                error: None,
            },
            queues: lanes.clone(),
            shared: Arc::clone(&shared),
        };
        let thread = thread::Builder::new().name("capture".to_owned()).spawn(move || {
            work.run(&chunks);
            work.finish();
        })?;
        Ok((Self { shared, queues: lanes, thread: Mutex::new(Some(thread)) }, buffers))
    }

    /// The current status.
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

    /// The folder of the capture.
    pub fn path(&self) -> &Path {
        &self.shared.path
    }

    /// Stops the recording and waits until everything is written. The workers should end their
    /// buffers first; those that do not are waited for up to 5 s.
    pub fn stop(&self) -> RecorderStatus {
        self.shared.is_stopping.store(true, Ordering::Relaxed);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread
            && thread.join().is_err()
        {
            tracing::error!("the capture recorder's thread panicked");
        }
        self.status()
    }
}

impl RecorderShared {
    fn state(&self) -> std::sync::MutexGuard<'_, RecorderState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The state of the recorder's thread.
#[derive(Debug)]
struct RecorderThread {
    decoder: Decoder,
    sink: EventWriter,
    queues: Vec<Arc<BufferQueue>>,
    shared: Arc<RecorderShared>,
}

/// Redacts, hashes and writes events.
#[derive(Debug)]
struct EventWriter {
    writer: CaptureWriter,
    redactor: Option<Redactor>,
    hash: EventHash,
    digests: DigestCache,
    events: u64,
    too_long: u64,
    calls: u64,
    error: Option<WriteError>,
}

impl RecorderThread {
    /// Decodes until all buffers have ended, or writing fails.
    fn run(&mut self, chunks: &Receiver<BufferChunk>) {
        let mut open = self.queues.len();
        let mut published = Instant::now();
        let mut stopping_since = None;
        while open > 0 && self.sink.error.is_none() {
            match chunks.recv_timeout(STATUS_INTERVAL) {
                Ok(chunk) => {
                    let sink = &mut self.sink;
                    self.decoder
                        .decode(chunk.queue.number, &chunk.bytes, &mut |it| sink.record(it));
                    chunk.queue.recycle(chunk.bytes);
                    open -= usize::from(chunk.is_last);
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

    /// Writes what is due, and publishes the status.
    fn publish_status(&mut self) {
        self.update_tally();
        let report = self.report(None);
        self.sink.writer.set_report(report);
        if let Err(error) = self.sink.writer.finish_file_if_due() {
            self.sink.error.get_or_insert(error);
        }
        let mut state = self.shared.state();
        state.tally = self.decoder.tally;
        state.files = self.sink.writer.files();
    }

    fn update_tally(&mut self) {
        let tally = &mut self.decoder.tally;
        tally.events = self.sink.events;
        tally.too_long += std::mem::take(&mut self.sink.too_long);
        tally.calls = self.sink.calls;
        tally.gaps = self.queues.iter().map(|queue| queue.gaps.load(Ordering::Relaxed)).sum();
        tally.lost_bytes =
            self.queues.iter().map(|queue| queue.lost_bytes.load(Ordering::Relaxed)).sum();
    }

    fn report(&self, error: Option<&str>) -> serde_json::Value {
        let withheld = self.sink.redactor.as_ref().map(Redactor::withheld);
        self.decoder.tally.report(&self.sink.hash, withheld, error)
    }

    fn finish(mut self) {
        self.queues.iter().for_each(|queue| queue.close());
        let sink = &mut self.sink;
        if sink.error.is_none() {
            self.decoder.finish(&mut |event| sink.record(event));
        }
        self.update_tally();
        let error = self.sink.error.take().map(|error| error_chain(&error));
        let report = self.report(error.as_deref());
        let tally = self.decoder.tally;
        let result = match error {
            None => self.sink.writer.finish(report),
            Some(_) => self.sink.writer.stop(report),
        };
        let mut state = self.shared.state();
        match result {
            Ok(manifest) => (state.files, state.error) = (manifest.files, error),
            Err(failure) => state.error = Some(error.unwrap_or_else(|| error_chain(&failure))),
        }
        if let Some(error) = &state.error {
            let path = self.shared.path.display();
            tracing::error!(%path, error, "capture stopped after an error; clients are not affected");
        }
        (state.tally, state.is_finished) = (tally, true);
    }
}

/// An error with its causes, in one line.
fn error_chain(error: &WriteError) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

impl EventWriter {
    fn record(&mut self, event: &Event) {
        if self.error.is_some() {
            return;
        }
        match &mut self.redactor {
            Some(redactor) => {
                let event = redactor.redact(event.clone());
                self.write(&event);
            }
            None => self.write(event),
        }
    }

    fn write(&mut self, event: &Event) {
        let is_bare = matches!(event.action, Action::Call { .. })
            && event.wire.as_ref().is_none_or(|wire| wire.arguments.is_none());
        self.calls += u64::from(is_bare);
        let event_ref = EventRef::with_digest(event, self.digests.digest(event));
        match self.writer.write_ref(&event_ref) {
            Ok(()) => {
                self.hash.add_ref(&event_ref);
                self.events += 1;
            }
            Err(WriteError::RowTooLarge { .. }) => self.too_long += 1,
            Err(error) => self.error = Some(error),
        }
    }
}
