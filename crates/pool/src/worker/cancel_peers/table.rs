//! [`PeerTable`]: the peers with their current addresses. [`TableBuilder`] makes it from the
//! settings and from the results of lookups.

use std::{
    collections::{HashMap, HashSet},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    sync::{Arc, atomic::Ordering},
    thread,
    time::{Duration, Instant},
};

use howdah_connect::Endpoint;
use howdah_pool_config::Config;
use parking_lot::Mutex;

use super::{CancelPeerReport, CancelTarget, LookupFn, OwnSockets, REQUESTS_MAX, TargetAddress};

/// Maximum number of addresses of all peers. Further ones are not used.
const ADDRESSES_MAX: usize = 64;

/// Minimum interval between lookups of a name.
const LOOKUP_INTERVAL_MIN: Duration = Duration::from_millis(100);

/// The peers with their current addresses.
#[derive(Debug, Default)]
pub(super) struct PeerTable {
    peers: Vec<PeerRow>,
    /// Whether there is a peer besides this process.
    pub(super) has_peers: bool,
    /// The IP addresses that forwarded requests may come from. They include this machine's own if
    /// one is configured, because connections between processes of a machine come from it.
    pub(super) sources: HashSet<IpAddr>,
    /// Whether a peer has a unix socket.
    pub(super) has_unix: bool,
}

/// A configured peer.
#[derive(Debug)]
struct PeerRow {
    number: u16,
    endpoint: Endpoint,
    /// The addresses to send requests to: none of this process.
    targets: Vec<Arc<CancelTarget>>,
}

impl PeerTable {
    pub(super) fn targets(&self) -> impl Iterator<Item = &Arc<CancelTarget>> {
        self.peers.iter().flat_map(|peer| &peer.targets)
    }

    pub(super) fn report(&self) -> Vec<CancelPeerReport> {
        let row = |peer: &PeerRow| {
            let targets = peer.targets.iter();
            CancelPeerReport {
                number: peer.number,
                host: peer.endpoint.host().into_owned(),
                port: peer.endpoint.port(),
                connections_max: REQUESTS_MAX,
                connecting: targets.clone().map(|it| it.connecting.load(Ordering::Relaxed)).sum(),
                sent: targets.map(|it| it.sent.load(Ordering::Relaxed)).sum(),
            }
        };
        self.peers.iter().map(row).collect()
    }
}

/// Builds a new table when settings or addresses have changed.
#[derive(Debug, Default)]
pub(super) struct TableBuilder {
    /// The names that are or were looked up.
    lookups: Arc<Mutex<HashMap<PeerName, NameLookup>>>,
    /// The values that the last table was made from.
    last: Option<(OwnSockets, Vec<ResolvedPeer>)>,
}

/// Host name and port of a peer.
type PeerName = (String, u16);

#[derive(Debug, Default)]
struct NameLookup {
    /// The addresses found last. A failed lookup does not change them.
    addresses: Vec<SocketAddr>,
    is_running: bool,
    /// Whether the last lookup failed, which is logged once.
    has_failed: bool,
    /// The time of the next lookup.
    due: Option<Instant>,
}

/// A configured peer with its addresses, some of which may be this process's own.
#[derive(Debug, PartialEq, Eq)]
struct ResolvedPeer {
    number: u16,
    endpoint: Endpoint,
    addresses: Vec<TargetAddress>,
    /// Whether the settings say that this is this process.
    is_own: bool,
}

impl TableBuilder {
    /// Starts lookups that are due. Returns a new table if it differs from the last one, with the
    /// targets of `before` that are still used.
    pub(super) fn update(
        &mut self,
        config: &Config,
        own: OwnSockets,
        before: &PeerTable,
        lookup: &LookupFn,
    ) -> Option<PeerTable> {
        let others: HashSet<_> = config.peers.others().map(|(number, _)| number).collect();
        let resolved: Vec<_> = config
            .peers
            .all()
            .map(|(number, address)| {
                let endpoint = address.endpoint(config.listen.port);
                let addresses = self.addresses(&endpoint, config.timeouts.dns_max_ttl, lookup);
                ResolvedPeer { number, endpoint, addresses, is_own: !others.contains(&number) }
            })
            .collect();
        let is_used = |name: &PeerName| {
            let is_it = |peer: &ResolvedPeer| {
                *peer.endpoint.host() == *name.0 && peer.endpoint.port() == name.1
            };
            resolved.iter().any(is_it)
        };
        self.lookups.lock().retain(|name, lookup| lookup.is_running || is_used(name));
        let input = (own, resolved);
        if self.last.as_ref() == Some(&input) {
            return None;
        }
        let table = build(&input.0, &input.1, before);
        self.last = Some(input);
        Some(table)
    }

    /// Whether a lookup is in progress.
    pub(super) fn is_waiting(&self) -> bool {
        self.lookups.lock().values().any(|lookup| lookup.is_running)
    }

    /// Returns the known addresses of a peer, and looks its name up again if that is due.
    fn addresses(
        &self,
        endpoint: &Endpoint,
        ttl: Duration,
        resolve: &LookupFn,
    ) -> Vec<TargetAddress> {
        let (host, port) = match endpoint {
            Endpoint::Unix { path } => return vec![TargetAddress::Unix(path.clone())],
            Endpoint::Tcp { hostaddr: Some(address), port, .. } => {
                return vec![TargetAddress::Tcp(SocketAddr::new(*address, *port))];
            }
            Endpoint::Tcp { host, port, .. } => (host, *port),
        };
        let name = (host.clone(), port);
        let mut lookups = self.lookups.lock();
        let lookup = lookups.entry(name.clone()).or_default();
        let now = Instant::now();
        if !lookup.is_running && lookup.due.is_none_or(|due| now >= due) {
            lookup.due = Some(now + ttl.max(LOOKUP_INTERVAL_MIN));
            let (all, resolve) = (Arc::clone(&self.lookups), Arc::clone(resolve));
            let thread = thread::Builder::new().name("peer-lookup".to_owned());
            // The next attempt is after the same interval if no thread can be started.
            lookup.is_running = thread
                .spawn(move || {
                    let found = resolve(&name.0, name.1);
                    finish_lookup(&mut all.lock(), &name, found);
                })
                .is_ok();
        }
        lookup.addresses.iter().copied().map(TargetAddress::Tcp).collect()
    }
}

fn finish_lookup(
    lookups: &mut HashMap<PeerName, NameLookup>,
    name: &PeerName,
    found: std::io::Result<Vec<SocketAddr>>,
) {
    let Some(lookup) = lookups.get_mut(name) else { return };
    lookup.is_running = false;
    match found {
        Ok(mut found) if !found.is_empty() => {
            found.sort_unstable();
            found.dedup();
            found.truncate(ADDRESSES_MAX + 1);
            lookup.addresses = found;
            lookup.has_failed = false;
        }
        failed if !std::mem::replace(&mut lookup.has_failed, true) => {
            let (host, error) = (&name.0, failed.err());
            let error = error.map_or_else(|| "no address".to_owned(), |error| error.to_string());
            tracing::warn!(host, error, "cannot resolve the host name of a peer");
        }
        _ => {}
    }
}

/// Builds a table. Addresses of this process are left out.
fn build(own: &OwnSockets, resolved: &[ResolvedPeer], before: &PeerTable) -> PeerTable {
    let known: HashMap<_, _> =
        before.targets().map(|target| (target.address.clone(), Arc::clone(target))).collect();
    let (mut table, mut used) = (PeerTable::default(), HashSet::new());
    let mut has_more = false;
    for ResolvedPeer { number, endpoint, addresses, is_own } in resolved {
        let mut targets = Vec::new();
        table.has_peers |= !is_own;
        table.has_unix |= matches!(endpoint, Endpoint::Unix { .. });
        table.sources.extend(addresses.iter().filter_map(TargetAddress::ip));
        for address in addresses.iter().filter(|it| !is_own && !is_own_address(it, own)) {
            if used.len() >= ADDRESSES_MAX {
                has_more = true;
                break;
            }
            if used.insert(address.clone()) {
                let target = known.get(address).map(Arc::clone);
                targets
                    .push(target.unwrap_or_else(|| Arc::new(CancelTarget::new(address.clone()))));
            }
        }
        table.peers.push(PeerRow { number: *number, endpoint: endpoint.clone(), targets });
    }
    if has_more {
        tracing::warn!(
            max = ADDRESSES_MAX,
            "peers have too many addresses: cancel requests are not forwarded to all of them"
        );
    }
    table
}

/// Whether this process listens on an address.
fn is_own_address(address: &TargetAddress, own: &OwnSockets) -> bool {
    match address {
        TargetAddress::Unix(path) => own.unix.contains(path),
        TargetAddress::Tcp(address) => own.tcp.iter().any(|listening| {
            let is_any = listening.ip().is_unspecified();
            listening.port() == address.port()
                && if is_any { is_local(address.ip()) } else { listening.ip() == address.ip() }
        }),
    }
}

/// Whether an IP address is one of this machine: connections to it would come from it. Sends
/// nothing. (Binding to the address does not tell, because `ip_nonlocal_bind` allows any.)
fn is_local(address: IpAddr) -> bool {
    let any: IpAddr = match address {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let source = || {
        let socket = UdpSocket::bind((any, 0))?;
        socket.connect((address, 9))?;
        socket.local_addr()
    };
    address.is_loopback() || source().is_ok_and(|source| source.ip() == address)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(peers: &str, own: &OwnSockets) -> PeerTable {
        let config = Config { peers: peers.parse().unwrap(), ..Config::default() };
        let mut builder = TableBuilder::default();
        let lookup: LookupFn = Arc::new(|_, _| panic!("there are no names"));
        let empty = PeerTable::default();
        let table = builder.update(&config, own.clone(), &empty, &lookup).unwrap();
        assert!(builder.update(&config, own.clone(), &table, &lookup).is_none());
        table
    }

    fn targets(table: &PeerTable) -> Vec<String> {
        table.targets().map(|target| target.address.to_string()).collect()
    }

    #[test]
    fn own_addresses_are_no_targets() {
        let peers = "127.0.0.1:7, 127.0.0.1:8, 192.0.2.1:7, [::1]:7, /run/a:7, /run/b:7";
        let tcp = |text: &str| vec![text.parse().unwrap()];
        let unix = vec!["/run/a/.s.PGSQL.7".into()];
        let own = OwnSockets { tcp: tcp("0.0.0.0:7"), unix };
        let made = table(peers, &own);
        assert!(made.has_peers && made.has_unix && made.sources.len() == 3);
        let others = ["127.0.0.1:8", "192.0.2.1:7", "/run/b/.s.PGSQL.7"];
        let mut found = targets(&made);
        found.retain(|it| it != "[::1]:7");
        assert_eq!(found, others);
        let own = OwnSockets { tcp: tcp("192.0.2.1:7"), unix: Vec::new() };
        assert_eq!(targets(&table("127.0.0.1:7, 192.0.2.1:7", &own)), ["127.0.0.1:7"]);
        assert!(!table("", &own).has_peers);
    }

    #[test]
    fn addresses_are_limited_and_used_once() {
        let config = Config { peers: "many:7,127.0.0.9:7".parse().unwrap(), ..Config::default() };
        let lookup: LookupFn = Arc::new(|_, port| {
            Ok((0..200).map(|it| SocketAddr::new([192, 0, 2, it].into(), port)).collect())
        });
        let (mut builder, mut last) = (TableBuilder::default(), PeerTable::default());
        let deadline = Instant::now() + Duration::from_secs(60);
        while last.targets().count() < ADDRESSES_MAX {
            assert!(Instant::now() < deadline, "the name is not resolved");
            if let Some(next) = builder.update(&config, OwnSockets::default(), &last, &lookup) {
                last = next;
            }
        }
        assert_eq!(last.targets().count(), ADDRESSES_MAX);
        let twice = table("127.0.0.1:7, 127.0.0.1:7", &OwnSockets::default());
        assert_eq!(targets(&twice), ["127.0.0.1:7"]);
        assert_eq!(twice.report().len(), 2);
    }
}
