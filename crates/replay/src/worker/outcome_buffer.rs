//! [`OutcomeBuffer`]: collects the outcomes of a worker for the outcome writer.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::WorkerContext;
use crate::player::FinishedEvent;

/// Number of outcomes that are sent at once. Sending wakes the outcome writer, which costs as much
/// as a statement.
const BATCH: usize = 256;

/// Maximum time for which an outcome waits for others, apart from the time until the next tick.
const DELAY_MAX: Duration = Duration::from_millis(50);

/// Outcomes that are not yet sent to the outcome writer.
#[derive(Debug, Default)]
pub(super) struct OutcomeBuffer {
    outcomes: Vec<FinishedEvent>,
}

impl OutcomeBuffer {
    pub(super) fn push(&mut self, outcome: FinishedEvent) {
        self.outcomes.push(outcome);
    }

    pub(super) fn extend(&mut self, outcomes: impl IntoIterator<Item = FinishedEvent>) {
        self.outcomes.extend(outcomes);
    }

    /// Sends the outcomes if there are enough of them, or if the first has waited long enough.
    pub(super) fn send_if_due(&mut self, now: Instant, shared: &WorkerContext) {
        let is_old = |first: &FinishedEvent| now.saturating_duration_since(first.ended) > DELAY_MAX;
        if self.outcomes.len() >= BATCH || self.outcomes.first().is_some_and(is_old) {
            self.send(shared);
        }
    }

    /// Sends all outcomes.
    pub(super) fn send(&mut self, shared: &WorkerContext) {
        if self.outcomes.is_empty() {
            return;
        }
        let batch = std::mem::replace(&mut self.outcomes, shared.free_batches.take());
        // The receiver is only gone if the outcome writer panicked; joining its thread reports
        // that.
        let _ = shared.finished.send(batch);
    }
}

/// Memory of batches that the outcome writer has recorded, for the next ones. Freeing it instead
/// would make glibc's allocator merge all free blocks each time, which takes longer than recording.
#[derive(Debug, Default)]
pub(crate) struct FreeBatches(Mutex<Vec<Vec<FinishedEvent>>>);

impl FreeBatches {
    /// Number of batches whose memory is retained.
    const RETAINED: usize = 16;

    fn take(&self) -> Vec<FinishedEvent> {
        let free = self.0.lock().pop();
        free.unwrap_or_else(|| Vec::with_capacity(2 * BATCH))
    }

    /// Retains the memory of a batch whose outcomes were taken out.
    pub(crate) fn recycle(&self, batch: Vec<FinishedEvent>) {
        let mut free = self.0.lock();
        if free.len() < Self::RETAINED && batch.is_empty() && batch.capacity() <= 8 * BATCH {
            free.push(batch);
        }
    }
}
