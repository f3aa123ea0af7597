//! `howdah capture split`: one capture into several.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use howdah_dataset::{CaptureManifest, CaptureSettings, CaptureWriter};
use howdah_report::counted;
use howdah_sift::{OpenTransactions, SampleRate, Slices};
use howdah_traffic::{Event, EventHash, EventRef};
use serde_json::{Value, json};

use super::{
    output::written,
    report,
    select::{RedactArgs, SelectArgs, Sifted},
};
use crate::{context::Context, errors, outcome::Outcome, progress::Total};

/// Make several captures of one: by time, by session, or by database.
///
/// The parts are folders below the one named by --output. Every event is in exactly one part. Where a
/// session goes on from one slice of time into the next, its login, named statements and settings are
/// repeated there, so that each slice can be replayed alone. A transaction that a slice ends in the
/// middle of is counted: a replay of the slice rolls it back.
#[derive(Debug, clap::Args)]
#[command(group(clap::ArgGroup::new("how").required(true).args(["every", "sessions", "databases"])))]
pub(super) struct Args {
    /// The folder of the capture
    #[arg(value_name = "CAPTURE")]
    capture: PathBuf,
    /// Folder for the parts
    #[arg(long, short, value_name = "FOLDER")]
    output: PathBuf,
    /// By time, into slices of this length: 30s, 10m, 1h
    #[arg(long, value_name = "LENGTH")]
    every: Option<Length>,
    /// By session, into this many parts
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=PARTS_MAX as i64))]
    sessions: Option<u32>,
    /// By database, into one part for each
    #[arg(long)]
    databases: bool,
    /// Replace captures that are there already
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    select: SelectArgs,
    #[command(flatten)]
    redact: RedactArgs,
}

/// Parts that are written at the same time: each holds events in memory.
const PARTS_MAX: usize = 64;
/// Bytes of text that all of them hold together.
const MEMORY_BYTES: usize = 128 << 20;

/// A length of time as people write it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Length(Duration);

impl std::str::FromStr for Length {
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
            _ => Err("a length is a number and s, m, h or d, such as 10m".to_owned()),
        }
    }
}

pub(super) fn run(args: &Args, ctx: &Context) -> anyhow::Result<Outcome> {
    let capture = super::open(&args.capture)?;
    let mut redactor = args.redact.redactor()?;
    let events = Sifted::new(capture.events(), args.select.sieve());
    let left = events.left();
    let mut parts = Parts::new(args, capture.manifest());
    let mut rule = Rule::of(args);
    let bar = ctx.progress(Total::Count(capture.manifest().events), "splitting");
    let interrupted = ctx.interrupted();
    for event in events {
        super::heed(&interrupted)?;
        let event = event?;
        let event = match &mut redactor {
            Some(redactor) => redactor.redact(event),
            None => event,
        };
        let (name, repeated) = rule.place(&event)?;
        if matches!(rule, Rule::Time(_)) && !parts.open.contains_key(&name) {
            // Time does not go back: what is before it is complete.
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
    left.say(ctx);
    ctx.say(format_args!(
        "{} in {}",
        counted(parts.events, "event"),
        counted(parts.captures, "capture")
    ));
    if let Rule::Time(slices) = &rule
        && slices.repeated() > 0
    {
        ctx.say(format_args!(
            "{} of them repeat how a session began in an earlier one",
            slices.repeated()
        ));
    }
    if parts.cut_open > 0 {
        ctx.say(format_args!(
            "{} transactions are still open where a capture ends: a replay of that capture rolls them \
             back",
            parts.cut_open
        ));
    }
    Ok(Outcome::Done)
}

/// Which part an event belongs to.
enum Rule {
    Time(Slices),
    Sessions(Vec<SampleRate>),
    Databases(BTreeMap<Arc<str>, String>),
}

impl Rule {
    fn of(args: &Args) -> Self {
        match (args.every, args.sessions) {
            (Some(length), _) => Self::Time(Slices::new(length.0)),
            (None, Some(count)) => Self::Sessions(
                (1..=count).filter_map(|part| SampleRate::part(part, count)).collect(),
            ),
            (None, None) => Self::Databases(BTreeMap::new()),
        }
    }

    /// Name of its part, and the events that are to come before it there.
    fn place(&mut self, event: &Event) -> anyhow::Result<(String, Vec<Event>)> {
        match self {
            Self::Time(slices) => {
                let (number, repeated) = slices.push(event);
                // Sorts as time does, and is a name on every file system.
                let name = slices.start_of(number).to_string().replace(':', "-");
                Ok((name, repeated))
            }
            Self::Sessions(shares) => {
                let held = shares.iter().position(|share| share.holds(&event.session));
                let part = held.unwrap_or_default() + 1;
                Ok((format!("{part}-of-{}", shares.len()), Vec::new()))
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

/// A name for the folder of a database, whatever its own name is made of.
fn folder_name(database: &str, number: usize) -> String {
    let plain = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_');
    if database.is_empty() {
        "unknown-database".to_owned()
    } else if database.chars().all(plain) && database.len() <= 100 {
        format!("database-{database}")
    } else {
        let kept: String = database.chars().filter(|c| plain(*c)).take(50).collect();
        format!("database-{kept}-{}", number + 1)
    }
}

/// A capture that is being written.
struct Part {
    writer: CaptureWriter,
    hash: EventHash,
    transactions: OpenTransactions,
}

/// The captures that are being written.
struct Parts<'a> {
    args: &'a Args,
    settings: CaptureSettings,
    inherited: Value,
    open: BTreeMap<String, Part>,
    events: u64,
    captures: u64,
    /// Transactions that the captures end in the middle of.
    cut_open: usize,
}

impl<'a> Parts<'a> {
    fn new(args: &'a Args, whole: &CaptureManifest) -> Self {
        Self {
            args,
            settings: CaptureSettings { origin: whole.origin.clone(), overwrite: args.force },
            inherited: super::inherited(whole),
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
            let created = CaptureWriter::create(&dir, self.settings.clone());
            let mut writer = written(&dir, created)?;
            if self.args.every.is_none() {
                let parts = self.args.sessions.map_or(PARTS_MAX, |count| count as usize);
                writer.limit_memory(MEMORY_BYTES / parts.max(1));
            }
            let (hash, transactions) = (EventHash::default(), OpenTransactions::default());
            self.open.insert(name.to_owned(), Part { writer, hash, transactions });
        }
        if let Some(part) = self.open.get_mut(name) {
            let seen = EventRef::of(event);
            part.hash.add_ref(&seen);
            part.transactions.observe(&seen);
            written(&dir, part.writer.write_ref(&seen))?;
            self.events += 1;
        }
        Ok(())
    }

    /// Ends the captures that are open.
    fn finish(&mut self, ctx: &Context) -> anyhow::Result<()> {
        for (name, Part { writer, hash, transactions }) in std::mem::take(&mut self.open) {
            let dir = self.dir(&name);
            let mut report = json!({ "split_from": self.inherited, "hash": hash.to_string() });
            let cut_open = transactions.count();
            report::add_open_transactions(&mut report, cut_open);
            self.cut_open += cut_open;
            if self.args.redact.is_on() {
                report["redacted"] = json!({});
            }
            let manifest = written(&dir, writer.finish(report))?;
            tell(ctx, &dir, &manifest, cut_open);
            self.captures += 1;
        }
        Ok(())
    }
}

fn tell(ctx: &Context, dir: &Path, manifest: &CaptureManifest, cut_open: usize) {
    let open = match cut_open {
        0 => String::new(),
        count => format!(", ends inside {}", counted(count as u64, "transaction")),
    };
    ctx.say(format_args!("{}: {}{open}", dir.display(), counted(manifest.events, "event")));
}

#[test]
fn lengths_and_names() {
    assert_eq!("10m".parse(), Ok(Length(Duration::from_secs(600))));
    for text in ["", "10", "0s", "m", "1.5h", "-1s", "99999999999999999999h", "10 m"] {
        assert!(text.parse::<Length>().is_err(), "{text}");
    }
    assert_eq!(folder_name("shop", 0), "database-shop");
    assert_eq!(folder_name("", 0), "unknown-database");
    assert_eq!(folder_name("../etc", 1), "database-etc-2");
}
