//! What is told in the log beside what goes wrong.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::durations;

/// What is told in the log beside what goes wrong: `[pool.log]`. Where the log goes, and in which form,
/// is said for the whole process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct Log {
    /// Each client that is in: user, database, address, and how it is encrypted.
    pub connections: bool,
    /// Each client that has left, and why.
    pub disconnections: bool,
    /// Errors of the pooler's own that clients are told.
    pub pooler_errors: bool,
    /// Averages of all pools, once in a period.
    pub stats: bool,
    /// How long such a period is; the console's averages are of one, too. At least a second.
    #[serde(with = "durations::whole")]
    pub stats_period: Duration,
}

impl Default for Log {
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
