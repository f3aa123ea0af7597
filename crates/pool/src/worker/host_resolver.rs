//! [`HostResolver`]: resolves host names of servers. A background thread checks whether the host
//! names of databases with `hosts` have lost an address.
//!
//! A connection is opened to the address that the name has at that time. When the name later loses
//! an address, as in a failover by DNS, existing connections are replaced as they become idle, as
//! by `RECONNECT`. [`super::cluster_monitor`] does the same for databases with `servers`.

mod resolved_addresses;

use std::{
    collections::HashMap,
    fmt, io,
    net::{SocketAddr, ToSocketAddrs as _},
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError},
    },
    time::{Duration, Instant},
};

use howdah_connect::Endpoint;
use parking_lot::Mutex;

pub(super) use self::resolved_addresses::ResolvedAddresses;
use self::resolved_addresses::host_and_port;
use super::control::PoolerHandle;
use crate::console::DatabaseSelector;

/// Maximum interval between checks for due lookups.
const POLL_INTERVAL_MAX: Duration = Duration::from_secs(1);

/// Minimum interval between checks for due lookups.
const POLL_INTERVAL_MIN: Duration = Duration::from_millis(10);

/// A function that resolves a host and port.
type ResolveFn = dyn Fn(&str, u16) -> io::Result<Vec<SocketAddr>> + Send + Sync;

/// Addresses by host and port.
type FirstAddresses = HashMap<(String, u16), Vec<SocketAddr>>;

/// Resolves host names of servers, with the operating system's resolver or a test's function.
#[derive(Clone)]
pub struct HostResolver {
    resolve: Arc<ResolveFn>,
    /// The addresses of each name's first lookup, which connections may have used.
    first: Arc<Mutex<FirstAddresses>>,
}

impl HostResolver {
    /// Creates a resolver that calls `resolve`.
    pub fn new(
        resolve: impl Fn(&str, u16) -> io::Result<Vec<SocketAddr>> + Send + Sync + 'static,
    ) -> Self {
        Self { resolve: Arc::new(resolve), first: Arc::default() }
    }

    /// Looks up the addresses of a host, in the resolver's order; connections use the first one.
    /// Blocks.
    ///
    /// # Errors
    ///
    /// The name does not exist, or no name server responds.
    pub(super) fn lookup(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        let found = (self.resolve)(host, port)?;
        let mut first = self.first.lock();
        first.entry((host.to_owned(), port)).or_insert_with(|| found.clone());
        Ok(found)
    }

    /// Returns the addresses of a name's first lookup; empty if there was none.
    fn first_addresses(&self, host: &str, port: u16) -> Vec<SocketAddr> {
        let first = self.first.lock();
        first.get(&(host.to_owned(), port)).cloned().unwrap_or_default()
    }
}

impl Default for HostResolver {
    fn default() -> Self {
        Self::new(|host, port| (host, port).to_socket_addrs().map(Iterator::collect))
    }
}

impl fmt::Debug for HostResolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Names")
    }
}

impl PoolerHandle {
    /// Watches the host names of databases with `hosts` until the pooler ends. When a name loses an
    /// address, the connections of its databases are replaced as they become idle.
    pub(super) fn watch_host_names(&self, stop: &Receiver<()>) {
        let mut resolved: HashMap<Endpoint, ResolvedAddresses> = HashMap::new();
        let interval = || {
            let ttl = self.config().timeouts.dns_max_ttl;
            (ttl / 4).clamp(POLL_INTERVAL_MIN, POLL_INTERVAL_MAX)
        };
        while stop.recv_timeout(interval()) == Err(RecvTimeoutError::Timeout) {
            let ttl = self.config().timeouts.dns_max_ttl;
            let mut used: HashMap<Endpoint, Vec<String>> = HashMap::new();
            for entry in self.shared.directory.pools() {
                let is_watched = !entry.monitors.is_empty();
                for endpoint in entry.endpoints.iter().filter(|_| !is_watched) {
                    if host_and_port(endpoint).is_some() {
                        let database = entry.key.database.clone();
                        used.entry(Endpoint::clone(endpoint)).or_default().push(database);
                    }
                }
            }
            resolved.retain(|endpoint, _| used.contains_key(endpoint));
            for (endpoint, mut databases) in used {
                let addresses = resolved.entry(endpoint.clone()).or_default();
                let names = self.shared.directory.names();
                if !addresses.have_changed(&endpoint, names, (ttl, Instant::now())) {
                    continue;
                }
                databases.sort_unstable();
                databases.dedup();
                for database in databases {
                    tracing::info!(
                        database,
                        server = %endpoint,
                        "host name resolves to another address"
                    );
                    // This fails only if the database was removed in the meantime.
                    let _ = self.reconnect(&DatabaseSelector::One(database));
                }
            }
        }
    }
}
