//! `howdah completions`: a script that lets a shell complete our words.

use clap_complete::Shell;

use crate::{cli, context::Context, outcome::Outcome};

/// Print a script that completes howdah's commands and options in a shell.
///
/// For bash: howdah completions bash > ~/.local/share/bash-completion/completions/howdah
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The shell to write for
    #[arg(value_enum)]
    shell: Shell,
}

pub(crate) fn run(Args { shell }: Args, ctx: &Context) -> anyhow::Result<Outcome> {
    // Into memory first: the generator panics when its writer fails, as a closed pipe does.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut cli::command(), "howdah", &mut script);
    std::io::Write::write_all(&mut ctx.stdout(), &script)?;
    Ok(Outcome::Done)
}
