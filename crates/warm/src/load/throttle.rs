//! No faster than allowed: so many bytes a second, and slower while the server answers late.
//!
//! The server's own lateness is measured, not that of its users' transactions, which only their role
//! may see: a connection of its own asks for one row of a catalog, which is in the cache, every
//! [`PROBE_INTERVAL`]. Such a query waits for a processor and for locks of the buffer cache as theirs do.
//! While it takes longer than the limit, connections pause after each piece: at first as long as the
//! piece took, twice that with each late answer, up to [`PAUSES_MAX`] times; and half with each timely one.
//! While an answer is late that has not come at all, nothing new is begun, for [`HOLD_MAX`] at most: a
//! probe that hangs for a reason of its own makes a load slow and does not end it.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use howdah_connect::Client;

use crate::dump::QueryFailure;

/// What keeps connections from being too fast.
#[derive(Debug)]
pub(super) struct Throttle {
    bytes_per_second: Option<u64>,
    max_latency: Option<Duration>,
    began: Instant,
    /// When the probe under way was sent, in microseconds since then; 0 while there is none.
    asked_us: AtomicU64,
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
/// How long a piece waits for a probe that does not come back.
pub(super) const HOLD_MAX: Duration = Duration::from_millis(500);
/// After so long a probe is given up and another connection made for the next.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
/// For how long allowance that was not used is saved up: five pieces, which have the bytes of a tenth of a
/// second.
const SAVED_MAX: Duration = Duration::from_millis(500);
/// A sleeping thread looks this often whether all is to end.
const NAP: Duration = Duration::from_millis(100);
/// And whether a late probe has come back.
const SHORT_NAP: Duration = Duration::from_millis(2);

impl Throttle {
    pub(super) fn new(bytes_per_second: Option<u64>, max_latency: Option<Duration>) -> Self {
        let began = Instant::now();
        Self {
            bytes_per_second,
            max_latency,
            began,
            asked_us: AtomicU64::new(0),
            due: Mutex::new(began),
            pause: AtomicU32::new(0),
        }
    }

    /// Waits until `bytes` more may be loaded, unless `is_over` says that all is to end.
    pub(super) fn admit(&self, bytes: u64, is_over: impl Fn() -> bool) {
        self.hold(&is_over);
        let Some(rate) = self.bytes_per_second else { return };
        let until = {
            let mut due = self.due.lock().unwrap_or_else(PoisonError::into_inner);
            // What was not used is saved up, but not for long: a statement's own time, or a new
            // connection between small relations, does not cost throughput, and a pause does not end
            // in a burst.
            let earliest = Instant::now().checked_sub(SAVED_MAX).unwrap_or(*due);
            let begin = (*due).max(earliest);
            *due = begin + Duration::from_secs_f64(bytes as f64 / rate.max(1) as f64);
            begin
        };
        sleep_until(until, is_over);
    }

    /// Waits for a probe that is late.
    fn hold(&self, is_over: impl Fn() -> bool) {
        let Some(limit) = self.max_latency else { return };
        let until = Instant::now() + HOLD_MAX;
        let is_late = || match self.asked_us.load(Ordering::Relaxed) {
            0 => false,
            asked => self.began.elapsed() > Duration::from_micros(asked) + limit,
        };
        while is_late() && Instant::now() < until && !is_over() {
            thread::sleep(SHORT_NAP);
        }
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

    /// Measures the server until `is_over`, if there is a limit, over a connection that `connect` makes.
    pub(super) fn watch(
        &self,
        connect: impl Fn() -> Result<Client, QueryFailure>,
        is_over: impl Fn() -> bool,
    ) {
        let Some(limit) = self.max_latency else { return };
        while !is_over() {
            if let Ok(mut client) = connect() {
                client.set_timeout(Some(PROBE_TIMEOUT.max(limit * 2)));
                self.probe(&mut client, limit, &is_over);
            }
            self.asked_us.store(0, Ordering::Relaxed);
            thread::sleep(PROBE_INTERVAL);
        }
    }

    /// Asks again and again, until a question fails: whether the server is gone is for others to say.
    fn probe(&self, client: &mut Client, limit: Duration, is_over: impl Fn() -> bool) {
        if client.prepare("probe", PROBE).is_err() {
            return;
        }
        while !is_over() {
            let began = Instant::now();
            let asked = began.duration_since(self.began).as_micros().max(1);
            self.asked_us.store(u64::try_from(asked).unwrap_or(u64::MAX), Ordering::Relaxed);
            let answer = client.query_prepared("probe", &[]);
            self.note(began.elapsed(), limit);
            if answer.is_err() {
                return;
            }
            self.asked_us.store(0, Ordering::Relaxed);
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
        let throttle = Throttle::new(None, None);
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
    fn nothing_is_begun_while_an_answer_is_late() {
        let throttle = Throttle::new(None, Some(Duration::from_millis(1)));
        let asked = Instant::now();
        throttle.asked_us.store(1, Ordering::Relaxed);
        while asked.elapsed() < Duration::from_millis(2) {
            thread::yield_now();
        }
        let began = Instant::now();
        throttle.admit(1, || false);
        assert!(began.elapsed() >= HOLD_MAX);
        throttle.admit(1, || true);
    }

    #[test]
    fn unused_allowance_is_saved_up_for_half_a_second() {
        let throttle = Throttle::new(Some(1000), None);
        let due = |since: Instant, bytes| {
            *throttle.due.lock().unwrap() = since;
            throttle.admit(bytes, || true);
            *throttle.due.lock().unwrap()
        };
        let now = Instant::now();
        let recently = now - Duration::from_millis(200);
        assert_eq!(due(recently, 100), recently + Duration::from_millis(100), "all of it is left");
        let before = Instant::now();
        let late = due(before - Duration::from_secs(60), 100);
        let least = before - SAVED_MAX + Duration::from_millis(100);
        assert!(late >= least, "a minute is not saved up");
    }

    #[test]
    fn bytes_are_let_in_one_after_another() {
        let throttle = Throttle::new(Some(1000), None);
        let due = |bytes| {
            throttle.admit(bytes, || true);
            *throttle.due.lock().unwrap()
        };
        let first = due(500);
        assert_eq!(due(250) - first, Duration::from_millis(250));
    }
}
