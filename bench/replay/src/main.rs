//! The parts that `bench/replay/run` measures `howdah replay` with: the captures, a bare sender and
//! a bare responder.
//!
//! Not part of the product.

mod bare_sender;
mod capture;
mod responder;
mod schedule;

use std::path::PathBuf;

use clap::Parser;

use crate::schedule::StatementSchedule;

/// The statement that all sessions execute, with one parameter.
pub(crate) const STATEMENT: &str = "select abalance from pgbench_accounts where aid = $1";

/// The name under which each session prepares it.
pub(crate) const STATEMENT_NAME: &str = "s1";

/// The role of the sessions.
pub(crate) const ROLE: &str = "bench";

/// The database of the sessions.
pub(crate) const DATABASE: &str = "postgres";

/// Subcommands of the benchmark.
#[derive(Debug, Parser)]
enum ReplayBenchCommand {
    /// Write a capture with the statements of a schedule
    Capture {
        /// Folder to write; an existing capture is replaced
        output: PathBuf,
        #[command(flatten)]
        schedule: StatementSchedule,
    },
    /// Send the statements of a schedule, and print how late they were, as JSON
    Send {
        /// HOST:PORT, or the path of a unix socket
        server: String,
        /// Send each session's next statement as soon as it is free
        #[arg(long)]
        flat_out: bool,
        #[command(flatten)]
        schedule: StatementSchedule,
    },
    /// Reply to the sessions of the benchmark, and relay all others to a server; prints its port
    Respond {
        /// The unix socket of the server
        server: PathBuf,
    },
}

fn main() -> anyhow::Result<()> {
    match ReplayBenchCommand::parse() {
        ReplayBenchCommand::Capture { output, schedule } => capture::write(&output, &schedule),
        ReplayBenchCommand::Send { server, flat_out, schedule } => {
            bare_sender::run(&server, flat_out, &schedule)
        }
        ReplayBenchCommand::Respond { server } => responder::run(&server),
    }
}
