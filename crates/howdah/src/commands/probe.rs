//! `howdah probe`: what a running server is really waiting for, measured inside it.

mod blockers;
mod by_sql;
mod checkpoints;
mod doctor;
mod durations;
mod export;
mod extend;
mod list;
mod names;
mod pace;
mod report;
mod rows;
mod run;
mod stacks;
mod sweep;
mod target;
mod waits;
mod watch;

use howdah_probe::durations::Figure;

use crate::{context::Context, outcome::Outcome};

/// Measure inside a running server: no restart, no extension, no statement.
///
/// Runs on the server's own host. Exact figures come from programs that the kernel runs at points of the
/// server's code (root, or CAP_BPF and CAP_PERFMON); samples of its memory work as the server's own user. Each
/// row names its source.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Checkpoints(checkpoints::Args),
    Extend(extend::Args),
    Sweep(sweep::Args),
    Waits(waits::Args),
    Run(run::Args),
    Report(report::Args),
    /// How long backends sleep for heavyweight locks, and on what.
    ///
    /// A line a second; at the end by lock. Where the server is named by a URI, a wait of 0.2 s or more says
    /// which processes were before it.
    Locks(durations::Args),
    /// How long backends sleep for lightweight locks, by tranche.
    ///
    /// A line a second for each tranche that was waited for; at the end all of them. Names are those of
    /// `pg_stat_activity.wait_event`.
    #[command(name = "lwlocks")]
    LwLocks(durations::Args),
    /// How long reading, writing and extending files of relations takes, by relation.
    ///
    /// A line a second for each operation. `start read` (PostgreSQL 18) is the order of an asynchronous
    /// read, without the wait for it.
    Io(durations::Args),
    /// How long it takes to make WAL durable.
    ///
    /// `flush` is what a commit waits for, others' syncs included; `fsync` is the sync itself.
    Wal(durations::Args),
    /// How long planning and executing takes, whatever the protocol.
    ///
    /// Statements inside of functions are a part of those that call them.
    Queries(durations::Args),
    /// How long sorts take, and writing what does not fit into memory.
    Sorts(durations::Args),
    Doctor(doctor::Args),
    Export(export::Args),
    List(list::Args),
}

pub(crate) fn run(args: Args, ctx: &Context) -> anyhow::Result<Outcome> {
    match args.command {
        Command::Checkpoints(args) => checkpoints::run(&args, ctx),
        Command::Extend(args) => extend::run(&args, ctx),
        Command::Sweep(args) => sweep::run(&args, ctx),
        Command::Waits(args) => waits::run(&args, ctx),
        Command::Run(args) => run::run(&args, ctx),
        Command::Report(args) => report::run(&args, ctx),
        Command::Locks(args) => durations::run(Figure::Locks, &args, ctx),
        Command::LwLocks(args) => durations::run(Figure::LwLocks, &args, ctx),
        Command::Io(args) => durations::run(Figure::Io, &args, ctx),
        Command::Wal(args) => durations::run(Figure::Wal, &args, ctx),
        Command::Queries(args) => durations::run(Figure::Queries, &args, ctx),
        Command::Sorts(args) => durations::run(Figure::Sorts, &args, ctx),
        Command::Doctor(args) => doctor::run(&args, ctx),
        Command::Export(args) => export::run(&args, ctx),
        Command::List(args) => list::run(&args, ctx),
    }
}
