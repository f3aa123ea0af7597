//! Messages to a chat or to a program, over HTTP: what happened, once, and never in the way of anything.
//!
//! ```text
//! samplers ──► queue (bounded) ──► courier's thread: all that waits is one message
//!                                     │ refused: given up, and told
//!                                     └ not now: tried again, with growing pauses
//! ```
//!
//! Who has something to tell puts it into a queue and goes on. A thread takes all that has come in meanwhile
//! as one message, and tries until it is taken. While a receiver is away the queue fills, up to a bound;
//! what does not fit is counted, and the next message says so. The address of a receiver is often a secret,
//! so nothing here shows more of it than scheme, host and port.

mod courier;
mod payload;

use std::{path::Path, time::Duration};

use howdah_post::{Endpoint, EndpointError};

pub use self::courier::{Pace, WebhookSender};
pub use self::payload::{Event, Message};

/// What receivers get to know of us.
const AGENT: &str = "howdah-top";

/// A receiver of messages.
#[derive(Debug)]
pub struct Webhook {
    endpoint: EndpointBox,
    form: Form,
}

/// An endpoint that shows only its origin.
struct EndpointBox(Endpoint);

impl std::fmt::Debug for EndpointBox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0.origin())
    }
}

/// What a receiver understands.
pub enum Form {
    /// `{"text": …}`, as Slack, Mattermost and Rocket.Chat take it.
    Slack,
    /// A document of its own, signed if there is a key.
    Document {
        /// The key that receiver and sender share.
        key: Option<Box<[u8]>>,
    },
}

impl std::fmt::Debug for Form {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Slack => "Slack",
            Self::Document { key: Some(_) } => "Document, signed",
            Self::Document { key: None } => "Document",
        })
    }
}

/// A receiver that cannot be one. What was given as its address is not in the text.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WebhookError {
    /// No address of a web server.
    #[error("it is no URL to send to: write https://host/path, without user or password")]
    Url,
    /// TLS cannot be set up.
    #[error(transparent)]
    Tls(EndpointError),
}

impl Webhook {
    /// A receiver at `url`; `ca_file` has certificates to trust instead of the system's.
    ///
    /// # Errors
    ///
    /// See [`WebhookError`].
    pub fn new(url: &str, form: Form, ca_file: Option<&Path>) -> Result<Self, WebhookError> {
        let headers = "Content-Type: application/json; charset=utf-8\r\n".to_owned();
        match Endpoint::new(AGENT, url.trim(), ca_file, headers) {
            Ok(endpoint) => Ok(Self { endpoint: EndpointBox(endpoint), form }),
            Err(EndpointError::Url { .. }) => Err(WebhookError::Url),
            Err(error) => Err(WebhookError::Tls(error)),
        }
    }

    /// Scheme, host and port.
    pub fn origin(&self) -> String {
        self.endpoint.0.origin()
    }
}

/// Longest that one attempt may take.
const ATTEMPT: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests;
