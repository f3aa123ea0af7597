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

pub use client::{
    Admitted, ClientHandshake, ClientRules, ClientStep, Entropy, Known, Replication, TlsFacts,
};
pub use rejection::Rejection;
pub use server::{
    ServerHandshake, ServerIntent, ServerLoginError, ServerProtection, ServerReady, ServerStep,
};
pub use work::{Derived, Work};

/// Longest message of a login, in bytes after its header. A SCRAM message has some hundred bytes, a
/// token of a cloud's identity service some thousand.
pub const MESSAGE_BYTES_MAX: u32 = 8 * 1024;
