//! `howdah completions`: prints a shell completion script.

use clap_complete::Shell;

use crate::{context::CommandContext, outcome::CommandOutcome};

/// Print a shell script that completes howdah's commands and options.
///
/// For bash: howdah completions bash > ~/.local/share/bash-completion/completions/howdah
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Shell to generate the script for
    #[arg(value_enum)]
    shell: Shell,
}

pub(crate) fn run(Args { shell }: &Args, ctx: &CommandContext) -> anyhow::Result<CommandOutcome> {
    // Generate into memory first: the generator panics on write errors such as a closed pipe.
    let mut script = Vec::new();
    clap_complete::generate(*shell, &mut ctx.command_tree(), "howdah", &mut script);
    std::io::Write::write_all(&mut ctx.stdout(), &script)?;
    Ok(CommandOutcome::Done)
}
