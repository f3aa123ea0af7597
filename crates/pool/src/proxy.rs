//! The PROXY protocol: what a load balancer says of the client that it brings.
//!
//! ```text
//! PROXY TCP4 192.0.2.7 10.0.0.1 4711 6432\r\n                      version 1
//! \r\n\r\n\0\r\nQUIT\n  21  11  000c  source dest. port port          version 2
//! ```
//!
//! A receiver must not guess: who is trusted begins with a header, and who is not has none. Source: "The
//! PROXY protocol, versions 1 & 2", haproxy.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    str::FromStr,
};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::hba::Network;

/// Whom we believe what they say of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxySource {
    /// Who comes by a unix socket.
    Unix,
    /// Who comes from there.
    Network(Network),
}

impl ProxySource {
    /// Whether it is about a connection from there; `None` for a unix socket.
    pub(crate) fn is(&self, from: Option<IpAddr>) -> bool {
        match (self, from) {
            (Self::Unix, None) => true,
            (Self::Network(network), Some(from)) => network.has(from.to_canonical()),
            _ => false,
        }
    }
}

impl FromStr for ProxySource {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match (text, text.parse::<IpAddr>()) {
            ("unix", _) => Ok(Self::Unix),
            (_, Ok(address)) => Ok(Self::Network(Network::only(address))),
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

/// A header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Its bytes.
    pub bytes: usize,
    /// Where the client comes from; `None` if the connection is the balancer's own, or of a kind that has
    /// no address.
    pub source: Option<SocketAddr>,
}

/// Bytes that are no header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a header of the PROXY protocol has to come first")]
pub struct NoHeader;

/// What version 2 begins with.
const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";

/// Longest header of version 1, its end of line included.
const LINE_BYTES_MAX: usize = 107;

/// Longest part of a header of version 2 behind its first 16 bytes: addresses have 216 at most, and what
/// balancers add some hundred.
const TAIL_BYTES_MAX: usize = 4096;

/// Reads the header in front; `None` while not all of it is there.
///
/// # Errors
///
/// There is none.
pub fn parse(input: &[u8]) -> Result<Option<Header>, NoHeader> {
    let begins = |start: &[u8]| {
        let both = start.len().min(input.len());
        input[..both] == start[..both]
    };
    if begins(SIGNATURE) {
        binary(input)
    } else if begins(b"PROXY ") {
        line(input)
    } else {
        Err(NoHeader)
    }
}

/// Version 1: one line of text.
fn line(input: &[u8]) -> Result<Option<Header>, NoHeader> {
    let seen = &input[..input.len().min(LINE_BYTES_MAX)];
    let Some(end) = memchr::memmem::find(seen, b"\r\n") else {
        return if seen.len() < LINE_BYTES_MAX { Ok(None) } else { Err(NoHeader) };
    };
    let text = std::str::from_utf8(&seen[..end]).map_err(|_| NoHeader)?;
    let words: Vec<_> = text.split(' ').collect();
    let source = match words[..] {
        ["PROXY", "UNKNOWN", ..] => None,
        ["PROXY", family @ ("TCP4" | "TCP6"), source, dest, source_port, dest_port] => {
            let address = |text: &str| text.parse::<IpAddr>().map_err(|_| NoHeader);
            let port = |text: &str| text.parse::<u16>().map_err(|_| NoHeader);
            let (source, dest) = (address(source)?, address(dest)?);
            let is_v4 = family == "TCP4";
            if source.is_ipv4() != is_v4 || dest.is_ipv4() != is_v4 {
                return Err(NoHeader);
            }
            port(dest_port)?;
            Some(SocketAddr::new(source, port(source_port)?))
        }
        _ => return Err(NoHeader),
    };
    Ok(Some(Header { bytes: end + 2, source }))
}

/// Version 2: signature, version and command, family, length, addresses, and what is passed over.
fn binary(input: &[u8]) -> Result<Option<Header>, NoHeader> {
    let Some((&[_, _, _, _, _, _, _, _, _, _, _, _, command, family, a, b], rest)) =
        input.split_first_chunk::<16>()
    else {
        return Ok(None);
    };
    let length = usize::from(u16::from_be_bytes([a, b]));
    if length > TAIL_BYTES_MAX {
        return Err(NoHeader);
    }
    let Some(tail) = rest.get(..length) else { return Ok(None) };
    let port = |at: usize| -> Option<u16> {
        Some(u16::from_be_bytes(tail.get(at..at + 2)?.try_into().ok()?))
    };
    let source = match (command, family) {
        // The balancer's own.
        (0x20, _) => None,
        (0x21, 0x11) => {
            let address: [u8; 4] =
                tail.get(..12).ok_or(NoHeader)?[..4].try_into().or(Err(NoHeader))?;
            Some((IpAddr::V4(Ipv4Addr::from(address)), port(8).ok_or(NoHeader)?))
        }
        (0x21, 0x21) => {
            let address: [u8; 16] =
                tail.get(..36).ok_or(NoHeader)?[..16].try_into().or(Err(NoHeader))?;
            Some((IpAddr::V6(Ipv6Addr::from(address)), port(32).ok_or(NoHeader)?))
        }
        // Datagrams, unix sockets, unknown ones.
        (0x21, _) => None,
        _ => return Err(NoHeader),
    };
    let source = source.map(|(address, port)| SocketAddr::new(address, port));
    Ok(Some(Header { bytes: 16 + length, source }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(input: &[u8]) -> Result<Option<(usize, String)>, NoHeader> {
        let text = |source: Option<SocketAddr>| source.map_or("-".into(), |it| it.to_string());
        parse(input).map(|header| header.map(|header| (header.bytes, text(header.source))))
    }

    fn v2(command: u8, family: u8, tail: &[u8]) -> Vec<u8> {
        let length = u16::try_from(tail.len()).unwrap().to_be_bytes();
        [&SIGNATURE[..], &[command, family], &length, tail].concat()
    }

    #[test]
    fn both_versions_tell_where_a_client_comes_from() {
        let v4 = [192, 0, 2, 7, 10, 0, 0, 1, 0x12, 0x67, 0x19, 0x20];
        let v6 = [&[0x20, 1, 0xd, 0xb8][..], &[0; 11], &[1], &[0; 16], &[0, 5, 0, 6]].concat();
        let extra = [&v4[..], b"\x04\0\x01x"].concat();
        let cases: [(Vec<u8>, &str); 9] = [
            (b"PROXY TCP4 192.0.2.7 10.0.0.1 4711 6432\r\n".to_vec(), "192.0.2.7:4711"),
            (b"PROXY TCP6 2001:db8::1 ::1 5 6\r\n".to_vec(), "[2001:db8::1]:5"),
            (b"PROXY UNKNOWN\r\n".to_vec(), "-"),
            (b"PROXY UNKNOWN ff:f ::1 what ever\r\n".to_vec(), "-"),
            (v2(0x21, 0x11, &v4), "192.0.2.7:4711"),
            (v2(0x21, 0x11, &extra), "192.0.2.7:4711"),
            (v2(0x21, 0x21, &v6), "[2001:db8::1]:5"),
            (v2(0x20, 0x00, &[]), "-"),
            (v2(0x21, 0x31, &[0; 216]), "-"),
        ];
        for (bytes, expected) in cases {
            for end in 0..bytes.len() {
                assert_eq!(found(&bytes[..end]), Ok(None), "cut at {end}");
            }
            let with_more = [&bytes[..], b"more"].concat();
            let expected = Ok(Some((bytes.len(), expected.to_owned())));
            assert_eq!(found(&bytes), expected);
            assert_eq!(found(&with_more), expected);
        }
    }

    #[test]
    fn what_is_no_header_is_refused() {
        for bytes in [
            b"\0\0\0\x08\x04\xd2\x16\x2f".to_vec(),
            b"PROXY TCP4 a b 1 2\r\n".to_vec(),
            b"PROXY TCP4 ::1 ::1 1 2\r\n".to_vec(),
            b"PROXY TCP4 1.2.3.4 1.2.3.4 70000 2\r\n".to_vec(),
            b"PROXY TCP4 1.2.3.4 1.2.3.4 1\r\n".to_vec(),
            b"PROXY ".iter().copied().chain([b'x'; 200]).collect(),
            v2(0x11, 0x11, &[0; 12]),
            v2(0x22, 0x11, &[0; 12]),
            v2(0x21, 0x11, &[0; 11]),
            v2(0x21, 0x21, &[0; 35]),
            [&SIGNATURE[..], &[0x21, 0x11, 0xff, 0xff]].concat(),
        ] {
            assert_eq!(parse(&bytes), Err(NoHeader), "{}", bytes.escape_ascii());
        }
    }

    #[test]
    fn whom_we_believe() {
        let is =
            |source: &str, from: &str| source.parse::<ProxySource>().unwrap().is(from.parse().ok());
        assert!(is("10.0.0.0/8", "10.1.1.1") && !is("10.0.0.0/8", "11.1.1.1"));
        assert!(is("::1", "::1") && is("10.0.0.1", "::ffff:10.0.0.1") && !is("10.0.0.1", "unix"));
        assert!(is("unix", "unix") && !is("unix", "10.0.0.1"));
        assert!("nowhere".parse::<ProxySource>().is_err());
    }
}
