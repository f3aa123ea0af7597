//! The protocol state of one PostgreSQL connection, without I/O.
//!
//! [`ClientSession`] is the frontend: it logs in, sends requests, and converts the server's
//! messages to [`SessionEvent`]s with the request that each answers. It owns no socket and no
//! clock: a driver passes it the bytes it read and writes the bytes it produces. Sockets, TLS and
//! pooling are left to other crates.

mod buffers;
mod client;
mod error;
mod event;
mod settings;

pub use client::{ClientSession, Login, Request, RequestId};
pub use error::{ErrorOrigin, SessionError};
pub use event::{CopyData, ReceivedRow, SessionEvent};

// Names of the wire crate that occur in this crate's signatures.
pub use howdah_wire::{
    EncodeError, Oids, Secret, ValueFormat,
    auth::scram::ClientKeys as ScramKeys,
    backend::{CommandTag, Notification, RowDescription, ServerError, Severity, TransactionStatus},
    startup::CancelKey,
};
