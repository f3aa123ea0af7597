//! Finds free TCP ports for servers.

use std::{
    collections::hash_map::RandomState,
    fs,
    hash::BuildHasher as _,
    net::{Ipv4Addr, TcpListener},
    ops::Range,
};

use crate::error::ClusterError;

/// Maximum number of random ports to try.
const TRIES: u32 = 200;

/// Finds a port on 127.0.0.1 that is currently free.
///
/// The port is outside the kernel's range of ephemeral ports, unless that leaves too few. Within
/// that range, a client that connects while the server is down can get the server's port as its
/// local port. The client is then connected to itself, and the server cannot bind the port again.
pub(crate) fn free() -> Result<u16, ClusterError> {
    let range = below_ephemeral(&fs::read_to_string(EPHEMERAL).unwrap_or_default());
    (0..TRIES)
        .map(|_| range.start + (random() % u64::from(range.end - range.start)) as u16)
        .find(|port| is_free(*port))
        .ok_or(ClusterError::NoPort { tries: TRIES })
}

/// Whether a server could listen on the port at the moment.
pub(crate) fn is_free(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
}

/// Returns a random number that avoids collisions between concurrent processes, but is not secret.
pub(crate) fn random() -> u64 {
    RandomState::new().hash_one(std::process::id())
}

/// A file with two numbers: the first and the last ephemeral port (ip(7)).
const EPHEMERAL: &str = "/proc/sys/net/ipv4/ip_local_port_range";

fn below_ephemeral(line: &str) -> Range<u16> {
    const FLOOR: u16 = 10_240; // well-known services live below
    let first = line.split_whitespace().next().and_then(|first| first.parse().ok());
    match first.unwrap_or(32_768) {
        first if first > FLOOR + 1_000 => FLOOR..first,
        // All ports are configured as ephemeral, so any will do.
        _ => FLOOR..u16::MAX,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_below_the_ephemeral_range() {
        assert_eq!(below_ephemeral("32768\t60999\n"), 10_240..32_768);
        assert_eq!(below_ephemeral(""), 10_240..32_768);
        assert_eq!(below_ephemeral("1024 65535"), 10_240..65_535);
    }

    #[test]
    fn bound_port_is_not_free() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        assert!(!is_free(listener.local_addr().unwrap().port()));
    }
}
