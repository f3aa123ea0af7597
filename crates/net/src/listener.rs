//! Listening sockets: TCP ports and unix sockets, accepted without blocking.

use std::{
    ffi::OsString,
    fs, io,
    net::{SocketAddr, TcpListener},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::{
            ffi::OsStringExt as _,
            fs::{PermissionsExt as _, chown},
        },
    },
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::{
    fs::{AtFlags, unlinkat},
    io::{Errno, ioctl_fionbio},
    net::{
        AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, acceptfrom_with, bind,
        getsockname, ipproto, listen, socket_with,
        sockopt::{
            set_ipv6_v6only, set_socket_reuseaddr, set_socket_reuseport, set_tcp_nodelay,
            socket_acceptconn, socket_type,
        },
    },
};

use crate::{
    dialer::unix_address,
    stream::{ClientAddress, Stream, Transport},
    sys::set_tcp_defer_accept,
};

/// A socket that clients connect to.
///
/// Several listeners may share a TCP port: with `SO_REUSEPORT` the kernel distributes connections
/// among them, so each event loop has its own listener and does not wake for connections of the
/// others. A unix socket, or a socket inherited from another process, has one listener, shared by
/// [`Listener::try_clone`]; [`crate::Poller::add_listener`] ensures that a connection does not wake
/// every loop.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    place: ListenerAddress,
}

#[derive(Debug)]
enum ListenerAddress {
    Tcp(SocketAddr),
    /// The path of a unix socket, or `@` followed by a name in Linux's abstract namespace.
    Unix(PathBuf),
}

/// The error for an address or path that cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {place}")]
pub struct ListenError {
    /// Address and port, or path, of the listener.
    pub place: String,
    /// The kernel's reason.
    pub source: io::Error,
}

impl Listener {
    /// Listens on a TCP address; port 0 picks a free one. Up to `backlog` connections wait in the
    /// kernel until they are accepted.
    ///
    /// A connection is reported once the client has sent something, or after at least
    /// `defer_timeout`, rounded up to whole seconds. So accepting a client and reading its first
    /// bytes takes one wake-up. With zero, connections are reported at once.
    ///
    /// Other sockets may listen on the same port if they belong to the same user and also have
    /// `SO_REUSEPORT`, as those of this function have. [`Listener::check_free`] detects that
    /// beforehand.
    ///
    /// # Errors
    ///
    /// The address is in use, not local, or needs privileges.
    pub fn tcp(
        address: SocketAddr,
        backlog: u32,
        defer_timeout: Duration,
    ) -> Result<Self, ListenError> {
        Self::listen_tcp(address, backlog, defer_timeout)
            .map_err(|source| ListenError { place: address.to_string(), source })
    }

    /// Checks that no socket listens on a TCP address. Since listeners share a port, a second
    /// process would not be refused, and would take some of the first one's clients.
    ///
    /// # Errors
    ///
    /// The address is in use, not local, or needs privileges.
    pub fn check_free(address: SocketAddr) -> Result<(), ListenError> {
        let check = || {
            let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
            let socket =
                socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, Some(ipproto::TCP))?;
            // Remnants of earlier connections do not count; listeners do.
            set_socket_reuseaddr(&socket, true)?;
            if address.is_ipv6() {
                set_ipv6_v6only(&socket, true)?;
            }
            Ok(bind(&socket, &address)?)
        };
        check().map_err(|source| ListenError { place: address.to_string(), source })
    }

    fn listen_tcp(address: SocketAddr, backlog: u32, defer_timeout: Duration) -> io::Result<Self> {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
        set_socket_reuseaddr(&socket, true)?;
        set_socket_reuseport(&socket, true)?;
        if address.is_ipv6() {
            // The same port for IPv4 is a separate listener.
            set_ipv6_v6only(&socket, true)?;
        }
        // Accepted connections inherit this option.
        set_tcp_nodelay(&socket, true)?;
        if !defer_timeout.is_zero() {
            set_tcp_defer_accept(&socket, defer_timeout)?;
        }
        bind(&socket, &address)?;
        listen(&socket, i32::try_from(backlog).unwrap_or(i32::MAX))?;
        let socket = TcpListener::from(socket);
        let address = socket.local_addr()?;
        Ok(Self { socket: socket.into(), place: ListenerAddress::Tcp(address) })
    }

    /// Listens on a unix socket with these permissions and group; with `None`, the file gets the
    /// group of any new file. A socket file that a dead process has left is deleted first; a socket
    /// with a live listener, or any other file, is an error. A path that starts with `@` is a name
    /// in Linux's abstract namespace, which has no permissions.
    ///
    /// # Errors
    ///
    /// The path is in use, too long, or in a directory that is not writable; or the process may not
    /// set the group.
    pub fn unix(
        path: &Path,
        mode: u32,
        group: Option<u32>,
        backlog: u32,
    ) -> Result<Self, ListenError> {
        Self::listen_unix(path, mode, group, backlog)
            .map_err(|source| ListenError { place: path.display().to_string(), source })
    }

    fn listen_unix(path: &Path, mode: u32, group: Option<u32>, backlog: u32) -> io::Result<Self> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        let address = unix_address(path)?;
        match bind(&socket, &address) {
            Err(Errno::ADDRINUSE) if is_abandoned(path) => {
                fs::remove_file(path)?;
                bind(&socket, &address)?;
            }
            other => other?,
        }
        if !is_abstract(path) {
            // The group first: until then, the permissions would apply to the wrong group.
            if group.is_some() {
                chown(path, None, group)?;
            }
            // Clients cannot connect before `listen`, so the permissions set by the umask until now
            // are harmless.
            fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
        }
        listen(&socket, i32::try_from(backlog).unwrap_or(i32::MAX))?;
        Ok(Self { socket, place: ListenerAddress::Unix(path.to_owned()) })
    }

    /// Adopts a listening socket inherited from another process.
    ///
    /// # Errors
    ///
    /// The descriptor is not a stream socket that listens on a TCP address, a unix path or an
    /// abstract name, or its options cannot be set.
    pub fn inherited(socket: OwnedFd) -> io::Result<Self> {
        let wrong = || io::Error::from(io::ErrorKind::InvalidInput);
        if !socket_acceptconn(&socket)? || socket_type(&socket)? != SocketType::STREAM {
            return Err(wrong());
        }
        ioctl_fionbio(&socket, true)?;
        let address = getsockname(&socket)?;
        let place = if let Ok(address) = SocketAddr::try_from(address.clone()) {
            // Accepted connections inherit this option.
            set_tcp_nodelay(&socket, true)?;
            ListenerAddress::Tcp(address)
        } else {
            let unix = SocketAddrUnix::try_from(address)?;
            let name = match (unix.path_bytes(), unix.abstract_name()) {
                (Some(path), _) => path.to_vec(),
                (None, Some(name)) => [b"@", name].concat(),
                (None, None) => return Err(wrong()),
            };
            ListenerAddress::Unix(PathBuf::from(OsString::from_vec(name)))
        };
        Ok(Self { socket, place })
    }

    /// Returns the path of a unix socket, with a leading `@` for an abstract name; `None` for TCP.
    pub fn unix_path(&self) -> Option<&Path> {
        match &self.place {
            ListenerAddress::Tcp(_) => None,
            ListenerAddress::Unix(path) => Some(path),
        }
    }

    /// Returns another handle to the same socket, for another event loop.
    ///
    /// # Errors
    ///
    /// The process has no free file descriptor.
    pub fn try_clone(&self) -> io::Result<Self> {
        let place = match &self.place {
            ListenerAddress::Tcp(address) => ListenerAddress::Tcp(*address),
            ListenerAddress::Unix(path) => ListenerAddress::Unix(path.clone()),
        };
        Ok(Self { socket: self.socket.try_clone()?, place })
    }

    /// Returns the TCP address of the listener, with the actual port if port 0 was requested;
    /// `None` for a unix socket.
    pub fn tcp_address(&self) -> Option<SocketAddr> {
        match &self.place {
            ListenerAddress::Tcp(address) => Some(*address),
            ListenerAddress::Unix(_) => None,
        }
    }

    /// Accepts a pending connection, if any.
    ///
    /// # Errors
    ///
    /// The process or the system is out of file descriptors or memory: try again later. Connections
    /// that were closed before they were accepted are skipped.
    pub fn accept(&self) -> io::Result<Option<Stream>> {
        loop {
            match self.accept_socket() {
                Ok((socket, address)) => return Ok(Some(self.accepted(socket, address))),
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR | Errno::CONNABORTED | Errno::PROTO) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Accepts a connection, with the client's address for TCP.
    fn accept_socket(&self) -> rustix::io::Result<(OwnedFd, ClientAddress)> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        if let ListenerAddress::Unix(_) = self.place {
            return Ok((accept_with(&self.socket, flags)?, ClientAddress::Unknown));
        }
        let (socket, address) = acceptfrom_with(&self.socket, flags)?;
        let address = address.and_then(|address| SocketAddr::try_from(address).ok());
        Ok((socket, address.map_or(ClientAddress::Unknown, ClientAddress::from)))
    }

    fn accepted(&self, socket: OwnedFd, address: ClientAddress) -> Stream {
        let transport = match self.place {
            ListenerAddress::Tcp(_) => Transport::Tcp(socket.into()),
            ListenerAddress::Unix(_) => Transport::Unix(socket.into()),
        };
        Stream::accepted(transport, address)
    }

    /// Removes the unix socket from its directory, so that later clients do not find it. Does
    /// nothing for TCP and abstract names.
    pub fn remove(&self) {
        if let ListenerAddress::Unix(path) = &self.place
            && !is_abstract(path)
        {
            // The path may have been removed already.
            let _ = unlinkat(rustix::fs::CWD, path, AtFlags::empty());
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn is_abstract(path: &Path) -> bool {
    path.as_os_str().as_encoded_bytes().starts_with(b"@")
}

/// Whether the path is a socket without a listener.
fn is_abandoned(path: &Path) -> bool {
    use std::os::unix::{fs::FileTypeExt as _, net::UnixStream};
    let is_socket = fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket());
    is_socket
        && UnixStream::connect(path)
            .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        io::{Read as _, Write as _},
        net::TcpStream,
        os::unix::net::{UnixListener, UnixStream},
    };

    #[test]
    fn two_listeners_share_port() {
        let first = Listener::tcp(([127, 0, 0, 1], 0).into(), 128, Duration::ZERO).unwrap();
        let address = first.tcp_address().unwrap();
        let second = Listener::tcp(address, 128, Duration::ZERO).unwrap();
        let clients: Vec<_> = (0..32).map(|_| TcpStream::connect(address).unwrap()).collect();
        let drain = |listener: &Listener| std::iter::from_fn(|| listener.accept().unwrap()).count();
        assert_eq!(drain(&first) + drain(&second), clients.len());
    }

    #[test]
    fn client_is_accepted_once_it_sends_and_has_nodelay() {
        use rustix::net::sockopt::tcp_nodelay;
        let defer_timeout = Duration::from_secs(60);
        let listener = Listener::tcp(([127, 0, 0, 1], 0).into(), 8, defer_timeout).unwrap();
        let silent = TcpStream::connect(listener.tcp_address().unwrap()).unwrap();
        let mut client = TcpStream::connect(listener.tcp_address().unwrap()).unwrap();
        client.write_all(b"hello").unwrap();
        let accepted = listener.accept().unwrap().unwrap();
        assert_eq!(accepted.peer_address(), client.local_addr().ok());
        assert!(tcp_nodelay(&accepted).unwrap());
        assert!(listener.accept().unwrap().is_none(), "the other client has sent nothing");
        drop(silent);
    }

    #[test]
    fn port_is_free_until_a_socket_listens() {
        let listener = Listener::tcp(([127, 0, 0, 1], 0).into(), 8, Duration::ZERO).unwrap();
        let address = listener.tcp_address().unwrap();
        let error = Listener::check_free(address).unwrap_err();
        assert_eq!(error.source.kind(), io::ErrorKind::AddrInUse, "{error}");
        let (client, accepted) = (TcpStream::connect(address).unwrap(), listener.accept().unwrap());
        drop(listener);
        assert!(accepted.is_some());
        Listener::check_free(address).unwrap();
        drop(client);
    }

    #[test]
    fn dead_socket_is_replaced_and_live_one_is_not() {
        let directory = std::env::temp_dir().join(format!("howdah-net-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let path = directory.join(".s.PGSQL.1");
        drop(UnixListener::bind(&path).unwrap());
        let listener = Listener::unix(&path, 0o700, None, 8).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
        let refused = Listener::unix(&path, 0o700, None, 8).unwrap_err();
        assert_eq!(refused.source.kind(), io::ErrorKind::AddrInUse, "{refused}");

        // The check for a live listener made one connection.
        drop(listener.accept().unwrap());
        let mut client = UnixStream::connect(&path).unwrap();
        let mut accepted = listener.accept().unwrap().unwrap();
        assert_eq!(accepted.send(b"hello").unwrap(), 5);
        let mut hello = [0; 5];
        client.read_exact(&mut hello).unwrap();
        client.write_all(&hello).unwrap();
        let mut buffer = [0; 16];
        assert_eq!(accepted.receive(&mut buffer).unwrap(), crate::Received::Drained(5));
        listener.remove();
        assert!(!path.exists());
        fs::remove_dir_all(&directory).unwrap();
    }
}
