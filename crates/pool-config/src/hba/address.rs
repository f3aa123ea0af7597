//! The address field of a rule: keyword, network, or address with a mask field.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use super::{Networks, tokenizer::HbaToken};

/// An IP network: all addresses that equal `address` in the bits of `mask`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    mask: IpAddr,
}

impl Network {
    /// Returns the network whose addresses share the first `bits` bits of `address`; `None` if the
    /// address has fewer bits.
    pub(super) fn new(address: IpAddr, bits: u32) -> Option<Self> {
        let mask = match address {
            IpAddr::V4(_) => {
                let ones = u32::MAX.checked_shl(32_u32.checked_sub(bits)?).unwrap_or(0);
                Ipv4Addr::from_bits(ones).into()
            }
            IpAddr::V6(_) => {
                let ones = u128::MAX.checked_shl(128_u32.checked_sub(bits)?).unwrap_or(0);
                Ipv6Addr::from_bits(ones).into()
            }
        };
        Some(Self { address, mask })
    }

    /// Returns the network that contains a single address.
    pub(crate) fn host(address: IpAddr) -> Self {
        let mask = match address {
            IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::BROADCAST),
            IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::from_bits(u128::MAX)),
        };
        Self { address, mask }
    }

    /// Whether the network contains an address. An IPv4 network contains no IPv6 address and vice
    /// versa.
    pub fn contains(&self, other: IpAddr) -> bool {
        match (self.address, self.mask, other) {
            (IpAddr::V4(own), IpAddr::V4(mask), IpAddr::V4(other)) => {
                (own.to_bits() ^ other.to_bits()) & mask.to_bits() == 0
            }
            (IpAddr::V6(own), IpAddr::V6(mask), IpAddr::V6(other)) => {
                (own.to_bits() ^ other.to_bits()) & mask.to_bits() == 0
            }
            _ => false,
        }
    }

    /// Parses a network such as `10.0.0.0/8` or `::1/128`.
    ///
    /// # Errors
    ///
    /// The text is not a network, for the returned reason.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not a network such as 10.0.0.0/8");
        let (address, bits) = text.split_once('/').ok_or_else(wrong)?;
        let address = address.parse().map_err(|_| wrong())?;
        let bits = bits.parse().map_err(|_| wrong())?;
        Self::new(address, bits).ok_or_else(|| format!("{text:?}: the address has fewer bits"))
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bits = match self.mask {
            IpAddr::V4(mask) => mask.to_bits().count_ones(),
            IpAddr::V6(mask) => mask.to_bits().count_ones(),
        };
        write!(f, "{}/{bits}", self.address)
    }
}

/// The client addresses that a rule matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RuleAddresses {
    /// All addresses.
    All,
    /// The addresses of this machine.
    SameHost,
    /// All addresses of the networks in which this machine has an address.
    SameNet,
    In(Network),
}

impl RuleAddresses {
    /// Parses an address field, and a mask field if needed. Also returns the remaining fields.
    pub(super) fn parse(fields: &[Vec<HbaToken>]) -> Result<(Self, &[Vec<HbaToken>]), String> {
        let [field, rest @ ..] = fields else {
            return Err("an address is missing".to_owned());
        };
        let [token] = &field[..] else {
            return Err("one address is expected: write a rule for each".to_owned());
        };
        for (keyword, addresses) in
            [("all", Self::All), ("samehost", Self::SameHost), ("samenet", Self::SameNet)]
        {
            if token.is_keyword(keyword) {
                return Ok((addresses, rest));
            }
        }
        let text = token.text.as_str();
        if text.contains('/') {
            return Ok((Self::In(Network::parse(text)?), rest));
        }
        let Ok(address) = text.parse() else {
            return Err(format!(
                "{text:?} is not an address: host names are not supported; write a network such as \
                 10.0.0.0/8, all, samehost or samenet"
            ));
        };
        let missing = || format!("{text} needs a mask: write a network such as {text}/32");
        let [field, rest @ ..] = rest else { return Err(missing()) };
        let [token] = &field[..] else { return Err(missing()) };
        let mask: IpAddr = token.text.parse().map_err(|_| missing())?;
        if mask.is_ipv4() != IpAddr::is_ipv4(&address) {
            return Err(format!("{text} and its mask {mask} are of different address families"));
        }
        Ok((Self::In(Network { address, mask }), rest))
    }

    pub(super) fn contains(&self, address: IpAddr, networks: &Networks) -> bool {
        match self {
            Self::All => true,
            Self::SameHost => networks.contains_host(address),
            Self::SameNet => networks.contains_near(address),
            Self::In(network) => network.contains(address),
        }
    }
}

#[test]
fn network_contains_addresses_with_same_prefix() {
    let has = |network: &str, address: &str| {
        Network::parse(network).unwrap().contains(address.parse().unwrap())
    };
    for (network, address, expected) in [
        ("10.0.0.0/8", "10.255.0.1", true),
        ("10.0.0.0/8", "11.0.0.1", false),
        ("10.1.2.3/8", "10.9.9.9", true),
        ("0.0.0.0/0", "1.2.3.4", true),
        ("0.0.0.0/0", "::1", false),
        ("127.0.0.1/32", "127.0.0.1", true),
        ("127.0.0.1/32", "127.0.0.2", false),
        ("::/0", "fe80::1", true),
        ("fe80::/10", "febf::1", true),
        ("fe80::/10", "fec0::1", false),
        ("::1/128", "::1", true),
    ] {
        assert_eq!(has(network, address), expected, "{network} {address}");
    }
    for wrong in ["10.0.0.0", "10.0.0.0/33", "::/129", "10.0.0/8", "a/8", "10.0.0.0/-1", "/"] {
        assert!(Network::parse(wrong).is_err(), "{wrong}");
    }
}
