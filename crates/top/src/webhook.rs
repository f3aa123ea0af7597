//! Sends events to webhooks over HTTP, without ever delaying the samplers.
//!
//! ```text
//! samplers ──► queue (bounded) ──► sender thread: queued events become one message
//!                                     │ refused: given up and reported
//!                                     └ temporary failure: retried with growing delays
//! ```
//!
//! Samplers put events into a queue and do not wait. A thread combines up to 200 queued events into
//! one message, and retries until it is accepted, refused or outdated. While a receiver is
//! unreachable, the queue fills up to a limit; further events are dropped and counted, and the next
//! message includes that number. A webhook URL is often a secret, so only its scheme, host and port
//! are ever shown.

mod payload;
mod sender;

use std::{path::Path, time::Duration};

use howdah_http::client::{EndpointError, HttpEndpoint};

pub use self::payload::{WebhookEvent, WebhookMessage};
pub use self::sender::{RetryPolicy, WebhookSender};

/// Program name in the User-Agent header.
const USER_AGENT: &str = "howdah-top";

/// A receiver of events: its endpoint, and the format of messages to it.
#[derive(Debug)]
pub struct Webhook {
    endpoint: RedactedEndpoint,
    format: WebhookFormat,
}

/// An endpoint whose Debug output shows only the origin.
struct RedactedEndpoint(HttpEndpoint);

impl std::fmt::Debug for RedactedEndpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0.origin())
    }
}

/// Format of the messages that a webhook sends.
pub enum WebhookFormat {
    /// `{"text": …}`, as accepted by Slack, Mattermost and Rocket.Chat.
    Slack,
    /// A JSON document, signed if there is a key.
    Document {
        /// The key shared with the receiver, for the signature.
        key: Option<Box<[u8]>>,
    },
}

impl std::fmt::Debug for WebhookFormat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Slack => "Slack",
            Self::Document { key: Some(_) } => "Document, signed",
            Self::Document { key: None } => "Document",
        })
    }
}

/// The reason why a webhook cannot be set up. The message does not contain the URL.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WebhookError {
    /// The URL is invalid.
    #[error("not a webhook URL: write https://host/path, without user or password")]
    Url,
    /// TLS could not be configured.
    #[error(transparent)]
    Tls(EndpointError),
}

impl Webhook {
    /// Creates a webhook that posts to `url`. `ca_file` contains certificates to trust instead of
    /// the system's.
    ///
    /// # Errors
    ///
    /// See [`WebhookError`].
    pub fn new(
        url: &str,
        format: WebhookFormat,
        ca_file: Option<&Path>,
    ) -> Result<Self, WebhookError> {
        let headers = vec![("Content-Type", "application/json; charset=utf-8".to_owned())];
        match HttpEndpoint::new(USER_AGENT, url.trim(), ca_file, headers) {
            Ok(endpoint) => Ok(Self { endpoint: RedactedEndpoint(endpoint), format }),
            Err(EndpointError::Url { .. }) => Err(WebhookError::Url),
            Err(error) => Err(WebhookError::Tls(error)),
        }
    }

    /// Returns the scheme, host and port of the URL, which are safe to show.
    pub fn origin(&self) -> String {
        self.endpoint.0.origin()
    }
}

/// Maximum duration of one attempt to deliver a message.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests;
