//! What workers and the threads beside them tell each other.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc::Sender,
    },
    time::Instant,
};

use howdah_net::{Stream, Waker};
use howdah_record::CaptureBuffer;
use howdah_wire::startup::CancelKey;

use super::{
    control::WorkerReport,
    directory::Route,
    entrance::{Arrival, PendingLogin, Progress},
    hub::{Flight, Positions},
    startups::StartupPlace,
    takeover::Outgoing,
};
use crate::{Channel, ClientHandover, ClientId, Permits, PoolId, Tally, Transfer, WorkerId};

/// Something for a worker to do, from another thread.
#[derive(Debug)]
pub(super) enum WorkerMessage {
    /// An idle server changes hands.
    HandOver(Box<Transfer>, Stream, Route),
    /// Worker `by` starves for a server of this pool.
    Wanted { pool: PoolId, by: WorkerId },
    /// A pool of which servers are kept open has its first client somewhere: know it.
    KeepMinimum(PoolId),
    /// A CancelRequest whose key is one of this worker's came in elsewhere, from that address.
    Cancel(CancelKey, Option<SocketAddr>),
    /// A login that has to make room for another, if it still is one.
    CloseStartup(StartupPlace),
    /// A login's heavy step is done; it sits at this seat, if that is still its own.
    Helped { entrance: Box<PendingLogin>, progress: Progress, seat: usize, generation: u32 },
    /// Somebody of our own who needs no login: a client to look up a secret.
    Guest(Box<Arrival>, Stream),
    /// Tell about yourself.
    Report { with_peers: bool, to: Sender<WorkerReport> },
    /// An operator has turned a [`crate::Gate`].
    GatesTurned,
    /// Read from nobody, and say when all is sent that was to be; who has not taken it by then is closed.
    Suspend { until: Option<Instant>, done: Sender<()> },
    /// Record clients on this tape, and say when it runs.
    Record { tape: Box<CaptureBuffer>, done: Sender<()> },
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
    /// The LISTEN multiplexer has resumed this client; what it missed was sent before.
    Resumed(ClientId),
    /// These clients may have missed notifications.
    Missed(Vec<ClientId>),
    /// Another process listens to these channels of a database, too: number their notifications from here.
    ChannelsMarked(Arc<str>, Arc<[Channel]>),
    /// The numbers of a database's channels say nothing any more.
    ChannelsUnmarked(Arc<str>),
    /// More is known of the servers of some cluster.
    ClustersTurned,
    /// Settings have changed; say when they are followed.
    Settings(Sender<()>),
    /// Let clients go to another process, each as soon as it can; accept nobody.
    Move(Sender<Outgoing>),
    /// The other process is gone: serve as before.
    Stay,
    /// A client that comes from another process, or back from one.
    Settle(Box<IncomingClient>),
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
pub(super) struct IncomingClient {
    pub(super) pool: PoolId,
    pub(super) migrant: ClientHandover,
    pub(super) stream: Stream,
    /// Its share of the limits on clients.
    pub(super) permits: Permits,
    /// The last notifications that it was given where it comes from.
    pub(super) positions: Positions,
}

/// A worker's letter box.
#[derive(Debug)]
pub(super) struct Mailbox {
    /// `None` once its worker has ended.
    letters: Mutex<Option<Vec<WorkerMessage>>>,
    /// Whether there may be any: asked in every turn of the loop, where a lock would cost.
    any: AtomicBool,
    waker: Waker,
}

impl Mailbox {
    pub(super) fn new(waker: Waker) -> Arc<Self> {
        let letters = Mutex::new(Some(Vec::new()));
        Arc::new(Self { letters, any: AtomicBool::new(false), waker })
    }

    /// Leaves something for the worker. For one that has ended it is dropped, so that whoever waits for an
    /// answer learns at once that none will come.
    pub(super) fn send(&self, mail: WorkerMessage) {
        let mut letters = self.letters.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(open) = &mut *letters else { return };
        open.push(mail);
        drop(letters);
        // After the letter: who sees the flag finds it. Who takes it early without having seen the
        // flag finds an empty box later, which is fine.
        self.any.store(true, Ordering::Release);
        self.waker.wake();
    }

    pub(super) fn take(&self) -> Vec<WorkerMessage> {
        if !self.any.swap(false, Ordering::Acquire) {
            return Vec::new();
        }
        let mut letters = self.letters.lock().unwrap_or_else(PoisonError::into_inner);
        letters.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// The worker has ended: nothing is left for it any more.
    pub(super) fn close(&self) {
        let left = self.letters.lock().unwrap_or_else(PoisonError::into_inner).take();
        // Dropped without the lock: what is in it may want to send something.
        drop(left);
    }

    pub(super) fn is_closed(&self) -> bool {
        self.letters.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }
}

/// Closes a mailbox with the end of its worker, whatever that end is.
pub(super) struct CloseOnDrop(pub(super) Arc<Mailbox>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.close();
    }
}
