//! `howdah man`: pages of the manual, made of the same words as the help.

use std::io::Write as _;

use crate::{cli, context::Context, errors::wrong_usage, outcome::Outcome};

/// Print a page of the manual: of howdah, or of a command.
///
/// To read: howdah man pool | man -l -
///
/// To install: howdah man pool > /usr/local/share/man/man1/howdah-pool.1
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The command, with its own command where it has some: pool, or warm load
    #[arg(value_name = "COMMAND")]
    words: Vec<String>,
}

pub(crate) fn run(Args { words }: Args, ctx: &Context) -> anyhow::Result<Outcome> {
    let mut command = cli::command();
    // The global options and `help` are given to commands only when all of it is put together.
    command.build();
    let mut name = "howdah".to_owned();
    for word in &words {
        let Some(found) = command.find_subcommand(word) else {
            return Err(wrong_usage(format_args!(
                "{name} has no command {word}: see {name} --help"
            )));
        };
        command = found.clone();
        name = format!("{name} {word}");
    }
    let version = cli::command().get_version().unwrap_or_default().to_owned();
    let command = command.version(version).display_name(name.replace(' ', "-"));
    // Into memory first, so that a closed pipe is an error like any other.
    let mut page = Vec::new();
    clap_mangen::Man::new(command).source("howdah").manual("Howdah").render(&mut page)?;
    ctx.stdout().write_all(&page)?;
    Ok(Outcome::Done)
}
