//! [`Refusal`]: the error for a request that cannot be routed.

use crate::shard::{NoShard, ShardKeyError};

/// The reason why a request cannot be routed.
///
/// The client receives severity ERROR, [`sqlstate`](Self::sqlstate), the text of `Display` and
/// [`hint`](Self::hint). The client's session is unaffected: nothing was sent to a server, no
/// setting has changed, and an open transaction block stays open. The exception is a row of a COPY:
/// if it is refused, the COPY has already started, and fails.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The value in a command or hint is invalid.
    #[error("invalid value for {parameter}: {value:?} is not {expected}")]
    Value {
        /// Name of the command's or hint's parameter.
        parameter: &'static str,
        /// The value as the client wrote it.
        value: String,
        /// Description of the valid values.
        expected: &'static str,
    },
    /// A command or hint names a shard that does not exist.
    #[error(
        "shard {shard} does not exist: shard numbers start at 0, and the number of shards is \
         {shards}; the session's shard is still {}",
        .stays.map_or("unset".to_owned(), |stays| stays.to_string())
    )]
    NoSuchShard {
        /// The shard that was requested.
        shard: u32,
        /// Number of shards.
        shards: u32,
        /// The shard that the session set earlier, which stays in effect.
        stays: Option<u32>,
    },
    /// The shard that the session has set no longer exists.
    #[error(
        "shard {shard}, which this session has set, is no longer configured: the number of shards is now {shards}"
    )]
    ShardGone {
        /// The shard that the session has set.
        shard: u32,
        /// Number of shards now.
        shards: u32,
    },
    /// A sharding key was given for a database without a shard map.
    #[error("this database has no shard map, so a sharding key selects no shard")]
    NoMap,
    /// A value is not a valid key for the shard map.
    #[error("{0}")]
    Key(#[from] ShardKeyError),
    /// The key does not match the columns of the shard map, or no shard is configured for it.
    #[error("{0}")]
    NoShard(#[from] NoShard),
    /// A command that changes routing was sent while a server is linked, or after a BEGIN that has
    /// not been sent to a server yet.
    #[error("{tag} is not possible {}", if *.in_session_mode {
        "any more: in session mode the first statement fixes the server and shard"
    } else {
        "inside a transaction"
    })]
    ServerLinked {
        /// The command's CommandComplete tag, such as `SET SHARD`.
        tag: &'static str,
        /// Whether the server is linked for the whole session instead of one transaction.
        in_session_mode: bool,
    },
    /// The client requested the role `auto` by a command or hint, but the build does not include
    /// PostgreSQL's grammar.
    #[error(
        "server role 'auto' is not available: this build cannot analyze statements (build with --features grammar)"
    )]
    NoGrammar,
    /// A command was sent together with other statements.
    #[error("pooler commands such as SET SHARD cannot be sent in one batch with other statements")]
    MixedBatch,
    /// The request is for another shard than the one that its transaction or session is linked to.
    #[error("the statement is for shard {wanted}, and the {} on shard {linked}", if *.in_session_mode {
        "session is"
    } else {
        "transaction is"
    })]
    OtherShard {
        /// The shard of the statement.
        wanted: u32,
        /// The shard of the linked server.
        linked: u32,
        /// Whether the server is linked for the whole session instead of one transaction.
        in_session_mode: bool,
    },
    /// A statement that must reach a single shard concerns rows on several.
    #[error("the statement is for several shards: {shards:?}")]
    SeveralShards {
        /// The shards of the statement's keys, in ascending order.
        shards: Vec<u32>,
    },
    /// The shard of a COPY row cannot be determined.
    #[error("cannot determine the shard of a COPY row: {0}")]
    CopyRow(&'static str),
    /// No shard can be determined for a statement.
    #[error("no shard for this statement: {0}")]
    UnknownShard(NoShardKey),
}

/// The reason why the shard of a statement is unknown.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum NoShardKey {
    /// The request cannot be parsed: PostgreSQL's grammar rejects it, or it is too long or too
    /// deeply nested.
    #[error("it cannot be parsed")]
    Unreadable,
    /// The build does not include PostgreSQL's grammar.
    #[error("this build cannot analyze statements (build with --features grammar)")]
    NoGrammar,
    /// The text or a key has non-ASCII characters or backslashes that the server may read
    /// differently.
    #[error("its text uses an encoding or escapes that the pooler does not support")]
    Encoding,
    /// The statement writes to a sharded table, or locks its rows, and does not give the key.
    #[error(
        "it writes or locks rows of the sharded table {0:?} and does not give the key as a constant or a parameter"
    )]
    Write(Box<str>),
    /// The statement changes a key column.
    #[error("it changes the sharding key of {0:?}")]
    ChangesKey(Box<str>),
    /// The statement is an INSERT or COPY without a column list.
    #[error("its columns are not named, so the key of {0:?} is unknown")]
    Columns(Box<str>),
    /// The statement reads a sharded table without giving the key, and results of several shards
    /// cannot be merged.
    #[error("it does not give the key of {table:?}, and results of several shards {why}")]
    Read {
        /// Name of the table.
        table: Box<str>,
        /// The reason why results cannot be merged, as the end of the error's sentence.
        why: &'static str,
    },
    /// The statement uses several shards, which is not possible here, for example in a transaction,
    /// together with other statements, or within EXPLAIN.
    #[error("it uses several shards, which {0}")]
    FanOutNotAllowed(&'static str),
    /// The statement uses a table that is not in the settings.
    #[error("the table {0:?} is not listed in the pooler's sharding settings")]
    Unlisted(Box<str>),
    /// The statement writes to a table that is replicated to every shard.
    #[error("it writes to {0:?}, which must be the same on every shard")]
    ReplicatedTable(Box<str>),
    /// The request calls a function that may read or write any table.
    #[error("it runs code that may use tables on any shard")]
    Function,
    /// The statement is of a kind, or has options, for which no shard can be determined, such as
    /// DDL.
    #[error("statements of this kind must be sent to one shard")]
    Kind,
    /// The value of a key cannot be determined with certainty, for example because it is not a
    /// plain constant or parameter of the key's type.
    #[error(
        "the value for the sharding key of {0:?} is not a plain constant or parameter of its type"
    )]
    Value(Box<str>),
}

impl Refusal {
    /// Returns the SQLSTATE of the error.
    pub fn sqlstate(&self) -> [u8; 5] {
        *match self {
            Self::Value { .. } => b"22023",
            Self::NoSuchShard { .. } | Self::ShardGone { .. } => b"58000",
            Self::NoMap => b"55000",
            Self::Key(_) => b"22P02",
            Self::NoShard(NoShard::KeyNotMapped(_)) => b"23514",
            Self::NoShard(_) => b"22023",
            Self::ServerLinked { .. } => b"25001",
            Self::CopyRow(_) => b"22P04",
            Self::MixedBatch
            | Self::NoGrammar
            | Self::OtherShard { .. }
            | Self::SeveralShards { .. }
            | Self::UnknownShard(_) => b"0A000",
        }
    }

    /// Returns the hint for the client, if there is one.
    pub fn hint(&self) -> Option<&'static str> {
        Some(match self {
            Self::UnknownShard(NoShardKey::Columns(_)) => {
                "Name the columns: INSERT INTO t (a, b) VALUES …."
            }
            Self::UnknownShard(NoShardKey::ChangesKey(_)) => {
                "Delete the row on one shard and insert it on the other."
            }
            Self::UnknownShard(_) => {
                "Give the key in the statement, or set the shard: SET SHARDING KEY TO '…' or SET SHARD \
                 TO '…'."
            }
            Self::SeveralShards { .. } => "Send the rows of each shard in a separate statement.",
            Self::OtherShard { in_session_mode: false, .. } => {
                "A transaction is on one shard: finish it first."
            }
            Self::OtherShard { .. } => "Reconnect to use another shard.",
            Self::MixedBatch => "Send a Sync between them.",
            Self::ServerLinked { in_session_mode: false, .. } => "Finish the transaction first.",
            Self::ServerLinked { .. } => "Reconnect, and send this first.",
            Self::NoMap => "Set the shard: SET SHARD TO '…'.",
            _ => return None,
        })
    }
}
