//! One POST per call over a connection of its own, by a deadline: what sending a batch every few
//! seconds needs of HTTP, with TLS by rustls.
//!
//! No redirects, proxies, compression or connection reuse. Credentials travel in headers and never
//! appear in an error or a log; nor does the URL's query, where some receivers take them.

use std::{
    fs,
    io::{self, Read, Write},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use howdah_connect::tls::{RootCertificates, SslMode, TlsError, TlsSettings, client_config};
use rustls::{ClientConfig, ClientConnection, StreamOwned, pki_types::ServerName};

use crate::Connection;

/// Most bytes of a reply that are looked at.
const REPLY_BYTES_MAX: usize = 64 << 10;
/// Most characters of a reply's body that are quoted.
const QUOTE_CHARS_MAX: usize = 300;

/// Where to send, and with what headers.
pub struct Endpoint {
    agent: &'static str,
    host: String,
    port: u16,
    path_and_query: String,
    tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
    headers: String,
    shown: String,
}

/// An endpoint cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EndpointError {
    /// It is not `http://host[:port]/path` or the same with https.
    #[error(
        "{shown:?} is no URL to send to: write http://host:port/path, without user or password"
    )]
    Url {
        /// The URL up to its query.
        shown: String,
    },
    /// A file with a token cannot be read, or holds what a header cannot.
    #[error("cannot use the token in {path}")]
    Token {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        source: io::Error,
    },
    /// TLS cannot be set up.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// What was sent was not taken, or nobody said that it was.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PostError {
    /// The connection failed, or the deadline passed.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// Something else than a web server answers.
    #[error("the reply is no HTTP")]
    NotHttp,
    /// The receiver says no.
    #[error("status {code}: {quote}")]
    Status {
        /// Its status.
        code: u16,
        /// The beginning of its reply, without control characters.
        quote: String,
        /// All of its reply that was read, 64 KiB at most.
        body: Box<[u8]>,
        /// The seconds of its `Retry-After`, if it has one; a date there is not read.
        retry_after: Option<Duration>,
    },
}

impl PostError {
    /// The receiver has it and will never take it: to send it again is no use. Statuses of 4xx say that
    /// the request is wrong, but for those that say "not now", or that an operator may put right.
    pub fn is_refusal(&self) -> bool {
        matches!(self, Self::Status { code: 400..=499, .. })
            && !matches!(self, Self::Status { code: 401 | 403 | 404 | 408 | 425 | 429, .. })
    }

    /// For how long the receiver asks to be left alone.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Status { retry_after, .. } => *retry_after,
            _ => None,
        }
    }
}

impl Endpoint {
    /// Takes a URL apart. `agent` is what the sender calls itself, `ca_file` certificates to trust instead of
    /// the system's; `headers` are lines that each end in CR LF, sent with each request.
    ///
    /// # Errors
    ///
    /// It is no URL to send to, or TLS cannot be set up.
    pub fn new(
        agent: &'static str,
        url: &str,
        ca_file: Option<&Path>,
        headers: String,
    ) -> Result<Self, EndpointError> {
        let shown = url.split(['?', '#']).next().unwrap_or_default().to_owned();
        let wrong = || {
            // What stands before an @ may be a password.
            let shown = shown.rsplit('@').next().unwrap_or_default().to_owned();
            EndpointError::Url { shown }
        };
        let (secure, rest) = match (url.strip_prefix("http://"), url.strip_prefix("https://")) {
            (Some(rest), _) => (false, rest),
            (_, Some(rest)) => (true, rest),
            _ => return Err(wrong()),
        };
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        let path = path.split('#').next().unwrap_or_default();
        let (host, port) = authority_parts(authority, secure).ok_or_else(wrong)?;
        let printable = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
        if !printable(path) || !printable(&host) {
            return Err(wrong());
        }
        let path_and_query = match path.starts_with('/') {
            true => path.to_owned(),
            false => format!("/{path}"),
        };
        let tls = match secure {
            true => {
                let name = ServerName::try_from(host.clone()).map_err(|_| wrong())?;
                Some((tls_config(ca_file)?, name))
            }
            false => None,
        };
        Ok(Self { agent, host, port, path_and_query, tls, headers, shown })
    }

    /// The URL without its query.
    pub fn shown(&self) -> &str {
        &self.shown
    }

    /// The URL up to its path: there are receivers whose path is a secret.
    pub fn origin(&self) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.authority())
    }

    fn authority(&self) -> String {
        match self.host.contains(':') {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        }
    }

    /// The value of a parameter of the query.
    pub fn parameter(&self, name: &str) -> Option<&str> {
        let (_, query) = self.path_and_query.split_once('?')?;
        query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
    }

    /// Sends `body` and waits for the reply: `Ok` with its body for a status of 2xx.
    ///
    /// # Errors
    ///
    /// It was not taken, or nobody said so by the deadline. It may have arrived for all that.
    pub fn post(&self, body: &[u8], deadline: Instant) -> Result<Vec<u8>, PostError> {
        self.post_with("", body, deadline)
    }

    /// The same with more headers, lines that each end in CR LF.
    ///
    /// # Errors
    ///
    /// As for [`Endpoint::post`].
    pub fn post_with(
        &self,
        headers: &str,
        body: &[u8],
        deadline: Instant,
    ) -> Result<Vec<u8>, PostError> {
        let connection = Connection::open(&self.host, self.port, deadline)?;
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
        // A server that refuses early may hang up before it has read all; its reply says why.
        let sent = stream.write_all(body).and_then(|()| stream.flush());
        let mut reply = Vec::new();
        let mut buffer = [0; 8 << 10];
        loop {
            match stream.read(&mut buffer) {
                Ok(0) => break,
                Ok(bytes) => reply.extend_from_slice(&buffer[..bytes]),
                // Servers end TLS connections without saying so.
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
        judge(&reply)
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
    // PostgreSQL's protocol name is not for web servers.
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// A header line with the token that a file holds; nothing without a file.
///
/// # Errors
///
/// The file cannot be read, or does not hold one token of printable characters.
pub fn authorization(scheme: &str, file: Option<&PathBuf>) -> Result<String, EndpointError> {
    let Some(path) = file else { return Ok(String::new()) };
    let wrong = |source| EndpointError::Token { path: path.clone(), source };
    let text = fs::read_to_string(path).map_err(wrong)?;
    let token = text.trim();
    if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        let reason = "it is to hold one token, of printable characters";
        return Err(wrong(io::Error::new(io::ErrorKind::InvalidData, reason)));
    }
    Ok(format!("Authorization: {scheme} {token}\r\n"))
}

/// Whether the whole reply is there, for servers that do not close.
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

/// What a reply to a POST says, once its connection is closed or it says that it is complete: the
/// body of one of success, at most 64 KiB of it.
///
/// # Errors
///
/// In words: it is no HTTP, or its status is none of success.
pub fn read_reply(reply: &[u8]) -> Result<Vec<u8>, String> {
    let read = match is_complete(reply) {
        true => reply,
        false => reply.get(..REPLY_BYTES_MAX).unwrap_or(reply),
    };
    judge(read).map_err(|error| error.to_string())
}

fn judge(reply: &[u8]) -> Result<Vec<u8>, PostError> {
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

/// The beginning of a reply's body, fit for a log.
pub fn quote(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let clean = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    clean.take(QUOTE_CHARS_MAX).collect::<String>().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(url: &str) -> Result<Endpoint, EndpointError> {
        Endpoint::new("test", url, None, String::new())
    }

    #[test]
    fn urls_are_taken_apart() {
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
    fn an_origin_has_no_path() {
        assert_eq!(
            endpoint("https://hooks.example/services/secret").unwrap().origin(),
            "https://hooks.example:443"
        );
        assert_eq!(endpoint("http://[::1]:81/x").unwrap().origin(), "http://[::1]:81");
    }

    #[test]
    fn a_wrong_url_shows_no_secret() {
        for url in
            ["ftp://a/b?p=secret", "http://me:secret@a/b", "http://:1/?p=secret", "http://a b"]
        {
            let error = endpoint(url).err().unwrap().to_string();
            assert!(!error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn replies_are_judged_by_their_status() {
        assert_eq!(judge(b"HTTP/1.1 204 No Content\r\n\r\n").unwrap(), b"");
        let error = judge(b"HTTP/1.1 400 Bad\r\n\r\n{\"error\":\"no\r\ngood\"}").unwrap_err();
        assert_eq!(error.to_string(), "status 400: {\"error\":\"no  good\"}");
        assert!(error.is_refusal());
        assert!(!judge(b"HTTP/1.1 503 Busy\r\n\r\n").unwrap_err().is_refusal());
        assert!(!judge(b"HTTP/1.1 429 Slow\r\n\r\n").unwrap_err().is_refusal());
        let busy = judge(b"HTTP/1.1 429 Slow\r\nretry-after: 7\r\n\r\n").unwrap_err();
        assert_eq!(busy.retry_after(), Some(Duration::from_secs(7)));
        assert!(matches!(judge(b"hello"), Err(PostError::NotHttp)));
    }

    #[test]
    fn a_reply_is_complete_when_its_length_is_there() {
        assert!(is_complete(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"));
        assert!(!is_complete(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok"));
        assert!(!is_complete(b"HTTP/1.1 200 OK\r\n\r\nok"));
        assert!(is_complete(b"HTTP/1.1 204 None\r\n\r\n"));
    }
}
