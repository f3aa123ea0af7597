//! The protocol state of one PostgreSQL connection, without I/O.
//!
//! [`Client`] plays the frontend: it logs in, sends requests, and turns what the server sends into
//! [`Event`]s that say which request they answer. It owns no socket and no clock: a driver gives it
//! the bytes it read and writes the bytes it is given. Who gets which connection, and when, is
//! somebody else's business, and so is TLS.

mod buffers;
mod client;
mod error;
mod event;
mod settings;

pub use client::{Client, Login, Request, RequestId};
pub use error::{Error, Fault};
pub use event::{CopyData, Event, Row};

// Names of the wire crate that stand in this crate's signatures.
pub use howdah_wire::{
    EncodeError, Format, Oids, Secret,
    auth::scram::ClientKeys as ScramKeys,
    backend::{CommandTag, Notification, RowDescription, ServerError, Severity, TransactionStatus},
    startup::CancelKey,
};
