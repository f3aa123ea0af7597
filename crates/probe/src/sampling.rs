//! What the samplers of memory share: whether the server is still the one they began with, and what
//! they cost.

use std::time::Duration;

use howdah_inspect::{Error, MemoryError, Process, ProcessError, RunState, Server};
use rustix::time::{ClockId, clock_gettime};

/// Why sampling a server ends.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SampleError {
    /// The server stopped or was restarted. A restarted one is another server and has to be opened anew.
    #[error("the server has ended: its first process, {pid}, is gone")]
    Ended {
        /// The postmaster's process id.
        pid: u32,
    },
    /// Its shared memory was made anew, after one of its processes crashed; the counters began at 0.
    #[error("the server whose first process is {pid} crashed and made its shared memory anew")]
    Reinitialised {
        /// The postmaster's process id.
        pid: u32,
    },
    /// It cannot be looked at.
    #[error(transparent)]
    Inspect(#[from] Error),
}

impl From<MemoryError> for SampleError {
    fn from(error: MemoryError) -> Self {
        Self::Inspect(error.into())
    }
}

impl From<ProcessError> for SampleError {
    fn from(error: ProcessError) -> Self {
        Self::Inspect(error.into())
    }
}

/// The life of a postmaster: as long as it lasts, a server is the one it was.
#[derive(Clone, Copy, Debug)]
pub struct Life {
    postmaster: Process,
    started_ticks: u64,
}

impl Life {
    /// That of a running server.
    ///
    /// # Errors
    ///
    /// It has ended.
    pub fn of(server: &Server) -> Result<Self, SampleError> {
        let postmaster = server.postmaster();
        Ok(Self { postmaster, started_ticks: postmaster.started_ticks()? })
    }

    pub(crate) fn postmaster(&self) -> Process {
        self.postmaster
    }

    /// Whether it lasts.
    ///
    /// # Errors
    ///
    /// The postmaster has ended, or its number is another process's by now.
    pub fn check(&self) -> Result<(), SampleError> {
        let has_ended = self.postmaster.run_state().map_or(true, |state| state == RunState::Ended);
        match self.postmaster.started_ticks() {
            Ok(ticks) if ticks == self.started_ticks && !has_ended => Ok(()),
            _ => Err(SampleError::Ended { pid: self.postmaster.pid() }),
        }
    }

    /// What an error while sampling means: most often that the server has ended.
    pub(crate) fn explain(&self, error: impl Into<SampleError>) -> SampleError {
        let error = error.into();
        match error {
            SampleError::Inspect(Error::Memory(MemoryError::Gone { .. })) => {
                SampleError::Ended { pid: self.postmaster.pid() }
            }
            error => self.check().err().unwrap_or(error),
        }
    }
}

/// Processor time that the calling thread has used.
pub(crate) fn own_cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or_default())
}
