//! [`InheritedSockets`]: sockets that another process opened, either the service manager (systemd
//! socket activation) or the server that this one takes over from.
//!
//! Each is known by a label, a type and an address: `udp 127.0.0.1:8125`, `unix /run/statsd.sock`.
//! A socket from the service manager gets the label of the address that it is bound to. A socket
//! from a server has the label of its entry in that server's settings, so that one on port 0 can be
//! passed on, too.

use std::{
    io,
    net::{SocketAddr, TcpListener},
    os::fd::OwnedFd,
};

use howdah_net::{ActivatedDescriptor, ActivationError, activated_descriptors};
use rustix::net::{SocketAddrUnix, SocketType, getsockname, sockopt};

use crate::settings::ListenSettings;

/// Sockets passed by another process, which are used instead of new ones if the settings name them.
#[derive(Debug, Default)]
pub struct InheritedSockets {
    sockets: Vec<InheritedSocket>,
}

/// A socket that another process opened.
#[derive(Debug)]
pub struct InheritedSocket {
    /// Type and address.
    pub label: String,
    /// The socket.
    pub descriptor: OwnedFd,
    /// Whether the service manager opened the socket, and so removes the file of a unix socket.
    pub is_managed: bool,
}

/// A connection that another process passes on, with the state between two reads.
#[derive(Debug)]
pub struct InheritedConnection {
    /// The connection.
    pub descriptor: OwnedFd,
    /// The label of the listener that accepted it, see [`InheritedSockets`].
    pub listener: String,
    /// The incomplete last line.
    pub tail: Vec<u8>,
    /// Whether the rest of the current line is discarded, because it is too long.
    pub is_skipping: bool,
}

/// The reason why the sockets of the service manager cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InheritedSocketError {
    /// The variables or descriptors of the service manager are invalid.
    #[error(transparent)]
    Activation(#[from] ActivationError),
    /// A descriptor is not a socket that the server can use.
    #[error("cannot use descriptor {number}, named {name:?}, of the service manager")]
    Unusable {
        /// Number of the descriptor.
        number: i32,
        /// The name in the service manager.
        name: String,
        /// The error of the kernel or of the check.
        source: io::Error,
    },
}

impl InheritedSockets {
    /// Takes the sockets that the service manager has passed to this process, if any. Works once.
    ///
    /// # Errors
    ///
    /// See [`InheritedSocketError`].
    pub fn activated() -> Result<Self, InheritedSocketError> {
        let mut sockets = Self::default();
        for ActivatedDescriptor { number, name, descriptor } in activated_descriptors()? {
            let pushed = sockets.push_activated(descriptor);
            pushed.map_err(|source| InheritedSocketError::Unusable { number, name, source })?;
        }
        Ok(sockets)
    }

    /// Adds a socket.
    pub fn push(&mut self, socket: InheritedSocket) {
        self.sockets.push(socket);
    }

    /// Adds a socket that the service manager opened.
    ///
    /// # Errors
    ///
    /// The descriptor is not a socket that is bound to an IP address or a path, or it is a stream
    /// socket that does not listen.
    pub fn push_activated(&mut self, descriptor: OwnedFd) -> io::Result<()> {
        let label = bound_label(&descriptor)?;
        self.push(InheritedSocket { label, descriptor, is_managed: true });
        Ok(())
    }

    /// Takes the first socket with a label.
    pub(crate) fn take(&mut self, label: &str) -> Option<InheritedSocket> {
        let at = self.sockets.iter().position(|socket| socket.label == label)?;
        Some(self.sockets.remove(at))
    }

    /// Returns the listener of a port that is not for samples, either the one passed for this
    /// `purpose`, or one on the address from the service manager, or a new one.
    ///
    /// # Errors
    ///
    /// The address is in use, not local, or needs privileges.
    pub(crate) fn listener(
        &mut self,
        purpose: &str,
        address: SocketAddr,
    ) -> io::Result<TcpListener> {
        let passed = self.take(&format!("{purpose} {address}"));
        match passed.or_else(|| self.take(&format!("tcp {address}"))) {
            Some(passed) => Ok(passed.descriptor.into()),
            None => TcpListener::bind(address),
        }
    }

    /// Returns the labels of the sockets that nothing has taken.
    pub fn labels(&self) -> impl Iterator<Item = &str> {
        self.sockets.iter().map(|socket| socket.label.as_str())
    }
}

/// Returns the label of a listener in the settings.
pub(crate) fn configured_label(listen: &ListenSettings) -> String {
    match listen {
        ListenSettings::Udp { address, .. } => format!("udp {address}"),
        ListenSettings::Tcp { address, .. } => format!("tcp {address}"),
        ListenSettings::Forward { address, .. } => format!("forward {address}"),
        ListenSettings::Unixgram { path, .. } => format!("unixgram {}", path.display()),
        ListenSettings::Unix { path, .. } => format!("unix {}", path.display()),
    }
}

fn bound_label(descriptor: &OwnedFd) -> io::Result<String> {
    let unusable = |why: &str| io::Error::new(io::ErrorKind::InvalidInput, why.to_owned());
    let is_stream = match sockopt::socket_type(descriptor)? {
        SocketType::STREAM => true,
        SocketType::DGRAM => false,
        _ => return Err(unusable("it is neither a stream socket nor a datagram socket")),
    };
    if is_stream && !sockopt::socket_acceptconn(descriptor)? {
        return Err(unusable("it is a stream socket that does not listen: set Accept=no"));
    }
    let address = getsockname(descriptor)?;
    if let Ok(address) = SocketAddr::try_from(address.clone()) {
        return Ok(format!("{} {address}", if is_stream { "tcp" } else { "udp" }));
    }
    let unix = SocketAddrUnix::try_from(address)?;
    let path = unix.path_bytes().ok_or_else(|| unusable("it is not bound to a path"))?;
    let path = String::from_utf8_lossy(path);
    Ok(format!("{} {path}", if is_stream { "unix" } else { "unixgram" }))
}

#[cfg(test)]
mod tests {
    use std::{
        net::UdpSocket,
        os::unix::net::{UnixDatagram, UnixListener, UnixStream},
    };

    use super::*;

    #[test]
    fn activated_sockets_are_known_by_type_and_address() {
        let folder = tempfile::tempdir().unwrap();
        let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
        let udp_address = udp.local_addr().unwrap();
        let tcp = TcpListener::bind("[::1]:0").or_else(|_| TcpListener::bind("127.0.0.1:0"));
        let tcp = tcp.unwrap();
        let tcp_address = tcp.local_addr().unwrap();
        let (gram, stream) = (folder.path().join("gram"), folder.path().join("stream"));
        let mut passed = InheritedSockets::default();
        passed.push_activated(udp.into()).unwrap();
        passed.push_activated(tcp.into()).unwrap();
        passed.push_activated(UnixDatagram::bind(&gram).unwrap().into()).unwrap();
        passed.push_activated(UnixListener::bind(&stream).unwrap().into()).unwrap();
        let expected = [
            format!("udp {udp_address}"),
            format!("tcp {tcp_address}"),
            format!("unixgram {}", gram.display()),
            format!("unix {}", stream.display()),
        ];
        assert_eq!(passed.labels().collect::<Vec<_>>(), expected);
        assert!(passed.take(&expected[0]).is_some_and(|socket| socket.is_managed));
        assert!(passed.take(&expected[0]).is_none());
        let listener = passed.listener("management", tcp_address).unwrap();
        assert_eq!(listener.local_addr().unwrap(), tcp_address);
        assert_eq!(passed.labels().count(), 2);
        let (unbound, _) = UnixStream::pair().unwrap();
        assert!(passed.push_activated(unbound.into()).is_err());
    }
}
