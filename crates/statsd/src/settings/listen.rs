//! Listener settings.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use serde::{Deserialize, Serialize};

use super::sender_network::{self, SenderNetwork};

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
        /// Networks of permitted senders; empty if all are permitted. Packets of others
        /// are dropped and counted.
        #[serde(
            default,
            deserialize_with = "sender_network::list",
            skip_serializing_if = "Vec::is_empty"
        )]
        allow: Vec<SenderNetwork>,
    },
    /// Lines over TCP connections.
    Tcp {
        /// IPv4 or IPv6 address; port 0 selects a free port.
        #[serde(default = "everywhere")]
        address: SocketAddr,
        /// Maximum concurrent connections; further ones are closed and counted.
        #[serde(default = "connections")]
        connections: usize,
        /// Networks of permitted senders; empty if all are permitted. Connections of others
        /// are closed and counted.
        #[serde(
            default,
            deserialize_with = "sender_network::list",
            skip_serializing_if = "Vec::is_empty"
        )]
        allow: Vec<SenderNetwork>,
        /// File with the certificate chain; turns TLS on.
        #[serde(default, rename = "tls-certificate")]
        tls_certificate: Option<PathBuf>,
        /// File with the certificate's private key.
        #[serde(default, rename = "tls-key")]
        tls_key: Option<PathBuf>,
        /// File with authorities: clients need a certificate that one of them signed.
        #[serde(default, rename = "client-ca")]
        client_ca: Option<PathBuf>,
        /// File with tokens, one on each line: the first line of a connection must be `auth TOKEN`
        /// with one of them.
        #[serde(default, rename = "token-file")]
        token_file: Option<PathBuf>,
        /// Maximum time for the TLS handshake and the token's line.
        #[serde(
            default = "handshake",
            rename = "handshake-timeout",
            with = "howdah_settings::milliseconds"
        )]
        handshake_timeout: Duration,
        /// Connections without data for this long are closed; never if zero.
        #[serde(default, rename = "idle-timeout", with = "howdah_settings::milliseconds")]
        idle_timeout: Duration,
    },
    /// Aggregates that other servers forward, over TCP connections.
    Forward {
        /// IPv4 or IPv6 address; port 0 selects a free port.
        address: SocketAddr,
        /// Maximum concurrent connections; further ones are closed.
        #[serde(default = "connections")]
        connections: usize,
        /// Networks of permitted servers; empty if all are permitted. Connections of others are
        /// closed and counted.
        #[serde(
            default,
            deserialize_with = "sender_network::list",
            skip_serializing_if = "Vec::is_empty"
        )]
        allow: Vec<SenderNetwork>,
        /// File with the certificate chain; turns TLS on.
        #[serde(default, rename = "tls-certificate")]
        tls_certificate: Option<PathBuf>,
        /// File with the certificate's private key.
        #[serde(default, rename = "tls-key")]
        tls_key: Option<PathBuf>,
        /// File with authorities: servers need a certificate that one of them signed.
        #[serde(default, rename = "client-ca")]
        client_ca: Option<PathBuf>,
        /// File with tokens, one on each line: servers must send one of them.
        #[serde(default, rename = "token-file")]
        token_file: Option<PathBuf>,
        /// Maximum time for the TLS handshake, the token and the first message.
        #[serde(
            default = "handshake",
            rename = "handshake-timeout",
            with = "howdah_settings::milliseconds"
        )]
        handshake_timeout: Duration,
        /// Connections without a batch for this long are closed; never if zero.
        #[serde(
            default = "forward_idle",
            rename = "idle-timeout",
            with = "howdah_settings::milliseconds"
        )]
        idle_timeout: Duration,
    },
    /// Datagrams on a unix socket; senders block while it is full.
    Unixgram {
        /// Path of the socket, created at start and removed at shutdown.
        path: PathBuf,
        /// Permissions of the socket file, such as 0o660.
        mode: Option<u32>,
        /// Owner of the socket file: `user`, `user:group` or `:group`, as names or numbers.
        owner: Option<String>,
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
        /// Owner of the socket file: `user`, `user:group` or `:group`, as names or numbers.
        owner: Option<String>,
        /// Maximum concurrent connections; further ones are closed and counted.
        #[serde(default = "connections")]
        connections: usize,
        /// Connections without data for this long are closed; never if zero.
        #[serde(default, rename = "idle-timeout", with = "howdah_settings::milliseconds")]
        idle_timeout: Duration,
    },
}

impl ListenSettings {
    /// Creates settings for UDP at an address, with defaults for the rest.
    pub fn udp(address: SocketAddr) -> Self {
        Self::Udp { address, readers: one(), buffer_bytes: buffer(), allow: Vec::new() }
    }

    /// Creates settings for TCP at an address, with defaults for the rest.
    pub fn tcp(address: SocketAddr) -> Self {
        Self::Tcp {
            address,
            connections: connections(),
            allow: Vec::new(),
            tls_certificate: None,
            tls_key: None,
            client_ca: None,
            token_file: None,
            handshake_timeout: handshake(),
            idle_timeout: Duration::ZERO,
        }
    }

    /// Creates settings for aggregates of other servers at an address, with defaults for the rest.
    pub fn forward(address: SocketAddr) -> Self {
        Self::Forward {
            address,
            connections: connections(),
            allow: Vec::new(),
            tls_certificate: None,
            tls_key: None,
            client_ca: None,
            token_file: None,
            handshake_timeout: handshake(),
            idle_timeout: forward_idle(),
        }
    }

    /// Creates settings for a unix datagram socket, with defaults for the rest.
    pub fn unixgram(path: PathBuf, mode: Option<u32>) -> Self {
        Self::Unixgram { path, mode, owner: None, buffer_bytes: buffer() }
    }

    /// Creates settings for a unix stream socket, with defaults for the rest.
    pub fn unix(path: PathBuf, mode: Option<u32>) -> Self {
        Self::Unix {
            path,
            mode,
            owner: None,
            connections: connections(),
            idle_timeout: Duration::ZERO,
        }
    }

    /// Returns the rule that the listener's TLS settings violate, if any.
    pub(super) fn tls_violation(&self) -> Option<&'static str> {
        let is_forward = matches!(self, Self::Forward { .. });
        let (Self::Tcp {
            tls_certificate, tls_key, client_ca, token_file, handshake_timeout, ..
        }
        | Self::Forward {
            tls_certificate,
            tls_key,
            client_ca,
            token_file,
            handshake_timeout,
            ..
        }) = self
        else {
            return None;
        };
        match (tls_certificate.is_some(), tls_key.is_some()) {
            (true, false) => Some("tls-certificate needs tls-key"),
            (false, true) => Some("tls-key needs tls-certificate"),
            (false, false) if client_ca.is_some() => {
                Some("client-ca needs tls-certificate and tls-key")
            }
            (is_tls, _)
                if handshake_timeout.is_zero()
                    && (is_tls || token_file.is_some() || is_forward) =>
            {
                Some("handshake-timeout must be at least a millisecond")
            }
            _ => None,
        }
    }
}

impl Default for ListenSettings {
    fn default() -> Self {
        Self::udp(everywhere())
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

fn handshake() -> Duration {
    Duration::from_secs(10)
}

/// Servers that forward open a new connection if theirs was closed.
fn forward_idle() -> Duration {
    Duration::from_secs(300)
}

#[test]
fn access_settings_of_listener_are_read() {
    let text = r#"
        type = "tcp"
        address = "127.0.0.1:0"
        allow = ["10.0.0.0/8", "::1"]
        tls-certificate = "server.crt"
        tls-key = "server.key"
        client-ca = "ca.crt"
        token-file = "tokens"
        handshake-timeout = "5s"
        idle-timeout = 1500
    "#;
    let read: ListenSettings = toml::from_str(text).expect("settings");
    assert_eq!(read.tls_violation(), None);
    let ListenSettings::Tcp { allow, client_ca, handshake_timeout, idle_timeout, .. } = read else {
        panic!("a TCP listener");
    };
    assert_eq!(allow.len(), 2);
    assert_eq!(client_ca, Some(PathBuf::from("ca.crt")));
    assert_eq!((handshake_timeout.as_secs(), idle_timeout.as_millis()), (5, 1500));

    let violation = |text: &str| {
        let text = format!("type = 'tcp'\n{text}");
        toml::from_str::<ListenSettings>(&text).expect("settings").tls_violation()
    };
    assert_eq!(violation("tls-certificate = 'a'"), Some("tls-certificate needs tls-key"));
    assert_eq!(violation("tls-key = 'a'"), Some("tls-key needs tls-certificate"));
    assert_eq!(violation("client-ca = 'a'"), Some("client-ca needs tls-certificate and tls-key"));
    assert_eq!(
        violation("token-file = 'a'\nhandshake-timeout = 0"),
        Some("handshake-timeout must be at least a millisecond")
    );
    let text = "type = 'forward'\naddress = '127.0.0.1:0'";
    let read: ListenSettings = toml::from_str(text).expect("settings");
    assert_eq!(read, ListenSettings::forward("127.0.0.1:0".parse().expect("an address")));
    for (key, expected) in [
        ("tls-certificate = 'a'", "tls-certificate needs tls-key"),
        ("handshake-timeout = 0", "handshake-timeout must be at least a millisecond"),
    ] {
        let read: ListenSettings = toml::from_str(&format!("{text}\n{key}")).expect("settings");
        assert_eq!(read.tls_violation(), Some(expected));
    }
    let error = |text: &str| toml::from_str::<ListenSettings>(text).expect_err("an error");
    let empty = error("type = 'udp'\nallow = []").to_string();
    assert!(empty.contains("allow is empty: list networks, or remove it"), "{empty}");
    let host_bits = error("type = 'udp'\nallow = ['10.0.0.1/8']").to_string();
    assert!(host_bits.contains("the network is 10.0.0.0/8"), "{host_bits}");
    let unknown = error("type = 'udp'\ntoken-file = 'x'").to_string();
    assert!(unknown.contains("unknown field `token-file`"), "{unknown}");
}
