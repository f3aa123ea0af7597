//! Sends the registry to a statsd server.

use std::net::UdpSocket;

use anyhow::Context as _;
use howdah_stats::{Registry, statsd::StatsdEncoder};

use super::periodic::PeriodicSender;
use crate::errors::WithHint as _;

/// Resolves the server, and sends the registry to it by UDP until the sender is dropped.
///
/// # Errors
///
/// The address is not `HOST:PORT`, the host cannot be resolved, or the socket or the thread cannot
/// be created.
pub(super) fn start(address: &str, registry: Registry) -> anyhow::Result<PeriodicSender> {
    let socket = connect(address)
        .with_context(|| format!("cannot send metrics to {address}"))
        .hint("--metrics-statsd takes HOST:PORT, such as 127.0.0.1:8125")?;
    let mut packets = StatsdEncoder::default();
    let sender = PeriodicSender::start("metrics-statsd", move || {
        for packet in packets.encode(&registry) {
            // Delivery is best effort, as usual with statsd: the server may not be running.
            if let Err(error) = socket.send(packet.as_bytes()) {
                tracing::debug!(%error, "cannot send a metrics packet");
            }
        }
    })?;
    Ok(sender)
}

fn connect(address: &str) -> std::io::Result<UdpSocket> {
    use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs as _};
    let found = address.to_socket_addrs()?.next();
    let to = found.ok_or_else(|| std::io::Error::other("the host has no address"))?;
    let from: SocketAddr = match to {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(from)?;
    socket.connect(to)?;
    Ok(socket)
}

#[test]
fn drop_sends_final_counts() {
    use howdah_stats::Description;

    const SEEN: Description = Description::counter("t_seen_total", "Seen.");
    let server = UdpSocket::bind("127.0.0.1:0").unwrap();
    let registry = Registry::new();
    let address = server.local_addr().unwrap().to_string();
    let sender = start(&address, registry.clone()).unwrap();
    registry.counter(&SEEN).add(3);
    drop(sender);
    let mut buffer = [0; 64];
    let length = server.recv(&mut buffer).unwrap();
    assert_eq!(&buffer[..length], b"t_seen_total:3|c");
    assert!(start("nowhere", Registry::new()).is_err());
}
