//! Logs read as they are played: events in the order of their start, from files or a pipe.
//!
//! The reader keeps only a little ahead of whoever takes events, makes no copy on disk, and does not
//! wait for the end of a file before the first event comes out.

use std::{
    ops::ControlFlow,
    path::PathBuf,
    sync::mpsc::{self, Receiver, RecvTimeoutError},
    thread,
    time::Duration,
};

use howdah_traffic::{Event, Reorder, Source, Timestamp};

use crate::{
    files::{ReadFilesError, read_files},
    input::is_stdin,
    options::{Emit, Options},
    summary::Summary,
};

/// Events between the reading thread and the taker.
const AHEAD: usize = 1024;

/// After this long without an event, what has been read is all there is for now: a live log.
const IDLE: Duration = Duration::from_millis(100);

/// Captured time to read on before an event is let go, when statements are logged at their start:
/// backends write to the log side by side, and their lines are out of order by little.
const WINDOW_STARTS: Duration = Duration::from_secs(1);

/// The same when they are logged at their end: one that began earlier may be written later. What
/// runs longer than this is played late.
const WINDOW_ENDS: Duration = Duration::from_secs(30);

/// Events held for sorting, at most.
const HELD_MAX: usize = 100_000;

/// An iterator over the events of logs, in the order of their start.
///
/// What cannot be opened or read comes out of it as an error, after which it ends.
#[derive(Debug)]
pub struct LogStream {
    events: Receiver<Item>,
    reorder: Reorder,
    watermark: Timestamp,
    /// There is a pipe among the inputs: silence means that nothing has happened yet.
    is_live: bool,
    /// Nothing more has come for a while, or ever will: what is held goes out.
    release: bool,
    ended: bool,
    summary: Option<Summary>,
}

#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "all but the last are the large one")]
enum Item {
    Event(Event),
    End(Box<Result<Summary, ReadFilesError<NotTaken>>>),
}

/// Whoever took the events is gone. Nobody is left to see this.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("nobody takes the events")]
pub struct NotTaken;

impl LogStream {
    /// Begins to read the logs, `-` being standard input. `options.emit` is set as streaming needs.
    ///
    /// # Errors
    ///
    /// The system gives no thread.
    pub fn open(paths: Vec<PathBuf>, mut options: Options) -> std::io::Result<Self> {
        options.emit = Emit::Start;
        // What is there and is neither a file nor a folder of files is a pipe.
        let is_pipe = |path: &PathBuf| {
            is_stdin(path) || path.metadata().is_ok_and(|it| !it.is_file() && !it.is_dir())
        };
        let is_live = paths.iter().any(is_pipe);
        let (sender, events) = mpsc::sync_channel(AHEAD);
        thread::Builder::new().name("log-reader".to_owned()).spawn(move || {
            let sink = |event| sender.send(Item::Event(event)).map_err(|_| NotTaken);
            let end = read_files(&paths, options, |_| ControlFlow::Continue(()), sink);
            // If nobody takes it, nobody needs it.
            let _ = sender.send(Item::End(Box::new(end)));
        })?;
        Ok(Self {
            events,
            reorder: Reorder::new(WINDOW_STARTS, HELD_MAX),
            watermark: Timestamp::from_micros(i64::MIN),
            is_live,
            release: false,
            ended: false,
            summary: None,
        })
    }

    /// What the log turned out to be, once it has been read to its end.
    pub fn summary(&self) -> Option<&Summary> {
        self.summary.as_ref()
    }

    /// Takes in what comes next, or notices that nothing does.
    fn advance(&mut self) -> Result<(), ReadFilesError<NotTaken>> {
        let idle = if self.is_live { IDLE } else { Duration::MAX };
        match self.events.recv_timeout(idle) {
            Ok(Item::Event(event)) => {
                if event.source == Source::Duration && event.action.kind().is_execution() {
                    self.reorder.set_window(WINDOW_ENDS);
                }
                self.release = false;
                self.watermark = self.watermark.max(event.time);
                self.reorder.push(event);
            }
            Ok(Item::End(end)) => {
                (self.release, self.ended) = (true, true);
                self.summary = Some((*end)?);
            }
            Err(RecvTimeoutError::Timeout) => self.release = true,
            Err(RecvTimeoutError::Disconnected) => (self.release, self.ended) = (true, true),
        }
        Ok(())
    }
}

impl Iterator for LogStream {
    type Item = Result<Event, ReadFilesError<NotTaken>>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let event = match self.release {
                true => self.reorder.pop_any(),
                false => self.reorder.pop(self.watermark),
            };
            if event.is_some() {
                return event.map(Ok);
            }
            if self.ended {
                return None;
            }
            if let Err(error) = self.advance() {
                return Some(Err(error));
            }
        }
    }
}
