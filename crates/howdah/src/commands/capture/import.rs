//! `howdah capture import`: server logs into a capture.

use std::{cell::RefCell, io::Write as _, ops::ControlFlow, path::PathBuf, sync::atomic::Ordering};

use howdah_dataset::{CaptureSettings, Origin};
use howdah_logs::{Format, Options, Progress, ReadFilesError, Summary, visit_files};
use howdah_report::counted;
use indicatif::ProgressBar;

use super::{
    EncodingArgs, LogArgs,
    output::{self, Output, written},
    report,
    select::{RedactArgs, SelectArgs},
};
use crate::{context::Context, errors, outcome::Outcome, progress::Total};

/// Make a capture from the logs of a PostgreSQL server.
///
/// Reads the stderr, csvlog and jsonlog formats of PostgreSQL 12 to 18, packed or not, out of syslog,
/// the journal, containers and clouds, and says what it took them for. Records that cannot be read are
/// counted and shown, and never stop the import.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Logs: files, folders or patterns, in any order; - is standard input
    #[arg(required = true, value_name = "LOG")]
    logs: Vec<PathBuf>,
    /// Folder for the capture
    #[arg(long, short, value_name = "CAPTURE", required_unless_present = "discard")]
    output: Option<PathBuf>,
    /// Write nothing; print the events by kind and a hash over all of them
    #[arg(long, conflicts_with = "output")]
    discard: bool,
    /// Replace a capture that is there already
    #[arg(long)]
    force: bool,
    /// The former name of --input-format
    #[arg(long, value_enum, value_name = "FORMAT", hide = true, conflicts_with = "input_format")]
    format: Option<LogFormat>,
    #[command(flatten)]
    select: SelectArgs,
    #[command(flatten)]
    redact: RedactArgs,
    #[command(flatten)]
    log: LogArgs,
    #[command(flatten)]
    encoding: EncodingArgs,
}

/// The formats that PostgreSQL writes its log in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum LogFormat {
    /// Lines that begin with log_line_prefix
    Stderr,
    /// csvlog
    Csv,
    /// jsonlog
    Json,
}

impl From<LogFormat> for Format {
    fn from(format: LogFormat) -> Self {
        match format {
            LogFormat::Stderr => Self::Stderr,
            LogFormat::Csv => Self::Csv,
            LogFormat::Json => Self::Json,
        }
    }
}

pub(super) fn run(args: &Args, ctx: &Context) -> anyhow::Result<Outcome> {
    let mut options = args.log.options()?;
    options.format = options.format.or(args.format.map(Format::from));
    let timezone = options.timezone.clone();
    // Events and the passing of time both come to it.
    let output = RefCell::new(output(args, &options)?);
    let mut bar = None;
    let mut idle = Ok(());
    let interrupted = ctx.interrupted();
    let progress = |progress| {
        show(ctx, &mut bar, progress);
        idle = output.borrow_mut().idle();
        match interrupted.load(Ordering::Relaxed) || idle.is_err() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    };
    let read = visit_files(&args.logs, options, progress, |event| output.borrow_mut().take(event));
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    let output = output.into_inner();
    // Without a folder nothing is written, so that nothing can go wrong with it.
    let dir = args.output.clone().unwrap_or_default();
    written(&dir, idle)?;
    match read {
        Ok(summary) => conclude(args, ctx, output, &summary, timezone),
        Err(ReadFilesError::Sink(error)) => written(&dir, Err(error)),
        Err(error) => {
            let error = match error {
                ReadFilesError::Options(error) => errors::wrong_usage(error),
                ReadFilesError::Stopped => anyhow::anyhow!("interrupted"),
                error => anyhow::Error::from(error).context("cannot import"),
            };
            match written(&dir, output.stop(&error))? {
                Some(manifest) => {
                    let kept = format!(
                        "the {} events before it are kept in {}",
                        manifest.events,
                        dir.display()
                    );
                    Err(errors::with_hint(error, kept))
                }
                None => Err(error),
            }
        }
    }
}

fn output(args: &Args, options: &Options) -> anyhow::Result<Output> {
    let (sieve, redactor) = (args.select.sieve(), args.redact.redactor()?);
    let Some(dir) = &args.output else { return Ok(Output::discard(sieve, redactor)) };
    let origin = Origin {
        files: files(args),
        format: options.format.map(|format| format.as_str().to_owned()),
        prefix: options.prefix.clone(),
        timezone: options.timezone.clone(),
        encodings: args.encoding.by_database(),
    };
    let settings = CaptureSettings { origin, overwrite: args.force };
    Ok(Output::capture(dir, settings, sieve, redactor))
}

fn files(args: &Args) -> Vec<String> {
    args.logs.iter().map(|path| path.display().to_string()).collect()
}

/// Ends the capture and says what was read, what is in the capture, and what is not.
fn conclude(
    args: &Args,
    ctx: &Context,
    output: Output,
    summary: &Summary,
    timezone: Option<String>,
) -> anyhow::Result<Outcome> {
    tell_source(ctx, summary);
    if summary.records > 0 && summary.events_total() == 0 {
        ctx.say(
            "no statement and no session is in them; `howdah capture doctor LOG` tells which settings log them",
        );
    }
    let left = output.left();
    let report = report::of(summary, output.tally().too_large);
    let mut said = report::lines(&report);
    if args.redact.is_on() {
        let mut hidden = report.clone();
        report::hide_values(&mut hidden);
        said = report::lines(&hidden);
    }
    said.extend(output.tally().open_transactions());
    match &args.output {
        None => discarded(ctx, &output)?,
        Some(dir) => {
            let origin = Origin {
                files: files(args),
                format: summary.format.map(|format| format.as_str().to_owned()),
                prefix: summary.prefix.as_ref().map(|prefix| prefix.text.clone()),
                timezone,
                encodings: args.encoding.by_database(),
            };
            if let Some(manifest) = written(dir, output.finish(origin, report))? {
                output::tell(ctx, dir, &manifest);
                output::tell_kinds(ctx, &manifest);
            }
        }
    }
    said.into_iter().chain(left).for_each(|line| ctx.say(line));
    Ok(Outcome::Done)
}

/// What `--discard` prints.
fn discarded(ctx: &Context, output: &Output) -> anyhow::Result<()> {
    let hash = &output.tally().hash;
    super::cat::write_hash(&mut ctx.stdout(), hash)?;
    ctx.stdout().flush()?;
    Ok(())
}

fn show(ctx: &Context, bar: &mut Option<ProgressBar>, progress: Progress) {
    let total = progress.bytes_total.map_or(Total::Unknown, Total::Bytes);
    bar.get_or_insert_with(|| ctx.progress(total, "importing")).set_position(progress.bytes);
}

fn tell_source(ctx: &Context, summary: &Summary) {
    let format = summary.format.map_or("unknown", Format::as_str);
    let prefix = summary.prefix.as_ref().map_or(String::new(), |prefix| format!(", {prefix}"));
    for line in summary.inputs.lines() {
        ctx.say(line);
    }
    ctx.say(format_args!("read {} in {format} format{prefix}", counted(summary.records, "record")));
    if let Some(doubt) = summary.prefix.as_ref().and_then(howdah_logs::Prefix::doubt) {
        ctx.say(doubt);
    }
}
