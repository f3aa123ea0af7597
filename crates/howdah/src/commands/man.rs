//! `howdah man`: man pages, generated from the help.

use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use clap::Command;

use crate::{context::CommandContext, errors::wrong_usage, outcome::CommandOutcome};

/// Print the man page of howdah or of a command, or write all pages to a folder.
///
/// To read: howdah man pool | man -l -
///
/// To install: howdah man --output /usr/local/share/man/man1
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The command, with its subcommand if any: pool, or warm load
    #[arg(value_name = "COMMAND")]
    names: Vec<String>,
    /// Write the pages of all commands to this existing folder
    #[arg(short, long, value_name = "DIR", conflicts_with = "names")]
    output: Option<PathBuf>,
}

pub(crate) fn run(
    Args { names, output }: &Args,
    ctx: &CommandContext,
) -> anyhow::Result<CommandOutcome> {
    let mut command = ctx.command_tree();
    // `build` adds the global options and `help` to the subcommands.
    command.build();
    let version = command.get_version().unwrap_or_default().to_owned();
    let mut name = "howdah".to_owned();
    if let Some(dir) = output {
        write_pages(&command, &name, &version, dir)?;
        return Ok(CommandOutcome::Done);
    }
    for subcommand in names {
        let Some(found) = command.find_subcommand(subcommand) else {
            return Err(wrong_usage(format_args!(
                "{name} has no command {subcommand}: see {name} --help"
            )));
        };
        command = found.clone();
        name = format!("{name} {subcommand}");
    }
    ctx.stdout().write_all(&page(command, &name, version)?)?;
    Ok(CommandOutcome::Done)
}

/// Writes the page of a command and those of its subcommands.
fn write_pages(command: &Command, name: &str, version: &str, dir: &Path) -> anyhow::Result<()> {
    let path = dir.join(format!("{}.1", name.replace(' ', "-")));
    fs::write(&path, page(command.clone(), name, version.to_owned())?)
        .with_context(|| format!("cannot write {}", path.display()))?;
    let is_own =
        |subcommand: &&Command| subcommand.get_name() != "help" && !subcommand.is_hide_set();
    for subcommand in command.get_subcommands().filter(is_own) {
        write_pages(subcommand, &format!("{name} {}", subcommand.get_name()), version, dir)?;
    }
    Ok(())
}

/// Renders a page into memory, so that a closed pipe is handled like any other write error.
fn page(command: Command, name: &str, version: String) -> anyhow::Result<Vec<u8>> {
    let command =
        command.version(version.clone()).long_version(version).display_name(name.replace(' ', "-"));
    let mut page = Vec::new();
    clap_mangen::Man::new(command).source("howdah").manual("Howdah").render(&mut page)?;
    Ok(page)
}
