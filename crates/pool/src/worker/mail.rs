//! What workers and the threads beside them tell each other.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc::Sender,
    },
    time::Instant,
};

use howdah_net::{Stream, Waker};
use howdah_record::Tape;
use howdah_wire::startup::CancelKey;

use super::{
    control::WorkerReport,
    directory::Route,
    entrance::{Arrival, Entrance, Progress},
    hub::Flight,
    takeover::Leaver,
};
use crate::{ClientId, Migrant, Permits, PoolId, Tally, Transfer, WorkerId};

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
    /// Read from nobody, and say when all is sent that was to be; who has not taken it by then is closed.
    Suspend { until: Option<Instant>, done: Sender<()> },
    /// Record clients on this tape, and say when it runs.
    Record { tape: Box<Tape>, done: Sender<()> },
    /// End the tape.
    StopRecording,
    /// Go on as before.
    GoOn,
    /// Nobody is led to these pools any more: forget them, and tell what was counted of each that you
    /// know nothing of from now on.
    Forget { pools: Arc<[PoolId]>, to: Sender<Vec<(PoolId, Tally)>> },
    /// The channels that a client asked for are listened to, or cannot be.
    Heard { client: ClientId, result: Result<(), String> },
    /// Notifications, and whom each is for.
    Notified(Flight),
    /// These clients may have missed notifications.
    Missed(Vec<ClientId>),
    /// More is known of the servers of some cluster.
    ClustersTurned,
    /// Settings have changed; say when they are followed.
    Settings(Sender<()>),
    /// Let clients go to another process, each as soon as it can; accept nobody.
    Move(Sender<Leaver>),
    /// The other process is gone: serve as before.
    Stay,
    /// A client that comes from another process, or back from one.
    Settle(Box<Settler>),
    /// Those that could not go have had their time.
    Evict,
    /// A CancelRequest came to another process, or for a client that came from one: its key says nothing
    /// about workers of ours.
    CancelForeign(CancelKey),
    /// A CancelRequest that another process has been sent.
    CancelAnywhere(CancelKey),
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

/// A client that comes with its socket and its state.
#[derive(Debug)]
pub(super) struct Settler {
    pub(super) pool: PoolId,
    pub(super) migrant: Migrant,
    pub(super) stream: Stream,
    /// Its share of the limits on clients.
    pub(super) permits: Permits,
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
