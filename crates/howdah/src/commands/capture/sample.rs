//! `howdah capture sample`: a part of a capture, chosen by what a person wants of it.

use std::path::PathBuf;

use howdah_dataset::CaptureSettings;
use howdah_sift::SampleRate;

use super::{
    output::{self, Output, written},
    select::{RedactArgs, SelectArgs},
};
use crate::{context::Context, outcome::Outcome, progress::Total};

/// Make a smaller capture: some sessions, some time, some users.
///
/// Sessions are taken whole, and chosen by a hash of their names: the same ones each time, and those of
/// a small sample are in every larger one.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The folder of the capture
    #[arg(value_name = "CAPTURE")]
    capture: PathBuf,
    /// Folder for the new capture
    #[arg(long, short, value_name = "CAPTURE")]
    output: PathBuf,
    /// Share of the sessions: 10%, 0.1 or 1/10; without it, all that the other options want
    #[arg(long, value_name = "RATE")]
    sample_rate: Option<SampleRate>,
    /// Replace a capture that is there already
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    select: SelectArgs,
    #[command(flatten)]
    redact: RedactArgs,
}

pub(super) fn run(args: &Args, ctx: &Context) -> anyhow::Result<Outcome> {
    super::refuse_same(&args.capture, &args.output)?;
    let capture = super::open(&args.capture)?;
    let origin = capture.manifest().origin.clone();
    let settings = CaptureSettings { origin: origin.clone(), overwrite: args.force };
    let sieve = args.select.sieve_of(args.sample_rate);
    let mut output = Output::capture(&args.output, settings, sieve, args.redact.redactor()?);
    let bar = ctx.progress(Total::Count(capture.manifest().events), "sampling");
    let interrupted = ctx.interrupted();
    for event in capture.events() {
        super::heed(&interrupted)?;
        written(&args.output, output.push(event?))?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    let mut left = output.left();
    left.extend(output.tally().open_transactions());
    let report = super::inherited(capture.manifest());
    if let Some(manifest) = written(&args.output, output.finish(origin, report))? {
        output::tell(ctx, &args.output, &manifest);
        output::tell_kinds(ctx, &manifest);
    }
    left.into_iter().for_each(|line| ctx.say(line));
    Ok(Outcome::Done)
}
