//! [`ActiveFanOut`]: a client's request that runs on several shards. [`SubRequest`]: its part on
//! one of them.
//!
//! A sub-request is run by an internal client: it waits for a server, gets the client's parameters
//! there, and its session state is reset afterwards, as for any client. Only its replies go to a
//! [`Merger`] instead of a socket.
//!
//! Sub-requests start one after another, in the order of their shards, each once the one before has
//! its server. So a sub-request that waits for a shard never holds a later shard, and no two
//! clients deadlock. Where shards share a limit of servers, that order is not enough: only as many
//! start as an [`AcquireGuard`] allows.

use std::sync::Arc;

use howdah_route::shard::ShardMap;
use howdah_route::{CopyFrom, CopyRowSplitter, Merger, ShardRequest};

use crate::{
    cluster::TargetRole,
    core::state::{ids::ClientId, limits::AcquireGuard},
};

/// Identifies a sub-request by its client and index.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SubRequest {
    pub(crate) parent: ClientId,
    pub(crate) index: usize,
}

/// A request for several shards.
#[derive(Debug)]
pub(crate) struct FanOutRequest {
    pub(crate) shards: Vec<u32>,
    pub(crate) role: TargetRole,
    /// Whether the primary is also suitable while no replica has replayed the client's writes.
    pub(crate) can_use_primary: bool,
    /// The messages that every shard is sent first.
    pub(crate) messages: Vec<u8>,
    /// The same messages, as far as they are answered.
    pub(crate) expected_replies: Vec<ShardRequest>,
    /// The rows that follow, for a COPY.
    pub(crate) copy: Option<CopyRowRouting>,
    /// How many bytes of the client's input it takes.
    pub(crate) bytes: usize,
    /// Whether text is sorted by its bytes on every shard.
    pub(crate) has_byte_collation: bool,
}

/// How the rows of a COPY are split.
#[derive(Debug)]
pub(crate) struct CopyRowRouting {
    pub(crate) statement: Arc<CopyFrom>,
    pub(crate) map: ShardMap,
    pub(crate) has_same_encoding: bool,
}

/// A request in progress.
#[derive(Debug)]
pub(crate) struct ActiveFanOut {
    pub(crate) request: FanOutRequest,
    pub(crate) merger: Merger,
    /// The clients of sub-requests that have started; `None` for finished ones.
    pub(crate) sub_requests: Vec<Option<ClientId>>,
    pub(crate) copy: Option<FanOutCopy>,
    /// The client has received an error, and the sub-requests are being ended.
    pub(crate) is_aborting: bool,
    /// Permission to hold servers of several shards, once granted.
    pub(crate) acquire_guard: Option<AcquireGuard>,
}

/// A COPY of a client's rows to several shards.
///
/// ```text
/// Starting ──► Receiving ──► Finishing ──► Committing
///     └────────────┴─────────────┴── on error: ROLLBACK on all shards
/// ```
#[derive(Debug)]
pub(crate) struct FanOutCopy {
    pub(crate) phase: CopyPhase,
    pub(crate) rows: CopyRowSplitter,
    pub(crate) map: ShardMap,
    pub(crate) has_same_encoding: bool,
    /// Remaining bytes of the current CopyData.
    pub(crate) data_left: u32,
    /// The next bytes for each shard.
    pub(crate) buffers: Vec<Vec<u8>>,
}

/// Progress of a COPY.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CopyPhase {
    /// Not every shard accepts rows yet.
    Starting,
    /// The client sends rows.
    Receiving,
    /// All rows are sent, or no more are accepted.
    Finishing,
    /// Every shard was sent a COMMIT, or a ROLLBACK.
    Committing,
}

impl ActiveFanOut {
    /// Whether its client's input consists of rows that can be processed now.
    pub(crate) fn accepts_copy_data(&self) -> bool {
        self.copy.as_ref().is_some_and(|copying| copying.phase == CopyPhase::Receiving)
    }
}
