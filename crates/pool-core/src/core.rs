//! [`Core`]: one worker's clients, servers and pools.

pub(crate) mod takeover;

use std::{collections::HashSet, sync::Arc};

use howdah_wire::{Header, startup::CancelKey};

use crate::{
    Channel, CoreEvent, CoreIo, Takeover, Transfer,
    call::{CoreCall, StepQueue},
    capture::RunningCapture,
    clients::{cancel, handover, login},
    engines::{Engines, admin},
    login::ClientLogin,
    prepared::statements::StatementRegistry,
    report::{self, CoreReport},
    servers::transfer,
    spec::PoolSpec,
    state::{
        client::ClientConnection,
        ids::{ClientId, PoolId, ServerId, WorkerId},
        pool_stats::PoolStats,
    },
    time::Time,
};

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
///   or just [`Takeover::adopt`]. Then [`Core::client_bytes`] for the bytes that it sends, until
///   the worker reports [`CoreEvent::ClientClosed`] or calls [`Takeover::hand_over`], or the core
///   calls [`CoreIo::close`].
/// - A server: starts with [`CoreIo::open_server`], then either [`CoreEvent::ServerReady`] or
///   [`CoreEvent::ServerFailed`]; or with [`Core::adopt_server`]. Then [`Core::server_bytes`],
///   until the worker reports [`CoreEvent::ServerClosed`], or the core calls [`CoreIo::close`] or
///   [`CoreIo::hand_over`].
/// - [`CoreEvent::Drained`] for every peer for which a send returned [`crate::Backlog::Waiting`],
///   once its buffer is empty.
/// - [`Core::tick`] at or soon after [`Core::deadline`], which may change with every call.
/// - Ids of closed connections are ignored, so a late report is harmless.
///
/// ```text
/// readable client ──► client_bytes ──► CoreIo::send(server, [slices of the input and our own])
/// readable server ──► server_bytes ──► CoreIo::send(client, …)
/// ```
#[derive(Debug)]
pub struct Core {
    pub(crate) engines: Engines,
    steps: StepQueue,
}

impl Core {
    /// Creates a worker without pools that shares no prepared statements with other workers.
    pub fn new(worker: WorkerId) -> Self {
        Self::with_statements(worker, Arc::default())
    }

    /// Creates a worker without pools. Workers that hand servers over to one another must share
    /// `statements`; otherwise the same statement name could stand for two texts.
    pub fn with_statements(worker: WorkerId, statements: Arc<StatementRegistry>) -> Self {
        Self { engines: Engines::new(worker, statements), steps: StepQueue::default() }
    }

    /// Handles one event with `handle`, then takes the steps that follow from it.
    #[inline]
    pub(crate) fn run<T>(
        &mut self,
        now: Time,
        io: &mut dyn CoreIo,
        handle: impl FnOnce(&mut Engines, &mut CoreCall<'_>) -> T,
    ) -> T {
        let Self { engines, steps } = self;
        let mut call = CoreCall { now, io, steps };
        let result = handle(engines, &mut call);
        if !call.steps.is_empty() {
            engines.take_steps(&mut call);
        }
        result
    }

    /// Sets the maximum length of a message in bytes, including its five header bytes. A peer that
    /// sends a longer one is disconnected.
    pub fn limit_message_size(&mut self, message_bytes: u32) {
        let header = u32::try_from(Header::BYTES).expect("a header has five bytes");
        self.engines.peers.body_bytes_max = message_bytes.saturating_sub(header);
    }

    /// Sets the number of workers, among which [`PoolSpec::servers_min`] is divided.
    pub fn set_worker_count(&mut self, workers: u32) {
        self.engines.pools.workers = workers;
    }

    /// Adds a pool with the settings `spec`, or gives an existing pool these settings. New limits
    /// apply to connections opened from now on; [`CoreEvent::PoolsChanged`] applies them to
    /// existing ones.
    pub fn set_pool(&mut self, id: PoolId, spec: Arc<PoolSpec>) {
        self.engines.routers.update_pool(id, &spec);
        if let Some(mirrors_before) = self.engines.pools.set(id, spec) {
            self.engines.mirrors.pool_changed(id, mirrors_before);
        }
    }

    /// Removes those of `pools` that have neither clients nor servers in this worker, and returns
    /// their statistics. A pool that this worker does not have also counts as removed. The caller
    /// ensures that no client or server is about to move to them.
    pub fn remove_unused_pools(&mut self, pools: &[PoolId]) -> Vec<(PoolId, PoolStats)> {
        let Engines { peers, pools: table, routers, .. } = &mut self.engines;
        let used = peers.clients.iter().flat_map(|(_, client)| [client.pool, client.owner_pool]);
        let occupied: HashSet<PoolId> = used.collect();
        let mut removed = Vec::new();
        for id in pools.iter().copied() {
            if let Some(stats) = table.remove(id, occupied.contains(&id)) {
                routers.remove_pool(id);
                removed.push((id, stats));
            }
        }
        removed
    }

    /// Whether this worker has the pool.
    pub fn has_pool(&self, id: PoolId) -> bool {
        self.engines.pools.get(id).is_some()
    }

    /// Adds an authenticated client. Nothing is sent to it before [`Core::finish_client_login`], so
    /// that the worker can register its socket under the id first.
    ///
    /// Returns `None` if the worker does not have the pool.
    pub fn add_client(&mut self, mut login: ClientLogin) -> Option<ClientId> {
        let Engines { peers, pools, sessions, mirrors, .. } = &mut self.engines;
        let spec = &pools.get(login.pool)?.spec;
        let parameters = sessions.parameters.intern(std::mem::take(&mut login.parameters));
        let mut client = ClientConnection::new(&login, parameters);
        if spec.has_parameters_at_login {
            // The server knows these values from its login, so its own RESET restores them.
            client.startup_parameters = sessions.parameters.intern([]);
        }
        pools.attach_to_cluster(&mut client, login.role);
        mirrors.sample(&mut client, &spec.mirrors);
        Some(peers.clients.insert(client))
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
        self.run(now, io, |Engines { peers, pools, .. }, call| {
            if let Some(client) = peers.clients.get_mut(id) {
                client.connected_at = now;
                pools.pool(client.pool).stats.logins += 1;
                peers.to_client.push_with(|buf| buf.extend_from_slice(auth_messages));
            }
            login::finish(peers, pools, call, id);
        });
    }

    /// Processes bytes that a client sent. The worker must pass all bytes, in pieces of any size.
    pub fn client_bytes(&mut self, id: ClientId, bytes: &[u8], now: Time, io: &mut dyn CoreIo) {
        self.run(now, io, |engines, call| engines.messages().client_bytes(id, bytes, call));
    }

    /// Processes bytes that a server sent. The worker must pass all bytes, in pieces of any size.
    pub fn server_bytes(&mut self, id: ServerId, bytes: &[u8], now: Time, io: &mut dyn CoreIo) {
        self.run(now, io, |engines, call| engines.messages().server_bytes(id, bytes, call));
    }

    /// Handles an event that is neither bytes nor a timer.
    pub fn handle(&mut self, event: CoreEvent<'_>, now: Time, io: &mut dyn CoreIo) {
        self.run(now, io, |engines, call| engines.handle(event, call));
    }

    /// Handles a CancelRequest whose key names this worker, see [`crate::worker_of_key`], or one
    /// with another process's key of a client that this worker may have taken over. Returns
    /// `false`, without any effect, if no client has the key. A CancelRequest is never answered:
    /// the worker just closes the connection that it arrived on.
    pub fn cancel(&mut self, key: &CancelKey, now: Time, io: &mut dyn CoreIo) -> bool {
        self.run(now, io, |Engines { peers, pools, .. }, call| {
            cancel::by_key(peers, pools, call, key)
        })
    }

    /// Adopts a server that another worker handed over. The worker registers its socket under the
    /// returned id, then reports [`CoreEvent::ServersAvailable`]. Returns `None` if this worker
    /// does not have the pool; the caller must then close the socket.
    pub fn adopt_server(&mut self, transfer: Box<Transfer>, now: Time) -> Option<ServerId> {
        let Engines { peers, pools, .. } = &mut self.engines;
        transfer::insert(peers, pools, transfer, now)
    }

    /// Returns when [`Core::tick`] is due; [`Time::NEVER`] if no timer is running.
    pub fn deadline(&self) -> Time {
        self.engines.next_sweep().min(self.engines.peers.capture.deadline())
    }

    /// Handles timers: enforces timeouts, retries server logins whose delay has passed, closes idle
    /// servers, and passes captured events to their writer.
    pub fn tick(&mut self, now: Time, io: &mut dyn CoreIo) {
        self.engines.peers.capture.flush(now);
        self.run(now, io, Engines::sweep);
    }

    /// Returns the number of connected clients, plus the internal clients of their sub-requests.
    /// The internal clients that replay transactions on mirrors do not count.
    pub fn clients(&self) -> usize {
        self.engines.peers.clients.len_without_mirrors()
    }

    /// Returns the number of servers, including those being opened.
    pub fn servers(&self) -> usize {
        self.engines.peers.servers.len()
    }

    /// Returns the number of requests that were rerouted, since the last call, from servers that
    /// fail health checks.
    pub fn take_reads_rerouted(&mut self) -> u32 {
        std::mem::take(&mut self.engines.pools.reads_rerouted)
    }

    /// Disconnects a client (KILL_CLIENT). Returns whether it existed.
    pub fn kill_client(&mut self, id: ClientId, now: Time, io: &mut dyn CoreIo) -> bool {
        self.run(now, io, |Engines { peers, pools, .. }, call| {
            admin::kill_client(peers, pools, call, id)
        })
    }

    /// Returns the part of the core that a takeover uses.
    pub fn takeover(&mut self) -> Takeover<'_> {
        Takeover::new(self)
    }

    /// Returns the owner pool of a listening client, and the channels that it listens to; `None` if
    /// it does not listen.
    pub fn committed_channels(
        &self,
        id: ClientId,
    ) -> Option<(PoolId, impl Iterator<Item = &Channel> + use<'_>)> {
        handover::committed_channels(&self.engines.peers.clients, id)
    }

    /// Returns the running capture, if any, to start or stop one.
    pub fn capture(&mut self) -> &mut RunningCapture {
        &mut self.engines.peers.capture
    }

    /// Reports the state of all pools and, if `with_peers`, of all connected clients and servers.
    pub fn report(&self, with_peers: bool, now: Time) -> CoreReport {
        report::report(&self.engines.peers, &self.engines.pools, with_peers, now)
    }
}

#[cfg(test)]
impl Core {
    pub(crate) fn engines(&mut self) -> &mut Engines {
        &mut self.engines
    }

    /// Sets the role of the servers that a client uses from its next transaction on. A transaction
    /// that already has a server is not affected. A client with routing state of its own is not
    /// affected either. Returns `false` if the client does not exist or its database is not a
    /// cluster.
    pub(crate) fn set_role(&mut self, id: ClientId, role: crate::TargetRole) -> bool {
        let client = self.engines.peers.clients.get_mut(id);
        let Some(client) = client.filter(|client| client.member.is_clustered) else { return false };
        (client.member.role, client.member.requested_role) = (role, Some(role.into()));
        true
    }

    /// Whether a client waits for a server; `false` if the client has disconnected.
    pub(crate) fn is_waiting(&self, id: ClientId) -> bool {
        self.engines.peers.clients.is_waiting(id)
    }

    /// Returns the client that a server is linked to, if any.
    pub(crate) fn linked_client(&self, id: ServerId) -> Option<ClientId> {
        match self.engines.peers.servers.get(id)?.state {
            crate::state::server::ServerState::Linked(client) => Some(client),
            _ => None,
        }
    }

    /// Whether a client has routing state of its own, because its requests had to be inspected.
    pub(crate) fn has_routing(&self, id: ClientId) -> bool {
        self.engines.peers.clients.get(id).is_some_and(|client| client.routing.is_some())
    }

    /// Returns a client's cancel key, if the client exists.
    pub(crate) fn cancel_key_of(&self, id: ClientId) -> Option<CancelKey> {
        Some(self.engines.peers.clients.get(id)?.cancel_key(self.engines.pools.worker, id))
    }
}
