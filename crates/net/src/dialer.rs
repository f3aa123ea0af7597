//! Resolves the address of a server once, and starts non-blocking connections to it.

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
    stream::{Stream, TlsOptions, Transport},
    tcp::TcpOptions,
};

/// Starts connections to one server.
///
/// The name is resolved on creation, not per connection: resolving blocks, which a thread that
/// drives thousands of sessions must not do.
#[derive(Clone, Debug)]
pub struct Dialer {
    address: DialAddress,
    tls: Option<TlsOptions>,
    tcp: Option<TcpOptions>,
}

#[derive(Clone, Debug)]
enum DialAddress {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

/// The reason why a connection could not be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DialError {
    /// The host name could not be resolved, or has no address.
    #[error("no address found for host {host:?}")]
    UnknownHost {
        /// The host name as given.
        host: String,
        /// The resolver's error, if it reported one.
        source: Option<io::Error>,
    },
    /// The kernel rejected one of the [`TcpOptions`].
    #[error("cannot set the TCP options of a connection to {address}")]
    Options {
        /// Address and port.
        address: String,
        /// The kernel's reason.
        source: io::Error,
    },
    /// The socket could not be created, the path is not valid for a socket, or the connection
    /// failed immediately.
    #[error("cannot connect to {address}")]
    Refused {
        /// Address and port, or socket path.
        address: String,
        /// The kernel's reason.
        source: io::Error,
    },
}

impl Dialer {
    /// Creates a dialer for the first TCP address that `host` resolves to.
    ///
    /// # Errors
    ///
    /// [`DialError::UnknownHost`] if the name cannot be resolved.
    pub fn tcp(host: &str, port: u16) -> Result<Self, DialError> {
        let unknown = |source| DialError::UnknownHost { host: host.to_owned(), source };
        let mut found = (host, port).to_socket_addrs().map_err(|error| unknown(Some(error)))?;
        let address = found.next().ok_or_else(|| unknown(None))?;
        Ok(Self { address: DialAddress::Tcp(address), tls: None, tcp: None })
    }

    /// Creates a dialer for a resolved TCP address.
    pub fn tcp_at(address: SocketAddr) -> Self {
        Self { address: DialAddress::Tcp(address), tls: None, tcp: None }
    }

    /// Creates a dialer for a unix socket. A path that starts with `@` is a name in Linux's
    /// abstract namespace.
    pub fn unix(path: &Path) -> Self {
        Self { address: DialAddress::Unix(path.to_owned()), tls: None, tcp: None }
    }

    /// Adds TLS. With `direct` the handshake starts immediately, otherwise after an SSLRequest
    /// (PostgreSQL manual, "SSL Session Encryption").
    #[must_use]
    pub fn with_tls(
        mut self,
        config: Arc<rustls::ClientConfig>,
        server_name: ServerName<'static>,
        direct: bool,
    ) -> Self {
        self.tls = Some(TlsOptions { config, server_name, direct, optional: false });
        self
    }

    /// Sets options for TCP connections. They are applied before connecting: the size of the
    /// receive buffer determines the window scale and the segment size that are negotiated, and a
    /// buffer that shrinks below the peer's segment size afterwards stalls the peer until its probe
    /// timer expires, for every segment.
    #[must_use]
    pub fn with_tcp_options(mut self, options: TcpOptions) -> Self {
        self.tcp = Some(options);
        self
    }

    /// Makes connections continue without TLS if the server declines an SSLRequest. Has no effect
    /// with direct TLS, or unless [`Dialer::with_tls`] was called before.
    #[must_use]
    pub fn tls_optional(mut self) -> Self {
        if let Some(tls) = &mut self.tls {
            tls.optional = true;
        }
        self
    }

    /// Starts a connection. It is usable once [`Stream::open`] returns true.
    ///
    /// # Errors
    ///
    /// [`DialError::Refused`], or [`DialError::Options`]. A refusal that takes a round trip is
    /// reported by [`Stream::open`].
    pub fn dial(&self) -> Result<Stream, DialError> {
        let refused =
            |source: io::Error| DialError::Refused { address: self.address.to_string(), source };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let (transport, started) = match &self.address {
            DialAddress::Tcp(address) => {
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
                let started = connect(&socket, address);
                (Transport::Tcp(socket.into()), started)
            }
            DialAddress::Unix(path) => {
                let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
                    .map_err(|error| refused(error.into()))?;
                let address = unix_address(path).map_err(|error| refused(error.into()))?;
                let started = connect(&socket, &address);
                (Transport::Unix(socket.into()), started)
            }
        };
        match started {
            Ok(()) | Err(rustix::io::Errno::INPROGRESS) => {
                Ok(Stream::new(transport, self.tls.clone()))
            }
            Err(error) => Err(refused(error.into())),
        }
    }
}

/// Converts a path to a socket address. A leading `@` makes it a name in Linux's abstract
/// namespace.
pub(crate) fn unix_address(path: &Path) -> rustix::io::Result<SocketAddrUnix> {
    match path.as_os_str().as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddrUnix::new_abstract_name(name),
        None => SocketAddrUnix::new(path),
    }
}

impl std::fmt::Display for DialAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => path.display().fmt(f),
        }
    }
}
