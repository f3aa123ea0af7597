//! LISTEN where clients share servers: what a server would keep for a session is kept for the client.
//!
//! One connection of each database, beside the pools, listens to every channel that any client has asked
//! for; what comes there is handed to those who listen, each between two of its transactions.
//!
//! What PostgreSQL makes of LISTEN and UNLISTEN is left to PostgreSQL. The client's statement runs on the
//! server that it has, and behind it a LISTEN of the pooler's, to a channel whose name is a number. When the
//! transaction has ended, the server is asked what it listens to: a number that is still there says that its
//! statement counts, whatever was rolled back, to whichever savepoint. Then the server is told to forget it
//! all. So no text is needed to know what became of a transaction; a text only says which channels the
//! dedicated connection has to listen to *before* the client's statement runs, so that nothing is lost
//! between the two.

mod client;
mod statement;

use std::sync::Arc;

pub(crate) use self::{
    client::{ClientChannels, Offer, PendingActions},
    statement::{begins, statement},
};

/// A channel's name as PostgreSQL has it: folded, and not longer than its names are.
pub type Channel = Arc<[u8]>;

/// What a statement does to what a client listens to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ListenAction {
    Listen(Channel),
    Unlisten(Channel),
    UnlistenAll,
}

/// A statement that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) op: ListenAction,
    /// Where in the text its last word ends.
    pub(crate) end: usize,
}

/// What is said to a client about its notifications, as severity WARNING.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Gap {
    /// It did not take what came, and there is an end to what is kept for it.
    Lagged { dropped: u64 },
    /// The connection that listens was lost and is there again.
    Reconnected,
    /// The statement's effect ends with the transaction.
    NoEffect,
}

impl Gap {
    /// Of class 01, a warning; `N` begins what is the implementation's own.
    pub(crate) const fn sqlstate(&self) -> &'static [u8; 5] {
        match self {
            Self::Lagged { .. } => b"01N01",
            Self::Reconnected => b"01N02",
            Self::NoEffect => b"01N03",
        }
    }

    pub(crate) fn text(&self) -> String {
        match self {
            Self::Lagged { dropped } => format!(
                "notifications were dropped, {dropped} of them: this client did not take them in time"
            ),
            Self::Reconnected => {
                "notifications may be missing: the connection that listens for the \
                                  pooler's clients was lost, and is there again"
                    .to_owned()
            }
            Self::NoEffect => {
                "this has no effect beyond the transaction: the pooler follows LISTEN and \
                               UNLISTEN only where they stand alone or plainly between semicolons"
                    .to_owned()
            }
        }
    }
}

/// The name of the channel that stands for a statement. PostgreSQL's names have at most 63 bytes, and a
/// client's own that looks like one does no harm: it is asked for by number.
pub(crate) fn token(number: u32) -> String {
    format!("howdah listen {number}")
}

/// The number in the name of a channel that stands for a statement.
pub(crate) fn number_of(channel: &[u8]) -> Option<u32> {
    let digits = channel.strip_prefix(b"howdah listen ")?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// What a server is asked at the end of a transaction, and told.
pub(crate) const ASK: &[u8] = b"SELECT pg_catalog.pg_listening_channels();UNLISTEN *";
