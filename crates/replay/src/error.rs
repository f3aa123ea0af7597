//! [`StartError`]: why a replay could not start.

use std::io;

/// An error of the event source. Boxed, because sources have different error types.
pub type EventSourceError = Box<dyn std::error::Error + Send + Sync>;

/// The reason why a replay could not start, or had to be given up without a report.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// No server was given.
    #[error("there is no server to replay against")]
    NoTarget,
    /// The capture has no events.
    #[error("there are no events to replay")]
    NoEvents,
    /// The first event of the capture could not be read.
    #[error("cannot read the capture")]
    Source(#[source] EventSourceError),
    /// The target's host name cannot be resolved.
    #[error(transparent)]
    Dial(#[from] howdah_net::DialError),
    /// The TLS settings cannot be applied.
    #[error(transparent)]
    Tls(#[from] howdah_connect::tls::TlsError),
    /// The kernel refused to create a poller or thread, or waiting for sockets failed later.
    #[error("cannot start or run a thread of the replay")]
    Thread(#[source] io::Error),
}
