//! [`Route`]: the destination of a request.

use std::sync::Arc;

use crate::{
    copy::CopyFrom,
    fan_out::FanOut,
    role::{PrimaryReason, RouteRole},
};

/// The destination of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The shards.
    pub shards: ShardTarget,
    /// The server role on each shard.
    pub role: RouteRole,
    /// Whether the primary may be used if no replica has replayed the client's writes; false where
    /// the client, the settings or a hint say `replica`.
    pub may_use_primary: bool,
    /// Why the text needs the primary; `None` if it only reads, or was not analyzed.
    pub primary_reason: Option<PrimaryReason>,
    /// It is a single `BEGIN`, which may be held until the next request determines the route: see
    /// [`RouteSession::defer_begin`](crate::RouteSession::defer_begin). Set only if the text was
    /// analyzed.
    pub is_begin: bool,
}

/// The shards that a request goes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShardTarget {
    /// Any one shard.
    Any,
    /// This shard.
    One(u32),
    /// Each of these, in ascending order; the results are merged.
    Many {
        /// The shards.
        shards: Vec<u32>,
        /// How their results are merged.
        fan_out: Arc<FanOut>,
    },
    /// Each row of a COPY goes to the shard of its key, so all shards start it.
    Copy(Arc<CopyFrom>),
}
