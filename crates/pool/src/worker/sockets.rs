//! [`WorkerSockets`]: the worker's implementation of [`CoreIo`].

use std::{collections::VecDeque, io::IoSlice, os::fd::AsFd, sync::Arc, time::Instant};

use howdah_net::{Interest, Poller, Stream, Token};
use howdah_pool_config::LogConfig;
use howdah_pool_core::{
    Backlog, Channel, ClientId, ClientRefusal, CoreIo, PeerId, Permits, PoolId, ServerId, Transfer,
    WorkerId,
};
use howdah_wire::startup::CancelKey;

use super::{
    directory::{PoolEntry, ServerRoute},
    messages::{Mailbox, WorkerMessage},
    peer_connection::PeerConnection,
    refusals,
    socket_table::{LoginSocket, SocketEntry, SocketTable},
};
use crate::SocketAddresses;

/// An action requested by the core or by a socket error, run after the current core call returns.
#[derive(Debug)]
pub(super) enum DeferredAction {
    OpenServer(ServerId, PoolId),
    SendCancel(ServerId, PoolId, CancelKey),
    /// Checks all servers of this pool's cluster.
    CheckCluster(PoolId),
    /// Queries the WAL position of the primary in this pool's cluster.
    CheckPrimary(PoolId),
    /// Listens to channels for a client. `again` is whether the client already listened to them in
    /// another process.
    Listen {
        client: ClientId,
        home: PoolId,
        channels: Vec<Channel>,
        again: bool,
    },
    /// Stops listening to channels for a client; to all if `None`.
    Unlisten {
        client: ClientId,
        home: PoolId,
        channels: Option<Vec<Channel>>,
    },
    /// Reads again, if the socket still exists.
    Read(Token),
    /// Handles a failed send or a failed registration with the poller.
    SendFailed(Token),
    /// Sends the backlog, then closes the connection; at the latest after the flush timeout.
    FlushAndClose(Token),
}

/// The sockets of a worker, and the slots of clients and servers.
#[derive(Debug)]
pub(super) struct WorkerSockets {
    pub(super) poller: Poller,
    pub(super) table: SocketTable,
    pub(super) deferred: VecDeque<DeferredAction>,
    clients: Vec<Option<SocketRef>>,
    servers: Vec<Option<SocketRef>>,
    worker: WorkerId,
    /// The settings that determine which client events are logged.
    pub(super) log: LogConfig,
    /// The mailboxes of all workers, by worker ID.
    pub(super) mailboxes: Arc<[Arc<Mailbox>]>,
}

/// The socket of a peer, with the data of its connection.
#[derive(Debug)]
struct SocketRef {
    slot: usize,
    /// The route of a server connection; `None` for a client.
    route: Option<ServerRoute>,
    /// A client's permits, which are returned on drop.
    permits: Option<Permits>,
    /// A client's log fields; `None` if client events are not logged.
    log_fields: Option<Box<ClientLogFields>>,
}

impl WorkerSockets {
    pub(super) fn new(
        poller: Poller,
        worker: WorkerId,
        mailboxes: Arc<[Arc<Mailbox>]>,
        log: LogConfig,
    ) -> Self {
        Self {
            poller,
            table: SocketTable::default(),
            deferred: VecDeque::new(),
            clients: Vec::new(),
            servers: Vec::new(),
            worker,
            log,
            mailboxes,
        }
    }

    fn log_fields(&mut self, client: ClientId) -> Option<&mut ClientLogFields> {
        self.socket_ref(PeerId::Client(client)).as_mut()?.log_fields.as_deref_mut()
    }

    fn socket_ref(&mut self, peer: PeerId) -> &mut Option<SocketRef> {
        let (sockets, index) = match peer {
            PeerId::Client(id) => (&mut self.clients, id.index()),
            PeerId::Server(id) => (&mut self.servers, id.index()),
        };
        if sockets.len() <= index {
            sockets.resize_with(index + 1, || None);
        }
        &mut sockets[index]
    }

    /// Sets the socket slot of a peer, with its route or permits.
    pub(super) fn set_socket_ref(
        &mut self,
        peer: PeerId,
        slot: usize,
        route: Option<ServerRoute>,
        permits: Option<Permits>,
    ) {
        *self.socket_ref(peer) = Some(SocketRef { slot, route, permits, log_fields: None });
    }

    /// Logs a client's login if configured, and stores the client's fields for later log messages.
    pub(super) fn log_connected(
        &mut self,
        peer: PeerId,
        entry: &Arc<PoolEntry>,
        user: Option<Arc<str>>,
    ) {
        let LogConfig { connections, disconnections, pooler_errors, .. } = self.log;
        if !connections && !disconnections && !pooler_errors {
            return;
        }
        let Some((_, connection)) = self.connection(peer) else { return };
        let from = refusals::client_address(&connection.stream);
        let tls = connection.stream.protection();
        let entry = Arc::clone(entry);
        let (connected_at, logs_disconnect, close_reason) = (Instant::now(), disconnections, None);
        let log_fields =
            ClientLogFields { entry, user, from, connected_at, logs_disconnect, close_reason };
        if connections {
            let (database, user) = log_fields.names();
            let tls = tls.map(super::tls::describe_tls).unwrap_or_default();
            tracing::info!(database, user, from = log_fields.from, tls, "client logged in");
        }
        if let Some(socket) = self.socket_ref(peer) {
            socket.log_fields = Some(Box::new(log_fields));
        }
    }

    /// Removes a peer and logs a client's disconnect. The socket stays in its slot.
    pub(super) fn unregister(&mut self, peer: PeerId) -> Option<(usize, Option<ServerRoute>)> {
        let socket = self.socket_ref(peer).take()?;
        if let Some(log_fields) = socket.log_fields {
            log_fields.log_disconnected();
        }
        Some((socket.slot, socket.route))
    }

    pub(super) fn route(&mut self, server: ServerId) -> Option<ServerRoute> {
        self.socket_ref(PeerId::Server(server)).as_ref()?.route.clone()
    }

    /// Returns the addresses of a peer's connection, and its encryption.
    pub(super) fn addresses(&mut self, peer: PeerId) -> Option<SocketAddresses> {
        let (_, connection) = self.connection(peer)?;
        let stream = &connection.stream;
        Some(SocketAddresses {
            peer: stream.peer_address(),
            local: stream.local_address(),
            tls: stream.protection().map(super::tls::describe_tls),
        })
    }

    /// Removes a client's connection in order to hand the client over. The client's permits move
    /// with the connection, so that the pool is not removed before the client has disconnected.
    pub(super) fn take_client(&mut self, id: ClientId) -> Option<(Stream, Permits)> {
        let peer = PeerId::Client(id);
        let (slot, _) = self.connection(peer)?;
        self.poller.remove(&self.table.connection(slot)?.stream).ok()?;
        if let Some(log_fields) =
            self.socket_ref(peer).as_mut().and_then(|socket| socket.log_fields.as_mut())
        {
            log_fields.close_reason = Some("handed over to another process".to_owned());
        }
        let permits = self.socket_ref(peer).as_mut().and_then(|socket| socket.permits.take());
        self.unregister(peer);
        match self.table.remove(slot)? {
            SocketEntry::Connected(connection) => {
                Some((connection.stream, permits.unwrap_or_else(Permits::none)))
            }
            _ => None,
        }
    }

    /// Whether a client's connection can be handed over: it is unencrypted, has no backlog, and no
    /// send has failed.
    pub(super) fn can_hand_over(&mut self, id: ClientId) -> bool {
        self.connection(PeerId::Client(id)).is_some_and(|(_, connection)| {
            !connection.stream.is_encrypted()
                && !connection.broken
                && connection.backlog() == Backlog::Empty
        })
    }

    fn connection(&mut self, peer: PeerId) -> Option<(usize, &mut PeerConnection)> {
        let slot = self.socket_ref(peer).as_ref()?.slot;
        self.table.connection(slot).map(|connection| (slot, connection))
    }

    /// Puts a peer's connection into a slot and registers it with the poller.
    pub(super) fn register(
        &mut self,
        slot: usize,
        stream: Stream,
        peer: PeerId,
        before: LoginSocket,
    ) {
        let LoginSocket { hung_up, watched, drained } = before;
        let token = self.table.token(slot);
        let (interest, registered) = match watched {
            None => (Interest::Read, self.poller.add_with_interest(&stream, token, Interest::Read)),
            // A unix socket is watched for writability only while it has a backlog.
            Some(Interest::Both) if stream.is_unix() => {
                (Interest::Read, self.poller.set_interest(&stream, token, Interest::Read))
            }
            Some(interest) => (interest, Ok(())),
        };
        let mut connection = PeerConnection::new(stream, peer, interest, hung_up);
        connection.unread = hung_up || !drained;
        connection.broken = registered.is_err();
        match registered {
            Ok(()) if connection.unread => self.deferred.push_back(DeferredAction::Read(token)),
            Ok(()) => {}
            Err(_) => self.deferred.push_back(DeferredAction::SendFailed(token)),
        }
        if let Some(socket) = self.table.get_mut(slot) {
            *socket = SocketEntry::Connected(connection);
        }
    }

    /// Watches a connection for writability.
    fn watch_writable(&mut self, slot: usize) {
        let token = self.table.token(slot);
        let Some(connection) = self.table.connection(slot) else { return };
        if connection.interest == Interest::Read {
            connection.interest = Interest::Both;
            if self.poller.set_interest(connection.stream.as_fd(), token, Interest::Both).is_err() {
                connection.broken = true;
                self.deferred.push_back(DeferredAction::SendFailed(token));
            }
        }
    }

    /// Stops watching a unix socket for writability, because every read by the peer would cause an
    /// event.
    pub(super) fn unwatch_writable(&mut self, slot: usize) {
        let token = self.table.token(slot);
        let Some(connection) = self.table.connection(slot) else { return };
        if connection.interest == Interest::Both && connection.stream.is_unix() {
            connection.interest = Interest::Read;
            // A failure only costs some wake-ups.
            let _ = self.poller.set_interest(connection.stream.as_fd(), token, Interest::Read);
        }
    }
}

/// The facts about a client that log messages contain.
#[derive(Debug)]
struct ClientLogFields {
    entry: Arc<PoolEntry>,
    /// The user that the client logged in as, if different from the pool's.
    user: Option<Arc<str>>,
    from: String,
    connected_at: Instant,
    /// Whether to log the client's disconnect.
    logs_disconnect: bool,
    /// The reason why the pooler closed the connection; `None` if the client disconnected.
    close_reason: Option<String>,
}

impl ClientLogFields {
    fn names(&self) -> (&str, &str) {
        let key = &self.entry.key;
        (&key.database, self.user.as_deref().unwrap_or(&key.user))
    }

    fn log_disconnected(&self) {
        if self.logs_disconnect {
            let (database, user) = self.names();
            let close_reason = self.close_reason.as_deref().unwrap_or("the client disconnected");
            let age_s = self.connected_at.elapsed().as_secs();
            tracing::info!(
                database,
                user,
                from = self.from,
                why = close_reason,
                age_s,
                "client disconnected"
            );
        }
    }
}

impl CoreIo for WorkerSockets {
    fn client_refused(&mut self, client: ClientId, refusal: &ClientRefusal) {
        self.request_failed(client, refusal);
        if let Some(log_fields) = self.log_fields(client) {
            log_fields.close_reason = Some(refusal.to_string());
        }
    }

    fn request_failed(&mut self, client: ClientId, error: &dyn std::fmt::Display) {
        let logs_disconnect = self.log.pooler_errors;
        if let Some(log_fields) = self.log_fields(client).filter(|_| logs_disconnect) {
            let (database, user) = log_fields.names();
            let from = &log_fields.from;
            tracing::warn!(database, user, from, %error, "error sent to client");
        }
    }

    fn send(&mut self, to: PeerId, slices: &[IoSlice<'_>]) -> Backlog {
        let Some((slot, connection)) = self.connection(to) else { return Backlog::Empty };
        if connection.broken {
            return Backlog::Empty;
        }
        match connection.send(slices) {
            Ok(Backlog::Empty) => Backlog::Empty,
            Ok(Backlog::Waiting) => {
                self.watch_writable(slot);
                Backlog::Waiting
            }
            Err(_) => {
                connection.broken = true;
                let token = self.table.token(slot);
                self.deferred.push_back(DeferredAction::SendFailed(token));
                Backlog::Empty
            }
        }
    }

    fn pause(&mut self, peer: PeerId) {
        if let Some((_, connection)) = self.connection(peer) {
            connection.paused = true;
        }
    }

    fn resume(&mut self, peer: PeerId) {
        let Some((slot, connection)) = self.connection(peer) else { return };
        connection.paused = false;
        if connection.unread {
            let token = self.table.token(slot);
            self.deferred.push_back(DeferredAction::Read(token));
        }
    }

    fn close(&mut self, peer: PeerId) {
        let Some((slot, _)) = self.unregister(peer) else { return };
        if let Some(connection) = self.table.connection(slot)
            && !connection.broken
            && connection.backlog() == Backlog::Waiting
        {
            connection.peer = None;
            let token = self.table.token(slot);
            return self.deferred.push_back(DeferredAction::FlushAndClose(token));
        }
        if let Some(SocketEntry::Connected(connection)) = self.table.remove(slot) {
            connection.stream.close();
        }
    }

    fn listen(&mut self, client: ClientId, home: PoolId, channels: Vec<Channel>, again: bool) {
        self.deferred.push_back(DeferredAction::Listen { client, home, channels, again });
    }

    fn unlisten(&mut self, client: ClientId, home: PoolId, channels: Option<Vec<Channel>>) {
        self.deferred.push_back(DeferredAction::Unlisten { client, home, channels });
    }

    fn open_server(&mut self, server: ServerId, pool: PoolId) {
        self.deferred.push_back(DeferredAction::OpenServer(server, pool));
    }

    fn server_suspected(&mut self, pool: PoolId) {
        self.deferred.push_back(DeferredAction::CheckCluster(pool));
    }

    fn check_primary(&mut self, pool: PoolId) {
        self.deferred.push_back(DeferredAction::CheckPrimary(pool));
    }

    fn send_cancel(&mut self, server: ServerId, pool: PoolId, key: &CancelKey) {
        self.deferred.push_back(DeferredAction::SendCancel(server, pool, key.clone()));
    }

    fn request_server(&mut self, pool: PoolId) {
        let by = self.worker;
        for (number, mailbox) in self.mailboxes.iter().enumerate() {
            if number != usize::from(by.0) {
                mailbox.send(WorkerMessage::RequestServer { pool, by });
            }
        }
    }

    fn request_idle_servers(&mut self, pool: PoolId, servers_max: u32) {
        let by = self.worker;
        for (number, mailbox) in self.mailboxes.iter().enumerate() {
            if number != usize::from(by.0) {
                mailbox.send(WorkerMessage::RequestIdleServers { pool, by, servers_max });
            }
        }
    }

    fn confirm_idle_servers(&mut self, pool: PoolId, to: WorkerId) {
        if let Some(mailbox) = self.mailboxes.get(usize::from(to.0)) {
            mailbox.send(WorkerMessage::IdleServersConfirmed(pool));
        }
    }

    fn hand_over(&mut self, server: ServerId, to: WorkerId, transfer: Box<Transfer>) {
        let Some((slot, Some(route))) = self.unregister(PeerId::Server(server)) else { return };
        let Some(SocketEntry::Connected(connection)) = self.table.remove(slot) else { return };
        let Some(mailbox) = self.mailboxes.get(usize::from(to.0)) else { return };
        // Dropping the transfer returns its permits, so a server that cannot move is just closed.
        if self.poller.remove(&connection.stream).is_ok() {
            mailbox.send(WorkerMessage::HandOver(transfer, connection.stream, route));
        }
    }
}
