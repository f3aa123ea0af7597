//! [`Pool`]: the servers of one database and user that this worker holds, and the clients that wait
//! for them.

use std::{collections::VecDeque, sync::Arc};

use crate::{
    ids::{ClientId, ServerId},
    settings::Setting,
    spec::PoolSpec,
    time::Time,
};

/// A worker's part of a pool.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) spec: Arc<PoolSpec>,
    /// Servers for the next client; the one used last is at the back.
    pub(crate) idle: VecDeque<ServerId>,
    /// Clients that need a server, in the order they came. One that was served or left in between is
    /// passed over when its turn comes.
    pub(crate) waiting: VecDeque<ClientId>,
    /// Clients that are not greeted yet.
    pub(crate) unwelcomed: Vec<ClientId>,
    /// What the last server to log in reported: clients are greeted with it.
    pub(crate) greeting: Option<Arc<[Setting]>>,
    /// Logins under way.
    pub(crate) opening: u32,
    /// Servers, those being opened included.
    pub(crate) servers: u32,
    /// Idle servers that are being asked whether they live, for those who wait.
    pub(crate) checking: u32,
    /// Failed logins since the last that succeeded.
    pub(crate) failures: u32,
    /// No login before this.
    pub(crate) retry_at: Time,
}

impl Pool {
    pub(crate) fn new(spec: Arc<PoolSpec>) -> Self {
        Self {
            spec,
            idle: VecDeque::new(),
            waiting: VecDeque::new(),
            unwelcomed: Vec::new(),
            greeting: None,
            opening: 0,
            servers: 0,
            checking: 0,
            failures: 0,
            retry_at: Time::default(),
        }
    }

    /// Takes the server that the next client gets: the one used last, its caches are warm; or, in
    /// turn, the one not used for longest.
    #[inline]
    pub(crate) fn take_idle(&mut self) -> Option<ServerId> {
        if self.spec.round_robin { self.idle.pop_front() } else { self.idle.pop_back() }
    }
}
