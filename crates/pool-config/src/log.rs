//! `[pool.log]`: events that are logged in addition to problems.

use std::{path::PathBuf, time::Duration};

use serde::{Deserialize, Serialize};

/// Settings that select additional events to log, and where to log: `[pool.log]`. Format and level
/// of the log are options of the whole process.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
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
    /// File to which the log is appended, in addition to stderr; opened again by SIGHUP.
    pub file: Option<PathBuf>,
    /// File with the process id, written at start and removed at exit; none by default.
    pub pid_file: Option<PathBuf>,
    /// Whether to log to syslog instead of stderr.
    pub syslog: bool,
    /// Name of the process in syslog.
    pub syslog_name: String,
    /// Facility of the lines in syslog, such as `daemon` or `local0`.
    pub syslog_facility: String,
}

impl Default for LogConfig {
    fn default() -> Self {
        Self {
            connections: true,
            disconnections: true,
            pooler_errors: true,
            stats: true,
            stats_period: Duration::from_secs(60),
            file: None,
            pid_file: None,
            syslog: false,
            syslog_name: "howdah".to_owned(),
            syslog_facility: "daemon".to_owned(),
        }
    }
}

/// Names of syslog's facilities with their numbers, by RFC 3164, table 1.
pub const SYSLOG_FACILITIES: [(&str, u8); 20] = [
    ("kern", 0),
    ("user", 1),
    ("mail", 2),
    ("daemon", 3),
    ("auth", 4),
    ("syslog", 5),
    ("lpr", 6),
    ("news", 7),
    ("uucp", 8),
    ("cron", 9),
    ("authpriv", 10),
    ("ftp", 11),
    ("local0", 16),
    ("local1", 17),
    ("local2", 18),
    ("local3", 19),
    ("local4", 20),
    ("local5", 21),
    ("local6", 22),
    ("local7", 23),
];

impl LogConfig {
    /// Returns the number of the syslog facility; `None` if the name is unknown.
    pub fn facility(&self) -> Option<u8> {
        let named = SYSLOG_FACILITIES.iter().find(|(name, _)| *name == self.syslog_facility);
        named.map(|(_, number)| *number)
    }
}
