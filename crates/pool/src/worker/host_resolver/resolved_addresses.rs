//! [`ResolvedAddresses`]: detects that a host name has lost an address.

use std::{
    io,
    net::SocketAddr,
    time::{Duration, Instant},
};

use howdah_connect::Endpoint;

use super::HostResolver;

/// The addresses of a host name at the last lookup, and the time of the next lookup.
#[derive(Debug, Default)]
pub(in crate::worker) struct ResolvedAddresses {
    known: Vec<SocketAddr>,
    next_lookup: Option<Instant>,
}

impl ResolvedAddresses {
    /// Resolves a server's host name if a lookup is due. Returns whether an address has gone away.
    /// A failed lookup, an added address, or another order does not count as a change.
    pub(in crate::worker) fn have_changed(
        &mut self,
        endpoint: &Endpoint,
        names: &HostResolver,
        (ttl, now): (Duration, Instant),
    ) -> bool {
        let Some((host, port)) = host_and_port(endpoint) else { return false };
        if self.next_lookup.is_some_and(|due| now < due) {
            return false;
        }
        self.next_lookup = Some(now + ttl);
        if self.known.is_empty() {
            self.known = names.first_addresses(host, port);
        }
        self.update(names.lookup(host, port))
    }

    fn update(&mut self, found: io::Result<Vec<SocketAddr>>) -> bool {
        let Ok(mut found) = found else { return false };
        found.sort_unstable();
        found.dedup();
        if found.is_empty() {
            return false;
        }
        let before = std::mem::replace(&mut self.known, found);
        // The removed address may be the one in use.
        !before.is_empty() && before.iter().any(|address| !self.known.contains(address))
    }
}

/// Returns the host and port of an endpoint; `None` for a unix socket, or if the address is already
/// known.
pub(super) fn host_and_port(endpoint: &Endpoint) -> Option<(&str, u16)> {
    match endpoint {
        Endpoint::Tcp { host, hostaddr: None, port } => Some((host, *port)),
        _ => None,
    }
}

#[test]
fn lost_address_counts_as_change() {
    let of = |texts: &[&str]| Ok(texts.iter().map(|text| text.parse().unwrap()).collect());
    let mut addresses = ResolvedAddresses::default();
    assert!(
        !addresses.update(of(&["10.0.0.1:5432", "10.0.0.2:5432"])),
        "the first lookup is not a change"
    );
    assert!(!addresses.update(of(&["10.0.0.2:5432", "10.0.0.1:5432"])));
    assert!(!addresses.update(Err(io::ErrorKind::TimedOut.into())));
    assert!(!addresses.update(of(&[])));
    assert!(!addresses.update(of(&["10.0.0.3:5432", "10.0.0.2:5432", "10.0.0.1:5432"])));
    assert!(addresses.update(of(&["10.0.0.3:5432", "10.0.0.2:5432"])));
    let unnamed = Endpoint::Tcp {
        host: "10.0.0.1".to_owned(),
        hostaddr: "10.0.0.1".parse().ok(),
        port: 5432,
    };
    let now = (Duration::ZERO, Instant::now());
    assert!(!addresses.have_changed(&unnamed, &HostResolver::default(), now));
}
