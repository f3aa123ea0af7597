//! Where clients come in: TCP ports and unix sockets, accepted without waiting.

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
        AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, getsockname,
        ipproto, listen, socket_with,
        sockopt::{
            set_ipv6_v6only, set_socket_reuseaddr, set_socket_reuseport, set_tcp_nodelay,
            socket_acceptconn, socket_type,
        },
    },
};

use crate::{
    dialer::unix_address,
    stream::{Stream, Transport},
    sys::set_tcp_defer_accept,
};

/// A socket that clients connect to.
///
/// Several listeners may share a TCP port: with `SO_REUSEPORT` the kernel deals connections out
/// among them, so every event loop has its own and none wakes for another's. A unix socket has one
/// listener, which is shared by [`Listener::try_clone`]; [`crate::Poller::add_listener`] sees to it
/// that a connection wakes one loop only.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    place: Place,
}

#[derive(Debug)]
enum Place {
    Tcp(SocketAddr),
    /// The path is ours to remove.
    Unix(PathBuf),
}

/// A listener could not be made.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {place}")]
pub struct ListenError {
    /// Address and port, or path.
    pub place: String,
    /// The kernel's reason.
    pub source: io::Error,
}

impl Listener {
    /// Listens on a TCP address; port 0 takes a free one. `backlog` connections wait in the kernel
    /// until they are accepted, and those on which nothing was sent for at least `patience`, in whole
    /// seconds and rounded up by the kernel: so to accept a client and to read what it began with is one
    /// wake-up. Others may listen there too, if they are of the same user and come by
    /// here as well: [`Listener::check_free`] tells beforehand whether somebody does.
    ///
    /// # Errors
    ///
    /// The address is not ours, taken, or needs rights we lack.
    pub fn tcp(address: SocketAddr, backlog: u32, patience: Duration) -> Result<Self, ListenError> {
        Self::begin_tcp(address, backlog, patience)
            .map_err(|source| ListenError { place: address.to_string(), source })
    }

    /// Whether nobody listens on a TCP address. Since listeners share a port with others of their
    /// kind, a second process would not be refused, and would take half of the first one's clients.
    ///
    /// # Errors
    ///
    /// Somebody does, or the address is not ours.
    pub fn check_free(address: SocketAddr) -> Result<(), ListenError> {
        let check = || {
            let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
            let socket =
                socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, Some(ipproto::TCP))?;
            // What connections of before have left does not count; listeners do.
            set_socket_reuseaddr(&socket, true)?;
            if address.is_ipv6() {
                set_ipv6_v6only(&socket, true)?;
            }
            Ok(bind(&socket, &address)?)
        };
        check().map_err(|source| ListenError { place: address.to_string(), source })
    }

    fn begin_tcp(address: SocketAddr, backlog: u32, patience: Duration) -> io::Result<Self> {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
        set_socket_reuseaddr(&socket, true)?;
        set_socket_reuseport(&socket, true)?;
        if address.is_ipv6() {
            // The same port for IPv4 is a listener of its own.
            set_ipv6_v6only(&socket, true)?;
        }
        // Those that are accepted have it from here.
        set_tcp_nodelay(&socket, true)?;
        if !patience.is_zero() {
            set_tcp_defer_accept(&socket, patience)?;
        }
        bind(&socket, &address)?;
        listen(&socket, i32::try_from(backlog).unwrap_or(i32::MAX))?;
        let socket = TcpListener::from(socket);
        let address = socket.local_addr()?;
        Ok(Self { socket: socket.into(), place: Place::Tcp(address) })
    }

    /// Listens on a unix socket with these permissions, which belongs to the group of this number, or
    /// to our own. A socket that a dead process left there is
    /// replaced; one that somebody answers at is an error, and so is any other file. A path that
    /// begins with `@` is a name in Linux's abstract namespace, which has no permissions.
    ///
    /// # Errors
    ///
    /// The path is taken, too long, or in a directory we may not write to.
    pub fn unix(
        path: &Path,
        mode: u32,
        group: Option<u32>,
        backlog: u32,
    ) -> Result<Self, ListenError> {
        Self::begin_unix(path, mode, group, backlog)
            .map_err(|source| ListenError { place: path.display().to_string(), source })
    }

    fn begin_unix(path: &Path, mode: u32, group: Option<u32>, backlog: u32) -> io::Result<Self> {
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
            // The group first: until then, permissions would be another's.
            if group.is_some() {
                chown(path, None, group)?;
            }
            // Between these two lines the umask holds, which gives away no more than `mode` may.
            fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
        }
        listen(&socket, i32::try_from(backlog).unwrap_or(i32::MAX))?;
        Ok(Self { socket, place: Place::Unix(path.to_owned()) })
    }

    /// A socket that listens already, from another process.
    ///
    /// # Errors
    ///
    /// It is no stream socket that listens at a TCP address or a unix path.
    pub fn inherited(socket: OwnedFd) -> io::Result<Self> {
        let wrong = || io::Error::from(io::ErrorKind::InvalidInput);
        if !socket_acceptconn(&socket)? || socket_type(&socket)? != SocketType::STREAM {
            return Err(wrong());
        }
        ioctl_fionbio(&socket, true)?;
        let address = getsockname(&socket)?;
        let place = if let Ok(address) = SocketAddr::try_from(address.clone()) {
            // Those that are accepted have it from here.
            set_tcp_nodelay(&socket, true)?;
            Place::Tcp(address)
        } else {
            let unix = SocketAddrUnix::try_from(address)?;
            let name = match (unix.path_bytes(), unix.abstract_name()) {
                (Some(path), _) => path.to_vec(),
                (None, Some(name)) => [b"@", name].concat(),
                (None, None) => return Err(wrong()),
            };
            Place::Unix(PathBuf::from(OsString::from_vec(name)))
        };
        Ok(Self { socket, place })
    }

    /// The path of a unix socket, with `@` in front of an abstract name.
    pub fn unix_path(&self) -> Option<&Path> {
        match &self.place {
            Place::Tcp(_) => None,
            Place::Unix(path) => Some(path),
        }
    }

    /// Another handle to the same socket, for another event loop.
    ///
    /// # Errors
    ///
    /// The process is out of file descriptors.
    pub fn try_clone(&self) -> io::Result<Self> {
        let place = match &self.place {
            Place::Tcp(address) => Place::Tcp(*address),
            Place::Unix(path) => Place::Unix(path.clone()),
        };
        Ok(Self { socket: self.socket.try_clone()?, place })
    }

    /// The TCP address that is listened on, with the port that was found for port 0.
    pub fn tcp_address(&self) -> Option<SocketAddr> {
        match &self.place {
            Place::Tcp(address) => Some(*address),
            Place::Unix(_) => None,
        }
    }

    /// Takes a connection that has come in, if there is one.
    ///
    /// # Errors
    ///
    /// The process or the system is out of file descriptors or memory: try again later. Connections
    /// that were gone before they were taken are passed over.
    pub fn accept(&self) -> io::Result<Option<Stream>> {
        loop {
            match accept_with(&self.socket, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
                Ok(socket) => return Ok(Some(self.accepted(socket))),
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR | Errno::CONNABORTED | Errno::PROTO) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn accepted(&self, socket: OwnedFd) -> Stream {
        Stream::accepted(match self.place {
            Place::Tcp(_) => Transport::Tcp(socket.into()),
            Place::Unix(_) => Transport::Unix(socket.into()),
        })
    }

    /// Removes the unix socket from its directory, so that nobody finds it after us.
    pub fn remove(&self) {
        if let Place::Unix(path) = &self.place
            && !is_abstract(path)
        {
            // Gone already is as good.
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

/// Whether there is a socket at which nobody listens.
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
    fn two_listeners_share_a_port() {
        let first = Listener::tcp(([127, 0, 0, 1], 0).into(), 128, Duration::ZERO).unwrap();
        let address = first.tcp_address().unwrap();
        let second = Listener::tcp(address, 128, Duration::ZERO).unwrap();
        let clients: Vec<_> = (0..32).map(|_| TcpStream::connect(address).unwrap()).collect();
        let drain = |listener: &Listener| std::iter::from_fn(|| listener.accept().unwrap()).count();
        assert_eq!(drain(&first) + drain(&second), clients.len());
    }

    #[test]
    fn a_client_is_told_of_when_it_says_something_and_sends_without_delay() {
        use rustix::net::sockopt::tcp_nodelay;
        let patience = Duration::from_secs(60);
        let listener = Listener::tcp(([127, 0, 0, 1], 0).into(), 8, patience).unwrap();
        let silent = TcpStream::connect(listener.tcp_address().unwrap()).unwrap();
        let mut client = TcpStream::connect(listener.tcp_address().unwrap()).unwrap();
        client.write_all(b"hello").unwrap();
        let accepted = listener.accept().unwrap().unwrap();
        assert_eq!(accepted.peer_address(), client.local_addr().ok());
        assert!(tcp_nodelay(&accepted).unwrap());
        assert!(listener.accept().unwrap().is_none(), "the other has said nothing");
        drop(silent);
    }

    #[test]
    fn a_port_is_free_until_somebody_listens() {
        let listener = Listener::tcp(([127, 0, 0, 1], 0).into(), 8, Duration::ZERO).unwrap();
        let address = listener.tcp_address().unwrap();
        let taken = Listener::check_free(address).unwrap_err();
        assert_eq!(taken.source.kind(), io::ErrorKind::AddrInUse, "{taken}");
        let (client, accepted) = (TcpStream::connect(address).unwrap(), listener.accept().unwrap());
        drop(listener);
        assert!(accepted.is_some());
        Listener::check_free(address).unwrap();
        drop(client);
    }

    #[test]
    fn a_dead_socket_is_replaced_and_a_live_one_is_not() {
        let directory = std::env::temp_dir().join(format!("howdah-net-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let path = directory.join(".s.PGSQL.1");
        drop(UnixListener::bind(&path).unwrap());
        let listener = Listener::unix(&path, 0o700, None, 8).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
        let refused = Listener::unix(&path, 0o700, None, 8).unwrap_err();
        assert_eq!(refused.source.kind(), io::ErrorKind::AddrInUse, "{refused}");

        // The one who was refused had knocked to see whether anybody is in.
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
