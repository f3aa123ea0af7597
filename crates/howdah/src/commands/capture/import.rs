//! `howdah capture import`: makes a capture from server logs.

use std::{cell::RefCell, io::Write as _, ops::ControlFlow, path::PathBuf, sync::atomic::Ordering};

use anyhow::Context as _;
use howdah_collect::PhysicalIdentity;
use howdah_dataset::{CaptureOrigin, CapturePart, CaptureSettings, CapturedServer, ImportPart};
use howdah_logs::{
    ImportOptions, ImportSummary, ReadFilesError, ReadProgress, ServerLogFormat, visit_files,
};
use howdah_report::counted;
use howdah_traffic::Timestamp;
use indicatif::ProgressBar;

use super::{
    EncodingArgs, LogArgs,
    output::{self, CaptureOutput, with_write_hint},
    report,
    selection::{RedactArgs, SelectArgs},
};
use crate::{
    connection::{self, ConnectionArgs},
    context::CommandContext,
    errors,
    outcome::CommandOutcome,
    progress::Total,
    values::dataset_path,
};

/// Make a capture from the logs of a PostgreSQL server.
///
/// Reads the stderr, csvlog and jsonlog formats of PostgreSQL 12 to 18, compressed or not, also
/// wrapped by syslog, the journal, containers and clouds, and reports the detected format.
/// Unreadable records are counted and shown, and never stop the import.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Logs: files, folders or glob patterns, in any order; - is standard input
    #[arg(required = true, value_name = "LOG")]
    logs: Vec<PathBuf>,
    /// Folder to write the capture to
    #[arg(long, short, value_name = "CAPTURE", required_unless_present = "discard",
          value_parser = dataset_path())]
    output: Option<PathBuf>,
    /// Write only this importer's parts of the capture, replacing those of an importer of the same
    /// name; importers of other names may write to it, too
    #[arg(long, value_name = "NAME", requires = "output", conflicts_with = "force",
          value_parser = part_name)]
    part: Option<String>,
    /// Number of parts over which an importer's sessions are distributed
    #[arg(long, value_name = "COUNT", requires = "part", default_value_t = 24,
          value_parser = clap::value_parser!(u32).range(1..=256))]
    buckets: u32,
    /// Write nothing; print event counts by kind and a hash over all events
    #[arg(long, conflicts_with = "output")]
    discard: bool,
    /// Replace an existing capture
    #[arg(long)]
    force: bool,
    /// Former name of --input-format
    #[arg(long, value_enum, value_name = "FORMAT", hide = true, conflicts_with = "input_format")]
    format: Option<LogFormatArg>,
    /// Server that wrote the logs, to record which one it is; logs do not contain that
    #[arg(long, value_name = "CONNINFO")]
    server: Option<String>,
    #[command(flatten)]
    select: SelectArgs,
    #[command(flatten)]
    redact: RedactArgs,
    #[command(flatten)]
    log: LogArgs,
    #[command(flatten)]
    encoding: EncodingArgs,
}

/// A log format of PostgreSQL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum LogFormatArg {
    /// Lines that start with log_line_prefix
    Stderr,
    /// csvlog
    Csv,
    /// jsonlog
    Json,
}

impl From<LogFormatArg> for ServerLogFormat {
    fn from(format: LogFormatArg) -> Self {
        match format {
            LogFormatArg::Stderr => Self::Stderr,
            LogFormatArg::Csv => Self::Csv,
            LogFormatArg::Json => Self::Json,
        }
    }
}

pub(super) fn run(args: &Args, ctx: &CommandContext) -> anyhow::Result<CommandOutcome> {
    let mut options = args.log.options()?;
    options.format = options.format.or(args.format.map(ServerLogFormat::from));
    let timezone = options.timezone.clone();
    let server = args.server.as_deref().map(|server| query_server(ctx, server)).transpose()?;
    // Both callbacks use the output: one for events, one for progress.
    let output = RefCell::new(output(args, &options, server.clone())?);
    let mut bar = None;
    let mut idle = Ok(());
    let interrupted = ctx.interrupted();
    let progress = |progress| {
        update_progress(ctx, &mut bar, progress);
        idle = output.borrow_mut().on_idle();
        if interrupted.load(Ordering::Relaxed) || idle.is_err() {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    };
    let read =
        visit_files(&args.logs, options, progress, |event| output.borrow_mut().push_ref(event));
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    let output = output.into_inner();
    // Without a folder nothing is written, so errors do not refer to it.
    let dir = args.output.clone().unwrap_or_default();
    with_write_hint(&dir, idle)?;
    match read {
        Ok(summary) => finish(args, ctx, output, &summary, LogOrigin { timezone, server }),
        Err(ReadFilesError::Sink(error)) => with_write_hint(&dir, Err(error)),
        Err(error) => {
            let error = match error {
                ReadFilesError::Options(error) => errors::wrong_usage(error),
                ReadFilesError::Stopped => {
                    anyhow::anyhow!("interrupted before the end of the input")
                }
                error => anyhow::Error::from(error).context("cannot import the log"),
            };
            match with_write_hint(&dir, output.stop(&error))? {
                Some(manifest) => {
                    let hint = format!(
                        "the {} events before the error are in {}",
                        manifest.events,
                        dir.display()
                    );
                    Err(errors::with_hint(error, hint))
                }
                None => Err(error),
            }
        }
    }
}

/// Queries the server that wrote the logs. Its WAL position is not recorded, because it has moved
/// since the start of the logs.
fn query_server(ctx: &CommandContext, conninfo: &str) -> anyhow::Result<CapturedServer> {
    let target = ConnectionArgs::default().target(Some(conninfo)).context("cannot use --server")?;
    let mut client = connection::connect(&target)?;
    let identity = PhysicalIdentity::query(&mut client)
        .with_context(|| format!("cannot query the system identifier of {target}"))?;
    if let Some(grant) = &identity.missing_grant {
        ctx.report(format_args!(
            "note: this role may not read the server's system identifier, so a replay recognizes \
             the server by its address only"
        ));
        ctx.report(format_args!("hint: {grant}"));
    }
    Ok(CapturedServer {
        system_identifier: identity.system_identifier,
        timeline: identity.timeline,
        address: Some(client.endpoint().to_string()),
        postmaster_start: identity.postmaster_start_us.map(Timestamp::from_micros),
        ..CapturedServer::default()
    })
}

/// The origin of the events, as far as the options name it.
struct LogOrigin {
    timezone: Option<String>,
    server: Option<CapturedServer>,
}

fn output(
    args: &Args,
    options: &ImportOptions,
    server: Option<CapturedServer>,
) -> anyhow::Result<CaptureOutput> {
    let (filter, redactor) = (args.select.filter(), args.redact.redactor()?);
    let Some(dir) = &args.output else { return Ok(CaptureOutput::discard(filter, redactor)) };
    let origin = CaptureOrigin {
        files: files(args),
        format: options.format.map(|format| format.as_str().to_owned()),
        prefix: options.prefix.clone(),
        timezone: options.timezone.clone(),
        encodings: args.encoding.by_database(),
        server,
    };
    let settings = CaptureSettings { origin, overwrite: args.force };
    let part = args.part.clone().map(|importer| ImportPart { importer, buckets: args.buckets });
    Ok(CaptureOutput::capture(dir, settings, filter, redactor).with_part(part))
}

/// Parses the name of an importer.
fn part_name(text: &str) -> Result<String, &'static str> {
    if CapturePart::is_valid_name(text) {
        Ok(text.to_owned())
    } else {
        Err("write up to 100 letters, digits, dots, underscores and hyphens")
    }
}

fn files(args: &Args) -> Vec<String> {
    args.logs.iter().map(|path| path.display().to_string()).collect()
}

/// Finishes the capture and reports what was read, written and excluded.
fn finish(
    args: &Args,
    ctx: &CommandContext,
    output: CaptureOutput,
    summary: &ImportSummary,
    LogOrigin { timezone, server }: LogOrigin,
) -> anyhow::Result<CommandOutcome> {
    report_source(ctx, summary);
    if summary.records > 0 && summary.events_total() == 0 {
        ctx.report(
            "no statements and no sessions found; `howdah capture doctor LOG` shows which settings log them",
        );
    }
    let left = output.excluded_lines();
    let report = report::from_summary(summary, output.tally().too_large);
    let mut lines = report::lines(&report);
    if args.redact.is_on() {
        let mut hidden = report.clone();
        report::hide_values(&mut hidden);
        lines = report::lines(&hidden);
    }
    lines.extend(output.tally().open_transactions());
    match &args.output {
        None => print_discarded(ctx, &output)?,
        Some(dir) => {
            let origin = CaptureOrigin {
                files: files(args),
                format: summary.format.map(|format| format.as_str().to_owned()),
                prefix: summary.prefix.as_ref().map(|prefix| prefix.text.clone()),
                timezone,
                encodings: args.encoding.by_database(),
                server,
            };
            if let Some(manifest) = with_write_hint(dir, output.finish(&origin, report))? {
                output::report_capture(ctx, dir, &manifest);
                output::report_kinds(ctx, &manifest);
            }
        }
    }
    lines.into_iter().chain(left).for_each(|line| ctx.report(line));
    Ok(CommandOutcome::Done)
}

/// Prints the counts and hash of the events, the only result of `--discard`.
fn print_discarded(ctx: &CommandContext, output: &CaptureOutput) -> anyhow::Result<()> {
    let hash = &output.tally().hash;
    super::cat::write_hash(&mut ctx.stdout(), hash)?;
    ctx.stdout().flush()?;
    Ok(())
}

fn update_progress(ctx: &CommandContext, bar: &mut Option<ProgressBar>, progress: ReadProgress) {
    let total = progress.bytes_total.map_or(Total::Unknown, Total::Bytes);
    bar.get_or_insert_with(|| ctx.progress(total, "importing")).set_position(progress.bytes);
}

fn report_source(ctx: &CommandContext, summary: &ImportSummary) {
    let format = summary.format.map_or("unknown", ServerLogFormat::as_str);
    let prefix = summary.prefix.as_ref().map_or(String::new(), |prefix| format!(", {prefix}"));
    for line in summary.inputs.lines() {
        ctx.report(line);
    }
    ctx.report(format_args!(
        "read {} in {format} format{prefix}",
        counted(summary.records, "record")
    ));
    if let Some(warning) =
        summary.prefix.as_ref().and_then(howdah_logs::LogLinePrefix::ambiguity_warning)
    {
        ctx.report(warning);
    }
}
