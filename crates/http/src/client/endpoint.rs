//! One HTTP POST per call, each on a new connection and with a deadline. TLS by rustls.
//!
//! No redirects, proxies, compression or connection reuse. Credentials travel in headers and never
//! appear in an error or a log; nor does the URL's query, where some receivers expect them.

use std::{
    fs,
    io::{self, Read, Write},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use howdah_connect::deadline::DeadlineStream;
use howdah_connect::tls::{RootCertificates, SslMode, TlsError, TlsSettings, client_config};
use rustls::{ClientConfig, ClientConnection, StreamOwned, pki_types::ServerName};

/// Maximum bytes of a reply that are read.
const REPLY_BYTES_MAX: usize = 64 << 10;
/// Maximum characters of a reply's body quoted in an error.
const QUOTE_CHARS_MAX: usize = 300;

/// A parsed URL with its TLS settings and the headers of each request.
pub struct HttpEndpoint {
    agent: &'static str,
    host: String,
    port: u16,
    path_and_query: String,
    tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
    headers: String,
    display_url: String,
}

/// Why an endpoint cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EndpointError {
    /// The URL is not `http://host[:port]/path` or the same with https.
    #[error(
        "{url:?} is not a valid endpoint URL: write http://host:port/path, without user or password"
    )]
    Url {
        /// The URL up to its query.
        url: String,
    },
    /// The token file cannot be read, or its content is not valid in a header.
    #[error("cannot use the token in {path}")]
    Token {
        /// The token file.
        path: PathBuf,
        /// The I/O error, or what is wrong with the content.
        source: io::Error,
    },
    /// TLS cannot be set up.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// The request failed, or its success was not confirmed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PostError {
    /// The connection failed, or the deadline passed.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The peer does not speak HTTP.
    #[error("the response is not valid HTTP")]
    NotHttp,
    /// The receiver replied with an error status.
    #[error("status {code}: {quote}")]
    Status {
        /// The HTTP status code.
        code: u16,
        /// The beginning of the body, without control characters.
        quote: String,
        /// The body as far as it was read, at most 64 KiB.
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

    /// How long the receiver asks to wait before the next request.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Status { retry_after, .. } => *retry_after,
            _ => None,
        }
    }
}

impl HttpEndpoint {
    /// Parses a URL. `agent` is the `User-Agent`, `ca_file` holds root certificates that replace
    /// the system's, and `headers` are lines, each ending in CR LF, sent with every request.
    ///
    /// # Errors
    ///
    /// The URL is invalid, or TLS cannot be set up.
    pub fn new(
        agent: &'static str,
        url: &str,
        ca_file: Option<&Path>,
        headers: String,
    ) -> Result<Self, EndpointError> {
        let display_url = url.split(['?', '#']).next().unwrap_or_default().to_owned();
        let invalid = || {
            // The part before an @ may contain a password.
            let url = display_url.rsplit('@').next().unwrap_or_default().to_owned();
            EndpointError::Url { url }
        };
        let (secure, rest) = match (url.strip_prefix("http://"), url.strip_prefix("https://")) {
            (Some(rest), _) => (false, rest),
            (_, Some(rest)) => (true, rest),
            _ => return Err(invalid()),
        };
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        let path = path.split('#').next().unwrap_or_default();
        let (host, port) = authority_parts(authority, secure).ok_or_else(invalid)?;
        let printable = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
        if !printable(path) || !printable(&host) {
            return Err(invalid());
        }
        let path_and_query =
            if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        let tls = if secure {
            let name = ServerName::try_from(host.clone()).map_err(|_| invalid())?;
            Some((tls_config(ca_file)?, name))
        } else {
            None
        };
        Ok(Self { agent, host, port, path_and_query, tls, headers, display_url })
    }

    /// The URL without its query, for logs.
    pub fn display_url(&self) -> &str {
        &self.display_url
    }

    /// Scheme, host and port only: for receivers whose path is a secret.
    pub fn origin(&self) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.authority())
    }

    fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }

    /// The value of a query parameter, not decoded.
    pub fn parameter(&self, name: &str) -> Option<&str> {
        let (_, query) = self.path_and_query.split_once('?')?;
        query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
    }

    /// Sends `body` and waits for the reply; returns its body if the status is 2xx.
    ///
    /// # Errors
    ///
    /// The request was refused, or not confirmed by the deadline. It may have arrived nevertheless.
    pub fn post(&self, body: &[u8], deadline: Instant) -> Result<Vec<u8>, PostError> {
        self.post_with("", body, deadline)
    }

    /// As [`post`](Self::post), with additional header lines, each ending in CR LF.
    ///
    /// # Errors
    ///
    /// As for [`post`](Self::post).
    pub fn post_with(
        &self,
        headers: &str,
        body: &[u8],
        deadline: Instant,
    ) -> Result<Vec<u8>, PostError> {
        let connection = DeadlineStream::open(&self.host, self.port, deadline)?;
        match &self.tls {
            None => self.exchange(connection, headers, body),
            Some((config, name)) => {
                let tls = ClientConnection::new(Arc::clone(config), name.clone())
                    .map_err(io::Error::other)?;
                self.exchange(StreamOwned::new(tls, connection), headers, body)
            }
        }
    }

    fn exchange(
        &self,
        mut stream: impl Read + Write,
        headers: &str,
        body: &[u8],
    ) -> Result<Vec<u8>, PostError> {
        let head = format!(
            "POST {} HTTP/1.1\r\nHost: {}\r\nUser-Agent: {}\r\n\
             Content-Length: {}\r\nConnection: close\r\n{}{headers}\r\n",
            self.path_and_query,
            self.authority(),
            self.agent,
            body.len(),
            self.headers,
        );
        stream.write_all(head.as_bytes())?;
        // A server that refuses early may close before it has read everything; its reply says why.
        let sent = stream.write_all(body).and_then(|()| stream.flush());
        let mut reply = Vec::new();
        let mut buffer = [0; 8 << 10];
        loop {
            match stream.read(&mut buffer) {
                Ok(0) => break,
                Ok(bytes) => reply.extend_from_slice(&buffer[..bytes]),
                // Many servers close TLS connections without close_notify.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => break,
                Err(error) if reply.is_empty() => return Err(error.into()),
                Err(_) => break,
            }
            if reply.len() >= REPLY_BYTES_MAX || is_complete(&reply) {
                break;
            }
        }
        if reply.is_empty() {
            sent?;
        }
        classify_reply(&reply)
    }
}

/// Host and port of `host`, `host:port` or `[v6]:port`.
fn authority_parts(authority: &str, secure: bool) -> Option<(String, u16)> {
    let default = if secure { 443 } else { 80 };
    if authority.contains('@') {
        return None;
    }
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']')?;
            (host, port.strip_prefix(':'))
        }
        None => match authority.rsplit_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        },
    };
    let port = port.map_or(Some(default), |port| port.parse().ok())?;
    (!host.is_empty()).then(|| (host.to_owned(), port))
}

fn tls_config(ca_file: Option<&Path>) -> Result<Arc<ClientConfig>, TlsError> {
    let mut settings = TlsSettings::default();
    settings.mode = SslMode::VerifyFull;
    settings.root_certificates = match ca_file {
        Some(path) => RootCertificates::File(path.to_owned()),
        None => RootCertificates::System,
    };
    let mut config = ClientConfig::clone(&*client_config(&settings)?);
    // The shared configuration names PostgreSQL's ALPN protocol.
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// An `Authorization` header line with the token from `file`; empty without a file.
///
/// # Errors
///
/// The file cannot be read, or does not contain exactly one token of printable characters.
pub fn authorization(scheme: &str, file: Option<&PathBuf>) -> Result<String, EndpointError> {
    let Some(path) = file else { return Ok(String::new()) };
    let unusable = |source| EndpointError::Token { path: path.clone(), source };
    let text = fs::read_to_string(path).map_err(unusable)?;
    let token = text.trim();
    if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        let reason = "it must contain one token of printable characters";
        return Err(unusable(io::Error::new(io::ErrorKind::InvalidData, reason)));
    }
    Ok(format!("Authorization: {scheme} {token}\r\n"))
}

/// Whether the reply is complete, for servers that keep the connection open.
fn is_complete(reply: &[u8]) -> bool {
    let mut headers = [httparse::EMPTY_HEADER; 64];
    let mut response = httparse::Response::new(&mut headers);
    let Ok(httparse::Status::Complete(head)) = response.parse(reply) else { return false };
    let length = response.headers.iter().find_map(|header| {
        let named = header.name.eq_ignore_ascii_case("content-length");
        named.then(|| std::str::from_utf8(header.value).ok()?.trim().parse::<usize>().ok())?
    });
    match (response.code, length) {
        (Some(204), _) => true,
        (_, Some(length)) => reply.len() - head >= length,
        _ => false,
    }
}

/// Parses the reply to a POST once it is complete or its connection is closed. Returns the body, at
/// most 64 KiB of it, if the status is 2xx.
///
/// # Errors
///
/// A description: the reply is not valid HTTP, or its status is not 2xx.
pub fn read_reply(reply: &[u8]) -> Result<Vec<u8>, String> {
    let read =
        if is_complete(reply) { reply } else { reply.get(..REPLY_BYTES_MAX).unwrap_or(reply) };
    classify_reply(read).map_err(|error| error.to_string())
}

fn classify_reply(reply: &[u8]) -> Result<Vec<u8>, PostError> {
    let mut headers = [httparse::EMPTY_HEADER; 64];
    let mut response = httparse::Response::new(&mut headers);
    let Ok(httparse::Status::Complete(head)) = response.parse(reply) else {
        return Err(PostError::NotHttp);
    };
    let body = reply.get(head..).unwrap_or_default();
    match response.code {
        Some(200..=299) => Ok(body.to_vec()),
        Some(code) => {
            let is_it =
                |header: &&httparse::Header<'_>| header.name.eq_ignore_ascii_case("retry-after");
            let seconds = response
                .headers
                .iter()
                .find(is_it)
                .and_then(|header| str::from_utf8(header.value).ok()?.trim().parse().ok());
            let retry_after = seconds.map(Duration::from_secs);
            Err(PostError::Status { code, quote: quote(body), body: body.into(), retry_after })
        }
        None => Err(PostError::NotHttp),
    }
}

/// The beginning of a reply's body, without control characters, for a log.
pub fn quote(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let clean = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    clean.take(QUOTE_CHARS_MAX).collect::<String>().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(url: &str) -> Result<HttpEndpoint, EndpointError> {
        HttpEndpoint::new("test", url, None, String::new())
    }

    #[test]
    fn urls_are_parsed() {
        let parts = |url| {
            let endpoint = endpoint(url).unwrap();
            (endpoint.host, endpoint.port, endpoint.path_and_query)
        };
        assert_eq!(parts("http://a"), ("a".into(), 80, "/".into()));
        assert_eq!(parts("http://a:81/b?c=d"), ("a".into(), 81, "/b?c=d".into()));
        assert_eq!(parts("http://[::1]:81?c"), ("::1".into(), 81, "/?c".into()));
        assert_eq!(
            endpoint("http://a/w?db=x&precision=s").unwrap().parameter("precision"),
            Some("s")
        );
    }

    #[test]
    fn origin_excludes_path() {
        assert_eq!(
            endpoint("https://hooks.example/services/secret").unwrap().origin(),
            "https://hooks.example:443"
        );
        assert_eq!(endpoint("http://[::1]:81/x").unwrap().origin(), "http://[::1]:81");
    }

    #[test]
    fn invalid_url_error_hides_secrets() {
        for url in
            ["ftp://a/b?p=secret", "http://me:secret@a/b", "http://:1/?p=secret", "http://a b"]
        {
            let error = endpoint(url).err().unwrap().to_string();
            assert!(!error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn replies_are_classified_by_status() {
        assert_eq!(classify_reply(b"HTTP/1.1 204 No Content\r\n\r\n").unwrap(), b"");
        let error =
            classify_reply(b"HTTP/1.1 400 Bad\r\n\r\n{\"error\":\"no\r\ngood\"}").unwrap_err();
        assert_eq!(error.to_string(), "status 400: {\"error\":\"no  good\"}");
        assert!(error.is_refusal());
        assert!(!classify_reply(b"HTTP/1.1 503 Busy\r\n\r\n").unwrap_err().is_refusal());
        assert!(!classify_reply(b"HTTP/1.1 429 Slow\r\n\r\n").unwrap_err().is_refusal());
        let busy = classify_reply(b"HTTP/1.1 429 Slow\r\nretry-after: 7\r\n\r\n").unwrap_err();
        assert_eq!(busy.retry_after(), Some(Duration::from_secs(7)));
        assert!(matches!(classify_reply(b"hello"), Err(PostError::NotHttp)));
    }

    #[test]
    fn reply_is_complete_at_content_length() {
        assert!(is_complete(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"));
        assert!(!is_complete(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok"));
        assert!(!is_complete(b"HTTP/1.1 200 OK\r\n\r\nok"));
        assert!(is_complete(b"HTTP/1.1 204 None\r\n\r\n"));
    }
}
