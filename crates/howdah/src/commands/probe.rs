//! `howdah probe`: measures from inside what a running server is doing and waiting for.

mod by_sql;
mod checkpoints;
mod common;
mod doctor;
mod durations;
mod export;
mod extend;
mod list;
mod report;
mod run;
mod source;
mod sweep;
mod target;
mod waits;

use howdah_probe::durations::ProbeMetric;

use crate::{context::CommandContext, outcome::CommandOutcome};

/// Measure inside a running server, without a restart, an extension or statements.
///
/// Runs on the server's host. Exact metrics come from BPF programs at points of the server's code
/// (as root, or with CAP_BPF and CAP_PERFMON); samples of its memory work as the server's OS user.
/// Each row names its source.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: ProbeCommand,
}

#[derive(Debug, clap::Subcommand)]
enum ProbeCommand {
    Checkpoints(checkpoints::Args),
    Extend(extend::Args),
    Sweep(sweep::Args),
    Waits(waits::Args),
    Run(run::Args),
    Report(report::Args),
    /// Measure how long backends wait for heavyweight locks, and for which.
    ///
    /// Prints a line per second, and totals by lock at the end. If the server is given by a URI,
    /// waits of 0.2 s or more show which processes were blocking.
    Locks(durations::Args),
    /// Measure how long backends wait for lightweight locks, by tranche.
    ///
    /// Prints a line per second for each tranche with waits, and all tranches at the end. Names are
    /// those of `pg_stat_activity.wait_event`.
    #[command(name = "lwlocks")]
    LwLocks(durations::Args),
    /// Measure how long reads, writes and extensions of relation files take, by relation.
    ///
    /// Prints a line per second for each operation. `start read` (PostgreSQL 18) submits an
    /// asynchronous read, without waiting for it.
    Io(durations::Args),
    /// Measure how long it takes to make WAL durable.
    ///
    /// `flush` is what a commit waits for, including the syncs of other backends; `fsync` is the
    /// sync itself.
    Wal(durations::Args),
    /// Measure how long planning and execution take, for both protocols.
    ///
    /// Statements inside functions are part of the statements that call them.
    Queries(durations::Args),
    /// Measure how long sorts take, and their writes to disk.
    Sorts(durations::Args),
    Doctor(doctor::Args),
    Export(export::Args),
    List(list::Args),
}

pub(crate) fn run(args: Args, ctx: &CommandContext) -> anyhow::Result<CommandOutcome> {
    match args.command {
        ProbeCommand::Checkpoints(args) => checkpoints::run(&args, ctx),
        ProbeCommand::Extend(args) => extend::run(&args, ctx),
        ProbeCommand::Sweep(args) => sweep::run(&args, ctx),
        ProbeCommand::Waits(args) => waits::run(&args, ctx),
        ProbeCommand::Run(args) => run::run(&args, ctx),
        ProbeCommand::Report(args) => report::run(&args, ctx),
        ProbeCommand::Locks(args) => durations::run(ProbeMetric::Locks, &args, ctx),
        ProbeCommand::LwLocks(args) => durations::run(ProbeMetric::LwLocks, &args, ctx),
        ProbeCommand::Io(args) => durations::run(ProbeMetric::Io, &args, ctx),
        ProbeCommand::Wal(args) => durations::run(ProbeMetric::Wal, &args, ctx),
        ProbeCommand::Queries(args) => durations::run(ProbeMetric::Queries, &args, ctx),
        ProbeCommand::Sorts(args) => durations::run(ProbeMetric::Sorts, &args, ctx),
        ProbeCommand::Doctor(args) => doctor::run(&args, ctx),
        ProbeCommand::Export(args) => export::run(&args, ctx),
        ProbeCommand::List(args) => list::run(&args, ctx),
    }
}
