//! Logins of both legs, without I/O: what a client must prove to us, and what we prove to a server.
//!
//! [`ClientHandshake`] takes a client from its first byte to AuthenticationOk; [`ServerHandshake`]
//! takes us from the startup packet to a server's first ReadyForQuery. Both take bytes and give
//! bytes to send and a next step. A step that costs processor time is a [`Work`], which any thread
//! can do; a secret that has to be looked up at a server is another. Random bytes come as arguments; deadlines are the driver's. What happens after a login,
//! and which pool it belongs to, is not decided here.

mod client;
mod options;
mod rejection;
mod server;
mod startup;
mod work;

use crate::config::SECRET_BYTES_MAX;

pub use client::{
    AuthenticatedClient, ClientHandshake, ClientRules, ClientStep, Entropy, Known, Replication,
    TlsFacts,
};
pub use rejection::{RefusalReason, Rejection};
pub use server::{
    ServerHandshake, ServerIntent, ServerLoginError, ServerProtection, ServerReady, ServerStep,
};
pub use work::{DerivedKeys, Work};

/// Longest message of a login, in bytes after its header, but for a password in the clear. A SCRAM
/// message has some hundred bytes.
pub const MESSAGE_BYTES_MAX: u32 = 8 * 1024;

/// Longest PasswordMessage where the password comes in the clear: the longest secret and the zero byte
/// that ends it.
pub const PASSWORD_BYTES_MAX: u32 = SECRET_BYTES_MAX as u32 + 1;
