//! [`Spread`]: a client's request that is done on several shards. [`Leg`]: its part on one of them.
//!
//! A leg is a client of the core's own: it waits for a server, finds the client's settings there, and has what
//! it leaves behind cleaned up, as any other. Only what it is told goes to a [`Merger`] and not to a socket.
//!
//! Legs begin one after another, in the order of their shards, each when the one before has its server. So
//! what waits for a shard never holds one that is behind it, and no two clients wait for each other. Where shards
//! share a limit of servers, that order is not enough: no more begin than a [`Turn`] allows.

use std::sync::Arc;

use howdah_route::{Asked, CopyFrom, CopyRows, Merger};
use howdah_shard::ShardMap;

use crate::{cluster::ServerRole, ids::ClientId, limits::Turn};

/// Whose leg it is, and which.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Leg {
    pub(crate) parent: ClientId,
    pub(crate) place: usize,
}

/// What is to be done on several shards.
#[derive(Debug)]
pub(crate) struct FanOutRequest {
    pub(crate) shards: Vec<u32>,
    pub(crate) role: ServerRole,
    /// Whether the primary does as well where no replica has what the client wrote.
    pub(crate) may_lead: bool,
    /// What every shard is sent first.
    pub(crate) request: Vec<u8>,
    /// The same, as answers come to it.
    pub(crate) asked: Vec<Asked>,
    /// The rows that follow, if it is a COPY.
    pub(crate) copy: Option<Rows>,
    /// So many bytes of what the client has sent.
    pub(crate) bytes: usize,
    /// Text is in the order of its bytes on every shard.
    pub(crate) text_by_byte: bool,
}

/// How the rows of a COPY are split.
#[derive(Debug)]
pub(crate) struct Rows {
    pub(crate) of: Arc<CopyFrom>,
    pub(crate) map: ShardMap,
    pub(crate) same_encoding: bool,
}

/// What is under way.
#[derive(Debug)]
pub(crate) struct Spread {
    pub(crate) what: FanOutRequest,
    pub(crate) merger: Merger,
    /// Those that have begun; nothing for those that have ended.
    pub(crate) legs: Vec<Option<ClientId>>,
    pub(crate) copying: Option<Copying>,
    /// The client was told of an error, and the legs to end.
    pub(crate) winds_up: bool,
    /// Leave to hold servers of several shards, once it has that.
    pub(crate) turn: Option<Turn>,
}

/// A COPY of a client's rows to several shards.
///
/// ```text
/// Begins ──► Takes ──► Ends ──► Commits
///    └─────────┴─────────┴── an error: ROLLBACK everywhere
/// ```
#[derive(Debug)]
pub(crate) struct Copying {
    pub(crate) phase: CopyPhase,
    pub(crate) rows: CopyRows,
    pub(crate) map: ShardMap,
    pub(crate) same_encoding: bool,
    /// Bytes to come of the CopyData that has begun.
    pub(crate) data_left: u32,
    /// What each shard gets next.
    pub(crate) buffers: Vec<Vec<u8>>,
}

/// How far a COPY is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CopyPhase {
    /// Not every shard has said yet that it takes rows.
    Begins,
    /// The client sends rows.
    Takes,
    /// All rows are sent, or none more are wanted.
    Ends,
    /// Every shard was told to commit, or to roll back.
    Commits,
}

impl Spread {
    /// Whether what its client sends are rows, and can be dealt with.
    pub(crate) fn takes_data(&self) -> bool {
        self.copying.as_ref().is_some_and(|copying| copying.phase == CopyPhase::Takes)
    }
}
