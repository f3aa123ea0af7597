//! [`Addresses`]: whether a server's name has come to mean another place.

use std::{
    io,
    net::{SocketAddr, ToSocketAddrs as _},
    time::{Duration, Instant},
};

use howdah_connect::Endpoint;

/// Between two look-ups.
const EVERY: Duration = Duration::from_secs(15);

/// The addresses of a name, as of the last look-up.
#[derive(Debug, Default)]
pub(super) struct Addresses {
    known: Vec<SocketAddr>,
    due: Option<Instant>,
}

impl Addresses {
    /// Looks a server's name up, if it has one and it is time. Gives whether it means another place than
    /// before: a name that cannot be looked up, or has the same addresses in another order, does not.
    pub(super) fn have_changed(&mut self, endpoint: &Endpoint, now: Instant) -> bool {
        let Endpoint::Tcp { host, hostaddr: None, port } = endpoint else { return false };
        if self.due.is_some_and(|due| now < due) {
            return false;
        }
        self.due = Some(now + EVERY);
        self.take((host.as_str(), *port).to_socket_addrs().map(Iterator::collect))
    }

    fn take(&mut self, found: io::Result<Vec<SocketAddr>>) -> bool {
        let Ok(mut found) = found else { return false };
        found.sort_unstable();
        found.dedup();
        if found.is_empty() {
            return false;
        }
        let before = std::mem::replace(&mut self.known, found);
        // Of several, one that goes may be the one that is used.
        !before.is_empty() && before.iter().any(|address| !self.known.contains(address))
    }
}

#[test]
fn a_name_that_loses_an_address_means_another_place() {
    let of = |texts: &[&str]| Ok(texts.iter().map(|text| text.parse().unwrap()).collect());
    let mut addresses = Addresses::default();
    assert!(!addresses.take(of(&["10.0.0.1:5432", "10.0.0.2:5432"])), "the first is no change");
    assert!(!addresses.take(of(&["10.0.0.2:5432", "10.0.0.1:5432"])));
    assert!(!addresses.take(Err(io::ErrorKind::TimedOut.into())));
    assert!(!addresses.take(of(&[])));
    assert!(!addresses.take(of(&["10.0.0.3:5432", "10.0.0.2:5432", "10.0.0.1:5432"])));
    assert!(addresses.take(of(&["10.0.0.3:5432", "10.0.0.2:5432"])));
    let unnamed = Endpoint::Tcp {
        host: "10.0.0.1".to_owned(),
        hostaddr: "10.0.0.1".parse().ok(),
        port: 5432,
    };
    assert!(!addresses.have_changed(&unnamed, Instant::now()));
}
