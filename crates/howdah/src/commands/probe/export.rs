//! `howdah probe export`: prints a probe as a bpftrace script.

use std::io::Write as _;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use howdah_probe::export::BpftraceScript;

use super::target::TargetArgs;
use crate::{context::CommandContext, outcome::CommandOutcome};

/// Print a probe as a bpftrace script, to verify the probe or to build on.
///
/// The script is specific to the running server: it names the server's executable and postmaster.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true, after_help = EXAMPLES)]
pub(super) struct Args {
    /// The probe
    #[arg(value_name = "PROBE", value_parser = scripts())]
    script: BpftraceScript,
    #[command(flatten)]
    target: TargetArgs,
}

const EXAMPLES: &str = "\
Example:
  howdah probe export extend --pid 4711 > extend.bt && bpftrace extend.bt";

fn scripts() -> impl TypedValueParser<Value = BpftraceScript> {
    PossibleValuesParser::new(BpftraceScript::all().map(BpftraceScript::name)).map(|name| {
        BpftraceScript::all()
            .find(|script| script.name() == name)
            .expect("clap accepts only possible values")
    })
}

pub(super) fn run(args: &Args, ctx: &CommandContext) -> anyhow::Result<CommandOutcome> {
    let found = args.target.find()?;
    write!(ctx.stdout(), "{}", args.script.text(&found.server)?)?;
    Ok(CommandOutcome::Done)
}
