//! Occasional requests over HTTP or HTTPS, each on a new connection and with a deadline.
//!
//! An [`HttpEndpoint`] is a parsed URL with its TLS settings; [`HttpEndpoint::post`] and
//! [`HttpEndpoint::get`] connect, send the request, read the reply and close. Credentials are sent
//! in headers and never appear in an error or a log; nor does the URL's query, which may also
//! contain credentials.
//!
//! Not supported: redirects, proxies, compression, connection reuse, retries. The caller decides
//! when to retry, using [`PostError::is_refusal`].

mod endpoint;
mod reply;
mod transport;

#[cfg(test)]
mod tests;

pub use endpoint::{EndpointError, EndpointTls, Headers, HttpEndpoint, authorization};
pub use reply::{PostError, quote, read_reply};
