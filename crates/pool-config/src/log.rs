//! `[pool.log]`: events that are logged in addition to problems.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Settings that select additional events to log: `[pool.log]`. Destination and format of the log
/// are settings of the whole process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct LogConfig {
    /// Whether to log each login of a client: user, database, address and encryption.
    pub connections: bool,
    /// Whether to log each client that disconnects, and why.
    pub disconnections: bool,
    /// Whether to log the errors that clients get from the pooler itself, not from a server.
    pub pooler_errors: bool,
    /// Whether to log averages over all pools, once per period.
    pub stats: bool,
    /// Interval between logged averages, at least one second. The console's averages cover the same
    /// period.
    #[serde(with = "howdah_settings::duration")]
    pub stats_period: Duration,
}

impl Default for LogConfig {
    fn default() -> Self {
        Self {
            connections: true,
            disconnections: true,
            pooler_errors: true,
            stats: true,
            stats_period: Duration::from_secs(60),
        }
    }
}
