//! [`SenderNetwork`]: an address or a network of permitted senders.

use std::{fmt, net::IpAddr, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, de::Error as _};

/// An address or a network: `192.168.1.7`, `10.0.0.0/8`, `2001:db8::/32`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct SenderNetwork {
    address: IpAddr,
    /// Number of leading bits that a sender's address must share with `address`.
    prefix: u8,
}

/// The reason why a text is not a [`SenderNetwork`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SenderNetworkError {
    /// The part before the slash is not an address, or the part after it not a number of bits.
    #[error("{text:?} is not an address or network: write 192.168.1.7, 10.0.0.0/8 or ::1")]
    Syntax {
        /// The whole text.
        text: String,
    },
    /// The address has bits set that the prefix does not cover, so one of the two is wrong.
    #[error("{text:?} has bits set beyond its prefix: the network is {network}")]
    HostBits {
        /// The whole text.
        text: String,
        /// The network that contains the address.
        network: SenderNetwork,
    },
}

impl SenderNetwork {
    /// Whether the network contains an address. An IPv4 address that was mapped to IPv6, as on a
    /// socket for both, counts as the IPv4 address.
    pub fn contains(&self, sender: IpAddr) -> bool {
        let sender = sender.to_canonical();
        sender.is_ipv4() == self.address.is_ipv4()
            && (bits(sender) ^ bits(self.address)) & self.mask() == 0
    }

    fn mask(&self) -> u128 {
        u128::MAX.checked_shl(128 - u32::from(self.prefix)).unwrap_or_default()
    }
}

/// Returns the bits of an address, the first of them in the highest bit.
fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(u32::from(address)) << 96,
        IpAddr::V6(address) => u128::from(address),
    }
}

/// Returns the number of bits of an address.
fn width(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

impl From<SenderNetwork> for String {
    fn from(network: SenderNetwork) -> Self {
        network.to_string()
    }
}

impl FromStr for SenderNetwork {
    type Err = SenderNetworkError;

    fn from_str(text: &str) -> Result<Self, SenderNetworkError> {
        let syntax = || SenderNetworkError::Syntax { text: text.to_owned() };
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let written: IpAddr = address.parse().map_err(|_| syntax())?;
        let prefix = match prefix {
            // `+8` would be a number, too.
            Some(prefix) if !prefix.bytes().all(|byte| byte.is_ascii_digit()) => {
                return Err(syntax());
            }
            Some(prefix) => prefix.parse().map_err(|_| syntax())?,
            None => width(written),
        };
        if prefix > width(written) {
            return Err(syntax());
        }
        let address = written.to_canonical();
        let prefix = match (written.is_ipv6() && address.is_ipv4(), prefix) {
            (false, prefix) => prefix,
            (true, 96..) => prefix - 96,
            // A network of mapped addresses that contains others, too.
            (true, _) => return Err(syntax()),
        };
        let network = Self { address, prefix };
        let first = match bits(address) & network.mask() {
            bits if address.is_ipv4() => IpAddr::from(((bits >> 96) as u32).to_be_bytes()),
            bits => IpAddr::from(bits.to_be_bytes()),
        };
        if first != address {
            let network = Self { address: first, prefix };
            return Err(SenderNetworkError::HostBits { text: text.to_owned(), network });
        }
        Ok(network)
    }
}

impl TryFrom<String> for SenderNetwork {
    type Error = SenderNetworkError;

    fn try_from(text: String) -> Result<Self, SenderNetworkError> {
        text.parse()
    }
}

impl fmt::Display for SenderNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.prefix == width(self.address) {
            write!(f, "{}", self.address)
        } else {
            write!(f, "{}/{}", self.address, self.prefix)
        }
    }
}

/// Reads a list of networks, which must not be empty: an empty list could mean all senders or none.
pub(super) fn list<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<SenderNetwork>, D::Error> {
    let networks = Vec::<SenderNetwork>::deserialize(from)?;
    if networks.is_empty() {
        return Err(D::Error::custom("allow is empty: list networks, or remove it to allow all"));
    }
    Ok(networks)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(text: &str) -> SenderNetwork {
        text.parse().unwrap()
    }

    #[test]
    fn network_contains_addresses_with_its_prefix() {
        let cases = [
            ("10.0.0.0/8", "10.255.0.1", true),
            ("10.0.0.0/8", "11.0.0.1", false),
            ("10.0.0.0/8", "::ffff:10.1.2.3", true),
            ("192.168.1.7", "192.168.1.7", true),
            ("192.168.1.7", "192.168.1.6", false),
            ("0.0.0.0/0", "203.0.113.9", true),
            ("0.0.0.0/0", "2001:db8::1", false),
            ("::/0", "2001:db8::1", true),
            ("::/0", "203.0.113.9", false),
            ("2001:db8::/33", "2001:db8:7fff::1", true),
            ("2001:db8::/33", "2001:db8:8000::1", false),
            ("::1", "::1", true),
            ("::ffff:10.0.0.0/104", "10.9.9.9", true),
        ];
        for (written, sender, contained) in cases {
            assert_eq!(
                network(written).contains(sender.parse().unwrap()),
                contained,
                "{written} {sender}"
            );
        }
    }

    #[test]
    fn invalid_networks_are_errors() {
        for text in ["", "10.0.0.0/33", "::/129", "10.0.0/8", "10.0.0.0/+8", "10.0.0.0/", "a/8"] {
            let error = text.parse::<SenderNetwork>().unwrap_err();
            assert_eq!(error, SenderNetworkError::Syntax { text: text.to_owned() });
        }
        let error = "10.1.2.3/8".parse::<SenderNetwork>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "\"10.1.2.3/8\" has bits set beyond its prefix: the network is 10.0.0.0/8"
        );
        for text in ["10.0.0.0/8", "192.168.1.7", "2001:db8::/33", "0.0.0.0/0"] {
            assert_eq!(network(text).to_string(), text);
        }
    }
}
