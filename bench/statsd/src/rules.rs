//! Aggregation and flushes with and without rules, on one core and without sockets.

use std::{
    hint::black_box,
    time::{Duration, SystemTime},
};

use anyhow::Context as _;
use howdah_statsd::{
    backends::SnapshotRequirements,
    flush::{FlushTime, KeyRegistry},
    ledger::LossAccount,
    settings::{RuleAction, RuleSettings, StatsdSettings},
};

use crate::{process::cpu_time, workload};

/// Options of the `rules` subcommand.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Args {
    /// Metrics to aggregate, each with four tags
    #[arg(long, default_value_t = 10_000_000)]
    pub(crate) metrics: u64,
    /// Repetitions, each without and with rules
    #[arg(long, default_value_t = 5)]
    pub(crate) rounds: usize,
}

/// Flushes are this far apart, as in an interval of a busy server.
const METRICS_PER_FLUSH: u64 = 1_000_000;

/// Prints the CPU time per metric without and with ten rules.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    use std::io::Write as _;
    let mut out = std::io::stdout();
    for _ in 0..args.rounds {
        let none = nanoseconds_per_metric(args.metrics, &[])?;
        let ten = nanoseconds_per_metric(args.metrics, &ten_rules())?;
        let ratio = ten / none;
        writeln!(
            out,
            "no rules {none:.1} ns, ten rules {ten:.1} ns of CPU per metric: {ratio:.2}"
        )?;
    }
    Ok(())
}

/// CPU nanoseconds for parsing, aggregating and flushing one metric with four tags.
pub(crate) fn nanoseconds_per_metric(metrics: u64, rules: &[RuleSettings]) -> anyhow::Result<f64> {
    let settings = StatsdSettings { rules: rules.to_vec(), ..StatsdSettings::default() };
    let needs = SnapshotRequirements { names_as_sent: true, ..SnapshotRequirements::default() };
    let mut registry = KeyRegistry::new(&settings, needs, SystemTime::UNIX_EPOCH);
    let shard = registry.shard();
    let lines = workload::tagged();
    let lines_per_round = lines.len() as u64;
    let packets = workload::packed(&lines);
    let round = || {
        let mut shard = shard.lock();
        packets.iter().for_each(|packet| shard.apply_packet(packet));
    };
    let flush = |registry: &mut KeyRegistry| {
        let time = FlushTime { now: SystemTime::UNIX_EPOCH, lag: Duration::ZERO };
        registry.flush(time, LossAccount::default())
    };
    // The steady state is measured: all keys are known and memory is warm.
    for _ in 0..2 {
        round();
        let snapshot = flush(&mut registry);
        anyhow::ensure!(snapshot.counters.len() > workload::TAGGED_KEYS / 2, "no key is dropped");
    }
    let (mut done, mut since_flush) = (0, 0);
    let start = cpu_time();
    while done < metrics {
        round();
        done += lines_per_round;
        since_flush += lines_per_round;
        if since_flush >= METRICS_PER_FLUSH {
            black_box(flush(&mut registry));
            since_flush = 0;
        }
    }
    let cpu = cpu_time().checked_sub(start).context("the CPU clock went backwards")?;
    Ok(cpu.as_nanos() as f64 / done as f64)
}

/// Ten rules: six that match no metric, and four that change all of them without merging any.
pub(crate) fn ten_rules() -> Vec<RuleSettings> {
    let text = |text: &str| Some(text.to_owned());
    let drops = (1..=5).map(|number| RuleSettings {
        name: Some(format!("debug{number}.**")),
        action: Some(RuleAction::Drop),
        ..RuleSettings::default()
    });
    let regex = RuleSettings {
        name_regex: text("^tmp[0-9]+"),
        action: Some(RuleAction::Drop),
        ..RuleSettings::default()
    };
    let changes = [
        RuleSettings { drop_tags: vec!["env".to_owned()], ..RuleSettings::default() },
        RuleSettings {
            add_tags: [("zone".to_owned(), "a".to_owned())].into(),
            ..RuleSettings::default()
        },
        RuleSettings {
            name: text("bench.*.*"),
            rename: text("app.$2.$1"),
            ..RuleSettings::default()
        },
        RuleSettings {
            tags: [("region".to_owned(), "eu*".to_owned())].into(),
            add_tags: [("continent".to_owned(), "europe".to_owned())].into(),
            ..RuleSettings::default()
        },
    ];
    drops.chain([regex]).chain(changes).collect()
}
