//! SCRAM-SHA-256 and SCRAM-SHA-256-PLUS: both sides prove that they know the password, or keys
//! derived from it, without sending it.
//!
//! ```text
//!  client                                                       server
//!  ClientFirst ── n,,n=,r=<nonce> ─────────────────────────────►
//!                                                               ServerFirst
//!              ◄── r=<nonce><server nonce>,s=<salt>,i=<count> ──
//!  ClientFinal ── c=<binding>,r=<both nonces>,p=<proof> ───────►
//!              ◄── v=<signature> ───────────────────────────────  client is authenticated
//!  server is authenticated
//! ```
//!
//! Each step consumes the previous one, so the steps cannot be confused. PostgreSQL takes the user
//! from the startup packet and ignores the name in the first message, so that name stays empty.
//! Source: RFC 5802, RFC 7677, RFC 5929; PostgreSQL manual, "SASL Authentication".

mod client;
mod keys;
mod server;

pub use client::{ChannelBinding, ClientFinal, ClientFirst};
pub use keys::{ClientKeys, ScramKeys};
pub use server::{ScramVerifier, ScramVerifierError, ServerFinal, ServerFirst};

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use ring::{digest, hmac, pbkdf2};
use zeroize::Zeroizing;

use std::num::NonZeroU32;

/// Name of the mechanism without channel binding.
pub const SCRAM_SHA_256: &[u8] = b"SCRAM-SHA-256";
/// Name of the mechanism with channel binding.
pub const SCRAM_SHA_256_PLUS: &[u8] = b"SCRAM-SHA-256-PLUS";

/// Maximum number of iterations that a client computes. A server requests 4,096 by default
/// (`scram_iterations`); a hostile one could request billions, which take many minutes.
pub const ITERATIONS_MAX: u32 = 1_000_000;

/// The only type of channel binding that PostgreSQL supports.
const BINDING_TYPE: &str = "tls-server-end-point";

/// The reason why an exchange failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ScramError {
    /// The peer's message is not UTF-8, lacks a required attribute, or has an invalid one.
    #[error("SCRAM message has no valid attribute '{}'", char::from(*attribute))]
    Malformed {
        /// Name of the attribute.
        attribute: u8,
    },
    /// The peer did not repeat the nonce that it received, or the server did not extend it.
    #[error("SCRAM nonce of the peer does not belong to this exchange")]
    Nonce,
    /// The server requests more iterations than [`ITERATIONS_MAX`], or none.
    #[error("SCRAM server requests {iterations} iterations; 1 to {ITERATIONS_MAX} are allowed")]
    Iterations {
        /// The requested number of iterations.
        iterations: u32,
    },
    /// The server ended the exchange with its own error.
    #[error("SCRAM server error: {0}")]
    Refused(
        /// The server's error, RFC 5802's `server-error-value`.
        String,
    ),
    /// The server's signature is wrong: it does not know the password, so it is not the intended
    /// server.
    #[error("SCRAM server does not know the password")]
    ServerUnproven,
    /// The server's salt or number of iterations differs from that of the keys: the secret that it
    /// stores for this role is not the one that the keys belong to.
    #[error("SCRAM keys do not match the secret that the server stores")]
    KeyMismatch,
    /// The client's proof is wrong: the client does not know the password.
    #[error("SCRAM client does not know the password")]
    ClientUnproven,
    /// Client and server do not see the same TLS connection, or disagree on whether or how to bind,
    /// possibly because of a man in the middle.
    #[error("SCRAM channel binding does not match")]
    ChannelBinding,
}

/// Removes `attribute=value` from the front of a message and returns the value, which ends at a
/// comma.
fn attribute<'a>(message: &mut &'a str, attribute: u8) -> Result<&'a str, ScramError> {
    let malformed = ScramError::Malformed { attribute };
    let Some(rest) =
        message.strip_prefix(char::from(attribute)).and_then(|it| it.strip_prefix('='))
    else {
        return Err(malformed);
    };
    let (value, rest) = rest.split_once(',').unwrap_or((rest, ""));
    *message = rest;
    Ok(value)
}

fn base64_attribute(message: &mut &str, letter: u8) -> Result<Vec<u8>, ScramError> {
    let text = attribute(message, letter)?;
    BASE64.decode(text).map_err(|_| ScramError::Malformed { attribute: letter })
}

/// Converts a message to text; SCRAM messages are UTF-8.
fn text(message: &[u8], first_attribute: u8) -> Result<&str, ScramError> {
    std::str::from_utf8(message).map_err(|_| ScramError::Malformed { attribute: first_attribute })
}

/// Computes `SaltedPassword` of RFC 5802: equivalent to the password, for this salt and number of
/// iterations.
fn salted_password(password: &[u8], salt: &[u8], iterations: NonZeroU32) -> Zeroizing<[u8; 32]> {
    let prepared = Zeroizing::new(super::saslprep::saslprep(password).into_owned());
    let mut salted = Zeroizing::new([0; 32]);
    pbkdf2::derive(pbkdf2::PBKDF2_HMAC_SHA256, iterations, salt, &prepared, &mut *salted);
    salted
}

fn hmac_sha256(key: &[u8], message: &[u8]) -> [u8; 32] {
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), message);
    tag.as_ref().try_into().expect("SHA-256 has 32 bytes")
}

fn sha256(message: &[u8]) -> [u8; 32] {
    digest::digest(&digest::SHA256, message).as_ref().try_into().expect("SHA-256 has 32 bytes")
}

fn xor(mut left: [u8; 32], right: &[u8; 32]) -> [u8; 32] {
    left.iter_mut().zip(right).for_each(|(left, right)| *left ^= right);
    left
}

#[cfg(test)]
mod tests;
