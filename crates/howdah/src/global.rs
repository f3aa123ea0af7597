//! Options that every command has.

use std::path::PathBuf;

use crate::{
    logging::{Level, LogLineFormat},
    terminal::Color,
};

/// The global options.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct Global {
    /// Read options from this file.
    ///
    /// Default: the first of ./howdah.toml, $XDG_CONFIG_HOME/howdah/howdah.toml and
    /// /etc/howdah/howdah.toml that exists, is owned by you or root, and is not writable by others.
    // Handled by `cli::parse`, before clap runs; declared here for the help.
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Log level on stderr; warn by default, info for commands that run as a service
    #[arg(long, global = true, value_enum, value_name = "LEVEL")]
    pub(crate) log_level: Option<Level>,
    /// Format of log lines: text for people, json for collectors; auto: text on a terminal
    #[arg(long, global = true, value_enum, value_name = "FORMAT", default_value_t)]
    pub(crate) log_format: LogLineFormat,
    /// When to use color; auto: on a terminal, unless NO_COLOR is set
    #[arg(long, global = true, value_enum, value_name = "WHEN", default_value_t)]
    pub(crate) color: Color,
    /// Print only errors and log lines on stderr; no progress bars
    #[arg(long, short, global = true)]
    pub(crate) quiet: bool,
}
