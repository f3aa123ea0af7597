//! From what a person set to sockets that are open: addresses, buffers, socket files.

use std::{
    fs, io,
    net::SocketAddr,
    os::{
        fd::OwnedFd,
        unix::{
            fs::{FileTypeExt, MetadataExt, PermissionsExt},
            net::{UnixDatagram, UnixStream},
        },
    },
    path::{Path, PathBuf},
};

use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, getsockname, listen, socket_with,
    sockopt,
};

use crate::settings::Listen;

/// A place to receive at could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The kernel refused.
    #[error("cannot {action} {socket}")]
    Refused {
        /// Which socket, as it is called in logs: `udp 127.0.0.1:8125`.
        socket: String,
        /// What was tried, such as `bind`.
        action: &'static str,
        /// What it said.
        source: io::Error,
    },
    /// There is a file at the socket's path that is no socket. We do not remove it.
    #[error("{path} is there and is no socket: remove it, or set another path")]
    NotASocket {
        /// Where.
        path: PathBuf,
    },
    /// Another process listens at the socket's path.
    #[error("{path} is in use: another server listens there")]
    InUse {
        /// Where.
        path: PathBuf,
    },
    /// A reader thread could not be started.
    #[error("cannot start a reader")]
    Thread(#[source] io::Error),
}

/// What one socket is called, and how its calls fail.
#[derive(Debug)]
struct Doing {
    socket: String,
}

impl Doing {
    fn refused(
        &self,
        action: &'static str,
    ) -> impl FnOnce(rustix::io::Errno) -> OpenError + use<'_> {
        move |errno| OpenError::Refused {
            socket: self.socket.clone(),
            action,
            source: errno.into(),
        }
    }
}

/// An open socket.
#[derive(Debug)]
pub(crate) struct Opened {
    /// How it is called in logs: kind and address.
    pub(crate) name: String,
    /// Non-blocking.
    pub(crate) fd: OwnedFd,
    /// Where it really listens; none for unix sockets.
    pub(crate) address: Option<SocketAddr>,
    /// Its file, removed when dropped.
    pub(crate) file: Option<SocketFile>,
}

/// One UDP socket of the `readers` that share an address.
pub(crate) fn udp(
    address: SocketAddr,
    shared: bool,
    v6_only: bool,
    buffer_bytes: usize,
) -> Result<Opened, OpenError> {
    let doing = Doing { socket: format!("udp {address}") };
    let fd = inet(&doing, address, SocketType::DGRAM, v6_only)?;
    if shared {
        sockopt::set_socket_reuseport(&fd, true).map_err(doing.refused("share"))?;
    }
    widen(&doing, &fd, buffer_bytes)?;
    bind(&fd, &address).map_err(doing.refused("bind"))?;
    let address = local(&fd).unwrap_or(address);
    Ok(Opened { name: format!("udp {address}"), fd, address: Some(address), file: None })
}

/// A TCP listener.
pub(crate) fn tcp(address: SocketAddr, v6_only: bool) -> Result<Opened, OpenError> {
    let doing = Doing { socket: format!("tcp {address}") };
    let fd = inet(&doing, address, SocketType::STREAM, v6_only)?;
    // A restarted server need not wait for the old one's connections to time out.
    sockopt::set_socket_reuseaddr(&fd, true).map_err(doing.refused("reuse"))?;
    bind(&fd, &address).map_err(doing.refused("bind"))?;
    listen(&fd, QUEUE).map_err(doing.refused("listen at"))?;
    let address = local(&fd).unwrap_or(address);
    Ok(Opened { name: format!("tcp {address}"), fd, address: Some(address), file: None })
}

/// A unix datagram socket.
pub(crate) fn unixgram(
    path: &Path,
    mode: Option<u32>,
    buffer_bytes: usize,
) -> Result<Opened, OpenError> {
    let doing = Doing { socket: format!("unixgram {}", path.display()) };
    let (fd, file) = unix(&doing, path, mode, SocketType::DGRAM)?;
    widen(&doing, &fd, buffer_bytes)?;
    Ok(Opened { name: doing.socket, fd, address: None, file: Some(file) })
}

/// A unix stream listener.
pub(crate) fn unix_stream(path: &Path, mode: Option<u32>) -> Result<Opened, OpenError> {
    let doing = Doing { socket: format!("unix {}", path.display()) };
    let (fd, file) = unix(&doing, path, mode, SocketType::STREAM)?;
    listen(&fd, QUEUE).map_err(doing.refused("listen at"))?;
    Ok(Opened { name: doing.socket, fd, address: None, file: Some(file) })
}

/// Connections that may wait to be accepted; the kernel cuts it to `net.core.somaxconn`.
pub(crate) const QUEUE: i32 = 1024;

/// Whether an IPv6 socket should leave IPv4 alone: if somebody else in the list wants it.
///
/// `[::]:8125` alone takes in both, as etsy's server does; beside `0.0.0.0:8125` it would collide.
pub(crate) fn v6_only(address: SocketAddr, all: &[Listen]) -> bool {
    address.is_ipv6()
        && all.iter().any(|other| match other {
            Listen::Udp { address: other, .. } | Listen::Tcp { address: other, .. } => {
                other.is_ipv4() && other.port() == address.port() && other.port() != 0
            }
            _ => false,
        })
}

fn inet(
    doing: &Doing,
    address: SocketAddr,
    kind: SocketType,
    v6_only: bool,
) -> Result<OwnedFd, OpenError> {
    let family = if address.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
    let fd = socket_with(family, kind, FLAGS, None).map_err(doing.refused("open"))?;
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&fd, v6_only).map_err(doing.refused("set up"))?;
    }
    Ok(fd)
}

const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

fn local(fd: &OwnedFd) -> Option<SocketAddr> {
    SocketAddr::try_from(getsockname(fd).ok()?).ok()
}

/// Asks for a receive buffer: past the sysctl's limit where we may, else up to it. What came of it is
/// logged, with what to do if it is less than was asked for.
fn widen(doing: &Doing, fd: &OwnedFd, asked: usize) -> Result<(), OpenError> {
    // The kernel takes an int, and doubles it.
    let asked = asked.min(i32::MAX as usize / 2);
    if sockopt::set_socket_recv_buffer_size_force(fd, asked).is_err() {
        sockopt::set_socket_recv_buffer_size(fd, asked).map_err(doing.refused("size"))?;
    }
    // It tells the doubled value.
    let effective = sockopt::socket_recv_buffer_size(fd).map_err(doing.refused("size"))? / 2;
    let socket = doing.socket.as_str();
    if effective < asked {
        tracing::warn!(
            socket,
            asked,
            effective,
            "the receive buffer is smaller than asked for: \
             run `sysctl -w net.core.rmem_max={asked}`, or give the server CAP_NET_ADMIN"
        );
    } else {
        tracing::info!(socket, effective, "receive buffer");
    }
    Ok(())
}

fn unix(
    doing: &Doing,
    path: &Path,
    mode: Option<u32>,
    kind: SocketType,
) -> Result<(OwnedFd, SocketFile), OpenError> {
    remove_stale(path, kind)?;
    let address = SocketAddrUnix::new(path).map_err(doing.refused("name"))?;
    let fd = socket_with(AddressFamily::UNIX, kind, FLAGS, None).map_err(doing.refused("open"))?;
    bind(&fd, &address).map_err(doing.refused("bind"))?;
    let refused =
        |action| move |source| OpenError::Refused { socket: doing.socket.clone(), action, source };
    let file = SocketFile::at(path).map_err(refused("find"))?;
    if let Some(mode) = mode {
        fs::set_permissions(path, fs::Permissions::from_mode(mode))
            .map_err(refused("set permissions of"))?;
    }
    Ok((fd, file))
}

/// Removes a socket file that a server left behind which is no more.
fn remove_stale(path: &Path, kind: SocketType) -> Result<(), OpenError> {
    match fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => {
            return Err(OpenError::NotASocket { path: path.to_owned() });
        }
        Ok(_) => {}
        // Binding tells what is wrong, if anything is.
        Err(_) => return Ok(()),
    }
    let answers = match kind {
        SocketType::DGRAM => UnixDatagram::unbound().and_then(|probe| probe.connect(path)),
        _ => UnixStream::connect(path).map(drop),
    };
    match answers {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            // If it cannot be removed, binding says why.
            let _ = fs::remove_file(path);
            Ok(())
        }
        // EPROTOTYPE: somebody listens, with another kind of socket.
        _ => Err(OpenError::InUse { path: path.to_owned() }),
    }
}

/// The file of a unix socket. Dropping removes it, unless another server has put its own there.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    device_and_inode: (u64, u64),
}

impl SocketFile {
    fn at(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), device_and_inode: device_and_inode(path)? })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if device_and_inode(&self.path).is_ok_and(|found| found == self.device_and_inode) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn device_and_inode(path: &Path) -> io::Result<(u64, u64)> {
    let found = fs::symlink_metadata(path)?;
    Ok((found.dev(), found.ino()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn a_stale_socket_file_is_replaced_and_a_living_one_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("statsd.sock");
        // A socket whose process is gone: bound, closed, the file stays.
        drop(UnixListener::bind(&path).unwrap());
        let opened = unixgram(&path, Some(0o620), 1 << 16).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o620);
        assert!(matches!(unixgram(&path, None, 1 << 16), Err(OpenError::InUse { .. })));
        assert!(matches!(unix_stream(&path, None), Err(OpenError::InUse { .. })));
        drop(opened);
        assert!(!path.exists(), "who made it removes it");
    }

    #[test]
    fn a_file_that_is_no_socket_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("precious");
        fs::write(&path, "data").unwrap();
        let error = unix_stream(&path, None).unwrap_err();
        assert!(
            error
                .to_string()
                .ends_with("precious is there and is no socket: remove it, or set another path")
        );
        assert_eq!(fs::read(&path).unwrap(), b"data");
    }

    #[test]
    fn a_socket_file_of_our_successor_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("statsd.sock");
        let ours = unix_stream(&path, None).unwrap();
        fs::remove_file(&path).unwrap();
        let successor = unix_stream(&path, None).unwrap();
        drop(ours);
        assert!(path.exists());
        drop(successor);
        assert!(!path.exists());
    }

    #[test]
    fn ipv6_leaves_ipv4_to_who_wants_it() {
        let listen = |address: &str| Listen::Udp {
            address: address.parse().unwrap(),
            readers: 1,
            buffer_bytes: 1 << 16,
        };
        let v6 = "[::]:8125".parse().unwrap();
        assert!(!v6_only(v6, &[listen("[::]:8125")]));
        assert!(v6_only(v6, &[listen("[::]:8125"), listen("0.0.0.0:8125")]));
        assert!(!v6_only(v6, &[listen("[::]:8125"), listen("0.0.0.0:8126")]));
    }

    #[test]
    fn the_buffer_is_as_large_as_the_kernel_lets_us_have_it() {
        let opened = udp("127.0.0.1:0".parse().unwrap(), false, false, 1 << 20).unwrap();
        let effective = sockopt::socket_recv_buffer_size(&opened.fd).unwrap();
        let rmem_max = fs::read_to_string("/proc/sys/net/core/rmem_max").unwrap();
        let rmem_max: usize = rmem_max.trim().parse().unwrap();
        assert!(effective == 2 << 20 || effective == 2 * rmem_max, "{effective}");
    }
}
