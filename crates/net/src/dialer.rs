//! Where to connect, looked up once, and how to begin a connection without waiting for it.

use std::{
    io,
    net::{SocketAddr, ToSocketAddrs},
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, ipproto, socket_with,
    sockopt::set_tcp_nodelay,
};
use rustls::pki_types::ServerName;

use crate::{
    stream::{Secure, Stream, Transport},
    tcp::TcpOptions,
};

/// Begins connections to one server.
///
/// Names are looked up when it is made, not per connection: a look-up blocks, and a thread that
/// drives thousands of sessions must not.
#[derive(Clone, Debug)]
pub struct Dialer {
    address: Address,
    tls: Option<Secure>,
    tcp: Option<TcpOptions>,
}

#[derive(Clone, Debug)]
enum Address {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

/// A connection could not be begun.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DialError {
    /// The host name has no address.
    #[error("no address found for host {host:?}")]
    UnknownHost {
        /// The name as given.
        host: String,
        /// What the resolver said, if it said more than "none".
        source: Option<io::Error>,
    },
    /// The kernel does not take one of the [`TcpOptions`].
    #[error("cannot set the TCP options of a connection to {address}")]
    Options {
        /// Address and port.
        address: String,
        /// The kernel's reason.
        source: io::Error,
    },
    /// The socket could not be made, or the peer refused at once.
    #[error("cannot connect to {address}")]
    Refused {
        /// Address and port, or socket path.
        address: String,
        /// The kernel's reason.
        source: io::Error,
    },
}

impl Dialer {
    /// A dialer for a TCP address; looks `host` up.
    ///
    /// # Errors
    ///
    /// [`DialError::UnknownHost`].
    pub fn tcp(host: &str, port: u16) -> Result<Self, DialError> {
        let unknown = |source| DialError::UnknownHost { host: host.to_owned(), source };
        let mut found = (host, port).to_socket_addrs().map_err(|error| unknown(Some(error)))?;
        let address = found.next().ok_or_else(|| unknown(None))?;
        Ok(Self { address: Address::Tcp(address), tls: None, tcp: None })
    }

    /// A dialer for a TCP address that is known.
    pub fn tcp_at(address: SocketAddr) -> Self {
        Self { address: Address::Tcp(address), tls: None, tcp: None }
    }

    /// A dialer for a unix socket.
    pub fn unix(path: &Path) -> Self {
        Self { address: Address::Unix(path.to_owned()), tls: None, tcp: None }
    }

    /// The same, with TLS. With `direct` the handshake begins at once, otherwise an SSLRequest
    /// asks for it (PostgreSQL manual, "SSL Session Encryption").
    #[must_use]
    pub fn with_tls(
        mut self,
        config: Arc<rustls::ClientConfig>,
        server_name: ServerName<'static>,
        direct: bool,
    ) -> Self {
        self.tls = Some(Secure { config, server_name, direct, optional: false });
        self
    }

    /// The same, with these options for TCP connections. They are set before the connection begins:
    /// the size of the receive buffer decides the window scale and the segment size that are
    /// negotiated, and a buffer that shrinks below the peer's segment size afterwards stalls the
    /// peer until its probe timer runs out, for every segment.
    #[must_use]
    pub fn with_tcp_options(mut self, options: TcpOptions) -> Self {
        self.tcp = Some(options);
        self
    }

    /// The same, going on without TLS if the server says that it has none.
    #[must_use]
    pub fn tls_optional(mut self) -> Self {
        if let Some(tls) = &mut self.tls {
            tls.optional = true;
        }
        self
    }

    /// Begins a connection. It is usable once [`Stream::open`] says so.
    ///
    /// # Errors
    ///
    /// [`DialError::Refused`]; a refusal that takes a round trip comes from [`Stream::open`].
    /// [`DialError::Options`].
    pub fn dial(&self) -> Result<Stream, DialError> {
        let refused =
            |source: io::Error| DialError::Refused { address: self.address.to_string(), source };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let (transport, begun) = match &self.address {
            Address::Tcp(address) => {
                let family =
                    if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
                let socket = socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))
                    .map_err(|error| refused(error.into()))?;
                set_tcp_nodelay(&socket, true).map_err(|error| refused(error.into()))?;
                if let Some(options) = &self.tcp {
                    options.apply(&socket).map_err(|source| DialError::Options {
                        address: self.address.to_string(),
                        source,
                    })?;
                }
                let begun = connect(&socket, address);
                (Transport::Tcp(socket.into()), begun)
            }
            Address::Unix(path) => {
                let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
                    .map_err(|error| refused(error.into()))?;
                let address = unix_address(path).map_err(|error| refused(error.into()))?;
                let begun = connect(&socket, &address);
                (Transport::Unix(socket.into()), begun)
            }
        };
        match begun {
            Ok(()) | Err(rustix::io::Errno::INPROGRESS) => {
                Ok(Stream::new(transport, self.tls.clone()))
            }
            Err(error) => Err(refused(error.into())),
        }
    }
}

/// A path, or with `@` in front a name in Linux's abstract namespace.
pub(crate) fn unix_address(path: &Path) -> rustix::io::Result<SocketAddrUnix> {
    match path.as_os_str().as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddrUnix::new_abstract_name(name),
        None => SocketAddrUnix::new(path),
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => path.display().fmt(f),
        }
    }
}
