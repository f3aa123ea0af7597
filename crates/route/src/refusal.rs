//! [`Refusal`]: what a client is told when a request goes nowhere.

use howdah_shard::{KeyError, NoShard};

/// Why a request goes nowhere.
///
/// A client is told so with severity ERROR, [`sqlstate`](Self::sqlstate), the text of `Display` and
/// [`hint`](Self::hint). Its session stays what it was: nothing has been sent and nothing has changed, and in
/// a transaction block the transaction goes on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// A command or hint with a value that cannot be.
    #[error("invalid value for {what}: {value:?} is not {wanted}")]
    Value {
        /// Of what.
        what: &'static str,
        /// The value.
        value: String,
        /// What it could be.
        wanted: &'static str,
    },
    /// A shard that is not there.
    #[error(
        "shard {shard} is not configured {shards}, staying on shard {} (shard numbers start at 0)",
        .stays.map_or("unset".to_owned(), |stays| stays.to_string())
    )]
    NoSuchShard {
        /// The shard.
        shard: u32,
        /// How many there are.
        shards: u32,
        /// That of the session, as before.
        stays: Option<u32>,
    },
    /// The shard that the session has said is not there any more.
    #[error(
        "shard {shard}, which this session has set, is not configured any more: there are {shards}"
    )]
    ShardGone {
        /// The shard.
        shard: u32,
        /// How many there are now.
        shards: u32,
    },
    /// Keys without a map.
    #[error("this database has no sharding key")]
    NoMap,
    /// A value is no key.
    #[error("{0}")]
    Key(#[from] KeyError),
    /// No shard is for the key.
    #[error("{0}")]
    Nowhere(#[from] NoShard),
    /// A command while a server is linked.
    #[error("{tag} is not possible {}", if *.in_session_mode {
        "any more: in session mode the first statement fixes server and shard"
    } else {
        "inside a transaction"
    })]
    TooLate {
        /// The command.
        tag: &'static str,
        /// Whether it is for the rest of the session.
        in_session_mode: bool,
    },
    /// The role `auto` in a build without PostgreSQL's grammar.
    #[error(
        "server role 'auto' is not available: this build cannot read statements (build with --features grammar)"
    )]
    NoGrammar,
    /// A command among other statements.
    #[error(
        "commands of the pooler are answered by it, and not in one batch with other statements"
    )]
    NotAlone,
    /// The request is for another shard than the one that its transaction or session is on.
    #[error("the statement is for shard {wanted}, and the {} on shard {linked}", if *.in_session_mode {
        "session is"
    } else {
        "transaction is"
    })]
    OtherShard {
        /// Where it would go.
        wanted: u32,
        /// Where it would have to go.
        linked: u32,
        /// Whether that is for the rest of the session.
        in_session_mode: bool,
    },
    /// Rows of several shards where all have to be of one.
    #[error("the statement is for several shards: {shards:?}")]
    SeveralShards {
        /// Some of them, in order.
        shards: Vec<u32>,
    },
    /// A row of a COPY that cannot be sent to its shard.
    #[error("a row of the COPY tells no shard: {0}")]
    CopyRow(&'static str),
    /// Nothing tells the shard.
    #[error("no shard for this statement: {0}")]
    Keyless(NoShardKey),
}

/// Why a statement does not tell its shard.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum NoShardKey {
    /// PostgreSQL's grammar does not take it, or it is too long or too deeply nested.
    #[error("it cannot be read")]
    Unreadable,
    /// The build is one without PostgreSQL's grammar.
    #[error("this build cannot read statements (build with --features grammar)")]
    NoGrammar,
    /// Letters beyond ASCII, or backslashes, that mean something else on the server.
    #[error("its text is in an encoding, or has escapes, that the pooler does not follow")]
    Encoding,
    /// A write of a sharded table without its key.
    #[error(
        "it writes to the sharded table {0:?} and does not give the key as a constant or a parameter"
    )]
    Write(Box<str>),
    /// A write that names a key column to be changed.
    #[error("it changes the sharding key of {0:?}")]
    ChangesKey(Box<str>),
    /// An INSERT without a list of columns.
    #[error("its columns are not named, so which is the key of {0:?} is not known")]
    Columns(Box<str>),
    /// A read of a sharded table without its key, of a form whose answer cannot be put together.
    #[error("it does not give the key of {table:?}, and answers of several shards {why}")]
    Read {
        /// The table.
        table: Box<str>,
        /// Why not.
        why: &'static str,
    },
    /// Of a read that could be put together, but not in a transaction or among other statements.
    #[error("it reads several shards, which {0}")]
    Spread(&'static str),
    /// A table that is not among the settings.
    #[error("the table {0:?} is not among the pooler's sharded tables")]
    Unlisted(Box<str>),
    /// A write of a table that every shard has whole.
    #[error("it writes to {0:?}, which has to be the same on every shard")]
    Everywhere(Box<str>),
    /// A function that may read or write anything.
    #[error("it runs code that may use tables of any shard")]
    Function,
    /// A statement that is not a query, of a sharded table or of something that is on one server.
    #[error("statements of this kind have to be sent to one shard")]
    Kind,
    /// A value that would be the key is not understood.
    #[error(
        "the value for the sharding key of {0:?} is not a plain constant or parameter of its type"
    )]
    Value(Box<str>),
}

impl Refusal {
    /// Five characters that programs understand.
    pub fn sqlstate(&self) -> [u8; 5] {
        *match self {
            Self::Value { .. } => b"22023",
            Self::NoSuchShard { .. } | Self::ShardGone { .. } => b"58000",
            Self::NoMap => b"55000",
            Self::Key(_) => b"22P02",
            Self::Nowhere(NoShard::Nowhere(_)) => b"23514",
            Self::Nowhere(_) => b"22023",
            Self::TooLate { .. } => b"25001",
            Self::CopyRow(_) => b"22P04",
            Self::NotAlone
            | Self::NoGrammar
            | Self::OtherShard { .. }
            | Self::SeveralShards { .. }
            | Self::Keyless(_) => b"0A000",
        }
    }

    /// What can be done about it.
    pub fn hint(&self) -> Option<&'static str> {
        Some(match self {
            Self::Keyless(NoShardKey::Columns(_)) => {
                "Name the columns: INSERT INTO t (a, b) VALUES …."
            }
            Self::Keyless(NoShardKey::ChangesKey(_)) => {
                "Delete the row on one shard and insert it on the other."
            }
            Self::Keyless(_) => {
                "Give the key in the statement, or say where it goes: SET SHARDING KEY TO '…' or SET SHARD \
                 TO '…'."
            }
            Self::SeveralShards { .. } => {
                "Send the rows of each shard by a statement of their own."
            }
            Self::OtherShard { .. } => "A transaction is on one shard: end it first.",
            Self::NotAlone => "Send a Sync between them.",
            Self::TooLate { in_session_mode: false, .. } => "End the transaction first.",
            Self::TooLate { .. } => "Connect again, and send this first.",
            Self::NoMap => "Say the shard itself: SET SHARD TO '…'.",
            _ => return None,
        })
    }
}
