//! The commands. A command is one file.
//!
//! # Adding a command
//!
//! 1. `commands/warm.rs` holds `#[derive(Debug, clap::Args)] pub(crate) struct Args`, whose doc
//!    comments are the help, and
//!    `pub(crate) fn run(args: Args, ctx: &Context) -> anyhow::Result<Outcome>`, which turns typed
//!    text into the domain crate's own configuration and calls it.
//! 2. A `mod` line and a line in the list below.
//! 3. The help snapshot (`cargo test -p howdah` writes it, `cargo insta review` accepts it), a page
//!    in `docs/src`, a line in CHANGELOG.
//!
//! An option needs nothing else to work from the environment (`HOWDAH_WARM_JOBS`) and from
//! `howdah.toml` (`[warm] jobs`): see [`crate::cli`]. So give it a plain type and
//! `default_value_t`, or `Option` where "not given" has a meaning of its own.
//!
//! Data goes to [`Context::stdout`], talk to [`Context::say`], events worth keeping to `tracing`.
//! Failing: [`crate::errors`]. Ending well after Ctrl-C: [`Context::interrupted`].
//! A command with commands below it (`howdah lab start`) has an `Args` with a
//! `#[command(subcommand)]` field.

#![allow(clippy::needless_pass_by_value, reason = "a command owns its arguments, used up or not")]

// Here and not in the list: rustfmt does not look for files into macros.
mod capture;
mod compare;
mod completions;
mod config;
mod demo;
mod lab;
mod man;
mod pool;
mod probe;
mod replay;
mod statsd;
mod top;
mod verdict;
mod warm;

use crate::{context::Context, outcome::Outcome};

macro_rules! commands {
    ($($(#[$attribute:meta])* $variant:ident in $module:ident,)*) => {
        /// What to do.
        #[derive(Debug, clap::Subcommand)]
        #[allow(clippy::large_enum_variant, reason = "there is one in the life of a process")]
        pub(crate) enum Command {
            $($(#[$attribute])* $variant($module::Args),)*
        }

        impl Command {
            /// Does it.
            pub(crate) fn run(self, ctx: &Context) -> anyhow::Result<Outcome> {
                match self {
                    $(Self::$variant(args) => $module::run(args, ctx),)*
                }
            }
        }
    };
}

// In the order of the help: the line of work first, tools after it.
commands! {
    Capture in capture,
    Replay in replay,
    Compare in compare,
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

impl Command {
    /// Whether it works without a valid configuration file.
    pub(crate) fn ignores_config(&self) -> bool {
        matches!(self, Self::Config(_) | Self::Completions(_) | Self::Man(_))
    }
}
