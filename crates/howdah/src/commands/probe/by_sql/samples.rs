//! Waits for lightweight locks as samples: how often processes were seen in one. By SQL, or from memory where
//! only programs in the kernel may not be run.

use std::{
    collections::BTreeMap,
    io, mem,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use howdah_collect::Server;
use howdah_probe::waits::{Class, Options, Sampler};
use serde_json::{Value, json};

use super::{Asking, LOOK, Told};
use crate::{
    commands::probe::{
        durations, rows,
        watch::{WatchArgs, Watched},
    },
    context::Context,
    outcome::Outcome,
};

/// Samples by tranche.
#[derive(Debug, Default)]
pub(in super::super) struct LwLocks {
    looked: Option<Instant>,
    interval: BTreeMap<String, Amount>,
    all: BTreeMap<String, Amount>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Amount {
    samples: u64,
    time: Duration,
}

impl LwLocks {
    /// Adds a look: the tranches that processes were seen at. It stands for the time since the last one.
    fn add(&mut self, now: Instant, seen: impl IntoIterator<Item = (String, u32)>) {
        let elapsed = self.looked.map_or(Duration::ZERO, |at| now.saturating_duration_since(at));
        self.looked = Some(now);
        for (tranche, processes) in seen {
            for amounts in [&mut self.interval, &mut self.all] {
                let amount = amounts.entry(tranche.clone()).or_default();
                amount.samples += u64::from(processes);
                amount.time += elapsed * processes;
            }
        }
    }
}

fn cells(tranche: &str, amount: Amount) -> Vec<(&'static str, Value)> {
    vec![
        ("operation", json!("lwlock")),
        ("subject", json!(tranche)),
        ("samples", json!(amount.samples)),
        ("total_ms", rows::ms(amount.time)),
    ]
}

fn of_all<'a>(amounts: impl Iterator<Item = &'a Amount>) -> Amount {
    amounts.fold(Amount::default(), |sum, one| Amount {
        samples: sum.samples + one.samples,
        time: sum.time + one.time,
    })
}

impl Asking for LwLocks {
    const COLUMNS: &'static [&'static str] = durations::COLUMNS;
    const LACKS: &'static str = "single waits and their lengths: these are samples, 10 a second, and the \
        time they stand for";
    const EVERY: Option<Duration> = Some(LOOK);

    fn look(&mut self, server: &mut Server) -> anyhow::Result<()> {
        let counts = server.waits().context("cannot read pg_stat_activity")?;
        let seen = counts.iter().filter_map(|count| {
            let wait = count.wait.as_ref().filter(|wait| &*wait.class == "LWLock")?;
            Some((wait.event.to_string(), count.sessions))
        });
        self.add(Instant::now(), seen);
        Ok(())
    }

    fn tell_interval(&mut self, told: &mut Told<'_>) -> io::Result<()> {
        for (tranche, amount) in mem::take(&mut self.interval) {
            told.write(Some("interval"), cells(&tranche, amount))?;
        }
        Ok(())
    }

    fn tell_end(&mut self, told: &mut Told<'_>) -> io::Result<()> {
        for (tranche, amount) in &self.all {
            told.write(Some("subject"), cells(tranche, *amount))?;
        }
        let mut end = cells("", of_all(self.all.values()));
        end.retain(|(name, _)| *name != "subject");
        told.write(Some("end"), end)
    }
}

const MEMORY_LACKS: &str = "single waits and their lengths: these are samples of memory, 100 a second, \
    and the time they stand for";

/// The same from the server's memory.
pub(in super::super) fn from_memory(
    server: &howdah_inspect::Server,
    reason: &str,
    args: &WatchArgs,
    ctx: &Context,
) -> anyhow::Result<Outcome> {
    let mut sampler = Sampler::open(server, Options::default())?;
    let watched = Watched::new(server)?;
    ctx.say(format_args!("by samples of memory: {reason}; lacks {MEMORY_LACKS}"));
    let mut told = Told::new(ctx, args.format, ("memory", durations::COLUMNS), MEMORY_LACKS);
    let (mut locks, mut ended) = (LwLocks::default(), None);
    let mut ticks = args.pace.begin(ctx, Duration::from_millis(10));
    let mut due = Instant::now() + args.pace.interval;
    while ended.is_none() && ticks.tick() {
        let now = Instant::now();
        match sampler.sample(now) {
            Ok(round) => {
                let events = round.observations().map(|seen| seen.event);
                let seen = events.filter(|event| event.class() == Class::LwLock);
                locks.add(now, seen.map(|event| (event.name(), 1)));
            }
            Err(error) => ended = Some(watched.explain(error)),
        }
        if now >= due {
            due += args.pace.interval;
            locks.tell_interval(&mut told)?;
        }
    }
    locks.tell_end(&mut told)?;
    ended.map_or(Ok(Outcome::Done), Err)
}

#[test]
fn samples_stand_for_the_time_since_the_last_look() {
    let (mut locks, now) = (LwLocks::default(), Instant::now());
    locks.add(now, [("WALWrite".to_owned(), 2)]);
    locks.add(now + LOOK, [("WALWrite".to_owned(), 3), ("ProcArray".to_owned(), 1)]);
    let of = |name: &str| locks.all[name];
    assert_eq!((of("WALWrite").samples, of("WALWrite").time), (5, 3 * LOOK));
    assert_eq!(of_all(locks.all.values()).time, 4 * LOOK);
}
