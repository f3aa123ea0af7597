//! How long things may take.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::durations;

/// How long things may take: `[pool.timeouts]`. `None`, written 0, is for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct Timeouts {
    /// From a client's connection to the end of its login.
    #[serde(with = "durations::optional")]
    pub client_login: Option<Duration>,
    /// From a client's connection to the end of its startup packet, TLS handshake included; no longer than
    /// `client_login`.
    #[serde(with = "durations::optional")]
    pub client_startup: Option<Duration>,
    /// A client that asks for nothing and is in no transaction.
    #[serde(with = "durations::optional")]
    pub client_idle: Option<Duration>,
    /// A client's wait for a server.
    #[serde(with = "durations::optional")]
    pub query_wait: Option<Duration>,
    /// A wait after which the client gets a notice that it waits.
    #[serde(with = "durations::optional")]
    pub query_wait_notify: Option<Duration>,
    /// A query.
    #[serde(with = "durations::optional")]
    pub query: Option<Duration>,
    /// A transaction.
    #[serde(with = "durations::optional")]
    pub transaction: Option<Duration>,
    /// A client in a transaction that does nothing.
    #[serde(with = "durations::optional")]
    pub idle_transaction: Option<Duration>,
    /// A request to cancel that waits for a connection.
    #[serde(with = "durations::optional")]
    pub cancel_wait: Option<Duration>,
    /// A client's wait after which the pool may grow into its reserve.
    #[serde(with = "durations::optional")]
    pub reserve_wait: Option<Duration>,
    /// Connecting to a server, login included.
    #[serde(with = "durations::optional")]
    pub server_connect: Option<Duration>,
    /// How long after a failed login to a server the next one is tried.
    #[serde(with = "durations::whole")]
    pub server_login_retry: Duration,
    /// A server connection that nobody uses.
    #[serde(with = "durations::optional")]
    pub server_idle: Option<Duration>,
    /// Age at which an unused server connection is closed. Zero: it is used once.
    #[serde(with = "durations::whole")]
    pub server_lifetime: Duration,
    /// Idle time after which a server connection is asked `check-query` before it is used. Zero:
    /// always.
    #[serde(with = "durations::whole")]
    pub server_check_delay: Duration,
    /// How long clients may go on after SIGTERM.
    #[serde(with = "durations::optional")]
    pub shutdown: Option<Duration>,
    /// A pool without clients and servers; then it is given up.
    #[serde(with = "durations::optional")]
    pub pool_idle: Option<Duration>,
    /// The same of a database that only `"*"` stands for.
    #[serde(with = "durations::optional")]
    pub autodb_idle: Option<Duration>,
    /// Between two look-ups of a server's name, and so how long after a change connections to an address that
    /// is gone are replaced.
    #[serde(with = "durations::whole")]
    pub dns_max_ttl: Duration,
    /// How long what is to be sent may take to be, at SUSPEND.
    #[serde(with = "durations::optional")]
    pub suspend: Option<Duration>,
}

impl Default for Timeouts {
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
            shutdown: None,
            pool_idle: None,
            autodb_idle: seconds(3600),
            dns_max_ttl: Duration::from_secs(15),
            suspend: seconds(10),
        }
    }
}
