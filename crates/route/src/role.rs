//! Roles of the servers that may handle a request: the session's preference, and the router's
//! decision.

/// A session's preference for the role of the servers that handle its requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum RolePreference {
    /// Always the primary.
    Primary,
    /// Always a replica, where writes fail.
    Replica,
    /// A replica, or any server if no replica is usable.
    PreferReplica,
    /// Any usable server, whether the request writes or not.
    #[default]
    Any,
    /// The primary, unless the request is certain to only read; in session mode, always the
    /// primary.
    Auto,
}

impl RolePreference {
    /// All preferences, in the order in which the documentation lists them.
    pub const ALL: [Self; 5] =
        [Self::Primary, Self::Replica, Self::PreferReplica, Self::Any, Self::Auto];

    /// Returns the keyword of the preference.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Primary => "primary",
            Self::Replica => "replica",
            Self::PreferReplica => "prefer-replica",
            Self::Any => "any",
            Self::Auto => "auto",
        }
    }

    /// Parses the keyword of a preference, in any case.
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

/// The reason why a request must go to the primary if the role preference is `auto`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PrimaryReason {
    /// The request changes data, the schema or the server's state, or is not known to only read.
    Writes,
    /// The request takes locks that block other sessions: `FOR UPDATE`, `LOCK`.
    Locks,
    /// The request calls a function that is not known to be read-only.
    Function,
    /// The text cannot be analyzed: PostgreSQL's grammar rejects it, it is too long or too deeply
    /// nested, or the server may read it differently.
    Unreadable,
    /// The request starts a transaction that may write or is serializable, or it is another
    /// transaction statement, such as `COMMIT`.
    Transaction,
    /// The request depends on session state: settings, prepared statements, cursors, channels.
    Session,
    /// The request names a temporary table, or the session has created one.
    Temporary,
}
