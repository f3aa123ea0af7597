//! The `howdah` binary: parses the command line, calls the crate that does the work, and returns an
//! exit code. It has no logic of its own; each command is a module in `commands/`.

mod cli;
mod commands;
mod config;
mod connection;
mod context;
mod errors;
mod format;
mod global;
mod identities;
mod interrupt;
mod logging;
mod metrics;
mod notify;
mod outcome;
mod printable;
mod progress;
mod service_user;
mod terminal;
mod values;

use std::process::ExitCode;

use crate::{cli::Cli, context::CommandContext};

fn main() -> ExitCode {
    match cli::parse(std::env::args_os().collect()) {
        Ok(Cli { global, command, config_notices }) => {
            let ctx = CommandContext::new(&global, cli::command);
            logging::start((global.log_level, global.log_format), ctx.terminal(), ctx.bars());
            config_notices.iter().for_each(|notice| ctx.report(format_args!("howdah: {notice}")));
            // The arguments are not logged: a connection URI may contain a password.
            tracing::debug!(version = env!("CARGO_PKG_VERSION"), "starting");
            let result = command.run(&ctx).and_then(|outcome| {
                ctx.stdout().finish()?;
                Ok(outcome)
            });
            errors::exit_code(result)
        }
        Err(stop) => stop.exit_code(),
    }
}
