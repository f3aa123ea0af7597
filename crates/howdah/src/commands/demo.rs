//! `howdah demo`: captures, replays and compares on throwaway servers, with a slowdown to find.

use std::{
    io::Write as _,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, bail};
use howdah_demo::{Demo, DemoOutcome};
use howdah_lab::BinariesSearch;

use crate::{
    context::CommandContext, errors::WithHint as _, outcome::CommandOutcome, values::time_in_range,
};

/// See howdah find a slowdown planted in a throwaway PostgreSQL server.
///
/// Creates a small shop database, runs clients while the server logs, replays the log against an
/// unchanged copy and against one without an index, and compares the runs. Takes about two minutes,
/// needs no installed PostgreSQL, and leaves nothing behind except the folder of --output. Exits
/// with 3 if the planted slowdown was not found.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Folder for the capture, the runs and compare.json [default: a temporary folder]
    #[arg(short, long, alias = "out", value_name = "DIR")]
    output: Option<PathBuf>,
    /// Major version of PostgreSQL to use [default: the newest installed]
    #[arg(long, value_name = "MAJOR")]
    pg: Option<u32>,
    /// Folder with the PostgreSQL programs to use
    #[arg(long, value_name = "DIR")]
    pg_bin: Option<PathBuf>,
    /// How long the clients run
    #[arg(long, alias = "seconds", value_name = "TIME", default_value = "20s",
          value_parser = time_in_range(5.0..=600.0))]
    duration: Duration,
}

const EXAMPLES: &str = "\
Examples:
  howdah demo
  howdah demo -o here --pg 17 --duration 1m";

pub(crate) fn run(args: &Args, ctx: &CommandContext) -> anyhow::Result<CommandOutcome> {
    let temporary = match &args.output {
        Some(_) => None,
        None => Some(tempfile::tempdir().context("cannot create a temporary folder")?),
    };
    let out = args.output.clone().or_else(|| temporary.as_ref().map(|dir| dir.path().to_owned()));
    let Some(out) = out else { bail!("no folder") };
    howdah_files::create_dir_all(&out)
        .with_context(|| format!("cannot create the folder {}", out.display()))?;
    let demo = Demo {
        out: out.clone(),
        search: search(args.pg, args.pg_bin.as_deref()),
        duration: args.duration,
        stop: ctx.interrupted(),
    };
    let ending = demo
        .run(|line| ctx.report(line))
        .context("the demo failed")
        .hint("`howdah lab start` shows whether a throwaway PostgreSQL can be started here")?;
    let file = out.join("compare.json");
    let document = howdah_report::document(&ending.changed, &[], None);
    howdah_files::write(&file, format!("{:#}\n", serde_json::to_value(document)?))
        .with_context(|| format!("cannot write {}", file.display()))?;
    print_result(ctx, &ending, temporary.is_none().then_some(&file))
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

fn print_result(
    ctx: &CommandContext,
    ending: &DemoOutcome,
    file: Option<&PathBuf>,
) -> anyhow::Result<CommandOutcome> {
    let mut out = ctx.stdout();
    writeln!(out, "control: {}", howdah_report::verdict_line(&ending.control))?;
    writeln!(out, "changed: {}", howdah_report::verdict_line(&ending.changed))?;
    for line in howdah_report::headlines(&ending.changed) {
        writeln!(out, "{line}")?;
    }
    if let Some(file) = file {
        writeln!(out, "details: {}", file.display())?;
    }
    match ending.slower_query() {
        Some(_) => Ok(CommandOutcome::Done),
        None => {
            writeln!(out, "the slowdown of the statement that lost its index was not found")?;
            Ok(CommandOutcome::CheckFailed)
        }
    }
}
