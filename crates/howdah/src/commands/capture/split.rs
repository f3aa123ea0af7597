//! `howdah capture split`: splits a capture into several.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use howdah_capture::{OpenTransactions, SampleRate, Slices};
use howdah_dataset::{CaptureManifest, CaptureSettings, CaptureWriter, CapturedServer};
use howdah_report::counted;
use howdah_traffic::{Event, EventHash, EventRef};
use serde_json::{Value, json};

use super::{
    output::with_write_hint,
    report,
    selection::{FilteredEvents, RedactArgs, SelectArgs},
};
use crate::{
    context::CommandContext, errors, outcome::CommandOutcome, progress::Total, values::dataset_path,
};

/// Split a capture by time, by session or by database.
///
/// The parts are subfolders of --output. Every event is in exactly one part. Where a session
/// continues in the next time slice, its login, prepared statements and settings are repeated
/// there, so that each slice can be replayed alone. Transactions still open at the end of a slice
/// are counted: a replay of the slice rolls them back.
#[derive(Debug, clap::Args)]
#[command(group(clap::ArgGroup::new("how").required(true).args(["every", "sessions", "databases"])))]
pub(super) struct Args {
    /// Folder of the capture
    #[arg(value_name = "CAPTURE", value_parser = dataset_path())]
    capture: PathBuf,
    /// Folder to write the parts to
    #[arg(long, short, value_name = "FOLDER", value_parser = dataset_path())]
    output: PathBuf,
    /// Split by time, into slices of this length: 30s, 10m, 1h
    #[arg(long, value_name = "LENGTH")]
    every: Option<SliceLength>,
    /// Split by session, into this many parts
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=PARTS_MAX as i64))]
    sessions: Option<u32>,
    /// Split by database, into one part each
    #[arg(long)]
    databases: bool,
    /// Replace existing captures
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    select: SelectArgs,
    #[command(flatten)]
    redact: RedactArgs,
}

/// Maximum number of parts written at once, because each buffers events in memory.
const PARTS_MAX: usize = 64;
/// Maximum number of bytes of text that all parts together buffer.
const MEMORY_BYTES: usize = 128 << 20;

/// Length of a time slice, given as a number with a unit, such as `10m`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SliceLength(Duration);

impl std::str::FromStr for SliceLength {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = text.split_at(digits);
        let seconds = match unit {
            "s" => 1,
            "m" | "min" => 60,
            "h" => 3600,
            "d" => 86_400,
            _ => 0,
        };
        match number.parse::<u64>().ok().and_then(|number| number.checked_mul(seconds)) {
            Some(seconds) if seconds > 0 => Ok(Self(Duration::from_secs(seconds))),
            _ => Err("a length is a number with s, m, h or d, such as 10m".to_owned()),
        }
    }
}

pub(super) fn run(args: &Args, ctx: &CommandContext) -> anyhow::Result<CommandOutcome> {
    let capture = super::open(&args.capture)?;
    let mut redactor = args.redact.redactor()?;
    let events = FilteredEvents::new(capture.events(), args.select.filter());
    let left = events.exclusions();
    let mut parts = OpenParts::new(args, capture.manifest());
    let mut rule = SplitRule::from_args(args);
    let bar = ctx.progress(Total::Count(capture.manifest().events), "splitting");
    let interrupted = ctx.interrupted();
    for event in events {
        super::bail_if_interrupted(&interrupted)?;
        let event = event?;
        let event = match &mut redactor {
            Some(redactor) => Box::new(redactor.redact(*event)),
            None => event,
        };
        let (name, repeated) = rule.assign(&event)?;
        if matches!(rule, SplitRule::Time(_)) && !parts.open.contains_key(&name) {
            // Events are in time order, so earlier slices are complete.
            parts.finish(ctx)?;
        }
        for event in repeated {
            parts.write(&name, &event)?;
        }
        parts.write(&name, &event)?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    parts.finish(ctx)?;
    left.report(ctx);
    ctx.report(format_args!(
        "{} in {}",
        counted(parts.events, "event"),
        counted(parts.captures, "capture")
    ));
    if let SplitRule::Time(slices) = &rule
        && slices.repeated() > 0
    {
        ctx.report(format_args!(
            "{} of them repeat the start of a session from an earlier slice",
            slices.repeated()
        ));
    }
    if parts.cut_open > 0 {
        ctx.report(format_args!(
            "{} transactions are still open at the end of a capture: a replay of that capture rolls \
            them back",
            parts.cut_open
        ));
    }
    Ok(CommandOutcome::Done)
}

/// The rule that assigns events to parts: by time, session or database.
enum SplitRule {
    Time(Slices),
    Sessions(Vec<SampleRate>),
    Databases(BTreeMap<Arc<str>, String>),
}

impl SplitRule {
    fn from_args(args: &Args) -> Self {
        match (args.every, args.sessions) {
            (Some(length), _) => Self::Time(Slices::new(length.0)),
            (None, Some(count)) => Self::Sessions(
                (1..=count).filter_map(|part| SampleRate::part(part, count)).collect(),
            ),
            (None, None) => Self::Databases(BTreeMap::new()),
        }
    }

    /// Returns the name of the event's part, and the events to write there first.
    fn assign(&mut self, event: &Event) -> anyhow::Result<(String, Vec<Event>)> {
        match self {
            Self::Time(slices) => {
                let (number, repeated) = slices.push(event);
                // Sorts by time, and is a valid name on every file system.
                let name = slices.start_time(number).to_string().replace(':', "-");
                Ok((name, repeated))
            }
            Self::Sessions(rates) => {
                let index = rates.iter().position(|rate| rate.contains(&event.session));
                let part = index.unwrap_or_default() + 1;
                Ok((format!("{part}-of-{}", rates.len()), Vec::new()))
            }
            Self::Databases(names) => {
                if let Some(name) = names.get(&event.database) {
                    return Ok((name.clone(), Vec::new()));
                }
                if names.len() == PARTS_MAX {
                    return Err(errors::with_hint(
                        anyhow::anyhow!("the capture has more than {PARTS_MAX} databases"),
                        "choose some of them with --database",
                    ));
                }
                let name = folder_name(&event.database, names.len());
                names.insert(event.database.clone(), name.clone());
                Ok((name, Vec::new()))
            }
        }
    }
}

/// Returns a safe folder name for a database.
fn folder_name(database: &str, number: usize) -> String {
    let plain = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_');
    if database.is_empty() {
        "unknown-database".to_owned()
    } else if database.chars().all(plain) && database.len() <= 100 {
        format!("database-{database}")
    } else {
        let safe: String = database.chars().filter(|c| plain(*c)).take(50).collect();
        format!("database-{safe}-{}", number + 1)
    }
}

/// A capture that is being written.
struct OpenPart {
    writer: CaptureWriter,
    hash: EventHash,
    transactions: OpenTransactions,
}

/// All captures that are being written.
struct OpenParts<'a> {
    args: &'a Args,
    settings: CaptureSettings,
    inherited: Value,
    open: BTreeMap<String, OpenPart>,
    events: u64,
    captures: u64,
    /// Transactions still open at the ends of the captures.
    cut_open: usize,
}

impl<'a> OpenParts<'a> {
    fn new(args: &'a Args, whole: &CaptureManifest) -> Self {
        Self {
            args,
            settings: CaptureSettings { origin: whole.origin.clone(), overwrite: args.force },
            inherited: super::inherited_report(whole),
            open: BTreeMap::new(),
            events: 0,
            captures: 0,
            cut_open: 0,
        }
    }

    fn dir(&self, name: &str) -> PathBuf {
        self.args.output.join(name)
    }

    fn write(&mut self, name: &str, event: &Event) -> anyhow::Result<()> {
        let dir = self.dir(name);
        if !self.open.contains_key(name) {
            let is_later_slice = self.args.every.is_some() && self.captures > 0;
            if is_later_slice || self.args.select.excludes_start() {
                let origin = &mut self.settings.origin;
                origin.server = origin.server.take().map(CapturedServer::without_position);
            }
            let created = CaptureWriter::create(&dir, self.settings.clone());
            let mut writer = with_write_hint(&dir, created)?;
            if self.args.every.is_none() {
                let parts = self.args.sessions.map_or(PARTS_MAX, |count| count as usize);
                writer.limit_memory(MEMORY_BYTES / parts.max(1));
            }
            let (hash, transactions) = (EventHash::default(), OpenTransactions::default());
            self.open.insert(name.to_owned(), OpenPart { writer, hash, transactions });
        }
        if let Some(part) = self.open.get_mut(name) {
            let event_ref = EventRef::from_event(event);
            part.hash.add_ref(&event_ref);
            part.transactions.observe(&event_ref);
            with_write_hint(&dir, part.writer.write_ref(&event_ref))?;
            self.events += 1;
        }
        Ok(())
    }

    /// Finishes the captures that are being written, and reports each.
    fn finish(&mut self, ctx: &CommandContext) -> anyhow::Result<()> {
        for (name, OpenPart { writer, hash, transactions }) in std::mem::take(&mut self.open) {
            let dir = self.dir(&name);
            let mut report = json!({ "split_from": self.inherited, "hash": hash.to_string() });
            let cut_open = transactions.count();
            report::add_open_transactions(&mut report, cut_open);
            self.cut_open += cut_open;
            if self.args.redact.is_on() {
                report["redacted"] = json!({});
            }
            let manifest = with_write_hint(&dir, writer.finish(report))?;
            report_part(ctx, &dir, &manifest, cut_open);
            self.captures += 1;
        }
        Ok(())
    }
}

fn report_part(ctx: &CommandContext, dir: &Path, manifest: &CaptureManifest, cut_open: usize) {
    let open = match cut_open {
        0 => String::new(),
        count => format!(", ends inside {}", counted(count as u64, "transaction")),
    };
    ctx.report(format_args!("{}: {}{open}", dir.display(), counted(manifest.events, "event")));
}

#[test]
fn lengths_are_parsed_and_folder_names_are_safe() {
    assert_eq!("10m".parse(), Ok(SliceLength(Duration::from_secs(600))));
    for text in ["", "10", "0s", "m", "1.5h", "-1s", "99999999999999999999h", "10 m"] {
        assert!(text.parse::<SliceLength>().is_err(), "{text}");
    }
    assert_eq!(folder_name("shop", 0), "database-shop");
    assert_eq!(folder_name("", 0), "unknown-database");
    assert_eq!(folder_name("../etc", 1), "database-etc-2");
}
