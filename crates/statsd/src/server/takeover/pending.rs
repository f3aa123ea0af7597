//! [`PendingSpools`]: waits for the end of the process before this one.

use std::{sync::Arc, time::Instant};

use parking_lot::{Condvar, Mutex};

/// Whether the process from which this one took over may still hand over batches. Clones share it.
#[derive(Clone, Debug, Default)]
pub(in crate::server) struct PendingSpools(Arc<PendingState>);

#[derive(Debug, Default)]
struct PendingState {
    have_ended: Mutex<bool>,
    ended: Condvar,
}

/// A guard that ends the wait when dropped, including by a panic.
#[derive(Debug)]
pub(super) struct PendingEnd(PendingSpools);

impl PendingSpools {
    /// Waits until all batches have been passed to the flush thread. Returns false if some may
    /// still arrive at `deadline`.
    pub(in crate::server) fn wait(&self, deadline: Instant) -> bool {
        let mut have_ended = self.0.have_ended.lock();
        self.0.ended.wait_while_until(&mut have_ended, |have_ended| !*have_ended, deadline);
        *have_ended
    }

    pub(super) fn end_guard(&self) -> PendingEnd {
        PendingEnd(self.clone())
    }
}

impl Drop for PendingEnd {
    fn drop(&mut self) {
        *self.0.0.have_ended.lock() = true;
        self.0.0.ended.notify_all();
    }
}
