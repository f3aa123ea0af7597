//! Pickles as written by etsy's server: protocol 0, a list of `(name, (time, value))` with the
//! value as a string, preceded by a length of four bytes.
//!
//! Carbon accepts pickles of at most 1 MiB (its `MAX_LENGTH`), so an interval is split into
//! several, one per batch.

use std::fmt::Write as _;

use crate::js::JsNumber;

/// Approximate maximum length of a pickle's body in bytes, well below Carbon's limit of 1 MiB.
const BODY_BYTES_MAX: usize = 512 << 10;

/// A pickle being written.
#[derive(Debug, Default)]
pub(super) struct Pickle {
    body: String,
}

impl Pickle {
    /// Whether a value of this name would exceed the maximum.
    pub(super) fn is_full_for(&self, name: &str) -> bool {
        self.body.len() + name.len() > BODY_BYTES_MAX
    }

    /// Adds one tuple, `(name, (time, value))`.
    pub(super) fn add(&mut self, name: &str, value: f64, time: i64) {
        // These characters would end or change the string literal. Sanitised keys contain none of
        // them.
        let name = name.replace(['\'', '\\', '\n'], "");
        // Writing into a String cannot fail.
        let _ = write!(self.body, "(S'{name}'\n(L{time}L\nS'{}'\ntta", JsNumber(value));
    }

    /// Returns the pickle with its length prefix, and starts an empty one. Returns nothing if the
    /// pickle has no values.
    pub(super) fn take_frame(&mut self) -> Vec<u8> {
        if self.body.is_empty() {
            return Vec::new();
        }
        // "(l" starts the list and "." ends the pickle.
        let length = (self.body.len() + 3) as u32;
        let body = std::mem::take(&mut self.body);
        [&length.to_be_bytes()[..], b"(l", body.as_bytes(), b"."].concat()
    }
}

#[test]
fn pickle_matches_etsy_server() {
    let mut pickle = Pickle::default();
    pickle.add("stats.a", 0.5, 1_700_000_000);
    pickle.add("it's", 1e21, 1);
    let body = "(l(S'stats.a'\n(L1700000000L\nS'0.5'\ntta(S'its'\n(L1L\nS'1e+21'\ntta.";
    let frame = pickle.take_frame();
    assert_eq!(frame[..4], (body.len() as u32).to_be_bytes());
    assert_eq!(std::str::from_utf8(&frame[4..]), Ok(body));
    assert_eq!(pickle.take_frame(), b"");
}

#[test]
fn full_pickle_fits_carbon_limit() {
    let mut pickle = Pickle::default();
    let name = "x".repeat(1000);
    while !pickle.is_full_for(&name) {
        pickle.add(&name, 1.0, 1);
    }
    let length = pickle.take_frame().len();
    assert!((BODY_BYTES_MAX - 1000..1 << 20).contains(&length), "{length}");
}
