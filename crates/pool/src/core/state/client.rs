//! [`ClientConnection`]: the core's state of one client.

use std::sync::Arc;

use howdah_capture::live::ClientMark;
use howdah_route::RolePreference;
use howdah_wire::startup::{CancelKey, ProtocolVersion};

use crate::{
    cluster::{CausalToken, TargetRole},
    core::{
        DeferredWork,
        fan_out::active::{ActiveFanOut, SubRequest},
        listen::channels::ClientChannels,
        login::{CancelSecret, ClientLogin},
        messages::frame_cursor::FrameCursor,
        mirror::target::{MirrorClient, MirroredClient},
        prepared::names::ClientStatements,
        routing::ClientRouting,
        session::parameters::TrackedParameters,
        state::ids::{ClientId, PoolId, ServerId, WorkerId},
        time::Time,
    },
};

/// State of a client towards servers.
///
/// ```text
/// Welcome ──► Idle ◄──────────── Linked
///               │                  ▲
///               └──► Waiting ──────┘
/// ```
///
/// While [sub-requests](crate::core::fan_out::active::SubRequest) run its request, a client changes
/// from `Idle` to `FanOut` and back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClientState {
    /// Logged in; the startup parameters to send are unknown until a server has accepted our login.
    Welcome,
    /// The client has no server and needs none.
    Idle,
    /// The client waits for a server.
    Waiting,
    /// The client has a server, which it does not share at this moment.
    Linked(ServerId),
    /// The client's request runs on several shards.
    FanOut,
}

/// The kind of a client: a connected one, or one that the core uses internally.
#[derive(Debug)]
pub(crate) enum ClientKind {
    /// An ordinary client.
    Plain,
    /// A client whose input is also sent to mirrors.
    Mirrored(Box<MirroredClient>),
    /// Internal: runs another client's request on one of several shards.
    SubRequest(SubRequest),
    /// Internal: runs another client's transaction on a mirror.
    MirrorClient(MirrorClient),
}

/// The condition for processing more input of a linked client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InputHold {
    /// None: input is processed as it arrives.
    None,
    /// The server was asked to set the client's parameters, which no server has accepted before.
    ApplyingParameters,
    /// The parameters have just been set: input that arrived meanwhile is processed next.
    ParametersApplied,
    /// The client sent a request that only the pooler can answer, after the replies before it.
    AwaitingReplies,
    /// The client is about to LISTEN, and the database's dedicated connection does not listen yet.
    AwaitingListen,
}

/// A connected or internal client, and everything that the core knows of it.
#[derive(Debug)]
pub(crate) struct ClientConnection {
    /// The pool whose servers the client uses: its owner pool, or the pool of the cluster member
    /// chosen last. Also the owner pool while it waits for a suitable member.
    pub(crate) pool: PoolId,
    /// The pool of the client's database and user.
    pub(crate) owner_pool: PoolId,
    /// The user that the client logged in as, where it differs from the pool's.
    pub(crate) user: Option<Arc<str>>,
    /// Whether the owner pool is a cluster.
    pub(crate) is_clustered: bool,
    /// Which members are suitable. Read whenever the client needs a server, so that it may change
    /// between transactions.
    pub(crate) role: TargetRole,
    /// The shard of suitable members; `None` for any.
    pub(crate) shard: Option<u32>,
    /// Whether the primary is also suitable while no replica has replayed the client's writes.
    pub(crate) can_use_primary: bool,
    /// Whether the client reads its own writes, on any server.
    pub(crate) has_read_your_writes: bool,
    /// The client's writes so far, if it reads its own writes.
    pub(crate) causal_token: Option<Box<CausalToken>>,
    /// The role that the client requested at startup.
    pub(crate) requested_role: Option<RolePreference>,
    /// State for routing the client's requests, if it can influence that.
    pub(crate) routing: Option<Box<ClientRouting>>,
    /// The client's request that runs on several shards.
    pub(crate) fan_out: Option<Box<ActiveFanOut>>,
    pub(crate) kind: ClientKind,
    pub(crate) state: ClientState,
    /// Time of the client's login.
    pub(crate) connected_at: Time,
    /// Time at which the client entered its present state.
    pub(crate) state_since: Time,
    pub(crate) input: FrameCursor,
    /// The session parameters that the client expects on its server.
    pub(crate) parameters: Arc<TrackedParameters>,
    /// The session parameters that the client requested at startup.
    pub(crate) startup_parameters: Arc<TrackedParameters>,
    /// The condition for processing more input of the client.
    pub(crate) input_hold: InputHold,
    /// Whether a cancel of the client's statement arrived while its server still worked for the
    /// pooler.
    pub(crate) is_cancel_pending: bool,
    /// Whether the server was lost in the middle of a message: nothing more can be sent to the
    /// client.
    pub(crate) has_partial_message: bool,
    pub(crate) statements: ClientStatements,
    pub(crate) version: ProtocolVersion,
    secret: CancelSecret,
    /// The cancel key that another process gave to the client, before a takeover.
    pub(crate) takeover_key: Option<Box<CancelKey>>,
    /// The channels that the client listens to, if it ever did and shares its servers.
    pub(crate) channels: Option<Box<ClientChannels>>,
    /// The client's position in the capture.
    pub(crate) capture_mark: ClientMark,
    /// Whether the client was sent the notice that it waits.
    pub(crate) has_wait_notice: bool,
    /// Whether the client has not read everything that was sent to it.
    pub(crate) is_backlogged: bool,
    /// Whether the worker was told not to read from the client.
    pub(crate) is_paused: bool,
}

impl ClientConnection {
    pub(crate) fn new(login: &ClientLogin, parameters: Arc<TrackedParameters>) -> Self {
        Self {
            pool: login.pool,
            owner_pool: login.pool,
            user: login.user.clone(),
            is_clustered: false,
            role: TargetRole::default(),
            shard: None,
            can_use_primary: false,
            has_read_your_writes: false,
            causal_token: None,
            requested_role: login.role.map(RolePreference::from),
            routing: None,
            fan_out: None,
            kind: ClientKind::Plain,
            state: ClientState::Welcome,
            connected_at: Time::default(),
            state_since: Time::default(),
            input: FrameCursor::default(),
            startup_parameters: Arc::clone(&parameters),
            parameters,
            input_hold: InputHold::None,
            is_cancel_pending: false,
            has_partial_message: false,
            statements: ClientStatements::default(),
            version: login.version,
            secret: login.secret,
            takeover_key: None,
            channels: None,
            capture_mark: ClientMark::default(),
            has_wait_notice: false,
            is_backlogged: false,
            is_paused: false,
        }
    }

    /// Whether this is a connected client, not one that the core uses internally for another
    /// client.
    #[inline]
    pub(crate) fn is_external(&self) -> bool {
        matches!(self.kind, ClientKind::Plain | ClientKind::Mirrored(_))
    }

    /// Returns the sub-request that an internal client runs.
    #[inline]
    pub(crate) fn sub_request(&self) -> Option<SubRequest> {
        match self.kind {
            ClientKind::SubRequest(leg) => Some(leg),
            _ => None,
        }
    }

    /// Returns the deferred work to schedule when an internal client, or one with mirrors, has made
    /// progress.
    #[inline]
    pub(crate) fn deferred_work(&self, id: ClientId) -> Option<DeferredWork> {
        match &self.kind {
            ClientKind::Plain => None,
            ClientKind::Mirrored(_) => Some(DeferredWork::Client(id)),
            ClientKind::SubRequest(leg) => Some(DeferredWork::Client(leg.parent)),
            ClientKind::MirrorClient(shadow) => Some(DeferredWork::MirrorQueue(shadow.queue)),
        }
    }

    pub(crate) fn server(&self) -> Option<ServerId> {
        match self.state {
            ClientState::Linked(server) => Some(server),
            _ => None,
        }
    }

    /// Whether the client has sent input that is not processed yet, complete or not.
    pub(crate) fn has_unprocessed_input(&self) -> bool {
        !self.input.buffered.is_empty()
            || !self.input.is_at_boundary()
            || self.input_hold != InputHold::None
            || self.has_deferred_begin()
    }

    /// Whether the client is in a transaction of which no server knows yet.
    pub(crate) fn has_deferred_begin(&self) -> bool {
        self.routing.as_ref().is_some_and(|routing| routing.deferred_begin.is_some())
    }

    /// Returns the key with which the client's statement is cancelled. The process id encodes
    /// worker and slot; its sign bit is clear, because some clients treat a negative value as an
    /// error.
    pub(crate) fn cancel_key(&self, worker: WorkerId, id: ClientId) -> CancelKey {
        if let Some(key) = &self.takeover_key {
            return CancelKey::clone(key);
        }
        let bytes = if self.version >= ProtocolVersion::V3_2 { 32 } else { 4 };
        let slot = u32::try_from(id.index()).expect("an index is a u32") & SLOT_MASK;
        let process_id = u32::from(worker.0) << WORKER_SHIFT | NOT_A_PROCESS | slot;
        let process_id = i32::try_from(process_id).expect("a worker number has seven bits");
        CancelKey::new(process_id, &self.secret.0[..bytes])
            .expect("4 and 32 bytes are valid key lengths")
    }
}

const WORKER_SHIFT: u32 = 24;

/// A bit that no process id has set: Linux counts to 2²². A client that ignores notifications with
/// its own process id must not ignore those of a server.
const NOT_A_PROCESS: u32 = 1 << 23;
const SLOT_MASK: u32 = NOT_A_PROCESS - 1;

/// Returns the worker that issued a key, if a worker of this pooler may have.
pub fn worker_of_key(key: &CancelKey) -> Option<WorkerId> {
    let process_id = u32::try_from(key.process_id()).ok()?;
    u8::try_from(process_id >> WORKER_SHIFT).ok().map(WorkerId)
}

/// Returns the slot of the client that a key was issued to.
pub(crate) fn slot_of_key(key: &CancelKey) -> Option<usize> {
    usize::try_from(key.process_id()).ok().map(|id| id & SLOT_MASK as usize)
}
