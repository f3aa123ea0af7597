//! Reads logs from files or a pipe during a replay, and returns events in the order of their start.
//!
//! The reader stays only a little ahead of the consumer and makes no copy on disk, and it can emit
//! events before it reaches the end of a file.

use std::{
    ops::ControlFlow,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{self, Receiver, RecvTimeoutError},
    },
    thread,
    time::Duration,
};

use howdah_log_input::is_stdin;
use howdah_traffic::{Event, ReorderBuffer, Source, Timestamp};

use super::files::{ReadFilesError, ReadProgress, read_files};
use crate::{
    options::{Emit, ImportOptions},
    summary::ImportSummary,
};

/// Maximum number of events queued between the reading thread and the consumer.
const QUEUE_DEPTH: usize = 1024;

/// Time without an event after which a live log is considered silent.
const IDLE_TIMEOUT: Duration = Duration::from_millis(100);

/// Captured time to read ahead before an event is emitted, if statements are logged at their start.
/// Backends write to the log concurrently, so their lines are slightly out of order.
const START_WINDOW: Duration = Duration::from_secs(1);

/// Like [`START_WINDOW`], if statements are logged at their end: a statement that started earlier
/// may be logged later. A statement that ran longer than this may be replayed late.
const END_WINDOW: Duration = Duration::from_secs(30);

/// Maximum number of events held for sorting.
const REORDER_MAX: usize = 100_000;

/// An iterator over the events of logs, in the order of their start, except for events that a log
/// shows much later.
///
/// If a log cannot be opened or read, the iterator returns the error, then the events that it still
/// holds for sorting, and ends.
#[derive(Debug)]
pub struct LogStream {
    events: Receiver<StreamItem>,
    reorder: ReorderBuffer,
    watermark: Timestamp,
    /// Whether one of the inputs is a pipe, so that silence does not mean that the log has ended.
    is_live: bool,
    /// Whether to emit the events held for sorting, because no input arrived for a while or the
    /// input has ended.
    release: bool,
    is_ended: bool,
    summary: Option<ImportSummary>,
    position: Arc<StreamPosition>,
}

/// How far the logs of a [`LogStream`] have been read. Can be read from any thread.
#[derive(Debug, Default)]
pub struct StreamPosition {
    bytes: AtomicU64,
    /// 0 if unknown.
    bytes_total: AtomicU64,
    rejected: AtomicU64,
}

impl StreamPosition {
    /// Returns the bytes read so far, and the total size of all files.
    pub fn progress(&self) -> ReadProgress {
        let total = self.bytes_total.load(Ordering::Relaxed);
        let bytes = self.bytes.load(Ordering::Relaxed);
        ReadProgress { bytes, bytes_total: Some(total).filter(|total| *total > 0) }
    }

    /// Returns the number of records that could not be read; 0 until the end of the logs.
    pub fn rejected(&self) -> u64 {
        self.rejected.load(Ordering::Relaxed)
    }
}

#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "all but the last are the large one")]
enum StreamItem {
    Event(Event),
    End(Box<Result<ImportSummary, ReadFilesError<ReceiverGone>>>),
}

/// The error with which the reading thread stops when the [`LogStream`] was dropped. Callers never
/// see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the receiver of the events was dropped")]
pub struct ReceiverGone;

impl LogStream {
    /// Starts reading the logs; `-` is standard input. Overrides `options.emit` with
    /// [`Emit::Start`].
    ///
    /// # Errors
    ///
    /// The system cannot start a thread.
    pub fn open(paths: Vec<PathBuf>, mut options: ImportOptions) -> std::io::Result<Self> {
        options.emit = Emit::Start;
        // An existing path that is neither a file nor a folder of files is a pipe.
        let is_pipe = |path: &PathBuf| {
            is_stdin(path) || path.metadata().is_ok_and(|it| !it.is_file() && !it.is_dir())
        };
        let is_live = paths.iter().any(is_pipe);
        let (sender, events) = mpsc::sync_channel(QUEUE_DEPTH);
        let position: Arc<StreamPosition> = Arc::default();
        let reached = position.clone();
        thread::Builder::new().name("log-reader".to_owned()).spawn(move || {
            let sink = |event| sender.send(StreamItem::Event(event)).map_err(|_| ReceiverGone);
            let note = |progress: ReadProgress| {
                reached.bytes.store(progress.bytes, Ordering::Relaxed);
                reached.bytes_total.store(progress.bytes_total.unwrap_or(0), Ordering::Relaxed);
                ControlFlow::Continue(())
            };
            let end = read_files(&paths, options, note, sink);
            if let Ok(summary) = &end {
                reached.rejected.store(summary.rejected(), Ordering::Relaxed);
                let bytes = reached.bytes_total.load(Ordering::Relaxed);
                reached.bytes.fetch_max(bytes, Ordering::Relaxed);
            }
            // If the receiver is gone, the result is not needed.
            let _ = sender.send(StreamItem::End(Box::new(end)));
        })?;
        Ok(Self {
            events,
            reorder: ReorderBuffer::new(START_WINDOW, REORDER_MAX),
            watermark: Timestamp::from_micros(i64::MIN),
            is_live,
            release: false,
            is_ended: false,
            summary: None,
            position,
        })
    }

    /// Returns a handle to the position that reading has reached.
    pub fn position(&self) -> Arc<StreamPosition> {
        self.position.clone()
    }

    /// Returns the summary of the logs once they have been read to their end; `None` after an
    /// error.
    pub fn summary(&self) -> Option<&ImportSummary> {
        self.summary.as_ref()
    }

    /// Receives the next event, or releases the buffered events if none arrived in time or the
    /// input has ended.
    fn receive(&mut self) -> Result<(), ReadFilesError<ReceiverGone>> {
        let idle = if self.is_live { IDLE_TIMEOUT } else { Duration::MAX };
        match self.events.recv_timeout(idle) {
            Ok(StreamItem::Event(event)) => {
                if event.source == Source::Duration && event.action.kind().is_execution() {
                    self.reorder.set_window(END_WINDOW);
                }
                self.release = false;
                self.watermark = self.watermark.max(event.time);
                self.reorder.push(event);
            }
            Ok(StreamItem::End(end)) => {
                (self.release, self.is_ended) = (true, true);
                self.summary = Some((*end)?);
            }
            Err(RecvTimeoutError::Timeout) => self.release = true,
            Err(RecvTimeoutError::Disconnected) => (self.release, self.is_ended) = (true, true),
        }
        Ok(())
    }
}

impl Iterator for LogStream {
    type Item = Result<Event, ReadFilesError<ReceiverGone>>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let event = if self.release {
                self.reorder.pop_earliest()
            } else {
                self.reorder.pop(self.watermark)
            };
            if event.is_some() {
                return event.map(Ok);
            }
            if self.is_ended {
                return None;
            }
            if let Err(error) = self.receive() {
                return Some(Err(error));
            }
        }
    }
}
