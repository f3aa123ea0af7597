//! The history of samples: compressed, kept for a limited time in memory and longer in a file.
//!
//! ```text
//! health ──► frame (what changed) ──► zstd, flushed ──► ring of segments ──► at(moment)
//!                                            └────────► recording (a file)
//! ```
//!
//! A *frame* is one sample as its difference from the previous one, in which each text is written
//! only once. The frames of a few minutes form a *segment*, which is independent of the others: the
//! oldest segment is dropped as a whole, and a moment is restored by decoding its segment from the
//! start. Wait events are kept separately, one entry per second, so that a chart of an hour needs
//! no frames.
//!
//! Out of scope: presentation (the model) and scheduling (the sampler).

mod backends;
mod compression;
mod delta;
mod error;
mod file_format;
mod frame;
mod pooled_clients;
mod recorder;
mod recording;
mod server_history;
mod texts;
mod views;

use std::{io, sync::Arc, time::Duration};

use parking_lot::{Mutex, MutexGuard};

use self::server_history::{FrameEncoder, ServerHistory};
pub use self::{
    error::CorruptFrame,
    recorder::{HistoryRecorder, RecorderError},
    recording::{OpenRecordingError, RecordingGap, TopRecording},
    server_history::PastState,
};
use crate::ServerHealth;

/// Limits on the age and size of a history. They may be exceeded slightly, because samples are
/// dropped in groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryLimits {
    /// Maximum age of a sample.
    pub age: Duration,
    /// Maximum size in bytes: of memory for all servers together, or of a file.
    pub bytes: u64,
}

impl HistoryLimits {
    /// Default limits of a history in memory: one hour and 64 MiB.
    pub const MEMORY: Self = Self { age: Duration::from_secs(3600), bytes: 64 << 20 };

    /// Default limits of a recording: seven days and 1 GiB.
    pub const FILE: Self = Self { age: Duration::from_secs(7 * 86400), bytes: 1 << 30 };
}

/// The history of several servers. Threads may share it.
#[derive(Debug)]
pub struct SnapshotHistory {
    names: Vec<String>,
    limits: HistoryLimits,
    servers: Vec<Mutex<HistoryServer>>,
}

#[derive(Debug)]
struct HistoryServer {
    encoder: FrameEncoder,
    history: ServerHistory,
    /// Whether the server was last unreachable: only the first of consecutive failures is stored.
    is_unreachable: bool,
    /// The last second of waits that was passed to the recorder.
    recorded_waits_until: i64,
}

impl SnapshotHistory {
    /// Creates an empty history of the named servers.
    ///
    /// # Errors
    ///
    /// The compressor could not be created.
    pub fn new(names: impl IntoIterator<Item = String>, limits: HistoryLimits) -> io::Result<Self> {
        let names: Vec<String> = names.into_iter().collect();
        let servers = names.iter().map(|_| HistoryServer::new(ServerHistory::default()));
        let servers = servers.collect::<io::Result<_>>()?;
        Ok(Self { names, limits, servers })
    }

    /// Creates a history from the contents of a file.
    fn from_servers(tracks: Vec<(String, ServerHistory)>) -> io::Result<Self> {
        let (names, tracks): (Vec<_>, Vec<_>) = tracks.into_iter().unzip();
        let servers = tracks.into_iter().map(HistoryServer::new).collect::<io::Result<_>>()?;
        Ok(Self { names, limits: HistoryLimits::FILE, servers })
    }

    /// Returns the names of the servers, in the order of their indexes.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Adds a server's state, and passes it to the recorder if there is one. Of consecutive
    /// failures, only the first is stored.
    ///
    /// # Errors
    ///
    /// The state could not be compressed, or the recording failed. In the latter case, the state is
    /// kept in memory nevertheless.
    pub fn push(
        &self,
        server: usize,
        health: &ServerHealth,
        recorder: Option<&Mutex<HistoryRecorder>>,
    ) -> Result<(), RecorderError> {
        let Some((mut entry, name)) = self.server(server).zip(self.names.get(server)) else {
            return Ok(());
        };
        let is_unreachable = !matches!(health, ServerHealth::Read(_));
        if std::mem::replace(&mut entry.is_unreachable, is_unreachable) && is_unreachable {
            return Ok(());
        }
        let at_us = match health {
            ServerHealth::Read(snapshot) => snapshot.sampled_us,
            _ => crate::sampler::now_us(),
        };
        // A clock that was set back must not reorder samples.
        let at_us = entry.history.range().map_or(at_us, |(_, last_us)| last_us.max(at_us));
        let frame = entry.encoder.encode(at_us, health).map_err(RecorderError::Pack)?;
        entry.history.push(&frame);
        let bytes = usize::try_from(self.limits.bytes).unwrap_or(usize::MAX);
        entry.history.trim(at_us, self.limits.age, bytes / self.servers.len().max(1));
        let recorded_until = entry.recorded_waits_until;
        if let ServerHealth::Read(snapshot) = health {
            entry.history.waits = (*snapshot.waits).clone();
            // The last second may still be incomplete.
            let whole = snapshot.waits.seconds().rev().nth(1).map(|second| second.second);
            entry.recorded_waits_until = whole.unwrap_or(recorded_until).max(recorded_until);
        }
        let Some(recorder) = recorder else { return Ok(()) };
        let until = entry.recorded_waits_until;
        let seconds: Vec<_> = entry
            .history
            .waits
            .after(recorded_until)
            .take_while(|second| second.second <= until)
            .cloned()
            .collect();
        let mut recorder = recorder.lock();
        recorder.append_frame(name, &frame)?;
        recorder.append_waits(name, at_us, &seconds)
    }

    /// Returns a server's state at `at_us`, microseconds since 1970 by our clock. `view` names the
    /// view on the screen: the snapshot includes its last sample before that time, unless that is
    /// too old. `None` if the history starts later.
    ///
    /// # Errors
    ///
    /// The history is corrupt at this point.
    pub fn at(
        &self,
        server: usize,
        at_us: i64,
        view: Option<&str>,
    ) -> Result<Option<PastState>, CorruptFrame> {
        self.server(server).map_or(Ok(None), |entry| entry.history.at(at_us, view))
    }

    /// Returns the time of the sample `by` samples after `from_us`, or before it if `by` is
    /// negative; clamped to the first and last sample.
    pub fn step(&self, server: usize, from_us: i64, by: isize) -> Option<i64> {
        self.server(server)?.history.step(from_us, by)
    }

    /// Returns the times of a server's first and last state, in microseconds since 1970.
    pub fn range(&self, server: usize) -> Option<(i64, i64)> {
        self.server(server)?.history.range()
    }

    /// Returns the earliest and the latest time of all servers: the time range of a recording. A
    /// server that was never reachable has only the time of its first failure.
    pub fn overall_range(&self) -> Option<(i64, i64)> {
        let ranges = (0..self.servers.len()).filter_map(|server| self.range(server));
        ranges.reduce(|one, other| (one.0.min(other.0), one.1.max(other.1)))
    }

    /// Returns the time of a server's first successful sample; `None` if there is none or the data
    /// before it is corrupt.
    pub fn first_sample(&self, server: usize) -> Option<i64> {
        let mut first_us = None;
        let played = self.play(server, None, |at_us, health| {
            first_us = matches!(health, ServerHealth::Read(_)).then_some(at_us);
            first_us.is_none()
        });
        if let Err(error) = played {
            tracing::warn!(%error, server, "recording is corrupt");
        }
        first_us
    }

    /// Passes all states of a server to `visit`, in order, until it returns false.
    ///
    /// # Errors
    ///
    /// The history is corrupt; all states before the corrupt part were passed.
    pub fn play(
        &self,
        server: usize,
        view: Option<&str>,
        visit: impl FnMut(i64, ServerHealth) -> bool,
    ) -> Result<(), CorruptFrame> {
        self.server(server).map_or(Ok(()), |entry| entry.history.play(view, visit))
    }

    /// Passes the states of a server from `from_us` to `until_us`, both inclusive, to `visit`, in
    /// order and without views and waits.
    ///
    /// # Errors
    ///
    /// The history is corrupt; all states before the corrupt part were passed.
    pub fn play_between(
        &self,
        server: usize,
        (from_us, until_us): (i64, i64),
        visit: impl FnMut(ServerHealth),
    ) -> Result<(), CorruptFrame> {
        let Some(entry) = self.server(server) else { return Ok(()) };
        entry.history.play_between((from_us, until_us), visit)
    }

    /// Returns the number of bytes of memory used by frames and their index; 0 for a recording.
    pub fn memory_bytes(&self) -> usize {
        (0..self.servers.len())
            .filter_map(|server| self.server(server))
            .map(|entry| entry.history.memory_bytes())
            .sum()
    }

    fn server(&self, server: usize) -> Option<MutexGuard<'_, HistoryServer>> {
        // After a panic elsewhere, at worst the last frame of a segment is missing.
        Some(self.servers.get(server)?.lock())
    }
}

impl HistoryServer {
    fn new(track: ServerHistory) -> io::Result<Mutex<Self>> {
        let cutter = FrameEncoder::new()?;
        Ok(Mutex::new(Self {
            encoder: cutter,
            history: track,
            is_unreachable: false,
            recorded_waits_until: i64::MIN,
        }))
    }
}

/// Stores the states that samplers report, in a history and optionally in a recording.
#[derive(Clone, Debug)]
pub struct HistoryWriter {
    /// The history in memory.
    pub history: Arc<SnapshotHistory>,
    recorder: Option<Arc<Mutex<HistoryRecorder>>>,
}

impl HistoryWriter {
    /// Creates a writer for a history, and for a recording if there is one.
    pub fn new(history: SnapshotHistory, recorder: Option<HistoryRecorder>) -> Self {
        let recorder = recorder.map(|recorder| Arc::new(Mutex::new(recorder)));
        Self { history: Arc::new(history), recorder }
    }

    /// Whether all views must be sampled, one after another. A recording requires this, because it
    /// covers every screen.
    pub fn needs_all_views(&self) -> bool {
        self.recorder.is_some()
    }

    /// Finishes the recording, if there is one: syncs it to disk and writes nothing after that.
    ///
    /// # Errors
    ///
    /// The file could not be synced.
    pub fn finish(&self) -> Result<(), RecorderError> {
        let Some(recorder) = &self.recorder else { return Ok(()) };
        recorder.lock().finish()
    }

    /// Creates the function that stores one server's states. When storing starts to fail, the
    /// function returns the reason in one sentence.
    pub fn for_server(
        &self,
        server: usize,
    ) -> impl FnMut(&ServerHealth) -> Option<String> + Send + use<> {
        let history_writer = self.clone();
        let mut has_failed = false;
        move |health| {
            let entry =
                history_writer.history.push(server, health, history_writer.recorder.as_deref());
            let failed = entry.inspect_err(|error| tracing::error!(%error, "cannot record")).err();
            let is_news = failed.is_some() && !has_failed;
            has_failed = failed.is_some();
            failed.filter(|_| is_news).map(|error| crate::sampler::with_causes(&error))
        }
    }
}

#[cfg(test)]
mod tests;
