//! Limits the rate of a load: to a number of bytes per second, and further while the server
//! responds slowly.
//!
//! The latency of the server itself is measured, not that of user transactions, which only their
//! role may see: a separate connection queries one row of a catalog, which is cached, every
//! [`CHECK_INTERVAL`]. Such a query waits for a processor and for locks of the buffer cache as user
//! queries do. While it takes longer than the limit, connections pause after each chunk: at first
//! for as long as the chunk took. Each further late reply doubles the pause, up to
//! [`PAUSE_FACTOR_MAX`] times the chunk's duration; each timely reply halves it. While a reply is
//! overdue, no new chunk is started, for at most [`LATE_CHECK_TIMEOUT`]: a check that hangs for
//! another reason makes a load slow but does not stop it.

use std::{
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use howdah_connect::Client;
use parking_lot::Mutex;

use crate::dump::QueryFailure;

/// Limits the rate of a load, over all of its connections.
#[derive(Debug)]
pub(crate) struct Throttle {
    bytes_per_second: Option<u64>,
    max_latency: Option<Duration>,
    started_at: Instant,
    /// Start of the running check, in microseconds since `started_at`; 0 if there is none.
    check_started_us: AtomicU64,
    /// Time by which the permitted rate covers all bytes admitted so far.
    due: Mutex<Instant>,
    /// Pause after a chunk, as a multiple of the time it took, in sixteenths.
    pause: AtomicU32,
}

const SIXTEENTHS: u32 = 16;
/// Longest pause after a chunk, as a multiple of the time it took.
const PAUSE_FACTOR_MAX: u32 = 64;
/// Interval between latency checks.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);
/// Maximum wait of a chunk for an overdue check.
pub(super) const LATE_CHECK_TIMEOUT: Duration = Duration::from_millis(500);
/// Time after which a check is abandoned, and the next one uses a new connection; twice the limit
/// if that is longer.
const CHECK_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum unused allowance that is saved up: the bytes that the rate permits in this time.
const UNUSED_ALLOWANCE_MAX: Duration = Duration::from_millis(500);
/// Interval at which a sleeping thread checks whether to stop.
const STOP_CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Interval at which a waiting chunk checks whether a late check has finished.
const LATE_CHECK_INTERVAL: Duration = Duration::from_millis(2);

impl Throttle {
    pub(crate) fn new(bytes_per_second: Option<u64>, max_latency: Option<Duration>) -> Self {
        let start = Instant::now();
        Self {
            bytes_per_second,
            max_latency,
            started_at: start,
            check_started_us: AtomicU64::new(0),
            due: Mutex::new(start),
            pause: AtomicU32::new(0),
        }
    }

    /// Waits until `bytes` more may be loaded, unless `should_stop` returns true.
    pub(crate) fn admit(&self, bytes: u64, should_stop: impl Fn() -> bool) {
        self.wait_for_late_check(&should_stop);
        let Some(rate) = self.bytes_per_second else { return };
        let until = {
            let mut due = self.due.lock();
            // Unused allowance is saved up, so that overhead of statements and connections does not
            // reduce throughput, but not for long, so that a pause does not end in a burst.
            let earliest = Instant::now().checked_sub(UNUSED_ALLOWANCE_MAX).unwrap_or(*due);
            let begin = (*due).max(earliest);
            *due = begin + Duration::from_secs_f64(bytes as f64 / rate.max(1) as f64);
            begin
        };
        sleep_until(until, should_stop);
    }

    /// Waits while a check is overdue, at most for [`LATE_CHECK_TIMEOUT`].
    fn wait_for_late_check(&self, should_stop: impl Fn() -> bool) {
        let Some(limit) = self.max_latency else { return };
        let until = Instant::now() + LATE_CHECK_TIMEOUT;
        let is_late = || match self.check_started_us.load(Ordering::Relaxed) {
            0 => false,
            check_start => self.started_at.elapsed() > Duration::from_micros(check_start) + limit,
        };
        while is_late() && Instant::now() < until && !should_stop() {
            thread::sleep(LATE_CHECK_INTERVAL);
        }
    }

    /// Pauses after a chunk that took `took`, if the server responds slowly.
    pub(super) fn pause_after(&self, took: Duration, should_stop: impl Fn() -> bool) {
        let pause = self.pause.load(Ordering::Relaxed);
        if pause > 0 {
            sleep_until(Instant::now() + took * pause / SIXTEENTHS, should_stop);
        }
    }

    /// Adapts the pause to the latency of a check: doubles it if the latency exceeds `limit`,
    /// otherwise halves it.
    fn record_latency(&self, latency: Duration, limit: Duration) {
        let pause = self.pause.load(Ordering::Relaxed);
        let next = if latency > limit {
            (pause * 2).clamp(SIXTEENTHS, PAUSE_FACTOR_MAX * SIXTEENTHS)
        } else {
            pause / 2
        };
        self.pause.store(next, Ordering::Relaxed);
    }

    /// Measures the server's latency until `should_stop` returns true, if there is a limit, over a
    /// connection made by `connect`.
    pub(super) fn measure_latency(
        &self,
        connect: impl Fn() -> Result<Client, QueryFailure>,
        should_stop: impl Fn() -> bool,
    ) {
        let Some(limit) = self.max_latency else { return };
        while !should_stop() {
            if let Ok(mut client) = connect() {
                client.set_timeout(Some(CHECK_TIMEOUT.max(limit * 2)));
                self.run_checks(&mut client, limit, &should_stop);
            }
            self.check_started_us.store(0, Ordering::Relaxed);
            thread::sleep(CHECK_INTERVAL);
        }
    }

    /// Runs checks until one fails. Other code determines whether the server is gone.
    fn run_checks(&self, client: &mut Client, limit: Duration, should_stop: impl Fn() -> bool) {
        if client.prepare("latency_check", CHECK_QUERY).is_err() {
            return;
        }
        while !should_stop() {
            let start = Instant::now();
            let check_start = start.duration_since(self.started_at).as_micros().max(1);
            self.check_started_us
                .store(u64::try_from(check_start).unwrap_or(u64::MAX), Ordering::Relaxed);
            let reply = client.query_prepared("latency_check", &[]);
            self.record_latency(start.elapsed(), limit);
            if reply.is_err() {
                return;
            }
            self.check_started_us.store(0, Ordering::Relaxed);
            thread::sleep(CHECK_INTERVAL);
        }
    }
}

const CHECK_QUERY: &str = "SELECT relname FROM pg_catalog.pg_class WHERE oid = 1259";

fn sleep_until(until: Instant, should_stop: impl Fn() -> bool) {
    while !should_stop() {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        thread::sleep(left.min(STOP_CHECK_INTERVAL));
    }
}

#[cfg(test)]
mod tests {
    use howdah_lab::wait_until;

    use super::*;

    #[test]
    fn late_replies_double_the_pause_timely_ones_halve_it() {
        let throttle = Throttle::new(None, None);
        let limit = Duration::from_millis(5);
        let pauses = |latency_ms: u64, times: u32| {
            (0..times)
                .map(|_| {
                    throttle.record_latency(Duration::from_millis(latency_ms), limit);
                    throttle.pause.load(Ordering::Relaxed)
                })
                .collect::<Vec<_>>()
        };
        assert_eq!(pauses(5, 2), [0, 0]);
        assert_eq!(pauses(6, 4), [16, 32, 64, 128]);
        assert_eq!(pauses(100, 9).last(), Some(&(PAUSE_FACTOR_MAX * SIXTEENTHS)));
        assert_eq!(pauses(1, 11).last(), Some(&0));
    }

    #[test]
    fn admission_waits_for_a_late_check() {
        let throttle = Throttle::new(None, Some(Duration::from_millis(1)));
        let check_start = Instant::now();
        throttle.check_started_us.store(1, Ordering::Relaxed);
        // Make the check overdue.
        wait_until("an overdue check", Duration::from_secs(60), || {
            check_start.elapsed() > Duration::from_millis(2)
        });
        let start = Instant::now();
        throttle.admit(1, || false);
        assert!(start.elapsed() >= LATE_CHECK_TIMEOUT);
        throttle.admit(1, || true);
    }

    #[test]
    fn unused_allowance_is_saved_for_half_a_second() {
        let throttle = Throttle::new(Some(1000), None);
        let due = |since: Instant, bytes| {
            *throttle.due.lock() = since;
            throttle.admit(bytes, || true);
            *throttle.due.lock()
        };
        let now = Instant::now();
        let recently = now - Duration::from_millis(200);
        assert_eq!(
            due(recently, 100),
            recently + Duration::from_millis(100),
            "all of it is available"
        );
        let before = Instant::now();
        let late = due(before - Duration::from_secs(60), 100);
        let least = before - UNUSED_ALLOWANCE_MAX + Duration::from_millis(100);
        assert!(late >= least, "a minute is not saved up");
    }

    #[test]
    fn bytes_are_admitted_at_the_rate() {
        let throttle = Throttle::new(Some(1000), None);
        let due = |bytes| {
            throttle.admit(bytes, || true);
            *throttle.due.lock()
        };
        let first = due(500);
        assert_eq!(due(250) - first, Duration::from_millis(250));
    }
}
