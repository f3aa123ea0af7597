//! The loop that traces the phases of checkpoints.

use std::time::{Duration, Instant};

use howdah_inspect::RunningServer;

use super::{LiveError, Pace, ProbeOutput, ServerLiveness, ticks::Ticks};
use crate::checkpoints::{CheckpointPhase, CheckpointTracer, FinishedPhase, PhaseUpdate};

/// Time that a running server may be without a checkpointer before tracing ends.
const CHECKPOINTER_TIMEOUT: Duration = Duration::from_secs(5);

/// Time between polls.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Traces until the duration has passed, the user interrupts, or the server stops; with
/// `until_checkpoint`, until a checkpoint is complete. Returns the error if the server stopped, or
/// if polling failed for more than five seconds.
///
/// # Errors
///
/// The server had already stopped, or the output cannot be written.
pub fn trace_checkpoints(
    tracer: &mut CheckpointTracer,
    server: &RunningServer,
    (pace, until_checkpoint): (&Pace, bool),
    output: &mut impl ProbeOutput<PhaseUpdate>,
) -> Result<Option<LiveError>, LiveError> {
    let mut monitor = ServerLiveness::new(server)?;
    let mut ticks = Ticks::start(pace, POLL_INTERVAL);
    let (mut is_done, mut ended, mut failing_since) = (false, None, None);
    while !is_done && ended.is_none() && ticks.tick(output) {
        let mut updates = Vec::new();
        match tracer.poll(|update| updates.push(update)) {
            Ok(()) => failing_since = None,
            // While a server shuts down, the checkpointer exits before the server is gone.
            Err(error) => {
                let since = *failing_since.get_or_insert_with(Instant::now);
                let is_lasting = since.elapsed() > CHECKPOINTER_TIMEOUT;
                ended = monitor.check().map(LiveError::Server);
                ended = ended.or_else(|| is_lasting.then(|| error.into()));
            }
        }
        for update in updates {
            is_done |= until_checkpoint && is_end(&update);
            output.write(update)?;
            if is_done {
                // Later updates belong to the next checkpoint.
                break;
            }
        }
        ended = ended.or_else(|| monitor.poll().map(LiveError::Server));
    }
    Ok(ended)
}

fn is_end(update: &PhaseUpdate) -> bool {
    matches!(
        update,
        PhaseUpdate::Finished(FinishedPhase { phase: CheckpointPhase::Checkpoint, .. })
    )
}
