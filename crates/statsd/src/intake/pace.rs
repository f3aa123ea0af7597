//! When a reader asks its socket again: at once, after a short pause, or once something came.
//!
//! A reader that is faster than its senders finds the buffer empty after every few packets. If it
//! then waits for the next one, the kernel wakes it for each: a wake-up costs both the reader and,
//! on the loopback, the sender more than a packet does. So under load a reader lets packets gather
//! for a moment, as network cards do with interrupts; the buffer is there for that. Values are
//! summed for seconds anyway, so nobody sees the delay.
//!
//! Not here: clocks and sleeping. The reader tells the time and does what it is told.

use std::time::{Duration, Instant};

/// What to do before asking the socket again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// More is there.
    Ask,
    /// Let packets gather for so long.
    Pause(Duration),
    /// Wait until the socket is readable.
    Wait,
}

/// Watches the rate of one socket's packets.
#[derive(Debug)]
pub(crate) struct Pace {
    /// The longest pause that is safe for the socket's buffer.
    longest: Duration,
    /// Since when packets are counted.
    since: Instant,
    packets: u64,
    /// The pause found right for the last window's rate.
    pause: Option<Duration>,
}

impl Pace {
    /// How long packets may gather: far below the shortest flush interval.
    pub(crate) const LONGEST: Duration = Duration::from_millis(5);
    /// So many make a wake-up cheap. More would only fall out of the processor's caches.
    const GATHER: u64 = 256;
    /// Fewer than this are not worth a pause: they are woken for.
    const WORTH_IT: u64 = 4;
    /// What the rate is measured over, at least.
    const WINDOW: Duration = Duration::from_millis(2);
    /// What the kernel charges a buffer for a small packet: 768 on x86-64, with room to spare.
    const PACKET_CHARGE: f64 = 1024.0;
    /// Packets per second of a burst that may begin at any moment, as one sender's core makes them.
    const BURST: f64 = 500_000.0;
    /// Share of the buffer that such a burst may fill in a pause.
    const SHARE: f64 = 0.5;

    /// For a socket whose buffer has `buffer_bytes`.
    pub(crate) fn new(buffer_bytes: u32, now: Instant) -> Self {
        let room = f64::from(buffer_bytes) * Self::SHARE / Self::PACKET_CHARGE;
        let safe = Duration::from_secs_f64(room / Self::BURST);
        Self { longest: safe.min(Self::LONGEST), since: now, packets: 0, pause: None }
    }

    /// For a socket whose senders wait while its queue is full: pausing would slow them down.
    pub(crate) fn without_pauses(now: Instant) -> Self {
        Self::new(0, now)
    }

    /// After a batch of `packets`; `full` if there was no room for more.
    pub(crate) fn after(&mut self, packets: u64, full: bool, now: Instant) -> Next {
        self.packets += packets;
        let elapsed = now.saturating_duration_since(self.since);
        if elapsed >= Self::WINDOW {
            self.pause = self.pause_for(self.packets as f64 / elapsed.as_secs_f64());
            (self.since, self.packets) = (now, 0);
        }
        match self.pause {
            _ if full => Next::Ask,
            Some(pause) => Next::Pause(pause),
            None => Next::Wait,
        }
    }

    /// The pause for packets at this rate per second, if one is worth it.
    fn pause_for(&self, rate: f64) -> Option<Duration> {
        if rate * self.longest.as_secs_f64() < Self::WORTH_IT as f64 {
            return None;
        }
        let pause = Duration::try_from_secs_f64(Self::GATHER as f64 / rate).ok()?;
        Some(pause.min(self.longest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a second in which a packet comes every `every`, and tells how often the socket was asked.
    fn asked(mut pace: Pace, every: Duration, start: Instant) -> (u32, Duration) {
        let (mut now, mut read, mut asked) = (start, 0, 0);
        let mut longest = Duration::ZERO;
        while now < start + Duration::from_secs(1) {
            let came = u64::try_from((now - start).as_nanos() / every.as_nanos()).unwrap();
            let batch = (came - read).min(64);
            read += batch;
            asked += 1;
            now += match pace.after(batch, batch == 64, now) {
                Next::Ask => Duration::ZERO,
                Next::Pause(pause) => {
                    longest = longest.max(pause);
                    pause
                }
                Next::Wait => every,
            };
        }
        (asked, longest)
    }

    #[test]
    fn a_fast_sender_is_read_in_large_batches() {
        let start = Instant::now();
        let (asked, longest) = asked(Pace::new(8 << 20, start), Duration::from_nanos(2500), start);
        assert!(asked < 10_000, "400,000 packets took {asked} calls");
        assert!(longest < Pace::LONGEST, "enough have gathered before: {longest:?}");
    }

    #[test]
    fn a_middling_sender_is_not_woken_for_each_packet() {
        let start = Instant::now();
        let (asked, longest) = asked(Pace::new(64 << 20, start), Duration::from_micros(250), start);
        assert!(asked < 400, "4,000 packets took {asked} calls");
        assert_eq!(longest, Pace::LONGEST);
    }

    #[test]
    fn a_slow_sender_is_waited_for() {
        let start = Instant::now();
        let (asked, longest) = asked(Pace::new(8 << 20, start), Duration::from_millis(2), start);
        assert!((490..510).contains(&asked), "{asked}");
        assert_eq!(longest, Duration::ZERO);
    }

    #[test]
    fn a_small_buffer_is_not_left_to_fill() {
        let start = Instant::now();
        // What a host has without any settings: room for 270 small packets.
        let (_, longest) = asked(Pace::new(212_992, start), Duration::from_micros(20), start);
        assert!(longest > Duration::ZERO && longest <= Duration::from_micros(270), "{longest:?}");
        let (_, longest) = asked(Pace::new(2304, start), Duration::from_nanos(2500), start);
        assert_eq!(longest, Duration::ZERO, "room for 3 packets leaves none to gather");
    }

    #[test]
    fn a_socket_that_makes_its_senders_wait_is_never_left_alone() {
        let start = Instant::now();
        let (_, longest) = asked(Pace::without_pauses(start), Duration::from_nanos(2500), start);
        assert_eq!(longest, Duration::ZERO);
    }
}
