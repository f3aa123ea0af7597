//! Decides when a reader reads its socket again: immediately, after a short pause, or once it is
//! readable.
//!
//! A reader that is faster than its senders finds the buffer empty after every few packets. If it
//! then waits for the next packet, the kernel wakes it for each one, and a wake-up costs both the
//! reader and, on the loopback, the sender more than a packet does. So under load a reader lets
//! packets accumulate in the socket buffer for a moment, like interrupt coalescing in network
//! cards. Values are summed over seconds anyway, so the delay is invisible.
//!
//! This module reads no clock and does not sleep: the reader passes the time and carries out the
//! decision.

use std::time::{Duration, Instant};

/// The decision when to read the socket again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadDecision {
    /// Read immediately, because more packets may be waiting.
    ReadNow,
    /// Let packets accumulate for this long before the next read.
    Pause(Duration),
    /// Wait until the socket is readable.
    Wait,
}

/// A pacer of one socket's reader, which measures the rate of received packets.
#[derive(Debug)]
pub(crate) struct BatchPacer {
    /// The longest pause, in which the socket's buffer is not expected to overflow.
    pause_max: Duration,
    /// Start of the current measurement window.
    since: Instant,
    packets: u64,
    /// The pause for the rate of the last window, if one is worthwhile.
    pause: Option<Duration>,
}

impl BatchPacer {
    /// Maximum pause: far below usual flush intervals.
    pub(crate) const PAUSE_MAX: Duration = Duration::from_millis(5);
    /// Target number of packets that arrive during a pause. More packets would exceed the
    /// processor's caches.
    const BATCH_TARGET: u64 = 256;
    /// Minimum number of packets per maximum pause; with fewer, the reader waits for readability
    /// instead.
    const PACKETS_MIN: u64 = 4;
    /// Minimum time over which the rate is measured.
    const RATE_WINDOW: Duration = Duration::from_millis(2);
    /// Buffer memory that the kernel charges for a small packet: 768 on x86-64, rounded up.
    const PACKET_CHARGE_BYTES: f64 = 1024.0;
    /// Packet rate of a burst that may start at any moment: the rate at which one core can send.
    const BURST_PACKETS_PER_SECOND: f64 = 500_000.0;
    /// Fraction of the buffer that a burst may fill during a pause.
    const BURST_BUFFER_SHARE: f64 = 0.5;

    /// Creates a pacer for a socket with a buffer of `buffer_bytes`.
    pub(crate) fn new(buffer_bytes: u32, now: Instant) -> Self {
        let room = f64::from(buffer_bytes) * Self::BURST_BUFFER_SHARE / Self::PACKET_CHARGE_BYTES;
        let safe = Duration::from_secs_f64(room / Self::BURST_PACKETS_PER_SECOND);
        Self { pause_max: safe.min(Self::PAUSE_MAX), since: now, packets: 0, pause: None }
    }

    /// Creates a pacer that never pauses, for sockets whose senders block while the queue is full.
    pub(crate) fn without_pauses(now: Instant) -> Self {
        Self::new(0, now)
    }

    /// Decides how to continue after a batch of `packets`; `full` if the batch had no room for
    /// more.
    pub(crate) fn decide(&mut self, packets: u64, full: bool, now: Instant) -> ReadDecision {
        self.packets += packets;
        let elapsed = now.saturating_duration_since(self.since);
        if elapsed >= Self::RATE_WINDOW {
            self.pause = self.pause_for(self.packets as f64 / elapsed.as_secs_f64());
            (self.since, self.packets) = (now, 0);
        }
        match self.pause {
            _ if full => ReadDecision::ReadNow,
            Some(pause) => ReadDecision::Pause(pause),
            None => ReadDecision::Wait,
        }
    }

    /// Returns the pause for this packet rate per second, if one is worthwhile.
    fn pause_for(&self, rate: f64) -> Option<Duration> {
        if rate * self.pause_max.as_secs_f64() < Self::PACKETS_MIN as f64 {
            return None;
        }
        let pause = Duration::try_from_secs_f64(Self::BATCH_TARGET as f64 / rate).ok()?;
        Some(pause.min(self.pause_max))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates one second with a packet every `every`; returns the number of reads and the
    /// longest pause.
    fn simulate(mut pacer: BatchPacer, every: Duration, start: Instant) -> (u32, Duration) {
        let (mut now, mut read, mut reads) = (start, 0, 0);
        let mut longest = Duration::ZERO;
        while now < start + Duration::from_secs(1) {
            let arrived = u64::try_from((now - start).as_nanos() / every.as_nanos()).unwrap();
            let batch = (arrived - read).min(64);
            read += batch;
            reads += 1;
            now += match pacer.decide(batch, batch == 64, now) {
                ReadDecision::ReadNow => Duration::ZERO,
                ReadDecision::Pause(pause) => {
                    longest = longest.max(pause);
                    pause
                }
                ReadDecision::Wait => every,
            };
        }
        (reads, longest)
    }

    #[test]
    fn fast_sender_is_read_in_large_batches() {
        let start = Instant::now();
        let (reads, longest) =
            simulate(BatchPacer::new(8 << 20, start), Duration::from_nanos(2500), start);
        assert!(reads < 10_000, "400,000 packets took {reads} reads");
        assert!(
            longest < BatchPacer::PAUSE_MAX,
            "the batch target is reached earlier: {longest:?}"
        );
    }

    #[test]
    fn medium_rate_sender_does_not_wake_reader_per_packet() {
        let start = Instant::now();
        let (reads, longest) =
            simulate(BatchPacer::new(64 << 20, start), Duration::from_micros(250), start);
        assert!(reads < 400, "4,000 packets took {reads} reads");
        assert_eq!(longest, BatchPacer::PAUSE_MAX);
    }

    #[test]
    fn slow_sender_makes_reader_block() {
        let start = Instant::now();
        let (reads, longest) =
            simulate(BatchPacer::new(8 << 20, start), Duration::from_millis(2), start);
        assert!((490..510).contains(&reads), "{reads}");
        assert_eq!(longest, Duration::ZERO);
    }

    #[test]
    fn small_buffer_shortens_pause() {
        let start = Instant::now();
        // The default buffer size of Linux: room for 270 small packets.
        let (_, longest) =
            simulate(BatchPacer::new(212_992, start), Duration::from_micros(20), start);
        assert!(longest > Duration::ZERO && longest <= Duration::from_micros(270), "{longest:?}");
        let (_, longest) =
            simulate(BatchPacer::new(2304, start), Duration::from_nanos(2500), start);
        assert_eq!(longest, Duration::ZERO, "room for 3 packets is too little to pause");
    }

    #[test]
    fn socket_with_blocking_senders_is_read_without_pauses() {
        let start = Instant::now();
        let (_, longest) =
            simulate(BatchPacer::without_pauses(start), Duration::from_nanos(2500), start);
        assert_eq!(longest, Duration::ZERO);
    }
}
