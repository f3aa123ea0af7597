//! [`Core`]: one worker's clients, servers and pools.

mod ahead;
mod aim;
mod cancel;
mod check;
mod clock;
mod downstream;
mod drain;
mod elsewhere;
mod fan;
mod forget;
mod leave;
mod link;
mod listen;
mod mend;
mod migrate;
mod mirror;
mod mutant;
mod notify;
mod open;
mod operate;
mod own;
mod reply;
mod report;
mod request;
mod rewrite;
mod route;
mod settle;
mod spread;
mod suspend;
mod tap;
mod upstream;

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use howdah_record::CaptureBuffer;
use howdah_wire::{Header, startup::CancelKey};

use crate::{
    Io,
    client::{Client, ClientState},
    gather::Gather,
    ids::{ClientId, Peer, PoolId, ServerId, WorkerId},
    login::{ClientLogin, ServerFailure, ServerLogin},
    mirror::{MirrorTarget, Stream, StreamId},
    pool::Pool,
    routing::Routers,
    server::Server,
    settings::ParameterSets,
    slab::Slab,
    spec::PoolSpec,
    statements::Statements,
    time::Time,
};

use mirror::same_mirrors;

pub use link::Transfer;
pub use migrate::{ClientHandover, MigrantStatement};
pub(crate) use mutant::InjectedFault;
pub use report::{
    ClientPhase, ClientReport, Counts, PoolReport, Report, ServerPhase, ServerReport,
};

/// One worker's data path, without I/O.
///
/// The worker reports what happens to its sockets by the methods below, in any order, giving the time
/// and itself as [`Io`]; the core orders through [`Io`] what is to be done. It never blocks, asks no
/// clock and draws no randomness, so the same calls lead to the same orders.
///
/// # The worker's duties
///
/// - A client: [`Core::add_client`] when its login is done, then [`Core::greet_client`]; then
///   [`Core::client_bytes`] for what it sends, until [`Core::client_closed`] is reported or
///   [`Io::close`] is ordered.
/// - A server: begins by [`Io::open_server`]; then one of [`Core::server_ready`] and
///   [`Core::server_failed`]; then [`Core::server_bytes`], until [`Core::server_closed`] is reported
///   or [`Io::close`] or [`Io::hand_over`] is ordered.
/// - [`Core::drained`] for every peer for which a send gave [`crate::Backlog::Waiting`], once it is
///   empty.
/// - [`Core::tick`] at or soon after [`Core::deadline`], which may change with every call.
/// - Ids of connections that are gone are ignored, so a late report does no harm.
///
/// ```text
/// readable client ──► client_bytes ──► Io::send(server, [slices of the bytes, ours between them])
/// readable server ──► server_bytes ──► Io::send(client, …)
/// ```
#[derive(Debug)]
pub struct Core {
    worker: WorkerId,
    now: Time,
    clients: Slab<ClientId, Client>,
    servers: Slab<ServerId, Server>,
    pools: Vec<Option<Pool>>,
    routers: Routers,
    to_server: Gather,
    to_client: Gather,
    wishes: ParameterSets,
    statements: Arc<Statements>,
    /// Longest body of a message that is let through, either way.
    body_bytes_max: u32,
    next_sweep: Time,
    /// Clients with keys that another process gave them.
    foreign_keys: HashMap<CancelKey, ClientId>,
    /// How many workers share the pools.
    workers: u32,
    /// Some pool has servers that are kept open, with clients or without.
    keeps_minimum: bool,
    /// Servers that nobody waits for are closed.
    keeps_no_servers: bool,
    /// Everything stands still, see [`Core::suspend`].
    is_suspended: bool,
    /// What clients say and hear is written there, while a capture is made.
    tape: Option<Box<CaptureBuffer>>,
    /// Of whom something has changed that is looked at when the call that brought it is over.
    unsettled: Vec<Unsettled>,
    /// What is run on mirrors, for each client and mirror.
    streams: Slab<StreamId, Stream>,
    /// Clients that are mirrored.
    mirrored: usize,
    /// Clients that are none: they play what others sent.
    shadows: usize,
    /// Pools that had other mirrors, and which, before they were given others.
    mirrors_before: Vec<(PoolId, Arc<[MirrorTarget]>)>,
    /// Whether anybody wants to know what clients say: there is a tape, or somebody is mirrored.
    overhears: bool,
    /// Those that may not begin yet, and where they are at home, the first first; see [`crate::limits::Turn`].
    without_turn: VecDeque<(PoolId, ClientId)>,
    /// Pools that want a server and may not open one.
    starving: Vec<PoolId>,
    /// Reads that were taken back from servers that do not answer, since that was asked for.
    reads_moved: u32,
    /// A mistake to make, so that the simulator can show that it would find it.
    #[cfg(test)]
    pub(crate) mutant: Option<InjectedFault>,
}

/// Who is looked at when a call is over.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Unsettled {
    /// A client, whose request is done on several shards, or that is mirrored.
    Client(ClientId),
    /// A client's way to a mirror.
    Stream(StreamId),
}

impl Core {
    /// A worker without pools, which shares its clients' prepared statements with nobody.
    pub fn new(worker: WorkerId) -> Self {
        Self::sharing(worker, Arc::default())
    }

    /// A worker without pools. Workers that hand servers over to one another have to share
    /// `statements`, or one name would mean two texts.
    pub fn sharing(worker: WorkerId, statements: Arc<Statements>) -> Self {
        Self {
            worker,
            now: Time::default(),
            clients: Slab::new(),
            servers: Slab::new(),
            pools: Vec::new(),
            routers: Routers::default(),
            to_server: Gather::default(),
            to_client: Gather::default(),
            wishes: ParameterSets::default(),
            statements,
            body_bytes_max: u32::MAX,
            next_sweep: Time::default(),
            foreign_keys: HashMap::new(),
            workers: 1,
            keeps_minimum: false,
            keeps_no_servers: false,
            is_suspended: false,
            tape: None,
            unsettled: Vec::new(),
            streams: Slab::new(),
            mirrored: 0,
            shadows: 0,
            mirrors_before: Vec::new(),
            overhears: false,
            without_turn: VecDeque::new(),
            starving: Vec::new(),
            reads_moved: 0,
            #[cfg(test)]
            mutant: None,
        }
    }

    /// Lets no message through that is longer than this, its five bytes of header included. Who sends
    /// one loses its connection, since what follows could be read only after it.
    pub fn bound_messages(&mut self, message_bytes: u32) {
        let header = u32::try_from(Header::BYTES).expect("it is five");
        self.body_bytes_max = message_bytes.saturating_sub(header);
    }

    /// Says how many workers there are: each keeps its share of [`PoolSpec::servers_min`] open.
    pub fn share_minimum(&mut self, workers: u32) {
        self.workers = workers;
    }

    /// Opens what is to be kept open of a pool, without waiting for its first client.
    pub fn open_minimum_of(&mut self, pool: PoolId, now: Time, io: &mut dyn Io) {
        self.now = now;
        if self.has_pool(pool) {
            self.open_for_waiting(pool, io);
        }
    }

    /// Makes a pool known, or gives it other settings; those with limits in them take effect for
    /// what is opened from now on. [`Core::pools_changed`] deals with what is there.
    pub fn set_pool(&mut self, id: PoolId, spec: Arc<PoolSpec>) {
        if self.pools.len() <= id.index() {
            self.pools.resize_with(id.index() + 1, || None);
        }
        self.routers.follow(id, &spec);
        self.keeps_minimum |= self.minimum_here(&spec) > 0;
        match &mut self.pools[id.index()] {
            Some(pool) if !same_mirrors(&pool.spec.mirrors, &spec.mirrors) => {
                self.mirrors_before.push((id, Arc::clone(&pool.spec.mirrors)));
                pool.follow(spec);
            }
            Some(pool) => pool.follow(spec),
            none => *none = Some(Pool::new(spec, self.worker)),
        }
    }

    /// Whether the pool is known to this worker.
    pub fn has_pool(&self, id: PoolId) -> bool {
        self.pools.get(id.index()).is_some_and(Option::is_some)
    }

    /// Takes in a client whose login is done. Nothing is sent before [`Core::greet_client`], so that
    /// the worker can put its socket under the id first.
    ///
    /// `None` if its pool is not known.
    pub fn add_client(&mut self, mut login: ClientLogin) -> Option<ClientId> {
        if !self.has_pool(login.pool) {
            return None;
        }
        let wishes = self.wishes.intern(std::mem::take(&mut login.settings));
        let mut client = Client::new(&login, wishes);
        if self.pool(login.pool).spec.settings_at_login {
            client.startup = self.wishes.intern([]); // The server knows how to go back to them.
        }
        self.house(&mut client, login.role);
        self.draw(&mut client);
        Some(self.clients.insert(client))
    }

    /// Sends a new client what its login owes it, such as AuthenticationOk, and behind that
    /// ParameterStatus, BackendKeyData and ReadyForQuery: now, or, in a pool that never had a server,
    /// when the first server has logged us in. Until then it is paused.
    pub fn greet_client(&mut self, id: ClientId, owed: &[u8], now: Time, io: &mut dyn Io) {
        self.now = now;
        if let Some(client) = self.clients.get_mut(id) {
            client.came = now;
            let pool = client.pool;
            self.pool(pool).tally.logins += 1;
            self.to_client.make(|buf| buf.extend_from_slice(owed));
        }
        self.greet(id, io);
        self.follow_spreads(io);
    }

    /// Takes what a client sent: all of it, in pieces of any size.
    pub fn client_bytes(&mut self, id: ClientId, bytes: &[u8], now: Time, io: &mut dyn Io) {
        self.now = now;
        self.upstream(id, bytes, io);
        self.follow_spreads(io);
    }

    /// A client's connection has ended: end of file, an error, or a failed send. The id is free.
    pub fn client_closed(&mut self, id: ClientId, now: Time, io: &mut dyn Io) {
        self.now = now;
        self.client_left(id, io);
        self.follow_spreads(io);
    }

    /// A server that [`Io::open_server`] asked for is logged in and idle.
    pub fn server_ready(&mut self, id: ServerId, login: ServerLogin, now: Time, io: &mut dyn Io) {
        self.now = now;
        self.server_logged_in(id, login, io);
        self.follow_spreads(io);
    }

    /// A server that [`Io::open_server`] asked for did not come to be; the worker has closed whatever
    /// socket there was. The id is free.
    pub fn server_failed(
        &mut self,
        id: ServerId,
        failure: ServerFailure,
        now: Time,
        io: &mut dyn Io,
    ) {
        self.now = now;
        self.login_failed(id, failure, io);
        self.follow_spreads(io);
    }

    /// Takes what a server sent: all of it, in pieces of any size.
    pub fn server_bytes(&mut self, id: ServerId, bytes: &[u8], now: Time, io: &mut dyn Io) {
        self.now = now;
        self.downstream(id, bytes, io);
        self.follow_spreads(io);
    }

    /// A server's connection has ended: end of file, an error, or a failed send. The id is free.
    pub fn server_closed(&mut self, id: ServerId, now: Time, io: &mut dyn Io) {
        self.now = now;
        self.doubt(id, io);
        self.server_left(id, io);
        self.follow_spreads(io);
    }

    /// A peer has taken everything that was sent to it, after [`crate::Backlog::Waiting`].
    pub fn drained(&mut self, peer: Peer, now: Time, io: &mut dyn Io) {
        self.now = now;
        self.backlog_gone(peer, io);
        self.follow_spreads(io);
    }

    /// Somebody wants a client's statement cancelled. The key has to be of this worker, see
    /// [`crate::worker_of_key`]; a wrong key does nothing, and
    /// gives false. There is never an answer: the worker just
    /// closes the connection that the request came by.
    pub fn cancel(&mut self, key: &CancelKey, now: Time, io: &mut dyn Io) -> bool {
        self.now = now;
        let is_known = self.cancel_by_key(key, io);
        self.follow_spreads(io);
        is_known
    }

    /// A CancelRequest ordered by [`Io::send_cancel`] is over, however it went.
    pub fn cancel_finished(&mut self, server: ServerId, now: Time, io: &mut dyn Io) {
        self.now = now;
        self.cancel_over(server, io);
        self.follow_spreads(io);
    }

    /// Another worker starves, see [`Io::want_server`]: an idle server is handed to it at once, or
    /// the next that gets idle while nobody here waits.
    pub fn server_wanted(&mut self, pool: PoolId, by: WorkerId, now: Time, io: &mut dyn Io) {
        self.now = now;
        self.wanted_elsewhere(pool, by, io);
    }

    /// Takes over a server that another worker handed over; the worker puts its socket under the id
    /// that this gives, then calls [`Core::serve_waiting`]. `None` if the pool is not known here: the
    /// worker closes the socket.
    pub fn adopt_server(&mut self, transfer: Box<Transfer>, now: Time) -> Option<ServerId> {
        self.now = now;
        self.adopt(transfer)
    }

    /// Gives idle servers of a pool to those who wait, and greets those who wait for that. One that was
    /// handed over may have set out before an order that it would not outlive: such are closed.
    pub fn serve_waiting(&mut self, pool: PoolId, now: Time, io: &mut dyn Io) {
        self.now = now;
        self.close_barred(pool, io);
        self.serve(pool, io);
        self.follow_spreads(io);
    }

    /// When [`Core::tick`] is due; [`Time::NEVER`] if nothing waits for time to pass.
    pub fn deadline(&self) -> Time {
        self.next_deadline()
    }

    /// Lets time pass: ends what takes too long, opens servers whose pause is over, closes idle ones.
    pub fn tick(&mut self, now: Time, io: &mut dyn Io) {
        self.now = now;
        self.sweep(io);
        self.follow_spreads(io);
    }

    /// How many clients there are; what is left to do for mirrors is none.
    pub fn clients(&self) -> usize {
        self.clients.len() - self.shadows
    }

    /// How many servers there are, those being opened included.
    pub fn servers(&self) -> usize {
        self.servers.len()
    }

    /// Whether a client waits for a server; not for one that is gone.
    pub fn is_waiting(&self, id: ClientId) -> bool {
        self.clients.get(id).is_some_and(|client| client.state == ClientState::Waiting)
    }

    /// How many reads were taken back from servers that do not answer, and asked of others, since the last call.
    pub fn take_reads_moved(&mut self) -> u32 {
        std::mem::take(&mut self.reads_moved)
    }

    /// Whether a planted mistake is to be made; never outside of tests.
    #[inline]
    fn makes(&self, mutant: InjectedFault) -> bool {
        #[cfg(test)]
        return self.mutant == Some(mutant);
        #[cfg(not(test))]
        {
            let _ = mutant;
            false
        }
    }

    fn pool(&mut self, id: PoolId) -> &mut Pool {
        self.pools[id.index()]
            .as_mut()
            .expect("pools that have clients or servers are never removed")
    }
}

#[cfg(test)]
impl Core {
    /// The client that a server works for.
    pub(crate) fn linked_client(&self, id: ServerId) -> Option<ClientId> {
        match self.servers.get(id)?.state {
            crate::server::ServerState::Linked(client) => Some(client),
            _ => None,
        }
    }

    /// Whether it is kept what a client has said about where its requests go.
    pub(crate) fn has_routing(&self, id: ClientId) -> bool {
        self.clients.get(id).is_some_and(|client| client.routing.is_some())
    }

    /// The key that a client was given.
    pub(crate) fn cancel_key_of(&self, id: ClientId) -> Option<CancelKey> {
        Some(self.clients.get(id)?.cancel_key(self.worker, id))
    }
}

#[cfg(test)]
mod tests;
