//! [`Networks`]: the machine's own addresses, for `samehost` and `samenet`.

use std::{
    fs,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use super::address::Network;

/// The machine's own addresses and their networks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Networks {
    host_addresses: Vec<Network>,
    host_networks: Vec<Network>,
}

impl Networks {
    /// Reads the current addresses from the kernel: `/proc/net/fib_trie` for IPv4,
    /// `/proc/net/if_inet6` for IPv6. Unreadable files count as empty.
    pub fn from_kernel() -> Self {
        let text = |path| fs::read_to_string(path).unwrap_or_default();
        let mut networks = Self::default();
        networks.add_v4(&text("/proc/self/net/fib_trie"));
        networks.add_v6(&text("/proc/self/net/if_inet6"));
        networks
    }

    /// Reads `/proc/net/fib_trie`. A leaf of the trie is an address, with its type on the next
    /// line:
    ///
    /// ```text
    ///     |-- 10.1.0.0
    ///        /16 link UNICAST
    ///     |-- 10.1.2.3
    ///        /32 host LOCAL
    /// ```
    fn add_v4(&mut self, text: &str) {
        let mut leaf: Option<Ipv4Addr> = None;
        for line in text.lines().map(str::trim) {
            if let Some(address) = line.strip_prefix("|-- ") {
                leaf = address.parse().ok();
            } else if let (Some(address), Some(rest)) = (leaf, line.strip_prefix('/')) {
                let mut fields = rest.split_whitespace();
                let bits = fields.next().and_then(|bits| bits.parse().ok());
                let network = bits.and_then(|bits| Network::new(address.into(), bits));
                let kind = (fields.next().unwrap_or_default(), fields.next().unwrap_or_default());
                match kind {
                    (_, "LOCAL") => self.host_addresses.extend(network),
                    ("link", "UNICAST") => self.host_networks.extend(network),
                    _ => {}
                }
            }
        }
    }

    /// Reads `/proc/net/if_inet6`. A line is `address interface bits scope flags name`, in
    /// hexadecimal.
    fn add_v6(&mut self, text: &str) {
        for line in text.lines() {
            let mut fields = line.split_whitespace();
            let address = fields.next().and_then(|field| u128::from_str_radix(field, 16).ok());
            let bits = fields.nth(1).and_then(|field| u32::from_str_radix(field, 16).ok());
            let (Some(address), Some(bits)) = (address, bits) else { continue };
            let address: IpAddr = Ipv6Addr::from_bits(address).into();
            self.host_addresses.push(Network::host(address));
            self.host_networks.extend(Network::new(address, bits));
        }
    }

    pub(super) fn contains_host(&self, address: IpAddr) -> bool {
        self.host_addresses.iter().any(|own| own.contains(address))
    }

    pub(super) fn contains_near(&self, address: IpAddr) -> bool {
        self.contains_host(address) || self.host_networks.iter().any(|near| near.contains(address))
    }
}

#[test]
fn kernel_tables_are_parsed() {
    let mut networks = Networks::default();
    networks.add_v4(
        "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 0.0.0.0\n        /0 universe UNICAST\n     \
         |-- 10.1.0.0\n        /16 link UNICAST\n     |-- 10.1.2.3\n        /32 host LOCAL\n     \
         |-- 10.1.255.255\n        /32 link BROADCAST\n     |-- 127.0.0.0\n        /8 host LOCAL\n",
    );
    networks.add_v6(
        "00000000000000000000000000000001 01 80 10 80       lo\n\
         fe80000000000000021122fffe334455 02 40 20 80     eth0\nbroken\n",
    );
    for (address, is_own, is_near) in [
        ("10.1.2.3", true, true),
        ("10.1.9.9", false, true),
        ("10.2.0.1", false, false),
        ("127.3.4.5", true, true),
        ("8.8.8.8", false, false),
        ("::1", true, true),
        ("fe80::211:22ff:fe33:4455", true, true),
        ("fe80::1", false, true),
        ("2001:db8::1", false, false),
    ] {
        let address = address.parse().unwrap();
        assert_eq!(networks.contains_host(address), is_own, "{address}");
        assert_eq!(networks.contains_near(address), is_near, "{address}");
    }
    assert!(
        Networks::from_kernel().contains_host(Ipv4Addr::LOCALHOST.into()),
        "the loopback interface exists"
    );
}
