//! LISTEN over shared connections: for each client, the pooler tracks the channels that a
//! PostgreSQL session would listen to.
//!
//! In addition to the pools, one dedicated connection per database listens to every channel that
//! any client has requested. The pooler delivers its notifications to the listening clients, to
//! each client between two of its transactions.
//!
//! PostgreSQL decides what LISTEN and UNLISTEN do. The client's statement runs on its server,
//! followed by the pooler's own LISTEN to a numbered marker channel. After the transaction, the
//! pooler queries the channels that the server listens to. If a marker is among them, its statement
//! took effect, even if savepoints were rolled back. The server then unlistens all channels.
//!
//! So PostgreSQL decides which statements took effect. Parsing only finds the statements, so that a
//! marker follows each, and the dedicated connection listens to the channel *before* the client's
//! statement runs: no notification is lost in between.

use std::sync::Arc;

pub(crate) use crate::listen::{
    client::{ClientChannels, NotificationOutcome, PendingActions},
    statement::{parse, starts_with_listen},
};

/// A channel name as PostgreSQL stores it: folded to lower case unless quoted, and truncated to 63
/// bytes.
pub type Channel = Arc<[u8]>;

/// A change to the channels that a client listens to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ListenAction {
    Listen(Channel),
    Unlisten(Channel),
    UnlistenAll,
}

/// A LISTEN or UNLISTEN statement found in a query string.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ListenStatement {
    pub(crate) action: ListenAction,
    /// Byte offset, within the query string, of the end of the statement's last token.
    pub(crate) end: usize,
}

/// A problem with notifications that a client is warned about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MissedNotifications {
    /// The client's buffer was full, so notifications were dropped.
    Dropped { count: u64 },
    /// Another dedicated connection listens now, and notifications may have been lost in between.
    Reconnected,
    /// The pooler could not track a LISTEN or UNLISTEN: its effect ends with the transaction.
    NotTracked,
}

impl MissedNotifications {
    /// Returns an SQLSTATE of class 01 (warning). Subclasses that start with `N` are
    /// implementation-defined.
    pub(crate) const fn sqlstate(&self) -> &'static [u8; 5] {
        match self {
            Self::Dropped { .. } => b"01N01",
            Self::Reconnected => b"01N02",
            Self::NotTracked => b"01N03",
        }
    }

    pub(crate) fn text(&self) -> String {
        match self {
            Self::Dropped { count } => {
                format!("the client's buffer for notifications was full: {count} dropped")
            }
            Self::Reconnected => "notifications may be missing: the connection that listens for \
                                  the pooler's clients was lost and re-established"
                .to_owned(),
            Self::NotTracked => {
                "this LISTEN or UNLISTEN has no effect beyond the transaction: the \
                                 pooler tracks these statements only alone in a query string, or \
                                 plainly separated by semicolons"
                    .to_owned()
            }
        }
    }
}

/// Returns the name of the marker channel for the statement with this number in its transaction.
pub(crate) fn marker_channel(number: u32) -> String {
    format!("howdah listen {number}")
}

/// Returns the number in the name of a marker channel; `None` for other channels.
pub(crate) fn marker_number(channel: &[u8]) -> Option<u32> {
    let digits = channel.strip_prefix(b"howdah listen ")?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// The query sent to a server after the transaction: returns the channels that it listens to, then
/// unlistens all.
pub(crate) const LISTENING_CHANNELS_QUERY: &[u8] =
    b"SELECT pg_catalog.pg_listening_channels();UNLISTEN *";
