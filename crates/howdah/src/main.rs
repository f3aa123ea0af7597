//! The `howdah` binary: from the words of a command line to the crate that does the work, and back
//! to an exit code. It holds no logic of its own; each command is one file in `commands/`.

mod cli;
mod commands;
mod config;
mod connection;
mod context;
mod errors;
mod format;
mod interrupt;
mod logging;
mod metrics;
mod notify;
mod outcome;
mod printable;
mod progress;
mod terminal;
mod values;

use std::process::ExitCode;

use crate::{cli::Cli, context::Context};

fn main() -> ExitCode {
    match cli::parse(std::env::args_os().collect()) {
        Ok(Cli { global, command, config_notices }) => {
            let ctx = Context::new(&global);
            logging::start(&global, &ctx);
            config_notices.iter().for_each(|notice| ctx.say(format_args!("howdah: {notice}")));
            // The words are not logged: a connection URI may hold a password.
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
