//! Waits for lightweight locks as samples: how often processes were seen waiting. By SQL, or from
//! memory where only BPF programs are not permitted.

use std::{
    io,
    time::{Duration, Instant},
};

use howdah_probe::{
    by_sql::{LwLockSamples, SampledTime},
    waits::{Class, SamplerOptions, WaitSampler},
};
use serde_json::{Value, json};

use super::{LimitedRows, SqlRows};
use crate::{
    commands::probe::{
        common::{ServerWatch, WatchArgs},
        durations, rows,
    },
    context::CommandContext,
    outcome::CommandOutcome,
};

fn cells(tranche: &str, amount: SampledTime) -> Vec<(&'static str, Value)> {
    vec![
        ("operation", json!("lwlock")),
        ("subject", json!(tranche)),
        ("samples", json!(amount.samples)),
        ("total_ms", rows::ms(amount.time)),
    ]
}

impl SqlRows for LwLockSamples {
    const COLUMNS: &'static [&'static str] = durations::COLUMNS;

    fn report_interval(&mut self, rows: &mut LimitedRows<'_>) -> io::Result<()> {
        for (tranche, amount) in self.drain_interval() {
            rows.write(Some("interval"), cells(&tranche, amount))?;
        }
        Ok(())
    }

    fn report_summary(&mut self, rows: &mut LimitedRows<'_>) -> io::Result<()> {
        for (tranche, amount) in self.tranches() {
            rows.write(Some("subject"), cells(tranche, *amount))?;
        }
        let mut end = cells("", self.total());
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
