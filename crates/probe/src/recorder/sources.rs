//! What a server is looked at with, all at once, and what of it makes up a second.

use std::{
    collections::HashMap,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use howdah_inspect::Server;

use super::{
    budget::Budget,
    record::{
        Extension, FigureSource, Lost, PhaseBegan, PhaseEnded, Record, RelationWaits, Second,
        Sweep, WaitRow, Waits,
    },
};
use crate::{
    calibrate::HitCost,
    checkpoints::{Checkpoints, Phase, Source, Span, Update},
    extend::{self, ExtensionLock, ExtensionLocks, LostEvents},
    sampling::SampleError,
    sweep::{PerAllocation, SweepSampler},
    waits::{Options, Profile, Report, Sampler},
};

/// A server, looked at.
#[derive(Debug)]
pub(super) struct Sources {
    server: Server,
    sampler: Sampler,
    profile: Profile,
    sweep: Option<SweepSampler>,
    extension: Option<ExtensionLocks>,
    /// What a lock costs the backend that takes it.
    cost_of_lock: Duration,
    budget: Budget,
    /// When to try again, after the budget was used up.
    extension_due: Option<Instant>,
    checkpoints: Option<Checkpoints>,
    /// No sense in asking before: the checkpointer was not there.
    checkpoints_due: Option<Instant>,
    gathered: Gathered,
    told: Told,
}

/// What came in since a second began.
#[derive(Debug, Default)]
struct Gathered {
    extension: Extension,
    relations: HashMap<(u32, u32), RelationWaits>,
}

/// Counts of losses that earlier seconds have told of.
#[derive(Clone, Copy, Debug, Default)]
struct Told {
    extension: [u64; 3],
    phases: u64,
}

/// What one look gave.
#[derive(Debug, Default)]
pub(super) struct Look {
    /// Phases that began and ended.
    pub(super) records: Vec<Record>,
    /// What happened to the probes, in words.
    pub(super) notes: Vec<String>,
}

impl Sources {
    /// Attaches to whatever can be had of a server. Only waits have to be.
    pub(super) fn open(
        server: &Server,
        now: Instant,
        hit: Option<HitCost>,
        budget: f64,
    ) -> Result<(Self, Vec<FigureSource>), SampleError> {
        let sampler = Sampler::open(server, Options::default())?;
        let mut figures = vec![figure("waits", Some(Source::Memory), String::new())];
        let sweep = SweepSampler::open(server, now, Duration::MAX);
        figures.push(match &sweep {
            Ok(_) => figure("sweep", Some(Source::Memory), String::new()),
            Err(error) => figure("sweep", None, error.to_string()),
        });
        // Before anything is attached, for then the code is not what it was.
        let cost_of_lock = hit.map_or(Ok(Duration::ZERO), |hit| extend::cost_of_lock(server, hit));
        let extension = ExtensionLocks::attach(server);
        figures.push(match &extension {
            Ok(_) => figure("extend", Some(Source::Bpf), String::new()),
            Err(error) => {
                let lacks = format!("only samples of Lock:extend: {error}");
                figure("extend", Some(Source::Memory), lacks)
            }
        });
        let (checkpoints, lacks) = match Checkpoints::by_markers(server) {
            Ok(checkpoints) => (Some(checkpoints), String::new()),
            Err(reason) => match Checkpoints::by_notes(server) {
                Ok(checkpoints) => (Some(checkpoints), reason.to_string()),
                Err(error) => (None, error.to_string()),
            },
        };
        let source = checkpoints.as_ref().map(Checkpoints::source);
        figures.push(figure("checkpoints", source, lacks));
        let sources = Self {
            server: server.clone(),
            sampler,
            profile: Profile::default(),
            sweep: sweep.ok(),
            extension: extension.ok(),
            cost_of_lock: cost_of_lock.unwrap_or_default(),
            budget: Budget::new(budget),
            extension_due: None,
            checkpoints,
            checkpoints_due: None,
            gathered: Gathered::default(),
            told: Told::default(),
        };
        Ok((sources, figures))
    }

    pub(super) fn server(&self) -> &Server {
        &self.server
    }

    /// Looks once.
    ///
    /// # Errors
    ///
    /// The server has ended, or made its memory anew.
    pub(super) fn look(&mut self, now: Instant) -> Result<Look, SampleError> {
        self.profile.add(&self.sampler.sample(now)?);
        if let Some(sweep) = &mut self.sweep {
            sweep.poll(now)?;
        }
        let mut look = Look::default();
        self.look_at_extension(now, &mut look);
        self.look_at_checkpoints(now, &mut look);
        Ok(look)
    }

    /// What was seen since the last call. `late`: looks that were left out.
    pub(super) fn second(&mut self, now: Instant, late: u64) -> Second {
        let report = self.profile.interval();
        let mut lost = Lost { looks: late, samples: report.uncounted, ..Lost::default() };
        let waits = waits(&report, &mut lost);
        if let Some(locks) = &self.extension
            && let Ok(losses) = locks.losses()
        {
            let LostEvents { lost: locks, unpaired, skipped } = losses;
            let all = [locks, unpaired, skipped.values().sum()];
            let told = std::mem::replace(&mut self.told.extension, all);
            let new = |which: usize| all[which].saturating_sub(told[which]);
            (lost.locks, lost.unpaired, lost.skipped) = (new(0), new(1), new(2));
        }
        if let Some(Ok(phases)) = self.checkpoints.as_ref().map(Checkpoints::lost) {
            lost.phases = phases.saturating_sub(self.told.phases);
            self.told.phases = phases;
        }
        let Gathered { mut extension, relations } = std::mem::take(&mut self.gathered);
        let mut relations: Vec<_> = relations.into_values().collect();
        relations.sort_by_key(|of| (std::cmp::Reverse(of.total_us), of.database, of.relation));
        relations.truncate(RELATIONS_MAX);
        extension.relations = relations;
        self.budget.next_second();
        Second {
            extension: (self.extension.is_some() || extension.holds.count() > 0)
                .then_some(extension),
            sweep: self.sweep.as_mut().map(|sweep| swept(sweep, now)),
            waits,
            lost,
            ..Second::default()
        }
    }

    fn look_at_extension(&mut self, now: Instant, look: &mut Look) {
        if self.extension_due.is_some_and(|due| now >= due) {
            self.extension_due = None;
            self.extension = ExtensionLocks::attach(&self.server).ok();
            self.told.extension = [0; 3];
            look.notes.push("extension locks are traced again".to_owned());
        }
        let Some(locks) = &mut self.extension else { return };
        let (gathered, budget, cost) = (&mut self.gathered, &mut self.budget, self.cost_of_lock);
        locks.drain(|lock| {
            gathered.add(&lock);
            budget.spend(cost);
        });
        if budget.is_used_up() {
            self.extension = None;
            self.extension_due = Some(now + AGAIN);
            look.notes.push(format!(
                "extension locks are not traced for {} s: there were so many that it would cost more \
                 than the budget",
                AGAIN.as_secs()
            ));
        }
    }

    fn look_at_checkpoints(&mut self, now: Instant, look: &mut Look) {
        let Some(checkpoints) = &mut self.checkpoints else { return };
        if self.checkpoints_due.is_some_and(|due| now < due) {
            return;
        }
        let polled = checkpoints.poll(|update| look.records.push(record_of(&update)));
        // A crash of any process ends the checkpointer; the next one is found when it is there.
        self.checkpoints_due = polled.is_err().then(|| now + PATIENCE);
    }
}

/// After the budget was used up.
const AGAIN: Duration = Duration::from_secs(60);
const PATIENCE: Duration = Duration::from_millis(500);
/// Relations of a second that are told apart. The sums have all.
const RELATIONS_MAX: usize = 8;
/// Relations that are counted while a second lasts.
const RELATIONS_COUNTED: usize = 10_000;
/// Rows of waits in a second.
const ROWS_MAX: usize = 256;

fn figure(name: &str, source: Option<Source>, lacks: String) -> FigureSource {
    FigureSource { figure: name.to_owned(), source, lacks }
}

impl Gathered {
    fn add(&mut self, lock: &ExtensionLock) {
        self.extension.holds.add(lock.hold);
        if lock.is_conditional {
            self.extension.at_once += 1;
            return;
        }
        self.extension.waits.add(lock.wait);
        let of = (lock.database, lock.relation);
        if self.relations.len() >= RELATIONS_COUNTED && !self.relations.contains_key(&of) {
            return;
        }
        let (database, relation) = of;
        let empty = RelationWaits { database, relation, waits: 0, total_us: 0, max_us: 0 };
        let sums = self.relations.entry(of).or_insert(empty);
        let us = micros(lock.wait);
        sums.waits += 1;
        sums.total_us += us;
        sums.max_us = sums.max_us.max(us);
    }
}

fn waits(report: &Report, lost: &mut Lost) -> Waits {
    let (told, untold) = report.rows.split_at(report.rows.len().min(ROWS_MAX));
    lost.samples += untold.iter().map(|row| row.samples).sum::<u64>();
    let rows = told.iter().map(|row| WaitRow {
        group: row.group,
        kind: row.kind.name().to_owned(),
        class: row.event.class().name().to_owned(),
        event: row.event.to_string(),
        samples: row.samples,
    });
    Waits { rounds: u32::try_from(report.rounds).unwrap_or(u32::MAX), rows: rows.collect() }
}

fn swept(sweep: &mut SweepSampler, now: Instant) -> Sweep {
    let row = sweep.cut(now);
    let milli = |ratio: f64| (ratio * 1000.0) as u64;
    Sweep {
        buffers: row.buffers,
        examined: row.examined,
        allocations: row.allocations,
        slices_milli: row
            .per_allocation
            .map(|PerAllocation { min, max, .. }| (milli(min), milli(max))),
        has_free_buffers: row.has_free_buffers,
    }
}

fn record_of(update: &Update) -> Record {
    let depth = |depth: usize| u32::try_from(depth).unwrap_or(u32::MAX);
    match update {
        Update::Started { phase, pid, at, depth: d } => Record::PhaseBegan(PhaseBegan {
            at_us: wall_us(*at),
            phase: *phase,
            pid: *pid,
            depth: depth(*d),
        }),
        Update::Finished(Span { phase, pid, started_at, duration, depth: d, counts }) => {
            Record::PhaseEnded(PhaseEnded {
                at_us: wall_us(*started_at),
                duration_us: micros(*duration),
                phase: *phase,
                pid: *pid,
                depth: depth(*d),
                buffers: counts.buffers_written,
                files: counts.files_synced.filter(|_| *phase == Phase::Sync),
            })
        }
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// Microseconds since 1970.
pub(super) fn wall_us(at: SystemTime) -> i64 {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}
