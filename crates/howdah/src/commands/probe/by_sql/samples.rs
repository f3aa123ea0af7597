//! Waits for lightweight locks as samples: how often processes were seen waiting. By SQL, or from
//! memory where only BPF programs are not permitted.

use std::{
    collections::BTreeMap,
    io, mem,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use howdah_collect::MonitorConnection;
use howdah_probe::waits::{Class, SamplerOptions, WaitSampler};
use serde_json::{Value, json};

use super::{LimitedRows, SAMPLE_INTERVAL, SqlProbe};
use crate::{
    commands::probe::{
        common::{ServerWatch, WatchArgs},
        durations, rows,
    },
    context::CommandContext,
    outcome::CommandOutcome,
};

/// Samples by tranche.
#[derive(Debug, Default)]
pub(in super::super) struct LwLockSamples {
    sampled_at: Option<Instant>,
    interval: BTreeMap<String, SampleAmount>,
    all: BTreeMap<String, SampleAmount>,
}

#[derive(Clone, Copy, Debug, Default)]
struct SampleAmount {
    samples: u64,
    time: Duration,
}

impl LwLockSamples {
    /// Adds a sample: the number of processes by tranche. It stands for the time since the last
    /// one.
    fn add(&mut self, now: Instant, seen: impl IntoIterator<Item = (String, u32)>) {
        let elapsed =
            self.sampled_at.map_or(Duration::ZERO, |at| now.saturating_duration_since(at));
        self.sampled_at = Some(now);
        for (tranche, processes) in seen {
            for amounts in [&mut self.interval, &mut self.all] {
                let amount = amounts.entry(tranche.clone()).or_default();
                amount.samples += u64::from(processes);
                amount.time += elapsed * processes;
            }
        }
    }
}

fn cells(tranche: &str, amount: SampleAmount) -> Vec<(&'static str, Value)> {
    vec![
        ("operation", json!("lwlock")),
        ("subject", json!(tranche)),
        ("samples", json!(amount.samples)),
        ("total_ms", rows::ms(amount.time)),
    ]
}

fn sum<'a>(amounts: impl Iterator<Item = &'a SampleAmount>) -> SampleAmount {
    amounts.fold(SampleAmount::default(), |sum, one| SampleAmount {
        samples: sum.samples + one.samples,
        time: sum.time + one.time,
    })
}

impl SqlProbe for LwLockSamples {
    const COLUMNS: &'static [&'static str] = durations::COLUMNS;
    const LIMITATION: &'static str = "no single waits and durations: these are samples, 10 per second, and the \
        time they stand for";
    const INTERVAL: Option<Duration> = Some(SAMPLE_INTERVAL);

    fn sample(&mut self, server: &mut MonitorConnection) -> anyhow::Result<()> {
        let counts = server.waits().context("cannot read pg_stat_activity")?;
        let waits = counts.iter().filter_map(|count| {
            let wait = count.wait.as_ref().filter(|wait| &*wait.class == "LWLock")?;
            Some((wait.event.to_string(), count.sessions))
        });
        self.add(Instant::now(), waits);
        Ok(())
    }

    fn report_interval(&mut self, rows: &mut LimitedRows<'_>) -> io::Result<()> {
        for (tranche, amount) in mem::take(&mut self.interval) {
            rows.write(Some("interval"), cells(&tranche, amount))?;
        }
        Ok(())
    }

    fn report_summary(&mut self, rows: &mut LimitedRows<'_>) -> io::Result<()> {
        for (tranche, amount) in &self.all {
            rows.write(Some("subject"), cells(tranche, *amount))?;
        }
        let mut end = cells("", sum(self.all.values()));
        end.retain(|(name, _)| *name != "subject");
        rows.write(Some("end"), end)
    }
}

const MEMORY_LIMITATION: &str = "no single waits and durations: these are samples of memory, 100 per second, \
    and the time they stand for";

/// Samples lightweight locks in the server's memory.
pub(in super::super) fn from_memory(
    server: &howdah_inspect::RunningServer,
    reason: &str,
    args: &WatchArgs,
    ctx: &CommandContext,
) -> anyhow::Result<CommandOutcome> {
    let mut sampler = WaitSampler::open(server, SamplerOptions::default())?;
    let watched = ServerWatch::new(server)?;
    ctx.report(format_args!("using samples of memory: {reason}; limitation: {MEMORY_LIMITATION}"));
    let mut rows =
        LimitedRows::new(ctx, args.format, ("memory", durations::COLUMNS), MEMORY_LIMITATION);
    let (mut locks, mut ended) = (LwLockSamples::default(), None);
    let mut ticks = args.pace.start(ctx, Duration::from_millis(10));
    let mut due = Instant::now() + args.pace.interval;
    while ended.is_none() && ticks.tick() {
        let now = Instant::now();
        match sampler.sample(now) {
            Ok(round) => {
                let events = round.observations().map(|seen| seen.event);
                let waits = events.filter(|event| event.class() == Class::LwLock);
                locks.add(now, waits.map(|event| (event.name(), 1)));
            }
            Err(error) => ended = Some(watched.explain(error)),
        }
        if now >= due {
            due += args.pace.interval;
            locks.report_interval(&mut rows)?;
        }
    }
    locks.report_summary(&mut rows)?;
    ended.map_or(Ok(CommandOutcome::Done), Err)
}

#[test]
fn sample_covers_time_since_previous_one() {
    let (mut locks, now) = (LwLockSamples::default(), Instant::now());
    locks.add(now, [("WALWrite".to_owned(), 2)]);
    locks.add(now + SAMPLE_INTERVAL, [("WALWrite".to_owned(), 3), ("ProcArray".to_owned(), 1)]);
    let of = |name: &str| locks.all[name];
    assert_eq!((of("WALWrite").samples, of("WALWrite").time), (5, 3 * SAMPLE_INTERVAL));
    assert_eq!(sum(locks.all.values()).time, 4 * SAMPLE_INTERVAL);
}
