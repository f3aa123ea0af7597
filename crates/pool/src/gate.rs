//! [`Gate`]: what an operator has ordered about a database. Shared by its pools in all workers, which
//! look at it when a server would change hands; whoever turns it tells the workers to look.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// What an operator has ordered about a database.
///
/// Relaxed ordering is enough: each field guards nothing but itself, and the letter that tells a worker
/// to look comes by a lock.
#[derive(Debug, Default)]
pub struct Gate {
    paused: AtomicBool,
    disabled: AtomicBool,
    epoch: AtomicU32,
}

impl Gate {
    /// Whether no client gets a server: servers are closed as they become free.
    #[inline]
    pub fn is_paused(&self) -> bool {
        self.paused.load(Ordering::Relaxed)
    }

    /// Pauses, or resumes.
    pub fn set_paused(&self, paused: bool) {
        self.paused.store(paused, Ordering::Relaxed);
    }

    /// Whether no new client is let in.
    pub fn is_disabled(&self) -> bool {
        self.disabled.load(Ordering::Relaxed)
    }

    /// Lets no new client in, or lets them in again.
    pub fn set_disabled(&self, disabled: bool) {
        self.disabled.store(disabled, Ordering::Relaxed);
    }

    /// Servers of another epoch are closed as they become free.
    #[inline]
    pub(crate) fn epoch(&self) -> u32 {
        self.epoch.load(Ordering::Relaxed)
    }

    /// Begins another epoch: every server there is has to be replaced.
    pub fn begin_epoch(&self) {
        self.epoch.fetch_add(1, Ordering::Relaxed);
    }
}
