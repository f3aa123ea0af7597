//! Where samples come in.

use std::{net::SocketAddr, path::PathBuf};

use serde::Deserialize;

/// One place to receive at: `[[statsd.listen]]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase", deny_unknown_fields)]
pub enum Listen {
    /// Datagrams.
    Udp {
        /// IPv4 or IPv6; port 0 takes a free one.
        #[serde(default = "everywhere")]
        address: SocketAddr,
        /// Sockets on the address, each with a reader; the kernel spreads senders over them.
        #[serde(default = "one")]
        readers: usize,
        /// The receive buffer asked for.
        #[serde(default = "buffer", rename = "buffer-bytes")]
        buffer_bytes: usize,
    },
    /// A stream of lines.
    Tcp {
        /// IPv4 or IPv6; port 0 takes a free one.
        #[serde(default = "everywhere")]
        address: SocketAddr,
        /// Connections served at once; more are closed at once, and counted.
        #[serde(default = "connections")]
        connections: usize,
    },
    /// Datagrams on a unix socket: a sender waits while it is full.
    Unixgram {
        /// Made at start, removed at the end.
        path: PathBuf,
        /// Permissions, such as 0o660.
        mode: Option<u32>,
        /// The receive buffer asked for.
        #[serde(default = "buffer", rename = "buffer-bytes")]
        buffer_bytes: usize,
    },
    /// A stream of lines on a unix socket.
    Unix {
        /// Made at start, removed at the end.
        path: PathBuf,
        /// Permissions, such as 0o660.
        mode: Option<u32>,
        /// Connections served at once; more are closed at once, and counted.
        #[serde(default = "connections")]
        connections: usize,
    },
}

impl Listen {
    /// UDP at an address, with the defaults for the rest.
    #[must_use]
    pub fn udp(address: SocketAddr) -> Self {
        Self::Udp { address, readers: one(), buffer_bytes: buffer() }
    }

    /// TCP at an address, with the defaults for the rest.
    #[must_use]
    pub fn tcp(address: SocketAddr) -> Self {
        Self::Tcp { address, connections: connections() }
    }

    /// A unix stream socket, with the defaults for the rest.
    #[must_use]
    pub fn unix(path: PathBuf, mode: Option<u32>) -> Self {
        Self::Unix { path, mode, connections: connections() }
    }
}

impl Default for Listen {
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
