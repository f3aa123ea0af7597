//! `howdah probe report`: what a flight recording says.

use std::{
    io::Write as _,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, anyhow};
use howdah_flight::{Timeline, document, page, picture, text};
use howdah_probe::recorder::{ReadError, Recording};

use crate::{
    context::Context,
    errors::{self, WithHint as _},
    format,
    outcome::Outcome,
};

/// What a recording of `howdah probe run` says: a verdict, what it stands on, and one picture.
///
/// The verdict compares what was measured while checkpoints write and sync with the time outside of them, and
/// says so where there is too little to compare. A file can be read while it is being recorded to.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// The recording
    file: PathBuf,
    /// Write a page with the verdict and the picture, which needs nothing else
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write the picture alone
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Only this episode, from 1 on: what a trigger kept
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..))]
    episode: Option<u16>,
    /// Lines for a person, or one JSON document
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t)]
    format: ReportFormat,
}

const EXAMPLES: &str = "\
Examples:
  howdah probe report shop.rec
  howdah probe report shop.rec --html shop.html
  howdah probe report shop.rec --episode 2 --svg stall.svg
  howdah probe report shop.rec --format json > shop.json";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum ReportFormat {
    /// Lines for a person
    #[default]
    Text,
    /// One JSON document
    Json,
}

pub(super) fn run(args: &Args, ctx: &Context) -> anyhow::Result<Outcome> {
    let recording = match Recording::open(&args.file) {
        Err(error @ (ReadError::Foreign { .. } | ReadError::Empty { .. })) => {
            return Err(error).hint("`howdah probe run TARGET -o FILE` makes a recording");
        }
        recording => recording?,
    };
    let timeline = timeline(args, &recording)?;
    write(args.html.as_deref(), || page(&timeline), ctx)?;
    write(args.svg.as_deref(), || picture(&timeline), ctx)?;
    let mut out = ctx.stdout();
    match args.format {
        ReportFormat::Text => write!(out, "{}", text(&timeline))?,
        ReportFormat::Json => format::write_json(&mut out, &document(&timeline))?,
    }
    out.finish()?;
    Ok(Outcome::Done)
}

fn timeline(args: &Args, recording: &Recording) -> anyhow::Result<Timeline> {
    let Some(number) = args.episode else { return Ok(Timeline::of(recording)) };
    let place = usize::from(number) - 1;
    Timeline::of_episode(recording, place).ok_or_else(|| {
        let kept = recording.episodes.len();
        let error =
            anyhow!("{} keeps {kept} episodes, there is no number {number}", args.file.display());
        errors::with_hint(
            error,
            "an episode is kept when a trigger fires; the ninth takes the place of the first",
        )
    })
}

fn write(path: Option<&Path>, make: impl FnOnce() -> String, ctx: &Context) -> anyhow::Result<()> {
    if let Some(path) = path {
        howdah_files::write(path, make())
            .with_context(|| format!("cannot write {}", path.display()))?;
        ctx.say(format_args!("wrote {}", path.display()));
    }
    Ok(())
}
