//! `howdah capture merge`: merges several captures into one.

use std::path::PathBuf;

use howdah_capture::EventFilter;
use howdah_dataset::{CaptureSettings, MergedCaptures, SameNameSessions};
use serde_json::json;

use super::{
    output::{self, CaptureOutput, with_write_hint},
    selection::RedactArgs,
};
use crate::{
    context::CommandContext, errors, outcome::CommandOutcome, progress::Total, values::dataset_path,
};

/// Merge several captures into one, in time order.
///
/// Sessions of different captures stay separate: their names get the number of their capture, as in
/// 2/656a1b2c.4d2. Parts of one capture, such as those of `howdah capture split`, are joined with
/// --join-sessions.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Folders of the captures
    #[arg(required = true, value_name = "CAPTURE", value_parser = dataset_path())]
    captures: Vec<PathBuf>,
    /// Folder to write the new capture to
    #[arg(long, short, value_name = "CAPTURE", value_parser = dataset_path())]
    output: PathBuf,
    /// Treat sessions of the same name as one session
    #[arg(long)]
    join_sessions: bool,
    /// Replace an existing capture
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    redact: RedactArgs,
}

pub(super) fn run(args: &Args, ctx: &CommandContext) -> anyhow::Result<CommandOutcome> {
    let mut captures = MergedCaptures::default();
    let mut sources = Vec::new();
    for dir in &args.captures {
        super::refuse_overwriting_input(dir, &args.output)?;
        let capture = super::open(dir)?;
        let report = super::inherited_report(capture.manifest());
        sources.push(json!({ "capture": dir.display().to_string(), "report": report }));
        let added = captures.add(capture);
        added.map_err(|error| errors::wrong_usage(format!("{}: {error}", dir.display())))?;
    }
    let origin = captures.origin().clone();
    let settings = CaptureSettings { origin: origin.clone(), overwrite: args.force };
    let redactor = args.redact.redactor()?;
    let mut output =
        CaptureOutput::capture(&args.output, settings, EventFilter::default(), redactor);
    let bar = ctx.progress(Total::Count(captures.event_count()), "merging");
    let interrupted = ctx.interrupted();
    let same_name =
        if args.join_sessions { SameNameSessions::Joined } else { SameNameSessions::Separate };
    for event in captures.events(same_name) {
        super::bail_if_interrupted(&interrupted)?;
        with_write_hint(&args.output, output.push(event?))?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    let open = output.tally().open_transactions();
    let finished = output.finish(&origin, json!({ "merged": sources }));
    if let Some(manifest) = with_write_hint(&args.output, finished)? {
        output::report_capture(ctx, &args.output, &manifest);
        output::report_kinds(ctx, &manifest);
    }
    open.into_iter().for_each(|line| ctx.report(line));
    Ok(CommandOutcome::Done)
}
