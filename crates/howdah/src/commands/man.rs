//! `howdah man`: man pages, generated from the help.

use std::io::Write as _;

use crate::{context::CommandContext, errors::wrong_usage, outcome::CommandOutcome};

/// Print the man page of howdah or of a command.
///
/// To read: howdah man pool | man -l -
///
/// To install: howdah man pool > /usr/local/share/man/man1/howdah-pool.1
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The command, with its subcommand if any: pool, or warm load
    #[arg(value_name = "COMMAND")]
    names: Vec<String>,
}

pub(crate) fn run(Args { names }: &Args, ctx: &CommandContext) -> anyhow::Result<CommandOutcome> {
    let mut command = ctx.command_tree();
    // `build` adds the global options and `help` to the subcommands.
    command.build();
    let mut name = "howdah".to_owned();
    for subcommand in names {
        let Some(found) = command.find_subcommand(subcommand) else {
            return Err(wrong_usage(format_args!(
                "{name} has no command {subcommand}: see {name} --help"
            )));
        };
        command = found.clone();
        name = format!("{name} {subcommand}");
    }
    let version = ctx.command_tree().get_version().unwrap_or_default().to_owned();
    let command = command.version(version).display_name(name.replace(' ', "-"));
    // Render into memory first, so that a closed pipe is handled like any other write error.
    let mut page = Vec::new();
    clap_mangen::Man::new(command).source("howdah").manual("Howdah").render(&mut page)?;
    ctx.stdout().write_all(&page)?;
    Ok(CommandOutcome::Done)
}
