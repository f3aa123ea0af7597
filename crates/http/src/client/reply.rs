//! The outcome of a request: a body, or an error that shows whether resending may help.

use std::{
    io::{self, Read as _},
    time::Duration,
};

use ureq::{
    Body, Error,
    http::{Response, header::RETRY_AFTER},
};

use super::transport::{ReplyConnector, agent};

/// Maximum number of bytes that are read of the body of a reply to a POST.
const REPLY_BYTES_MAX: u64 = 64 << 10;
/// Maximum number of characters of a reply's body that an error quotes.
const QUOTE_CHARS_MAX: usize = 300;

/// The reason why a request failed, or its success was not confirmed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PostError {
    /// The host was not found, the connection failed, the deadline passed, or a header of the
    /// request is invalid.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The reply is not valid HTTP, or its head is incomplete or too large.
    #[error("the response is not valid HTTP")]
    NotHttp,
    /// The receiver replied with a status other than 2xx. Redirects are not followed.
    #[error("HTTP status {code}{}{quote}", if quote.is_empty() { "" } else { ": " })]
    Status {
        /// The HTTP status code.
        code: u16,
        /// The beginning of the body, without control characters.
        quote: String,
        /// The part of the body that was read, at most 64 KiB.
        body: Box<[u8]>,
        /// The `Retry-After` header, if given in seconds; dates are ignored.
        retry_after: Option<Duration>,
    },
}

impl PostError {
    /// Whether the receiver will never accept this request, so that resending is pointless. True
    /// for 4xx, except statuses that mean "not now" or that an operator can fix.
    pub fn is_refusal(&self) -> bool {
        matches!(self, Self::Status { code: 400..=499, .. })
            && !matches!(self, Self::Status { code: 401 | 403 | 404 | 408 | 425 | 429, .. })
    }

    /// Returns how long the receiver asks clients to wait before the next request.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Status { retry_after, .. } => *retry_after,
            _ => None,
        }
    }

    /// Converts an error from within a body, which may contain one of ureq.
    fn from_body(error: io::Error) -> Self {
        match error.downcast::<Error>() {
            Ok(error) => Self::from_ureq(error),
            Err(error) => Self::Io(error.kind().into()),
        }
    }

    /// Converts an error of ureq. Texts of ureq itself are omitted, because they may contain the
    /// URL.
    fn from_ureq(error: Error) -> Self {
        match error {
            // An error of this crate's transport; see the module `transport`.
            Error::Other(error) => {
                Self::Io(error.downcast().map_or_else(io::Error::other, |error| *error))
            }
            Error::Timeout(_) => Self::Io(io::ErrorKind::TimedOut.into()),
            // ureq's error for a reply that ends within its head.
            Error::Io(error) if error.kind() == io::ErrorKind::UnexpectedEof => Self::NotHttp,
            // The name lookup failed.
            Error::Io(error) => Self::Io(error),
            Error::HostNotFound => {
                let reason = "the host name has no address";
                Self::Io(io::Error::new(io::ErrorKind::NotFound, reason))
            }
            Error::Http(_) => {
                let reason = "a header of the request is not valid";
                Self::Io(io::Error::new(io::ErrorKind::InvalidInput, reason))
            }
            _ => Self::NotHttp,
        }
    }
}

/// Returns the body, at most 64 KiB of it, if the status is 2xx. The status alone is the outcome: a
/// body that is cut off only makes a quote shorter.
pub(super) fn classify(reply: Result<Response<Body>, Error>) -> Result<Vec<u8>, PostError> {
    successful_body(reply, REPLY_BYTES_MAX).map(|(body, _)| body)
}

/// Returns the body if the status is 2xx and the body is complete and has at most `bytes_max`.
pub(super) fn whole_body(
    reply: Result<Response<Body>, Error>,
    bytes_max: u64,
) -> Result<Vec<u8>, PostError> {
    let (body, outcome) = successful_body(reply, bytes_max.saturating_add(1))?;
    outcome.map_err(PostError::from_body)?;
    if body.len() as u64 > bytes_max {
        let reason = format!("the response has more than {bytes_max} bytes");
        return Err(io::Error::new(io::ErrorKind::InvalidData, reason).into());
    }
    Ok(body)
}

/// Returns at most `bytes_max` of the body if the status is 2xx, and the outcome of reading it.
fn successful_body(
    reply: Result<Response<Body>, Error>,
    bytes_max: u64,
) -> Result<(Vec<u8>, io::Result<usize>), PostError> {
    let reply = reply.map_err(PostError::from_ureq)?;
    let code = reply.status().as_u16();
    let retry_after = reply.headers().get(RETRY_AFTER);
    let retry_after = retry_after.and_then(|value| value.to_str().ok()?.trim().parse().ok());
    let mut body = Vec::new();
    let outcome = reply.into_body().into_reader().take(bytes_max).read_to_end(&mut body);
    if (200..300).contains(&code) {
        return Ok((body, outcome));
    }
    let retry_after = retry_after.map(Duration::from_secs);
    Err(PostError::Status { code, quote: quote(&body), body: body.into(), retry_after })
}

/// Reads the bytes of a reply as [`HttpEndpoint::post`](super::HttpEndpoint::post) does.
///
/// # Errors
///
/// The reply is not valid HTTP, or its status is not 2xx.
pub fn read_reply(reply: &[u8]) -> Result<Vec<u8>, PostError> {
    let agent = agent("", ReplyConnector(reply.into()));
    classify(agent.post("http://127.0.0.1/").send(&[]))
}

/// Returns the beginning of a reply's body, without control characters, for a log.
pub fn quote(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let clean = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    clean.take(QUOTE_CHARS_MAX).collect::<String>().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_classified_by_status() {
        assert_eq!(read_reply(b"HTTP/1.1 204 No Content\r\n\r\n").unwrap(), b"");
        let error = read_reply(b"HTTP/1.1 400 Bad\r\n\r\n{\"error\":\"no\r\ngood\"}").unwrap_err();
        assert_eq!(error.to_string(), "HTTP status 400: {\"error\":\"no  good\"}");
        assert!(error.is_refusal());
        assert!(!read_reply(b"HTTP/1.1 503 Busy\r\n\r\n").unwrap_err().is_refusal());
        assert!(!read_reply(b"HTTP/1.1 429 Slow\r\n\r\n").unwrap_err().is_refusal());
        let busy = read_reply(b"HTTP/1.1 429 Slow\r\nretry-after: 7\r\n\r\n").unwrap_err();
        assert_eq!(busy.retry_after(), Some(Duration::from_secs(7)));
        for invalid in [&b"hello"[..], b"", b"HTTP/1.1 20", b"HTTP/1.1 200 OK\r\nContent-Le"] {
            let error = read_reply(invalid).unwrap_err();
            assert!(matches!(error, PostError::NotHttp), "{error:?}");
        }
    }

    #[test]
    fn redirects_are_not_followed() {
        let reply = b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\n\r\nthere";
        assert_eq!(read_reply(reply).unwrap_err().to_string(), "HTTP status 302: there");
        let reply = b"HTTP/1.1 307 Moved\r\nLocation: /\r\nContent-Length: 0\r\n\r\n";
        assert_eq!(read_reply(reply).unwrap_err().to_string(), "HTTP status 307");
    }

    #[test]
    fn body_is_limited_by_content_length_or_eof() {
        assert_eq!(read_reply(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok!").unwrap(), b"ok");
        assert_eq!(read_reply(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok").unwrap(), b"ok");
        assert_eq!(read_reply(b"HTTP/1.1 200 OK\r\n\r\nok").unwrap(), b"ok");
        let chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n";
        assert_eq!(read_reply(chunked).unwrap(), b"ok");
        let mut long = b"HTTP/1.1 200 OK\r\n\r\n".to_vec();
        long.resize(long.len() + (1 << 20), b'x');
        assert_eq!(read_reply(&long).unwrap().len() as u64, REPLY_BYTES_MAX);
    }
}
