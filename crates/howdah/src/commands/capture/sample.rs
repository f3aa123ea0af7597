//! `howdah capture sample`: makes a smaller capture from a capture.

use std::path::PathBuf;

use howdah_capture::SampleRate;
use howdah_dataset::{CaptureSettings, CapturedServer};

use super::{
    output::{self, CaptureOutput, with_write_hint},
    selection::{RedactArgs, SelectArgs},
};
use crate::{
    context::CommandContext, outcome::CommandOutcome, progress::Total, values::dataset_path,
};

/// Make a smaller capture: some sessions, users or a part of the time.
///
/// Sessions are sampled as a whole, by a hash of their names: the same ones each time, and a larger
/// sample contains every smaller one.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Folder of the capture
    #[arg(value_name = "CAPTURE", value_parser = dataset_path())]
    capture: PathBuf,
    /// Folder to write the new capture to
    #[arg(long, short, value_name = "CAPTURE", value_parser = dataset_path())]
    output: PathBuf,
    /// Share of the sessions: 10%, 0.1 or 1/10; default: all sessions selected by the other options
    #[arg(long, value_name = "RATE")]
    sample_rate: Option<SampleRate>,
    /// Replace an existing capture
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    select: SelectArgs,
    #[command(flatten)]
    redact: RedactArgs,
}

pub(super) fn run(args: &Args, ctx: &CommandContext) -> anyhow::Result<CommandOutcome> {
    super::refuse_overwriting_input(&args.capture, &args.output)?;
    let capture = super::open(&args.capture)?;
    let mut origin = capture.manifest().origin.clone();
    if args.select.excludes_start() {
        origin.server = origin.server.map(CapturedServer::without_position);
    }
    let settings = CaptureSettings { origin: origin.clone(), overwrite: args.force };
    let filter = args.select.filter_with_sample(args.sample_rate);
    let mut output =
        CaptureOutput::capture(&args.output, settings, filter, args.redact.redactor()?);
    let bar = ctx.progress(Total::Count(capture.manifest().events), "sampling");
    let interrupted = ctx.interrupted();
    for event in capture.events() {
        super::bail_if_interrupted(&interrupted)?;
        with_write_hint(&args.output, output.push(*event?))?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    let mut left = output.excluded_lines();
    left.extend(output.tally().open_transactions());
    let report = super::inherited_report(capture.manifest());
    if let Some(manifest) = with_write_hint(&args.output, output.finish(&origin, report))? {
        output::report_capture(ctx, &args.output, &manifest);
        output::report_kinds(ctx, &manifest);
    }
    left.into_iter().for_each(|line| ctx.report(line));
    Ok(CommandOutcome::Done)
}
