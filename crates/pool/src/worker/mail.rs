//! What workers and the threads beside them tell each other.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicBool, Ordering},
    mpsc::Sender,
};

use howdah_net::{Stream, Waker};
use howdah_wire::startup::CancelKey;

use super::{
    control::WorkerReport,
    directory::Route,
    entrance::{Arrival, Entrance, Progress},
};
use crate::{ClientId, PoolId, Transfer, WorkerId};

/// Something for a worker to do, from another thread.
#[derive(Debug)]
pub(super) enum Mail {
    /// An idle server changes hands.
    HandOver(Box<Transfer>, Stream, Route),
    /// Worker `by` starves for a server of this pool.
    Wanted { pool: PoolId, by: WorkerId },
    /// A CancelRequest whose key is one of this worker's came in elsewhere.
    Cancel(CancelKey),
    /// A login's heavy step is done; it sits at this seat, if that is still its own.
    Helped { entrance: Box<Entrance>, progress: Progress, seat: usize, generation: u32 },
    /// Somebody of our own who needs no login: a client to look up a secret.
    Guest(Box<Arrival>, Stream),
    /// Tell about yourself.
    Report { with_peers: bool, to: Sender<WorkerReport> },
    /// An operator has turned a [`crate::Gate`].
    GatesTurned,
    /// Settings have changed; say when they are followed.
    Settings(Sender<()>),
    /// End all clients and servers of these pools.
    Kill(Arc<[PoolId]>),
    /// End this client, and say whether it was there.
    KillClient { client: ClientId, to: Sender<bool> },
    /// Take no new clients, and end when the last has left.
    Leave,
    /// Take no new clients, let go of those that are idle, end when there are none.
    Drain,
    /// End now.
    Stop,
}

/// A worker's letter box.
#[derive(Debug)]
pub(super) struct Mailbox {
    letters: Mutex<Vec<Mail>>,
    /// Whether there may be any: asked in every turn of the loop, where a lock would cost.
    any: AtomicBool,
    waker: Waker,
}

impl Mailbox {
    pub(super) fn new(waker: Waker) -> Arc<Self> {
        Arc::new(Self { letters: Mutex::default(), any: AtomicBool::new(false), waker })
    }

    pub(super) fn send(&self, mail: Mail) {
        self.letters.lock().unwrap_or_else(PoisonError::into_inner).push(mail);
        // After the letter: who sees the flag finds it. Who takes it early without having seen the
        // flag finds an empty box later, which is fine.
        self.any.store(true, Ordering::Release);
        self.waker.wake();
    }

    pub(super) fn take(&self) -> Vec<Mail> {
        if !self.any.swap(false, Ordering::Acquire) {
            return Vec::new();
        }
        std::mem::take(&mut self.letters.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
