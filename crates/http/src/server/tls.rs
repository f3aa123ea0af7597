//! TLS of a server whose clients need a certificate.
//!
//! The handshake is a part of the connection's first read, so a client that does not complete it
//! delays no other, and the connection's timeouts apply to it.

use std::{
    io,
    path::Path,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use howdah_connect::tls::{TlsError, client_verifier, server_identity};
use rustls::{ServerConfig, crypto::ring::default_provider, sign::SingleCertAndKey};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::{Accept, TlsAcceptor, server::TlsStream};

/// A server's certificate and key, and the CA whose certificates its clients need.
#[derive(Clone, Debug)]
pub struct MutualTls {
    config: Arc<ServerConfig>,
}

impl MutualTls {
    /// Reads the files.
    ///
    /// # Errors
    ///
    /// A file is missing, unreadable or invalid, or the key belongs to another certificate.
    pub fn load(certificate: &Path, key: &Path, client_ca: &Path) -> Result<Self, TlsError> {
        let identity = server_identity(certificate, key)?;
        let mut config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()?
            .with_client_cert_verifier(client_verifier(client_ca, true)?)
            .with_cert_resolver(Arc::new(SingleCertAndKey::from(identity)));
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self { config: Arc::new(config) })
    }

    pub(super) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(Arc::clone(&self.config))
    }
}

/// A connection, encrypted or not.
pub(super) enum AcceptedStream<S> {
    Plain(S),
    Handshake(Box<Accept<S>>),
    Encrypted(Box<TlsStream<S>>),
    /// The handshake failed.
    Failed,
}

/// A connection of either type after the handshake.
trait AsyncStream: AsyncRead + AsyncWrite + Unpin {}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncStream for T {}

impl<S: AsyncRead + AsyncWrite + Unpin> AcceptedStream<S> {
    pub(super) fn new(stream: S, acceptor: Option<&TlsAcceptor>) -> Self {
        match acceptor {
            None => Self::Plain(stream),
            Some(acceptor) => Self::Handshake(Box::new(acceptor.accept(stream))),
        }
    }

    /// Completes the handshake, and returns the connection.
    fn poll_open(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<Pin<&mut dyn AsyncStream>>> {
        if let Self::Handshake(accept) = self {
            match ready!(Pin::new(accept.as_mut()).poll(context)) {
                Ok(stream) => *self = Self::Encrypted(Box::new(stream)),
                Err(error) => {
                    *self = Self::Failed;
                    tracing::debug!(%error, "TLS handshake failed");
                    return Poll::Ready(Err(error));
                }
            }
        }
        Poll::Ready(match self {
            Self::Plain(stream) => Ok(Pin::new(stream)),
            Self::Encrypted(stream) => Ok(Pin::new(stream.as_mut())),
            Self::Handshake(_) | Self::Failed => Err(io::ErrorKind::ConnectionAborted.into()),
        })
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for AcceptedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.poll_open(context))?.poll_read(context, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for AcceptedStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_open(context))?.poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_open(context))?.poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_open(context))?.poll_shutdown(context)
    }
}
