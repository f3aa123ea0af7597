//! [`EventWriter`]: redacts, hashes and writes the events of a capture.

use std::error::Error;

use howdah_capture::{RedactionKey, Redactor, live::RecorderCounts};
use howdah_dataset::{CaptureOrigin, CaptureWriter, WriteError};
use howdah_traffic::{Action, Event, EventHash, EventRef};
use serde_json::Value;

use super::digest_cache::DigestCache;

/// Redacts, hashes and writes events, until writing fails once.
#[derive(Debug)]
pub(super) struct EventWriter {
    capture: CaptureWriter,
    redactor: Option<Redactor>,
    hash: EventHash,
    digests: DigestCache,
    events: u64,
    too_long: u64,
    /// Number of function calls that were captured without their arguments.
    calls: u64,
    error: Option<WriteError>,
}

impl EventWriter {
    /// Creates a writer to a capture; without a key, values are not redacted.
    pub(super) fn new(capture: CaptureWriter, redaction: Option<&RedactionKey>) -> Self {
        Self {
            capture,
            redactor: redaction.map(Redactor::new),
            hash: EventHash::default(),
            digests: DigestCache::default(),
            events: 0,
            too_long: 0,
            calls: 0,
            error: None,
        }
    }

    /// Writes an event; does nothing after a failure.
    pub(super) fn record(&mut self, event: &Event) {
        if self.error.is_some() {
            return;
        }
        match &mut self.redactor {
            Some(redactor) => {
                let event = redactor.redact(event.clone());
                self.write(&event);
            }
            None => self.write(event),
        }
    }

    fn write(&mut self, event: &Event) {
        let is_bare = matches!(event.action, Action::Call { .. })
            && event.wire.as_ref().is_none_or(|wire| wire.arguments.is_none());
        self.calls += u64::from(is_bare);
        let event_ref = EventRef::with_digest(event, self.digests.digest(event));
        match self.capture.write_ref(&event_ref) {
            Ok(()) => {
                self.hash.add_ref(&event_ref);
                self.events += 1;
            }
            Err(WriteError::RowTooLarge { .. }) => self.too_long += 1,
            Err(error) => self.error = Some(error),
        }
    }

    /// Sets the origin of the events in the manifest.
    pub(super) fn set_origin(&mut self, origin: CaptureOrigin) {
        self.capture.set_origin(origin);
    }

    /// Whether writing has failed, so that recording should stop.
    pub(super) fn has_failed(&self) -> bool {
        self.error.is_some()
    }

    /// Returns the number of finished files.
    pub(super) fn files(&self) -> u32 {
        self.capture.files()
    }

    /// Returns the decoder's counts combined with the writer's.
    pub(super) fn add_to(&self, decoded: RecorderCounts) -> RecorderCounts {
        RecorderCounts {
            events: self.events,
            too_long: decoded.too_long + self.too_long,
            calls: self.calls,
            ..decoded
        }
    }

    /// Returns the report for the capture's manifest.
    pub(super) fn report(&self, counts: &RecorderCounts, error: Option<&str>) -> Value {
        let withheld = self.redactor.as_ref().map(Redactor::withheld);
        counts.report(&self.hash, withheld, error)
    }

    /// Sets the report for the manifest, and finishes the current file if it is old enough.
    pub(super) fn rotate_file(&mut self, report: Value) {
        self.capture.set_report(report);
        if let Err(error) = self.capture.finish_file_if_due() {
            self.error.get_or_insert(error);
        }
    }

    /// Finishes the capture; after a failure, the events that were not written are missing. Returns
    /// the number of files, if known, and the first error with its causes.
    pub(super) fn finish(mut self, counts: &RecorderCounts) -> (Option<u32>, Option<String>) {
        let error = self.error.take().map(|error| error_chain(&error));
        let report = self.report(counts, error.as_deref());
        let result = match error {
            None => self.capture.finish(report),
            Some(_) => self.capture.stop(report),
        };
        match result {
            Ok(manifest) => (Some(manifest.files), error),
            Err(failure) => (None, Some(error.unwrap_or_else(|| error_chain(&failure)))),
        }
    }
}

/// Formats an error with its causes in one line.
fn error_chain(error: &WriteError) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
