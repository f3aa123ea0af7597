//! What the kernel is told about TCP connections of both legs.

use std::{num::NonZeroU32, time::Duration};

use howdah_net::TcpOptions;
use serde::{Deserialize, Serialize};

use super::{durations, toml};

/// What the kernel is told about TCP connections of both legs: `[pool.tcp]`. `None`, written 0, is
/// whatever the system has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct Tcp {
    /// Whether peers that are silent are asked whether they are there.
    pub keepalive: bool,
    /// After so long, in whole seconds.
    #[serde(with = "durations::optional")]
    pub keepalive_idle: Option<Duration>,
    /// Between two questions, in whole seconds.
    #[serde(with = "durations::optional")]
    pub keepalive_interval: Option<Duration>,
    /// After how many without an answer the connection is lost.
    #[serde(with = "toml::limit")]
    pub keepalive_count: Option<NonZeroU32>,
    /// After how long without an acknowledgement of what was sent it is lost.
    #[serde(with = "durations::optional")]
    pub user_timeout: Option<Duration>,
    /// Bytes of the kernel's buffers.
    #[serde(with = "toml::limit")]
    pub buffer_bytes: Option<NonZeroU32>,
}

impl Default for Tcp {
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

impl Tcp {
    pub(crate) fn options(&self) -> TcpOptions {
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
