//! IP addresses and networks: `inet` and `cidr`.

use std::net::Ipv6Addr;

use super::KeyedStream;

/// Returns the replacement of an IP address, with the length of its network if it has one. If no
/// bit after the network is set, as `cidr` requires, the same is true of the replacement.
pub(super) fn redact(value: &[u8], stream: &mut KeyedStream) -> Option<Vec<u8>> {
    let text = std::str::from_utf8(value).ok()?;
    let (address, length) = match text.split_once('/') {
        Some((address, length)) => (address, Some(length)),
        None => (text, None),
    };
    let network: Option<u32> = match length {
        Some(length) if length.bytes().all(|byte| byte.is_ascii_digit()) => {
            Some(length.parse().ok()?)
        }
        Some(_) => return None,
        None => None,
    };
    let redacted = if address.contains(':') {
        redact_v6(address.parse().ok()?, network, stream)?.to_string()
    } else {
        redact_v4(address, network, stream)?
    };
    let length = length.map(|length| format!("/{length}")).unwrap_or_default();
    Some((redacted + &length).into_bytes())
}

/// Redacts an IPv4 address, or the first octets of a network.
fn redact_v4(address: &str, network: Option<u32>, stream: &mut KeyedStream) -> Option<String> {
    let octet = |text: &str| {
        let is_octet = (1..=3).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
        is_octet.then(|| text.parse::<u8>().ok()).flatten()
    };
    let octets: Vec<u8> = address.split('.').map(octet).collect::<Option<_>>()?;
    let is_complete = octets.len() == 4 || octets.len() > 1 && network.is_some();
    if !is_complete || octets.len() > 4 || network.is_some_and(|bits| bits > 32) {
        return None;
    }
    let mut bytes = [0; 4];
    bytes[..octets.len()].copy_from_slice(&octets);
    let mask = u32::MAX.checked_shl(32 - network.unwrap_or(32)).unwrap_or(0);
    let is_network = u32::from_be_bytes(bytes) & !mask == 0;
    let random = octets.iter().map(|octet| match octet {
        0..10 => stream.in_range(1, 9),
        10..100 => stream.in_range(10, 99),
        _ => stream.in_range(100, 254),
    } as u8);
    let mut redacted = [0; 4];
    redacted.iter_mut().zip(random).for_each(|(octet, random)| *octet = random);
    if is_network {
        redacted = (u32::from_be_bytes(redacted) & mask).to_be_bytes();
    }
    let texts: Vec<_> = redacted[..octets.len()].iter().map(u8::to_string).collect();
    Some(texts.join("."))
}

/// Redacts an IPv6 address. Groups of zero stay, except for those of a network.
fn redact_v6(
    address: Ipv6Addr,
    network: Option<u32>,
    stream: &mut KeyedStream,
) -> Option<Ipv6Addr> {
    if network.is_some_and(|bits| bits > 128) {
        return None;
    }
    let mask = u128::MAX.checked_shl(128 - network.unwrap_or(128)).unwrap_or(0);
    let is_network = address.to_bits() & !mask == 0;
    let segments = address.segments().map(|segment| match segment {
        0 => 0,
        _ => stream.in_range(1, 0xffff) as u16,
    });
    let bits = Ipv6Addr::from(segments).to_bits();
    Some(Ipv6Addr::from_bits(if is_network { bits & mask } else { bits }))
}
