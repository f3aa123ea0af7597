//! [`EnvelopeReader`]: removes envelopes without files or threads.

use std::time::SystemTime;

use super::{
    Calendar,
    envelope::{Envelope, EnvelopeOptions, LayerChain},
    layer::{Issue, LayerOutput},
};
use crate::{InputState, problem::InputProblem};

/// A reader that removes the envelopes that services put around a log: bytes in, bytes of the plain
/// log out.
///
/// `read_files` of the `logs` crate does this itself. This reader is for callers that get the bytes
/// from elsewhere and feed its output to an `Importer`.
///
/// ```text
/// feed* ─► (idle) ─► feed* ─► finish
///   └───── take_log, take_problems, after each call ─────┘
/// ```
///
/// Most memory is needed for incomplete records, for output that was not taken, and for up to
/// 64 MiB of entries that run from new to old.
///
/// ```
/// use howdah_log_input::{Envelope, EnvelopeReader};
///
/// let mut reader = EnvelopeReader::new(1 << 20, std::time::SystemTime::now());
/// reader.feed(b"2026-11-20T12:43:19.577Z stderr F 2026-11-20 12:43:19.577 UTC [7] LOG:  x\n");
/// reader.finish();
/// assert_eq!(reader.take_log(), b"2026-11-20 12:43:19.577 UTC [7] LOG:  x\n");
/// assert_eq!(reader.envelopes(), [Envelope::Cri]);
/// ```
#[derive(Debug)]
pub struct EnvelopeReader {
    chain: LayerChain,
    settings: EnvelopeOptions,
    output: LayerOutput,
}

impl EnvelopeReader {
    /// Creates a reader that detects the envelopes, if there are any. `written` is the time of the
    /// log's last line, needed because some syslog formats have no year.
    pub fn new(record_bytes_max: usize, written: SystemTime) -> Self {
        let settings =
            EnvelopeOptions { record_bytes_max, calendar: Calendar::from_system_time(written) };
        Self { chain: LayerChain::new(), settings, output: LayerOutput::default() }
    }

    /// Creates a reader for exactly one envelope; `written` is as for [`new`](Self::new).
    pub fn expecting(envelope: Envelope, record_bytes_max: usize, written: SystemTime) -> Self {
        let settings =
            EnvelopeOptions { record_bytes_max, calendar: Calendar::from_system_time(written) };
        Self {
            chain: LayerChain::expecting(envelope, &settings),
            settings,
            output: LayerOutput::default(),
        }
    }

    /// Reads the next bytes.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.chain.feed(bytes, InputState::Open, &self.settings, &mut self.output);
    }

    /// Reports that no input arrived for a while, so that records that look complete are emitted.
    pub fn idle(&mut self) {
        self.chain.feed(b"", InputState::Idle, &self.settings, &mut self.output);
    }

    /// Reports that the input has ended.
    pub fn finish(&mut self) {
        self.chain.feed(b"", InputState::End, &self.settings, &mut self.output);
    }

    /// Returns the log emitted since the last call.
    pub fn take_log(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.output.log)
    }

    /// Returns the problems since the last call: for each, its reason, its count, and the number of
    /// the first line that it affected.
    pub fn take_problems(&mut self) -> impl Iterator<Item = (InputProblem, u64, u64)> {
        let problems = std::mem::take(&mut self.output.problems);
        problems.into_iter().map(|Issue { reason, count, line, .. }| (reason, count, line))
    }

    /// Returns the envelopes removed so far, outermost first.
    pub fn envelopes(&self) -> &[Envelope] {
        self.chain.envelopes()
    }

    /// Returns the prefix added in front of the server's own line prefix, if the latter has no
    /// time.
    pub fn added_prefix(&self) -> Option<&'static str> {
        self.chain.added_prefix()
    }
}
