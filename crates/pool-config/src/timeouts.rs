//! `[pool.timeouts]`: timeouts and intervals for clients, server connections and the pooler itself.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Timeouts and intervals: `[pool.timeouts]`. `None`, written 0, means no timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct TimeoutConfig {
    /// Maximum time from accepting a client's connection to the end of its login.
    #[serde(with = "howdah_settings::timeout")]
    pub client_login: Option<Duration>,
    /// Maximum time from accepting a client's connection to the end of its startup packet,
    /// including the TLS handshake; at most `client_login`.
    #[serde(with = "howdah_settings::timeout")]
    pub client_startup: Option<Duration>,
    /// Maximum idle time of a client outside a transaction.
    #[serde(with = "howdah_settings::timeout")]
    pub client_idle: Option<Duration>,
    /// Maximum time that a client waits for a server connection; no limit applies while its
    /// database is paused.
    #[serde(with = "howdah_settings::timeout")]
    pub query_wait: Option<Duration>,
    /// Time that a client waits for a server connection before it gets a notice; `None` means that
    /// it gets none.
    #[serde(with = "howdah_settings::timeout")]
    pub query_wait_notify: Option<Duration>,
    /// Maximum time that a request may run on a server before its client is disconnected.
    #[serde(with = "howdah_settings::timeout")]
    pub query: Option<Duration>,
    /// Maximum time that a transaction, or a request outside one, may take before its client is
    /// disconnected.
    #[serde(with = "howdah_settings::timeout")]
    pub transaction: Option<Duration>,
    /// Maximum idle time of a client in a transaction.
    #[serde(with = "howdah_settings::timeout")]
    pub idle_transaction: Option<Duration>,
    /// Maximum time to connect to a server for a cancel request, to send it, and to wait until the
    /// server closes the connection.
    #[serde(with = "howdah_settings::timeout")]
    pub cancel_wait: Option<Duration>,
    /// Time that a client waits before the pool may use its reserve; `None` means that the reserve
    /// is not used.
    #[serde(with = "howdah_settings::timeout")]
    pub reserve_wait: Option<Duration>,
    /// Maximum time to connect and log in to a server.
    #[serde(with = "howdah_settings::timeout")]
    pub server_connect: Option<Duration>,
    /// Maximum pause between a failed login to a server and the next attempt.
    #[serde(with = "howdah_settings::duration")]
    pub server_login_retry: Duration,
    /// Idle time after which a server connection is closed, unless the pool needs it for its
    /// minimum size.
    #[serde(with = "howdah_settings::timeout")]
    pub server_idle: Option<Duration>,
    /// Age at which an idle server connection is closed. With zero, each connection is used only
    /// once.
    #[serde(with = "howdah_settings::duration")]
    pub server_lifetime: Duration,
    /// Idle time after which `check-query` is run on a server connection before its next use. With
    /// zero, it is always run.
    #[serde(with = "howdah_settings::duration")]
    pub server_check_delay: Duration,
    /// Time for which new clients are accepted after SIGTERM or SIGINT, while `/readyz` fails;
    /// `None` means that none are accepted.
    #[serde(with = "howdah_settings::timeout")]
    pub shutdown_delay: Option<Duration>,
    /// Maximum time for which clients are served after SIGTERM or SIGINT, counted from the end of
    /// `shutdown_delay`. In a takeover, the maximum time for which the old process serves clients
    /// that cannot be handed over.
    #[serde(with = "howdah_settings::timeout")]
    pub shutdown: Option<Duration>,
    /// Time for which a pool without clients and servers is retained. A pool with a minimum size is
    /// never removed.
    #[serde(with = "howdah_settings::timeout")]
    pub pool_idle: Option<Duration>,
    /// Time for which an unused pool of a database that only matches the entry `"*"` is retained,
    /// unless `pool_idle` is shorter.
    #[serde(with = "howdah_settings::timeout")]
    pub autodb_idle: Option<Duration>,
    /// Interval between DNS lookups of a server's name. Connections to an address that is gone are
    /// replaced as they become idle.
    #[serde(with = "howdah_settings::duration")]
    pub dns_max_ttl: Duration,
    /// Maximum time that SUSPEND waits for clients and servers to read their pending output.
    #[serde(with = "howdah_settings::timeout")]
    pub suspend: Option<Duration>,
    /// Whether a client in session mode whose server must be replaced is disconnected between its
    /// transactions, instead of keeping the server.
    pub server_fast_close: bool,
}

impl Default for TimeoutConfig {
    fn default() -> Self {
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        Self {
            client_login: seconds(60),
            client_startup: seconds(15),
            client_idle: None,
            query_wait: seconds(120),
            query_wait_notify: seconds(5),
            query: None,
            transaction: None,
            idle_transaction: None,
            cancel_wait: seconds(10),
            reserve_wait: seconds(5),
            server_connect: seconds(15),
            server_login_retry: Duration::from_secs(15),
            server_idle: seconds(600),
            server_lifetime: Duration::from_secs(3600),
            server_check_delay: Duration::from_secs(30),
            shutdown_delay: None,
            shutdown: None,
            pool_idle: None,
            autodb_idle: seconds(3600),
            dns_max_ttl: Duration::from_secs(15),
            suspend: seconds(10),
            server_fast_close: false,
        }
    }
}
