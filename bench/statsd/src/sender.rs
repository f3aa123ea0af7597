//! The sender: `sendmmsg`, flat out or paced, from one socket.

use std::{
    io::IoSlice,
    net::UdpSocket,
    time::{Duration, Instant},
};

use rustix::{
    io::Errno,
    net::{MMsgHdr, SendAncillaryBuffer, SendFlags, sendmmsg},
};

/// Packets per `sendmmsg` call: flat out and paced.
const BATCH_FLAT: usize = 64;
const BATCH_PACED: usize = 16;

/// The result of a send run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendStats {
    /// Packets that the kernel accepted.
    pub(crate) packets: u64,
    /// Duration of the run.
    pub(crate) elapsed: Duration,
}

impl SendStats {
    /// Packets per second.
    pub(crate) fn rate(&self) -> f64 {
        self.packets as f64 / self.elapsed.as_secs_f64()
    }
}

/// Sends `total` packets to `port`, cycling through `ring`, at `rate` packets per second or as fast
/// as possible.
pub(crate) fn send(
    port: u16,
    ring: &[Vec<u8>],
    total: u64,
    rate: Option<f64>,
) -> anyhow::Result<SendStats> {
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    socket.connect(("127.0.0.1", port))?;
    let vectors: Vec<_> = ring.iter().map(|packet| [IoSlice::new(packet)]).collect();
    let mut controls: Vec<_> = ring.iter().map(|_| SendAncillaryBuffer::default()).collect();
    let mut headers: Vec<_> = vectors
        .iter()
        .zip(&mut controls)
        .map(|(vector, control)| MMsgHdr::new(vector, control))
        .collect();
    let batch = if rate.is_some() { BATCH_PACED } else { BATCH_FLAT };
    let start = Instant::now();
    let (mut sent, mut at) = (0, 0);
    while sent < total {
        if let Some(rate) = rate {
            wait_until(start + Duration::from_secs_f64(sent as f64 / rate));
        }
        let left = usize::try_from(total - sent).unwrap_or(usize::MAX);
        let end = (at + batch.min(left)).min(headers.len());
        match sendmmsg(&socket, &mut headers[at..end], SendFlags::empty()) {
            Ok(accepted) => {
                sent += accepted as u64;
                at = (at + accepted) % headers.len();
            }
            Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS | Errno::CONNREFUSED) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(SendStats { packets: sent, elapsed: start.elapsed() })
}

/// Sleeps until shortly before `due`, then spins until it is reached.
fn wait_until(due: Instant) {
    let left = due.saturating_duration_since(Instant::now());
    if left > Duration::from_millis(1) {
        std::thread::sleep(left - Duration::from_micros(500));
    }
    while Instant::now() < due {
        std::hint::spin_loop();
    }
}
