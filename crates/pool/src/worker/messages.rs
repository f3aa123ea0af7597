//! Messages to workers from other threads, and the mailboxes that hold them.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::Sender,
    },
    time::Instant,
};

use howdah_capture::live::CaptureBuffer;
use howdah_net::{Stream, Waker};
use howdah_pool_core::{
    Channel, ClientHandover, ClientId, Permits, PoolId, PoolStats, Transfer, WorkerId,
};
use howdah_wire::startup::CancelKey;
use parking_lot::Mutex;

use super::{
    control::WorkerReport,
    directory::ServerRoute,
    multiplexer::{NotificationBatch, Positions},
    pending_login::{LoggedIn, LoginProgress, PendingLogin},
    startups::StartupRef,
    takeover::Outgoing,
};

/// A message to a worker from another thread.
#[derive(Debug)]
pub(super) enum WorkerMessage {
    /// Hands over an idle server connection to this worker.
    HandOver(Box<Transfer>, Stream, ServerRoute),
    /// Worker `by` has clients starving for a server of this pool.
    RequestServer { pool: PoolId, by: WorkerId },
    /// Worker `by` asks for up to `servers_max` idle servers of this pool.
    RequestIdleServers { pool: PoolId, by: WorkerId, servers_max: u32 },
    /// Another worker has handed over the idle servers of this pool that it can spare.
    IdleServersConfirmed(PoolId),
    /// Opens this worker's share of the minimum size of a pool that another worker has added.
    OpenMinimum(PoolId),
    /// A user's secret for logins to servers has changed, so those of this pool may succeed now.
    SecretChanged(PoolId),
    /// A CancelRequest whose client may be in this worker, received by another worker.
    Cancel(Box<RoutedCancel>),
    /// Closes a connection that has not logged in, to make room for another.
    CloseStartup(StartupRef),
    /// A helper has finished a login step. The result is discarded if the slot has another
    /// generation by now.
    LoginStepDone {
        pending: Box<PendingLogin>,
        progress: LoginProgress,
        slot: usize,
        generation: u32,
    },
    /// Adds an internal client, which runs an auth query and needs no login.
    LocalClient(Box<LoggedIn>, Stream),
    /// Requests a report, with all clients and servers if `with_peers`.
    Report { with_peers: bool, to: Sender<WorkerReport> },
    /// An administrator has changed a [`howdah_pool_core::AdminState`].
    AdminStateChanged,
    /// Stops reading and drops `done` once all pending output is sent. Connections whose output is
    /// still pending at `until` are closed.
    Suspend { until: Option<Instant>, done: Sender<()> },
    /// Starts recording clients into this buffer. The worker then sends `()`.
    StartRecording { buffer: Box<CaptureBuffer>, done: Sender<()> },
    /// Ends the recording started by [`WorkerMessage::StartRecording`].
    StopRecording,
    /// Ends a suspension.
    Resume,
    /// Removes these pools, which get no more clients, and sends the statistics of each removed
    /// pool.
    RemovePools { pools: Arc<[PoolId]>, to: Sender<Vec<(PoolId, PoolStats)>> },
    /// The result of a client's LISTEN.
    ListenResult { client: ClientId, result: Result<(), String> },
    /// Notifications with the clients that receive them.
    Notifications(NotificationBatch),
    /// The LISTEN multiplexer has added this client, which came from another process. Any
    /// notifications retained for the client were sent before this message.
    ListenResumed(ClientId),
    /// These clients may have missed notifications.
    NotificationsMissed(Vec<ClientId>),
    /// Another process now also listens to these channels of a database. Notification positions
    /// count from this message.
    PositionsStarted(Arc<str>, Arc<[Channel]>),
    /// The notification positions of a database are no longer valid.
    PositionsInvalid(Arc<str>),
    /// The state of a server in some cluster may have changed.
    ClusterStateChanged,
    /// Settings have changed. The worker sends `()` once it has applied them.
    SettingsChanged(Sender<()>),
    /// Stops accepting clients, and hands each connected client over to another process as soon as
    /// possible.
    StartHandover(Sender<Outgoing>),
    /// The handover has failed: the worker serves its clients as before.
    CancelHandover,
    /// Adds a client received from another process, or one that another process did not take over.
    AdoptClient(Box<IncomingClient>),
    /// Disconnects the clients and closes the servers of all pools, because the time for handing
    /// clients over has passed.
    CloseAllPools,
    /// A CancelRequest forwarded by the process that takes over, for a client of any worker.
    CancelAnywhere(CancelKey),
    /// Disconnects the clients and closes the servers of these pools.
    KillPools(Arc<[PoolId]>),
    /// Closes this client and reports whether it existed.
    KillClient { client: ClientId, to: Sender<bool> },
    /// Accepts no new clients and stops after the last one has disconnected.
    WaitForClients,
    /// Accepts no new clients, disconnects each client as soon as it is outside a transaction, and
    /// stops after the last one.
    Drain,
    /// Stops immediately.
    Stop,
}

/// A CancelRequest on its way to the worker that has the client.
#[derive(Debug)]
pub(super) struct RoutedCancel {
    pub(super) key: CancelKey,
    pub(super) source: CancelSource,
    /// The workers that do not have the client or are being asked: one bit for each. Usually the
    /// key names the worker, but a key from another process, issued before a takeover, does not.
    pub(super) tried: u128,
}

/// The origin of a CancelRequest.
#[derive(Clone, Copy, Debug)]
pub(super) enum CancelSource {
    /// A client, at this address. The request is forwarded to peers if its key is unknown.
    Client(Option<SocketAddr>),
    /// A peer, or the process that takes over. The request is not forwarded to peers.
    Process,
}

impl RoutedCancel {
    pub(super) fn new(key: CancelKey, source: CancelSource) -> Self {
        Self { key, source, tried: 0 }
    }
}

/// A client that was handed over, with its socket and its state.
#[derive(Debug)]
pub(super) struct IncomingClient {
    pub(super) pool: PoolId,
    pub(super) handover: ClientHandover,
    pub(super) stream: Stream,
    /// Permits from the limits on clients.
    pub(super) permits: Permits,
    /// The positions of the last notifications that the other process sent to the client.
    pub(super) positions: Positions,
}

/// The message queue of a worker.
#[derive(Debug)]
pub(super) struct Mailbox {
    /// The queued messages; `None` once the worker has ended.
    messages: Mutex<Option<Vec<WorkerMessage>>>,
    /// Whether messages may be queued. Checked in every iteration of the event loop, without a
    /// lock.
    has_messages: AtomicBool,
    waker: Waker,
}

impl Mailbox {
    pub(super) fn new(waker: Waker) -> Arc<Self> {
        let messages = Mutex::new(Some(Vec::new()));
        Arc::new(Self { messages, has_messages: AtomicBool::new(false), waker })
    }

    /// Queues a message. If the worker has ended, the message is dropped; its reply channel then
    /// disconnects at once.
    pub(super) fn send(&self, message: WorkerMessage) {
        let mut messages = self.messages.lock();
        let Some(open) = &mut *messages else { return };
        open.push(message);
        drop(messages);
        // The flag is set after the message, so a worker that sees the flag finds the message. If
        // the worker takes the message before the flag is set, it later finds an empty queue.
        self.has_messages.store(true, Ordering::Release);
        self.waker.wake();
    }

    pub(super) fn take_all(&self) -> Vec<WorkerMessage> {
        // Usually there is none, and a read is cheaper than a locked exchange.
        if !self.has_messages.load(Ordering::Relaxed)
            || !self.has_messages.swap(false, Ordering::Acquire)
        {
            return Vec::new();
        }
        let mut messages = self.messages.lock();
        messages.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Drops all queued messages, and all messages sent later, because the worker has ended.
    pub(super) fn close(&self) {
        let unread = self.messages.lock().take();
        // Dropped after the lock is released, because destructors may send messages.
        drop(unread);
    }

    pub(super) fn is_closed(&self) -> bool {
        self.messages.lock().is_none()
    }
}

/// Closes a mailbox when its worker ends, including by a panic.
pub(super) struct CloseOnDrop(pub(super) Arc<Mailbox>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.close();
    }
}
