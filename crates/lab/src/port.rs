//! Free TCP ports.

use std::{
    collections::hash_map::RandomState,
    fs,
    hash::BuildHasher as _,
    net::{Ipv4Addr, TcpListener},
    ops::Range,
};

use crate::error::Error;

/// How many ports are tried before we say that there is none.
const TRIES: u32 = 200;

/// A port on 127.0.0.1 on which nobody listens at the moment.
///
/// It lies below the range from which the kernel serves outgoing connections. In that range, a
/// client that knocks while the server is down can be given the server's own port as its local end:
/// then it is connected to itself, and the server cannot have its port back.
pub(crate) fn free() -> Result<u16, Error> {
    let range = below_ephemeral(&fs::read_to_string(EPHEMERAL).unwrap_or_default());
    (0..TRIES)
        .map(|_| range.start + (random() % u64::from(range.end - range.start)) as u16)
        .find(|port| is_free(*port))
        .ok_or(Error::NoPort { tries: TRIES })
}

/// Whether a server could listen on the port now.
pub(crate) fn is_free(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
}

/// A random number, good enough to keep concurrent processes out of each other's way.
pub(crate) fn random() -> u64 {
    RandomState::new().hash_one(std::process::id())
}

/// Two numbers: first and last port for outgoing connections (ip(7)).
const EPHEMERAL: &str = "/proc/sys/net/ipv4/ip_local_port_range";

fn below_ephemeral(line: &str) -> Range<u16> {
    const FLOOR: u16 = 10_240; // well-known services live below
    let first = line.split_whitespace().next().and_then(|first| first.parse().ok());
    match first.unwrap_or(32_768) {
        first if first > FLOOR + 1_000 => FLOOR..first,
        // Somebody made all ports ephemeral: there is nothing better than any of them.
        _ => FLOOR..u16::MAX,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_lie_below_those_of_outgoing_connections() {
        assert_eq!(below_ephemeral("32768\t60999\n"), 10_240..32_768);
        assert_eq!(below_ephemeral(""), 10_240..32_768);
        assert_eq!(below_ephemeral("1024 65535"), 10_240..65_535);
    }

    #[test]
    fn a_port_with_a_listener_is_not_free() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        assert!(!is_free(listener.local_addr().unwrap().port()));
    }
}
