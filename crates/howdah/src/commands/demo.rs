//! `howdah demo`: the whole line on throw-away servers, with a slowdown to find.

use std::{io::Write as _, path::PathBuf, time::Duration};

use anyhow::{Context as _, bail};
use howdah_demo::{Demo, Ending};
use howdah_lab::Search;

use crate::{context::Context, errors::WithHint as _, outcome::Outcome, values::time_within};

/// See it work: a slowdown is planted in a throw-away PostgreSQL, and found.
///
/// Builds a small shop, lets clients shop while the server logs, replays the log against an
/// unchanged copy and against one that lacks an index, and compares. Takes about two minutes, needs
/// no PostgreSQL on the machine, and leaves only what is in the folder of --output. Exit status 3 if
/// the planted slowdown was not found.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Folder for the capture, the runs and compare.json; a temporary one if not given
    #[arg(short, long, alias = "out", value_name = "DIR")]
    output: Option<PathBuf>,
    /// Major version of PostgreSQL to use; the newest that is installed if not given
    #[arg(long, value_name = "MAJOR")]
    pg: Option<u32>,
    /// Folder with the programs of the PostgreSQL to use
    #[arg(long, value_name = "DIR")]
    pg_bin: Option<PathBuf>,
    /// How long clients are in the shop
    #[arg(long, alias = "seconds", value_name = "TIME", default_value = "20s",
          value_parser = time_within(5.0..=600.0))]
    duration: Duration,
}

const EXAMPLES: &str = "\
Examples:
  howdah demo
  howdah demo -o here --pg 17 --duration 1m";

pub(crate) fn run(args: Args, ctx: &Context) -> anyhow::Result<Outcome> {
    let temporary = match &args.output {
        Some(_) => None,
        None => Some(tempfile::tempdir().context("cannot make a temporary folder")?),
    };
    let out = args.output.or_else(|| temporary.as_ref().map(|dir| dir.path().to_owned()));
    let Some(out) = out else { bail!("no folder") };
    howdah_files::create_dir_all(&out)
        .with_context(|| format!("cannot make the folder {}", out.display()))?;
    let demo = Demo {
        out: out.clone(),
        search: search(args.pg, args.pg_bin),
        duration: args.duration,
        stop: ctx.interrupted(),
    };
    let ending = demo
        .run(|line| ctx.say(line))
        .context("the demo could not be given")
        .hint("`howdah lab start` shows whether a throw-away PostgreSQL can be had here")?;
    let file = out.join("compare.json");
    let document = howdah_report::document(&ending.changed, &[], None);
    howdah_files::write(&file, format!("{:#}\n", serde_json::to_value(document)?))
        .with_context(|| format!("cannot write {}", file.display()))?;
    conclude(ctx, &ending, temporary.is_none().then_some(&file))
}

fn search(major: Option<u32>, dir: Option<PathBuf>) -> Search {
    let mut search = Search::new();
    if let Some(major) = major {
        search = search.major(major);
    }
    if let Some(dir) = dir {
        search = search.dir(dir);
    }
    search
}

fn conclude(ctx: &Context, ending: &Ending, file: Option<&PathBuf>) -> anyhow::Result<Outcome> {
    let mut out = ctx.stdout();
    writeln!(out, "control: {}", howdah_report::verdict_line(&ending.control))?;
    writeln!(out, "changed: {}", howdah_report::verdict_line(&ending.changed))?;
    for line in howdah_report::headlines(&ending.changed) {
        writeln!(out, "{line}")?;
    }
    if let Some(file) = file {
        writeln!(out, "details: {}", file.display())?;
    }
    match ending.found() {
        Some(_) => Ok(Outcome::Done),
        None => {
            writeln!(out, "the statement that lost its index was not found to be slower")?;
            Ok(Outcome::No)
        }
    }
}
