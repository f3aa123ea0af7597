//! [`ProxySource`]: which peers send the PROXY header of a load balancer.

use std::{net::IpAddr, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::hba::Network;

/// Peers whose PROXY headers are trusted: those on unix sockets, or those in one network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxySource {
    /// Connections over a Unix socket.
    Unix,
    /// Connections from these addresses.
    Network(Network),
}

impl ProxySource {
    /// Whether this source covers a connection from `from`; `None` means a Unix socket.
    pub fn matches(&self, from: Option<IpAddr>) -> bool {
        match (self, from) {
            (Self::Unix, None) => true,
            (Self::Network(network), Some(from)) => network.contains(from.to_canonical()),
            _ => false,
        }
    }
}

impl FromStr for ProxySource {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match (text, text.parse::<IpAddr>()) {
            ("unix", _) => Ok(Self::Unix),
            (_, Ok(address)) => Ok(Self::Network(Network::host(address))),
            _ => Network::parse(text).map(Self::Network),
        }
    }
}

impl<'de> Deserialize<'de> for ProxySource {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
    }
}

impl Serialize for ProxySource {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Unix => to.serialize_str("unix"),
            Self::Network(network) => to.collect_str(network),
        }
    }
}

#[test]
fn trusted_sources_match_networks_and_unix() {
    let is = |source: &str, from: &str| {
        source.parse::<ProxySource>().unwrap().matches(from.parse().ok())
    };
    assert!(is("10.0.0.0/8", "10.1.1.1") && !is("10.0.0.0/8", "11.1.1.1"));
    assert!(is("::1", "::1") && is("10.0.0.1", "::ffff:10.0.0.1") && !is("10.0.0.1", "unix"));
    assert!(is("unix", "unix") && !is("unix", "10.0.0.1"));
    assert!("nowhere".parse::<ProxySource>().is_err());
}
