//! [`Refusals`]: refused logins, counted by reason and logged at a limited rate.
//!
//! While refusals are rare, each is logged as a warning; `log.pooler-errors` can turn this off for
//! refused logins. Frequent refusals are summarized once a second for each reason, so that password
//! guessing or garbage input does not fill the log.

use std::{
    net::SocketAddr,
    sync::{
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, RecvTimeoutError},
    },
    time::{Duration, Instant},
};

use howdah_net::Stream;
use parking_lot::Mutex;

use super::control::PoolerHandle;
use crate::auth::{RefusalReason, Rejection};

/// Interval between summaries of refusals that were not logged individually.
const SUMMARY_INTERVAL: Duration = Duration::from_secs(1);

/// Number of warnings for one reason before further refusals are only summarized; one more is
/// allowed each second.
const LOGIN_BURST: u32 = 10;

/// Like [`LOGIN_BURST`], for reasons that are usually known before the user name: one line a second
/// is sufficient.
const UNNAMED_BURST: u32 = 1;

const REASONS: usize = RefusalReason::ALL.len();

/// Counts of refused logins, with the rate limits of their log messages.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    counts: [AtomicU64; REASONS],
    rates: Mutex<[LogRateLimit; REASONS]>,
}

/// A refused login, with the names that the client has sent so far.
#[derive(Clone, Copy, Debug)]
pub(super) struct RefusedLogin<'a> {
    pub(super) user: Option<&'a str>,
    pub(super) database: Option<&'a str>,
    /// The client's address; `unix` for a unix socket.
    pub(super) from: &'a str,
}

/// The rate limit of a reason's log messages.
#[derive(Clone, Copy, Debug, Default)]
struct LogRateLimit {
    /// Number of lines written, decremented once a second.
    written: u32,
    /// Time at which `written` was last decremented.
    refilled: Option<Instant>,
    suppressed: u64,
}

impl LogRateLimit {
    /// Counts a line, and returns whether it may be written.
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

fn reason_index(reason: RefusalReason) -> usize {
    RefusalReason::ALL.iter().position(|it| *it == reason).unwrap_or(0)
}

fn burst(reason: RefusalReason) -> u32 {
    match reason {
        RefusalReason::Limit
        | RefusalReason::Protocol
        | RefusalReason::Tls
        | RefusalReason::Timeout
        | RefusalReason::CancelKey
        | RefusalReason::Shutdown => UNNAMED_BURST,
        _ => LOGIN_BURST,
    }
}

impl Refusals {
    /// Counts a refusal. Returns whether it may be logged individually.
    fn count(&self, reason: RefusalReason) -> bool {
        let index = reason_index(reason);
        self.counts[index].fetch_add(1, Ordering::Relaxed);
        let mut rates = self.rates.lock();
        rates[index].admits(burst(reason), Instant::now())
    }

    /// Counts and logs a refused login.
    pub(super) fn record_login(&self, who: RefusedLogin<'_>, why: &Rejection, as_warning: bool) {
        let reason = why.reason();
        let may_log = self.count(reason);
        let (RefusedLogin { user, database, from }, reason) = (who, reason.as_str());
        if as_warning && may_log {
            tracing::warn!(user, database, from, reason, %why, "login refused");
        } else {
            tracing::debug!(user, database, from, reason, %why, "login refused");
        }
    }

    /// Counts and logs a failed TLS handshake with a client.
    pub(super) fn record_tls_failure(&self, from: &str, error: &dyn std::fmt::Display) {
        let reason = RefusalReason::Tls;
        if self.count(reason) {
            let reason = reason.as_str();
            tracing::warn!(from, reason, %error, "TLS handshake with a client failed");
        } else {
            tracing::debug!(from, %error, "TLS handshake with a client failed");
        }
    }

    /// Counts a CancelRequest with an unknown key, and logs it unless the rate limit is reached.
    pub(super) fn record_cancel_key(&self, from: Option<SocketAddr>) {
        let reason = RefusalReason::CancelKey;
        if self.count(reason) {
            let (from, reason) = (address_text(from), reason.as_str());
            tracing::warn!(from, reason, "cancel request with unknown key");
        }
    }

    /// Returns the number of refusals, by reason.
    pub(super) fn counts(&self) -> Vec<(RefusalReason, u64)> {
        let counts = self.counts.iter().map(|count| count.load(Ordering::Relaxed));
        RefusalReason::ALL.into_iter().zip(counts).collect()
    }

    /// Logs how many refusals were not logged individually since the last call.
    fn summarize(&self) {
        let mut rates = self.rates.lock();
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

/// Returns a client's address, for the log.
pub(super) fn client_address(stream: &Stream) -> String {
    address_text(stream.peer_address())
}

fn address_text(address: Option<SocketAddr>) -> String {
    address.map_or_else(|| "unix".to_owned(), |address| address.to_string())
}

impl PoolerHandle {
    /// Summarizes refused logins once a second until the pooler ends.
    pub(super) fn summarize_refusals(&self, stop: &Receiver<()>) {
        while stop.recv_timeout(SUMMARY_INTERVAL) == Err(RecvTimeoutError::Timeout) {
            self.shared.refusals.summarize();
        }
        self.shared.refusals.summarize();
    }
}

#[test]
fn rate_limit_allows_burst_then_one_line_a_second() {
    let (mut rate, start) = (LogRateLimit::default(), Instant::now());
    let admitted = |rate: &mut LogRateLimit, at| (0..100).filter(|_| rate.admits(10, at)).count();
    assert_eq!(admitted(&mut rate, start), 10);
    assert_eq!(rate.suppressed, 90);
    assert_eq!(admitted(&mut rate, start + Duration::from_millis(999)), 0);
    assert_eq!(admitted(&mut rate, start + Duration::from_millis(1001)), 1);
    assert_eq!(admitted(&mut rate, start + Duration::from_millis(1999)), 0);
    assert_eq!(admitted(&mut rate, start + Duration::from_secs(4)), 3);
    assert_eq!(admitted(&mut rate, start + Duration::from_secs(4000)), 10);
}
