//! What a checkpoint does, and how long each phase of it takes.
//!
//! ```text
//! checkpoint ─────────────────────────────────────────────────────────────┐
//!   ├─ buffers: clog, subtrans, multixact ─ write (BufferSync) ─ sync ──┤  │
//!   └─ two-phase                                                           │
//! ```
//!
//! From markers (`--enable-dtrace`) every phase is known to the microsecond, nested as it happens. Where
//! there are none, or programs may not be run, the checkpointer's own notes (`CheckpointStats`) are read from
//! its memory as it makes them: begin, first write, first sync, last sync, end, with the times that
//! the server itself took. `write` then holds all that comes before the first sync.
//!
//! Source: `CreateCheckPoint`, `CheckPointGuts` and `LogCheckpointEnd` in `xlog.c`.

mod markers;
mod notes;
mod timeline;

use std::time::{Duration, SystemTime};

use howdah_inspect::Server;

use self::{markers::FromMarkers, notes::FromNotes};
use crate::error::Error;

/// Checkpoints of a running server, as they happen.
#[derive(Debug)]
pub struct Checkpoints(Watch);

#[derive(Debug)]
enum Watch {
    Markers(FromMarkers),
    Notes(FromNotes),
}

/// Where a figure comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Source {
    /// Programs in the kernel: every event, exact.
    Bpf,
    /// The server's memory, looked at by the clock.
    Memory,
    /// Statements, by which the server tells what it counts and shows itself.
    Sql,
}

/// A part of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// All of it.
    Checkpoint,
    /// What writes pages and has them synced.
    Buffers,
    /// The commit log.
    Clog,
    /// Which transaction is part of which.
    Subtrans,
    /// Locks of a row by several transactions.
    Multixact,
    /// Dirty buffers are written.
    Write,
    /// Files are synced.
    Sync,
    /// Prepared transactions.
    TwoPhase,
}

/// A phase began or ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Update {
    /// It began.
    Started {
        /// Which.
        phase: Phase,
        /// The process that does it, as the caller's namespace numbers it.
        pid: u32,
        /// When.
        at: SystemTime,
        /// In how many other phases it is.
        depth: usize,
    },
    /// It ended.
    Finished(Span),
}

/// A phase from beginning to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Which.
    pub phase: Phase,
    /// The process that did it.
    pub pid: u32,
    /// When it began.
    pub started_at: SystemTime,
    /// How long it took.
    pub duration: Duration,
    /// In how many other phases it was.
    pub depth: usize,
    /// What it did.
    pub counts: Counts,
}

/// What a phase did, as far as it is told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Buffers that were written.
    pub buffers_written: Option<u64>,
    /// Buffers that were to be written.
    pub buffers_to_write: Option<u64>,
    /// Files that were synced.
    pub files_synced: Option<u64>,
    /// The longest sync of one file.
    pub longest_sync: Option<Duration>,
    /// WAL segments that were added, removed and recycled.
    pub segments: Option<[u64; 3]>,
}

impl Checkpoints {
    /// Watches by markers.
    ///
    /// # Errors
    ///
    /// The server has none, or programs may not be run.
    pub fn by_markers(server: &Server) -> Result<Self, Error> {
        FromMarkers::attach(server).map(|watch| Self(Watch::Markers(watch)))
    }

    /// Watches the checkpointer's own notes. They have to be [polled](Self::poll) more often than there are
    /// checkpoints: ten times a second shows phases as they begin.
    ///
    /// # Errors
    ///
    /// There is no checkpointer, its memory may not be read, or it does not look like notes.
    pub fn by_notes(server: &Server) -> Result<Self, Error> {
        FromNotes::open(server).map(|watch| Self(Watch::Notes(watch)))
    }

    /// Where the figures come from.
    #[must_use]
    pub fn source(&self) -> Source {
        match self.0 {
            Watch::Markers(_) => Source::Bpf,
            Watch::Notes(_) => Source::Memory,
        }
    }

    /// Shows what began and ended since the last time.
    ///
    /// # Errors
    ///
    /// The server ended.
    pub fn poll(&mut self, mut visit: impl FnMut(Update)) -> Result<(), Error> {
        match &mut self.0 {
            Watch::Markers(watch) => {
                watch.poll(&mut visit);
                Ok(())
            }
            Watch::Notes(watch) => watch.poll(&mut visit),
        }
    }

    /// Events that were lost on the way.
    ///
    /// # Errors
    ///
    /// The kernel's counters cannot be read.
    pub fn lost(&self) -> Result<u64, Error> {
        match &self.0 {
            Watch::Markers(watch) => watch.lost(),
            Watch::Notes(_) => Ok(0),
        }
    }
}

/// The markers of checkpoints.
pub(crate) fn all_marker_names() -> impl Iterator<Item = &'static str> {
    markers::names()
}

/// The markers of checkpoints, if the server has them.
pub(crate) fn marker_names(server: &Server) -> Result<Vec<&'static str>, Error> {
    let names: Vec<_> = markers::names().collect();
    let has = |name: &str| server.binary().markers().iter().any(|marker| marker.name == name);
    match names.iter().copied().find(|name| !has(name)) {
        Some(marker) => Err(Error::NoMarker { marker }),
        None => Ok(names),
    }
}

impl Source {
    /// Its word in output.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Bpf => "bpf",
            Self::Memory => "memory",
            Self::Sql => "sql",
        }
    }
}

impl Phase {
    /// All phases.
    pub const ALL: [Self; 8] = [
        Self::Checkpoint,
        Self::Buffers,
        Self::Clog,
        Self::Subtrans,
        Self::Multixact,
        Self::Write,
        Self::Sync,
        Self::TwoPhase,
    ];

    /// Its word in output.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Checkpoint => "checkpoint",
            Self::Buffers => "buffers",
            Self::Clog => "clog",
            Self::Subtrans => "subtrans",
            Self::Multixact => "multixact",
            Self::Write => "write",
            Self::Sync => "sync",
            Self::TwoPhase => "two-phase",
        }
    }
}
