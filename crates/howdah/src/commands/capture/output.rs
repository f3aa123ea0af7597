//! The output of commands that process captures: filters, redacts, counts and hashes events, and
//! writes them to a capture if requested.

use std::{
    collections::HashSet,
    hash::{BuildHasherDefault, Hasher},
    path::Path,
};

use anyhow::Context as _;
use howdah_capture::{EventFilter, OpenTransactions, Redactor};
use howdah_dataset::{
    BucketWriter, CaptureManifest, CaptureOrigin, CaptureSettings, CaptureWriter, ImportPart,
    WriteError,
};
use howdah_logs::Interner;
use howdah_report::counted;
use howdah_traffic::{Event, EventHash, EventRef};
use serde_json::{Value, json};

use super::{
    report,
    selection::{self, InputSpan},
};
use crate::{context::CommandContext, errors::WithHint as _};

/// The output for events in time order. It filters, redacts and counts them, and writes those that
/// pass to a capture, if there is one.
#[derive(Debug)]
pub(super) struct CaptureOutput {
    filter: EventFilter,
    redactor: Option<Redactor>,
    sink: CaptureSink,
    tally: OutputTally,
    input_span: InputSpan,
    interner: Interner,
}

/// The destination of events that passed the filter.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one of these in a process")]
enum CaptureSink {
    /// Events are only counted.
    Discard,
    /// Events are written to a capture, which is created with the first event or at the end of the
    /// input. So unreadable input neither replaces an existing capture nor leaves an empty one.
    Capture {
        dir: Box<Path>,
        settings: CaptureSettings,
        part: Option<ImportPart>,
        writer: Option<BucketWriter>,
    },
}

/// Counts, hash and sessions of the events that passed the filter.
#[derive(Debug, Default)]
pub(super) struct OutputTally {
    /// Hash over all fields of all events.
    pub(super) hash: EventHash,
    /// Events too large for a capture.
    pub(super) too_large: u64,
    /// Transactions still open at the last event.
    open_transactions: OpenTransactions,
    /// Hashes of the names of sessions with events.
    sessions: HashSet<u64, BuildHasherDefault<SessionHasher>>,
}

/// A hasher for keys that are already hashes.
#[derive(Debug, Default)]
struct SessionHasher(u64);

impl Hasher for SessionHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.0 = self.0 << 8 ^ u64::from(*byte));
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = number;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// Maximum number of sessions to count, at eight bytes each. A single log never has as many.
const SESSIONS_MAX: usize = 4 << 20;

impl OutputTally {
    fn count(&mut self, event: &EventRef<'_>) {
        self.hash.add_ref(event);
        self.open_transactions.observe(event);
        if self.sessions.len() < SESSIONS_MAX {
            self.sessions.insert(event.identity.session_hash());
        }
    }

    /// Returns the line about transactions still open at the last event, if any.
    pub(super) fn open_transactions(&self) -> Option<String> {
        report::open_transactions(self.open_transactions.count())
    }

    /// Returns the number of sessions with events that passed the filter, at most [`SESSIONS_MAX`].
    pub(super) fn sessions(&self) -> usize {
        self.sessions.len()
    }
}

impl CaptureOutput {
    /// Creates an output that only counts the events that pass.
    pub(super) fn discard(filter: EventFilter, redactor: Option<Redactor>) -> Self {
        Self {
            filter,
            redactor,
            sink: CaptureSink::Discard,
            tally: OutputTally::default(),
            input_span: InputSpan::default(),
            interner: Interner::default(),
        }
    }

    /// Creates an output that writes the events that pass to a capture in `dir`.
    pub(super) fn capture(
        dir: &Path,
        settings: CaptureSettings,
        filter: EventFilter,
        redactor: Option<Redactor>,
    ) -> Self {
        let sink = CaptureSink::Capture { dir: dir.into(), settings, part: None, writer: None };
        let (tally, input_span) = (OutputTally::default(), InputSpan::default());
        Self { filter, redactor, sink, tally, input_span, interner: Interner::default() }
    }

    /// Writes only an importer's parts of the capture.
    pub(super) fn with_part(mut self, new: Option<ImportPart>) -> Self {
        if let CaptureSink::Capture { part, .. } = &mut self.sink {
            *part = new;
        }
        self
    }

    /// Processes a borrowed event, without copying it if no filter and no redaction apply.
    pub(super) fn push_ref(&mut self, event: &EventRef<'_>) -> Result<(), WriteError> {
        if !self.filter.keeps_everything() || self.redactor.is_some() {
            let Self { interner, .. } = self;
            let event = event.to_event(&mut |text| interner.text(text));
            return self.push(event);
        }
        if !CaptureWriter::accepts(event) {
            self.tally.too_large += 1;
            return Ok(());
        }
        let writer = self.sink.writer()?;
        self.tally.count(event);
        match writer {
            Some(writer) => writer.write_ref(event),
            None => Ok(()),
        }
    }

    /// Filters, redacts, counts and writes an event.
    pub(super) fn push(&mut self, event: Event) -> Result<(), WriteError> {
        self.input_span.record(event.time);
        self.filter.push(event);
        while let Some(event) = self.filter.poll() {
            self.input_span.record_passed();
            let event = match &mut self.redactor {
                Some(redactor) => redactor.redact(event),
                None => event,
            };
            let event_ref = EventRef::from_event(&event);
            if !CaptureWriter::accepts(&event_ref) {
                self.tally.too_large += 1;
                continue;
            }
            let writer = self.sink.writer()?;
            self.tally.count(&event_ref);
            if let Some(writer) = writer {
                writer.write_ref(&event_ref)?;
            }
        }
        Ok(())
    }

    /// Saves the events written so far, if the last save is long enough ago. Call this while the
    /// input is idle.
    pub(super) fn on_idle(&mut self) -> Result<(), WriteError> {
        match &mut self.sink {
            CaptureSink::Capture { writer: Some(writer), .. } => writer.save_if_due(),
            _ => Ok(()),
        }
    }

    /// Returns the counts of the events that passed the filter.
    pub(super) fn tally(&self) -> &OutputTally {
        &self.tally
    }

    /// Returns lines of text about events that were excluded and texts that were withheld.
    pub(super) fn excluded_lines(&self) -> Vec<String> {
        let mut lines = selection::lines(self.filter.excluded());
        lines.extend(self.input_span.line());
        if let Some(redactor) = self.redactor.as_ref().filter(|redactor| redactor.withheld() > 0) {
            lines.push(format!(
                "texts withheld, because it is uncertain which parts are values: {}",
                redactor.withheld()
            ));
        }
        lines
    }

    /// Finishes the capture, if there is one. `report` is the report on the source.
    pub(super) fn finish(
        self,
        origin: &CaptureOrigin,
        report: Value,
    ) -> Result<Option<CaptureManifest>, WriteError> {
        let report = self.report(report);
        let CaptureSink::Capture { dir, settings, part, writer } = self.sink else {
            return Ok(None);
        };
        let mut writer = match writer {
            Some(writer) => writer,
            None => BucketWriter::create(&dir, settings, part.as_ref())?,
        };
        writer.set_origin(origin);
        writer.finish(&report).map(Some)
    }

    /// Saves the events that were written before an error, with the error in the report. Returns
    /// the manifest, or `None` if there were no events or they are only counted.
    pub(super) fn stop(self, error: &anyhow::Error) -> Result<Option<CaptureManifest>, WriteError> {
        let report = self.report(report::from_failure(error));
        match self.sink {
            CaptureSink::Capture { writer: Some(writer), .. } => writer.stop(&report).map(Some),
            _ => Ok(None),
        }
    }

    /// Returns the report on the source, with the counts of the output added. If the output is
    /// redacted, excerpts of the log are removed.
    fn report(&self, mut report: Value) -> Value {
        if report.is_null() {
            report = json!({});
        }
        report["hash"] = self.tally.hash.to_string().into();
        report["sessions"] = self.tally.sessions().into();
        report["left_out"] = selection::document(self.filter.excluded());
        report::add_open_transactions(&mut report, self.tally.open_transactions.count());
        if let Some(redactor) = &self.redactor {
            report["redacted"] = json!({ "withheld": redactor.withheld() });
            report::hide_values(&mut report);
        }
        report
    }
}

impl CaptureSink {
    fn writer(&mut self) -> Result<Option<&mut BucketWriter>, WriteError> {
        let Self::Capture { dir, settings, part, writer } = self else { return Ok(None) };
        // This is called for each event, and the writer is too large to be moved each time.
        if writer.is_none() {
            *writer = Some(BucketWriter::create(dir, settings.clone(), part.as_ref())?);
        }
        Ok(writer.as_mut())
    }
}

/// Reports what a new capture contains.
pub(super) fn report_capture(ctx: &CommandContext, dir: &Path, manifest: &CaptureManifest) {
    let span = match (manifest.first, manifest.last) {
        (Some(first), Some(last)) => format!(", {first} to {last}"),
        _ => String::new(),
    };
    let sessions = manifest.report["sessions"].as_u64().unwrap_or(0);
    ctx.report(format_args!(
        "{}: {} in {}{span}",
        dir.display(),
        counted(manifest.events, "event"),
        counted(sessions, "session")
    ));
    if let Some(server) = &manifest.origin.server {
        ctx.report(format_args!("captured server: {server}"));
    }
}

/// Reports event counts by kind.
pub(super) fn report_kinds(ctx: &CommandContext, manifest: &CaptureManifest) {
    for (kind, count) in &manifest.kinds {
        ctx.report(format_args!("  {kind:<10} {count:>10}"));
    }
}

/// Adds a hint to an error in writing a capture.
pub(super) fn with_write_hint<T>(dir: &Path, result: Result<T, WriteError>) -> anyhow::Result<T> {
    let hint = match &result {
        Err(WriteError::Exists { .. }) => Some("use --force to replace it".to_owned()),
        Err(WriteError::HasParts { .. }) => {
            Some("add to it with --part NAME, or write to another folder".to_owned())
        }
        Err(WriteError::NoRoom { files_kept: 1.., .. }) => Some(format!(
            "`howdah capture info {}` shows what was written; free some space and start again with \
             --force",
            dir.display()
        )),
        _ => None,
    };
    let result = result.context("cannot write the capture");
    match hint {
        Some(hint) => result.hint(hint),
        None => result,
    }
}
