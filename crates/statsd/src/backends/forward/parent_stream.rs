//! [`ParentStream`]: the connection to the parent, encrypted or not.

use std::{
    fmt,
    io::{self, Read, Write},
    sync::Arc,
    time::Instant,
};

use howdah_connect::{
    deadline::DeadlineStream,
    tls::{RootCertificates, SslMode, TlsError, TlsSettings, check_certificates, client_config},
};
use howdah_http::client::{EndpointError, authorization};
use rustls::{ClientConfig, ClientConnection, StreamOwned, pki_types::ServerName};

use crate::settings::ForwardSettings;

/// How the parent is reached, and what it demands.
pub(super) struct ParentAccess {
    pub(super) host: String,
    pub(super) port: u16,
    /// The configuration of TLS, and the name in the parent's certificate.
    tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
    /// The first line, if the parent demands a token.
    token_line: Option<String>,
}

/// A connection whose calls end by its deadline.
#[derive(Debug)]
pub(super) enum ParentStream {
    Tcp(DeadlineStream),
    Tls(Box<StreamOwned<ClientConnection, DeadlineStream>>),
}

impl ParentAccess {
    /// Reads the files that the settings name.
    pub(super) fn new(settings: &ForwardSettings) -> Result<Self, EndpointError> {
        let (host, port) = (settings.to.host.clone(), settings.to.port);
        let tls = if settings.tls {
            let name = ServerName::try_from(host.clone());
            let name = name.map_err(|_| TlsError::ServerName { host: host.clone() })?;
            Some((tls_config(settings)?, name))
        } else {
            None
        };
        let token_line = authorization("auth", settings.token_file.as_ref())?;
        let token_line = token_line.map(|(_, line)| format!("{line}\n"));
        Ok(Self { host, port, tls, token_line })
    }

    /// Connects, and sends the token. The handshake of TLS is part of the first write.
    pub(super) fn connect(&self, deadline: Instant) -> io::Result<ParentStream> {
        let socket = DeadlineStream::open(&self.host, self.port, deadline)?;
        let mut stream = match &self.tls {
            None => ParentStream::Tcp(socket),
            Some((config, name)) => {
                let connection = ClientConnection::new(Arc::clone(config), name.clone());
                let connection = connection.map_err(io::Error::other)?;
                ParentStream::Tls(Box::new(StreamOwned::new(connection, socket)))
            }
        };
        if let Some(line) = &self.token_line {
            stream.write_all(line.as_bytes())?;
        }
        Ok(stream)
    }
}

/// Omits the token.
impl fmt::Debug for ParentAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ParentAccess")
            .field("host", &self.host)
            .field("port", &self.port)
            .field("tls", &self.tls.is_some())
            .field("token_line", &self.token_line.is_some())
            .finish()
    }
}

impl ParentStream {
    /// Sets the deadline of subsequent calls.
    pub(super) fn set_deadline(&mut self, deadline: Instant) {
        match self {
            Self::Tcp(socket) => socket.set_deadline(deadline),
            Self::Tls(stream) => stream.sock.set_deadline(deadline),
        }
    }
}

impl Read for ParentStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(socket) => socket.read(buffer),
            Self::Tls(stream) => stream.read(buffer),
        }
    }
}

impl Write for ParentStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(socket) => socket.write(bytes),
            Self::Tls(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Tcp(socket) => socket.flush(),
            Self::Tls(stream) => stream.flush(),
        }
    }
}

/// Returns a configuration that verifies the parent's certificate and name.
fn tls_config(settings: &ForwardSettings) -> Result<Arc<ClientConfig>, TlsError> {
    let mut tls = TlsSettings::default();
    tls.mode = SslMode::VerifyFull;
    tls.root_certificates = match &settings.ca_file {
        Some(path) => RootCertificates::File(path.clone()),
        None => RootCertificates::System,
    };
    if let Some(certificate) = &settings.tls_certificate {
        // As a setting, a certificate that does not exist is ignored, as in libpq.
        check_certificates(certificate)?;
        tls.certificate = Some(certificate.clone());
        tls.key.clone_from(&settings.tls_key);
    }
    let mut config = ClientConfig::clone(&*client_config(&tls)?);
    // The shared configuration names PostgreSQL's ALPN protocol.
    config.alpn_protocols = Vec::new();
    Ok(Arc::new(config))
}
