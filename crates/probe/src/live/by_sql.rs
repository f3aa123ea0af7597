//! The loop of a probe that polls the server by SQL.

use std::time::Instant;

use howdah_collect::MonitorConnection;

use super::{LiveError, Pace, ProbeOutput, ticks::Ticks};
use crate::by_sql::SqlProbe;

/// Polls until the duration has passed, the user interrupts, the event that the probe waits for has
/// happened, or the server no longer responds. Each update passes the probe itself to the output,
/// which drains the data of the interval. Returns the error if a later sample failed.
///
/// # Errors
///
/// The first sample failed, or the output cannot be written.
pub fn poll_by_sql<P: SqlProbe>(
    probe: &mut P,
    server: &mut MonitorConnection,
    pace: &Pace,
    output: &mut impl for<'p> ProbeOutput<&'p mut P>,
) -> Result<Option<LiveError>, LiveError> {
    let period = P::INTERVAL.map_or(pace.interval, |period| period.min(pace.interval));
    probe.sample(server)?;
    let mut ticks = Ticks::start(pace, period);
    let mut due = Instant::now() + pace.interval;
    let mut ended = None;
    while ended.is_none() && !probe.is_done() && ticks.tick(output) {
        ended = probe.sample(server).map_err(LiveError::SampleFailed).err();
        if Instant::now() + period / 2 >= due {
            due += pace.interval;
            output.write(probe)?;
        }
    }
    Ok(ended)
}
