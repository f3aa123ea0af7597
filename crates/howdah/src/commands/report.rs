//! `howdah report`: reports of past rehearsals.

mod serve;

use crate::{context::CommandContext, outcome::CommandOutcome};

/// Browse the reports of past rehearsals.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: ReportCommand,
}

commands! {
    enum ReportCommand {
        Serve(serve::Args) => serve::run,
    }
}

pub(crate) fn run(args: &Args, ctx: &CommandContext) -> anyhow::Result<CommandOutcome> {
    args.command.run(ctx)
}
