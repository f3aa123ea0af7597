//! No faster than allowed: so many bytes a second, and slower while the server answers late.
//!
//! The server's own lateness is measured, not that of its users' transactions, which only their role
//! may see: a connection of its own asks for one row of a catalog, which is in the cache, every
//! [`PROBE_INTERVAL`]. Such a query waits for a processor and for locks of the buffer cache as theirs do.
//! While it takes longer than the limit, connections pause after each piece: at first as long as the
//! piece took, twice that with each late answer, up to [`PAUSES_MAX`] times; and half with each timely one.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use howdah_connect::Client;

/// What keeps connections from being too fast.
#[derive(Debug)]
pub(super) struct Throttle {
    bytes_per_second: Option<u64>,
    /// When the bytes that were allowed so far are all due.
    due: Mutex<Instant>,
    /// Pause after a piece, as a multiple of the time it took, in sixteenths.
    pause: AtomicU32,
}

const SIXTEENTHS: u32 = 16;
/// Longest pause after a piece, as a multiple of the time it took.
const PAUSES_MAX: u32 = 64;
/// How often the server is asked for a row.
const PROBE_INTERVAL: Duration = Duration::from_millis(20);
/// A sleeping thread looks this often whether all is to end.
const NAP: Duration = Duration::from_millis(100);

impl Throttle {
    pub(super) fn new(bytes_per_second: Option<u64>) -> Self {
        let due = Mutex::new(Instant::now());
        Self { bytes_per_second, due, pause: AtomicU32::new(0) }
    }

    /// Waits until `bytes` more may be loaded, unless `is_over` says that all is to end.
    pub(super) fn admit(&self, bytes: u64, is_over: impl Fn() -> bool) {
        let Some(rate) = self.bytes_per_second else { return };
        let until = {
            let mut due = self.due.lock().unwrap_or_else(PoisonError::into_inner);
            // What was not used is not saved up.
            let begin = (*due).max(Instant::now());
            *due = begin + Duration::from_secs_f64(bytes as f64 / rate.max(1) as f64);
            begin
        };
        sleep_until(until, is_over);
    }

    /// Waits after a piece that took `took`, if the server answers late.
    pub(super) fn rest(&self, took: Duration, is_over: impl Fn() -> bool) {
        let pause = self.pause.load(Ordering::Relaxed);
        if pause > 0 {
            sleep_until(Instant::now() + took * pause / SIXTEENTHS, is_over);
        }
    }

    /// Notes how long the server took to answer.
    fn note(&self, latency: Duration, limit: Duration) {
        let pause = self.pause.load(Ordering::Relaxed);
        let next = match latency > limit {
            true => (pause * 2).clamp(SIXTEENTHS, PAUSES_MAX * SIXTEENTHS),
            false => pause / 2,
        };
        self.pause.store(next, Ordering::Relaxed);
    }

    /// Measures the server by `client` until `is_over`. A probe that fails is over: connections then
    /// find out for themselves what is wrong.
    pub(super) fn watch(&self, mut client: Client, limit: Duration, is_over: impl Fn() -> bool) {
        let asked = client.prepare("probe", PROBE);
        if asked.is_err() {
            return;
        }
        while !is_over() {
            let began = Instant::now();
            if client.query_prepared("probe", &[]).is_err() {
                return;
            }
            self.note(began.elapsed(), limit);
            thread::sleep(PROBE_INTERVAL);
        }
    }
}

const PROBE: &str = "SELECT relname FROM pg_catalog.pg_class WHERE oid = 1259";

fn sleep_until(until: Instant, is_over: impl Fn() -> bool) {
    while !is_over() {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        thread::sleep(left.min(NAP));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_answers_double_the_pause_and_timely_ones_halve_it() {
        let throttle = Throttle::new(None);
        let limit = Duration::from_millis(5);
        let pauses = |latency_ms: u64, times: u32| {
            (0..times)
                .map(|_| {
                    throttle.note(Duration::from_millis(latency_ms), limit);
                    throttle.pause.load(Ordering::Relaxed)
                })
                .collect::<Vec<_>>()
        };
        assert_eq!(pauses(5, 2), [0, 0]);
        assert_eq!(pauses(6, 4), [16, 32, 64, 128]);
        assert_eq!(pauses(100, 9).last(), Some(&(PAUSES_MAX * SIXTEENTHS)));
        assert_eq!(pauses(1, 11).last(), Some(&0));
    }

    #[test]
    fn bytes_are_let_in_one_after_another() {
        let throttle = Throttle::new(Some(1000));
        let due = |bytes| {
            throttle.admit(bytes, || true);
            *throttle.due.lock().unwrap()
        };
        let first = due(500);
        assert_eq!(due(250) - first, Duration::from_millis(250));
    }
}
