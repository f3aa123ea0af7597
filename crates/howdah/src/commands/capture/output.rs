//! Where events go that a command passes on: through filters and redaction, into a count and a hash,
//! and into a capture if there is to be one.

use std::{
    collections::HashSet,
    hash::{BuildHasherDefault, Hasher},
    path::Path,
};

use anyhow::Context as _;
use howdah_dataset::{CaptureManifest, CaptureSettings, CaptureWriter, Origin, WriteError};
use howdah_logs::Interner;
use howdah_report::counted;
use howdah_sift::{EventFilter, OpenTransactions, Redactor};
use howdah_traffic::{Event, EventHash, EventRef};
use serde_json::{Value, json};

use super::{
    report,
    select::{self, Offered},
};
use crate::{context::Context, errors::WithHint as _};

/// Takes events in the order of time, and writes those that pass.
#[derive(Debug)]
pub(super) struct Output {
    sieve: EventFilter,
    redactor: Option<Redactor>,
    sink: Sink,
    tally: Tally,
    offered: Offered,
    interner: Interner,
}

/// What is made of the events.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one of these in a process")]
enum Sink {
    /// Nothing but the numbers.
    Discard,
    /// A capture. It is created when the first event comes, so that what cannot be read replaces nothing
    /// and leaves nothing.
    Capture { dir: Box<Path>, settings: CaptureSettings, writer: Option<CaptureWriter> },
}

/// What came through.
#[derive(Debug, Default)]
pub(super) struct Tally {
    /// Over every field of every event.
    pub(super) hash: EventHash,
    /// Events that no capture can hold.
    pub(super) too_large: u64,
    /// Transactions that the events end in the middle of.
    open_transactions: OpenTransactions,
    /// Hashes of the names of sessions that have events.
    sessions: HashSet<u64, BuildHasherDefault<AsItIs>>,
}

/// Hashing of what is a hash already.
#[derive(Debug, Default)]
struct AsItIs(u64);

impl Hasher for AsItIs {
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

/// Sessions that are told apart; eight bytes each, and more than one log has.
const SESSIONS_MAX: usize = 4 << 20;

impl Tally {
    fn count(&mut self, event: &EventRef<'_>) {
        self.hash.add_ref(event);
        self.open_transactions.observe(event);
        if self.sessions.len() < SESSIONS_MAX {
            self.sessions.insert(event.identity.session_hash());
        }
    }

    /// The line about transactions that the events end in the middle of, if there are any.
    pub(super) fn open_transactions(&self) -> Option<String> {
        report::open_transactions(self.open_transactions.count())
    }

    /// Number of sessions with an event.
    pub(super) fn sessions(&self) -> usize {
        self.sessions.len()
    }
}

impl Output {
    /// Events that pass are counted.
    pub(super) fn discard(sieve: EventFilter, redactor: Option<Redactor>) -> Self {
        Self {
            sieve,
            redactor,
            sink: Sink::Discard,
            tally: Tally::default(),
            offered: Offered::default(),
            interner: Interner::default(),
        }
    }

    /// Events that pass are written into a capture in `dir`.
    pub(super) fn capture(
        dir: &Path,
        settings: CaptureSettings,
        sieve: EventFilter,
        redactor: Option<Redactor>,
    ) -> Self {
        let sink = Sink::Capture { dir: dir.into(), settings, writer: None };
        let (tally, offered) = (Tally::default(), Offered::default());
        Self { sieve, redactor, sink, tally, offered, interner: Interner::default() }
    }

    /// Takes an event that is lent, and keeps what it must of it.
    pub(super) fn take(&mut self, event: &EventRef<'_>) -> Result<(), WriteError> {
        if !self.sieve.is_open() || self.redactor.is_some() {
            let Self { interner, .. } = self;
            let event = event.to_event(&mut |text| interner.text(text));
            return self.push(event);
        }
        if !CaptureWriter::takes(event) {
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

    /// Takes an event.
    pub(super) fn push(&mut self, event: Event) -> Result<(), WriteError> {
        self.offered.note(event.time);
        self.sieve.push(event);
        while let Some(event) = self.sieve.poll() {
            self.offered.note_taken();
            let event = match &mut self.redactor {
                Some(redactor) => redactor.redact(event),
                None => event,
            };
            let seen = EventRef::of(&event);
            if !CaptureWriter::takes(&seen) {
                self.tally.too_large += 1;
                continue;
            }
            let writer = self.sink.writer()?;
            self.tally.count(&seen);
            if let Some(writer) = writer {
                writer.write_ref(&seen)?;
            }
        }
        Ok(())
    }

    /// To be called while no events come: what came is made safe.
    pub(super) fn idle(&mut self) -> Result<(), WriteError> {
        match &mut self.sink {
            Sink::Capture { writer: Some(writer), .. } => writer.save_if_due(),
            _ => Ok(()),
        }
    }

    /// What came through.
    pub(super) fn tally(&self) -> &Tally {
        &self.tally
    }

    /// What did not come through, in lines.
    pub(super) fn left(&self) -> Vec<String> {
        let mut lines = select::lines(self.sieve.left());
        lines.extend(self.offered.line());
        if let Some(redactor) = self.redactor.as_ref().filter(|redactor| redactor.withheld() > 0) {
            lines.push(format!(
                "texts withheld, since it is not sure which parts of them are values: {}",
                redactor.withheld()
            ));
        }
        lines
    }

    /// Ends the capture, if there is one. `report` is what there is to say of the source.
    pub(super) fn finish(
        self,
        origin: Origin,
        report: Value,
    ) -> Result<Option<CaptureManifest>, WriteError> {
        let report = self.report(report);
        let Sink::Capture { dir, settings, writer } = self.sink else { return Ok(None) };
        let settings = CaptureSettings { origin: origin.clone(), ..settings };
        let mut writer = match writer {
            Some(writer) => writer,
            None => CaptureWriter::create(&dir, settings)?,
        };
        writer.set_origin(origin);
        writer.finish(report).map(Some)
    }

    /// Keeps what came before an error, if anything came.
    pub(super) fn stop(self, error: &anyhow::Error) -> Result<Option<CaptureManifest>, WriteError> {
        let report = self.report(report::of_failure(error));
        match self.sink {
            Sink::Capture { writer: Some(writer), .. } => writer.stop(report).map(Some),
            _ => Ok(None),
        }
    }

    /// What is said of the source, with what became of it here.
    fn report(&self, mut report: Value) -> Value {
        if report.is_null() {
            report = json!({});
        }
        report["hash"] = self.tally.hash.to_string().into();
        report["sessions"] = self.tally.sessions().into();
        report["left_out"] = select::document(self.sieve.left());
        report::add_open_transactions(&mut report, self.tally.open_transactions.count());
        if let Some(redactor) = &self.redactor {
            report["redacted"] = json!({ "withheld": redactor.withheld() });
            report::hide_values(&mut report);
        }
        report
    }
}

impl Sink {
    fn writer(&mut self) -> Result<Option<&mut CaptureWriter>, WriteError> {
        let Self::Capture { dir, settings, writer } = self else { return Ok(None) };
        let open = match writer.take() {
            Some(writer) => writer,
            None => CaptureWriter::create(dir, settings.clone())?,
        };
        Ok(Some(writer.insert(open)))
    }
}

/// Says what a new capture holds.
pub(super) fn tell(ctx: &Context, dir: &Path, manifest: &CaptureManifest) {
    let span = match (manifest.first, manifest.last) {
        (Some(first), Some(last)) => format!(", {first} to {last}"),
        _ => String::new(),
    };
    let sessions = manifest.report["sessions"].as_u64().unwrap_or(0);
    ctx.say(format_args!(
        "{}: {} in {}{span}",
        dir.display(),
        counted(manifest.events, "event"),
        counted(sessions, "session")
    ));
}

/// The same by kind.
pub(super) fn tell_kinds(ctx: &Context, manifest: &CaptureManifest) {
    for (kind, count) in &manifest.kinds {
        ctx.say(format_args!("  {kind:<10} {count:>10}"));
    }
}

/// Adds what a person can do about a capture that cannot be written.
pub(super) fn written<T>(dir: &Path, result: Result<T, WriteError>) -> anyhow::Result<T> {
    let hint = match &result {
        Err(WriteError::Exists { .. }) => Some("--force replaces it".to_owned()),
        Err(WriteError::NoRoom { files_kept: 1.., .. }) => Some(format!(
            "`howdah capture info {}` shows what was written; free some space and begin again with \
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
