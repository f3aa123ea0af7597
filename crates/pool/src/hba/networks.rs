//! [`Networks`]: the machine's own addresses, for `samehost` and `samenet`.

use std::{
    fs,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use super::address::Network;

/// The machine's own addresses, and the networks that these are in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Networks {
    own: Vec<Network>,
    near: Vec<Network>,
}

impl Networks {
    /// Those of now, as the kernel tells: `/proc/net/fib_trie` for IPv4, `/proc/net/if_inet6` for
    /// IPv6. What cannot be read is not there.
    pub fn of_machine() -> Self {
        let text = |path| fs::read_to_string(path).unwrap_or_default();
        let mut networks = Self::default();
        networks.add_v4(&text("/proc/net/fib_trie"));
        networks.add_v6(&text("/proc/net/if_inet6"));
        networks
    }

    /// Leaves of the trie are an address and below it what it is:
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
                let mut words = rest.split_whitespace();
                let bits = words.next().and_then(|bits| bits.parse().ok());
                let network = bits.and_then(|bits| Network::new(address.into(), bits));
                let kind = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
                match kind {
                    (_, "LOCAL") => self.own.extend(network),
                    ("link", "UNICAST") => self.near.extend(network),
                    _ => {}
                }
            }
        }
    }

    /// `address interface bits scope flags name`, in hexadecimal.
    fn add_v6(&mut self, text: &str) {
        for line in text.lines() {
            let mut words = line.split_whitespace();
            let address = words.next().and_then(|word| u128::from_str_radix(word, 16).ok());
            let bits = words.nth(1).and_then(|word| u32::from_str_radix(word, 16).ok());
            let (Some(address), Some(bits)) = (address, bits) else { continue };
            let address: IpAddr = Ipv6Addr::from_bits(address).into();
            self.own.push(Network::only(address));
            self.near.extend(Network::new(address, bits));
        }
    }

    pub(super) fn are_of_host(&self, address: IpAddr) -> bool {
        self.own.iter().any(|own| own.has(address))
    }

    pub(super) fn are_near(&self, address: IpAddr) -> bool {
        self.are_of_host(address) || self.near.iter().any(|near| near.has(address))
    }
}

#[test]
fn the_kernels_tables_are_read() {
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
        assert_eq!(networks.are_of_host(address), is_own, "{address}");
        assert_eq!(networks.are_near(address), is_near, "{address}");
    }
    assert!(Networks::of_machine().are_of_host(Ipv4Addr::LOCALHOST.into()), "this one has lo");
}
