//! One connection: a socket that never blocks, with TLS where it is wanted.

use std::{
    io::{self, IoSlice, Read, Write},
    net::{SocketAddr, TcpStream},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
    sync::Arc,
};

use howdah_wire::startup::SSL_REQUEST_PACKET;
use rustix::{
    io::ioctl_fionbio,
    net::{RecvFlags, SendAncillaryBuffer, SendFlags, getsockname, sendmsg},
};
use rustls::{ClientConnection, Connection, ServerConfig, ServerConnection, pki_types::ServerName};

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
///
/// One that a [`crate::Listener`] accepted is open from the start, and plain. What the client sends
/// first says whether it wants TLS: then [`Stream::begin_tls`] sets it back to handshaking.
#[derive(Debug)]
pub struct Stream {
    transport: Transport,
    phase: Phase,
    /// Whom the connection is for, where another brought it.
    on_behalf_of: Option<Box<SocketAddr>>,
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
    /// Go on without it if the server says that it has none.
    pub(crate) optional: bool,
}

#[derive(Debug)]
enum Phase {
    Connecting { tls: Option<Secure> },
    AskingForTls { tls: Secure, asked: bool },
    Handshaking { connection: Box<Connection>, direct: bool },
    Tls(Box<Connection>),
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
        Self { transport, phase: Phase::Connecting { tls }, on_behalf_of: None }
    }

    pub(crate) fn accepted(transport: Transport) -> Self {
        Self { transport, phase: Phase::Plain, on_behalf_of: None }
    }

    /// One end of a connection within the machine that is open already, and plain.
    ///
    /// # Errors
    ///
    /// It cannot be kept from blocking.
    pub fn from_unix(socket: UnixStream) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        Ok(Self::accepted(Transport::Unix(socket)))
    }

    /// A connection that is open and plain, from another process.
    ///
    /// # Errors
    ///
    /// It is no socket, or cannot be kept from blocking.
    pub fn inherited(socket: OwnedFd) -> io::Result<Self> {
        ioctl_fionbio(&socket, true)?;
        let is_tcp = SocketAddr::try_from(getsockname(&socket)?).is_ok();
        Ok(Self::accepted(match is_tcp {
            true => Transport::Tcp(socket.into()),
            false => Transport::Unix(socket.into()),
        }))
    }

    /// Whom this connection is on behalf of, if that is another than who made it.
    pub fn proxied_address(&self) -> Option<SocketAddr> {
        self.on_behalf_of.as_ref().map(|address| **address)
    }

    /// Begins TLS as its server, on an accepted connection; go on with [`Stream::open`].
    ///
    /// `received` is what of the handshake has been read already. It has to be empty after an
    /// SSLRequest: what was sent before our answer was sent in the clear, by nobody known, and the
    /// connection is to be refused (CVE-2021-23214). Without an SSLRequest, the client has to agree on
    /// PostgreSQL's protocol: see [`Stream::alpn_protocol`].
    ///
    /// # Errors
    ///
    /// `received` is not TLS, or the configuration cannot be used.
    pub fn begin_tls(&mut self, config: Arc<ServerConfig>, mut received: &[u8]) -> io::Result<()> {
        let mut connection =
            Connection::from(ServerConnection::new(config).map_err(io::Error::other)?);
        while !received.is_empty() {
            if connection.read_tls(&mut received)? == 0 {
                break;
            }
            if let Err(error) = connection.process_new_packets() {
                // The alert tells the client what is wrong; it goes out if it can.
                let _ = flush_tls(&mut connection, &mut self.transport);
                return Err(io::Error::other(error));
            }
        }
        self.phase = Phase::Handshaking { connection: Box::new(connection), direct: false };
        Ok(())
    }

    /// Whether what is sent and received is encrypted.
    pub fn is_encrypted(&self) -> bool {
        matches!(self.phase, Phase::Tls(_))
    }

    /// The protocol that the TLS handshake agreed on by ALPN, if it did.
    pub fn alpn_protocol(&self) -> Option<&[u8]> {
        match &self.phase {
            Phase::Tls(connection) => connection.alpn_protocol(),
            _ => None,
        }
    }

    /// Whether this is a unix socket.
    pub fn is_unix(&self) -> bool {
        matches!(self.transport, Transport::Unix(_))
    }

    /// The number of the system's user at the other end of a unix socket, as the kernel tells; `None`
    /// for TCP.
    pub fn peer_uid(&self) -> Option<u32> {
        match &self.transport {
            Transport::Tcp(_) => None,
            Transport::Unix(socket) => {
                rustix::net::sockopt::socket_peercred(socket).ok().map(|peer| peer.uid.as_raw())
            }
        }
    }

    /// Has the connection count as one from this address, since who brought it says so and is believed.
    pub fn set_peer_address(&mut self, address: SocketAddr) {
        self.on_behalf_of = Some(Box::new(address));
    }

    /// The client's TCP address; `None` for a unix socket, or when it is gone.
    pub fn peer_address(&self) -> Option<SocketAddr> {
        if let Some(address) = &self.on_behalf_of {
            return Some(**address);
        }
        match &self.transport {
            Transport::Tcp(socket) => socket.peer_addr().ok(),
            Transport::Unix(_) => None,
        }
    }

    /// Our own TCP address; `None` for a unix socket, or when the connection is gone.
    pub fn own_address(&self) -> Option<SocketAddr> {
        match &self.transport {
            Transport::Tcp(socket) => socket.local_addr().ok(),
            Transport::Unix(_) => None,
        }
    }

    /// Version and cipher of TLS, such as `TLSv1_3/TLS13_AES_256_GCM_SHA384`; `None` without it.
    pub fn protection(&self) -> Option<String> {
        let Phase::Tls(connection) = &self.phase else { return None };
        let suite = connection.negotiated_cipher_suite()?.suite();
        Some(format!("{:?}/{suite:?}", connection.protocol_version()?))
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
                        Some(b'N') if tls.optional => Phase::Plain,
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

    /// Sends `slices` one after another, as much as fits now, and says how many bytes that was.
    /// Without TLS that is one system call. What [`Stream::send`] says about TLS holds here too.
    ///
    /// # Errors
    ///
    /// The connection is lost.
    pub fn send_slices(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        if let Phase::Plain = self.phase {
            return send_slices_plain(&mut self.transport, slices);
        }
        let mut taken = 0;
        for slice in slices {
            let some = self.send(slice)?;
            taken += some;
            if some < slice.len() {
                break;
            }
        }
        Ok(taken)
    }

    /// Whether bytes that were taken by a send are still on their way out of the TLS connection:
    /// send again, if only nothing, when the socket is writable.
    pub fn holds_bytes(&self) -> bool {
        match &self.phase {
            Phase::Tls(connection) => connection.wants_write(),
            _ => false,
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

    /// The DER of the peer's own certificate; `None` without TLS, or if it showed none.
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
        self.transport.as_fd()
    }
}

impl AsFd for Transport {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(socket) => socket.as_fd(),
            Self::Unix(socket) => socket.as_fd(),
        }
    }
}

fn handshake(tls: Secure) -> io::Result<Box<Connection>> {
    let connection =
        ClientConnection::new(tls.config, tls.server_name).map_err(io::Error::other)?;
    Ok(Box::new(connection.into()))
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
fn shake_hands(connection: &mut Connection, transport: &mut Transport) -> io::Result<bool> {
    loop {
        flush_tls(connection, transport)?;
        if !connection.is_handshaking() {
            return Ok(!connection.wants_write());
        }
        match connection.read_tls(transport) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => {
                if let Err(error) = connection.process_new_packets() {
                    // The alert tells the peer what is wrong; it goes out if it can.
                    let _ = flush_tls(connection, transport);
                    return Err(io::Error::other(error));
                }
            }
            Err(error) if would_block(&error) => return Ok(false),
            Err(error) => return Err(error),
        }
    }
}

fn flush_tls(connection: &mut Connection, transport: &mut Transport) -> io::Result<()> {
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

fn send_slices_plain(transport: &mut Transport, slices: &[IoSlice<'_>]) -> io::Result<usize> {
    loop {
        let sent = match slices {
            [one] => transport.write(one),
            more => transport.write_vectored(more),
        };
        match sent {
            // Less than all is a full socket: a second call would only be told so.
            Ok(sent) => return Ok(sent),
            Err(error) if would_block(&error) => return Ok(0),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
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
    connection: &mut Connection,
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

/// By rustix and not by the standard library: libc's calls are cancellation points, which cost more
/// instructions than all else here.
impl Read for Transport {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(rustix::net::recv(self.as_fd(), buffer, RecvFlags::empty())?.0)
    }
}

impl Write for Transport {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(rustix::net::send(self.as_fd(), bytes, SendFlags::NOSIGNAL)?)
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut ancillary = SendAncillaryBuffer::default();
        Ok(sendmsg(self.as_fd(), slices, &mut ancillary, SendFlags::NOSIGNAL)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
