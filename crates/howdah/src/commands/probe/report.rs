//! `howdah probe report`: analyses a flight recording.

use std::{
    io::Write as _,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, anyhow};
use howdah_probe::{
    analysis::{self, RecordingWindow},
    recorder::{FlightRecording, RecordingReadError},
};
use howdah_report::recording::{page, svg, text};

use crate::{
    context::CommandContext,
    errors::{self, WithHint as _},
    format,
    outcome::CommandOutcome,
};

/// Analyze a recording of `howdah probe run`: a summary, its evidence and a chart.
///
/// The summary compares measurements while checkpoints write and sync with those outside of
/// checkpoints, and states if there is too little data to compare. A file can be read while it is
/// being recorded.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// The recording
    file: PathBuf,
    /// Write a self-contained HTML page with the summary and the chart
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write only the chart
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Only this episode, recorded around a trigger; numbered from 1
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..))]
    episode: Option<u16>,
    /// Output format
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
    /// Text for people
    #[default]
    Text,
    /// One JSON document
    Json,
}

pub(super) fn run(args: &Args, ctx: &CommandContext) -> anyhow::Result<CommandOutcome> {
    let recording = match FlightRecording::open(&args.file) {
        Err(error @ (RecordingReadError::Foreign { .. } | RecordingReadError::Empty { .. })) => {
            return Err(error).hint("`howdah probe run TARGET -o FILE` makes a recording");
        }
        recording => recording?,
    };
    let window = window(args, &recording)?;
    write(args.html.as_deref(), || page(&window), ctx)?;
    write(args.svg.as_deref(), || svg(&window), ctx)?;
    let mut out = ctx.stdout();
    match args.format {
        ReportFormat::Text => write!(out, "{}", text(&window))?,
        ReportFormat::Json => format::write_json(&mut out, &analysis::report(&window))?,
    }
    out.finish()?;
    Ok(CommandOutcome::Done)
}

fn window(args: &Args, recording: &FlightRecording) -> anyhow::Result<RecordingWindow> {
    let Some(number) = args.episode else { return Ok(RecordingWindow::from_recording(recording)) };
    let index = usize::from(number) - 1;
    RecordingWindow::from_episode(recording, index).ok_or_else(|| {
        let count = recording.episodes.len();
        let error =
            anyhow!("{} has no episode {number}; number of episodes: {count}", args.file.display());
        errors::with_hint(
            error,
            "an episode is recorded when a threshold is exceeded; the ninth replaces the first",
        )
    })
}

fn write(
    path: Option<&Path>,
    make: impl FnOnce() -> String,
    ctx: &CommandContext,
) -> anyhow::Result<()> {
    if let Some(path) = path {
        howdah_files::write(path, make())
            .with_context(|| format!("cannot write {}", path.display()))?;
        ctx.report(format_args!("wrote {}", path.display()));
    }
    Ok(())
}
