//! `howdah probe doctor`: shows what can be measured, from which source, and what is missing.

use std::io::Write as _;

use howdah_probe::{
    doctor::{self, DiagnosedServer},
    patched_code,
};
use howdah_report::probe::diagnosis;

use super::target::TargetArgs;
use crate::{context::CommandContext, outcome::CommandOutcome};

/// Show what can be measured on this server, from which source, and what is missing for a better
/// one.
///
/// Attaches nothing to the server and changes nothing, unless --clear is given.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub(super) struct Args {
    #[command(flatten)]
    target: TargetArgs,
    /// Remove breakpoints that a killed tracer has left in the server's code
    #[arg(long)]
    clear: bool,
}

pub(super) fn run(args: &Args, ctx: &CommandContext) -> anyhow::Result<CommandOutcome> {
    let server = args.target.find()?.server;
    let found = doctor::diagnose(&server);
    if args.clear {
        patched_code::clear_breakpoints(&server)?;
    }
    write!(ctx.stdout(), "{}", diagnosis(&DiagnosedServer::read(&server)?, &found))?;
    Ok(CommandOutcome::Done)
}
