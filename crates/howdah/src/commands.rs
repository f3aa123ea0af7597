//! The commands, one module each.
//!
//! # Adding a command
//!
//! 1. `commands/warm.rs` contains `#[derive(Debug, clap::Args)] pub(crate) struct Args`, whose doc
//!    comments are the help, and `pub(crate) fn run(args: &Args, ctx: &CommandContext) ->
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
//! with a `#[command(subcommand)]` field, whose type is declared by `commands!`.
//!
//! [`CommandContext::stdout`]: crate::context::CommandContext::stdout
//! [`CommandContext::report`]: crate::context::CommandContext::report
//! [`CommandContext::interrupted`]: crate::context::CommandContext::interrupted

/// Declares commands, or the subcommands of a command, each with the type of its arguments and the
/// function that runs it. The type's doc comment is the help, unless the variant has its own.
macro_rules! commands {
    (
        $(#[$attribute:meta])*
        $visibility:vis enum $name:ident {
            $($(#[$help:meta])* $command:ident($args:ty) => $run:expr,)*
        }
    ) => {
        $(#[$attribute])*
        #[derive(Debug, clap::Subcommand)]
        #[allow(clippy::large_enum_variant, reason = "created once per process")]
        $visibility enum $name {
            $($(#[$help])* $command($args),)*
        }

        impl $name {
            /// Calls the function that the command is declared with.
            $visibility fn run(
                &self,
                ctx: &$crate::context::CommandContext,
            ) -> anyhow::Result<$crate::outcome::CommandOutcome> {
                match self {
                    $(Self::$command(args) => $run(args, ctx),)*
                }
            }
        }
    };
}

// Below the macro, which they use, and outside of it, because rustfmt does not follow `mod` lines
// inside macros.
mod agent;
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
mod report;
mod settings_check;
mod settings_output;
mod statsd;
mod top;
mod warm;

// The main workflow first, then the tools.
commands! {
    /// All commands, in the order of the help.
    pub(crate) enum RootCommand {
        Capture(capture::Args) => capture::run,
        Replay(replay::Args) => replay::run,
        Compare(compare::Args) => compare::run,
        Rehearse(rehearse::Args) => rehearse::run,
        Report(report::Args) => report::run,
        Pool(pool::Args) => pool::run,
        Probe(probe::Args) => probe::run,
        Statsd(statsd::Args) => statsd::run,
        Top(top::Args) => top::run,
        Agent(agent::Args) => agent::run,
        Warm(warm::Args) => warm::run,
        Lab(lab::Args) => lab::run,
        Demo(demo::Args) => demo::run,
        Config(config::Args) => config::run,
        Completions(completions::Args) => completions::run,
        Man(man::Args) => man::run,
    }
}

impl RootCommand {
    /// Whether the command works without a valid configuration file.
    pub(crate) fn ignores_config(&self) -> bool {
        matches!(self, Self::Config(_) | Self::Completions(_) | Self::Man(_))
    }
}
