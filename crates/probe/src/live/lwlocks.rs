//! The loop that samples waits for lightweight locks by reading the server's memory.

use std::time::{Duration, Instant};

use howdah_inspect::RunningServer;

use super::{LiveError, Pace, ProbeOutput, ServerLiveness, ServerUnavailable, ticks::Ticks};
use crate::{
    by_sql::LwLockSamples,
    waits::{Class, SamplerOptions, WaitSampler},
};

/// Limitation of samples in comparison with traced calls, for the user.
pub const LWLOCK_SAMPLES_LIMITATION: &str = "no single waits and durations: these are samples of memory, \
    100 per second, and the time they stand for";

const SAMPLE_INTERVAL: Duration = Duration::from_millis(10);

/// Samples until the duration has passed, the user interrupts, or the server stops; the totals are
/// in `samples`. Each update passes `samples` to the output, which drains those of the interval.
/// Returns the error if the server stopped or can no longer be sampled.
///
/// # Errors
///
/// The server's memory cannot be read, or the output cannot be written.
pub fn sample_lwlocks(
    samples: &mut LwLockSamples,
    server: &RunningServer,
    pace: &Pace,
    output: &mut impl for<'p> ProbeOutput<&'p mut LwLockSamples>,
) -> Result<Option<ServerUnavailable>, LiveError> {
    let mut sampler = WaitSampler::open(server, SamplerOptions::default())?;
    let monitor = ServerLiveness::new(server)?;
    let mut ticks = Ticks::start(pace, SAMPLE_INTERVAL);
    let mut due = Instant::now() + pace.interval;
    let mut ended = None;
    while ended.is_none() && ticks.tick(output) {
        let now = Instant::now();
        match sampler.sample(now) {
            Ok(round) => {
                let events = round.observations().map(|observation| observation.event);
                let waits = events.filter(|event| event.class() == Class::LwLock);
                samples.add(now, waits.map(|event| (event.name(), 1)));
            }
            Err(error) => ended = Some(monitor.explain(error)),
        }
        if now >= due {
            due += pace.interval;
            output.write(samples)?;
        }
    }
    Ok(ended)
}
