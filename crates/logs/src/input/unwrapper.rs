//! [`EnvelopeReader`]: the layers around a log without files and threads.

use std::time::SystemTime;

use super::{
    Calendar,
    layer::{Found, Issue},
    wrapping::{Chain, Envelope, Settings},
};
use crate::{reader::Closing, summary::Reason};

/// Takes off what services wrap around a log: bytes in, bytes of the plain log out.
///
/// [`read_files`](crate::read_files) does this by itself. An unwrapper is for whoever has the bytes from
/// elsewhere, and gives what comes out to an [`Importer`](crate::Importer).
///
/// ```text
/// feed* ─► (idle) ─► feed* ─► finish
///   └───── take_inside, take_problems, after each call ─────┘
/// ```
///
/// Memory is bounded by the longest record, and by what waits to be taken.
///
/// ```
/// use howdah_logs::{EnvelopeReader, Envelope};
///
/// let mut reader = EnvelopeReader::new(1 << 20, std::time::SystemTime::now());
/// reader.feed(b"2026-11-20T12:43:19.577Z stderr F 2026-11-20 12:43:19.577 UTC [7] LOG:  x\n");
/// reader.finish();
/// assert_eq!(reader.take_inside(), b"2026-11-20 12:43:19.577 UTC [7] LOG:  x\n");
/// assert_eq!(reader.wrappings(), [Envelope::Cri]);
/// ```
#[derive(Debug)]
pub struct EnvelopeReader {
    chain: Chain,
    settings: Settings,
    found: Found,
}

impl EnvelopeReader {
    /// Finds out by itself what is around the log, if anything is. `written` is when the last of it was
    /// written: some times in syslog have no year.
    pub fn new(record_bytes_max: usize, written: SystemTime) -> Self {
        let settings = Settings { record_bytes_max, calendar: Calendar::at(written) };
        Self { chain: Chain::new(), settings, found: Found::default() }
    }

    /// Takes this off, and nothing else.
    pub fn expecting(wrapping: Envelope, record_bytes_max: usize, written: SystemTime) -> Self {
        let settings = Settings { record_bytes_max, calendar: Calendar::at(written) };
        Self { chain: Chain::expecting(wrapping, &settings), settings, found: Found::default() }
    }

    /// Takes the next bytes.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.chain.feed(bytes, Closing::Open, &self.settings, &mut self.found);
    }

    /// Says that nothing came for a while: what looks complete comes out.
    pub fn idle(&mut self) {
        self.chain.feed(b"", Closing::Idle, &self.settings, &mut self.found);
    }

    /// Says that nothing will come any more.
    pub fn finish(&mut self) {
        self.chain.feed(b"", Closing::End, &self.settings, &mut self.found);
    }

    /// What came out since the last call.
    pub fn take_inside(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.found.inside)
    }

    /// What could not be read or is not ours since the last call: why, how often, and the line of the
    /// outside where it was met first.
    pub fn take_problems(&mut self) -> impl Iterator<Item = (Reason, u64, u64)> {
        let problems = std::mem::take(&mut self.found.problems);
        problems.into_iter().map(|Issue { reason, count, line, .. }| (reason, count, line))
    }

    /// What was taken off so far, from the outside.
    pub fn wrappings(&self) -> &[Envelope] {
        self.chain.wrappings()
    }

    /// What was put in front of the server's own line prefix, which had no time.
    pub fn added_prefix(&self) -> Option<&'static str> {
        self.chain.added_prefix()
    }
}
