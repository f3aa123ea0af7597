//! `howdah capture`: server logs into captures, captures into others, and a look at both.

mod cat;
mod doctor;
mod import;
mod info;
mod merge;
mod output;
mod report;
mod sample;
mod select;
mod split;

use std::{
    collections::BTreeMap,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
};

use anyhow::Context as _;
use howdah_dataset::{Capture, CaptureManifest, ReadError};
use howdah_logs::Options;
use howdah_replay::DatabaseEncoding;
use serde_json::Value;

pub(crate) use self::{
    import::LogFormat,
    select::{LeftOut, SelectArgs, Sifted},
};
use crate::{
    context::Context,
    errors::{self, WithHint as _},
    outcome::Outcome,
};

/// Make captures of what clients do, and look at them.
///
/// A capture is a folder of Parquet files: what the clients of a server did, and when. DuckDB, pandas
/// and many others can read it, too.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Import(import::Args),
    Doctor(doctor::Args),
    Info(info::Args),
    Cat(cat::Args),
    Sample(sample::Args),
    Split(split::Args),
    Merge(merge::Args),
}

pub(crate) fn run(args: Args, ctx: &Context) -> anyhow::Result<Outcome> {
    match args.command {
        Command::Import(args) => import::run(&args, ctx),
        Command::Doctor(args) => doctor::run(&args, ctx),
        Command::Info(args) => info::run(&args, ctx),
        Command::Cat(args) => cat::run(&args, ctx),
        Command::Sample(args) => sample::run(&args, ctx),
        Command::Split(args) => split::run(&args, ctx),
        Command::Merge(args) => merge::run(&args, ctx),
    }
}

/// What a person can say about a log, wherever logs are read. What comes in is `--input-format`, what
/// goes out is `--format`.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Server logs")]
pub(crate) struct LogArgs {
    /// Format of the logs; recognised if not given
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub(super) input_format: Option<LogFormat>,
    /// log_line_prefix of a stderr log, as in postgresql.conf; guessed if not given
    #[arg(long, value_name = "PREFIX", allow_hyphen_values = true)]
    prefix: Option<String>,
    /// log_timezone, such as Europe/Vienna or +05:30, if the log's own words for it are ambiguous
    #[arg(long, value_name = "ZONE", allow_hyphen_values = true)]
    timezone: Option<String>,
}

/// In what encoding texts were captured.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Server logs")]
pub(crate) struct EncodingArgs {
    /// Encoding of the databases, or of one, where a target's own would not do; repeat for more
    #[arg(long, value_name = "[DATABASE=]ENCODING", value_delimiter = ',')]
    encoding: Vec<DatabaseEncoding>,
}

impl EncodingArgs {
    /// Encodings by captured database, as given; of all others under the empty name.
    pub(crate) fn by_database(&self) -> BTreeMap<String, String> {
        let pairs = self.encoding.iter().cloned();
        pairs.map(|DatabaseEncoding { database, encoding }| (database, encoding)).collect()
    }
}

impl LogArgs {
    /// The importer's options; everything that is not said is guessed.
    ///
    /// # Errors
    ///
    /// A prefix or a zone that makes no sense: wrong usage.
    pub(crate) fn options(&self) -> anyhow::Result<Options> {
        let options = Options {
            format: self.input_format.map(Into::into),
            prefix: self.prefix.clone(),
            timezone: self.timezone.clone(),
            ..Options::default()
        };
        match options.check() {
            Ok(()) => Ok(options),
            Err(error) => Err(errors::wrong_usage(error)),
        }
    }
}

/// Opens a capture that a person named.
pub(crate) fn open(dir: &Path) -> anyhow::Result<Capture> {
    let opened = Capture::open(dir);
    let hint = match &opened {
        Err(ReadError::Missing { .. } | ReadError::NotADataset { .. }) => {
            Some(format!("`howdah capture import LOG -o {}` makes a capture", dir.display()))
        }
        Err(ReadError::Version { .. }) => Some("a newer howdah wrote it".to_owned()),
        _ => None,
    };
    let opened = opened.context("cannot open the capture");
    match hint {
        Some(hint) => opened.hint(hint),
        None => opened,
    }
}

/// Whether a folder has files, and none that tells of a capture or a run: perhaps they are logs.
pub(crate) fn holds_no_dataset(dir: &Path) -> bool {
    let Ok(entries) = std::fs::read_dir(dir) else { return false };
    let files: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    let is_data = |path: &std::path::PathBuf| path.extension().is_some_and(|it| it == "parquet");
    !files.is_empty()
        && !files.iter().any(is_data)
        && matches!(Capture::open(dir), Err(ReadError::NotADataset { .. }))
}

/// What a capture that is made from another one keeps of its report: what its log lacked is lacking
/// here too. Its own numbers are not those of the new one, and samples are told once.
fn inherited(manifest: &CaptureManifest) -> Value {
    let report = &manifest.report;
    let mut kept = serde_json::json!({});
    for key in ["completeness", "redacted", "merged"] {
        if !report[key].is_null() {
            kept[key] = report[key].clone();
        }
    }
    kept
}

/// Refuses to write a capture into itself: it would be cleared before it is read.
fn refuse_same(input: &Path, output: &Path) -> anyhow::Result<()> {
    let real = |path: &Path| path.canonicalize().ok();
    match real(input).is_some() && real(input) == real(output) {
        true => Err(errors::wrong_usage(format!(
            "{} cannot be read and written at once: name another folder with --output",
            input.display()
        ))),
        false => Ok(()),
    }
}

/// Stops when Ctrl-C was pressed.
fn heed(interrupted: &AtomicBool) -> anyhow::Result<()> {
    match interrupted.load(Ordering::Relaxed) {
        true => anyhow::bail!("interrupted: what was written until then is a part only"),
        false => Ok(()),
    }
}
