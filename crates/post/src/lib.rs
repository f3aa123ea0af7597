//! One POST over HTTP or HTTPS, by a deadline: what it takes to send a batch, or a message, every now and
//! then.
//!
//! An [`Endpoint`] is a URL taken apart, with its TLS settings; [`Endpoint::post`] opens a [`Connection`],
//! sends, judges the answer and closes. Nothing here waits longer than the deadline it was given, but for
//! the system's look-up of names.
//!
//! What this crate does not do: redirects, proxies, compression, reuse of connections, retries. Who
//! sends decides when to try again, by [`PostError::is_refusal`].

mod connection;
mod endpoint;

pub use connection::Connection;
pub use endpoint::{Endpoint, EndpointError, PostError, authorization, quote, read_reply};
