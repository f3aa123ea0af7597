//! `howdah capture import`: server logs into a capture.

use std::{
    ops::ControlFlow,
    path::{Path, PathBuf},
    sync::atomic::Ordering,
};

use anyhow::Context as _;
use howdah_dataset::{CaptureManifest, CaptureSettings, CaptureWriter, Origin, WriteError};
use howdah_logs::{Format, Options, Progress, ReadFilesError, Summary, read_files};
use howdah_traffic::Event;
use indicatif::ProgressBar;

use super::{LogArgs, report};
use crate::{
    context::Context,
    errors::{self, Advise as _},
    outcome::Outcome,
    progress::Total,
};

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
    #[arg(long, short, value_name = "CAPTURE")]
    output: PathBuf,
    /// Format of the logs; recognised if not given
    #[arg(long, value_enum, value_name = "FORMAT")]
    format: Option<LogFormat>,
    /// Replace a capture that is there already
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    log: LogArgs,
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
    let options = Options { format: args.format.map(Format::from), ..args.log.options()? };
    let mut target = Target::new(args, &options);
    let mut bar = None;
    let interrupted = ctx.interrupted();
    let read = read_files(
        &args.logs,
        options,
        |progress| {
            show(ctx, &mut bar, progress);
            match interrupted.load(Ordering::Relaxed) {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        },
        |event| target.write(event),
    );
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    match read {
        Ok(summary) => {
            let manifest = written(&args.output, target.finish(&summary))?;
            tell(ctx, &args.output, &manifest, &summary);
            Ok(Outcome::Done)
        }
        Err(ReadFilesError::Sink(error)) => written(&args.output, Err(error)),
        Err(error) => {
            let error = match error {
                ReadFilesError::Options(error) => errors::wrong_usage(error),
                ReadFilesError::Stopped => anyhow::anyhow!("interrupted"),
                error => anyhow::Error::from(error).context("cannot import"),
            };
            match written(&args.output, target.stop(&error))? {
                Some(manifest) => Err(errors::with_hint(
                    error,
                    format!(
                        "the {} events before it are kept in {}",
                        manifest.events,
                        args.output.display()
                    ),
                )),
                None => Err(error),
            }
        }
    }
}

fn written<T>(dir: &Path, result: Result<T, WriteError>) -> anyhow::Result<T> {
    let hint = match &result {
        Err(WriteError::Exists { .. }) => Some("--force replaces it".to_owned()),
        Err(WriteError::NoRoom { files_kept: 1.., .. }) => Some(format!(
            "`howdah capture info {}` shows what was imported; free some space and import again \
             with --force",
            dir.display()
        )),
        _ => None,
    };
    let result = result.context("cannot write the capture");
    match hint {
        Some(hint) => result.hint(hint),
        None => result,
    }
}

/// The capture that is being written. It is created when the first event comes, so that logs which
/// cannot be read replace nothing and leave nothing.
struct Target<'a> {
    dir: &'a Path,
    settings: CaptureSettings,
    timezone: Option<String>,
    writer: Option<CaptureWriter>,
    /// Events that no capture can hold.
    too_large: u64,
}

impl<'a> Target<'a> {
    fn new(args: &'a Args, options: &Options) -> Self {
        let origin = Origin {
            files: args.logs.iter().map(|path| path.display().to_string()).collect(),
            format: options.format.map(|format| format.as_str().to_owned()),
            prefix: options.prefix.clone(),
            timezone: options.timezone.clone(),
        };
        Self {
            dir: &args.output,
            settings: CaptureSettings { origin, overwrite: args.force },
            timezone: options.timezone.clone(),
            writer: None,
            too_large: 0,
        }
    }

    fn write(&mut self, event: Event) -> Result<(), WriteError> {
        match self.writer()?.write(event) {
            Err(WriteError::RowTooLarge { .. }) => {
                self.too_large += 1;
                Ok(())
            }
            result => result,
        }
    }

    fn writer(&mut self) -> Result<&mut CaptureWriter, WriteError> {
        let writer = match self.writer.take() {
            Some(writer) => writer,
            None => CaptureWriter::create(self.dir, self.settings.clone())?,
        };
        Ok(self.writer.insert(writer))
    }

    fn finish(mut self, summary: &Summary) -> Result<CaptureManifest, WriteError> {
        let origin = Origin {
            files: std::mem::take(&mut self.settings.origin.files),
            format: summary.format.map(|format| format.as_str().to_owned()),
            prefix: summary.prefix.as_ref().map(|prefix| prefix.text.clone()),
            timezone: self.timezone.take(),
        };
        let report = report::of(summary, self.too_large);
        let writer = match self.writer {
            Some(mut writer) => {
                writer.set_origin(origin);
                writer
            }
            None => CaptureWriter::create(self.dir, CaptureSettings { origin, ..self.settings })?,
        };
        writer.finish(report)
    }

    /// Keeps what came before an error, if anything came.
    fn stop(self, error: &anyhow::Error) -> Result<Option<CaptureManifest>, WriteError> {
        self.writer.map(|writer| writer.stop(report::of_failure(error))).transpose()
    }
}

fn show(ctx: &Context, bar: &mut Option<ProgressBar>, progress: Progress) {
    let total = progress.bytes_total.map_or(Total::Unknown, Total::Bytes);
    bar.get_or_insert_with(|| ctx.progress(total, "importing")).set_position(progress.bytes);
}

/// Says what was read, what is in the capture, and what is not.
fn tell(ctx: &Context, dir: &Path, manifest: &CaptureManifest, summary: &Summary) {
    let format = summary.format.map_or("unknown", Format::as_str);
    let prefix = summary.prefix.as_ref().map_or(String::new(), |prefix| format!(", {prefix}"));
    for line in summary.inputs.lines() {
        ctx.say(line);
    }
    ctx.say(format_args!("read {} records in {format} format{prefix}", summary.records));
    if let Some(doubt) = summary.prefix.as_ref().and_then(howdah_logs::Prefix::doubt) {
        ctx.say(doubt);
    }
    let span = match (manifest.first, manifest.last) {
        (Some(first), Some(last)) => format!(", {first} to {last}"),
        _ => String::new(),
    };
    ctx.say(format_args!(
        "{}: {} events in {} sessions{span}",
        dir.display(),
        manifest.events,
        summary.facts.sessions
    ));
    for (kind, count) in &manifest.kinds {
        ctx.say(format_args!("  {kind:<10} {count:>10}"));
    }
    for line in report::lines(&manifest.report) {
        ctx.say(line);
    }
}
