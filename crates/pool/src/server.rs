//! [`Server`]: what the core knows of one server connection.

use howdah_wire::{backend::TransactionStatus, startup::CancelKey};

use crate::{
    dirt::{Dirt, SetKind},
    ids::{ClientId, PoolId},
    inlet::Inlet,
    limits::Permits,
    owed::Owed,
    prepared::ServerStatements,
    settings::ServerSettings,
    time::Time,
};

/// Where a server connection is.
///
/// ```text
/// Opening ──► Idle ◄──────► Linked
///               ▲             │
///               └── Cleaning ◄┘
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerState {
    /// The worker connects and logs in.
    Opening,
    /// In its pool, for the next client.
    Idle,
    /// Works for a client.
    Linked(ClientId),
    /// Ends, for nobody, what its last client left behind.
    Cleaning,
}

/// A server connection.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) pool: PoolId,
    pub(crate) state: ServerState,
    /// When it came to be where it is.
    pub(crate) since: Time,
    pub(crate) opened: Time,
    pub(crate) inlet: Inlet,
    pub(crate) owed: Owed,
    /// By the last ReadyForQuery.
    pub(crate) status: TransactionStatus,
    /// Messages of the extended protocol were sent and no Sync after them.
    pub(crate) batch_open: bool,
    /// A batch failed and its Sync was not sent yet: the server looks at nothing before it.
    pub(crate) skipping: bool,
    /// The server waits for COPY data, and answers no Sync.
    pub(crate) copying_in: bool,
    /// CancelRequests under way to it.
    pub(crate) cancels: u32,
    pub(crate) cancel_key: Option<CancelKey>,
    pub(crate) settings: ServerSettings,
    pub(crate) statements: ServerStatements,
    /// What has to be reset before the next client.
    pub(crate) dirt: Dirt,
    /// The worst SET that was bound since it was linked.
    pub(crate) set_kind: SetKind,
    /// It has not taken all that was sent to it.
    pub(crate) backlogged: bool,
    /// The worker was told to read nothing from it.
    pub(crate) paused: bool,
    /// Given back with the connection.
    pub(crate) _permits: Permits,
}

impl Server {
    pub(crate) fn opening(pool: PoolId, permits: Permits, now: Time) -> Self {
        Self {
            pool,
            state: ServerState::Opening,
            since: now,
            opened: now,
            inlet: Inlet::default(),
            owed: Owed::default(),
            status: TransactionStatus::Idle,
            batch_open: false,
            skipping: false,
            copying_in: false,
            cancels: 0,
            cancel_key: None,
            settings: ServerSettings::default(),
            statements: ServerStatements::default(),
            dirt: Dirt::NONE,
            set_kind: SetKind::NotSet,
            backlogged: false,
            paused: false,
            _permits: permits,
        }
    }

    /// Whether everything it was asked is answered, and nothing of a transaction or a batch is open:
    /// then it is as good for anybody else.
    pub(crate) fn is_settled(&self) -> bool {
        self.owed.is_empty()
            && !self.batch_open
            && !self.skipping
            && self.status == TransactionStatus::Idle
    }
}
