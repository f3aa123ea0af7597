//! One connection: a non-blocking socket, with TLS if requested.

use std::{
    io::{self, IoSlice, Read, Write},
    net::{SocketAddr, SocketAddrV4, SocketAddrV6, TcpStream},
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

/// A non-blocking connection for PostgreSQL messages.
///
/// ```text
/// connecting ──► asking for TLS ──► handshaking ──► open
///      │  (SSLRequest, 'S')             ▲              ▲
///      ├────────── direct TLS ──────────┘              │
///      └────────────────── no TLS ─────────────────────┘
/// ```
///
/// If TLS is optional and the server declines the SSLRequest (`N`), it is open without TLS.
///
/// [`Stream::open`] advances through these phases as far as the socket allows. Once it has returned
/// true, use [`Stream::send`] and [`Stream::receive`] until they would block, then wait again.
///
/// A connection from a [`crate::Listener`] is open from the start, without TLS. If the client's
/// first message asks for TLS, [`Stream::start_tls`] sets it back to handshaking.
#[derive(Debug)]
pub struct Stream {
    transport: Transport,
    phase: Phase,
    client_address: ClientAddress,
}

/// The source of a client's address. Small, because every connection has one.
#[derive(Debug)]
pub(crate) enum ClientAddress {
    /// The kernel must be asked; also for connections to servers.
    Unknown,
    /// The kernel returned it with the connection.
    V4(SocketAddrV4),
    /// The kernel returned it with the connection.
    V6(Box<SocketAddrV6>),
    /// A proxy opened the connection on the client's behalf, and reported it.
    Proxied(Box<SocketAddr>),
}

impl From<SocketAddr> for ClientAddress {
    fn from(address: SocketAddr) -> Self {
        match address {
            SocketAddr::V4(address) => Self::V4(address),
            SocketAddr::V6(address) => Self::V6(Box::new(address)),
        }
    }
}

#[derive(Debug)]
pub(crate) enum Transport {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// Settings for a TLS handshake with a server.
#[derive(Clone, Debug)]
pub(crate) struct TlsOptions {
    pub(crate) config: Arc<rustls::ClientConfig>,
    pub(crate) server_name: ServerName<'static>,
    pub(crate) direct: bool,
    /// Whether to continue without TLS if the server declines an SSLRequest.
    pub(crate) optional: bool,
}

#[derive(Debug)]
enum Phase {
    Connecting { tls: Option<TlsOptions> },
    AskingForTls { tls: TlsOptions, has_asked: bool },
    Handshaking { connection: Box<Connection>, direct: bool },
    Tls(Box<Connection>),
    Plain,
}

/// The result of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// The number of bytes read (zero if a signal interrupted the read); more may be available.
    Bytes(usize),
    /// The number of bytes read (perhaps zero), and the socket is now empty: wait for readiness,
    /// unless an event already reported the hang-up. Then the end of the stream must still be read.
    Drained(usize),
    /// The peer has closed its side.
    Closed,
}

/// The protocol that TLS without an SSLRequest must negotiate, so that the bytes cannot reach a
/// server of another kind (ALPACA). Source: PostgreSQL manual, "SSL Session Encryption".
const ALPN: &[u8] = b"postgresql";

impl Stream {
    pub(crate) fn new(transport: Transport, tls: Option<TlsOptions>) -> Self {
        Self { transport, phase: Phase::Connecting { tls }, client_address: ClientAddress::Unknown }
    }

    pub(crate) fn accepted(transport: Transport, client_address: ClientAddress) -> Self {
        Self { transport, phase: Phase::Plain, client_address }
    }

    /// Wraps one end of a connected unix socket pair, open and without TLS.
    ///
    /// # Errors
    ///
    /// The socket cannot be made non-blocking.
    pub fn from_unix(socket: UnixStream) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        Ok(Self::accepted(Transport::Unix(socket), ClientAddress::Unknown))
    }

    /// Adopts a connection inherited from another process, open and without TLS.
    ///
    /// # Errors
    ///
    /// The descriptor is not a socket, or cannot be made non-blocking.
    pub fn inherited(socket: OwnedFd) -> io::Result<Self> {
        ioctl_fionbio(&socket, true)?;
        let is_tcp = SocketAddr::try_from(getsockname(&socket)?).is_ok();
        let transport =
            if is_tcp { Transport::Tcp(socket.into()) } else { Transport::Unix(socket.into()) };
        Ok(Self::accepted(transport, ClientAddress::Unknown))
    }

    /// Returns the client's address that a proxy reported, if any.
    pub fn proxied_address(&self) -> Option<SocketAddr> {
        match &self.client_address {
            ClientAddress::Proxied(address) => Some(**address),
            _ => None,
        }
    }

    /// Starts TLS as the server, on an accepted connection; continue with [`Stream::open`].
    ///
    /// `received` is the part of the handshake that has already been read. It must be empty after
    /// an SSLRequest: bytes sent before the reply were unencrypted and unauthenticated, and the
    /// connection must be refused (CVE-2021-23214). Without an SSLRequest, the client must
    /// negotiate PostgreSQL's protocol: see [`Stream::alpn_protocol`].
    ///
    /// # Errors
    ///
    /// `received` does not start a valid handshake that the configuration allows, or the
    /// configuration cannot be used.
    pub fn start_tls(&mut self, config: Arc<ServerConfig>, mut received: &[u8]) -> io::Result<()> {
        let mut connection =
            Connection::from(ServerConnection::new(config).map_err(io::Error::other)?);
        while !received.is_empty() {
            if connection.read_tls(&mut received)? == 0 {
                break;
            }
            if let Err(error) = connection.process_new_packets() {
                // The alert tells the client what is wrong; sending it is best effort.
                let _ = flush_tls(&mut connection, &mut self.transport);
                return Err(io::Error::other(error));
            }
        }
        self.phase = Phase::Handshaking { connection: Box::new(connection), direct: false };
        Ok(())
    }

    /// Whether the connection is open with TLS, so that all further bytes are encrypted.
    pub fn is_encrypted(&self) -> bool {
        matches!(self.phase, Phase::Tls(_))
    }

    /// Returns the protocol negotiated by ALPN in the TLS handshake, if any.
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

    /// Returns the user id of the peer of a unix socket, as reported by the kernel; `None` for TCP,
    /// or if the kernel does not report it.
    pub fn peer_uid(&self) -> Option<u32> {
        match &self.transport {
            Transport::Tcp(_) => None,
            Transport::Unix(socket) => {
                rustix::net::sockopt::socket_peercred(socket).ok().map(|peer| peer.uid.as_raw())
            }
        }
    }

    /// Sets the client's address as reported by a trusted proxy.
    pub fn set_peer_address(&mut self, address: SocketAddr) {
        self.client_address = ClientAddress::Proxied(Box::new(address));
    }

    /// Returns the address that a proxy reported for the client, or else the peer's TCP address;
    /// `None` for a unix socket, or when the connection is gone. For an accepted connection, this
    /// takes no system call.
    pub fn peer_address(&self) -> Option<SocketAddr> {
        match (&self.client_address, &self.transport) {
            (ClientAddress::V4(address), _) => Some((*address).into()),
            (ClientAddress::V6(address), _) => Some((**address).into()),
            (ClientAddress::Proxied(address), _) => Some(**address),
            (ClientAddress::Unknown, Transport::Tcp(socket)) => socket.peer_addr().ok(),
            (ClientAddress::Unknown, Transport::Unix(_)) => None,
        }
    }

    /// Returns the local TCP address; `None` for a unix socket, or when the connection is gone.
    pub fn local_address(&self) -> Option<SocketAddr> {
        match &self.transport {
            Transport::Tcp(socket) => socket.local_addr().ok(),
            Transport::Unix(_) => None,
        }
    }

    /// Returns the TLS version and the cipher suite; `None` without TLS.
    pub fn protection(&self) -> Option<(rustls::ProtocolVersion, rustls::CipherSuite)> {
        let Phase::Tls(connection) = &self.phase else { return None };
        let suite = connection.negotiated_cipher_suite()?.suite();
        Some((connection.protocol_version()?, suite))
    }

    /// Continues with the connect, the request for TLS and the handshake; returns true once the
    /// connection is open. Call it first after creation and then at each readiness event.
    ///
    /// # Errors
    ///
    /// The connection was refused or lost, the server did not accept the request for TLS although
    /// it is required, its reply to the request is not valid, or the handshake failed.
    pub fn open(&mut self) -> io::Result<bool> {
        loop {
            let next = match &mut self.phase {
                Phase::Plain | Phase::Tls(_) => return Ok(true),
                Phase::Connecting { tls } => {
                    // A refused connection also becomes writable, so the pending error is read
                    // first.
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
                        Some(tls) => Phase::AskingForTls { tls, has_asked: false },
                    }
                }
                Phase::AskingForTls { tls, has_asked } => {
                    if !*has_asked {
                        // Eight bytes into the empty buffer of a new socket: never a short write.
                        self.transport.write_all(&SSL_REQUEST_PACKET)?;
                        *has_asked = true;
                    }
                    // Exactly one byte is read: anything that follows it unencrypted would be an
                    // injection (CVE-2021-23222).
                    match read_tls_reply(&mut self.transport)? {
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
                    if !drive_handshake(connection, &mut self.transport)? {
                        return Ok(false);
                    }
                    // Without an SSLRequest only ALPN shows that the peer is a PostgreSQL server.
                    if *direct && connection.alpn_protocol() != Some(ALPN) {
                        return Err(io::Error::other(
                            "the server did not select ALPN protocol \"postgresql\" for direct TLS",
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

    /// Sends as much of `bytes` as the socket accepts now, and returns the number of bytes.
    ///
    /// With TLS, accepted bytes may still be buffered: call again, possibly with no bytes, when the
    /// socket is writable.
    ///
    /// # Errors
    ///
    /// The connection is lost.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.phase {
            Phase::Plain => send_unencrypted(&mut self.transport, bytes),
            Phase::Tls(connection) => {
                let mut sent = 0;
                loop {
                    flush_tls(connection, &mut self.transport)?;
                    let more = if connection.wants_write() {
                        0
                    } else {
                        connection.writer().write(&bytes[sent..])?
                    };
                    sent += more;
                    if more == 0 {
                        return Ok(sent);
                    }
                }
            }
            Phase::Connecting { .. } | Phase::AskingForTls { .. } | Phase::Handshaking { .. } => {
                Ok(0)
            }
        }
    }

    /// Sends `slices` in order, as much as the socket accepts now, and returns the number of bytes.
    /// Without TLS, this takes one system call. For TLS, see [`Stream::send`].
    ///
    /// # Errors
    ///
    /// The connection is lost.
    pub fn send_slices(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        if let Phase::Plain = self.phase {
            return send_slices_unencrypted(&mut self.transport, slices);
        }
        let mut sent = 0;
        for slice in slices {
            let some = self.send(slice)?;
            sent += some;
            if some < slice.len() {
                break;
            }
        }
        Ok(sent)
    }

    /// Whether accepted bytes are still buffered in the TLS connection: send again, possibly no
    /// bytes, when the socket is writable.
    pub fn has_buffered_bytes(&self) -> bool {
        match &self.phase {
            Phase::Tls(connection) => connection.wants_write(),
            _ => false,
        }
    }

    /// Reads available bytes into `buffer`, without blocking.
    ///
    /// # Errors
    ///
    /// The connection is lost, or the bytes are not valid TLS.
    pub fn receive(&mut self, buffer: &mut [u8]) -> io::Result<Received> {
        match &mut self.phase {
            Phase::Plain => receive_unencrypted(&mut self.transport, buffer),
            Phase::Tls(connection) => receive_tls(connection, &mut self.transport, buffer),
            Phase::Connecting { .. } | Phase::AskingForTls { .. } | Phase::Handshaking { .. } => {
                Ok(Received::Drained(0))
            }
        }
    }

    /// Returns the peer's certificate in DER; `None` without TLS or without a certificate.
    pub fn peer_certificate(&self) -> Option<&[u8]> {
        let Phase::Tls(connection) = &self.phase else { return None };
        connection.peer_certificates()?.first().map(AsRef::as_ref)
    }

    /// Closes the connection, after a TLS close_notify as far as possible without blocking.
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

fn handshake(tls: TlsOptions) -> io::Result<Box<Connection>> {
    let connection =
        ClientConnection::new(tls.config, tls.server_name).map_err(io::Error::other)?;
    Ok(Box::new(connection.into()))
}

/// Reads the one-byte reply to an SSLRequest; `None` while it has not arrived.
///
/// Exactly one byte is read: the following ones are part of the TLS handshake, and a man in the
/// middle that injects plain text there causes a handshake failure (CVE-2021-23222).
fn read_tls_reply(transport: &mut Transport) -> io::Result<Option<u8>> {
    let mut answer = [0];
    match transport.read(&mut answer) {
        Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
        Ok(_) => Ok(Some(answer[0])),
        Err(error) if would_block(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Continues the handshake without blocking. Returns true once it is complete and its last bytes
/// are sent.
fn drive_handshake(connection: &mut Connection, transport: &mut Transport) -> io::Result<bool> {
    loop {
        flush_tls(connection, transport)?;
        if !connection.is_handshaking() {
            return Ok(!connection.wants_write());
        }
        match connection.read_tls(transport) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => {
                if let Err(error) = connection.process_new_packets() {
                    // The alert tells the peer what is wrong; sending it is best effort.
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

fn send_unencrypted(transport: &mut Transport, bytes: &[u8]) -> io::Result<usize> {
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

fn send_slices_unencrypted(transport: &mut Transport, slices: &[IoSlice<'_>]) -> io::Result<usize> {
    loop {
        let sent = match slices {
            [one] => transport.write(one),
            more => transport.write_vectored(more),
        };
        match sent {
            // After a partial write the socket is full: a second call would only fail.
            Ok(sent) => return Ok(sent),
            Err(error) if would_block(&error) => return Ok(0),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

fn receive_unencrypted(transport: &mut Transport, buffer: &mut [u8]) -> io::Result<Received> {
    match transport.read(buffer) {
        Ok(0) => Ok(Received::Closed),
        // A short read has emptied the socket; later bytes trigger a new event.
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
            // The peer closed without a close_notify, as PostgreSQL's own backends do.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                return Ok(Received::Closed);
            }
            Err(error) => return Err(error),
        }
        match connection.read_tls(transport) {
            // End of the stream: the reader above handles it.
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

/// Uses rustix rather than the standard library: libc's calls are cancellation points, which cost
/// more instructions than everything else here.
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
