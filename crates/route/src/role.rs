//! Which servers of a shard would do.

/// What a session wants for its requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum RolePreference {
    /// The primary, always.
    Primary,
    /// A replica, always: what writes fails there.
    Replica,
    /// A replica, or any server if there is no replica that would do.
    PreferReplica,
    /// Any server that takes requests, whatever they are.
    #[default]
    Any,
    /// By what the request does: the primary, unless it is sure to only read.
    Auto,
}

impl RolePreference {
    /// Every wish.
    pub const ALL: [Self; 5] =
        [Self::Primary, Self::Replica, Self::PreferReplica, Self::Any, Self::Auto];

    /// The word that stands for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Primary => "primary",
            Self::Replica => "replica",
            Self::PreferReplica => "prefer-replica",
            Self::Any => "any",
            Self::Auto => "auto",
        }
    }

    /// By its word, in any case.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|wish| word.eq_ignore_ascii_case(wish.as_str()))
    }
}

/// Which server of a shard a request may go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// The primary only.
    Primary,
    /// Replicas only.
    Replica,
    /// Replicas, or all of them if there is no replica that would do.
    PreferReplica,
    /// All of them.
    Any,
}

/// Why a request needs the primary though nobody said so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// It changes data, schema or the server.
    Writes,
    /// It takes locks that others notice: `FOR UPDATE`, `LOCK`.
    Locks,
    /// It calls a function that is not known to only read.
    Function,
    /// PostgreSQL's grammar does not take it, or it is too long or too deeply nested to be looked at.
    Unreadable,
    /// It begins a transaction that may write, or one that is serializable, which replicas refuse.
    Transaction,
    /// It is about the session: settings, prepared statements, cursors, channels.
    Session,
    /// It names a temporary table, or the session has made one.
    Temporary,
}
