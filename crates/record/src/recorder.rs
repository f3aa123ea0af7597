//! [`Recorder`]: the thread that makes a capture of what workers write on their tapes.

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

use howdah_dataset::{CaptureSettings, CaptureWriter, Origin, WriteError};
use howdah_sift::{RedactionKey, Redactor};
use howdah_traffic::{Action, Event, EventHash, EventRef, Timestamp};

use crate::{
    decoder::{Decoder, WhoIs},
    digests::Digests,
    session::Rows,
    tally::Tally,
    tape::{CaptureBuffer, Lane, Piece},
};

/// What is kept of the rows of `COPY … FROM STDIN`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyRows {
    /// All of them, up to so many bytes for one message.
    Full {
        /// Most bytes.
        bytes_max: usize,
    },
    /// How many bytes they had.
    Length,
    /// Nothing.
    Off,
}

/// How to record.
#[derive(Debug)]
pub struct Settings {
    /// The folder of the capture; it must not hold one.
    pub path: PathBuf,
    /// What to do with rows of COPY.
    pub copy: CopyRows,
    /// Values are replaced under this key, if there is one.
    pub redaction: Option<RedactionKey>,
    /// Bytes that may wait to be made events of, for each worker.
    pub buffer_bytes: usize,
    /// Bytes of events after which a file is finished.
    pub file_bytes: usize,
    /// Time after which it is.
    pub file_time: Duration,
    /// How many workers there are.
    pub workers: usize,
    /// The number of this capture in the process, from 1.
    pub number: u32,
    /// When time 0 of the workers' clock was.
    pub zero: Timestamp,
    /// What the capture is of, for its manifest.
    pub origin: String,
}

/// A recording under way, or one that has ended.
#[derive(Debug)]
pub struct Recorder {
    shared: Arc<Shared>,
    lanes: Vec<Arc<Lane>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Shared {
    path: PathBuf,
    began: Timestamp,
    state: Mutex<State>,
    /// It is to end although some worker has not ended its tape.
    hurries: AtomicBool,
}

#[derive(Clone, Debug, Default)]
struct State {
    tally: Tally,
    files: u32,
    error: Option<String>,
    is_over: bool,
}

/// How a recording is.
#[derive(Clone, Debug)]
pub struct Status {
    /// The folder.
    pub path: PathBuf,
    /// When it began.
    pub began: Timestamp,
    /// What was counted.
    pub tally: Tally,
    /// Files that are finished.
    pub files: u32,
    /// Bytes that wait, of all workers.
    pub waiting_bytes: usize,
    /// Why it has ended by itself.
    pub error: Option<String>,
    /// Whether it has ended.
    pub is_over: bool,
}

/// A recording could not begin.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BeginError {
    /// The folder.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// The system gives no thread.
    #[error("cannot start the recorder's thread")]
    Thread(#[from] io::Error),
}

/// How often what is known is told although nothing comes.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// How long a recording that is told to end waits for workers that do not end their tapes.
const END_PATIENCE: Duration = Duration::from_secs(5);

impl Recorder {
    /// Begins a recording: gives it, and a tape for each worker.
    ///
    /// # Errors
    ///
    /// [`BeginError`]; nothing is left behind but perhaps an empty folder.
    pub fn begin(
        settings: Settings,
        who_is: WhoIs,
    ) -> Result<(Self, Vec<CaptureBuffer>), BeginError> {
        let origin = Origin {
            files: vec![settings.origin.clone()],
            format: Some("wire".to_owned()),
            ..Origin::default()
        };
        let mut writer =
            CaptureWriter::create(&settings.path, CaptureSettings { origin, overwrite: false })?;
        writer.limit_files(settings.file_bytes, settings.file_time);
        let (to, pieces) = mpsc::channel();
        let lanes: Vec<_> =
            (0..settings.workers).map(|number| Lane::new(number, settings.buffer_bytes)).collect();
        let keeps_rows =
            matches!(settings.copy, CopyRows::Full { .. }) && settings.redaction.is_none();
        let tape = |lane: &Arc<Lane>| {
            CaptureBuffer::new(settings.number, Arc::clone(lane), to.clone(), keeps_rows)
        };
        let tapes = lanes.iter().map(tape).collect();
        let shared = Arc::new(Shared {
            path: settings.path,
            began: Timestamp::now(),
            state: Mutex::default(),
            hurries: AtomicBool::new(false),
        });
        let rows = match settings.copy {
            CopyRows::Full { bytes_max } => Rows { counts: true, bytes_max },
            CopyRows::Length => Rows { counts: true, bytes_max: 0 },
            CopyRows::Off => Rows { counts: false, bytes_max: 0 },
        };
        let mut work = Work {
            decoder: Decoder::new(who_is, rows, settings.zero),
            sink: Sink {
                writer,
                redactor: settings.redaction.as_ref().map(Redactor::new),
                hash: EventHash::default(),
                digests: Digests::default(),
                events: 0,
                too_long: 0,
                calls: 0,
                error: None,
            },
            lanes: lanes.clone(),
            shared: Arc::clone(&shared),
        };
        let thread = thread::Builder::new().name("capture".to_owned()).spawn(move || {
            work.run(&pieces);
            work.end();
        })?;
        Ok((Self { shared, lanes, thread: Mutex::new(Some(thread)) }, tapes))
    }

    /// How it is.
    pub fn status(&self) -> Status {
        let State { tally, files, error, is_over } = self.shared.state().clone();
        let Shared { path, began, .. } = &*self.shared;
        let waiting_bytes = self.lanes.iter().map(|lane| lane.waiting()).sum();
        Status { path: path.clone(), began: *began, tally, files, waiting_bytes, error, is_over }
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.shared.path
    }

    /// Waits until what the tapes hold is written, which have to be ended before; a worker that does not
    /// end its own is waited for some seconds.
    pub fn end(&self) -> Status {
        self.shared.hurries.store(true, Ordering::Relaxed);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread
            && thread.join().is_err()
        {
            tracing::error!("the recorder of the capture has panicked");
        }
        self.status()
    }
}

impl Shared {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the thread works with.
#[derive(Debug)]
struct Work {
    decoder: Decoder,
    sink: Sink,
    lanes: Vec<Arc<Lane>>,
    shared: Arc<Shared>,
}

/// Where events go.
#[derive(Debug)]
struct Sink {
    writer: CaptureWriter,
    redactor: Option<Redactor>,
    hash: EventHash,
    digests: Digests,
    events: u64,
    too_long: u64,
    calls: u64,
    error: Option<WriteError>,
}

impl Work {
    /// Reads until all tapes have ended, or nothing can be written.
    fn run(&mut self, pieces: &Receiver<Piece>) {
        let mut open = self.lanes.len();
        let mut told = Instant::now();
        let mut hurries_since = None;
        while open > 0 && self.sink.error.is_none() {
            match pieces.recv_timeout(LOOK_EVERY) {
                Ok(piece) => {
                    let sink = &mut self.sink;
                    self.decoder.take(piece.lane.number, &piece.bytes, &mut |it| sink.take(it));
                    piece.lane.give_back(piece.bytes);
                    open -= usize::from(piece.is_last);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if told.elapsed() >= LOOK_EVERY {
                self.tell();
                told = Instant::now();
                if self.shared.hurries.load(Ordering::Relaxed)
                    && hurries_since.get_or_insert(told).elapsed() > END_PATIENCE
                {
                    return;
                }
            }
        }
    }

    /// Writes what is due, and tells how it is.
    fn tell(&mut self) {
        self.count();
        let report = self.report(None);
        self.sink.writer.set_report(report);
        if let Err(error) = self.sink.writer.finish_file_if_due() {
            self.sink.error.get_or_insert(error);
        }
        let mut state = self.shared.state();
        state.tally = self.decoder.tally;
        state.files = self.sink.writer.files();
    }

    fn count(&mut self) {
        let tally = &mut self.decoder.tally;
        tally.events = self.sink.events;
        tally.too_long += std::mem::take(&mut self.sink.too_long);
        tally.calls = self.sink.calls;
        tally.gaps = self.lanes.iter().map(|lane| lane.gaps.load(Ordering::Relaxed)).sum();
        tally.lost_bytes =
            self.lanes.iter().map(|lane| lane.lost_bytes.load(Ordering::Relaxed)).sum();
    }

    fn report(&self, error: Option<&str>) -> serde_json::Value {
        let withheld = self.sink.redactor.as_ref().map(Redactor::withheld);
        self.decoder.tally.report(&self.sink.hash, withheld, error)
    }

    fn end(mut self) {
        self.lanes.iter().for_each(|lane| lane.close());
        let sink = &mut self.sink;
        if sink.error.is_none() {
            self.decoder.end(&mut |event| sink.take(event));
        }
        self.count();
        let error = self.sink.error.take().map(|error| said(&error));
        let report = self.report(error.as_deref());
        let tally = self.decoder.tally;
        let ended = match error {
            None => self.sink.writer.finish(report),
            Some(_) => self.sink.writer.stop(report),
        };
        let mut state = self.shared.state();
        match ended {
            Ok(manifest) => (state.files, state.error) = (manifest.files, error),
            Err(failure) => state.error = Some(error.unwrap_or_else(|| said(&failure))),
        }
        if let Some(error) = &state.error {
            let path = self.shared.path.display();
            tracing::error!(%path, error, "the capture has stopped; clients are served on");
        }
        (state.tally, state.is_over) = (tally, true);
    }
}

/// An error with its causes, in one line.
fn said(error: &WriteError) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

impl Sink {
    fn take(&mut self, event: &Event) {
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
        let shown = EventRef::with_digest(event, self.digests.of(event));
        match self.writer.write_ref(&shown) {
            Ok(()) => {
                self.hash.add_ref(&shown);
                self.events += 1;
            }
            Err(WriteError::RowTooLarge { .. }) => self.too_long += 1,
            Err(error) => self.error = Some(error),
        }
    }
}
