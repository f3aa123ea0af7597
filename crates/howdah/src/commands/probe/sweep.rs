//! `howdah probe sweep`: measures the clock sweep, the search for a buffer to evict.

use std::time::Instant;

use howdah_inspect::RunningServer;
use howdah_probe::{by_sql::SqlSweep, live::sample_sweep, sweep::SweepSampler};
use howdah_report::probe::SweepPrinter;

use super::{
    by_sql,
    common::{self, OpenedProbe, WatchArgs},
    source::SourceName,
};
use crate::{context::CommandContext, errors::wrong_usage, outcome::CommandOutcome};

/// Measure the clock sweep, the search for a buffer to evict, from the server's own counters.
///
/// Prints a line per second: passes of the clock hand per second, buffers allocated, and buffers
/// examined for each; at the end, how many allocations there were and how many had to sweep. Costs
/// the server nothing.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true, after_help = EXAMPLES)]
pub(super) struct Args {
    #[command(flatten)]
    watch: WatchArgs,
}

const EXAMPLES: &str = "\
Examples:
  howdah probe sweep postgresql://localhost/shop --duration 60s
  howdah probe sweep --pid 4711 --interval 10 --format csv > sweep.csv";

pub(super) fn run(args: &Args, ctx: &CommandContext) -> anyhow::Result<CommandOutcome> {
    let watch = &args.watch;
    if watch.interval < SweepSampler::ROW_LENGTH_MIN {
        return Err(wrong_usage(
            "--interval is shorter than a millisecond, the minimum time between two samples",
        ));
    }
    let open =
        |server: &RunningServer| Ok(SweepSampler::open(server, Instant::now(), watch.interval)?);
    let (mut sampler, server) = match watch.open(&[SourceName::Memory, SourceName::Sql], open)? {
        OpenedProbe::Local(sampler, found) => (sampler, found.server),
        OpenedProbe::Sql(outside) => {
            return by_sql::run(SqlSweep::default(), &outside, watch, ctx);
        }
    };
    let mut printer = SweepPrinter::new(ctx.output(), watch.format.into());
    let ended = sample_sweep(&mut sampler, &server, &watch.pace(ctx), &mut printer)
        .map_err(common::live_error)?;
    printer.totals(&sampler.summary())?;
    common::outcome(ended.map(Into::into))
}
