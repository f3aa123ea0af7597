//! Authentication on both sides, without I/O: of clients to the pooler, and of the pooler to
//! servers.
//!
//! [`ClientHandshake`] takes a client from its first byte to AuthenticationOk; [`ServerHandshake`]
//! takes the pooler from the startup packet until a server is ready for queries. Both take received
//! bytes and return bytes to send and the next step. A step that costs CPU time is a
//! [`KeyDerivation`], which any thread can run; an auth query and the check of a password at a
//! server are other steps. Random bytes are arguments. The caller enforces timeouts, selects a
//! client's pool, and handles everything after the login.

mod client;
mod key_derivation;
mod options;
pub mod proxy_protocol;
mod rejection;
mod server;
mod startup;

use howdah_pool_config::SECRET_BYTES_MAX;

pub use client::{
    AuthenticatedClient, ClientHandshake, ClientRules, ClientStep, ClientTlsInfo, Entropy,
    PasswordCheck, PasswordCheckResult, Replication, UserSecret,
};
pub use key_derivation::{DerivedKeys, KeyDerivation};
pub use rejection::{RefusalReason, Rejection};
pub use server::{
    ServerHandshake, ServerIntent, ServerLoginError, ServerProtection, ServerReady, ServerStep,
};

/// Maximum body length of a client's authentication message, in bytes, except for a cleartext
/// password. A SCRAM message has a few hundred bytes.
pub const MESSAGE_BYTES_MAX: u32 = 8 * 1024;

/// Maximum body length of a PasswordMessage with a cleartext password, in bytes: the longest secret
/// and its final zero byte.
pub const PASSWORD_BYTES_MAX: u32 = SECRET_BYTES_MAX as u32 + 1;
