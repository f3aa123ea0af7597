//! Listener settings.

use std::{net::SocketAddr, path::PathBuf};

use serde::{Deserialize, Serialize};

/// A listener for samples: `[[statsd.listen]]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase", deny_unknown_fields)]
pub enum ListenSettings {
    /// UDP datagrams.
    Udp {
        /// IPv4 or IPv6 address; port 0 selects a free port.
        #[serde(default = "everywhere")]
        address: SocketAddr,
        /// Number of sockets on the address, 1 to 64, each with a reader; the kernel distributes
        /// senders over them.
        #[serde(default = "one")]
        readers: usize,
        /// Requested receive buffer size in bytes.
        #[serde(default = "buffer", rename = "buffer-bytes")]
        buffer_bytes: usize,
    },
    /// Lines over TCP connections.
    Tcp {
        /// IPv4 or IPv6 address; port 0 selects a free port.
        #[serde(default = "everywhere")]
        address: SocketAddr,
        /// Maximum concurrent connections; further ones are closed and counted.
        #[serde(default = "connections")]
        connections: usize,
    },
    /// Datagrams on a unix socket; senders block while it is full.
    Unixgram {
        /// Path of the socket, created at start and removed at shutdown.
        path: PathBuf,
        /// Permissions of the socket file, such as 0o660.
        mode: Option<u32>,
        /// Requested receive buffer size in bytes.
        #[serde(default = "buffer", rename = "buffer-bytes")]
        buffer_bytes: usize,
    },
    /// Lines over connections on a unix socket.
    Unix {
        /// Path of the socket, created at start and removed at shutdown.
        path: PathBuf,
        /// Permissions of the socket file, such as 0o660.
        mode: Option<u32>,
        /// Maximum concurrent connections; further ones are closed and counted.
        #[serde(default = "connections")]
        connections: usize,
    },
}

impl ListenSettings {
    /// Creates settings for UDP at an address, with defaults for the rest.
    pub fn udp(address: SocketAddr) -> Self {
        Self::Udp { address, readers: one(), buffer_bytes: buffer() }
    }

    /// Creates settings for TCP at an address, with defaults for the rest.
    pub fn tcp(address: SocketAddr) -> Self {
        Self::Tcp { address, connections: connections() }
    }

    /// Creates settings for a unix datagram socket, with defaults for the rest.
    pub fn unixgram(path: PathBuf, mode: Option<u32>) -> Self {
        Self::Unixgram { path, mode, buffer_bytes: buffer() }
    }

    /// Creates settings for a unix stream socket, with defaults for the rest.
    pub fn unix(path: PathBuf, mode: Option<u32>) -> Self {
        Self::Unix { path, mode, connections: connections() }
    }
}

impl Default for ListenSettings {
    fn default() -> Self {
        Self::Udp { address: everywhere(), readers: one(), buffer_bytes: buffer() }
    }
}

fn everywhere() -> SocketAddr {
    SocketAddr::from(([0, 0, 0, 0], 8125))
}

fn one() -> usize {
    1
}

fn buffer() -> usize {
    32 << 20
}

fn connections() -> usize {
    1024
}
