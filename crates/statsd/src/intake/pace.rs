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
    /// What unread packets may take of the buffer while nobody reads.
    gather_bytes_max: u64,
    /// Since when packets are counted.
    since: Instant,
    packets: u64,
    bytes: u64,
    /// The pause found right for the last window's rate.
    pause: Option<Duration>,
}

impl Pace {
    /// How long packets may gather. Far below the shortest flush interval, far above a wake-up.
    pub(crate) const LONGEST: Duration = Duration::from_micros(500);
    /// Fewer packets than this in the longest pause are not worth one: they are woken for.
    const WORTH_IT: u64 = 8;
    /// What the rate is measured over.
    const WINDOW: Duration = Duration::from_millis(2);
    /// Share of the buffer that a pause may fill.
    const SHARE: u64 = 8;
    /// What the kernel charges a buffer for a packet without content: 768 on x86-64, with room to
    /// spare. Content is charged up to twice, as its memory comes in powers of two.
    const PACKET_CHARGE: u64 = 1280;

    /// For a socket whose buffer has `buffer_bytes`.
    pub(crate) fn new(buffer_bytes: u32, now: Instant) -> Self {
        Self {
            gather_bytes_max: u64::from(buffer_bytes) / Self::SHARE,
            since: now,
            packets: 0,
            bytes: 0,
            pause: None,
        }
    }

    /// For a socket whose senders wait while its queue is full: pausing would slow them down.
    pub(crate) fn without_pauses(now: Instant) -> Self {
        Self::new(0, now)
    }

    /// After a batch of `packets` that held `bytes`; `full` if there was no room for more.
    pub(crate) fn after(&mut self, packets: u64, bytes: u64, full: bool, now: Instant) -> Next {
        self.packets += packets;
        self.bytes += bytes;
        let elapsed = now.saturating_duration_since(self.since);
        if elapsed >= Self::WINDOW {
            self.pause = self.pause_for(elapsed);
            (self.since, self.packets, self.bytes) = (now, 0, 0);
        }
        match self.pause {
            _ if full => Next::Ask,
            Some(pause) => Next::Pause(pause),
            None => Next::Wait,
        }
    }

    /// The pause for the rate of the window that ends now, if one is worth it.
    fn pause_for(&self, elapsed: Duration) -> Option<Duration> {
        let charge = self.packets * Self::PACKET_CHARGE + 2 * self.bytes;
        // As long as it takes to fill our share of the buffer.
        let until_full =
            elapsed.as_secs_f64() * self.gather_bytes_max as f64 / charge.max(1) as f64;
        let pause = Self::LONGEST.min(Duration::try_from_secs_f64(until_full).ok()?);
        let gathered = self.packets as f64 * pause.as_secs_f64() / elapsed.as_secs_f64();
        (gathered >= Self::WORTH_IT as f64).then_some(pause)
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
            now += match pace.after(batch, 25 * batch, batch == 64, now) {
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
        assert_eq!(longest, Pace::LONGEST);
    }

    #[test]
    fn a_slow_sender_is_waited_for() {
        let start = Instant::now();
        let (asked, longest) = asked(Pace::new(8 << 20, start), Duration::from_millis(1), start);
        assert!((990..1010).contains(&asked), "{asked}");
        assert_eq!(longest, Duration::ZERO);
    }

    #[test]
    fn a_small_buffer_is_not_left_to_fill() {
        let start = Instant::now();
        // What a host has without any settings: room for 270 small packets.
        let (_, longest) = asked(Pace::new(212_992, start), Duration::from_nanos(2500), start);
        assert!(longest > Duration::ZERO && longest <= Duration::from_micros(60), "{longest:?}");
        let (_, longest) = asked(Pace::new(4608, start), Duration::from_nanos(2500), start);
        assert_eq!(longest, Duration::ZERO, "room for 6 packets leaves none to gather");
    }

    #[test]
    fn a_socket_that_makes_its_senders_wait_is_never_left_alone() {
        let start = Instant::now();
        let (_, longest) = asked(Pace::without_pauses(start), Duration::from_nanos(2500), start);
        assert_eq!(longest, Duration::ZERO);
    }
}
