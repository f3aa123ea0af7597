//! `howdah config`: questions about the configuration file.

use std::{io::Write as _, path::PathBuf};

use anyhow::bail;

use super::{pool, statsd};
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
    let Some(file) = ConfigFile::find(file.or_else(|| ctx.config()))?.file else {
        bail!("there is no configuration to check: no howdah.toml in any of its places");
    };
    let mut is_wrong = false;
    if let Err(problems) = file.apply(cli::command()) {
        is_wrong = true;
        let mut out = ctx.stdout();
        for line in problems.lines() {
            writeln!(out, "{line}")?;
        }
    }
    // Sections that their servers judge.
    for verdict in [pool::check_section(&file), statsd::check_section(&file)].into_iter().flatten()
    {
        let verdict = verdict?;
        verdict.print(ctx)?;
        is_wrong |= verdict.outcome() == Outcome::No;
    }
    if is_wrong {
        return Ok(Outcome::No);
    }
    writeln!(ctx.stdout(), "{}: ok, {} values", file.path().display(), file.len())?;
    Ok(Outcome::Done)
}
