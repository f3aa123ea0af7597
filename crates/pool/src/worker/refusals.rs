//! [`Refusals`]: logins that were refused, counted by reason, and told in the log at a bounded rate.
//!
//! Each is a warning of its own as long as there are few. Beyond that a reason is summed up once a second, so
//! that who guesses passwords, or sends garbage, does not fill the log.

use std::{
    net::SocketAddr,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, RecvTimeoutError},
    },
    time::{Duration, Instant},
};

use howdah_net::Stream;

use super::control::Control;
use crate::auth::{RefusalReason, Rejection};

/// Between two summaries of what was not told one by one.
const SUMMARY_INTERVAL: Duration = Duration::from_secs(1);

/// Warnings of one reason before it is summed up; one more may follow each second.
const LOGIN_BURST: u32 = 10;

/// Reasons without a name: one line a second is enough for those.
const ANONYMOUS_BURST: u32 = 1;

const REASONS: usize = RefusalReason::ALL.len();

/// Logins that were refused.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    counts: [AtomicU64; REASONS],
    rates: Mutex<[Rate; REASONS]>,
}

/// Who was refused, as far as it said.
#[derive(Clone, Copy, Debug)]
pub(super) struct Refused<'a> {
    pub(super) user: Option<&'a str>,
    pub(super) database: Option<&'a str>,
    /// `unix` for a unix socket.
    pub(super) from: &'a str,
}

/// How many lines a reason may have now.
#[derive(Clone, Copy, Debug, Default)]
struct Rate {
    /// Lines that were written in the burst under way.
    written: u32,
    /// When one of them is forgotten.
    refilled: Option<Instant>,
    suppressed: u64,
}

impl Rate {
    /// Whether a line may be written.
    fn admits(&mut self, burst: u32, now: Instant) -> bool {
        let refilled = *self.refilled.get_or_insert(now);
        let seconds = now.saturating_duration_since(refilled).as_secs();
        if seconds > 0 {
            self.written = self.written.saturating_sub(u32::try_from(seconds).unwrap_or(u32::MAX));
            self.refilled = Some(refilled + Duration::from_secs(seconds));
        }
        let admits = self.written < burst;
        if admits {
            self.written += 1;
        } else {
            self.suppressed += 1;
        }
        admits
    }
}

fn index(reason: RefusalReason) -> usize {
    RefusalReason::ALL.iter().position(|it| *it == reason).unwrap_or(0)
}

fn burst(reason: RefusalReason) -> u32 {
    match reason {
        RefusalReason::Limit
        | RefusalReason::Protocol
        | RefusalReason::Tls
        | RefusalReason::Timeout
        | RefusalReason::CancelKey
        | RefusalReason::Shutdown => ANONYMOUS_BURST,
        _ => LOGIN_BURST,
    }
}

impl Refusals {
    /// Counts a refusal. Gives whether it may have a line of its own.
    fn count(&self, reason: RefusalReason) -> bool {
        let index = index(reason);
        self.counts[index].fetch_add(1, Ordering::Relaxed);
        let mut rates = self.rates.lock().unwrap_or_else(PoisonError::into_inner);
        rates[index].admits(burst(reason), Instant::now())
    }

    /// A login was refused.
    pub(super) fn login(&self, who: Refused<'_>, why: &Rejection, is_told: bool) {
        let reason = why.reason();
        let may_tell = self.count(reason);
        let (Refused { user, database, from }, reason) = (who, reason.as_str());
        if is_told && may_tell {
            tracing::warn!(user, database, from, reason, %why, "login refused");
        } else {
            tracing::debug!(user, database, from, reason, %why, "login refused");
        }
    }

    /// A TLS handshake with a client failed.
    pub(super) fn handshake(&self, from: &str, error: &dyn std::fmt::Display) {
        let reason = RefusalReason::Tls;
        if self.count(reason) {
            let reason = reason.as_str();
            tracing::warn!(from, reason, %error, "TLS handshake with a client failed");
        } else {
            tracing::debug!(from, %error, "TLS handshake with a client failed");
        }
    }

    /// A CancelRequest had a key that no client has.
    pub(super) fn cancel_key(&self, from: Option<SocketAddr>) {
        let reason = RefusalReason::CancelKey;
        if self.count(reason) {
            let (from, reason) = (place(from), reason.as_str());
            tracing::warn!(from, reason, "cancel request with a key that no client has");
        }
    }

    /// How many there were, by reason.
    pub(super) fn counts(&self) -> Vec<(RefusalReason, u64)> {
        let counts = self.counts.iter().map(|count| count.load(Ordering::Relaxed));
        RefusalReason::ALL.into_iter().zip(counts).collect()
    }

    /// Tells how many had no line of their own since this was called last.
    fn summarize(&self) {
        let mut rates = self.rates.lock().unwrap_or_else(PoisonError::into_inner);
        let suppressed = rates.each_mut().map(|rate| std::mem::take(&mut rate.suppressed));
        drop(rates);
        for (reason, suppressed) in RefusalReason::ALL.into_iter().zip(suppressed) {
            if suppressed > 0 {
                let reason = reason.as_str();
                tracing::warn!(reason, suppressed, "more logins refused for the same reason");
            }
        }
    }
}

/// Where a client comes from, for the log.
pub(super) fn from(stream: &Stream) -> String {
    place(stream.peer_address())
}

fn place(address: Option<SocketAddr>) -> String {
    address.map_or_else(|| "unix".to_owned(), |address| address.to_string())
}

impl Control {
    /// Sums up refused logins once a second until the pooler ends.
    pub(super) fn keep_refusals(&self, over: &Receiver<()>) {
        while over.recv_timeout(SUMMARY_INTERVAL) == Err(RecvTimeoutError::Timeout) {
            self.front.refusals.summarize();
        }
        self.front.refusals.summarize();
    }
}

#[test]
fn a_burst_is_followed_by_one_line_a_second() {
    let (mut rate, start) = (Rate::default(), Instant::now());
    let admitted = |rate: &mut Rate, at| (0..100).filter(|_| rate.admits(10, at)).count();
    assert_eq!(admitted(&mut rate, start), 10);
    assert_eq!(rate.suppressed, 90);
    assert_eq!(admitted(&mut rate, start + Duration::from_millis(999)), 0);
    assert_eq!(admitted(&mut rate, start + Duration::from_millis(1001)), 1);
    assert_eq!(admitted(&mut rate, start + Duration::from_millis(1999)), 0);
    assert_eq!(admitted(&mut rate, start + Duration::from_secs(4)), 3);
    assert_eq!(admitted(&mut rate, start + Duration::from_secs(4000)), 10);
}
