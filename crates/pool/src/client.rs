//! [`Client`]: what the core knows of one client.

use std::sync::Arc;

use howdah_record::Mark;
use howdah_route::RolePreference;
use howdah_wire::startup::{CancelKey, ProtocolVersion};

use crate::{
    cluster::{CausalToken, ServerRole},
    core::Unsettled,
    ids::{ClientId, PoolId, ServerId, WorkerId},
    inlet::FrameCursor,
    listen::ClientChannels,
    login::{CancelSecret, ClientLogin},
    mirror::{MirrorClient, Mirrored},
    prepared::ClientStatements,
    routing::Routing,
    settings::TrackedParameters,
    spread::{Leg, Spread},
    time::Time,
};

/// Where a client is.
///
/// ```text
/// Welcome ──► Idle ◄──────────── Linked
///               │                  ▲
///               └──► Waiting ──────┘
/// ```
///
/// From `Idle` also to `Spread`, and back: what it asked for is done by [legs](crate::spread::Leg).
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
    /// What it asked for is done on several shards.
    Spread,
}

/// What a client is, beside what all are.
#[derive(Debug)]
pub(crate) enum Part {
    /// No more than that.
    Whole,
    /// What it sends is for mirrors, too.
    Mirrored(Box<Mirrored>),
    /// It is no client: it does another's request on one of several shards.
    Leg(Leg),
    /// It is no client: it plays another's transaction on a mirror.
    Shadow(MirrorClient),
}

/// Whether a client that has a server waits for it before anything it sends can be dealt with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Syncing {
    /// No.
    No,
    /// The server was asked to set them, and nothing else before it has.
    Waiting,
    /// They have just been set: what the client sent meanwhile is due.
    Done,
    /// It sent what only the pooler can answer, and that has to wait for the answers before it.
    Behind,
    /// It is about to listen to channels, and the database's dedicated connection does not yet.
    Hearing,
}

/// A client.
#[derive(Debug)]
pub(crate) struct Client {
    /// Whose servers it uses: its home's own, or those of the member that was chosen for it last. Its
    /// home's as well while it waits for a member that would do.
    pub(crate) pool: PoolId,
    /// The pool of its database and user.
    pub(crate) home: PoolId,
    /// Its own user, where that is not its pool's.
    pub(crate) user: Option<Arc<str>>,
    /// Whether its home is a cluster.
    pub(crate) roams: bool,
    /// Which members would do: looked at when it asks for a server, so that it may change between
    /// transactions.
    pub(crate) role: ServerRole,
    /// Of which shard they have to be; `None` for any.
    pub(crate) shard: Option<u32>,
    /// Whether the primary does as well where no replica has got what the client wrote.
    pub(crate) may_lead: bool,
    /// Whether it wants to read what it wrote, from whichever server.
    pub(crate) minds_writes: bool,
    /// What it wrote, if it ever did and minds.
    pub(crate) floors: Option<Box<CausalToken>>,
    /// Which members would do by what it said when it came.
    pub(crate) own_role: Option<RolePreference>,
    /// Where its requests go, if it has a say in that.
    pub(crate) routing: Option<Box<Routing>>,
    /// What is under way on several shards.
    pub(crate) spread: Option<Box<Spread>>,
    pub(crate) part: Part,
    pub(crate) state: ClientState,
    /// When it logged in.
    pub(crate) came: Time,
    /// When it came to be where it is.
    pub(crate) since: Time,
    pub(crate) inlet: FrameCursor,
    /// What it is to find on its server.
    pub(crate) wishes: Arc<TrackedParameters>,
    /// What it asked for at its start.
    pub(crate) startup: Arc<TrackedParameters>,
    /// Whether its server has yet to accept that.
    pub(crate) syncing: Syncing,
    /// A cancel of its statement came while its server still worked for the pooler.
    pub(crate) cancel_due: bool,
    /// Its server went in the middle of a message: nothing more can be said to it.
    pub(crate) cut_off: bool,
    pub(crate) statements: ClientStatements,
    pub(crate) version: ProtocolVersion,
    secret: CancelSecret,
    /// The key that another process gave it.
    pub(crate) foreign_key: Option<Box<CancelKey>>,
    /// What it listens to, if it ever did, where its servers are others' too.
    pub(crate) listens: Option<Box<ClientChannels>>,
    /// Where it stands on the tape of a capture.
    pub(crate) mark: Mark,
    /// It was told that it waits.
    pub(crate) notified: bool,
    /// It has not taken all that was sent to it.
    pub(crate) backlogged: bool,
    /// The worker was told to read nothing from it.
    pub(crate) paused: bool,
}

impl Client {
    pub(crate) fn new(login: &ClientLogin, wishes: Arc<TrackedParameters>) -> Self {
        Self {
            pool: login.pool,
            home: login.pool,
            user: login.user.clone(),
            roams: false,
            role: ServerRole::default(),
            shard: None,
            may_lead: false,
            minds_writes: false,
            floors: None,
            own_role: login.role.map(RolePreference::from),
            routing: None,
            spread: None,
            part: Part::Whole,
            state: ClientState::Welcome,
            came: Time::default(),
            since: Time::default(),
            inlet: FrameCursor::default(),
            startup: Arc::clone(&wishes),
            wishes,
            syncing: Syncing::No,
            cancel_due: false,
            cut_off: false,
            statements: ClientStatements::default(),
            version: login.version,
            secret: login.secret,
            foreign_key: None,
            listens: None,
            mark: Mark::default(),
            notified: false,
            backlogged: false,
            paused: false,
        }
    }

    /// Whether somebody is connected, and not just a part of what the core does for one who is.
    #[inline]
    pub(crate) fn is_somebody(&self) -> bool {
        matches!(self.part, Part::Whole | Part::Mirrored(_))
    }

    /// Whose request it does, and where, if it does one of several shards'.
    #[inline]
    pub(crate) fn leg(&self) -> Option<Leg> {
        match self.part {
            Part::Leg(leg) => Some(leg),
            _ => None,
        }
    }

    /// Who is to look at it when it has got further, other than itself.
    #[inline]
    pub(crate) fn concern(&self, id: ClientId) -> Option<Unsettled> {
        match &self.part {
            Part::Whole => None,
            Part::Mirrored(_) => Some(Unsettled::Client(id)),
            Part::Leg(leg) => Some(Unsettled::Client(leg.parent)),
            Part::Shadow(shadow) => Some(Unsettled::Stream(shadow.stream)),
        }
    }

    pub(crate) fn server(&self) -> Option<ServerId> {
        match self.state {
            ClientState::Linked(server) => Some(server),
            _ => None,
        }
    }

    /// Whether it has sent, or begun to send, what has not been dealt with.
    pub(crate) fn asks(&self) -> bool {
        !self.inlet.held.is_empty()
            || !self.inlet.at_boundary()
            || self.syncing != Syncing::No
            || self.has_begun()
    }

    /// Whether it is in a transaction that no server knows of yet.
    pub(crate) fn has_begun(&self) -> bool {
        self.routing.as_ref().is_some_and(|routing| routing.begun.is_some())
    }

    /// What it has to send to have its statement cancelled. The process id says worker and slot; its
    /// sign bit is clear, because some clients take a negative one for an error.
    pub(crate) fn cancel_key(&self, worker: WorkerId, id: ClientId) -> CancelKey {
        if let Some(key) = &self.foreign_key {
            return CancelKey::clone(key);
        }
        let bytes = if self.version >= ProtocolVersion::V3_2 { 32 } else { 4 };
        let slot = u32::try_from(id.index()).expect("it was made of a u32") & SLOT_MASK;
        let process_id = u32::from(worker.0) << WORKER_SHIFT | NO_PROCESS | slot;
        let process_id = i32::try_from(process_id).expect("a worker's number has seven bits");
        CancelKey::new(process_id, &self.secret.0[..bytes])
            .expect("4 and 32 are lengths of secrets")
    }
}

const WORKER_SHIFT: u32 = 24;

/// No process of a system has such a number: Linux counts to 2²². A client that passes over notifications
/// of its own number is not to miss those of a server's.
const NO_PROCESS: u32 = 1 << 23;
const SLOT_MASK: u32 = NO_PROCESS - 1;

/// The worker that gave a key to one of its clients, if we gave it.
pub fn worker_of_key(key: &CancelKey) -> Option<WorkerId> {
    let process_id = u32::try_from(key.process_id()).ok()?;
    u8::try_from(process_id >> WORKER_SHIFT).ok().map(WorkerId)
}

/// The slot of the client that a key was given to.
pub(crate) fn slot_of_key(key: &CancelKey) -> Option<usize> {
    usize::try_from(key.process_id()).ok().map(|id| id & SLOT_MASK as usize)
}
