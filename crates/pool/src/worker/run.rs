//! [`PoolWorker`]: the event loop of one worker.
//!
//! # Cost
//!
//! A warm transaction of one message each way costs a `read` and a `write` per side, and its share
//! of an `epoll_wait` that returns all ready sockets. Poll registrations do not change while
//! clients wait, and no `read` is spent on finding a socket empty.

mod cancels;
mod logins;
mod messages;

use std::{
    collections::HashMap,
    sync::{Arc, mpsc::Sender},
    time::{Duration, Instant},
};

use howdah_net::{Listener, Poller, Received, SocketReadiness, Timers, Token};
use howdah_pool_core::{
    Backlog, Channel, ClientId, Core, CoreEvent, PeerId, PoolId, ServerId, Time, WorkerId,
};
use howdah_wire::startup::CancelKey;

use super::{
    cluster_monitor,
    directory::PoolEntry,
    helpers::Helpers,
    messages::{CloseOnDrop, Mailbox, WorkerMessage},
    multiplexer::{ListenRequest, Positions},
    pending_login::{PendingCancel, PendingLogin, PendingServer},
    shared_state::SharedState,
    socket_table::SocketEntry,
    sockets::{DeferredAction, WorkerSockets},
    suspension::Suspended,
    takeover::Outgoing,
};

/// Size in bytes of the read buffer that all connections of the worker share.
const RECEIVE_BYTES: usize = 64 << 10;

/// Maximum number of reads of one connection before other connections are served.
const READS_MAX: usize = 8;

/// Maximum time that a closed connection may take to accept its last output.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

/// A worker: one event loop with its core and sockets.
#[derive(Debug)]
pub(super) struct PoolWorker {
    number: WorkerId,
    pub(super) core: Core,
    pub(super) sockets: WorkerSockets,
    pub(super) shared: Arc<SharedState>,
    helpers: Helpers,
    mailbox: Arc<Mailbox>,
    listeners: Vec<Listener>,
    timers: Timers<(usize, u32)>,
    accept_retry_at: Option<Instant>,
    /// Maximum number of connections to accept from a ready listener before other sockets are
    /// served.
    accept_batch: usize,
    /// The last iteration in which `accept_batch` connections were accepted.
    accepted_iteration: u64,
    iteration: u64,
    buffer: Box<[u8]>,
    pub(super) started_at: Instant,
    pub(super) now: Time,
    pub(super) phase: WorkerPhase,
    /// The state of a suspension, during which the worker reads nothing from peers that are logged
    /// in.
    pub(super) suspended: Option<Suspended>,
    /// The state of a handover, in which another process takes over the clients.
    handover: Option<HandoverState>,
    /// Clients that listened in another process, until the LISTEN multiplexer has resumed them. The
    /// positions are those of the last notifications received there; empty once the request was
    /// sent.
    resuming: HashMap<ClientId, Positions>,
}

/// An ongoing handover of clients to another process.
#[derive(Debug)]
struct HandoverState {
    to: Sender<Outgoing>,
    /// Time until which listening clients wait for the other process to listen to their channels.
    listens_until: Instant,
    /// The position of the last notification that this worker has delivered, by database and
    /// channel.
    positions: HashMap<Arc<str>, HashMap<Channel, u64>>,
}

/// Maximum time that a listening client waits, in a takeover, for the new process to listen to its
/// channels. The client is then handed over anyway and warned that it may have missed
/// notifications.
const LISTEN_HANDOVER_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WorkerPhase {
    Running,
    /// Accepts no new clients, and hands connected ones over to another process. Stops on request.
    HandingOver,
    /// Accepts no new clients; stops after the last one has disconnected.
    WaitingForClients,
    /// Accepts no new clients and disconnects each client as soon as it is outside a transaction;
    /// stops after the last one.
    Draining,
    Stopped,
}

/// The arguments of [`PoolWorker::new`].
#[derive(Debug)]
pub(super) struct WorkerParts {
    pub(super) number: WorkerId,
    pub(super) poller: Poller,
    pub(super) mailboxes: Arc<[Arc<Mailbox>]>,
    pub(super) shared: Arc<SharedState>,
    pub(super) helpers: Helpers,
    pub(super) listeners: Vec<Listener>,
}

impl PoolWorker {
    pub(super) fn new(parts: WorkerParts) -> std::io::Result<Self> {
        let WorkerParts { number, poller, mailboxes, shared, helpers, listeners } = parts;
        let mailbox = Arc::clone(&mailboxes[usize::from(number.0)]);
        let (log, started_at) = (shared.directory.config().log.clone(), shared.started_at);
        let mut worker = Self {
            number,
            core: Core::with_statements(number, Arc::clone(&shared.statements)),
            sockets: WorkerSockets::new(poller, number, mailboxes, log),
            shared,
            helpers,
            mailbox,
            listeners,
            timers: Timers::new(),
            accept_retry_at: None,
            accept_batch: 1,
            accepted_iteration: 0,
            iteration: 0,
            buffer: vec![0; RECEIVE_BYTES].into(),
            started_at,
            now: Time::default(),
            phase: WorkerPhase::Running,
            suspended: None,
            handover: None,
            resuming: HashMap::new(),
        };
        let workers = worker.sockets.mailboxes.len();
        worker.core.set_worker_count(u32::try_from(workers).unwrap_or(1));
        worker.limit_message_size();
        worker.register_listeners()?;
        Ok(worker)
    }

    /// Runs the worker until it is stopped or, when it is shutting down, has no more clients.
    ///
    /// # Errors
    ///
    /// Waiting for events failed.
    pub(super) fn run(mut self) -> std::io::Result<()> {
        let _mailbox = CloseOnDrop(Arc::clone(&self.mailbox));
        let mut ready = Vec::new();
        self.ensure_forced_pools();
        while self.phase != WorkerPhase::Stopped {
            let deadline = self.deadline();
            self.sockets.poller.wait(deadline, &mut ready)?;
            self.iteration += 1;
            if self.suspended.is_none() {
                self.now = time_since(self.started_at);
            }
            for ready in ready.drain(..) {
                self.handle_readiness(ready);
            }
            self.handle_messages();
            self.handle_timeouts();
            self.run_deferred();
            self.hand_over_clients();
            self.flush_suspended();
            if self.phase == WorkerPhase::Draining {
                self.core.handle(CoreEvent::Drain, self.now, &mut self.sockets);
            }
            if matches!(self.phase, WorkerPhase::Draining | WorkerPhase::WaitingForClients)
                && self.core.clients() == 0
                && !self.sockets.table.has_unflushed()
                // Without its cancel request, the statement of a lost client would run on.
                && self.sockets.deferred.is_empty()
                && !self.sockets.table.has_cancels()
            {
                self.phase = WorkerPhase::Stopped;
            }
        }
        self.core.capture().stop();
        Ok(())
    }

    /// Returns the time of the next timeout; a time in the past if actions are deferred.
    fn deadline(&self) -> Option<Instant> {
        if !self.sockets.deferred.is_empty() {
            return Some(self.started_at);
        }
        let core = match self.core.deadline() {
            Time::NEVER => None,
            Time(nanos) => Some(self.started_at + Duration::from_nanos(nanos)),
        };
        let flushed = self.suspended.as_ref().and_then(Suspended::deadline);
        let listens = self.handover.as_ref().map(|handover| handover.listens_until);
        let listens = listens.filter(|until| *until > Instant::now());
        [core, self.timers.next_deadline(), self.accept_retry_at, flushed, listens]
            .into_iter()
            .flatten()
            .min()
    }

    fn register_listeners(&mut self) -> std::io::Result<()> {
        for (number, listener) in self.listeners.iter().enumerate() {
            let slot = self.sockets.table.insert(SocketEntry::Listener(number));
            self.sockets.poller.add_listener(listener, self.sockets.table.token(slot))?;
        }
        Ok(())
    }

    fn handle_readiness(&mut self, ready: SocketReadiness) {
        let Some(slot) = self.sockets.table.find(ready.token) else { return };
        match self.sockets.table.get_mut(slot) {
            Some(SocketEntry::Connected(connection)) => {
                connection.unread |= ready.readable;
                connection.hung_up |= ready.hung_up;
                if ready.writable && connection.backlog() == Backlog::Waiting {
                    self.flush(slot);
                }
                if ready.readable {
                    self.read(slot, ready.token);
                }
            }
            Some(SocketEntry::Listener(number)) => {
                let number = *number;
                self.accept(number);
            }
            Some(SocketEntry::Login(pending)) => {
                pending.hung_up |= ready.hung_up;
                pending.drained = false;
                self.advance(slot);
            }
            Some(SocketEntry::AtHelper { ready: resume_from, hung_up }) => {
                *resume_from = true;
                *hung_up |= ready.hung_up;
            }
            None => {}
        }
    }

    /// Reads from a peer and passes the bytes to the core.
    fn read(&mut self, slot: usize, token: Token) {
        // Connections with unread bytes are read after the suspension.
        if self.suspended.is_some() {
            return;
        }
        for _ in 0..READS_MAX {
            // The core may have closed the connection and reused its slot in the previous round.
            if self.sockets.table.find(token) != Some(slot) {
                return;
            }
            let Some(connection) = self.sockets.table.connection(slot) else { return };
            if connection.paused || !connection.unread {
                return;
            }
            let received = match connection.stream.receive(&mut self.buffer) {
                Ok(Received::Drained(some)) => {
                    // A peer that hung up is read to the end: no further event will be reported.
                    connection.unread = connection.hung_up && some > 0;
                    some
                }
                Ok(Received::Bytes(some)) => some,
                Ok(Received::Closed) | Err(_) => return self.connection_lost(slot),
            };
            let peer = connection.peer;
            if self.core.capture().is_running() {
                // Events that happened before on other workers must have an earlier time.
                self.now = time_since(self.started_at);
            }
            let bytes = &self.buffer[..received];
            match peer {
                // The core has closed the peer: further input is ignored.
                None => {}
                Some(_) if bytes.is_empty() => {}
                Some(PeerId::Client(id)) => {
                    self.core.client_bytes(id, bytes, self.now, &mut self.sockets);
                }
                Some(PeerId::Server(id)) => {
                    self.core.server_bytes(id, bytes, self.now, &mut self.sockets);
                }
            }
        }
        self.sockets.deferred.push_back(DeferredAction::Read(token));
    }

    /// Sends as much of a peer's backlog as the socket accepts.
    fn flush(&mut self, slot: usize) {
        let Some(connection) = self.sockets.table.connection(slot) else { return };
        match connection.flush() {
            Ok(Backlog::Waiting) => {}
            Ok(Backlog::Empty) => {
                let peer = connection.peer;
                self.sockets.unwatch_writable(slot);
                match peer {
                    Some(peer) => {
                        self.core.handle(CoreEvent::Drained(peer), self.now, &mut self.sockets);
                    }
                    None => self.close(slot),
                }
            }
            Err(_) => self.connection_lost(slot),
        }
    }

    /// Removes a connection that has ended, and notifies the core.
    pub(super) fn connection_lost(&mut self, slot: usize) {
        let peer = self.sockets.table.connection(slot).and_then(|connection| connection.peer);
        self.sockets.table.remove(slot);
        let Some(peer) = peer else { return };
        self.sockets.unregister(peer);
        match peer {
            PeerId::Client(id) => {
                self.core.handle(CoreEvent::ClientClosed(id), self.now, &mut self.sockets);
            }
            PeerId::Server(id) => {
                self.core.handle(CoreEvent::ServerClosed(id), self.now, &mut self.sockets);
            }
        }
    }

    fn close(&mut self, slot: usize) {
        if let Some(SocketEntry::Connected(connection)) = self.sockets.table.remove(slot) {
            connection.stream.close();
        }
    }

    /// Sets the deadline of a pending login to `limit` from now; without a limit, does nothing.
    fn set_login_timeout(&mut self, slot: usize, limit: Option<Duration>) {
        let Some(limit) = limit else { return };
        let due = Instant::now() + limit;
        if let Some(SocketEntry::Login(pending)) = self.sockets.table.get_mut(slot) {
            pending.deadline = Some(due);
        }
        self.schedule_timeout(slot, Some(due));
    }

    fn schedule_timeout(&mut self, slot: usize, due: Option<Instant>) {
        if let Some(due) = due {
            self.timers.insert(due, (slot, self.sockets.table.generation(slot)));
        }
    }

    /// Records that a pending login waits, and registers its stream with the poller unless that is
    /// already done.
    fn watch_login(&mut self, slot: usize) {
        let token = self.sockets.table.token(slot);
        let Some(SocketEntry::Login(pending)) = self.sockets.table.get_mut(slot) else { return };
        pending.set_waiting();
        let interest = pending.interest();
        let Some(stream) = pending.stream.as_ref().filter(|_| pending.watched.is_none()) else {
            return;
        };
        match self.sockets.poller.add_with_interest(stream, token, interest) {
            Ok(()) => pending.watched = Some(interest),
            Err(error) => {
                tracing::warn!(%error, "cannot watch a connection");
                let progress = pending.timed_out(&self.shared);
                self.handle_progress(slot, progress);
            }
        }
    }

    /// Adds a pool to the core, unless it is already there. If the pool has a minimum size, makes
    /// every worker open its share of the minimum.
    fn ensure_pool(&mut self, pool: PoolId) {
        if !self.core.has_pool(pool)
            && let Some(entry) = self.shared.directory.by_id(pool)
        {
            self.apply_pool(&entry);
            if entry.spec.servers_min > 0 {
                // Each worker opens its share of the minimum, even without clients of the pool.
                for (number, mailbox) in self.sockets.mailboxes.iter().enumerate() {
                    if number != usize::from(self.number.0) {
                        mailbox.send(WorkerMessage::OpenMinimum(pool));
                    }
                }
                self.core.handle(CoreEvent::FillMinPool(pool), self.now, &mut self.sockets);
            }
        }
    }

    /// Adds the pools that open servers before their first client connects.
    pub(super) fn ensure_forced_pools(&mut self) {
        for pool in self.shared.directory.forced_pools_with_minimum() {
            self.ensure_pool(pool);
        }
    }

    /// Applies a pool's settings to the core. Adds the pools of its cluster members and mirrors
    /// first, and starts health checks.
    fn apply_pool(&mut self, entry: &PoolEntry) {
        entry.parts().for_each(|pool| self.ensure_pool(pool));
        for monitor in &entry.monitors {
            cluster_monitor::start(monitor, &self.shared, &self.sockets.mailboxes);
        }
        self.core.set_pool(entry.id, Arc::clone(&entry.spec));
    }

    fn run_deferred(&mut self) {
        // Actions that these actions add run in the next iteration, after other events.
        for _ in 0..self.sockets.deferred.len() {
            match self.sockets.deferred.pop_front() {
                None => return,
                Some(DeferredAction::Read(token)) => {
                    if let Some(slot) = self.sockets.table.find(token) {
                        self.read(slot, token);
                    }
                }
                Some(DeferredAction::SendFailed(token)) => {
                    if let Some(slot) = self.sockets.table.find(token) {
                        self.connection_lost(slot);
                    }
                }
                Some(DeferredAction::FlushAndClose(token)) => {
                    if let Some(slot) = self.sockets.table.find(token) {
                        let key = (slot, self.sockets.table.generation(slot));
                        self.timers.insert(Instant::now() + FLUSH_TIMEOUT, key);
                    }
                }
                Some(DeferredAction::OpenServer(id, pool)) => self.open_server(id, pool),
                Some(DeferredAction::CheckCluster(pool)) => {
                    let entry = self.shared.directory.by_id(pool);
                    for monitor in entry.iter().flat_map(|entry| &entry.monitors) {
                        monitor.check_now();
                    }
                }
                Some(DeferredAction::CheckPrimary(pool)) => {
                    let entry = self.shared.directory.by_id(pool);
                    for monitor in entry.iter().flat_map(|entry| &entry.monitors) {
                        monitor.check_primary();
                    }
                }
                Some(DeferredAction::Listen { client: id, home, channels, again }) => {
                    let client = (self.number, id);
                    let resume_from = again.then(|| {
                        self.resuming.get_mut(&id).map(std::mem::take).unwrap_or_default()
                    });
                    self.send_listen_request(
                        home,
                        ListenRequest::Listen { client, pool: home, channels, resume_from },
                    );
                }
                Some(DeferredAction::Unlisten { client: id, home, channels }) => {
                    let client = (self.number, id);
                    self.send_listen_request(home, ListenRequest::Unlisten { client, channels });
                }
                Some(DeferredAction::SendCancel(id, pool, key)) => self.open_cancel(id, pool, key),
            }
        }
    }

    fn send_listen_request(&mut self, home: PoolId, request: ListenRequest) {
        let Some(entry) = self.shared.directory.by_id(home) else { return };
        let database = &entry.key.database;
        self.shared.multiplexers.send_request(
            database,
            request,
            &self.shared,
            &self.sockets.mailboxes,
        );
    }

    fn open_server(&mut self, id: ServerId, pool: PoolId) {
        let Some(entry) = self.shared.directory.by_id(pool) else { return };
        let limit = entry.settings.timeouts.server_connect;
        let pending = Box::new(PendingLogin::server(PendingServer::for_clients(id, entry)));
        let slot = self.sockets.table.insert(SocketEntry::Login(pending));
        self.sockets.set_socket_ref(PeerId::Server(id), slot, None, None);
        self.set_login_timeout(slot, limit);
        self.advance(slot);
    }

    fn open_cancel(&mut self, id: ServerId, pool: PoolId, key: CancelKey) {
        let route = self.sockets.route(id);
        let (Some(entry), Some(route)) = (self.shared.directory.by_id(pool), route) else {
            return self.core.handle(CoreEvent::CancelFinished(id), self.now, &mut self.sockets);
        };
        let limit = entry.settings.timeouts.cancel_wait;
        let pending = PendingLogin::cancel(PendingCancel::new(id, entry, route, key));
        let slot = self.sockets.table.insert(SocketEntry::Login(Box::new(pending)));
        self.set_login_timeout(slot, limit);
        self.advance(slot);
    }

    fn handle_timeouts(&mut self) {
        if self.core.deadline() <= self.now {
            self.core.tick(self.now, &mut self.sockets);
        }
        let Some(due) =
            [self.timers.next_deadline(), self.accept_retry_at].into_iter().flatten().min()
        else {
            return;
        };
        let now = Instant::now();
        if due > now {
            return;
        }
        if self.accept_retry_at.take_if(|due| *due <= now).is_some() {
            let _ = self.register_listeners();
        }
        while let Some((_, (slot, generation))) = self.timers.pop_expired(now) {
            if self.sockets.table.generation(slot) == generation {
                self.handle_login_timeout(slot);
            }
        }
    }

    /// Handles the timeout of a login, a CancelRequest or a final flush.
    fn handle_login_timeout(&mut self, slot: usize) {
        match self.sockets.table.get_mut(slot) {
            Some(SocketEntry::Login(pending)) => {
                if pending.extend_deadline() {
                    let due = pending.deadline;
                    return self.schedule_timeout(slot, due);
                }
                let progress = pending.timed_out(&self.shared);
                self.handle_progress(slot, progress);
            }
            Some(SocketEntry::Connected(connection)) if connection.peer.is_none() => {
                self.close(slot);
            }
            // A login at a helper is checked against its deadline when it returns.
            Some(
                SocketEntry::AtHelper { .. } | SocketEntry::Connected(_) | SocketEntry::Listener(_),
            )
            | None => {}
        }
    }
}

/// Returns the time since the start of the process.
fn time_since(start: Instant) -> Time {
    Time(u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX))
}
