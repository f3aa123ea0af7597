//! [`Mirror`]: what all workers and users of a mirror have in common: who is mirrored, how much waits, and
//! what was counted.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use super::{DropReason, MirrorResult};
use crate::refusal::Refusal;

/// The code of an error.
pub(crate) type SqlState = [u8; 5];

/// What an error is counted as that was too long to be looked at.
const UNKNOWN: SqlState = *b"XX000";

/// The code in the body of an ErrorResponse.
pub(crate) fn sqlstate_in(body: &[u8]) -> SqlState {
    let mut fields = body.split(|byte| *byte == 0);
    let code = fields.find_map(|field| field.strip_prefix(b"C"));
    code.and_then(|code| code.try_into().ok()).unwrap_or(UNKNOWN)
}

/// The text in the body of an ErrorResponse, cut if it is long.
fn message_in(body: &[u8]) -> String {
    let mut fields = body.split(|byte| *byte == 0);
    let text = fields.find_map(|field| field.strip_prefix(b"M")).unwrap_or_default();
    String::from_utf8_lossy(&text[..text.len().min(MESSAGE_BYTES)]).into_owned()
}

/// So much of an error's text is kept.
const MESSAGE_BYTES: usize = 200;

/// Classes of errors that are counted apart; PostgreSQL has some forty.
const CLASSES_MAX: usize = 64;

/// A mirror of a database, for all workers and users.
#[derive(Debug, Default)]
pub struct Mirror {
    /// Clients that came while there was this mirror.
    drawn: AtomicU64,
    clients: AtomicU64,
    buffered: AtomicU64,
    transactions: AtomicU64,
    mirror_failed: AtomicU64,
    client_failed: AtomicU64,
    different: AtomicU64,
    dropped: [AtomicU64; DropReason::ALL.len()],
    dropped_bytes: AtomicU64,
    errors: Mutex<Errors>,
}

/// What errors a mirror had that the database had not.
#[derive(Clone, Debug, Default)]
struct Errors {
    by_class: BTreeMap<[u8; 2], u64>,
    last: Option<String>,
}

/// What was counted of a mirror, since there is one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MirrorReport {
    /// Clients that are mirrored now.
    pub clients: u64,
    /// Bytes of their transactions that wait or are under way.
    pub buffered_bytes: u64,
    /// Transactions that were run to their end on the mirror.
    pub transactions: u64,
    /// Those of them with an error that the database did not have.
    pub mirror_failed: u64,
    /// Those of them without the error that the database had.
    pub client_failed: u64,
    /// Those of them with an error of another code.
    pub different: u64,
    /// Transactions that were not, by the places in [`DropReason::ALL`].
    pub dropped: [u64; DropReason::ALL.len()],
    /// Bytes that clients sent of these.
    pub dropped_bytes: u64,
    /// How many transactions first had an error of which class there, and none or another here.
    pub classes: Vec<([u8; 2], u64)>,
    /// The last such error, or why the mirror could not be logged in to.
    pub last_error: Option<String>,
}

impl MirrorReport {
    /// How many were dropped, for whatever reason.
    pub fn dropped_in_all(&self) -> u64 {
        self.dropped.iter().sum()
    }
}

impl Mirror {
    /// Whether the next client is one of a share. Of any clients in a row, about as many are as the share
    /// says; no short pattern in how clients come meets one here, since the places are multiples of the
    /// golden ratio. The same clients in the same order are drawn the same.
    pub(crate) fn draws(&self, share: f64) -> bool {
        let number = self.drawn.fetch_add(1, Ordering::Relaxed);
        is_drawn(number, share)
    }

    /// A client is mirrored from now on.
    pub(crate) fn joins(&self) {
        self.clients.fetch_add(1, Ordering::Relaxed);
    }

    /// A client is mirrored no more.
    pub(crate) fn leaves(&self) {
        self.clients.fetch_sub(1, Ordering::Relaxed);
    }

    /// Takes room for bytes, unless there would be more than `max`.
    pub(crate) fn take_room(&self, bytes: usize, max: usize) -> bool {
        let (bytes, max) = (bytes as u64, max as u64);
        let before = self.buffered.fetch_add(bytes, Ordering::Relaxed);
        let fits = before.saturating_add(bytes) <= max;
        if !fits {
            self.buffered.fetch_sub(bytes, Ordering::Relaxed);
        }
        fits
    }

    pub(crate) fn give_room(&self, bytes: usize) {
        self.buffered.fetch_sub(bytes as u64, Ordering::Relaxed);
    }

    /// A transaction was dropped, of which its client sent so many bytes, or more.
    pub(crate) fn drops(&self, why: DropReason, bytes: usize) {
        self.dropped[why as usize].fetch_add(1, Ordering::Relaxed);
        self.dropped_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// A transaction was run to its end, with these first errors.
    pub(crate) fn ran(&self, here: Option<SqlState>, there: Option<&MirrorError>) -> MirrorResult {
        self.transactions.fetch_add(1, Ordering::Relaxed);
        let compared = match (here, there) {
            (None, None) => MirrorResult::Same,
            (Some(here), Some(there)) if here == there.sqlstate => MirrorResult::Same,
            (None, Some(_)) => MirrorResult::MirrorFailed,
            (Some(_), None) => MirrorResult::ClientFailed,
            (Some(_), Some(_)) => MirrorResult::Different,
        };
        match compared {
            MirrorResult::Same => return compared,
            MirrorResult::MirrorFailed => &self.mirror_failed,
            MirrorResult::ClientFailed => &self.client_failed,
            MirrorResult::Different => &self.different,
        }
        .fetch_add(1, Ordering::Relaxed);
        if let Some(there) = there {
            let [first, second, ..] = there.sqlstate;
            let mut errors = self.errors();
            let is_known = errors.by_class.contains_key(&[first, second]);
            if is_known || errors.by_class.len() < CLASSES_MAX {
                *errors.by_class.entry([first, second]).or_default() += 1;
            }
            errors.last = Some(there.shown());
        }
        compared
    }

    /// Keeps why the mirror could not be used.
    pub(crate) fn failed(&self, refusal: &Refusal) {
        let sqlstate = String::from_utf8_lossy(&refusal.sqlstate()).into_owned();
        self.errors().last = Some(format!("{sqlstate}: {refusal}"));
    }

    fn errors(&self) -> MutexGuard<'_, Errors> {
        self.errors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was counted. The numbers are not of one moment.
    pub fn report(&self) -> MirrorReport {
        let read = |number: &AtomicU64| number.load(Ordering::Relaxed);
        let Errors { by_class, last } = self.errors().clone();
        MirrorReport {
            clients: read(&self.clients),
            buffered_bytes: read(&self.buffered),
            transactions: read(&self.transactions),
            mirror_failed: read(&self.mirror_failed),
            client_failed: read(&self.client_failed),
            different: read(&self.different),
            dropped: std::array::from_fn(|at| read(&self.dropped[at])),
            dropped_bytes: read(&self.dropped_bytes),
            classes: by_class.into_iter().collect(),
            last_error: last,
        }
    }
}

/// 2⁶⁴ divided by the golden ratio.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

fn is_drawn(number: u64, share: f64) -> bool {
    // Its 53 highest bits are what a double can tell apart.
    #[expect(clippy::cast_precision_loss, reason = "53 bits are a double's")]
    let place = (number.wrapping_mul(GOLDEN) >> 11) as f64 / (1_u64 << 53) as f64;
    place < share
}

/// An error that a mirror had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MirrorError {
    pub(crate) sqlstate: SqlState,
    message: String,
}

impl MirrorError {
    /// Of the body of an ErrorResponse.
    pub(crate) fn new(body: &[u8]) -> Self {
        Self { sqlstate: sqlstate_in(body), message: message_in(body) }
    }

    fn shown(&self) -> String {
        format!("{}: {}", String::from_utf8_lossy(&self.sqlstate), self.message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_of_clients_is_drawn_and_the_same_ones_of_a_larger_share() {
        for share in [0.0, 0.01, 0.1, 0.25, 0.5, 0.9, 1.0] {
            let drawn: Vec<_> = (0..1000).map(|number| is_drawn(number, share)).collect();
            for clients in [10, 100, 1000] {
                let count = drawn[..clients].iter().filter(|it| **it).count();
                let off = (count as f64 - share * clients as f64).abs();
                assert!(off < 3.0, "{count} of {clients} for {share}");
            }
            // Whoever connects in turns is mirrored as often as the other.
            let even = drawn.iter().step_by(2).filter(|it| **it).count();
            assert!((even as f64 - share * 500.0).abs() < 3.0, "{even} of every other for {share}");
            let more = |number| is_drawn(number, share + 0.1);
            assert!(drawn.iter().zip(0..).all(|(is_drawn, number)| !is_drawn || more(number)));
        }
    }

    #[test]
    fn room_is_never_more_than_there_is() {
        let mirror = Mirror::default();
        assert!(mirror.take_room(60, 100));
        assert!(!mirror.take_room(41, 100));
        assert!(mirror.take_room(40, 100));
        mirror.give_room(100);
        assert_eq!(mirror.report().buffered_bytes, 0);
    }

    #[test]
    fn an_error_is_known_by_its_code() {
        let body = b"SERROR\0VERROR\0C42P01\0Mrelation \"t\" does not exist\0\0";
        let error = MirrorError::new(body);
        assert_eq!(error.shown(), "42P01: relation \"t\" does not exist");
        assert_eq!(sqlstate_in(b""), UNKNOWN);
        let mirror = Mirror::default();
        assert_eq!(mirror.ran(None, None), MirrorResult::Same);
        assert_eq!(mirror.ran(Some(*b"42P01"), Some(&error)), MirrorResult::Same);
        assert_eq!(mirror.ran(None, Some(&error)), MirrorResult::MirrorFailed);
        assert_eq!(mirror.ran(Some(*b"23505"), Some(&error)), MirrorResult::Different);
        assert_eq!(mirror.ran(Some(*b"23505"), None), MirrorResult::ClientFailed);
        let report = mirror.report();
        assert_eq!(report.classes, [(*b"42", 2)]);
        assert_eq!((report.transactions, report.different), (5, 1));
    }
}
