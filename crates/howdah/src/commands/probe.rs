//! `howdah probe`: measures from inside what a running server is doing and waiting for.

mod by_sql;
mod checkpoints;
mod common;
mod doctor;
mod durations;
mod export;
mod extend;
mod list;
mod lock_graph;
mod profile;
mod report;
mod run;
mod source;
mod sweep;
pub(super) mod target;
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

commands! {
    enum ProbeCommand {
        Checkpoints(checkpoints::Args) => checkpoints::run,
        Extend(extend::Args) => extend::run,
        Sweep(sweep::Args) => sweep::run,
        Waits(waits::Args) => waits::run,
        Run(run::Args) => run::run,
        Report(report::Args) => report::run,
        /// Measure how long backends wait for heavyweight locks, and for which.
        ///
        /// Prints a line per second, and totals by lock at the end. If the server is given by a
        /// URI, waits of 0.2 s or more show which processes were blocking.
        Locks(durations::Args) => |args, ctx| durations::run(ProbeMetric::Locks, args, ctx),
        /// Measure how long backends wait for lightweight locks, by tranche.
        ///
        /// Prints a line per second for each tranche with waits, and all tranches at the end. Names
        /// are those of `pg_stat_activity.wait_event`.
        #[command(name = "lwlocks")]
        LwLocks(durations::Args) => |args, ctx| durations::run(ProbeMetric::LwLocks, args, ctx),
        /// Measure spin delays: how long backends spin and sleep for spinlocks that others have.
        ///
        /// Prints a line per second for each position in the server's source that waited, and all
        /// at the end. Locks of buffer headers and of the queues of lightweight locks are not
        /// spinlocks of this kind, and not counted. The traced function returns with the spinlock
        /// taken, so tracing lengthens the delays: use it for short looks.
        Spins(durations::Args) => |args, ctx| durations::run(ProbeMetric::Spins, args, ctx),
        /// Measure how long reads, writes and extensions of relation files take, by relation.
        ///
        /// Prints a line per second for each operation. `start read` (PostgreSQL 18) submits an
        /// asynchronous read, without waiting for it.
        Io(durations::Args) => |args, ctx| durations::run(ProbeMetric::Io, args, ctx),
        /// Measure how long it takes to make WAL durable.
        ///
        /// `flush` is what a commit waits for, including the syncs of other backends; `fsync` is
        /// the sync itself.
        Wal(durations::Args) => |args, ctx| durations::run(ProbeMetric::Wal, args, ctx),
        /// Measure how long planning and execution take, in the simple and the extended protocol.
        ///
        /// Statements inside functions are part of the statements that call them.
        Queries(durations::Args) => |args, ctx| durations::run(ProbeMetric::Queries, args, ctx),
        /// Measure how long sorts take, and their writes to disk.
        Sorts(durations::Args) => |args, ctx| durations::run(ProbeMetric::Sorts, args, ctx),
        LockGraph(lock_graph::Args) => lock_graph::run,
        Profile(profile::Args) => profile::run,
        Doctor(doctor::Args) => doctor::run,
        Export(export::Args) => export::run,
        List(list::Args) => list::run,
    }
}

pub(crate) fn run(args: &Args, ctx: &CommandContext) -> anyhow::Result<CommandOutcome> {
    args.command.run(ctx)
}
