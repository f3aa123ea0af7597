//! [`Core`]: one worker's clients, servers and pools.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use howdah_capture::live::CaptureBuffer;
use howdah_wire::{Header, startup::CancelKey};

use crate::{
    CoreIo, Transfer,
    login::{ClientLogin, ServerFailure, ServerLogin},
    messages::gather_buffer::GatherBuffer,
    mirror::target::{MirrorQueue, MirrorQueueId, MirrorTarget},
    prepared::statements::StatementRegistry,
    routing::Routers,
    session::parameters::ParameterSets,
    spec::PoolSpec,
    state::{
        client::{ClientConnection, ClientState},
        ids::{ClientId, PeerId, PoolId, ServerId, WorkerId},
        pool::PoolState,
        server::ServerConnection,
        slab::Slab,
    },
    time::Time,
};

use crate::mirror::have_equal_mirrors;

/// One worker's data path, without I/O.
///
/// The worker reports socket events through the methods below, in any order. With each event it
/// passes the current time and its [`CoreIo`], through which the core issues commands. The core
/// does no I/O of its own, reads no clock, and draws random numbers only from fixed seeds, so a
/// simulation of it can be repeated.
///
/// # The worker's duties
///
/// - A client: [`Core::add_client`] once it is authenticated, then [`Core::finish_client_login`];
///   or just [`Core::adopt_client`]. Then [`Core::client_bytes`] for the bytes that it sends, until
///   the worker calls [`Core::client_closed`] or [`Core::hand_over_client`], or the core calls
///   [`CoreIo::close`].
/// - A server: starts with [`CoreIo::open_server`], then either [`Core::server_ready`] or
///   [`Core::server_failed`]; or with [`Core::adopt_server`]. Then [`Core::server_bytes`], until
///   the worker calls [`Core::server_closed`], or the core calls [`CoreIo::close`] or
///   [`CoreIo::hand_over`].
/// - [`Core::drained`] for every peer for which a send returned [`crate::Backlog::Waiting`], once
///   its buffer is empty.
/// - [`Core::tick`] at or soon after [`Core::deadline`], which may change with every call.
/// - Ids of closed connections are ignored, so a late report is harmless.
///
/// ```text
/// readable client ──► client_bytes ──► CoreIo::send(server, [slices of the input and our own])
/// readable server ──► server_bytes ──► CoreIo::send(client, …)
/// ```
#[derive(Debug)]
pub struct Core {
    pub(crate) worker: WorkerId,
    pub(crate) now: Time,
    pub(crate) clients: Slab<ClientId, ClientConnection>,
    pub(crate) servers: Slab<ServerId, ServerConnection>,
    pub(crate) pools: Vec<Option<PoolState>>,
    pub(crate) routers: Routers,
    pub(crate) to_server: GatherBuffer,
    pub(crate) to_client: GatherBuffer,
    pub(crate) parameter_sets: ParameterSets,
    pub(crate) statements: Arc<StatementRegistry>,
    /// Maximum length of a message body, in either direction, in bytes.
    pub(crate) body_bytes_max: u32,
    pub(crate) next_sweep: Time,
    /// Clients taken over from another process, by the cancel key that they got from it.
    pub(crate) takeover_keys: HashMap<CancelKey, ClientId>,
    /// Number of workers, among which [`PoolSpec::servers_min`] is divided.
    pub(crate) workers: u32,
    /// Whether a pool has, or once had, a share of [`PoolSpec::servers_min`] here: timers must then
    /// run even without clients and servers.
    pub(crate) has_min_pools: bool,
    /// Whether idle servers are closed as soon as no client waits for one, as during a takeover.
    pub(crate) closes_idle_servers: bool,
    /// Whether the worker is suspended and assigns no servers to clients; see [`Core::suspend`].
    pub(crate) is_suspended: bool,
    /// The buffer of the running capture, if any.
    pub(crate) capture: Option<Box<CaptureBuffer>>,
    /// Work to do at the end of the current call into the core.
    pub(crate) deferred: Vec<DeferredWork>,
    /// Transactions to run on mirrors, one queue for each client and mirror.
    pub(crate) mirror_queues: Slab<MirrorQueueId, MirrorQueue>,
    /// Number of clients that are sampled for at least one mirror.
    pub(crate) mirrored_clients: usize,
    /// Number of internal clients that replay transactions on mirrors.
    pub(crate) mirror_clients: usize,
    /// Pools whose mirrors changed, with their mirrors before the change.
    pub(crate) previous_mirrors: Vec<(PoolId, Arc<[MirrorTarget]>)>,
    /// Whether client bytes must be captured or mirrored; checked on every read.
    pub(crate) observes_clients: bool,
    /// Fan-out requests that wait for their [`crate::state::limits::AcquireGuard`], with
    /// their owner pools, in order of arrival.
    pub(crate) awaiting_fan_out: VecDeque<(PoolId, ClientId)>,
    /// Pools with waiting clients that cannot open a server because a limit is reached.
    pub(crate) starved_pools: Vec<PoolId>,
    /// Number of requests that were rerouted from servers that fail health checks, since the last
    /// [`Core::take_reads_rerouted`].
    pub(crate) reads_rerouted: u32,
}

/// Work that is deferred to the end of the current call into the core; see `Core::run_deferred`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum DeferredWork {
    /// Advance a client's fan-out request, and queue its completed transaction for its mirrors.
    Client(ClientId),
    /// Advance a client's queue of transactions for a mirror.
    MirrorQueue(MirrorQueueId),
}

impl Core {
    /// Creates a worker without pools that shares no prepared statements with other workers.
    pub fn new(worker: WorkerId) -> Self {
        Self::with_statements(worker, Arc::default())
    }

    /// Creates a worker without pools. Workers that hand servers over to one another must share
    /// `statements`; otherwise the same statement name could stand for two texts.
    pub fn with_statements(worker: WorkerId, statements: Arc<StatementRegistry>) -> Self {
        Self {
            worker,
            now: Time::default(),
            clients: Slab::new(),
            servers: Slab::new(),
            pools: Vec::new(),
            routers: Routers::default(),
            to_server: GatherBuffer::default(),
            to_client: GatherBuffer::default(),
            parameter_sets: ParameterSets::default(),
            statements,
            body_bytes_max: u32::MAX,
            next_sweep: Time::default(),
            takeover_keys: HashMap::new(),
            workers: 1,
            has_min_pools: false,
            closes_idle_servers: false,
            is_suspended: false,
            capture: None,
            deferred: Vec::new(),
            mirror_queues: Slab::new(),
            mirrored_clients: 0,
            mirror_clients: 0,
            previous_mirrors: Vec::new(),
            observes_clients: false,
            awaiting_fan_out: VecDeque::new(),
            starved_pools: Vec::new(),
            reads_rerouted: 0,
        }
    }

    /// Sets the maximum length of a message in bytes, including its five header bytes. A peer that
    /// sends a longer one is disconnected.
    pub fn limit_message_size(&mut self, message_bytes: u32) {
        let header = u32::try_from(Header::BYTES).expect("a header has five bytes");
        self.body_bytes_max = message_bytes.saturating_sub(header);
    }

    /// Sets the number of workers, among which [`PoolSpec::servers_min`] is divided.
    pub fn set_worker_count(&mut self, workers: u32) {
        self.workers = workers;
    }

    /// Opens servers of a pool, as far as limits allow, up to this worker's share of
    /// [`PoolSpec::servers_min`], even if the pool has no client.
    pub fn fill_min_pool(&mut self, pool: PoolId, now: Time, io: &mut dyn CoreIo) {
        self.now = now;
        if self.has_pool(pool) {
            self.open_for_waiting(pool, io);
        }
    }

    /// Adds a pool with the settings `spec`, or gives an existing pool these settings. New limits
    /// apply to connections opened from now on; [`Core::pools_changed`] applies them to existing
    /// ones.
    pub fn set_pool(&mut self, id: PoolId, spec: Arc<PoolSpec>) {
        if self.pools.len() <= id.index() {
            self.pools.resize_with(id.index() + 1, || None);
        }
        self.routers.update_pool(id, &spec);
        self.has_min_pools |= self.min_servers_here(&spec) > 0;
        match &mut self.pools[id.index()] {
            Some(pool) if !have_equal_mirrors(&pool.spec.mirrors, &spec.mirrors) => {
                self.previous_mirrors.push((id, Arc::clone(&pool.spec.mirrors)));
                pool.update_spec(spec);
            }
            Some(pool) => pool.update_spec(spec),
            none => *none = Some(PoolState::new(spec, self.worker)),
        }
    }

    /// Whether this worker has the pool.
    pub fn has_pool(&self, id: PoolId) -> bool {
        self.pools.get(id.index()).is_some_and(Option::is_some)
    }

    /// Adds an authenticated client. Nothing is sent to it before [`Core::finish_client_login`], so
    /// that the worker can register its socket under the id first.
    ///
    /// Returns `None` if the worker does not have the pool.
    pub fn add_client(&mut self, mut login: ClientLogin) -> Option<ClientId> {
        if !self.has_pool(login.pool) {
            return None;
        }
        let parameters = self.parameter_sets.intern(std::mem::take(&mut login.parameters));
        let mut client = ClientConnection::new(&login, parameters);
        if self.pool(login.pool).spec.has_parameters_at_login {
            // The server knows these values from its login, so its own RESET restores them.
            client.startup_parameters = self.parameter_sets.intern([]);
        }
        self.attach_to_cluster(&mut client, login.role);
        self.sample_mirrors(&mut client);
        Some(self.clients.insert(client))
    }

    /// Sends a new client `auth_messages`, such as AuthenticationOk, then ParameterStatus,
    /// BackendKeyData and ReadyForQuery. If no server of the pool has logged in yet, or its server
    /// is down, the client gets only `auth_messages` now, and waits for a server login before it
    /// gets the rest. It is refused at once if the server is down and no login attempt is in
    /// progress or due.
    pub fn finish_client_login(
        &mut self,
        id: ClientId,
        auth_messages: &[u8],
        now: Time,
        io: &mut dyn CoreIo,
    ) {
        self.now = now;
        if let Some(client) = self.clients.get_mut(id) {
            client.connected_at = now;
            let pool = client.pool;
            self.pool(pool).stats.logins += 1;
            self.to_client.push_with(|buf| buf.extend_from_slice(auth_messages));
        }
        self.finish_login(id, io);
        self.run_deferred(io);
    }

    /// Processes bytes that a client sent. The worker must pass all bytes, in pieces of any size.
    pub fn client_bytes(&mut self, id: ClientId, bytes: &[u8], now: Time, io: &mut dyn CoreIo) {
        self.now = now;
        self.process_client_bytes(id, bytes, io);
        self.run_deferred(io);
    }

    /// Handles the end of a client's connection: end of file, an error, or a failed send. Its slot
    /// may then be reused.
    pub fn client_closed(&mut self, id: ClientId, now: Time, io: &mut dyn CoreIo) {
        self.now = now;
        self.handle_client_disconnect(id, io);
        self.run_deferred(io);
    }

    /// Handles the successful login to a server requested by [`CoreIo::open_server`].
    pub fn server_ready(
        &mut self,
        id: ServerId,
        login: ServerLogin,
        now: Time,
        io: &mut dyn CoreIo,
    ) {
        self.now = now;
        self.handle_server_login(id, login, io);
        self.run_deferred(io);
    }

    /// Handles the failure to open a server requested by [`CoreIo::open_server`]; the worker has
    /// closed its socket, if there was one. The server's slot may then be reused.
    pub fn server_failed(
        &mut self,
        id: ServerId,
        failure: ServerFailure,
        now: Time,
        io: &mut dyn CoreIo,
    ) {
        self.now = now;
        self.handle_login_failure(id, failure, io);
        self.run_deferred(io);
    }

    /// Processes bytes that a server sent. The worker must pass all bytes, in pieces of any size.
    pub fn server_bytes(&mut self, id: ServerId, bytes: &[u8], now: Time, io: &mut dyn CoreIo) {
        self.now = now;
        self.process_server_bytes(id, bytes, io);
        self.run_deferred(io);
    }

    /// Handles the end of a server's connection: end of file, an error, or a failed send. Its slot
    /// may then be reused.
    pub fn server_closed(&mut self, id: ServerId, now: Time, io: &mut dyn CoreIo) {
        self.now = now;
        self.suspect_member(id, io);
        self.handle_server_disconnect(id, io);
        self.run_deferred(io);
    }

    /// Handles a peer's send buffer that has become empty after [`crate::Backlog::Waiting`]: the
    /// peer's counterpart may be read from again.
    pub fn drained(&mut self, peer: PeerId, now: Time, io: &mut dyn CoreIo) {
        self.now = now;
        self.handle_drained(peer, io);
        self.run_deferred(io);
    }

    /// Handles a CancelRequest whose key names this worker; see [`crate::worker_of_key`]. Returns
    /// `false`, without any effect, if no client has the key. A CancelRequest is never answered:
    /// the worker just closes the connection that it arrived on.
    pub fn cancel(&mut self, key: &CancelKey, now: Time, io: &mut dyn CoreIo) -> bool {
        self.now = now;
        let is_known = self.cancel_by_key(key, io);
        self.run_deferred(io);
        is_known
    }

    /// Handles the end, successful or not, of the attempt started by [`CoreIo::send_cancel`].
    pub fn cancel_finished(&mut self, server: ServerId, now: Time, io: &mut dyn CoreIo) {
        self.now = now;
        self.finish_cancel(server, io);
        self.run_deferred(io);
    }

    /// Handles another worker's request for a server; see [`CoreIo::request_server`]. Hands over an
    /// idle server or, if there is none, closes another pool's idle server so that the other worker
    /// can open one. If neither is possible, the request is queued while the other worker repeats
    /// it: the next server that becomes idle is handed over, unless a client here has waited
    /// longer.
    pub fn server_requested(&mut self, pool: PoolId, by: WorkerId, now: Time, io: &mut dyn CoreIo) {
        self.now = now;
        self.handle_server_request(pool, by, io);
    }

    /// Adopts a server that another worker handed over. The worker registers its socket under the
    /// returned id, then calls [`Core::serve_waiting`]. Returns `None` if this worker does not have
    /// the pool; the caller must then close the socket.
    pub fn adopt_server(&mut self, transfer: Box<Transfer>, now: Time) -> Option<ServerId> {
        self.now = now;
        self.insert_transferred(transfer)
    }

    /// Assigns idle servers of a pool to waiting clients, and finishes pending logins. Also closes
    /// idle servers that must not be used: an admin command may have been issued while a server was
    /// moving between workers.
    pub fn serve_waiting(&mut self, pool: PoolId, now: Time, io: &mut dyn CoreIo) {
        self.now = now;
        self.close_unusable_idle(pool, io);
        self.serve_waiting_clients(pool, io);
        self.run_deferred(io);
    }

    /// Returns when [`Core::tick`] is due; [`Time::NEVER`] if no timer is running.
    pub fn deadline(&self) -> Time {
        self.next_deadline()
    }

    /// Handles timers: enforces timeouts, retries server logins whose delay has passed, and closes
    /// idle servers.
    pub fn tick(&mut self, now: Time, io: &mut dyn CoreIo) {
        self.now = now;
        self.sweep(io);
        self.run_deferred(io);
    }

    /// Returns the number of connected clients, plus the internal clients of their sub-requests.
    /// The internal clients that replay transactions on mirrors do not count.
    pub fn clients(&self) -> usize {
        self.clients.len() - self.mirror_clients
    }

    /// Returns the number of servers, including those being opened.
    pub fn servers(&self) -> usize {
        self.servers.len()
    }

    /// Whether a client waits for a server; `false` if the client has disconnected.
    pub fn is_waiting(&self, id: ClientId) -> bool {
        self.clients.get(id).is_some_and(|client| client.state == ClientState::Waiting)
    }

    /// Returns the number of requests that were rerouted, since the last call, from servers that
    /// fail health checks.
    pub fn take_reads_rerouted(&mut self) -> u32 {
        std::mem::take(&mut self.reads_rerouted)
    }

    pub(crate) fn pool(&mut self, id: PoolId) -> &mut PoolState {
        self.pools[id.index()]
            .as_mut()
            .expect("pools that have clients or servers are never removed")
    }
}

#[cfg(test)]
impl Core {
    /// Returns the client that a server is linked to, if any.
    pub(crate) fn linked_client(&self, id: ServerId) -> Option<ClientId> {
        match self.servers.get(id)?.state {
            crate::state::server::ServerState::Linked(client) => Some(client),
            _ => None,
        }
    }

    /// Whether a client has routing state of its own, because its requests had to be inspected.
    pub(crate) fn has_routing(&self, id: ClientId) -> bool {
        self.clients.get(id).is_some_and(|client| client.routing.is_some())
    }

    /// Returns a client's cancel key, if the client exists.
    pub(crate) fn cancel_key_of(&self, id: ClientId) -> Option<CancelKey> {
        Some(self.clients.get(id)?.cancel_key(self.worker, id))
    }
}
