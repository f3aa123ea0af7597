//! The PROXY protocol: the client address that a load balancer sends before the client's bytes.
//!
//! ```text
//! PROXY TCP4 192.0.2.7 10.0.0.1 4711 6432\r\n                      version 1
//! \r\n\r\n\0\r\nQUIT\n  21  11  000c  source dest. port port          version 2
//! ```
//!
//! A receiver must not guess whether there is a header: a trusted peer must always send one, and
//! bytes from any other peer are never read as one. Source: "The PROXY protocol, versions 1 & 2",
//! haproxy.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// A parsed PROXY header, of version 1 or 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProxyHeader {
    /// Length of the header in bytes.
    pub bytes: usize,
    /// The client's address; `None` if the connection is the balancer's own (a health check, for
    /// example), or not TCP over IPv4 or IPv6.
    pub source: Option<SocketAddr>,
}

/// The error for bytes that are not a PROXY header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected a PROXY protocol header of version 1 or 2")]
pub struct ProxyHeaderError;

/// The start of a version 2 header.
const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";

/// Longest version 1 header, including its line end.
const LINE_BYTES_MAX: usize = 107;

/// Maximum length of a version 2 header after its first 16 bytes. Addresses take at most 216 bytes,
/// and extensions usually a few hundred.
const TAIL_BYTES_MAX: usize = 4096;

/// Parses the header at the start of `input`; `None` while it is incomplete.
///
/// # Errors
///
/// The bytes are not the start of a valid header.
pub fn parse(input: &[u8]) -> Result<Option<ProxyHeader>, ProxyHeaderError> {
    let starts_with = |start: &[u8]| {
        let both = start.len().min(input.len());
        input[..both] == start[..both]
    };
    if starts_with(SIGNATURE) {
        parse_v2(input)
    } else if starts_with(b"PROXY ") {
        parse_v1(input)
    } else {
        Err(ProxyHeaderError)
    }
}

/// Parses version 1: one line of text.
fn parse_v1(input: &[u8]) -> Result<Option<ProxyHeader>, ProxyHeaderError> {
    let prefix = &input[..input.len().min(LINE_BYTES_MAX)];
    let Some(end) = memchr::memmem::find(prefix, b"\r\n") else {
        return if prefix.len() < LINE_BYTES_MAX { Ok(None) } else { Err(ProxyHeaderError) };
    };
    let text = std::str::from_utf8(&prefix[..end]).map_err(|_| ProxyHeaderError)?;
    let words: Vec<_> = text.split(' ').collect();
    let source = match words[..] {
        ["PROXY", "UNKNOWN", ..] => None,
        ["PROXY", family @ ("TCP4" | "TCP6"), source, dest, source_port, dest_port] => {
            let address = |text: &str| text.parse::<IpAddr>().map_err(|_| ProxyHeaderError);
            let port = |text: &str| text.parse::<u16>().map_err(|_| ProxyHeaderError);
            let (source, dest) = (address(source)?, address(dest)?);
            let is_v4 = family == "TCP4";
            if source.is_ipv4() != is_v4 || dest.is_ipv4() != is_v4 {
                return Err(ProxyHeaderError);
            }
            port(dest_port)?;
            Some(SocketAddr::new(source, port(source_port)?))
        }
        _ => return Err(ProxyHeaderError),
    };
    Ok(Some(ProxyHeader { bytes: end + 2, source }))
}

/// Parses version 2: signature, version and command, family, length, addresses, and extensions,
/// which are skipped.
fn parse_v2(input: &[u8]) -> Result<Option<ProxyHeader>, ProxyHeaderError> {
    let Some((&[_, _, _, _, _, _, _, _, _, _, _, _, command, family, a, b], rest)) =
        input.split_first_chunk::<16>()
    else {
        return Ok(None);
    };
    let length = usize::from(u16::from_be_bytes([a, b]));
    if length > TAIL_BYTES_MAX {
        return Err(ProxyHeaderError);
    }
    let Some(tail) = rest.get(..length) else { return Ok(None) };
    let port = |at: usize| -> Option<u16> {
        Some(u16::from_be_bytes(tail.get(at..at + 2)?.try_into().ok()?))
    };
    let source = match (command, family) {
        // LOCAL: the balancer's own connection.
        (0x20, _) => None,
        (0x21, 0x11) => {
            let address: [u8; 4] = tail.get(..12).ok_or(ProxyHeaderError)?[..4]
                .try_into()
                .or(Err(ProxyHeaderError))?;
            Some((IpAddr::V4(Ipv4Addr::from(address)), port(8).ok_or(ProxyHeaderError)?))
        }
        (0x21, 0x21) => {
            let address: [u8; 16] = tail.get(..36).ok_or(ProxyHeaderError)?[..16]
                .try_into()
                .or(Err(ProxyHeaderError))?;
            Some((IpAddr::V6(Ipv6Addr::from(address)), port(32).ok_or(ProxyHeaderError)?))
        }
        // Datagrams, Unix sockets, unknown families.
        (0x21, _) => None,
        _ => return Err(ProxyHeaderError),
    };
    let source = source.map(|(address, port)| SocketAddr::new(address, port));
    Ok(Some(ProxyHeader { bytes: 16 + length, source }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(input: &[u8]) -> Result<Option<(usize, String)>, ProxyHeaderError> {
        let text = |source: Option<SocketAddr>| source.map_or("-".into(), |it| it.to_string());
        parse(input).map(|header| header.map(|header| (header.bytes, text(header.source))))
    }

    fn v2(command: u8, family: u8, tail: &[u8]) -> Vec<u8> {
        let length = u16::try_from(tail.len()).unwrap().to_be_bytes();
        [&SIGNATURE[..], &[command, family], &length, tail].concat()
    }

    #[test]
    fn both_versions_yield_client_address() {
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
                assert_eq!(parsed(&bytes[..end]), Ok(None), "truncated at {end}");
            }
            let with_more = [&bytes[..], b"more"].concat();
            let expected = Ok(Some((bytes.len(), expected.to_owned())));
            assert_eq!(parsed(&bytes), expected);
            assert_eq!(parsed(&with_more), expected);
        }
    }

    #[test]
    fn malformed_header_is_rejected() {
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
            assert_eq!(parse(&bytes), Err(ProxyHeaderError), "{}", bytes.escape_ascii());
        }
    }
}
