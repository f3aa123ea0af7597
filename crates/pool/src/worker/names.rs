//! [`Names`]: how names of servers are looked up; and a thread that follows those of databases with `hosts`.
//!
//! Connections are made to what a name means at that time. Where it means another place later, as in a failover
//! by DNS, the connections that are there are replaced as they become free, as by `RECONNECT`. Databases with
//! `servers` have threads of their own that look their names up, see [`super::watch`].

mod addresses;

use std::{
    collections::HashMap,
    fmt, io,
    net::{SocketAddr, ToSocketAddrs as _},
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{Receiver, RecvTimeoutError},
    },
    time::{Duration, Instant},
};

use howdah_connect::Endpoint;

pub(super) use self::addresses::Addresses;
use self::addresses::name_of;
use super::control::Control;
use crate::console::Databases;

/// Between two looks at whether a look-up is due, at most.
const POLL_INTERVAL_MAX: Duration = Duration::from_secs(1);

/// The same at least.
const POLL_INTERVAL_MIN: Duration = Duration::from_millis(10);

/// A function that gives the addresses of a host at a port.
type Resolve = dyn Fn(&str, u16) -> io::Result<Vec<SocketAddr>> + Send + Sync;

/// Addresses by host and port.
type FirstFound = HashMap<(String, u16), Vec<SocketAddr>>;

/// How names of servers are looked up: by the operating system, unless a test says otherwise.
#[derive(Clone)]
pub struct Names {
    resolve: Arc<Resolve>,
    /// What each meant when it was looked up first: connections may lead there.
    first: Arc<Mutex<FirstFound>>,
}

impl Names {
    /// Names that are looked up by this function.
    pub fn new(
        resolve: impl Fn(&str, u16) -> io::Result<Vec<SocketAddr>> + Send + Sync + 'static,
    ) -> Self {
        Self { resolve: Arc::new(resolve), first: Arc::default() }
    }

    /// The addresses of a host, in the order to be tried; blocks.
    ///
    /// # Errors
    ///
    /// It has none, or nobody answers.
    pub(super) fn look_up(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        let found = (self.resolve)(host, port)?;
        let mut first = self.first.lock().unwrap_or_else(PoisonError::into_inner);
        first.entry((host.to_owned(), port)).or_insert_with(|| found.clone());
        Ok(found)
    }

    /// What a name meant when it was looked up first; empty if it never was.
    fn first_found(&self, host: &str, port: u16) -> Vec<SocketAddr> {
        let first = self.first.lock().unwrap_or_else(PoisonError::into_inner);
        first.get(&(host.to_owned(), port)).cloned().unwrap_or_default()
    }
}

impl Default for Names {
    fn default() -> Self {
        Self::new(|host, port| (host, port).to_socket_addrs().map(Iterator::collect))
    }
}

impl fmt::Debug for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Names")
    }
}

impl Control {
    /// Follows names of databases with `hosts`, until the pooler ends.
    pub(super) fn follow_names(&self, over: &Receiver<()>) {
        let mut known: HashMap<Endpoint, Addresses> = HashMap::new();
        let interval = || {
            let ttl = self.config().timeouts.dns_max_ttl;
            (ttl / 4).clamp(POLL_INTERVAL_MIN, POLL_INTERVAL_MAX)
        };
        while over.recv_timeout(interval()) == Err(RecvTimeoutError::Timeout) {
            let ttl = self.config().timeouts.dns_max_ttl;
            let mut used: HashMap<Endpoint, Vec<String>> = HashMap::new();
            for entry in self.front.directory.pools() {
                let is_watched = !entry.watched.is_empty();
                for endpoint in entry.endpoints.iter().filter(|_| !is_watched) {
                    if name_of(endpoint).is_some() {
                        let database = entry.key.database.clone();
                        used.entry(Endpoint::clone(endpoint)).or_default().push(database);
                    }
                }
            }
            known.retain(|endpoint, _| used.contains_key(endpoint));
            for (endpoint, mut databases) in used {
                let addresses = known.entry(endpoint.clone()).or_default();
                let names = self.front.directory.names();
                if !addresses.have_changed(&endpoint, names, (ttl, Instant::now())) {
                    continue;
                }
                databases.sort_unstable();
                databases.dedup();
                for database in databases {
                    tracing::info!(database, server = %endpoint, "its name has another address");
                    // A database that is gone meanwhile has no connections to be replaced.
                    let _ = self.reconnect(&Databases::One(database));
                }
            }
        }
    }
}
