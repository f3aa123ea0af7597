//! Which servers of a shard may handle a request.

/// A session's preference for the servers of its requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum RolePreference {
    /// Always the primary.
    Primary,
    /// Always a replica: writes fail there.
    Replica,
    /// A replica, or any server if no replica is usable.
    PreferReplica,
    /// Any server that accepts requests, regardless of the request.
    #[default]
    Any,
    /// Depends on the request: the primary, unless it is certain to only read.
    Auto,
}

impl RolePreference {
    /// All preferences.
    pub const ALL: [Self; 5] =
        [Self::Primary, Self::Replica, Self::PreferReplica, Self::Any, Self::Auto];

    /// The keyword for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Primary => "primary",
            Self::Replica => "replica",
            Self::PreferReplica => "prefer-replica",
            Self::Any => "any",
            Self::Auto => "auto",
        }
    }

    /// Parses the keyword, in any case.
    pub fn parse(keyword: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| keyword.eq_ignore_ascii_case(role.as_str()))
    }
}

/// The servers of a shard that a request may go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RouteRole {
    /// The primary only.
    Primary,
    /// Replicas only.
    Replica,
    /// Replicas, or any server if no replica is usable.
    PreferReplica,
    /// Any server.
    Any,
}

/// Why a request needs the primary although the session did not ask for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PrimaryReason {
    /// It changes data, schema or the server.
    Writes,
    /// It takes locks that block other sessions: `FOR UPDATE`, `LOCK`.
    Locks,
    /// It calls a function that is not known to be read-only.
    Function,
    /// PostgreSQL's grammar rejects it, or it is too long or too deeply nested to analyze.
    Unreadable,
    /// It starts a transaction that may write, or a serializable one, which replicas refuse.
    Transaction,
    /// It depends on session state: settings, prepared statements, cursors, channels.
    Session,
    /// It names a temporary table, or the session has created one.
    Temporary,
}
