//! The loop that runs the flight recorder.

use std::{
    fmt, io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use crate::{
    RelationNamer,
    recorder::{FlightRecorder, RecorderEvent},
};

/// Conditions that end a recording.
#[derive(Clone, Debug)]
pub struct RecordingLimits {
    /// Ends recording after this time; `None` to record until stopped.
    pub duration: Option<Duration>,
    /// Whether to end recording when the server stops or can no longer be sampled, instead of
    /// waiting for its return.
    pub until_server_stops: bool,
    /// Ends recording when set.
    pub stop: Arc<AtomicBool>,
}

/// The reason for the end of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordingStop {
    /// The stop flag was set.
    Interrupted,
    /// The time limit was reached.
    DurationOver,
    /// The server stopped or could no longer be sampled, and the limits excluded waiting for its
    /// return.
    ServerStopped,
}

impl RecordingStop {
    /// Returns the reason as text, for users.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Interrupted => "interrupted",
            Self::DurationOver => "the duration is over",
            Self::ServerStopped => "the server ended",
        }
    }
}

impl fmt::Display for RecordingStop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Records until a limit is reached. Passes events to `output`, and names that `namer` has found to
/// the recorder.
///
/// # Errors
///
/// `output` failed.
pub fn record(
    recorder: &mut FlightRecorder,
    namer: Option<&RelationNamer>,
    limits: &RecordingLimits,
    mut output: impl FnMut(&RecorderEvent) -> io::Result<()>,
) -> io::Result<RecordingStop> {
    let end = limits.duration.and_then(|duration| Instant::now().checked_add(duration));
    loop {
        let due = end.map_or(recorder.next_tick_at(), |end| end.min(recorder.next_tick_at()));
        thread::sleep(due.saturating_duration_since(Instant::now()));
        let now = Instant::now();
        if limits.stop.load(Ordering::Relaxed) {
            return Ok(RecordingStop::Interrupted);
        }
        if end.is_some_and(|end| now >= end) {
            return Ok(RecordingStop::DurationOver);
        }
        for event in recorder.tick(now) {
            if let Some(namer) = namer {
                match event {
                    RecorderEvent::Unnamed { database, relation } => {
                        namer.request((database, relation));
                    }
                    RecorderEvent::UnnamedFile { tablespace, database, filenode } => {
                        namer.request_file((tablespace, database, filenode));
                    }
                    _ => {}
                }
            }
            output(&event)?;
        }
        for ((database, relation), name) in namer.iter().flat_map(|namer| namer.drain_names()) {
            recorder.set_relation_name(database, relation, name, now);
        }
        for ((_, database, filenode), name) in
            namer.iter().flat_map(|namer| namer.drain_file_names())
        {
            recorder.set_file_name(database, filenode, name, now);
        }
        if limits.until_server_stops && recorder.is_waiting() {
            return Ok(RecordingStop::ServerStopped);
        }
    }
}
