//! `howdah demo`: captures, rehearses and reports on throw-away servers, with a slowdown to find.

use std::{
    fs::Permissions,
    io::Write as _,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context as _;
use howdah_demo::{Demo, DemoError, DemoOutcome};
use howdah_lab::BinariesSearch;
use tempfile::TempDir;

use crate::{context::CommandContext, errors, outcome::CommandOutcome, values::time_in_range};

/// Rehearse a change with a planted slowdown on throw-away servers.
///
/// Starts a PostgreSQL server with a small shop, runs its clients through the pooler, which
/// captures their traffic, and rehearses a change on two copies of the data: an index is dropped.
/// Takes about 75 seconds, and leaves nothing behind except the folder of --output.
///
/// The last line on stdout is the path of the report, a page for a browser. Exits with 3 if the
/// planted slowdown was not found.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Folder for the capture, the runs and the reports [default: a new howdah-demo-… in the
    /// temporary directory]
    #[arg(short, long, alias = "out", value_name = "DIR")]
    output: Option<PathBuf>,
    /// Major version of PostgreSQL to use [default: the newest installed]
    #[arg(long, value_name = "MAJOR")]
    pg: Option<u32>,
    /// Folder with the PostgreSQL programs to use
    #[arg(long, value_name = "DIR")]
    pg_bin: Option<PathBuf>,
    /// How long the clients run; each of the six replays takes as long
    #[arg(long, alias = "seconds", value_name = "TIME", default_value = "8s",
          value_parser = time_in_range(5.0..=600.0))]
    duration: Duration,
}

const EXAMPLES: &str = "\
Examples:
  howdah demo
  howdah demo -o here --pg 17 --duration 1m";

pub(crate) fn run(args: &Args, ctx: &CommandContext) -> anyhow::Result<CommandOutcome> {
    let stop = ctx.interrupted();
    let (output, temporary) = match &args.output {
        Some(dir) => (dir.clone(), None),
        None => {
            let dir = new_folder()?;
            (dir.path().to_owned(), Some(dir))
        }
    };
    let demo = Demo {
        // The path is printed, to be opened from anywhere.
        output: std::path::absolute(&output).context("cannot find the working directory")?,
        search: search(args.pg, args.pg_bin.as_deref()),
        duration: args.duration,
        stop,
    };
    // Without a report, a temporary folder is removed.
    let outcome = demo.run(&|line| ctx.report(line)).map_err(with_advice)?;
    if let Some(dir) = temporary {
        let _ = dir.keep();
    }
    print_result(ctx, &outcome)
}

/// Creates a folder with a unique name, which only its owner can enter.
fn new_folder() -> anyhow::Result<TempDir> {
    let owner_only = Permissions::from_mode(howdah_files::FOLDER_MODE);
    tempfile::Builder::new()
        .prefix("howdah-demo-")
        .permissions(owner_only)
        .tempdir()
        .with_context(|| format!("cannot create a folder in {}", std::env::temp_dir().display()))
}

fn search(major: Option<u32>, dir: Option<&Path>) -> BinariesSearch {
    let mut search = BinariesSearch::new();
    if let Some(major) = major {
        search = search.major(major);
    }
    if let Some(dir) = dir {
        search = search.dir(dir);
    }
    search
}

/// Adds a hint to an error that has a known remedy.
fn with_advice(error: DemoError) -> anyhow::Error {
    let hint = match &error {
        DemoError::Interrupted => return error.into(),
        DemoError::ForeignFolder { .. } => Some("name another folder with -o"),
        DemoError::Lab(_) => {
            Some("`howdah lab start` shows whether a throw-away PostgreSQL can be started here")
        }
        _ => None,
    };
    let error = anyhow::Error::from(error).context("the demo failed");
    match hint {
        Some(hint) => errors::with_hint(error, hint),
        None => error,
    }
}

/// Prints the result, and on the last line the path of the report. Returns the command's outcome.
fn print_result(ctx: &CommandContext, outcome: &DemoOutcome) -> anyhow::Result<CommandOutcome> {
    let report = &outcome.report;
    let mut out = ctx.stdout();
    writeln!(out, "rehearsal {}", report.summary())?;
    for line in howdah_report::headlines(&report.comparison) {
        writeln!(out, "{line}")?;
    }
    let slower = outcome.slower_query();
    for reason in slower.into_iter().flat_map(|query| report.reasons_of(query)) {
        writeln!(out, "reason: {reason}")?;
    }
    if slower.is_none() {
        writeln!(out, "the slowdown of the statement that lost its index was not found")?;
    }
    writeln!(out, "{}", outcome.page.display())?;
    out.finish()?;
    Ok(match slower {
        Some(_) => CommandOutcome::Done,
        None => CommandOutcome::CheckFailed,
    })
}
