//! Parsing and aggregation without sockets: the throughput of one core.

use std::hint::black_box;

use anyhow::Context as _;
use howdah_statsd::{
    aggregate::{SampleShard, ShardInterval},
    settings::StatsdSettings,
};

use crate::{process::cpu_time, workload};

/// Options of the `parse` subcommand.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Args {
    /// Metrics to parse
    #[arg(long, default_value_t = 20_000_000)]
    pub(crate) metrics: u64,
    /// Distinct counters instead of the mix of 500 names
    #[arg(long)]
    pub(crate) keys: Option<usize>,
    /// One metric per packet
    #[arg(long)]
    pub(crate) singles: bool,
}

/// Parses packets in a loop and swaps the interval every million metrics, as a flush does.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let ns = nanoseconds_per_metric(args)?;
    let mut out = std::io::stdout();
    use std::io::Write as _;
    writeln!(out, "{ns:.1} ns of CPU per metric, {:.1} M metrics/s on one core", 1e3 / ns)?;
    Ok(())
}

/// CPU nanoseconds spent parsing and aggregating one metric.
pub(crate) fn nanoseconds_per_metric(args: Args) -> anyhow::Result<f64> {
    let lines = args.keys.map_or_else(workload::singles, workload::counters);
    let lines_per_round = lines.len() as u64;
    let packets = if args.singles { lines } else { workload::packed(&lines) };
    let mut shard = SampleShard::new(&StatsdSettings::default());
    let mut spare = ShardInterval::default();
    let round =
        |shard: &mut SampleShard| packets.iter().for_each(|packet| shard.apply_packet(packet));
    // The steady state is measured: all keys are known and memory is warm.
    for _ in 0..2 {
        round(&mut shard);
        spare = shard.swap(spare);
        spare.clear();
    }
    let (mut done, mut since_flush) = (0, 0);
    let mut cpu = std::time::Duration::ZERO;
    while done < args.metrics {
        let start = cpu_time();
        round(&mut shard);
        cpu += cpu_time().checked_sub(start).context("the CPU clock went backwards")?;
        done += lines_per_round;
        since_flush += lines_per_round;
        if since_flush >= 1_000_000 {
            let mut interval = shard.swap(spare);
            anyhow::ensure!(interval.samples == since_flush, "every metric must be aggregated");
            black_box(&mut interval).clear();
            spare = interval;
            since_flush = 0;
        }
    }
    Ok(cpu.as_nanos() as f64 / done as f64)
}
