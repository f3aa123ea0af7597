//! [`Client`]: what the core knows of one client.

use std::sync::Arc;

use howdah_wire::startup::{CancelKey, ProtocolVersion};

use crate::{
    ids::{ClientId, PoolId, ServerId, WorkerId},
    inlet::Inlet,
    login::{CancelSecret, ClientLogin},
    settings::Setting,
    time::Time,
};

/// Where a client is.
///
/// ```text
/// Welcome ──► Idle ◄──────────── Linked
///               │                  ▲
///               └──► Waiting ──────┘
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClientState {
    /// Logged in; what it is greeted with is not known before a server has logged us in.
    Welcome,
    /// Has no server and needs none.
    Idle,
    /// Needs a server.
    Waiting,
    /// Has a server to itself.
    Linked(ServerId),
}

/// A client.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) pool: PoolId,
    pub(crate) state: ClientState,
    /// When it came to be where it is.
    pub(crate) since: Time,
    pub(crate) inlet: Inlet,
    /// Settings asked for at the start.
    pub(crate) settings: Arc<[Setting]>,
    pub(crate) version: ProtocolVersion,
    secret: CancelSecret,
    /// It has not taken all that was sent to it.
    pub(crate) backlogged: bool,
    /// The worker was told to read nothing from it.
    pub(crate) paused: bool,
}

impl Client {
    pub(crate) fn new(login: ClientLogin) -> Self {
        Self {
            pool: login.pool,
            state: ClientState::Welcome,
            since: Time::default(),
            inlet: Inlet::default(),
            settings: login.settings.into(),
            version: login.version,
            secret: login.secret,
            backlogged: false,
            paused: false,
        }
    }

    pub(crate) fn server(&self) -> Option<ServerId> {
        match self.state {
            ClientState::Linked(server) => Some(server),
            _ => None,
        }
    }

    /// What it has to send to have its statement cancelled. The process id says worker and slot; its
    /// sign bit is clear, because some clients take a negative one for an error.
    pub(crate) fn cancel_key(&self, worker: WorkerId, id: ClientId) -> CancelKey {
        let bytes = if self.version >= ProtocolVersion::V3_2 { 32 } else { 4 };
        let slot = u32::try_from(id.index()).expect("it was made of a u32") & SLOT_MASK;
        let process_id = u32::from(worker.0) << SLOT_BITS | slot;
        let process_id = i32::try_from(process_id).expect("a worker's number has seven bits");
        CancelKey::new(process_id, &self.secret.0[..bytes])
            .expect("4 and 32 are lengths of secrets")
    }
}

const SLOT_BITS: u32 = 24;
const SLOT_MASK: u32 = (1 << SLOT_BITS) - 1;

/// The worker that gave a key to one of its clients, if we gave it.
pub fn worker_of_key(key: &CancelKey) -> Option<WorkerId> {
    let process_id = u32::try_from(key.process_id()).ok()?;
    u8::try_from(process_id >> SLOT_BITS).ok().map(WorkerId)
}

/// The slot of the client that a key was given to.
pub(crate) fn slot_of_key(key: &CancelKey) -> Option<usize> {
    usize::try_from(key.process_id()).ok().map(|id| id & SLOT_MASK as usize)
}
