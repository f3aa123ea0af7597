//! `howdah capture`: makes captures from server logs, transforms them and shows their contents.

mod cat;
mod doctor;
mod import;
mod info;
mod merge;
mod output;
mod report;
mod sample;
mod selection;
mod split;

use std::{
    collections::BTreeMap,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
};

use anyhow::Context as _;
use howdah_dataset::{Capture, CaptureManifest, ReadError, is_store_url};
use howdah_logs::ImportOptions;
use howdah_replay::DatabaseEncoding;
use serde_json::Value;

pub(crate) use self::{
    import::LogFormatArg,
    selection::{Exclusions, FilteredEvents, SelectArgs},
};
use crate::{
    context::CommandContext,
    errors::{self, WithHint as _},
    outcome::CommandOutcome,
};

/// Make captures of client traffic, and inspect them.
///
/// A capture is a folder of Parquet files: what the clients of a server did, and when. DuckDB,
/// pandas and many other tools can read it too.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: CaptureCommand,
}

commands! {
    enum CaptureCommand {
        Import(import::Args) => import::run,
        Doctor(doctor::Args) => doctor::run,
        Info(info::Args) => info::run,
        Cat(cat::Args) => cat::run,
        Sample(sample::Args) => sample::run,
        Split(split::Args) => split::run,
        Merge(merge::Args) => merge::run,
    }
}

pub(crate) fn run(args: &Args, ctx: &CommandContext) -> anyhow::Result<CommandOutcome> {
    args.command.run(ctx)
}

/// How to read a server log, for all commands that do. Input formats are `--input-format`, output
/// formats `--format`.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Server logs")]
pub(crate) struct LogArgs {
    /// Format of the logs; detected by default
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub(super) input_format: Option<LogFormatArg>,
    /// log_line_prefix of a stderr log, as in postgresql.conf; detected by default
    #[arg(long, value_name = "PREFIX", allow_hyphen_values = true)]
    prefix: Option<String>,
    /// log_timezone, such as Europe/Vienna or +05:30, if the time zone in the log is ambiguous
    #[arg(long, value_name = "ZONE", allow_hyphen_values = true)]
    timezone: Option<String>,
}

/// Encodings of captured texts.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Server logs")]
pub(crate) struct EncodingArgs {
    /// Encoding of all databases or of one, if it differs from the target's; repeatable
    #[arg(long, value_name = "[DATABASE=]ENCODING", value_delimiter = ',')]
    encoding: Vec<DatabaseEncoding>,
}

impl EncodingArgs {
    /// Returns the encodings by captured database; the empty name stands for all others.
    pub(crate) fn by_database(&self) -> BTreeMap<String, String> {
        let pairs = self.encoding.iter().cloned();
        pairs.map(|DatabaseEncoding { database, encoding }| (database, encoding)).collect()
    }
}

impl LogArgs {
    /// Returns the importer's options; omitted ones are detected from the data.
    ///
    /// # Errors
    ///
    /// The prefix or the time zone is invalid, which counts as wrong usage.
    pub(crate) fn options(&self) -> anyhow::Result<ImportOptions> {
        let options = ImportOptions {
            format: self.input_format.map(Into::into),
            prefix: self.prefix.clone(),
            timezone: self.timezone.clone(),
            ..ImportOptions::default()
        };
        match options.check() {
            Ok(()) => Ok(options),
            Err(error) => Err(errors::wrong_usage(error)),
        }
    }
}

/// Opens a capture, with hints for common errors.
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

/// Whether a folder has files, but is neither a capture nor a run: the files may be logs.
pub(crate) fn has_no_dataset(dir: &Path) -> bool {
    let Ok(entries) = std::fs::read_dir(dir) else { return false };
    let files: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    let is_data = |path: &std::path::PathBuf| path.extension().is_some_and(|it| it == "parquet");
    !files.is_empty()
        && !files.iter().any(is_data)
        && matches!(Capture::open(dir), Err(ReadError::NotADataset { .. }))
}

/// Returns the parts of a capture's report that also apply to a capture derived from it: gaps in
/// the log, redaction and merging, but neither counts, which differ in the new capture, nor
/// samples.
fn inherited_report(manifest: &CaptureManifest) -> Value {
    let report = &manifest.report;
    let mut inherited = serde_json::json!({});
    for key in ["completeness", "redacted", "merged"] {
        if !report[key].is_null() {
            inherited[key] = report[key].clone();
        }
    }
    inherited
}

/// Refuses to write a capture over its own input, which would be deleted before it is read.
fn refuse_overwriting_input(input: &Path, output: &Path) -> anyhow::Result<()> {
    let real = |path: &Path| {
        if is_store_url(path) { Some(path.to_owned()) } else { path.canonicalize().ok() }
    };
    if real(input).is_some() && real(input) == real(output) {
        Err(errors::wrong_usage(format!(
            "{} cannot be both input and output: name another folder with --output",
            input.display()
        )))
    } else {
        Ok(())
    }
}

/// Fails after Ctrl-C or SIGTERM.
fn bail_if_interrupted(interrupted: &AtomicBool) -> anyhow::Result<()> {
    if interrupted.load(Ordering::Relaxed) {
        anyhow::bail!("interrupted: the output is incomplete")
    } else {
        Ok(())
    }
}
