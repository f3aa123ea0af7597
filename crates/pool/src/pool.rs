//! [`Pool`]: the servers of one database and user that this worker holds, and the clients that wait
//! for them.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use crate::{
    cluster::Balances,
    ids::{ClientId, ServerId, WorkerId},
    login::ServerFailure,
    settings::Setting,
    spec::PoolSpec,
    tally::Tally,
    time::Time,
};

/// What the last server of a pool to log in reported, whichever worker's it is. Asked for when a client
/// logs in, never on the path of a query.
#[derive(Debug, Default)]
pub struct WelcomeMessage(Mutex<Option<Arc<[Setting]>>>);

impl WelcomeMessage {
    pub(crate) fn known(&self) -> Option<Arc<[Setting]>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Takes what another knows, if this one knows nothing.
    pub(crate) fn inherit(&self, from: &Self) {
        if self.known().is_none()
            && let Some(known) = from.known()
        {
            self.learn(known);
        }
    }

    pub(crate) fn learn(&self, reported: Arc<[Setting]>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(reported);
    }
}

/// That another worker starves for a server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub(crate) by: WorkerId,
    /// When it first said so.
    pub(crate) since: Time,
    /// When it last said so: it does again and again for as long as it starves.
    pub(crate) heard: Time,
}

/// A worker's part of a pool.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) spec: Arc<PoolSpec>,
    pub(crate) tally: Tally,
    /// Servers for the next client; the one used last is at the back.
    pub(crate) idle: VecDeque<ServerId>,
    /// Clients that need a server, in the order they came. One that was served or left in between is
    /// passed over when its turn comes.
    pub(crate) waiting: VecDeque<ClientId>,
    /// Clients that are not greeted yet.
    pub(crate) unwelcomed: Vec<ClientId>,
    /// Logins under way.
    pub(crate) opening: u32,
    /// Servers, those being opened included.
    pub(crate) servers: u32,
    /// Idle servers that are being asked whether they live, for those who wait.
    pub(crate) checking: u32,
    /// Failed logins since the last that succeeded.
    pub(crate) failures: u32,
    /// Why the last of them failed.
    pub(crate) last_failure: Option<Arc<ServerFailure>>,
    /// A server was closed to make room for another pool: none is opened for [`PoolSpec::servers_min`]
    /// before this.
    pub(crate) fill_at: Time,
    /// No login before this.
    pub(crate) retry_at: Time,
    /// Whether the server has said that it takes nobody for now, and nobody has got in since: it
    /// starts, or it is being restarted.
    pub(crate) restarting: bool,
    /// Workers that starve for a server of ours, each once.
    pub(crate) wanted_by: VecDeque<Wanted>,
    /// We do not ask others for a server before this.
    pub(crate) ask_at: Time,
    /// A limit may have been lowered below what is taken: servers that become free are looked at. Kept
    /// here so that giving a server back looks at no limit otherwise.
    pub(crate) shrinks: bool,
    /// Which member of its cluster a client gets.
    pub(crate) balance: Option<Box<Balances>>,
}

impl Pool {
    pub(crate) fn new(spec: Arc<PoolSpec>, worker: WorkerId) -> Self {
        let balance = Balances::new(&spec.clusters, worker);
        Self {
            spec,
            tally: Tally::default(),
            idle: VecDeque::new(),
            waiting: VecDeque::new(),
            unwelcomed: Vec::new(),
            opening: 0,
            servers: 0,
            checking: 0,
            failures: 0,
            last_failure: None,
            fill_at: Time::default(),
            retry_at: Time::default(),
            restarting: false,
            wanted_by: VecDeque::new(),
            ask_at: Time::default(),
            shrinks: false,
            balance,
        }
    }

    /// Follows other settings.
    pub(crate) fn follow(&mut self, spec: Arc<PoolSpec>) {
        spec.greeting.inherit(&self.spec.greeting);
        if let Some(balance) = &mut self.balance {
            balance.follow(&spec.clusters);
        }
        self.spec = spec;
        self.look_for_surplus();
    }

    /// How long a client waits here while nothing can be had: for a member that would do, or for one
    /// that cannot be reached.
    pub(crate) fn failover_timeout(&self) -> Option<Duration> {
        match (self.spec.clusters.first(), &self.spec.member) {
            (Some(cluster), _) => cluster.failover_timeout,
            (None, Some(member)) if self.failures > 0 => member.failover_timeout,
            (None, _) => None,
        }
    }

    /// Why its server cannot be had: it has none, and the last login failed. `None` while the server is
    /// known to be on its way back: its clients wait then, those that log in as well.
    pub(crate) fn outage(&self) -> Option<&ServerFailure> {
        let is_down = self.servers == self.opening && !self.restarting;
        self.last_failure.as_deref().filter(|_| is_down && self.spec.clusters.is_empty())
    }

    /// How many of its servers are not there for the next, and how many wait for one.
    pub(crate) fn load(&self) -> u64 {
        u64::from(self.servers) - self.idle.len() as u64 + self.waiting.len() as u64
    }

    /// Looks at whether there are more servers than there may be.
    pub(crate) fn look_for_surplus(&mut self) {
        let reserve = self.spec.reserve.iter().flat_map(|reserve| reserve.limits.iter());
        self.shrinks = self.spec.server_limits.iter().chain(reserve).any(|limit| limit.is_over());
    }

    /// Takes the server that the next client gets: the one used last, its caches are warm; or, in
    /// turn, the one not used for longest.
    #[inline]
    pub(crate) fn take_idle(&mut self) -> Option<ServerId> {
        if self.spec.round_robin { self.idle.pop_front() } else { self.idle.pop_back() }
    }
}
