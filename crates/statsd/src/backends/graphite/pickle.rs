//! Pickles as etsy's server writes them: protocol 0, a list of `(name, (time, value))` with the value
//! as a string, after four bytes of length.
//!
//! Carbon takes no pickle above 1 MiB (its `MAX_LENGTH`), so an interval becomes as many as it needs.

use std::fmt::Write as _;

use crate::js::Number;

/// Bytes of one pickle's body, kept well below Carbon's limit of 1 MiB.
const BODY_BYTES_MAX: usize = 512 << 10;

/// Pickles being written.
pub(super) struct Pickle {
    frames: Vec<u8>,
    body: String,
}

impl Pickle {
    pub(super) fn new() -> Self {
        Self { frames: Vec::new(), body: String::new() }
    }

    /// Adds one value.
    pub(super) fn add(&mut self, name: &str, value: f64, time: i64) {
        if self.body.len() + name.len() > BODY_BYTES_MAX {
            self.end_frame();
        }
        // A quote or a backslash would end or alter the string; keys that were sanitised have none.
        let name = name.replace(['\'', '\\', '\n'], "");
        // Writing into a String cannot fail.
        let _ = write!(self.body, "(S'{name}'\n(L{time}L\nS'{}'\ntta", Number(value));
    }

    /// All frames.
    pub(super) fn into_frames(mut self) -> Vec<u8> {
        self.end_frame();
        self.frames
    }

    fn end_frame(&mut self) {
        if self.body.is_empty() {
            return;
        }
        // "(l" begins the list and "." ends the pickle.
        let length = (self.body.len() + 3) as u32;
        self.frames.extend_from_slice(&length.to_be_bytes());
        for part in ["(l", &self.body, "."] {
            self.frames.extend_from_slice(part.as_bytes());
        }
        self.body.clear();
    }
}

#[test]
fn a_pickle_is_that_of_etsys_server() {
    let mut pickle = Pickle::new();
    pickle.add("stats.a", 0.5, 1_700_000_000);
    pickle.add("it's", 1e21, 1);
    let body = "(l(S'stats.a'\n(L1700000000L\nS'0.5'\ntta(S'its'\n(L1L\nS'1e+21'\ntta.";
    let frames = pickle.into_frames();
    assert_eq!(frames[..4], (body.len() as u32).to_be_bytes());
    assert_eq!(std::str::from_utf8(&frames[4..]), Ok(body));
    assert_eq!(Pickle::new().into_frames(), b"");
}

#[test]
fn many_values_become_several_pickles_each_below_the_limit() {
    let mut pickle = Pickle::new();
    let name = "x".repeat(1000);
    (0..2000).for_each(|time| pickle.add(&name, 1.0, time));
    let frames = pickle.into_frames();
    let mut rest = &frames[..];
    let mut count = 0;
    while let Some((length, after)) = rest.split_first_chunk::<4>() {
        let length = u32::from_be_bytes(*length) as usize;
        assert!(length < 1 << 20);
        assert_eq!(after[length - 1], b'.');
        rest = &after[length..];
        count += 1;
    }
    assert_eq!((count, rest.len()), (4, 0));
}
