//! `howdah probe checkpoints`: traces the phases of checkpoints.

use howdah_inspect::RunningServer;
use howdah_probe::{
    ProbeError, by_sql::SqlCheckpoints, checkpoints::CheckpointTracer, live::trace_checkpoints,
};
use howdah_report::probe::PhasePrinter;

use super::{
    by_sql,
    common::{self, OpenedProbe, WatchArgs},
    source::SourceName,
};
use crate::{context::CommandContext, outcome::CommandOutcome};

/// Trace each phase of a checkpoint: start, end, duration and amount.
///
/// Exact and nested if the server was built with USDT probes (as Debian's and PGDG's packages are)
/// and BPF programs are permitted; otherwise from the checkpointer's statistics in memory.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true, after_help = EXAMPLES)]
pub(super) struct Args {
    #[command(flatten)]
    watch: WatchArgs,
    /// Exit after the first completed checkpoint
    #[arg(long)]
    until_checkpoint: bool,
}

const EXAMPLES: &str = "\
Examples:
  howdah probe checkpoints postgresql://localhost/shop
  howdah probe checkpoints --data-dir /var/lib/postgresql/15/main --until-checkpoint
  howdah probe checkpoints --pid 4711 --duration 600s --format ndjson > checkpoints.ndjson";

const SOURCES: &[SourceName] = &[SourceName::Bpf, SourceName::Memory, SourceName::Sql];

pub(super) fn run(args: &Args, ctx: &CommandContext) -> anyhow::Result<CommandOutcome> {
    let watch = &args.watch;
    let open = |server: &RunningServer| Ok(open_tracer(watch.source, server, ctx)?);
    let (mut tracer, server) = match watch.open(SOURCES, open)? {
        OpenedProbe::Local(tracer, found) => (tracer, found.server),
        OpenedProbe::Sql(outside) => {
            let probe = SqlCheckpoints::new(args.until_checkpoint);
            return by_sql::run(probe, &outside, watch, ctx);
        }
    };
    let mut printer = PhasePrinter::new(ctx.output(), watch.format.into(), tracer.source());
    let limits = (&watch.pace(ctx), args.until_checkpoint);
    let ended = trace_checkpoints(&mut tracer, &server, limits, &mut printer)
        .map_err(common::live_error)?;
    let lost = tracer.lost_events()?;
    if lost > 0 {
        ctx.report(format_args!("{lost} events lost: some phases are missing"));
    }
    common::outcome(ended)
}

/// Opens the requested source. If none was requested, opens the best that works, and reports why a
/// better one does not.
fn open_tracer(
    requested: SourceName,
    server: &RunningServer,
    ctx: &CommandContext,
) -> Result<CheckpointTracer, ProbeError> {
    match requested {
        SourceName::Bpf => CheckpointTracer::from_usdt(server),
        SourceName::Memory => CheckpointTracer::from_stats(server),
        SourceName::Best | SourceName::Sql => {
            CheckpointTracer::from_usdt(server).or_else(|reason| {
                ctx.report(format_args!("reading phases from the checkpointer's memory: {reason}"));
                CheckpointTracer::from_stats(server)
            })
        }
    }
}
