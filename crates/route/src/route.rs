//! [`Route`]: where a request goes.

use std::sync::Arc;

use crate::{
    copy::CopyFrom,
    fan::FanOut,
    role::{Cause, Role},
};

/// Where a request goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// To which shards.
    pub shards: Shards,
    /// To which server of each.
    pub role: Role,
    /// Whether the primary does as well where no replica has got what the client wrote; not where the client, the
    /// settings or a hint say `replica`.
    pub may_lead: bool,
    /// Why its text needs the primary; none if it only reads, or has not been looked at.
    pub why: Option<Cause>,
    /// It is nothing but a `BEGIN`, and may be kept until the next request tells where it goes: see
    /// [`Session::begun`](crate::Session::begun). Only told where the text has been looked at.
    pub is_begin: bool,
}

/// To which shards a request goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shards {
    /// One, whichever.
    Any,
    /// This one.
    One(u32),
    /// Each of these, in ascending order, and the answers are put together.
    Many {
        /// The shards.
        shards: Vec<u32>,
        /// How their answers become one.
        how: Arc<FanOut>,
    },
    /// Each row of a COPY to the shard of its key, so all shards begin it.
    Copy(Arc<CopyFrom>),
}
