//! `howdah probe export`: a probe as a script of bpftrace.

use std::io::Write as _;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use howdah_probe::export::Script;

use super::target::TargetArgs;
use crate::{context::Context, outcome::Outcome};

/// Print a probe as a script of bpftrace, to check ours by or to go on from.
///
/// It is for this server as it runs now: it names its binary and its first process.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true, after_help = EXAMPLES)]
pub(super) struct Args {
    /// The probe
    #[arg(value_name = "PROBE", value_parser = scripts())]
    script: Script,
    #[command(flatten)]
    target: TargetArgs,
}

const EXAMPLES: &str = "\
Example:
  howdah probe export extend --pid 4711 > extend.bt && bpftrace extend.bt";

fn scripts() -> impl TypedValueParser<Value = Script> {
    PossibleValuesParser::new(Script::all().map(Script::name)).map(|name| {
        Script::all()
            .find(|script| script.name() == name)
            .expect("it is one of the possible values")
    })
}

pub(super) fn run(args: &Args, ctx: &Context) -> anyhow::Result<Outcome> {
    let found = args.target.find()?;
    write!(ctx.stdout(), "{}", args.script.of(&found.server)?)?;
    Ok(Outcome::Done)
}
