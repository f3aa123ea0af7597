//! [`Mirror`]: the state of a mirror that all workers and pools share: the sampling of clients, the
//! amount of buffered data, and counters.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU64, Ordering},
};

use parking_lot::{Mutex, MutexGuard};

use crate::{
    mirror::outcome::{DropReason, MirrorResult},
    refusal::ClientRefusal,
};

/// The five characters of an SQLSTATE.
pub(crate) type SqlstateBytes = [u8; 5];

/// The SQLSTATE assumed for an error that has none, or was too long to be parsed.
const UNKNOWN_SQLSTATE: SqlstateBytes = *b"XX000";

/// Returns the SQLSTATE in the body of an ErrorResponse.
pub(crate) fn parse_sqlstate(body: &[u8]) -> SqlstateBytes {
    let mut fields = body.split(|byte| *byte == 0);
    let code = fields.find_map(|field| field.strip_prefix(b"C"));
    code.and_then(|code| code.try_into().ok()).unwrap_or(UNKNOWN_SQLSTATE)
}

/// Returns the message in the body of an ErrorResponse, truncated to [`MESSAGE_BYTES_MAX`] bytes.
fn parse_message(body: &[u8]) -> String {
    let mut fields = body.split(|byte| *byte == 0);
    let text = fields.find_map(|field| field.strip_prefix(b"M")).unwrap_or_default();
    String::from_utf8_lossy(&text[..text.len().min(MESSAGE_BYTES_MAX)]).into_owned()
}

/// Maximum length of a retained error message, in bytes.
const MESSAGE_BYTES_MAX: usize = 200;

/// Maximum number of error classes that are counted; PostgreSQL has about forty.
const CLASSES_MAX: usize = 64;

/// The sampling state and counters of a mirror, shared by all workers and all users' pools.
#[derive(Debug, Default)]
pub struct Mirror {
    /// Number of clients considered for sampling so far.
    candidates: AtomicU64,
    clients: AtomicU64,
    buffered: AtomicU64,
    transactions: AtomicU64,
    failed_mirror_only: AtomicU64,
    failed_client_only: AtomicU64,
    sqlstate_differs: AtomicU64,
    dropped: [AtomicU64; DropReason::ALL.len()],
    dropped_bytes: AtomicU64,
    errors: Mutex<MirrorErrors>,
}

/// Counts of transactions with an error on a mirror that the database did not report too, and the
/// text of the mirror's last error.
#[derive(Clone, Debug, Default)]
struct MirrorErrors {
    by_class: BTreeMap<[u8; 2], u64>,
    last: Option<String>,
}

/// A copy of a mirror's counters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MirrorReport {
    /// Number of clients that are mirrored now.
    pub clients: u64,
    /// Bytes reserved in the buffer for transactions that are open, queued or running.
    pub buffered_bytes: u64,
    /// Number of transactions that have run on the mirror, so that the results could be compared.
    pub transactions: u64,
    /// Number of these transactions that failed on the mirror but not on the database.
    pub failed_mirror_only: u64,
    /// Number of these transactions that failed on the database but not on the mirror.
    pub failed_client_only: u64,
    /// Number of these transactions that failed on both, with different SQLSTATEs.
    pub sqlstate_differs: u64,
    /// Number of dropped transactions, indexed as [`DropReason::ALL`].
    pub dropped: [u64; DropReason::ALL.len()],
    /// Bytes that clients sent in dropped transactions.
    pub dropped_bytes: u64,
    /// Number of transactions by the SQLSTATE class of the mirror's first error, if the database
    /// reported no error or a different one.
    pub classes: Vec<([u8; 2], u64)>,
    /// The mirror's last error that the database did not report too, or the reason why a
    /// transaction there was dropped, whichever came last.
    pub last_error: Option<String>,
}

impl MirrorReport {
    /// Returns the total number of dropped transactions, for all reasons.
    pub fn dropped_total(&self) -> u64 {
        self.dropped.iter().sum()
    }
}

impl Mirror {
    /// Whether to mirror the next client. In any sequence of clients, about the fraction
    /// `sample_rate` is sampled. Since the sampling positions are multiples of the golden ratio,
    /// short patterns in the order of connections do not bias the result. The same sequence of
    /// calls always returns the same results.
    pub(crate) fn sample(&self, sample_rate: f64) -> bool {
        let number = self.candidates.fetch_add(1, Ordering::Relaxed);
        is_sampled(number, sample_rate)
    }

    /// Adds one to the number of mirrored clients.
    pub(crate) fn add_client(&self) {
        self.clients.fetch_add(1, Ordering::Relaxed);
    }

    /// Subtracts one from the number of mirrored clients.
    pub(crate) fn remove_client(&self) {
        self.clients.fetch_sub(1, Ordering::Relaxed);
    }

    /// Reserves buffer space, unless the total would exceed `max` bytes. Returns whether it was
    /// reserved.
    pub(crate) fn reserve(&self, bytes: usize, max: usize) -> bool {
        let (bytes, max) = (bytes as u64, max as u64);
        let before = self.buffered.fetch_add(bytes, Ordering::Relaxed);
        let fits = before.saturating_add(bytes) <= max;
        if !fits {
            self.buffered.fetch_sub(bytes, Ordering::Relaxed);
        }
        fits
    }

    pub(crate) fn release(&self, bytes: usize) {
        self.buffered.fetch_sub(bytes as u64, Ordering::Relaxed);
    }

    /// Counts a dropped transaction, with the bytes that its client sent.
    pub(crate) fn record_drop(&self, reason: DropReason, bytes: usize) {
        self.dropped[reason as usize].fetch_add(1, Ordering::Relaxed);
        self.dropped_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Compares the first errors of a finished transaction, `client_error` on the database and
    /// `mirror_error` on the mirror. Counts the transaction by the result, which is returned.
    pub(crate) fn record_result(
        &self,
        client_error: Option<SqlstateBytes>,
        mirror_error: Option<&MirrorError>,
    ) -> MirrorResult {
        self.transactions.fetch_add(1, Ordering::Relaxed);
        let result = match (client_error, mirror_error) {
            (None, None) => MirrorResult::Same,
            (Some(client_error), Some(mirror_error)) if client_error == mirror_error.sqlstate => {
                MirrorResult::Same
            }
            (None, Some(_)) => MirrorResult::FailedMirrorOnly,
            (Some(_), None) => MirrorResult::FailedClientOnly,
            (Some(_), Some(_)) => MirrorResult::SqlstateDiffers,
        };
        match result {
            MirrorResult::Same => return result,
            MirrorResult::FailedMirrorOnly => &self.failed_mirror_only,
            MirrorResult::FailedClientOnly => &self.failed_client_only,
            MirrorResult::SqlstateDiffers => &self.sqlstate_differs,
        }
        .fetch_add(1, Ordering::Relaxed);
        if let Some(mirror_error) = mirror_error {
            let [first, second, ..] = mirror_error.sqlstate;
            let mut errors = self.errors();
            let is_known = errors.by_class.contains_key(&[first, second]);
            if is_known || errors.by_class.len() < CLASSES_MAX {
                *errors.by_class.entry([first, second]).or_default() += 1;
            }
            errors.last = Some(mirror_error.describe());
        }
        result
    }

    /// Records, as the mirror's last error, the reason why a mirror client was disconnected.
    pub(crate) fn record_failure(&self, refusal: &ClientRefusal) {
        let sqlstate = String::from_utf8_lossy(&refusal.sqlstate()).into_owned();
        self.errors().last = Some(format!("{sqlstate}: {refusal}"));
    }

    fn errors(&self) -> MutexGuard<'_, MirrorErrors> {
        self.errors.lock()
    }

    /// Returns the counters. They are read one after another, so they may not be consistent.
    pub fn report(&self) -> MirrorReport {
        let read = |number: &AtomicU64| number.load(Ordering::Relaxed);
        let MirrorErrors { by_class, last } = self.errors().clone();
        MirrorReport {
            clients: read(&self.clients),
            buffered_bytes: read(&self.buffered),
            transactions: read(&self.transactions),
            failed_mirror_only: read(&self.failed_mirror_only),
            failed_client_only: read(&self.failed_client_only),
            sqlstate_differs: read(&self.sqlstate_differs),
            dropped: std::array::from_fn(|at| read(&self.dropped[at])),
            dropped_bytes: read(&self.dropped_bytes),
            classes: by_class.into_iter().collect(),
            last_error: last,
        }
    }
}

/// 2⁶⁴ divided by the golden ratio, rounded to an odd number.
const GOLDEN_RATIO: u64 = 0x9e37_79b9_7f4a_7c15;

fn is_sampled(number: u64, sample_rate: f64) -> bool {
    // A double can represent only 53 bits exactly: use the highest ones.
    #[expect(clippy::cast_precision_loss, reason = "53 bits are a double's")]
    let position = (number.wrapping_mul(GOLDEN_RATIO) >> 11) as f64 / (1_u64 << 53) as f64;
    position < sample_rate
}

/// An error that a mirror reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MirrorError {
    pub(crate) sqlstate: SqlstateBytes,
    message: String,
}

impl MirrorError {
    /// Parses the body of an ErrorResponse.
    pub(crate) fn new(body: &[u8]) -> Self {
        Self { sqlstate: parse_sqlstate(body), message: parse_message(body) }
    }

    fn describe(&self) -> String {
        format!("{}: {}", String::from_utf8_lossy(&self.sqlstate), self.message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sample_matches_rate_and_higher_rates_include_it() {
        for sample_rate in [0.0, 0.01, 0.1, 0.25, 0.5, 0.9, 1.0] {
            let sampled: Vec<_> = (0..1000).map(|number| is_sampled(number, sample_rate)).collect();
            for clients in [10, 100, 1000] {
                let count = sampled[..clients].iter().filter(|it| **it).count();
                let off = (count as f64 - sample_rate * clients as f64).abs();
                assert!(off < 3.0, "{count} of {clients} for {sample_rate}");
            }
            // Two kinds of clients that connect alternately are sampled equally often.
            let even = sampled.iter().step_by(2).filter(|it| **it).count();
            assert!(
                (even as f64 - sample_rate * 500.0).abs() < 3.0,
                "{even} of every other for {sample_rate}"
            );
            let more = |number| is_sampled(number, sample_rate + 0.1);
            assert!(sampled.iter().zip(0..).all(|(is_in, number)| !is_in || more(number)));
        }
    }

    #[test]
    fn reservations_never_exceed_maximum() {
        let mirror = Mirror::default();
        assert!(mirror.reserve(60, 100));
        assert!(!mirror.reserve(41, 100));
        assert!(mirror.reserve(40, 100));
        mirror.release(100);
        assert_eq!(mirror.report().buffered_bytes, 0);
    }

    #[test]
    fn errors_are_compared_by_sqlstate() {
        let body = b"SERROR\0VERROR\0C42P01\0Mrelation \"t\" does not exist\0\0";
        let error = MirrorError::new(body);
        assert_eq!(error.describe(), "42P01: relation \"t\" does not exist");
        assert_eq!(parse_sqlstate(b""), UNKNOWN_SQLSTATE);
        let mirror = Mirror::default();
        assert_eq!(mirror.record_result(None, None), MirrorResult::Same);
        assert_eq!(mirror.record_result(Some(*b"42P01"), Some(&error)), MirrorResult::Same);
        assert_eq!(mirror.record_result(None, Some(&error)), MirrorResult::FailedMirrorOnly);
        assert_eq!(
            mirror.record_result(Some(*b"23505"), Some(&error)),
            MirrorResult::SqlstateDiffers
        );
        assert_eq!(mirror.record_result(Some(*b"23505"), None), MirrorResult::FailedClientOnly);
        let report = mirror.report();
        assert_eq!(report.classes, [(*b"42", 2)]);
        assert_eq!((report.transactions, report.sqlstate_differs), (5, 1));
    }
}
