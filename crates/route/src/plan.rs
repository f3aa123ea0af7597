//! [`RoutePlan`]: where statements of a shape may go, computed once and used for all texts of the
//! shape.

use std::sync::Arc;

use crate::{
    copy::CopyFrom, fan_out::FanOut, keys::KeySource, refusal::NoShardKey, role::PrimaryReason,
};

/// What is known about a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RoutePlan {
    /// Why it needs the primary; `None` if it is certain to only read.
    pub(crate) primary: Option<PrimaryReason>,
    /// It is a single `BEGIN`.
    pub(crate) is_begin: bool,
    /// It creates a temporary object that outlives its transaction, or discards them all.
    pub(crate) temporary: Option<Temporary>,
    /// Which shards it reaches.
    pub(crate) scope: ShardScope,
    /// The plan is valid for this exact text only, not for other texts with the same parameterized
    /// text.
    pub(crate) is_exact: bool,
    /// It reads the catalog, which differs between shards.
    pub(crate) reads_catalog: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Temporary {
    Creates,
    Discards,
}

/// Which shards a text reaches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ShardScope {
    /// It uses no table: any shard will do.
    Free,
    /// It uses no sharded table: the settings for unlisted tables apply.
    Unlisted { why: NoShardKey, reads: bool },
    /// The shard of the keys; `otherwise` applies if they are on several shards or not supported.
    Keyed {
        table: Box<str>,
        rows: Vec<KeySource>,
        unlisted: Option<NoShardKey>,
        otherwise: MergePlan,
    },
    /// All shards, or an error.
    Unkeyed(MergePlan),
    /// Rows that arrive later, each with its key.
    Copy(Arc<CopyFrom>),
}

impl ShardScope {
    /// Whether constants of the text may be needed to find the shard.
    pub(crate) fn has_keys(&self) -> bool {
        matches!(self, Self::Keyed { .. })
    }
}

/// How the results of several shards are merged, or why they cannot be.
pub(crate) type MergePlan = Result<Arc<FanOut>, NoShardKey>;

impl RoutePlan {
    /// The plan of a text about which nothing is known.
    pub(crate) fn unreadable(why: NoShardKey) -> Self {
        Self {
            primary: Some(PrimaryReason::Unreadable),
            is_begin: false,
            temporary: None,
            scope: ShardScope::Unkeyed(Err(why)),
            is_exact: true,
            reads_catalog: false,
        }
    }
}
