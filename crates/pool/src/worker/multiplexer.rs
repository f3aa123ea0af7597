//! [`ListenMultiplexer`]: one dedicated connection per database that listens on behalf of all its
//! clients.
//!
//! The connection has its own thread for as long as any client listens. Workers queue requests and
//! wake the thread; it replies with messages. Notifications are sent to each worker once, with the
//! list of clients that receive them.
//!
//! The connection logs in as one of the users whose clients listen. In a cluster it connects to the
//! primary, since a standby does not accept LISTEN. When it is lost, or the primary moves, it is
//! opened again, with growing delays after failed attempts, and listens to all channels again. Then
//! every listening client is warned that it may have missed notifications. From that point on, the
//! client receives all notifications, so it is up to date once it has reread its data from the
//! database.

mod channel_table;
mod event_loop;
mod handover;
mod notify_connection;

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc::Sender,
    },
    thread,
};

use howdah_net::{Poller, Waker};
use howdah_pool_core::{Channel, ClientId, PoolId};
use parking_lot::{Mutex, MutexGuard};

pub(super) use self::handover::Positions;
use self::{channel_table::ListeningClient, event_loop::MultiplexerThread};
use super::{
    messages::{Mailbox, WorkerMessage},
    shared_state::SharedState,
    takeover::Outgoing,
};

/// All multiplexers, by the database names that clients use.
#[derive(Debug, Default)]
pub(super) struct ListenMultiplexers {
    by_database: Mutex<HashMap<String, Arc<ListenMultiplexer>>>,
    in_flight: Arc<AtomicUsize>,
    /// The channel to the successor process, during a takeover.
    outgoing: Mutex<Option<Sender<Outgoing>>>,
}

/// The multiplexer of a database.
#[derive(Debug)]
struct ListenMultiplexer {
    database: String,
    inbox: Mutex<MultiplexerInbox>,
    in_flight: Arc<AtomicUsize>,
}

#[derive(Debug, Default)]
struct MultiplexerInbox {
    requests: Vec<ListenRequest>,
    /// Wakes the thread; `None` if the thread is not running.
    waker: Option<Waker>,
    report: MultiplexerReport,
}

/// A request to a multiplexer.
#[derive(Debug)]
pub(super) enum ListenRequest {
    /// Listens to channels. For a client from another process, `resume_from` has the positions of
    /// the last notifications that it received there.
    Listen {
        client: ListeningClient,
        pool: PoolId,
        channels: Vec<Channel>,
        resume_from: Option<Positions>,
    },
    /// Stops listening to these channels; to all if `None`.
    Unlisten { client: ListeningClient, channels: Option<Vec<Channel>> },
    /// Another process takes over and must listen to the same channels.
    StartHandover(Sender<Outgoing>),
    /// The successor listens to the channels of this round.
    ConfirmRound(u32),
    /// The takeover by a successor has failed.
    CancelHandover,
    /// Listens to these channels before another process hands over the clients of these pools.
    PinChannels { pools: Vec<PoolId>, round: u32, marker: Channel, channels: Vec<Channel> },
    /// The takeover has ended: no more clients come from the other process.
    FinishTakeover,
}

/// The state of a multiplexer, for SHOW LISTENERS.
#[derive(Clone, Debug, Default)]
pub struct MultiplexerReport {
    /// The database's name for clients.
    pub database: String,
    /// The login user of the current connection, or of the last one.
    pub user: String,
    /// The server of the current connection, or of the last one; for a list of hosts, the first
    /// host.
    pub server: String,
    /// The process ID of the backend; `None` without a connection.
    pub process_id: Option<i32>,
    /// Number of channels listened to, whether or not the server has confirmed them yet.
    pub channels: usize,
    /// Number of listening clients.
    pub clients: usize,
    /// Number of notifications received on all connections so far.
    pub received: u64,
    /// Number of connections that were lost, or closed in order to open them again.
    pub lost: u64,
    /// The reason why the connection is not open, if known.
    pub error: Option<String>,
}

/// A NotificationResponse from the server.
#[derive(Debug)]
pub(super) struct ServerNotification {
    pub(super) channel: Channel,
    pub(super) message: Box<[u8]>,
    /// The notification's number within its channel during a takeover; otherwise 0.
    pub(super) position: u64,
}

/// Notifications on their way to a worker, each with the clients that receive it.
#[derive(Debug)]
pub(super) struct NotificationBatch {
    /// The database's name for clients.
    pub(super) database: Arc<str>,
    pub(super) notifications: Vec<(Arc<ServerNotification>, Arc<[ClientId]>)>,
    in_flight: Arc<AtomicUsize>,
}

impl NotificationBatch {
    fn new(multiplexer: &ListenMultiplexer, database: &Arc<str>) -> Self {
        let in_flight = Arc::clone(&multiplexer.in_flight);
        Self { database: Arc::clone(database), notifications: Vec::new(), in_flight }
    }

    fn push(&mut self, notification: Arc<ServerNotification>, clients: Arc<[ClientId]>) {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        self.notifications.push((notification, clients));
    }
}

impl Drop for NotificationBatch {
    fn drop(&mut self) {
        self.in_flight.fetch_sub(self.notifications.len(), Ordering::Relaxed);
    }
}

impl ListenMultiplexers {
    /// Sends a request to the multiplexer of a database. If there is none, creates one for a
    /// request that needs a connection, and drops any other request.
    pub(super) fn send_request(
        &self,
        database: &str,
        request: ListenRequest,
        shared: &Arc<SharedState>,
        mailboxes: &Arc<[Arc<Mailbox>]>,
    ) {
        let mut multiplexers = self.by_database.lock();
        if let Some(multiplexer) = multiplexers.get(database) {
            return multiplexer.handle_request(request, shared, mailboxes);
        }
        if !request.needs_connection() {
            return; // No multiplexer knows this client.
        }
        let in_flight = Arc::clone(&self.in_flight);
        let multiplexer =
            ListenMultiplexer { database: database.to_owned(), inbox: Mutex::default(), in_flight };
        let multiplexer =
            Arc::clone(multiplexers.entry(database.to_owned()).or_insert(Arc::new(multiplexer)));
        drop(multiplexers);
        multiplexer.handle_request(request, shared, mailboxes);
    }

    /// Starts a takeover: the successor must listen to all channels before clients move there.
    pub(super) fn start_handover(&self, outgoing: &Sender<Outgoing>) {
        *self.outgoing.lock() = Some(outgoing.clone());
        self.send_to_running(|| ListenRequest::StartHandover(outgoing.clone()));
    }

    /// Reports that the successor listens to the channels of a round.
    pub(super) fn confirm_round(&self, database: &str, round: u32) {
        let multiplexers = self.by_database.lock();
        if let Some(multiplexer) = multiplexers.get(database) {
            multiplexer.send_to_running(ListenRequest::ConfirmRound(round));
        }
    }

    /// Ends a takeover that has failed.
    pub(super) fn cancel_handover(&self) {
        *self.outgoing.lock() = None;
        self.send_to_running(|| ListenRequest::CancelHandover);
    }

    /// Reports that no more clients come from the predecessor process.
    pub(super) fn finish_takeover(&self) {
        self.send_to_running(|| ListenRequest::FinishTakeover);
    }

    fn send_to_running(&self, request: impl Fn() -> ListenRequest) {
        let multiplexers = self.by_database.lock();
        multiplexers.values().for_each(|multiplexer| multiplexer.send_to_running(request()));
    }

    /// Wakes all multiplexers, so that they check whether their connections are still current.
    pub(super) fn wake_all(&self) {
        let multiplexers = self.by_database.lock();
        multiplexers
            .values()
            .filter_map(|multiplexer| multiplexer.inbox().waker.clone())
            .for_each(|waker| waker.wake());
    }

    /// Returns the state of every multiplexer, sorted by database.
    pub(super) fn reports(&self) -> Vec<MultiplexerReport> {
        let multiplexers = self.by_database.lock();
        let mut reports: Vec<_> = multiplexers
            .values()
            .map(|multiplexer| MultiplexerReport {
                database: multiplexer.database.clone(),
                ..multiplexer.inbox().report.clone()
            })
            .collect();
        reports.sort_by(|a, b| a.database.cmp(&b.database));
        reports
    }
}

impl ListenRequest {
    /// Whether the request needs a connection, and so starts a thread if none is running.
    fn needs_connection(&self) -> bool {
        matches!(self, Self::Listen { .. } | Self::PinChannels { .. })
    }
}

impl ListenMultiplexer {
    /// Queues a request if the thread is running.
    fn send_to_running(&self, request: ListenRequest) {
        let mut inbox = self.inbox();
        if let Some(waker) = &inbox.waker {
            waker.wake();
            inbox.requests.push(request);
        }
    }

    fn inbox(&self) -> MutexGuard<'_, MultiplexerInbox> {
        self.inbox.lock()
    }

    fn handle_request(
        self: &Arc<Self>,
        request: ListenRequest,
        shared: &Arc<SharedState>,
        mailboxes: &Arc<[Arc<Mailbox>]>,
    ) {
        let mut inbox = self.inbox();
        if let Some(waker) = &inbox.waker {
            waker.wake();
            return inbox.requests.push(request);
        }
        if !request.needs_connection() {
            return; // No client listens.
        }
        let outgoing = shared.multiplexers.outgoing.lock().clone();
        inbox.requests.extend(outgoing.map(ListenRequest::StartHandover));
        let started = Poller::new().and_then(|poller| {
            inbox.waker = Some(poller.waker()?);
            let (multiplexer, shared, mailboxes) =
                (Arc::clone(self), Arc::clone(shared), Arc::clone(mailboxes));
            let run =
                move || MultiplexerThread::new(&multiplexer, &shared, &mailboxes, poller).run();
            thread::Builder::new().name("listen".to_owned()).spawn(run)
        });
        match started {
            Ok(_) => inbox.requests.push(request),
            Err(error) => {
                inbox.waker = None;
                if let ListenRequest::Listen { client, resume_from: None, .. } = request {
                    let why = Err(error.to_string());
                    mailboxes[usize::from(client.0.0)]
                        .send(WorkerMessage::ListenResult { client: client.1, result: why });
                }
            }
        }
    }
}
