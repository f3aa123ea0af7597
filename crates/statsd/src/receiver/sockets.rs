//! Opens the configured sockets: addresses, receive buffers, socket files.

use std::{
    fs, io,
    net::SocketAddr,
    os::{
        fd::OwnedFd,
        unix::{
            fs::{FileTypeExt, MetadataExt, PermissionsExt, lchown},
            net::{UnixDatagram, UnixStream},
        },
    },
    path::{Path, PathBuf},
};

use nix::unistd::{Group, User};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, getsockname, listen, socket_with,
    sockopt,
};

use super::{access::StreamAccessError, passed::InheritedSocket};
use crate::settings::ListenSettings;

/// The reason why a configured socket could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReceiverOpenError {
    /// A system call failed.
    #[error("cannot {action} {socket}")]
    SystemCall {
        /// The socket's name in logs: `udp 127.0.0.1:8125`.
        socket: String,
        /// The failed action, such as `bind`.
        action: &'static str,
        /// The system error.
        source: io::Error,
    },
    /// The file at the socket's path is not a socket. It is not removed.
    #[error("{path} exists and is not a socket: remove it, or set another path")]
    NotASocket {
        /// The socket's path.
        path: PathBuf,
    },
    /// Another process listens on the socket's path, or a connection to it fails without being
    /// refused.
    #[error(
        "{path} is in use, or cannot be checked: stop the server that listens on it, or set \
         another path"
    )]
    InUse {
        /// The socket's path.
        path: PathBuf,
    },
    /// The owner that is configured for a socket's file does not exist.
    #[error(
        "there is no {kind} {name}, the owner of {path}: write `user`, `user:group` or `:group`"
    )]
    Owner {
        /// `user` or `group`.
        kind: &'static str,
        /// The configured name.
        name: String,
        /// The socket's path.
        path: PathBuf,
    },
    /// A certificate, key or token file of a listener cannot be used.
    #[error("cannot set up access to {socket}")]
    Access {
        /// The socket's name in logs.
        socket: String,
        /// The cause.
        source: Box<StreamAccessError>,
    },
    /// A socket passed by another process cannot be used.
    #[error("cannot use the passed socket {socket}")]
    Passed {
        /// Type and address of the socket.
        socket: String,
        /// The system error.
        source: io::Error,
    },
    /// A reader thread, or the eventfd or epoll set that it needs, could not be created.
    #[error("cannot set up a thread that reads the sockets")]
    Reader(#[source] io::Error),
}

/// The name of a socket for its error messages.
#[derive(Debug)]
struct SocketLabel {
    socket: String,
}

impl SocketLabel {
    fn open_error(
        &self,
        action: &'static str,
    ) -> impl FnOnce(rustix::io::Errno) -> ReceiverOpenError + use<'_> {
        move |errno| ReceiverOpenError::SystemCall {
            socket: self.socket.clone(),
            action,
            source: errno.into(),
        }
    }
}

/// An open socket that is bound to its address or path.
#[derive(Debug)]
pub(crate) struct BoundSocket {
    /// The name in logs: type and address.
    pub(crate) name: String,
    /// The descriptor, non-blocking.
    pub(crate) fd: OwnedFd,
    /// The actual address; `None` for unix sockets.
    pub(crate) address: Option<SocketAddr>,
    /// The socket's file, removed when dropped.
    pub(crate) file: Option<SocketFile>,
}

/// Opens a UDP socket; `shared` if several readers share the address.
pub(crate) fn udp(
    address: SocketAddr,
    shared: bool,
    v6_only: bool,
    buffer_bytes: usize,
) -> Result<BoundSocket, ReceiverOpenError> {
    let label = SocketLabel { socket: format!("udp {address}") };
    let fd = inet(&label, address, SocketType::DGRAM, v6_only)?;
    if shared {
        sockopt::set_socket_reuseport(&fd, true)
            .map_err(label.open_error("set SO_REUSEPORT of"))?;
    }
    set_receive_buffer(&label, &fd, buffer_bytes)?;
    bind(&fd, &address).map_err(label.open_error("bind"))?;
    let address = local_address(&fd).unwrap_or(address);
    Ok(BoundSocket { name: format!("udp {address}"), fd, address: Some(address), file: None })
}

/// Opens a TCP listener.
pub(crate) fn tcp(address: SocketAddr, v6_only: bool) -> Result<BoundSocket, ReceiverOpenError> {
    let label = SocketLabel { socket: format!("tcp {address}") };
    let fd = inet(&label, address, SocketType::STREAM, v6_only)?;
    // A restarted server must not wait until the old one's connections time out.
    sockopt::set_socket_reuseaddr(&fd, true).map_err(label.open_error("set SO_REUSEADDR of"))?;
    bind(&fd, &address).map_err(label.open_error("bind"))?;
    listen(&fd, ACCEPT_BACKLOG).map_err(label.open_error("listen on"))?;
    let address = local_address(&fd).unwrap_or(address);
    Ok(BoundSocket { name: format!("tcp {address}"), fd, address: Some(address), file: None })
}

/// The path of a unix socket, with its permissions and owner.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SocketFileSettings<'s> {
    pub(crate) path: &'s Path,
    /// Permissions; by default those that the umask leaves.
    pub(crate) mode: Option<u32>,
    /// `user`, `user:group` or `:group`; by default those of the process.
    pub(crate) owner: Option<&'s str>,
}

impl SocketFileSettings<'_> {
    /// Looks up the ids of the configured owner.
    fn owner_ids(&self) -> Result<(Option<u32>, Option<u32>), ReceiverOpenError> {
        let (user, group) = self
            .owner
            .unwrap_or_default()
            .split_once(':')
            .unwrap_or_else(|| (self.owner.unwrap_or_default(), ""));
        let user = self.id("user", user, |name| Some(User::from_name(name).ok()??.uid.as_raw()))?;
        let group =
            self.id("group", group, |name| Some(Group::from_name(name).ok()??.gid.as_raw()))?;
        Ok((user, group))
    }

    fn id(
        &self,
        kind: &'static str,
        name: &str,
        look_up: impl Fn(&str) -> Option<u32>,
    ) -> Result<Option<u32>, ReceiverOpenError> {
        if name.is_empty() {
            return Ok(None);
        }
        let id = name.parse().ok().or_else(|| look_up(name));
        let unknown =
            || ReceiverOpenError::Owner { kind, name: name.to_owned(), path: self.path.to_owned() };
        id.ok_or_else(unknown).map(Some)
    }
}

/// Opens a unix datagram socket.
pub(crate) fn unixgram(
    settings: SocketFileSettings<'_>,
    buffer_bytes: usize,
) -> Result<BoundSocket, ReceiverOpenError> {
    let label = SocketLabel { socket: format!("unixgram {}", settings.path.display()) };
    let (fd, file) = unix(&label, settings, SocketType::DGRAM)?;
    set_receive_buffer(&label, &fd, buffer_bytes)?;
    Ok(BoundSocket { name: label.socket, fd, address: None, file: Some(file) })
}

/// Opens a unix stream listener.
pub(crate) fn unix_stream(
    settings: SocketFileSettings<'_>,
) -> Result<BoundSocket, ReceiverOpenError> {
    let label = SocketLabel { socket: format!("unix {}", settings.path.display()) };
    let (fd, file) = unix(&label, settings, SocketType::STREAM)?;
    listen(&fd, ACCEPT_BACKLOG).map_err(label.open_error("listen on"))?;
    Ok(BoundSocket { name: label.socket, fd, address: None, file: Some(file) })
}

/// Adopts a socket that another process opened. `buffer_bytes` is the requested receive buffer of a
/// datagram socket.
pub(crate) fn adopt(
    passed: InheritedSocket,
    path: Option<&Path>,
    buffer_bytes: Option<usize>,
) -> Result<BoundSocket, ReceiverOpenError> {
    let InheritedSocket { label, descriptor: fd, is_managed } = passed;
    let failed = |source| ReceiverOpenError::Passed { socket: label.clone(), source };
    rustix::io::ioctl_fionbio(&fd, true).map_err(|errno| failed(errno.into()))?;
    let address = local_address(&fd);
    let kind = label.split(' ').next().unwrap_or_default();
    let name = address.map_or_else(|| label.clone(), |address| format!("{kind} {address}"));
    if let Some(requested) = buffer_bytes {
        let effective = sockopt::socket_recv_buffer_size(&fd);
        // A buffer that is large enough is not set again: without privileges it might shrink.
        if effective.map_err(|errno| failed(errno.into()))? / 2 < requested {
            set_receive_buffer(&SocketLabel { socket: name.clone() }, &fd, requested)?;
        }
    }
    let file = match path.filter(|_| !is_managed) {
        Some(path) => {
            let mut file = SocketFile::at(path).map_err(failed)?;
            file.set_owned(false);
            Some(file)
        }
        None => None,
    };
    Ok(BoundSocket { name, fd, address, file })
}

/// Maximum number of connections waiting to be accepted; the kernel limits it to
/// `net.core.somaxconn`.
pub(crate) const ACCEPT_BACKLOG: i32 = 1024;

/// Whether an IPv6 socket must not accept IPv4, because another listener uses the same port with
/// IPv4.
///
/// `[::]:8125` alone accepts both, as in etsy's server; with `0.0.0.0:8125` it would conflict.
pub(crate) fn v6_only(address: SocketAddr, all: &[ListenSettings]) -> bool {
    address.is_ipv6()
        && all.iter().any(|other| match other {
            ListenSettings::Udp { address: other, .. }
            | ListenSettings::Forward { address: other, .. }
            | ListenSettings::Tcp { address: other, .. } => {
                other.is_ipv4() && other.port() == address.port() && other.port() != 0
            }
            _ => false,
        })
}

fn inet(
    label: &SocketLabel,
    address: SocketAddr,
    kind: SocketType,
    v6_only: bool,
) -> Result<OwnedFd, ReceiverOpenError> {
    let family = if address.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
    let fd = socket_with(family, kind, SOCKET_FLAGS, None).map_err(label.open_error("open"))?;
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&fd, v6_only).map_err(label.open_error("set IPV6_V6ONLY of"))?;
    }
    Ok(fd)
}

const SOCKET_FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

fn local_address(fd: &OwnedFd) -> Option<SocketAddr> {
    SocketAddr::try_from(getsockname(fd).ok()?).ok()
}

/// Sets the receive buffer size, exceeding the sysctl's limit if permitted. Logs the effective
/// size, and what to do if it is smaller than requested.
fn set_receive_buffer(
    label: &SocketLabel,
    fd: &OwnedFd,
    requested: usize,
) -> Result<(), ReceiverOpenError> {
    // The kernel takes an int and doubles it.
    let requested = requested.min(i32::MAX as usize / 2);
    if sockopt::set_socket_recv_buffer_size_force(fd, requested).is_err() {
        sockopt::set_socket_recv_buffer_size(fd, requested)
            .map_err(label.open_error("set the receive buffer size of"))?;
    }
    // The kernel returns the doubled value.
    let effective = sockopt::socket_recv_buffer_size(fd)
        .map_err(label.open_error("read the receive buffer size of"))?
        / 2;
    let socket = label.socket.as_str();
    if effective < requested {
        tracing::warn!(
            socket,
            requested,
            effective,
            "the receive buffer is smaller than requested: \
             run `sysctl -w net.core.rmem_max={requested}`, or give the server CAP_NET_ADMIN"
        );
    } else {
        tracing::info!(socket, effective, "receive buffer size set");
    }
    Ok(())
}

fn unix(
    label: &SocketLabel,
    settings: SocketFileSettings<'_>,
    kind: SocketType,
) -> Result<(OwnedFd, SocketFile), ReceiverOpenError> {
    let (user, group) = settings.owner_ids()?;
    let SocketFileSettings { path, mode, .. } = settings;
    remove_stale(path, kind)?;
    let address = SocketAddrUnix::new(path).map_err(label.open_error("use the path of"))?;
    let fd = socket_with(AddressFamily::UNIX, kind, SOCKET_FLAGS, None)
        .map_err(label.open_error("open"))?;
    bind(&fd, &address).map_err(label.open_error("bind"))?;
    let refused = |action| {
        move |source| ReceiverOpenError::SystemCall { socket: label.socket.clone(), action, source }
    };
    let file = SocketFile::at(path).map_err(refused("read the metadata of"))?;
    if let Some(mode) = mode {
        fs::set_permissions(path, fs::Permissions::from_mode(mode))
            .map_err(refused("set permissions of"))?;
    }
    if user.is_some() || group.is_some() {
        // Another user of the folder may have replaced the socket by a link.
        lchown(path, user, group).map_err(refused("change the owner of"))?;
    }
    Ok((fd, file))
}

/// Removes the socket file of a server that no longer runs. Fails if the file is not a socket, or
/// if a server may still listen on it.
fn remove_stale(path: &Path, kind: SocketType) -> Result<(), ReceiverOpenError> {
    match fs::symlink_metadata(path) {
        Ok(metadata) if !metadata.file_type().is_socket() => {
            return Err(ReceiverOpenError::NotASocket { path: path.to_owned() });
        }
        Ok(_) => {}
        // If something is wrong with the path, bind reports it.
        Err(_) => return Ok(()),
    }
    let connected = match kind {
        SocketType::DGRAM => UnixDatagram::unbound().and_then(|probe| probe.connect(path)),
        _ => UnixStream::connect(path).map(drop),
    };
    match connected {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            // If it cannot be removed, bind reports it.
            let _ = fs::remove_file(path);
            Ok(())
        }
        // Includes EPROTOTYPE: another process listens with a different socket type.
        _ => Err(ReceiverOpenError::InUse { path: path.to_owned() }),
    }
}

/// The file of a unix socket. Dropping it removes the file, unless another server has replaced it
/// or owns it.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    device_and_inode: (u64, u64),
    /// Whether this process removes the file. During a takeover, the old server owns it until it
    /// has handed over.
    is_owned: bool,
}

impl SocketFile {
    /// Creates the guard of a file that exists and that this process owns.
    pub(crate) fn at(path: &Path) -> io::Result<Self> {
        let device_and_inode = device_and_inode(path)?;
        Ok(Self { path: path.to_owned(), device_and_inode, is_owned: true })
    }

    /// Sets whether dropping the guard removes the file.
    pub(crate) fn set_owned(&mut self, is_owned: bool) {
        self.is_owned = is_owned;
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.is_owned
            && device_and_inode(&self.path).is_ok_and(|current| current == self.device_and_inode)
        {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn device_and_inode(path: &Path) -> io::Result<(u64, u64)> {
    let metadata = fs::symlink_metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    fn at(path: &Path, mode: Option<u32>) -> SocketFileSettings<'_> {
        SocketFileSettings { path, mode, owner: None }
    }

    #[test]
    fn stale_socket_file_is_replaced_but_live_one_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("statsd.sock");
        // A socket whose process is gone: it was bound and closed, and its file remains.
        drop(UnixListener::bind(&path).unwrap());
        let opened = unixgram(at(&path, Some(0o620)), 1 << 16).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o620);
        assert!(matches!(unixgram(at(&path, None), 1 << 16), Err(ReceiverOpenError::InUse { .. })));
        assert!(matches!(unix_stream(at(&path, None)), Err(ReceiverOpenError::InUse { .. })));
        drop(opened);
        assert!(!path.exists(), "the creator removes its file");
    }

    #[test]
    fn socket_file_gets_configured_owner() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("statsd.sock");
        let (user, group) =
            (fs::metadata(&folder).unwrap().uid(), fs::metadata(&folder).unwrap().gid());
        let open = |owner: &str| {
            unix_stream(SocketFileSettings { path: &path, mode: None, owner: Some(owner) })
        };
        for owner in [format!("{user}:{group}"), format!("{user}"), format!(":{group}")] {
            let opened = open(&owner).unwrap();
            let metadata = fs::metadata(&path).unwrap();
            assert_eq!((metadata.uid(), metadata.gid()), (user, group), "{owner}");
            drop(opened);
        }
        // Only root may give files away.
        if rustix::process::geteuid().is_root() {
            let opened = open("root:4321").unwrap();
            let metadata = fs::metadata(&path).unwrap();
            assert_eq!((metadata.uid(), metadata.gid()), (0, 4321));
            drop(opened);
        }
        let error = open("no-such-user").unwrap_err().to_string();
        assert!(error.starts_with("there is no user no-such-user, the owner of /"), "{error}");
        let error = open(":no-such-group").unwrap_err().to_string();
        assert!(error.starts_with("there is no group no-such-group, the owner of /"), "{error}");
        assert!(!path.exists());
    }

    #[test]
    fn regular_file_is_not_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("precious");
        fs::write(&path, "data").unwrap();
        let error = unix_stream(at(&path, None)).unwrap_err();
        assert!(
            error
                .to_string()
                .ends_with("precious exists and is not a socket: remove it, or set another path")
        );
        assert_eq!(fs::read(&path).unwrap(), b"data");
    }

    #[test]
    fn successor_socket_file_is_not_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("statsd.sock");
        let ours = unix_stream(at(&path, None)).unwrap();
        fs::remove_file(&path).unwrap();
        let successor = unix_stream(at(&path, None)).unwrap();
        drop(ours);
        assert!(path.exists());
        drop(successor);
        assert!(!path.exists());
    }

    #[test]
    fn ipv6_socket_is_v6_only_with_ipv4_listener() {
        let listen = |address: &str| ListenSettings::udp(address.parse().unwrap());
        let v6 = "[::]:8125".parse().unwrap();
        assert!(!v6_only(v6, &[listen("[::]:8125")]));
        assert!(v6_only(v6, &[listen("[::]:8125"), listen("0.0.0.0:8125")]));
        assert!(!v6_only(v6, &[listen("[::]:8125"), listen("0.0.0.0:8126")]));
    }

    #[test]
    fn receive_buffer_is_limited_by_kernel() {
        let opened = udp("127.0.0.1:0".parse().unwrap(), false, false, 1 << 20).unwrap();
        let effective = sockopt::socket_recv_buffer_size(&opened.fd).unwrap();
        let rmem_max = fs::read_to_string("/proc/sys/net/core/rmem_max").unwrap();
        let rmem_max: usize = rmem_max.trim().parse().unwrap();
        assert!(effective == 2 << 20 || effective == 2 * rmem_max, "{effective}");
    }
}
