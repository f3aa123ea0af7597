//! [`RoutePlan`]: the possible destinations of a statement, computed once for all texts that differ
//! only in constants.

use std::sync::Arc;

use crate::{
    copy::CopyFrom, fan_out::FanOut, keys::KeySource, refusal::NoShardKey, role::PrimaryReason,
};

/// The properties of a text that determine its route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RoutePlan {
    /// The reason why the text needs the primary; `None` if it is certain to only read.
    pub(crate) primary: Option<PrimaryReason>,
    /// Whether the text is a single `BEGIN`.
    pub(crate) is_begin: bool,
    /// Whether the text creates a temporary object or discards all of them, whichever it does last;
    /// `None` if neither.
    pub(crate) temporary: Option<Temporary>,
    /// The shards that the text reaches.
    pub(crate) scope: ShardScope,
    /// Whether the plan is valid for this exact text only, not for other texts with the same
    /// parameterized text.
    pub(crate) is_exact: bool,
    /// Whether the text reads the catalog, which differs between shards.
    pub(crate) reads_catalog: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Temporary {
    Creates,
    Discards,
}

/// The shards that a text reaches, or how to find them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ShardScope {
    /// Any single shard: the text uses no tables, or only replicated ones and system catalogs.
    Free,
    /// The default shard: the text uses no sharded table, but unlisted tables or unknown functions,
    /// or it is of a kind that is not analyzed. `why` is the reason for a refusal if the default
    /// shard cannot be used; `reads` is whether the text only reads.
    Unlisted { why: NoShardKey, reads: bool },
    /// The shard of the keys; `otherwise` applies if the keys are on several shards or not
    /// supported.
    Keyed {
        table: Box<str>,
        rows: Vec<KeySource>,
        unlisted: Option<NoShardKey>,
        otherwise: MergePlan,
    },
    /// All shards, if their results can be merged; otherwise the request is refused.
    Unkeyed(MergePlan),
    /// All shards, for a COPY whose rows arrive later, each with its key.
    Copy(Arc<CopyFrom>),
}

impl ShardScope {
    /// Whether constants or parameters of the text determine the shard.
    pub(crate) fn has_keys(&self) -> bool {
        matches!(self, Self::Keyed { .. })
    }
}

/// The rule for merging the results of several shards, or the reason why they cannot be merged.
pub(crate) type MergePlan = Result<Arc<FanOut>, NoShardKey>;

impl RoutePlan {
    /// Returns the plan of a text that could not be analyzed, for the reason `why`.
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
