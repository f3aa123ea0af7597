//! [`Route`]: the destination of a request.

use std::sync::Arc;

use crate::{
    copy::CopyFrom,
    fan_out::FanOut,
    role::{PrimaryReason, RouteRole},
};

/// The shards and the role of servers that a request goes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The shards that receive the request.
    pub shards: ShardTarget,
    /// The role of the server on each shard.
    pub role: RouteRole,
    /// Whether the primary may be used if no replica has replayed the client's writes; false if the
    /// client, the settings or a hint require a replica.
    pub may_use_primary: bool,
    /// The reason why the text needs the primary; `None` if it only reads, or was not analyzed.
    pub primary_reason: Option<PrimaryReason>,
    /// Whether the text is a single `BEGIN`, which may be held until the next request determines
    /// the route: see [`RouteSession::defer_begin`](crate::RouteSession::defer_begin). Set only if
    /// the text was analyzed.
    pub is_begin: bool,
}

/// The shards that a request goes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShardTarget {
    /// Any single shard.
    Any,
    /// The shard with this number.
    One(u32),
    /// Several shards, whose results are merged.
    Many {
        /// Numbers of the shards, in ascending order.
        shards: Vec<u32>,
        /// The rule for merging the results of the shards.
        fan_out: Arc<FanOut>,
    },
    /// All shards, for a COPY from the client. Each of its rows then goes to the shard of the row's
    /// key.
    Copy(Arc<CopyFrom>),
}
