//! [`HttpEndpoint`]: the URL that requests are sent to, and how they are sent.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Instant,
};

use howdah_connect::{
    deadline::remaining,
    tls::{RootCertificates, SslMode, TlsError, TlsSettings, check_certificates, client_config},
};
use rustls::{ClientConfig, pki_types::ServerName};
use ureq::{Agent, http::Uri};

use super::{
    PostError, reply,
    transport::{EndpointConnector, TlsParameters, agent},
};

/// Names and values of headers. A value that is not valid in a header makes the request fail.
pub type Headers = Vec<(&'static str, String)>;

/// The files that TLS uses. By default, the system's root certificates authenticate the server, and
/// the client has no certificate.
#[derive(Clone, Debug, Default)]
pub struct EndpointTls {
    /// Root certificates that replace the system's.
    pub ca_file: Option<PathBuf>,
    /// The client's certificate and private key.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// A parsed URL with its TLS settings and the headers of each request.
pub struct HttpEndpoint {
    agent: Agent,
    uri: Uri,
    host: String,
    port: u16,
    headers: Headers,
    display_url: String,
}

/// The reason why an endpoint cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EndpointError {
    /// The URL is not `http[s]://host[:port][/path][?query]`, or its host is not valid for TLS.
    #[error(
        "{url:?} is not a valid endpoint URL: write http://host:port/path, without user or password"
    )]
    Url {
        /// The URL without its query and without anything before an `@`.
        url: String,
    },
    /// The token file cannot be read, or its content is not valid in a header.
    #[error("cannot use the token in {path}")]
    Token {
        /// Path of the token file.
        path: PathBuf,
        /// The I/O error, or a description of the invalid content.
        source: io::Error,
    },
    /// TLS cannot be set up.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

impl HttpEndpoint {
    /// Parses a URL. `user_agent` is the `User-Agent` header, `ca_file` has root certificates that
    /// replace the system's, and `headers` are sent with every request.
    ///
    /// # Errors
    ///
    /// The URL is invalid, or TLS cannot be set up.
    pub fn new(
        user_agent: &'static str,
        url: &str,
        ca_file: Option<&Path>,
        headers: Headers,
    ) -> Result<Self, EndpointError> {
        let tls = EndpointTls { ca_file: ca_file.map(Path::to_owned), identity: None };
        Self::with_tls(user_agent, url, &tls, headers)
    }

    /// Like [`Self::new`], with a certificate of the client.
    ///
    /// # Errors
    ///
    /// The URL is invalid, or TLS cannot be set up.
    pub fn with_tls(
        user_agent: &'static str,
        url: &str,
        files: &EndpointTls,
        headers: Headers,
    ) -> Result<Self, EndpointError> {
        let display_url = url.split(['?', '#']).next().unwrap_or_default().to_owned();
        let invalid = || {
            // The part before an @ may contain a password.
            let url = display_url.rsplit('@').next().unwrap_or_default().to_owned();
            EndpointError::Url { url }
        };
        let (uri, host, port) = parse_url(url).ok_or_else(invalid)?;
        let tls = if is_secure(&uri) {
            let server_name = ServerName::try_from(host.clone()).map_err(|_| invalid())?;
            Some(TlsParameters { config: tls_config(files)?, server_name })
        } else {
            None
        };
        let agent = agent(user_agent, EndpointConnector { tls });
        Ok(Self { agent, uri, host, port, headers, display_url })
    }

    /// Returns the URL without its query, for logs.
    pub fn display_url(&self) -> &str {
        &self.display_url
    }

    /// Returns only scheme, host and port, for receivers whose URL path is a secret.
    pub fn origin(&self) -> String {
        let scheme = if is_secure(&self.uri) { "https" } else { "http" };
        if self.host.contains(':') {
            format!("{scheme}://[{}]:{}", self.host, self.port)
        } else {
            format!("{scheme}://{}:{}", self.host, self.port)
        }
    }

    /// Returns the value of a query parameter, not decoded; `None` if the URL does not have it.
    pub fn parameter(&self, name: &str) -> Option<&str> {
        let query = self.uri.query()?;
        query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
    }

    /// Sends `body` and waits for the reply; returns its body, at most 64 KiB of it, if the status
    /// is 2xx.
    ///
    /// # Errors
    ///
    /// The connection failed, the status is not 2xx, or there was no valid reply by the deadline.
    /// The request may have arrived nevertheless.
    pub fn post(&self, body: &[u8], deadline: Instant) -> Result<Vec<u8>, PostError> {
        self.post_with(&Headers::new(), body, deadline)
    }

    /// Like [`post`](Self::post), with additional headers.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`post`](Self::post).
    pub fn post_with(
        &self,
        headers: &Headers,
        body: &[u8],
        deadline: Instant,
    ) -> Result<Vec<u8>, PostError> {
        let request = self.agent.post(self.uri.clone());
        let request = request.config().timeout_global(Some(remaining(deadline)?)).build();
        // The agent does not reuse connections; this header makes the server close this one, too.
        let request = request.header("Connection", "close");
        let headers = self.headers.iter().chain(headers);
        let request = headers.fold(request, |request, (name, value)| request.header(*name, value));
        reply::classify(request.send(body))
    }

    /// Requests the URL and waits for the reply; returns its body if the status is 2xx.
    ///
    /// # Errors
    ///
    /// The connection failed, the status is not 2xx, the body has more than `bytes_max`, or there
    /// was no complete reply by the deadline.
    pub fn get(&self, bytes_max: u64, deadline: Instant) -> Result<Vec<u8>, PostError> {
        let request = self.agent.get(self.uri.clone());
        let request = request.config().timeout_global(Some(remaining(deadline)?)).build();
        let request = request.header("Connection", "close");
        let headers = self.headers.iter();
        let request = headers.fold(request, |request, (name, value)| request.header(*name, value));
        reply::whole_body(request.call(), bytes_max)
    }
}

fn is_secure(uri: &Uri) -> bool {
    uri.scheme_str() == Some("https")
}

/// Parses `http[s]://host[:port][/path][?query]`. Returns the URI, the host without brackets, and
/// the port; `None` if the text is anything else.
fn parse_url(url: &str) -> Option<(Uri, String, u16)> {
    let uri: Uri = url.parse().ok()?;
    let default_port = match uri.scheme_str()? {
        "http" => 80,
        "https" => 443,
        _ => return None,
    };
    let host = uri.host()?;
    // The rest of the authority must be a port; a user or password would come before the host.
    let port = match uri.authority()?.as_str().strip_prefix(host)? {
        "" => default_port,
        port => port.strip_prefix(':')?.parse().ok()?,
    };
    let host = host.strip_prefix('[').map_or(host, |host| host.trim_end_matches(']'));
    let is_printable = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
    if host.is_empty() || !is_printable(host) || !is_printable(uri.path_and_query()?.as_str()) {
        return None;
    }
    let host = host.to_owned();
    Some((uri, host, port))
}

fn tls_config(files: &EndpointTls) -> Result<Arc<ClientConfig>, TlsError> {
    let mut settings = TlsSettings::default();
    settings.mode = SslMode::VerifyFull;
    settings.root_certificates = match &files.ca_file {
        Some(path) => RootCertificates::File(path.clone()),
        None => RootCertificates::System,
    };
    if let Some((certificate, key)) = &files.identity {
        // As a setting, a certificate that does not exist is ignored, as in libpq.
        check_certificates(certificate)?;
        settings.certificate = Some(certificate.clone());
        settings.key = Some(key.clone());
    }
    let mut config = ClientConfig::clone(&*client_config(&settings)?);
    // The shared configuration names PostgreSQL's ALPN protocol.
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// Returns an `Authorization` header with the token from `file`; `None` without a file.
///
/// # Errors
///
/// The file cannot be read, or does not contain exactly one token of printable characters.
pub fn authorization(
    scheme: &str,
    file: Option<&PathBuf>,
) -> Result<Option<(&'static str, String)>, EndpointError> {
    let Some(path) = file else { return Ok(None) };
    let unusable = |source| EndpointError::Token { path: path.clone(), source };
    let text = fs::read_to_string(path).map_err(unusable)?;
    let token = text.trim();
    if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        let reason = "it must contain one token of printable characters";
        return Err(unusable(io::Error::new(io::ErrorKind::InvalidData, reason)));
    }
    Ok(Some(("Authorization", format!("{scheme} {token}"))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(url: &str) -> Result<HttpEndpoint, EndpointError> {
        HttpEndpoint::new("test", url, None, Headers::new())
    }

    #[test]
    fn urls_are_parsed() {
        let parts = |url| {
            let endpoint = endpoint(url).unwrap();
            let query = endpoint.uri.query().map(str::to_owned);
            (endpoint.host, endpoint.port, endpoint.uri.path().to_owned(), query)
        };
        assert_eq!(parts("http://a"), ("a".into(), 80, "/".into(), None));
        assert_eq!(parts("http://a:81/b?c=d"), ("a".into(), 81, "/b".into(), Some("c=d".into())));
        assert_eq!(parts("http://[::1]:81?c"), ("::1".into(), 81, "/".into(), Some("c".into())));
        assert_eq!(parts("http://a/b#c"), ("a".into(), 80, "/b".into(), None));
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
        for url in [
            "ftp://a/b?p=secret",
            "http://me:secret@a/b",
            "http://:1/?p=secret",
            "http://a b",
            "http://a:x/?p=secret",
            "http://a:65536/?p=secret",
            "/?p=secret",
            "http://a/\u{e9}?p=secret",
        ] {
            let error = endpoint(url).err().unwrap().to_string();
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
