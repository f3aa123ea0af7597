//! [`Addresses`]: whether a server's name has come to mean another place.

use std::{
    io,
    net::SocketAddr,
    time::{Duration, Instant},
};

use howdah_connect::Endpoint;

use super::Names;

/// The addresses of a name, as of the last look-up.
#[derive(Debug, Default)]
pub(in crate::worker) struct Addresses {
    known: Vec<SocketAddr>,
    due: Option<Instant>,
}

impl Addresses {
    /// Looks a server's name up, if it has one and it is time. Gives whether it means another place than
    /// before: a name that cannot be looked up, or has the same addresses in another order, does not.
    pub(in crate::worker) fn have_changed(
        &mut self,
        endpoint: &Endpoint,
        names: &Names,
        (ttl, now): (Duration, Instant),
    ) -> bool {
        let Some((host, port)) = name_of(endpoint) else { return false };
        if self.due.is_some_and(|due| now < due) {
            return false;
        }
        self.due = Some(now + ttl);
        if self.known.is_empty() {
            self.known = names.first_found(host, port);
        }
        self.take(names.look_up(host, port))
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

/// Host and port of a server that is known by a name.
pub(super) fn name_of(endpoint: &Endpoint) -> Option<(&str, u16)> {
    match endpoint {
        Endpoint::Tcp { host, hostaddr: None, port } => Some((host, *port)),
        _ => None,
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
    let now = (Duration::ZERO, Instant::now());
    assert!(!addresses.have_changed(&unnamed, &Names::default(), now));
}
