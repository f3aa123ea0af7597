//! `howdah probe report`: analyses a flight recording.

use std::{
    io::Write as _,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, anyhow, bail};
use howdah_probe::{
    analysis::{self, RecordingWindow, TimeSpan, units},
    recorder::{FlightRecording, RecordingReadError},
};
use howdah_report::recording::{page, svg, text};
use howdah_traffic::Timestamp;

use crate::{
    context::CommandContext,
    errors::{self, WithHint as _},
    format,
    outcome::CommandOutcome,
};

/// Analyze a recording of `howdah probe run`: a summary, its evidence and a chart.
///
/// The summary names what stands out, with the sessions and statements that caused it if the
/// recorder had a URI. It compares measurements while checkpoints write and sync with those outside
/// of checkpoints, and states if there is too little data to compare. A file can be read while it
/// is being recorded.
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
    /// Only from this time on: RFC 3339, or the time of day in UTC on the recording's last day
    #[arg(long, value_name = "TIME", conflicts_with = "episode", value_parser = moment)]
    from: Option<Moment>,
    /// Only up to this time
    #[arg(long, value_name = "TIME", conflicts_with = "episode", value_parser = moment)]
    to: Option<Moment>,
    /// Output format
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t)]
    format: ReportFormat,
}

const EXAMPLES: &str = "\
Examples:
  howdah probe report shop.rec
  howdah probe report shop.rec --html shop.html
  howdah probe report shop.rec --episode 2 --svg stall.svg
  howdah probe report shop.rec --from 13:58 --to 13:59:30
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

/// A time given by the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moment {
    /// Microseconds since 1970.
    Absolute(i64),
    /// Microseconds since midnight in UTC.
    TimeOfDay(i64),
}

/// Microseconds of a day.
const DAY_US: i64 = 86_400_000_000;

fn moment(text: &str) -> Result<Moment, String> {
    let invalid = || "write a time such as 13:58:30 or 2026-11-20T13:58:30Z, in UTC".to_owned();
    if let Ok(time) = text.parse::<Timestamp>() {
        return Ok(Moment::Absolute(time.as_micros()));
    }
    let mut seconds = 0;
    let fields: Vec<&str> = text.split(':').collect();
    if !(2..=3).contains(&fields.len()) {
        return Err(invalid());
    }
    for (field, (below, unit)) in fields.iter().zip([(24, 3600), (60, 60), (60, 1)]) {
        let number: i64 = field.parse().map_err(|_| invalid())?;
        if !(0..below).contains(&number) {
            return Err(invalid());
        }
        seconds += number * unit;
    }
    Ok(Moment::TimeOfDay(seconds * 1_000_000))
}

impl Moment {
    /// Returns the time in microseconds since 1970. A time of day is the last one before `end_us`,
    /// the end of the recording.
    fn before(self, end_us: i64) -> i64 {
        match self {
            Self::Absolute(at_us) => at_us,
            Self::TimeOfDay(us) => {
                let at_us = end_us.div_euclid(DAY_US) * DAY_US + us;
                if at_us > end_us { at_us - DAY_US } else { at_us }
            }
        }
    }
}

fn window(args: &Args, recording: &FlightRecording) -> anyhow::Result<RecordingWindow> {
    let Some(number) = args.episode else {
        let whole = RecordingWindow::from_recording(recording);
        if args.from.is_none() && args.to.is_none() {
            return Ok(whole);
        }
        let all = whole.span();
        let from_us = args.from.map_or(all.from_us, |from| from.before(all.to_us));
        let mut to_us = args.to.map_or(i64::MAX, |to| to.before(all.to_us));
        // A time of day after the end of the recording is not that of the day before.
        if matches!(args.to, Some(Moment::TimeOfDay(_))) && to_us < from_us {
            to_us += DAY_US;
        }
        let span = TimeSpan { from_us, to_us };
        let window = RecordingWindow::from_span(recording, span);
        if window.seconds.is_empty() {
            let (from, to) = (units::timestamp(all.from_us), units::timestamp(all.to_us));
            bail!("nothing was recorded in this time: the recording is from {from} to {to}");
        }
        return Ok(window);
    };
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

#[test]
fn moments_are_times_or_times_of_day() {
    let noon_us = 1_414_072_716_000_000_i64.div_euclid(DAY_US) * DAY_US + DAY_US / 2;
    let at = |text: &str| moment(text).map(|moment| moment.before(noon_us) - noon_us);
    assert_eq!(at("11:59:30"), Ok(-30_000_000));
    // A later time of day is that of the day before.
    assert_eq!(at("12:01"), Ok(60_000_000 - DAY_US));
    assert_eq!(moment("1970-01-01T00:00:01Z"), Ok(Moment::Absolute(1_000_000)));
    for text in ["", "12", "24:00", "1:2:3:4", "a:b", "12:60"] {
        assert!(moment(text).is_err(), "{text}");
    }
}
