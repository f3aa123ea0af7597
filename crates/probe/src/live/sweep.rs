//! The loop that samples the clock sweep.

use std::time::Instant;

use howdah_inspect::RunningServer;

use super::{LiveError, Pace, ProbeOutput, ServerLiveness, ServerUnavailable, ticks::Ticks};
use crate::{
    SampleError,
    sweep::{SweepRow, SweepSampler},
};

/// Samples until the duration has passed, the user interrupts, or the server stops; the totals are
/// in [`SweepSampler::summary`]. Returns the error if the server stopped or reinitialised its
/// memory.
///
/// # Errors
///
/// The server cannot be sampled, or the output cannot be written.
pub fn sample_sweep(
    sampler: &mut SweepSampler,
    server: &RunningServer,
    pace: &Pace,
    output: &mut impl ProbeOutput<SweepRow>,
) -> Result<Option<ServerUnavailable>, LiveError> {
    let monitor = ServerLiveness::new(server)?;
    let mut ticks = Ticks::start(pace, SweepSampler::ROW_LENGTH_MIN);
    while ticks.wait_until(sampler.next_poll_at(), output) {
        match sampler.poll(Instant::now()) {
            Ok(Some(row)) => output.write(row)?,
            Ok(None) => {}
            Err(
                error @ (SampleError::ServerStopped { .. } | SampleError::Reinitialised { .. }),
            ) => return Ok(Some(monitor.explain(error))),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(None)
}
