//! [`Plan`]: what a text's shape says about where it may go, learnt once and used for all texts of the shape.

use std::sync::Arc;

use crate::{copy::CopyFrom, fan::FanOut, keys::Row, refusal::NoShardKey, role::Cause};

/// What is known of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Why it needs the primary; none: it is sure to only read.
    pub(crate) primary: Option<Cause>,
    /// It is a single `BEGIN`.
    pub(crate) is_begin: bool,
    /// It makes a temporary object that outlives its transaction, or forgets all of them.
    pub(crate) temporary: Option<Temporary>,
    /// Which shards it reaches.
    pub(crate) reach: ShardScope,
    /// It holds for this very text only, not for others of its skeleton.
    pub(crate) is_exact: bool,
    /// It reads the catalog, which no two shards have alike.
    pub(crate) reads_catalog: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Temporary {
    Makes,
    Forgets,
}

/// Which shards a text reaches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ShardScope {
    /// No table: any shard is as good as another.
    Free,
    /// Nothing that is sharded: what the settings say of everything else holds.
    Unlisted { why: NoShardKey, reads: bool },
    /// The shard of keys; `otherwise` if they are of several or not understood.
    Keyed { table: Box<str>, rows: Vec<Row>, unlisted: Option<NoShardKey>, otherwise: MergePlan },
    /// All shards, or none.
    Keyless(MergePlan),
    /// Rows that come later, each with its key.
    Copy(Arc<CopyFrom>),
}

impl ShardScope {
    /// Whether the text's own constants may be asked for.
    pub(crate) fn has_keys(&self) -> bool {
        matches!(self, Self::Keyed { .. })
    }
}

/// How answers of several shards are put together, or why they cannot be.
pub(crate) type MergePlan = Result<Arc<FanOut>, NoShardKey>;

impl Plan {
    /// Of a text that nothing is known about.
    pub(crate) fn unreadable(why: NoShardKey) -> Self {
        Self {
            primary: Some(Cause::Unreadable),
            is_begin: false,
            temporary: None,
            reach: ShardScope::Keyless(Err(why)),
            is_exact: true,
            reads_catalog: false,
        }
    }
}
