//! Helpers of the memory samplers: they verify that the server is still the same, and measure the
//! cost of sampling.

use std::time::Duration;

use howdah_inspect::{InspectError, MemoryError, OsProcess, ProcessError, RunState, RunningServer};
use rustix::time::{ClockId, clock_gettime};

/// The reason why a server cannot be sampled, or sampling cannot continue.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SampleError {
    /// The server stopped or was restarted. A restarted server is another one and must be opened
    /// again.
    #[error("the server has stopped: postmaster {pid} is gone")]
    ServerStopped {
        /// The postmaster's process id.
        pid: u32,
    },
    /// The server's shared memory was reinitialised or released, usually because one of its
    /// processes crashed: its counters restart at 0.
    #[error("the server (postmaster {pid}) reinitialised its shared memory, as after a crash")]
    Reinitialised {
        /// The postmaster's process id.
        pid: u32,
    },
    /// The server cannot be inspected.
    #[error(transparent)]
    Inspect(#[from] InspectError),
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

/// Identity of a postmaster: process id and start time. As long as both match, the server is the
/// same.
#[derive(Clone, Copy, Debug)]
pub struct PostmasterIdentity {
    postmaster: OsProcess,
    start_time_ticks: u64,
}

impl PostmasterIdentity {
    /// Returns the identity of a running server.
    ///
    /// # Errors
    ///
    /// The server has stopped, or its process cannot be inspected.
    pub fn for_server(server: &RunningServer) -> Result<Self, SampleError> {
        let postmaster = server.postmaster();
        Ok(Self { postmaster, start_time_ticks: postmaster.start_time_ticks()? })
    }

    pub(crate) fn postmaster(&self) -> OsProcess {
        self.postmaster
    }

    /// Checks that the postmaster is still running.
    ///
    /// # Errors
    ///
    /// The postmaster has exited, or its process id was reused.
    pub fn check(&self) -> Result<(), SampleError> {
        let pid = self.postmaster.pid();
        match (self.postmaster.run_state(), self.postmaster.start_time_ticks()) {
            (Ok(state), Ok(ticks))
                if ticks == self.start_time_ticks && state != RunState::Ended =>
            {
                Ok(())
            }
            // It cannot be read for another reason, such as the lack of a file descriptor.
            (Err(ProcessError::Proc { .. }), _) | (_, Err(ProcessError::Proc { .. }))
                if OsProcess::from_pid(pid).is_ok() =>
            {
                Ok(())
            }
            _ => Err(SampleError::ServerStopped { pid }),
        }
    }

    /// Returns the cause of an error while sampling, usually that the server has stopped.
    pub(crate) fn explain(&self, error: impl Into<SampleError>) -> SampleError {
        let error = error.into();
        match error {
            SampleError::Inspect(InspectError::Memory(MemoryError::Gone { .. })) => {
                SampleError::ServerStopped { pid: self.postmaster.pid() }
            }
            error => self.check().err().unwrap_or(error),
        }
    }
}

/// Returns the processor time used by the calling thread.
pub(crate) fn thread_cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or_default())
}
