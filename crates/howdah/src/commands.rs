//! The commands. A command is one file.
//!
//! # Adding a command
//!
//! 1. `commands/warm.rs` contains `#[derive(Debug, clap::Args)] pub(crate) struct Args`, whose doc
//!    comments are the help, and `pub(crate) fn run(args: Args, ctx: &CommandContext) ->
//!    anyhow::Result<CommandOutcome>`, which turns the arguments into the domain crate's own
//!    configuration and calls it.
//! 2. A `mod` line and a line in the list below.
//! 3. The help snapshot (`cargo test -p howdah` writes it, `cargo insta review` accepts it), a page
//!    in `docs/src`, a line in CHANGELOG.
//!
//! Every option can also be set in the environment (`HOWDAH_WARM_JOBS`) and in `howdah.toml`
//! (`[warm] jobs`) without further code: see [`crate::cli`]. So give it a plain type and
//! `default_value_t`, or `Option` if "not given" has a meaning of its own.
//!
//! Data goes to [`CommandContext::stdout`], messages to [`CommandContext::report`], events worth
//! keeping to `tracing`. Errors: [`crate::errors`]. Clean stop on Ctrl-C:
//! [`CommandContext::interrupted`]. A command with subcommands (`howdah lab start`) has an `Args`
//! with a `#[command(subcommand)]` field.

#![allow(clippy::needless_pass_by_value, reason = "a command owns its arguments")]

// Outside of the macro, because rustfmt does not follow `mod` lines inside macros.
mod capture;
mod compare;
mod completions;
mod config;
mod demo;
mod lab;
mod man;
mod pool;
mod probe;
mod rehearse;
mod replay;
mod settings_check;
mod statsd;
mod top;
mod warm;

use crate::{context::CommandContext, outcome::CommandOutcome};

macro_rules! commands {
    ($($(#[$attribute:meta])* $variant:ident in $module:ident,)*) => {
        /// The commands.
        #[derive(Debug, clap::Subcommand)]
        #[allow(clippy::large_enum_variant, reason = "created once per process")]
        pub(crate) enum RootCommand {
            $($(#[$attribute])* $variant($module::Args),)*
        }

        impl RootCommand {
            /// Runs the command.
            pub(crate) fn run(self, ctx: &CommandContext) -> anyhow::Result<CommandOutcome> {
                match self {
                    $(Self::$variant(args) => $module::run(args, ctx),)*
                }
            }
        }
    };
}

// In the order of the help: the main workflow first, then the tools.
commands! {
    Capture in capture,
    Replay in replay,
    Compare in compare,
    Rehearse in rehearse,
    Pool in pool,
    Probe in probe,
    Statsd in statsd,
    Top in top,
    Warm in warm,
    Lab in lab,
    Demo in demo,
    Config in config,
    Completions in completions,
    Man in man,
}

impl RootCommand {
    /// Whether the command works without a valid configuration file.
    pub(crate) fn ignores_config(&self) -> bool {
        matches!(self, Self::Config(_) | Self::Completions(_) | Self::Man(_))
    }
}
