//! A blocking socket with a deadline, and TLS if requested.

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    os::{
        linux::net::SocketAddrExt,
        unix::{
            ffi::OsStrExt,
            net::{SocketAddr as UnixAddr, UnixStream},
        },
    },
    path::{Path, PathBuf},
    sync::Arc,
    time::Instant,
};

use rustix::net::sockopt;
use rustls::{ClientConfig, ClientConnection};
use rustls_pki_types::ServerName;

use super::error::ConnectFailure;
use crate::{
    Keepalive,
    deadline::{remaining, retry},
    tls::{Encryption, Negotiation, OpeningStep},
};

/// The address of a socket: an endpoint whose name has been resolved.
#[derive(Clone, Debug)]
pub(super) enum ResolvedAddress {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

/// The configuration and server name for a TLS handshake.
#[derive(Clone, Debug)]
pub(super) struct TlsSetup {
    pub(super) config: Arc<ClientConfig>,
    pub(super) server_name: ServerName<'static>,
}

pub(super) struct Socket {
    transport: DeadlineTransport,
    tls: Option<Box<ClientConnection>>,
}

struct DeadlineTransport {
    stream: RawStream,
    deadline: Option<Instant>,
}

enum RawStream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    /// Connects without TLS. `deadline` limits connecting over TCP, and later reads and writes.
    pub(super) fn connect(
        address: &ResolvedAddress,
        keepalive: Keepalive,
        deadline: Option<Instant>,
    ) -> io::Result<Self> {
        let stream = match address {
            ResolvedAddress::Tcp(address) => {
                let stream = match deadline {
                    Some(deadline) => TcpStream::connect_timeout(address, remaining(deadline)?)?,
                    None => TcpStream::connect(address)?,
                };
                stream.set_nodelay(true)?;
                set_keepalive(&stream, keepalive)?;
                RawStream::Tcp(stream)
            }
            ResolvedAddress::Unix(path) => RawStream::Unix(connect_unix(path)?),
        };
        Ok(Self { transport: DeadlineTransport { stream, deadline }, tls: None })
    }

    /// Performs the TLS negotiation for `encryption`. Afterwards the startup packet can be sent.
    pub(super) fn open(
        &mut self,
        encryption: Encryption,
        secure: Option<&TlsSetup>,
    ) -> Result<(), ConnectFailure> {
        let negotiation = Negotiation::new(encryption);
        let mut opening = negotiation.opening();
        if let OpeningStep::Send(request) = opening {
            self.send(request).map_err(ConnectFailure::Lost)?;
            // The buffer holds more than one byte, to detect extra bytes.
            let mut answer = [0; 16];
            let bytes = self.receive(&mut answer).map_err(ConnectFailure::Lost)?;
            opening = negotiation.handle_reply(&answer[..bytes])?.ok_or(ConnectFailure::Closed)?;
        }
        match (opening, secure) {
            (OpeningStep::Handshake, Some(secure)) => {
                self.handshake(secure)?;
                negotiation
                    .handshake_done(self.tls.as_ref().and_then(|tls| tls.alpn_protocol()))?;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn handshake(&mut self, secure: &TlsSetup) -> Result<(), ConnectFailure> {
        let mut tls = ClientConnection::new(secure.config.clone(), secure.server_name.clone())
            .map_err(ConnectFailure::Handshake)?;
        while tls.is_handshaking() || tls.wants_write() {
            if let Err(error) = tls.complete_io(&mut self.transport) {
                return Err(match error.downcast::<rustls::Error>() {
                    Ok(error) => ConnectFailure::Handshake(error),
                    Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                        ConnectFailure::Closed
                    }
                    Err(error) => ConnectFailure::Lost(error),
                });
            }
        }
        self.tls = Some(Box::new(tls));
        Ok(())
    }

    /// Sets the deadline after which reading and writing fail with [`io::ErrorKind::TimedOut`].
    pub(super) fn set_deadline(&mut self, deadline: Option<Instant>) {
        self.transport.deadline = deadline;
    }

    /// Sends all of `bytes`, and blocks until they are sent or the deadline has passed.
    pub(super) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &mut self.tls {
            None => self.transport.write_all(bytes),
            Some(tls) => {
                let mut stream = rustls::Stream::new(&mut **tls, &mut self.transport);
                stream.write_all(bytes)?;
                stream.flush()
            }
        }
    }

    /// Waits for bytes and reads them; returns 0 at the end of the stream.
    pub(super) fn receive(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let received = match &mut self.tls {
            None => self.transport.read(buffer),
            Some(tls) => rustls::Stream::new(&mut **tls, &mut self.transport).read(buffer),
        };
        match received {
            // Servers close TLS connections without close_notify; the PostgreSQL protocol has its
            // own end of session.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(0),
            other => other,
        }
    }

    pub(super) fn is_encrypted(&self) -> bool {
        self.tls.is_some()
    }

    /// Returns the server's certificate, in DER.
    pub(super) fn peer_certificate(&self) -> Option<&[u8]> {
        self.tls.as_ref()?.peer_certificates()?.first().map(AsRef::as_ref)
    }

    /// Sends a TLS close_notify, if TLS is in use.
    pub(super) fn close(&mut self) {
        if let Some(tls) = &mut self.tls {
            tls.send_close_notify();
            let _ = tls.write_tls(&mut self.transport);
        }
    }
}

impl DeadlineTransport {
    /// Sets the timeout for one blocking call.
    fn arm(&self) -> io::Result<()> {
        let timeout = self.deadline.map(remaining).transpose()?;
        match &self.stream {
            RawStream::Tcp(stream) => {
                stream.set_read_timeout(timeout)?;
                stream.set_write_timeout(timeout)
            }
            RawStream::Unix(stream) => {
                stream.set_read_timeout(timeout)?;
                stream.set_write_timeout(timeout)
            }
        }
    }
}

impl Read for DeadlineTransport {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.arm()?;
        retry(|| match &mut self.stream {
            RawStream::Tcp(stream) => stream.read(buffer),
            RawStream::Unix(stream) => stream.read(buffer),
        })
    }
}

impl Write for DeadlineTransport {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.arm()?;
        retry(|| match &mut self.stream {
            RawStream::Tcp(stream) => stream.write(bytes),
            RawStream::Unix(stream) => stream.write(bytes),
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn connect_unix(path: &Path) -> io::Result<UnixStream> {
    match path.as_os_str().as_bytes() {
        [b'@', name @ ..] => UnixStream::connect_addr(&UnixAddr::from_abstract_name(name)?),
        _ => UnixStream::connect(path),
    }
}

fn set_keepalive(stream: &TcpStream, keepalive: Keepalive) -> io::Result<()> {
    sockopt::set_socket_keepalive(stream, keepalive.enabled)?;
    if let Some(idle) = keepalive.idle {
        sockopt::set_tcp_keepidle(stream, idle)?;
    }
    if let Some(interval) = keepalive.interval {
        sockopt::set_tcp_keepintvl(stream, interval)?;
    }
    if let Some(count) = keepalive.count {
        sockopt::set_tcp_keepcnt(stream, count)?;
    }
    if let Some(timeout) = keepalive.user_timeout {
        let milliseconds = u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX);
        sockopt::set_tcp_user_timeout(stream, milliseconds)?;
    }
    Ok(())
}
