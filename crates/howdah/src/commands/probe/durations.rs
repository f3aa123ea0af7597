//! `howdah probe locks`, `lwlocks`, `spins`, `io`, `wal`, `queries` and `sorts`: durations of
//! functions in the server.

use anyhow::Context as _;
use howdah_inspect::RunningServer;
use howdah_probe::{
    RelationNames,
    by_sql::{LwLockSamples, SqlIo, SqlLocks, SqlWal},
    durations::{CallDurations, ProbeMetric},
    live::{CallMonitor, LWLOCK_SAMPLES_LIMITATION, sample_lwlocks, trace},
    waits::{SamplerOptions, WaitSampler},
};
use howdah_report::probe::{CallPrinter, SUBJECTS_PRINTED, SqlPrinter, SqlReport as _};

use super::{
    by_sql,
    common::{self, OpenedProbe, RowFormatArg, TraceArgs, WatchArgs},
    source::SourceName,
    target::{LocalServer, SqlTarget},
};
use crate::{context::CommandContext, errors::WithHint as _, outcome::CommandOutcome};

#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub(super) struct Args {
    #[command(flatten)]
    trace: TraceArgs,
}

pub(super) fn run(
    metric: ProbeMetric,
    args: &Args,
    ctx: &CommandContext,
) -> anyhow::Result<CommandOutcome> {
    let watch = &args.trace.watch;
    let attach = |server: &RunningServer| {
        CallDurations::attach_with_stacks(server, metric, args.trace.stacks_from())
            .with_context(|| format!("cannot trace {}", metric.name()))
            .hint("`howdah probe doctor` shows what is missing")
    };
    let (durations, LocalServer { server, session }) = match metric {
        ProbeMetric::LwLocks => match open_lwlocks(watch, attach, ctx)? {
            LwLockTracing::Attached(durations, found) => (*durations, *found),
            LwLockTracing::Done(outcome) => return Ok(outcome),
        },
        ProbeMetric::Spins | ProbeMetric::Queries | ProbeMetric::Sorts => {
            watch.check_source(&[SourceName::Bpf])?;
            let found = watch.target.find()?;
            (attach(&found.server)?, found)
        }
        _ => match watch.open(&[SourceName::Bpf, SourceName::Sql], attach)? {
            OpenedProbe::Local(durations, found) => (durations, *found),
            OpenedProbe::Sql(outside) => return by_sql(metric, &outside, args, ctx),
        },
    };
    let names = RelationNames::new(session);
    let mut monitor = CallMonitor::new((metric, durations), &server, names, args.trace.threshold);
    let mut printer = CallPrinter::new(ctx.output(), watch.format.into());
    common::report_attached(&server, ctx);
    let limits = (&watch.pace(ctx), args.trace.budget());
    let end = trace(&mut monitor, &server, limits, &mut printer).map_err(common::live_error)?;
    args.trace.report_over_budget(&end, ctx);
    let is_table = watch.format == RowFormatArg::Table;
    let totals = monitor.finish(if is_table { SUBJECTS_PRINTED } else { usize::MAX })?;
    let remarks = printer.totals(&totals, end.overhead)?;
    remarks.iter().for_each(|remark| ctx.report(remark));
    if let Some(error) = totals.blockers_error {
        let error = anyhow::Error::from(error);
        ctx.report(format_args!("cannot determine blocking processes: {error:#}"));
    }
    common::outcome(end.stopped.map(Into::into))
}

/// The result of opening the source for lightweight locks.
enum LwLockTracing {
    Attached(Box<CallDurations>, Box<LocalServer>),
    /// Lightweight locks were already measured, by samples of memory or by SQL.
    Done(CommandOutcome),
}

/// Attaches BPF programs that trace lightweight locks. If that is not possible or another source
/// was chosen, measures the locks by samples of memory, else by SQL.
fn open_lwlocks(
    watch: &WatchArgs,
    attach: impl Fn(&RunningServer) -> anyhow::Result<CallDurations>,
    ctx: &CommandContext,
) -> anyhow::Result<LwLockTracing> {
    const SOURCES: &[SourceName] = &[SourceName::Bpf, SourceName::Memory, SourceName::Sql];
    let open = |server: &RunningServer| {
        let refused = match watch.source {
            SourceName::Memory => anyhow::anyhow!("--source memory was given"),
            _ => match attach(server) {
                Ok(durations) => return Ok(Ok(durations)),
                Err(error) if watch.source == SourceName::Bpf => return Err(error),
                Err(error) => error,
            },
        };
        WaitSampler::open(server, SamplerOptions::default())?;
        Ok(Err(format!("{refused:#}")))
    };
    match watch.open(SOURCES, open)? {
        OpenedProbe::Local(Ok(durations), found) => {
            Ok(LwLockTracing::Attached(Box::new(durations), found))
        }
        OpenedProbe::Local(Err(reason), found) => {
            lwlocks_from_memory(&found.server, &reason, watch, ctx).map(LwLockTracing::Done)
        }
        OpenedProbe::Sql(outside) => {
            by_sql::run(LwLockSamples::default(), &outside, watch, ctx).map(LwLockTracing::Done)
        }
    }
}

fn by_sql(
    metric: ProbeMetric,
    outside: &SqlTarget,
    args: &Args,
    ctx: &CommandContext,
) -> anyhow::Result<CommandOutcome> {
    let TraceArgs { watch, threshold, .. } = &args.trace;
    match metric {
        ProbeMetric::Io => by_sql::run(SqlIo::default(), outside, watch, ctx),
        ProbeMetric::Wal => by_sql::run(SqlWal::default(), outside, watch, ctx),
        _ => by_sql::run(SqlLocks::new(*threshold), outside, watch, ctx),
    }
}

/// Samples lightweight locks in the server's memory.
fn lwlocks_from_memory(
    server: &RunningServer,
    reason: &str,
    args: &WatchArgs,
    ctx: &CommandContext,
) -> anyhow::Result<CommandOutcome> {
    let limitation = LWLOCK_SAMPLES_LIMITATION;
    ctx.report(format_args!("using samples of memory: {reason}; limitation: {limitation}"));
    let mut samples = LwLockSamples::default();
    let mut printer = SqlPrinter::for_memory(ctx.output(), args.format.into());
    let ended = sample_lwlocks(&mut samples, server, &args.pace(ctx), &mut printer)
        .map_err(common::live_error)?;
    samples.write_totals(&mut printer)?;
    common::outcome(ended.map(Into::into))
}
