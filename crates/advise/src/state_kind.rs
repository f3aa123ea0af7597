//! [`StateKind`]: a kind of session state, and how pool modes treat it.

use std::fmt;

use howdah_sql::UndetectableState;

/// A kind of session state that can outlive its transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StateKind {
    /// A setting that servers do not report to clients.
    Setting,
    /// A channel that the session listens to.
    Channel,
    /// A temporary table, view, sequence, type or function.
    Temporary,
    /// A session-level advisory lock.
    AdvisoryLock,
    /// A cursor declared `WITH HOLD`.
    Cursor,
    /// A statement prepared by the command `PREPARE`.
    PreparedStatement,
    /// Another session user.
    Authorization,
    /// State that no query can detect.
    Undetectable(UndetectableState),
    /// A function that is not PostgreSQL's own, which may leave any state.
    Function,
}

impl StateKind {
    /// Returns the name in documents for programs.
    pub fn code(self) -> &'static str {
        match self {
            Self::Setting => "setting",
            Self::Channel => "channel",
            Self::Temporary => "temporary_object",
            Self::AdvisoryLock => "advisory_lock",
            Self::Cursor => "cursor",
            Self::PreparedStatement => "prepared_statement",
            Self::Authorization => "session_authorization",
            Self::Undetectable(_) => "undetectable",
            Self::Function => "function",
        }
    }

    /// Whether the state pins a client to its server in adaptive mode. Settings and channels follow
    /// the client instead.
    pub fn is_pinning(self) -> bool {
        !matches!(self, Self::Setting | Self::Channel)
    }

    /// Whether clients lose the state in transaction mode, or leave it to others. A function may
    /// leave none. Channels follow the client, unless notifications are disabled.
    pub fn is_lost_in_transaction_mode(self) -> bool {
        !matches!(self, Self::Channel)
    }

    /// Whether a rollback of the transaction undoes the state.
    pub(crate) fn is_transactional(self) -> bool {
        match self {
            Self::Setting
            | Self::Channel
            | Self::Temporary
            | Self::Cursor
            | Self::Authorization
            | Self::Undetectable(UndetectableState::UnnamedSetting) => true,
            Self::AdvisoryLock
            | Self::PreparedStatement
            | Self::Undetectable(_)
            | Self::Function => false,
        }
    }

    /// Whether `DISCARD ALL` removes the state.
    pub(crate) fn ends_with_discard_all(self) -> bool {
        match self {
            Self::Undetectable(state) => state.ends_with_discard_all(),
            _ => true,
        }
    }

    /// Whether the state can be acquired several times, and must be released as often.
    pub(crate) fn is_counted(self) -> bool {
        self == Self::AdvisoryLock
    }
}

impl fmt::Display for StateKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Undetectable(state) => state.fmt(f),
            Self::Setting => f.write_str("settings"),
            Self::Channel => f.write_str("LISTEN"),
            Self::Temporary => f.write_str("temporary objects"),
            Self::AdvisoryLock => f.write_str("advisory locks"),
            Self::Cursor => f.write_str("WITH HOLD cursors"),
            Self::PreparedStatement => f.write_str("PREPARE"),
            Self::Authorization => f.write_str("SET SESSION AUTHORIZATION"),
            Self::Function => f.write_str("functions"),
        }
    }
}
