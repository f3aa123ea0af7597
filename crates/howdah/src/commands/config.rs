//! `howdah config`: checks the configuration file.

use std::{io::Write as _, path::PathBuf};

use anyhow::bail;

use super::{pool, statsd};
use crate::{config::ConfigFile, context::CommandContext, outcome::CommandOutcome};

/// Check howdah.toml.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: ConfigCommand,
}

commands! {
    enum ConfigCommand {
        Check(ConfigCheckArgs) => check,
    }
}

/// Report all problems in a configuration file; exit with 3 if there are any.
#[derive(Debug, clap::Args)]
struct ConfigCheckArgs {
    /// File to check, instead of the one that would be used
    file: Option<PathBuf>,
}

pub(crate) fn run(args: &Args, ctx: &CommandContext) -> anyhow::Result<CommandOutcome> {
    args.command.run(ctx)
}

fn check(args: &ConfigCheckArgs, ctx: &CommandContext) -> anyhow::Result<CommandOutcome> {
    let file = args.file.clone().or_else(|| ctx.config());
    let Some(file) = ConfigFile::find(file)?.file else {
        bail!(
            "no configuration to check: name a file, or write howdah.toml in this folder, ~/.config/howdah or /etc/howdah"
        );
    };
    let mut has_problems = false;
    if let Err(problems) = file.apply(ctx.command_tree()) {
        has_problems = true;
        let mut out = ctx.stdout();
        writeln!(out, "{problems}")?;
    }
    // These sections are checked by the servers that read them.
    for check in [pool::check_section(&file), statsd::check_section(&file)].into_iter().flatten() {
        let check = check?;
        check.print(ctx)?;
        has_problems |= check.outcome() == CommandOutcome::CheckFailed;
    }
    if has_problems {
        return Ok(CommandOutcome::CheckFailed);
    }
    writeln!(ctx.stdout(), "{}: ok, {} values", file.path().display(), file.len())?;
    Ok(CommandOutcome::Done)
}
