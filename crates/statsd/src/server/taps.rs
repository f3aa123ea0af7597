//! Everybody who sees raw packets, as one [`Tap`].

use crate::intake::{MakeTap, Tap};

struct Taps(Vec<Box<dyn Tap>>);

/// One more of each tap, and the log of messages if `dump`; `None` if there is nobody.
pub(super) fn all(makers: &[MakeTap], dump: bool) -> Option<Box<dyn Tap>> {
    let mut taps: Vec<Box<dyn Tap>> = makers.iter().map(|make| make()).collect();
    if dump {
        taps.push(Box::new(Dump));
    }
    match taps.len() {
        0 => None,
        1 => taps.pop(),
        _ => Some(Box::new(Taps(taps))),
    }
}

impl Tap for Taps {
    fn packet(&mut self, bytes: &[u8]) {
        self.0.iter_mut().for_each(|tap| tap.packet(bytes));
    }

    fn end_of_batch(&mut self) {
        self.0.iter_mut().for_each(|tap| tap.end_of_batch());
    }
}

/// `dump-messages`: every metric line into the log.
struct Dump;

impl Tap for Dump {
    fn packet(&mut self, bytes: &[u8]) {
        for line in bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            tracing::info!(line = %String::from_utf8_lossy(line).escape_debug(), "received");
        }
    }
}
