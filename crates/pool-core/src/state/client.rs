//! [`ClientConnection`]: all that the core knows about one client.

use std::sync::Arc;

use howdah_capture::live::ClientMark;
use howdah_route::RolePreference;
use howdah_wire::startup::{CancelKey, ProtocolVersion};

use crate::{
    call::Step,
    cluster::{CausalToken, TargetRole},
    fan_out::active::{ActiveFanOut, SubRequest},
    internal_client::InternalClient,
    listen::channels::ClientChannels,
    login::{CancelSecret, ClientLogin},
    messages::frame_cursor::FrameCursor,
    mirror::target::MirroredClient,
    prepared::names::ClientStatements,
    routing::ClientRouting,
    session::parameters::TrackedParameters,
    state::{
        flow::FlowState,
        ids::{ClientId, PoolId, ServerId, WorkerId},
    },
    time::Time,
};

/// The state of a client with respect to servers.
///
/// ```text
/// Welcome ──► Idle ◄───────────► Linked
///               ▲                  ▲
///               └──► Waiting ──────┘
/// ```
///
/// A client waits only if no server is available at once, and becomes idle again if its request is
/// cancelled meanwhile. Its state is `FanOut` instead of `Idle` while
/// [sub-requests](crate::fan_out::active::SubRequest) run its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClientState {
    /// The client is authenticated, but its login is not finished. It waits for a login to the
    /// server if the server's parameters are unknown or the server is down.
    Welcome,
    /// The client has no server and does not need one now.
    Idle,
    /// The client waits for a server.
    Waiting,
    /// The client has a server for its exclusive use.
    Linked(ServerId),
    /// The client's request runs on several shards, or waits to start there.
    FanOut,
}

/// The kind of a client: a connected one, or one that exists only inside the core.
#[derive(Debug)]
pub(crate) enum ClientKind {
    /// An ordinary client.
    Plain,
    /// A client whose transactions are also replayed on mirrors.
    Mirrored(Box<MirroredClient>),
    /// A client that exists only inside the core.
    Internal(Box<dyn InternalClient>),
}

/// The event that a linked client's unprocessed input waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InputHold {
    /// None: input is processed as it arrives.
    None,
    /// The server must accept the client's parameters, because no server is known to have accepted
    /// these values.
    ApplyingParameters,
    /// The server has just accepted the parameters; input that arrived meanwhile is processed next.
    ParametersApplied,
    /// Outstanding replies must arrive, because they decide how the client's next message is
    /// handled.
    AwaitingReplies,
    /// The database's dedicated connection must listen to the channels of the client's LISTEN.
    AwaitingListen,
    /// Nothing more is processed: the client has lost its server and is about to be disconnected.
    Leaving,
}

/// A connected or internal client, with all its state in the core.
#[derive(Debug)]
pub(crate) struct ClientConnection {
    /// The pool whose servers the client uses: its owner pool, or the pool of the cluster member
    /// chosen last. While the client waits for a suitable member, its owner pool.
    pub(crate) pool: PoolId,
    /// The pool of the client's database and user, which never changes.
    pub(crate) owner_pool: PoolId,
    /// The user that the client logged in as, if it differs from the pool's user.
    pub(crate) user: Option<Arc<str>>,
    pub(crate) member: MemberConditions,
    /// The client's own routing state; `None` until one of its requests must be inspected.
    pub(crate) routing: Option<Box<ClientRouting>>,
    /// The client's request that runs on several shards, or waits to start there.
    pub(crate) fan_out: Option<Box<ActiveFanOut>>,
    pub(crate) kind: ClientKind,
    pub(crate) state: ClientState,
    /// Time at which the client was authenticated; for an internal client, at which it was created.
    pub(crate) connected_at: Time,
    /// Time at which the client entered its current state; while its BEGIN is deferred, at which it
    /// last sent input.
    pub(crate) state_since: Time,
    pub(crate) input: FrameCursor,
    /// The session parameters that the client expects on its server.
    pub(crate) parameters: Arc<TrackedParameters>,
    /// The session parameters that the client requested at startup, which RESET restores. Empty if
    /// the server got them at login, and so restores them itself.
    pub(crate) startup_parameters: Arc<TrackedParameters>,
    /// The event that the client's unprocessed input waits for.
    pub(crate) input_hold: InputHold,
    /// Whether a CancelRequest must be sent as soon as the server works on the client's request.
    /// Until then the server works on one of the pooler's own.
    pub(crate) is_cancel_pending: bool,
    /// Whether the server was lost in the middle of a message to the client, so that no other
    /// message can follow.
    pub(crate) has_partial_message: bool,
    pub(crate) statements: ClientStatements,
    pub(crate) version: ProtocolVersion,
    secret: CancelSecret,
    /// The cancel key that another process issued to the client, before a takeover.
    pub(crate) takeover_key: Option<Box<CancelKey>>,
    /// The channels that the client listens to; `None` if it never used LISTEN, or LISTEN is not
    /// multiplexed.
    pub(crate) channels: Option<Box<ClientChannels>>,
    /// The client's state in the running capture.
    pub(crate) capture_mark: ClientMark,
    /// Whether the client has already received the notice about its current wait for a server.
    pub(crate) has_wait_notice: bool,
    pub(crate) flow: FlowState,
}

/// The properties that cluster members must have for a client.
#[derive(Debug, Default)]
pub(crate) struct MemberConditions {
    /// Whether the owner pool has clusters, so that a member must be selected whenever the client
    /// needs a server.
    pub(crate) is_clustered: bool,
    /// The role that suitable members have. It is read whenever the client needs a server, so it
    /// may change between transactions.
    pub(crate) role: TargetRole,
    /// The shard of suitable members; `None` for any.
    pub(crate) shard: Option<u32>,
    /// Whether the primary is also suitable while no replica has replayed the client's writes.
    pub(crate) can_use_primary: bool,
    /// Whether the client's reads must see its own writes on any server.
    pub(crate) has_read_your_writes: bool,
    /// The writes that the client's reads must see; `None` if there are none.
    pub(crate) causal_token: Option<Box<CausalToken>>,
    /// The role that the client requested at startup; `None` to use the pool's.
    pub(crate) requested_role: Option<RolePreference>,
}

impl ClientConnection {
    pub(crate) fn new(login: &ClientLogin, parameters: Arc<TrackedParameters>) -> Self {
        Self {
            pool: login.pool,
            owner_pool: login.pool,
            user: login.user.clone(),
            member: MemberConditions {
                requested_role: login.role.map(RolePreference::from),
                ..MemberConditions::default()
            },
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
            flow: FlowState::default(),
        }
    }

    /// Whether this is a connected client, and not an internal one.
    #[inline]
    pub(crate) fn is_external(&self) -> bool {
        !matches!(self.kind, ClientKind::Internal(_))
    }

    /// Returns the sub-request that this internal client runs, if it is one.
    #[inline]
    pub(crate) fn sub_request(&self) -> Option<SubRequest> {
        match &self.kind {
            ClientKind::Internal(internal) => internal.sub_request(),
            ClientKind::Plain | ClientKind::Mirrored(_) => None,
        }
    }

    /// Returns the step to take when this client has made progress, if it is internal or mirrored.
    #[inline]
    pub(crate) fn step_on_progress(&self, id: ClientId) -> Option<Step> {
        match &self.kind {
            ClientKind::Plain => None,
            ClientKind::Mirrored(_) => Some(Step::Client(id)),
            ClientKind::Internal(internal) => Some(internal.on_progress()),
        }
    }

    /// Marks the open transaction as cancelled: it must not run on mirrors.
    pub(crate) fn mark_transaction_cancelled(&mut self) {
        if let ClientKind::Mirrored(mirrored) = &mut self.kind
            && let Some(open) = &mut mirrored.open
        {
            open.is_cancelled = true;
        }
    }

    pub(crate) fn server(&self) -> Option<ServerId> {
        match self.state {
            ClientState::Linked(server) => Some(server),
            _ => None,
        }
    }

    /// Whether the client has sent input that is not processed completely, or a BEGIN that is
    /// deferred.
    pub(crate) fn has_unprocessed_input(&self) -> bool {
        !self.input.buffered.is_empty()
            || !self.input.is_at_boundary()
            || self.input_hold != InputHold::None
            || self.has_deferred_begin()
    }

    /// Whether the client is in a transaction whose BEGIN has not been sent to a server yet.
    pub(crate) fn has_deferred_begin(&self) -> bool {
        self.routing.as_ref().is_some_and(|routing| routing.deferred_begin.is_some())
    }

    /// Returns the key with which the client can cancel its statement. A client that was taken over
    /// keeps the one from the other process. The process id encodes worker and slot; its sign bit
    /// is not set, because some clients treat a negative value as an error.
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

/// A bit that is not set in any real process id: Linux process ids are at most 2²². Without it, a
/// client that ignores notifications from its own process id could ignore those of a server's
/// backend.
const NOT_A_PROCESS: u32 = 1 << 23;
const SLOT_MASK: u32 = NOT_A_PROCESS - 1;

/// Returns the worker whose number a key contains; `None` if its process id is negative: this
/// pooler issues no such keys.
pub fn worker_of_key(key: &CancelKey) -> Option<WorkerId> {
    let process_id = u32::try_from(key.process_id()).ok()?;
    u8::try_from(process_id >> WORKER_SHIFT).ok().map(WorkerId)
}

/// Returns the slot that a key contains, within its worker; `None` if its process id is negative.
pub(crate) fn slot_of_key(key: &CancelKey) -> Option<usize> {
    usize::try_from(key.process_id()).ok().map(|id| id & SLOT_MASK as usize)
}
