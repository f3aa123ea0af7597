//! [`PeerList`]: the poolers that share the address of this one, to which CancelRequests with
//! unknown keys are forwarded.

use std::{fmt, str::FromStr};

use howdah_connect::Endpoint;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use crate::host_and_port;

/// Maximum number of peers.
pub const PEERS_MAX: usize = 16;

/// Largest `peer_id` of PgBouncer, whose cancel keys have 14 bits for it.
const OWN_NUMBER_MAX: u16 = 16_383;

/// The address of a peer: a host with an optional port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerAddress {
    /// A host name, an IP address, the directory of a unix socket, or a name in Linux's abstract
    /// namespace that starts with `@`.
    pub host: String,
    /// The port; that of `[pool.listen]` if `None`.
    pub port: Option<u16>,
}

impl PeerAddress {
    /// Returns the address to connect to; `port` is that of `[pool.listen]`.
    pub fn endpoint(&self, port: u16) -> Endpoint {
        let (host, port) = (self.host.as_str(), self.port.unwrap_or(port));
        if host.starts_with(['/', '@']) {
            Endpoint::in_directory(host, port)
        } else {
            Endpoint::Tcp { host: host.to_owned(), hostaddr: host.parse().ok(), port }
        }
    }
}

impl FromStr for PeerAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (host, port) = host_and_port(text, 0)?;
        // With another default, the result differs if the text has no port.
        let has_port = host_and_port(text, 1)?.1 == port;
        if has_port && port == 0 {
            return Err(format!("{text:?} is not a host: the port must be from 1 to 65535"));
        }
        Ok(Self { host: host.to_owned(), port: has_port.then_some(port) })
    }
}

impl fmt::Display for PeerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.host, self.port) {
            (host, Some(port)) if host.contains(':') => write!(f, "[{host}]:{port}"),
            (host, Some(port)) => write!(f, "{host}:{port}"),
            (host, None) => f.write_str(host),
        }
    }
}

/// The peers, by number. One of them can be this pooler itself, so that all poolers can have the
/// same list.
///
/// In a `howdah.toml` the numbers are positions in the list, from 1. Those of a `pgbouncer.ini`
/// only appear on the console, so two lists with the same addresses are equal.
#[derive(Clone, Debug, Default)]
pub struct PeerList {
    /// The number of this pooler, whose address is not used; 0 if none is known by its number.
    own_number: u16,
    /// In the order of their numbers, each of which occurs once.
    peers: Vec<(u16, PeerAddress)>,
}

impl PeerList {
    /// Returns all peers with their numbers, including this pooler if it is in the list.
    pub fn all(&self) -> impl Iterator<Item = (u16, &PeerAddress)> {
        self.peers.iter().map(|(number, address)| (*number, address))
    }

    /// Returns the peers that do not have this pooler's number. One of the addresses can still be
    /// this pooler's.
    pub fn others(&self) -> impl Iterator<Item = (u16, &PeerAddress)> {
        self.all().filter(|(number, _)| *number != self.own_number)
    }

    /// Whether there are no other peers.
    pub fn is_empty(&self) -> bool {
        self.others().next().is_none()
    }

    /// Returns the number of this pooler, 0 if none is set.
    pub(crate) fn own_number(&self) -> u16 {
        self.own_number
    }

    /// Parses and sets the number of this pooler: `peer_id` of a `pgbouncer.ini`.
    pub(crate) fn set_own_number(&mut self, text: &str) -> Result<(), String> {
        let number = text.trim().parse().ok().filter(|number| *number <= OWN_NUMBER_MAX);
        let wrong = || format!("{text:?} is not an integer from 0 to {OWN_NUMBER_MAX}");
        self.own_number = number.ok_or_else(wrong)?;
        Ok(())
    }

    /// Sets the address of the peer with this number.
    pub(crate) fn insert(&mut self, number: u16, address: PeerAddress) {
        match self.peers.binary_search_by_key(&number, |(number, _)| *number) {
            Ok(at) => self.peers[at].1 = address,
            Err(at) => self.peers.insert(at, (number, address)),
        }
    }

    /// Removes all peers.
    pub(crate) fn clear(&mut self) {
        self.peers.clear();
    }

    /// Returns the rule that the list violates, if any; `port` is that of `[pool.listen]`.
    pub(crate) fn error(&self, port: u16) -> Option<String> {
        if self.others().count() > PEERS_MAX {
            return Some(format!("at most {PEERS_MAX} peers are supported"));
        }
        let mut others = self.others().map(|(_, address)| address);
        let address = others.find(|address| address.port.is_none() && port == 0)?;
        Some(format!("{:?} needs a port, because listen.port is 0", address.host))
    }
}

impl PartialEq for PeerList {
    fn eq(&self, other: &Self) -> bool {
        let addresses =
            |list: &Self| -> Vec<_> { list.others().map(|(_, address)| address.clone()).collect() };
        addresses(self) == addresses(other)
    }
}

impl FromIterator<PeerAddress> for PeerList {
    fn from_iter<I: IntoIterator<Item = PeerAddress>>(addresses: I) -> Self {
        Self { own_number: 0, peers: (1..).zip(addresses).collect() }
    }
}

/// Parses addresses that are separated by commas.
impl FromStr for PeerList {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
        items.take(usize::from(u16::MAX)).map(str::parse).collect()
    }
}

impl fmt::Display for PeerList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts: Vec<_> = self.others().map(|(_, address)| address.to_string()).collect();
        f.write_str(&texts.join(", "))
    }
}

impl<'de> Deserialize<'de> for PeerList {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let texts = Vec::<String>::deserialize(from)?;
        if texts.len() > usize::from(u16::MAX) {
            return Err(D::Error::custom(format!("at most {PEERS_MAX} peers are supported")));
        }
        texts.iter().map(|text| text.parse()).collect::<Result<_, _>>().map_err(D::Error::custom)
    }
}

impl Serialize for PeerList {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(self.others().map(|(_, address)| address.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_is_host_with_optional_port() {
        let parsed = |text: &str| {
            let address = text.parse::<PeerAddress>().unwrap();
            assert_eq!(address.to_string().parse(), Ok(address.clone()), "{text}");
            address.endpoint(6432).to_string()
        };
        assert_eq!(parsed("pool-1"), "pool-1:6432");
        assert_eq!(parsed("pool-1:7"), "pool-1:7");
        assert_eq!(parsed("10.0.0.1:6433"), "10.0.0.1:6433");
        assert_eq!(parsed("[::1]:7"), "[::1]:7");
        assert_eq!(parsed("fd00::"), "[fd00::]:6432");
        assert_eq!(parsed("fd00::0"), "[fd00::0]:6432");
        assert_eq!(parsed("/run/pool:7"), "/run/pool/.s.PGSQL.7");
        assert_eq!(parsed("@pool"), "@pool/.s.PGSQL.6432");
        for wrong in ["", ":5", "a:0", "a:00", "[::1]:0", "a:x", "a b:1", "a:70000"] {
            assert!(wrong.parse::<PeerAddress>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn own_number_is_not_among_others() {
        let mut list: PeerList = "a:1, b:2,c:3".parse().unwrap();
        list.set_own_number("2").unwrap();
        assert_eq!(list.to_string(), "a:1, c:3");
        assert_eq!((list.all().count(), list.own_number()), (3, 2));
        assert_eq!(list, "a:1,c:3".parse().unwrap());
        assert!(list.set_own_number("16384").is_err() && list.set_own_number("x").is_err());
        list.insert(3, "d:4".parse().unwrap());
        list.insert(9, "e:5".parse().unwrap());
        assert_eq!(list.to_string(), "a:1, d:4, e:5");
    }

    #[test]
    fn list_has_limit_and_needs_ports() {
        let list = |count: usize| (0..count).map(|at| format!("h{at}:1").parse().unwrap());
        assert_eq!(list(PEERS_MAX).collect::<PeerList>().error(6432), None);
        assert!(list(PEERS_MAX + 1).collect::<PeerList>().error(6432).is_some());
        let without_port: PeerList = "a".parse().unwrap();
        assert_eq!(without_port.error(6432), None);
        assert!(without_port.error(0).unwrap().contains("listen.port"));
    }
}
