//! `[pool.tcp]`: TCP socket options.

use std::{num::NonZeroU32, time::Duration};

use howdah_net::TcpOptions;
use serde::{Deserialize, Serialize};

/// Options of TCP sockets to clients and servers: `[pool.tcp]`. `None`, written 0, means the
/// system's default.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct TcpConfig {
    /// Whether TCP keepalive probes are sent.
    pub keepalive: bool,
    /// Idle time before the first probe, in whole seconds.
    #[serde(with = "howdah_settings::timeout")]
    pub keepalive_idle: Option<Duration>,
    /// Interval between probes, in whole seconds.
    #[serde(with = "howdah_settings::timeout")]
    pub keepalive_interval: Option<Duration>,
    /// Number of unanswered probes after which the connection is closed.
    #[serde(with = "howdah_settings::limit")]
    pub keepalive_count: Option<NonZeroU32>,
    /// Maximum time that sent data may stay unacknowledged before the connection is closed
    /// (TCP_USER_TIMEOUT).
    #[serde(with = "howdah_settings::timeout")]
    pub user_timeout: Option<Duration>,
    /// Size of each of the kernel's send and receive buffers, in bytes.
    #[serde(with = "howdah_settings::limit")]
    pub buffer_bytes: Option<NonZeroU32>,
}

impl Default for TcpConfig {
    fn default() -> Self {
        Self {
            keepalive: true,
            keepalive_idle: None,
            keepalive_interval: None,
            keepalive_count: None,
            user_timeout: None,
            buffer_bytes: None,
        }
    }
}

impl TcpConfig {
    /// Returns the options for a socket.
    pub fn options(&self) -> TcpOptions {
        TcpOptions {
            keepalive: self.keepalive,
            keepalive_idle: self.keepalive_idle,
            keepalive_interval: self.keepalive_interval,
            keepalive_count: self.keepalive_count.map(NonZeroU32::get),
            user_timeout: self.user_timeout,
            buffer_bytes: self.buffer_bytes.map(|bytes| bytes.get() as usize),
        }
    }
}
