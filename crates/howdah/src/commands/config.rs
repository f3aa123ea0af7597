//! `howdah config`: questions about the configuration file.

use std::{io::Write as _, path::PathBuf};

use anyhow::bail;

use crate::{cli, config::ConfigFile, context::Context, outcome::Outcome};

/// Check howdah.toml.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    question: Question,
}

#[derive(Debug, clap::Subcommand)]
enum Question {
    /// Say what is wrong in a configuration file; exit 3 if anything is.
    Check {
        /// The file to check, instead of the one that would be used
        file: Option<PathBuf>,
    },
}

pub(crate) fn run(args: Args, ctx: &Context) -> anyhow::Result<Outcome> {
    let Question::Check { file } = args.question;
    let Some(file) = ConfigFile::find(file.or_else(|| ctx.config()))? else {
        bail!("there is no configuration to check: no howdah.toml in any of its places");
    };
    let mut out = ctx.stdout();
    match file.apply(cli::command()) {
        Ok(_) => {
            writeln!(out, "{}: ok, {} values", file.path().display(), file.len())?;
            Ok(Outcome::Done)
        }
        Err(problems) => {
            for line in problems.lines() {
                writeln!(out, "{line}")?;
            }
            Ok(Outcome::No)
        }
    }
}
