//! [`ActiveFanOut`]: a client's request that runs on several shards. [`SubRequest`]: the part of it
//! that runs on one shard.
//!
//! A sub-request is run by an internal client: it waits for a server, gets the client's parameters
//! there, and its session state is reset afterwards, as for any client. But its replies go to a
//! [`Merger`] instead of a socket.
//!
//! Sub-requests start one after another, in the order of their shards, each once the previous one
//! has its server. So a request that waits for a shard never holds a server of a later shard, and
//! no two clients deadlock. If shards share a connection limit, that order is not enough: an
//! [`AcquireGuard`] then limits how many requests start.

use std::sync::Arc;

use howdah_route::shard::ShardMap;
use howdah_route::{CopyFrom, CopyRowSplitter, Merger, ShardRequest};

use crate::{
    cluster::TargetRole,
    state::{ids::ClientId, limits::AcquireGuard},
    time::Time,
};

/// Identifies a sub-request by its client and index.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SubRequest {
    pub(crate) parent: ClientId,
    pub(crate) index: usize,
}

/// A request to run on several shards.
#[derive(Debug)]
pub(crate) struct FanOutRequest {
    pub(crate) shards: Vec<u32>,
    pub(crate) role: TargetRole,
    /// Whether the primary is also suitable while no replica has replayed the client's writes.
    pub(crate) can_use_primary: bool,
    /// The messages to send to each shard before any rows of a COPY.
    pub(crate) messages: Vec<u8>,
    /// The requests among `messages` that each shard replies to, in order.
    pub(crate) expected_replies: Vec<ShardRequest>,
    /// The assignment of a COPY's rows to shards; `None` for other requests.
    pub(crate) copy: Option<CopyRowRouting>,
    /// Length of the request in the client's input, in bytes.
    pub(crate) bytes: usize,
    /// Whether every shard sorts text by its bytes, so that the merger can compare it.
    pub(crate) has_byte_collation: bool,
}

/// The COPY statement and shard map by which rows are assigned to shards.
#[derive(Debug)]
pub(crate) struct CopyRowRouting {
    pub(crate) statement: Arc<CopyFrom>,
    pub(crate) map: ShardMap,
    pub(crate) has_same_encoding: bool,
}

/// The state of a fan-out request in progress.
#[derive(Debug)]
pub(crate) struct ActiveFanOut {
    pub(crate) request: FanOutRequest,
    pub(crate) merger: Merger,
    /// The internal clients of sub-requests that have started, in shard order; `None` for finished
    /// or dropped ones.
    pub(crate) sub_requests: Vec<Option<ClientId>>,
    pub(crate) copy: Option<FanOutCopy>,
    /// Whether the client has received an error and the remaining sub-requests are being stopped.
    pub(crate) is_aborting: bool,
    /// Time at which the remaining sub-requests were last cancelled.
    pub(crate) cancelled_at: Time,
    /// Permission to hold servers of several shards at once, if granted.
    pub(crate) acquire_guard: Option<AcquireGuard>,
}

/// The state of a COPY of a client's rows to several shards.
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
    /// Bytes of the current CopyData message that have not been received yet.
    pub(crate) data_left: u32,
    /// Rows for each shard that have not been sent yet, in shard order.
    pub(crate) buffers: Vec<Vec<u8>>,
}

/// Progress of a COPY to several shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CopyPhase {
    /// Not every shard accepts rows yet.
    Starting,
    /// The client sends rows.
    Receiving,
    /// All rows are sent, or an error has ended the COPY.
    Finishing,
    /// A COMMIT, or a ROLLBACK, has been sent to every shard.
    Committing,
}

impl ActiveFanOut {
    /// Whether the client's input consists of COPY rows that can be processed now.
    pub(crate) fn accepts_copy_data(&self) -> bool {
        self.copy.as_ref().is_some_and(|copying| copying.phase == CopyPhase::Receiving)
    }
}
