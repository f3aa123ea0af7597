//! `howdah capture`: server logs into captures, and a look at captures.

mod cat;
mod import;
mod info;
mod report;

use std::path::Path;

use anyhow::Context as _;
use howdah_dataset::{Capture, ReadError};
use howdah_logs::Options;

pub(crate) use self::import::LogFormat;
use crate::{
    context::Context,
    errors::{self, Advise as _},
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
    Info(info::Args),
    Cat(cat::Args),
}

pub(crate) fn run(args: Args, ctx: &Context) -> anyhow::Result<Outcome> {
    match args.command {
        Command::Import(args) => import::run(&args, ctx),
        Command::Info(args) => info::run(&args, ctx),
        Command::Cat(args) => cat::run(&args, ctx),
    }
}

/// What a person can say about a log, wherever logs are read. The format of the log is an option of
/// the command: there is another `--format` for output in some.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Server logs")]
pub(crate) struct LogArgs {
    /// log_line_prefix of a stderr log, as in postgresql.conf; guessed if not given
    #[arg(long, value_name = "PREFIX", allow_hyphen_values = true)]
    prefix: Option<String>,
    /// log_timezone, such as Europe/Vienna or +05:30, if the log's own words for it are ambiguous
    #[arg(long, value_name = "ZONE", allow_hyphen_values = true)]
    timezone: Option<String>,
}

impl LogArgs {
    /// The importer's options; everything that is not said is guessed.
    ///
    /// # Errors
    ///
    /// A prefix or a zone that makes no sense: wrong usage.
    pub(crate) fn options(&self) -> anyhow::Result<Options> {
        let options = Options {
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
fn open(dir: &Path) -> anyhow::Result<Capture> {
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
