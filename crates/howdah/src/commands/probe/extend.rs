//! `howdah probe extend`: traces waits for relation extension locks.

use anyhow::Context as _;
use howdah_inspect::RunningServer;
use howdah_probe::{
    RelationNames,
    by_sql::SqlExtensions,
    extend::ExtensionLocks,
    live::{ExtensionMonitor, trace},
};
use howdah_report::probe::ExtensionPrinter;

use super::{
    by_sql,
    common::{self, OpenedProbe, TraceArgs},
    source::SourceName,
    target::LocalServer,
};
use crate::{context::CommandContext, errors::WithHint as _, outcome::CommandOutcome};

/// Measure how long backends wait for relation extension locks, and how long they hold them.
///
/// Prints a line per second: number of waits, shortest, mean, median, 99th percentile and longest,
/// and the relation with most waits; at the end a summary by relation. A lock is counted when it is
/// released.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true, after_help = EXAMPLES)]
pub(super) struct Args {
    #[command(flatten)]
    trace: TraceArgs,
}

const EXAMPLES: &str = "\
Examples:
  howdah probe extend postgresql://localhost/shop --duration 60s
  howdah probe extend --data-dir /var/lib/postgresql/17/main --threshold 100ms --stacks
  howdah probe extend --pid 4711 --format csv > extend.csv";

pub(super) fn run(args: &Args, ctx: &CommandContext) -> anyhow::Result<CommandOutcome> {
    let watch = &args.trace.watch;
    let open = |server: &RunningServer| {
        ExtensionLocks::attach_with_stacks(server, args.trace.stacks_from())
            .context("cannot trace extension locks")
            .hint("`howdah probe doctor` shows what is missing")
    };
    let (locks, LocalServer { server, session }) =
        match watch.open(&[SourceName::Bpf, SourceName::Sql], open)? {
            OpenedProbe::Local(locks, found) => (locks, *found),
            OpenedProbe::Sql(outside) => {
                return by_sql::run(SqlExtensions::default(), &outside, watch, ctx);
            }
        };
    let names = RelationNames::new(session);
    let mut monitor = ExtensionMonitor::new(locks, &server, names, args.trace.threshold);
    let mut printer = ExtensionPrinter::new(ctx.output(), watch.format.into());
    common::report_attached(&server, ctx);
    let limits = (&watch.pace(ctx), args.trace.budget());
    let end = trace(&mut monitor, &server, limits, &mut printer).map_err(common::live_error)?;
    args.trace.report_over_budget(&end, ctx);
    let remarks = printer.totals(&monitor.finish()?, end.overhead)?;
    remarks.iter().for_each(|remark| ctx.report(remark));
    common::outcome(end.stopped.map(Into::into))
}
