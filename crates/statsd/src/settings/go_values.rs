//! Durations and addresses as programs in Go write them.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    time::Duration,
};

/// Parses a duration: `1m20s`, `500ms`, `0`.
pub(crate) fn duration(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let mut rest = text;
    let mut total = Duration::ZERO;
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (digits, after) = rest.split_at(end);
        let end = after.find(|c: char| c.is_ascii_digit()).unwrap_or(after.len());
        let (unit, after) = after.split_at(end);
        let seconds = match unit {
            "ns" => 1e-9,
            "us" | "µs" | "μs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return None,
        };
        let digits: f64 = digits.parse().ok()?;
        total = total.checked_add(Duration::try_from_secs_f64(digits * seconds).ok()?)?;
        rest = after;
    }
    Some(total)
}

/// Parses an address to listen on: `:8125`, `127.0.0.1:8125`, `localhost:8125`, `[::1]:8125`. An
/// address without a host is 0.0.0.0.
pub(super) fn listen_address(text: &str) -> Option<SocketAddr> {
    if let Ok(address) = text.parse() {
        return Some(address);
    }
    let (host, port) = text.rsplit_once(':')?;
    let ip: IpAddr = match host {
        "" | "*" => Ipv4Addr::UNSPECIFIED.into(),
        "localhost" => Ipv4Addr::LOCALHOST.into(),
        host => host.parse().ok()?,
    };
    Some(SocketAddr::new(ip, port.parse().ok()?))
}

/// Splits `host:port` or `[address]:port`; the port is `default_port` if there is none.
pub(super) fn host_and_port(text: &str, default_port: u16) -> Option<(String, u16)> {
    if text.parse::<IpAddr>().is_ok() {
        return Some((text.to_owned(), default_port));
    }
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) => (host, port.parse().ok()?),
        None => (text, default_port),
    };
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    (!host.is_empty()).then(|| (host.to_owned(), port))
}

#[test]
fn durations_and_addresses_are_parsed() {
    assert_eq!(duration("1m20s"), Some(Duration::from_secs(80)));
    assert_eq!(duration("1.5ms"), Some(Duration::from_micros(1500)));
    for wrong in ["", "5", "5 s", "-1s", "1x", "s", "99999999999999999999h"] {
        assert_eq!(duration(wrong), None, "{wrong}");
    }
    let listen = |text: &str| listen_address(text).map(|address| address.to_string());
    assert_eq!(listen(":8125").as_deref(), Some("0.0.0.0:8125"));
    assert_eq!(listen("localhost:1").as_deref(), Some("127.0.0.1:1"));
    assert_eq!(listen("[::]:1").as_deref(), Some("[::]:1"));
    for wrong in ["8125", "host:8125", ":", ":70000"] {
        assert_eq!(listen(wrong), None, "{wrong}");
    }
    assert_eq!(host_and_port("g", 2003), Some(("g".to_owned(), 2003)));
    assert_eq!(host_and_port("[::1]:9", 2003), Some(("::1".to_owned(), 9)));
    assert_eq!(host_and_port("::1", 2003), Some(("::1".to_owned(), 2003)));
    assert_eq!(host_and_port(":9", 2003), None);
}
