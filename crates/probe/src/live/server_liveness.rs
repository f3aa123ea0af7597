//! Detects that a server has stopped while it is being probed.

use std::{
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

use howdah_inspect::RunningServer;

use crate::{PostmasterIdentity, SampleError};

/// Time between checks by [`ServerLiveness::poll`].
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// Checks whether a server still runs and has not been restarted.
#[derive(Debug)]
pub struct ServerLiveness {
    identity: PostmasterIdentity,
    data_dir: PathBuf,
    checked_at: Instant,
}

/// The reason why a server can no longer be sampled.
#[derive(Debug, thiserror::Error)]
#[error("{source}")]
pub struct ServerUnavailable {
    /// The error of the sample, or of the check that the server still runs.
    pub source: SampleError,
    /// Process id of the postmaster that runs in the same data directory now, if the server was
    /// restarted.
    pub restarted_as: Option<u32>,
}

impl ServerLiveness {
    /// Starts monitoring a server.
    ///
    /// # Errors
    ///
    /// The server has stopped, or cannot be inspected.
    pub fn new(server: &RunningServer) -> Result<Self, SampleError> {
        let (identity, data_dir) = (PostmasterIdentity::for_server(server)?, server.data_dir()?);
        Ok(Self { identity, data_dir, checked_at: Instant::now() })
    }

    /// Returns the error if the server has stopped. Checks at most every half second; otherwise
    /// returns `None`.
    pub fn poll(&mut self) -> Option<ServerUnavailable> {
        if self.checked_at.elapsed() < CHECK_INTERVAL {
            return None;
        }
        self.checked_at = Instant::now();
        self.check()
    }

    /// Like [`Self::poll`], but checks immediately.
    pub fn check(&self) -> Option<ServerUnavailable> {
        self.identity.check().err().map(|error| self.explain(error))
    }

    /// Waits up to a second for the server to stop, and returns the error if it does.
    fn stops_soon(&self) -> Option<SampleError> {
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(1) {
            if let Err(error) = self.identity.check() {
                return Some(error);
            }
            thread::sleep(Duration::from_millis(10));
        }
        None
    }

    /// Determines the cause of an error: whether the server has stopped, and whether it runs again.
    /// May wait up to a second for a server that is stopping.
    pub fn explain(&self, error: SampleError) -> ServerUnavailable {
        let source = match error {
            // A stopping server releases its shared memory shortly before it exits.
            SampleError::Reinitialised { .. } => self.stops_soon().unwrap_or(error),
            error => error,
        };
        let has_stopped = matches!(source, SampleError::ServerStopped { .. });
        let again = RunningServer::in_data_dir(&self.data_dir).ok().filter(|_| has_stopped);
        ServerUnavailable { source, restarted_as: again.map(|server| server.postmaster().pid()) }
    }
}

impl From<SampleError> for ServerUnavailable {
    fn from(source: SampleError) -> Self {
        Self { source, restarted_as: None }
    }
}
