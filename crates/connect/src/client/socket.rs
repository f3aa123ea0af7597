//! A socket that blocks, but not beyond a deadline, with TLS where it is wanted.

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
    tls::{Encryption, Negotiation, Opening},
};

/// Where a socket leads: an endpoint whose name has been looked up.
#[derive(Clone, Debug)]
pub(super) enum Address {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

/// What TLS needs to begin.
#[derive(Clone, Debug)]
pub(super) struct Secure {
    pub(super) config: Arc<ClientConfig>,
    pub(super) server_name: ServerName<'static>,
}

/// A connected socket.
pub(super) struct Socket {
    transport: Transport,
    tls: Option<Box<ClientConnection>>,
}

struct Transport {
    stream: Stream,
    deadline: Option<Instant>,
}

enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    /// Connects, without any TLS yet.
    pub(super) fn connect(
        address: &Address,
        keepalive: Keepalive,
        deadline: Option<Instant>,
    ) -> io::Result<Self> {
        let stream = match address {
            Address::Tcp(address) => {
                let stream = match deadline {
                    Some(deadline) => TcpStream::connect_timeout(address, remaining(deadline)?)?,
                    None => TcpStream::connect(address)?,
                };
                stream.set_nodelay(true)?;
                set_keepalive(&stream, keepalive)?;
                Stream::Tcp(stream)
            }
            Address::Unix(path) => Stream::Unix(connect_unix(path)?),
        };
        Ok(Self { transport: Transport { stream, deadline }, tls: None })
    }

    /// Begins the connection in this way. Afterwards the startup packet is next.
    pub(super) fn open(
        &mut self,
        encryption: Encryption,
        secure: Option<&Secure>,
    ) -> Result<(), ConnectFailure> {
        let negotiation = Negotiation::new(encryption);
        let mut opening = negotiation.opening();
        if let Opening::Ask(request) = opening {
            self.send(request).map_err(ConnectFailure::Lost)?;
            // More than one byte would fit, so that more than one is noticed.
            let mut answer = [0; 16];
            let bytes = self.receive(&mut answer).map_err(ConnectFailure::Lost)?;
            opening = negotiation.answer(&answer[..bytes])?.ok_or(ConnectFailure::Closed)?;
        }
        match (opening, secure) {
            (Opening::Handshake, Some(secure)) => {
                self.handshake(secure)?;
                negotiation
                    .handshake_done(self.tls.as_ref().and_then(|tls| tls.alpn_protocol()))?;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn handshake(&mut self, secure: &Secure) -> Result<(), ConnectFailure> {
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

    /// Sets when reading and writing give up with [`io::ErrorKind::TimedOut`].
    pub(super) fn set_deadline(&mut self, deadline: Option<Instant>) {
        self.transport.deadline = deadline;
    }

    /// Sends all of `bytes`.
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

    /// Waits for bytes and reads them; 0 at the end of the stream.
    pub(super) fn receive(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let received = match &mut self.tls {
            None => self.transport.read(buffer),
            Some(tls) => rustls::Stream::new(&mut **tls, &mut self.transport).read(buffer),
        };
        match received {
            // Servers end TLS connections without saying so; the protocol inside says goodbye.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(0),
            other => other,
        }
    }

    pub(super) fn is_encrypted(&self) -> bool {
        self.tls.is_some()
    }

    /// The server's own certificate, in DER.
    pub(super) fn peer_certificate(&self) -> Option<&[u8]> {
        self.tls.as_ref()?.peer_certificates()?.first().map(AsRef::as_ref)
    }

    /// Tells the peer that we are done, as far as TLS has a word for it.
    pub(super) fn close(&mut self) {
        if let Some(tls) = &mut self.tls {
            tls.send_close_notify();
            let _ = tls.write_tls(&mut self.transport);
        }
    }
}

impl Transport {
    /// Prepares the stream for one call that may block.
    fn arm(&self) -> io::Result<()> {
        let timeout = self.deadline.map(remaining).transpose()?;
        match &self.stream {
            Stream::Tcp(stream) => {
                stream.set_read_timeout(timeout)?;
                stream.set_write_timeout(timeout)
            }
            Stream::Unix(stream) => {
                stream.set_read_timeout(timeout)?;
                stream.set_write_timeout(timeout)
            }
        }
    }
}

impl Read for Transport {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.arm()?;
        retry(|| match &mut self.stream {
            Stream::Tcp(stream) => stream.read(buffer),
            Stream::Unix(stream) => stream.read(buffer),
        })
    }
}

impl Write for Transport {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.arm()?;
        retry(|| match &mut self.stream {
            Stream::Tcp(stream) => stream.write(bytes),
            Stream::Unix(stream) => stream.write(bytes),
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
