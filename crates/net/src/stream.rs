//! One connection to a server: a socket that never blocks, with TLS where it is wanted.

use std::{
    io::{self, Read, Write},
    net::TcpStream,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::UnixStream,
    },
    sync::Arc,
};

use howdah_wire::startup::SSL_REQUEST_PACKET;
use rustls::{ClientConnection, pki_types::ServerName};

/// A connection that carries PostgreSQL's messages once it is open.
///
/// ```text
/// connecting ──► asking for TLS ──► handshaking ──► open
///      │  (SSLRequest, 'S')             ▲              ▲
///      ├────────── direct TLS ──────────┘              │
///      └────────────────── no TLS ─────────────────────┘
/// ```
///
/// [`Stream::open`] walks that line as far as the socket allows. After it returned true, use
/// [`Stream::send`] and [`Stream::receive`] until they have nothing more, then wait again.
#[derive(Debug)]
pub struct Stream {
    transport: Transport,
    phase: Phase,
}

#[derive(Debug)]
pub(crate) enum Transport {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// What a TLS connection needs to begin.
#[derive(Clone, Debug)]
pub(crate) struct Secure {
    pub(crate) config: Arc<rustls::ClientConfig>,
    pub(crate) server_name: ServerName<'static>,
    pub(crate) direct: bool,
}

#[derive(Debug)]
enum Phase {
    Connecting { tls: Option<Secure> },
    AskingForTls { tls: Secure, asked: bool },
    Handshaking { connection: Box<ClientConnection>, direct: bool },
    Tls(Box<ClientConnection>),
    Plain,
}

/// What a read brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// That many bytes, and there may be more.
    Bytes(usize),
    /// That many bytes (perhaps none), and then the socket was empty: wait for readiness, unless
    /// that has said already that the peer hung up. Then the end is still to be read.
    Drained(usize),
    /// The server has closed its side.
    Closed,
}

/// The protocol that TLS without an SSLRequest has to agree on, lest the bytes reach a server of
/// another kind (ALPACA). Source: PostgreSQL manual, "SSL Session Encryption".
const ALPN: &[u8] = b"postgresql";

impl Stream {
    pub(crate) fn new(transport: Transport, tls: Option<Secure>) -> Self {
        Self { transport, phase: Phase::Connecting { tls } }
    }

    /// Goes on with connecting, asking for TLS and its handshake; true once the connection is open.
    /// Call it at first and at each readiness until then.
    ///
    /// # Errors
    ///
    /// The connection was refused or lost, the server has no TLS, or the handshake failed.
    pub fn open(&mut self) -> io::Result<bool> {
        loop {
            let next = match &mut self.phase {
                Phase::Plain | Phase::Tls(_) => return Ok(true),
                Phase::Connecting { tls } => {
                    if let Some(error) = self.transport.take_error()? {
                        return Err(error);
                    }
                    if !self.transport.is_connected()? {
                        return Ok(false);
                    }
                    match tls.take() {
                        None => Phase::Plain,
                        Some(tls) if tls.direct => {
                            Phase::Handshaking { connection: handshake(tls)?, direct: true }
                        }
                        Some(tls) => Phase::AskingForTls { tls, asked: false },
                    }
                }
                Phase::AskingForTls { tls, asked } => {
                    if !*asked {
                        // Eight bytes into the empty buffer of a new socket: never a short write.
                        self.transport.write_all(&SSL_REQUEST_PACKET)?;
                        *asked = true;
                    }
                    match read_tls_answer(&mut self.transport)? {
                        None => return Ok(false),
                        Some(b'S') => Phase::Handshaking {
                            connection: handshake(tls.clone())?,
                            direct: false,
                        },
                        Some(_) => {
                            return Err(io::Error::other("the server does not offer TLS"));
                        }
                    }
                }
                Phase::Handshaking { connection, direct } => {
                    if !shake_hands(connection, &mut self.transport)? {
                        return Ok(false);
                    }
                    if *direct && connection.alpn_protocol() != Some(ALPN) {
                        return Err(io::Error::other(
                            "the peer does not speak PostgreSQL over TLS",
                        ));
                    }
                    let Phase::Handshaking { connection, .. } =
                        std::mem::replace(&mut self.phase, Phase::Plain)
                    else {
                        unreachable!("matched two lines above");
                    };
                    Phase::Tls(connection)
                }
            };
            self.phase = next;
        }
    }

    /// Sends from the front of `bytes` as much as fits now and says how much that was.
    ///
    /// With TLS, bytes that were taken may still be on their way: call again, if only with nothing,
    /// when the socket is writable.
    ///
    /// # Errors
    ///
    /// The connection is lost.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.phase {
            Phase::Plain => send_plain(&mut self.transport, bytes),
            Phase::Tls(connection) => {
                let mut taken = 0;
                loop {
                    flush_tls(connection, &mut self.transport)?;
                    let more = if connection.wants_write() {
                        0
                    } else {
                        connection.writer().write(&bytes[taken..])?
                    };
                    taken += more;
                    if more == 0 {
                        return Ok(taken);
                    }
                }
            }
            Phase::Connecting { .. } | Phase::AskingForTls { .. } | Phase::Handshaking { .. } => {
                Ok(0)
            }
        }
    }

    /// Reads into `buffer`.
    ///
    /// # Errors
    ///
    /// The connection is lost, or what came is not TLS.
    pub fn receive(&mut self, buffer: &mut [u8]) -> io::Result<Received> {
        match &mut self.phase {
            Phase::Plain => receive_plain(&mut self.transport, buffer),
            Phase::Tls(connection) => receive_tls(connection, &mut self.transport, buffer),
            Phase::Connecting { .. } | Phase::AskingForTls { .. } | Phase::Handshaking { .. } => {
                Ok(Received::Drained(0))
            }
        }
    }

    /// The DER of the server's own certificate, for channel binding; `None` without TLS.
    pub fn peer_certificate(&self) -> Option<&[u8]> {
        let Phase::Tls(connection) = &self.phase else { return None };
        connection.peer_certificates()?.first().map(AsRef::as_ref)
    }

    /// Tells the peer that we are done, as far as that goes without waiting.
    pub fn close(mut self) {
        if let Phase::Tls(connection) = &mut self.phase {
            connection.send_close_notify();
            let _ = flush_tls(connection, &mut self.transport);
        }
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.transport {
            Transport::Tcp(socket) => socket.as_fd(),
            Transport::Unix(socket) => socket.as_fd(),
        }
    }
}

fn handshake(tls: Secure) -> io::Result<Box<ClientConnection>> {
    let connection =
        ClientConnection::new(tls.config, tls.server_name).map_err(io::Error::other)?;
    Ok(Box::new(connection))
}

/// The one byte that answers an SSLRequest, or `None` while it is not there.
///
/// Exactly one byte is read: what follows belongs to the TLS handshake, and a man in the middle who
/// puts plain text there gets a handshake failure (CVE-2021-23222).
fn read_tls_answer(transport: &mut Transport) -> io::Result<Option<u8>> {
    let mut answer = [0];
    match transport.read(&mut answer) {
        Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
        Ok(_) => Ok(Some(answer[0])),
        Err(error) if would_block(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// True when the handshake is complete and our last flight has left.
fn shake_hands(connection: &mut ClientConnection, transport: &mut Transport) -> io::Result<bool> {
    loop {
        flush_tls(connection, transport)?;
        if !connection.is_handshaking() {
            return Ok(!connection.wants_write());
        }
        match connection.read_tls(transport) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => connection.process_new_packets().map_err(io::Error::other)?,
            Err(error) if would_block(&error) => return Ok(false),
            Err(error) => return Err(error),
        };
    }
}

fn flush_tls(connection: &mut ClientConnection, transport: &mut Transport) -> io::Result<()> {
    while connection.wants_write() {
        match connection.write_tls(transport) {
            Ok(_) => {}
            Err(error) if would_block(&error) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn send_plain(transport: &mut Transport, bytes: &[u8]) -> io::Result<usize> {
    let mut sent = 0;
    while sent < bytes.len() {
        match transport.write(&bytes[sent..]) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(some) => sent += some,
            Err(error) if would_block(&error) => break,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(sent)
}

fn receive_plain(transport: &mut Transport, buffer: &mut [u8]) -> io::Result<Received> {
    match transport.read(buffer) {
        Ok(0) => Ok(Received::Closed),
        // A short read has emptied the socket; what comes later is a new edge.
        Ok(some) if some < buffer.len() => Ok(Received::Drained(some)),
        Ok(some) => Ok(Received::Bytes(some)),
        Err(error) if would_block(&error) => Ok(Received::Drained(0)),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(Received::Bytes(0)),
        Err(error) => Err(error),
    }
}

fn receive_tls(
    connection: &mut ClientConnection,
    transport: &mut Transport,
    buffer: &mut [u8],
) -> io::Result<Received> {
    loop {
        match connection.reader().read(buffer) {
            Ok(0) => return Ok(Received::Closed),
            Ok(some) => return Ok(Received::Bytes(some)),
            Err(error) if would_block(&error) => {}
            // The peer hung up without a close_notify; PostgreSQL's own backends do.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                return Ok(Received::Closed);
            }
            Err(error) => return Err(error),
        }
        match connection.read_tls(transport) {
            // The end of the stream: the reader above says what it means.
            Ok(0) => {}
            Ok(_) => {}
            Err(error) if would_block(&error) => return Ok(Received::Drained(0)),
            Err(error) => return Err(error),
        }
        connection.process_new_packets().map_err(io::Error::other)?;
        flush_tls(connection, transport)?;
    }
}

fn would_block(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
}

impl Transport {
    fn take_error(&self) -> io::Result<Option<io::Error>> {
        match self {
            Self::Tcp(socket) => socket.take_error(),
            Self::Unix(socket) => socket.take_error(),
        }
    }

    fn is_connected(&self) -> io::Result<bool> {
        let peer = match self {
            Self::Tcp(socket) => socket.peer_addr().map(drop),
            Self::Unix(socket) => socket.peer_addr().map(drop),
        };
        match peer {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(false),
            Err(error) => Err(error),
        }
    }
}

impl Read for Transport {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(socket) => socket.read(buffer),
            Self::Unix(socket) => socket.read(buffer),
        }
    }
}

impl Write for Transport {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(socket) => socket.write(bytes),
            Self::Unix(socket) => socket.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
