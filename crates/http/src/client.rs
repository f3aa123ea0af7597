//! A minimal HTTP client for occasional POST requests over HTTP or HTTPS, each with a deadline.
//!
//! An [`HttpEndpoint`] is a parsed URL with its TLS settings; [`HttpEndpoint::post`] opens a
//! connection, sends the request, reads the reply and closes. Only the system's name lookup
//! may outlast the deadline.
//!
//! Not supported: redirects, proxies, compression, connection reuse, retries. The caller decides
//! when to retry, using [`PostError::is_refusal`].

mod endpoint;

pub use endpoint::{EndpointError, HttpEndpoint, PostError, authorization, quote, read_reply};
