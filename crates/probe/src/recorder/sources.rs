//! Polls the probes of a recorded server, and assembles their results into seconds.

use std::{
    collections::HashMap,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use howdah_inspect::RunningServer;

use super::{
    RecorderOptions,
    budget::{TraceBudget, TraceCredit},
    record::{
        ExtensionTotals, FlightRecord, LostCounts, PhaseEnded, PhaseStarted, RecordedSecond,
        RecordedSource, RelationWaits, SweepTotals, WaitRow, WaitSamples,
    },
};
use crate::{
    calibrate::HitCost,
    checkpoints::{CheckpointPhase, CheckpointTracer, FinishedPhase, PhaseUpdate, ProbeSource},
    error::ProbeError,
    extend::{self, ExtensionLock, ExtensionLocks, LostEvents},
    sampling::SampleError,
    sweep::{PerAllocation, SweepSampler},
    waits::{Profile, SamplerOptions, WaitReport, WaitSampler},
};

/// A server and the probes attached to it.
#[derive(Debug)]
pub(super) struct Sources {
    server: RunningServer,
    sampler: WaitSampler,
    profile: Profile,
    /// Process id of the recorder's own session, which is not sampled.
    own_session: Option<u32>,
    sweep: Option<SweepSampler>,
    extension: Option<ExtensionLocks>,
    /// The cost of tracing a lock, to the backend that takes it.
    cost_of_lock: Duration,
    budget: TraceBudget,
    credit: TraceCredit,
    /// When extension locks are traced again.
    pause: Option<TracingPause>,
    /// Whether the user knows that extension locks are traced only part of the time.
    is_pausing_noted: bool,
    checkpoints: Option<CheckpointTracer>,
    /// Time at which to poll again after a poll failed, usually because there was no checkpointer.
    checkpoints_due: Option<Instant>,
    totals: SecondTotals,
    reported: ReportedLosses,
}

/// Why extension locks are not traced at the moment.
#[derive(Clone, Copy, Debug)]
enum TracingPause {
    /// A second exceeded the budget, or attaching failed; until this time.
    Until(Instant),
    /// The server needs too little for other work; until there is credit, or sessions wait.
    ForCredit,
}

/// Extension locks since the start of the second.
#[derive(Debug, Default)]
struct SecondTotals {
    extension: ExtensionTotals,
    relations: HashMap<(u32, u32), RelationWaits>,
}

/// Losses that earlier seconds already include.
#[derive(Clone, Copy, Debug, Default)]
struct ReportedLosses {
    extension: [u64; 3],
    phases: u64,
}

/// The results of polling all probes.
#[derive(Debug, Default)]
pub(super) struct PollOutput {
    /// Checkpoint phases that started or finished.
    pub(super) records: Vec<FlightRecord>,
    /// Messages about the probes.
    pub(super) notes: Vec<String>,
}

impl Sources {
    /// Attaches all probes that are available. Only waits are mandatory.
    pub(super) fn open(
        server: &RunningServer,
        now: Instant,
        hit: Option<HitCost>,
        options: RecorderOptions,
    ) -> Result<(Self, Vec<RecordedSource>), SampleError> {
        let sampler = WaitSampler::open(server, SamplerOptions::default())?;
        let mut metric_sources =
            vec![recorded_source("waits", Some(ProbeSource::Memory), String::new())];
        let sweep = SweepSampler::open(server, now, Duration::MAX);
        metric_sources.push(match &sweep {
            Ok(_) => recorded_source("sweep", Some(ProbeSource::Memory), String::new()),
            Err(error) => recorded_source("sweep", None, error.to_string()),
        });
        // Computed before attaching anything, since breakpoints change the code.
        let cost_of_lock = hit.map_or(Ok(Duration::ZERO), |hit| extend::cost_per_lock(server, hit));
        let extension = ExtensionLocks::attach(server);
        metric_sources.push(match &extension {
            Ok(_) => recorded_source("extend", Some(ProbeSource::Bpf), String::new()),
            Err(error) => {
                let lacks = format!("only samples of Lock:extend: {error}");
                recorded_source("extend", Some(ProbeSource::Memory), lacks)
            }
        });
        let (checkpoints, lacks) = match CheckpointTracer::from_usdt(server) {
            Ok(checkpoints) => (Some(checkpoints), String::new()),
            Err(reason) => match CheckpointTracer::from_stats(server) {
                Ok(checkpoints) => (Some(checkpoints), reason.to_string()),
                Err(error) => (None, error.to_string()),
            },
        };
        let source = checkpoints.as_ref().map(CheckpointTracer::source);
        metric_sources.push(recorded_source("checkpoints", source, lacks));
        let sources = Self {
            server: server.clone(),
            sampler,
            profile: Profile::default(),
            own_session: None,
            sweep: sweep.ok(),
            extension: extension.ok(),
            cost_of_lock: cost_of_lock.unwrap_or_default(),
            budget: TraceBudget::new(options.budget),
            credit: TraceCredit::new(options.server_budget, server.cpu_time().ok()),
            pause: None,
            is_pausing_noted: false,
            checkpoints,
            checkpoints_due: None,
            totals: SecondTotals::default(),
            reported: ReportedLosses::default(),
        };
        Ok((sources, metric_sources))
    }

    pub(super) fn server(&self) -> &RunningServer {
        &self.server
    }

    /// Sets the process id of the recorder's own session, which is not sampled from now on.
    pub(super) fn exclude_session(&mut self, pid: u32) {
        self.own_session = Some(pid);
    }

    /// Polls all probes.
    ///
    /// # Errors
    ///
    /// The server has stopped or reinitialised its memory, or cannot be read.
    pub(super) fn poll(&mut self, now: Instant) -> Result<PollOutput, SampleError> {
        self.profile.add_except(&self.sampler.sample(now)?, self.own_session);
        if let Some(sweep) = &mut self.sweep {
            sweep.poll(now)?;
        }
        let mut output = PollOutput::default();
        self.poll_extension(now, &mut output);
        self.poll_checkpoints(now, &mut output);
        Ok(output)
    }

    /// Returns the observations since the last call. `late` is the number of skipped samples;
    /// `is_examined` during an episode, when costs matter less.
    pub(super) fn take_second(
        &mut self,
        now: Instant,
        late: u64,
        is_examined: bool,
    ) -> RecordedSecond {
        let report = self.profile.take_interval();
        let mut lost = LostCounts {
            missed_samples: late,
            uncounted_samples: report.uncounted,
            ..LostCounts::default()
        };
        let waits = wait_samples(&report, &mut lost);
        if let Some(locks) = &self.extension
            && let Ok(losses) = locks.lost_events()
        {
            let LostEvents { lost: locks, no_start: unpaired, skipped } = losses;
            let all = [locks, unpaired, skipped.values().sum()];
            let reported = std::mem::replace(&mut self.reported.extension, all);
            let new = |which: usize| all[which].saturating_sub(reported[which]);
            (lost.locks, lost.no_start, lost.skipped) = (new(0), new(1), new(2));
        }
        if let Some(Ok(phases)) = self.checkpoints.as_ref().map(CheckpointTracer::lost_events) {
            lost.phases = phases.saturating_sub(self.reported.phases);
            self.reported.phases = phases;
        }
        let SecondTotals { mut extension, relations } = std::mem::take(&mut self.totals);
        let mut relations: Vec<_> = relations.into_values().collect();
        relations.sort_by_key(|of| (std::cmp::Reverse(of.total_us), of.database, of.relation));
        relations.truncate(RELATIONS_MAX);
        extension.relations = relations;
        self.budget.next_second();
        // Tracing starts and pauses between seconds, so that a second is traced as a whole.
        let was_traced = self.extension.is_some() || extension.holds.count() > 0;
        self.pause_or_resume(now, is_examined || has_waits(&waits));
        RecordedSecond {
            extension: was_traced.then_some(extension),
            sweep: self.sweep.as_mut().map(|sweep| sweep_totals(sweep, now)),
            waits,
            lost,
            ..RecordedSecond::default()
        }
    }

    fn poll_extension(&mut self, now: Instant, output: &mut PollOutput) {
        if let Some(TracingPause::Until(due)) = self.pause
            && now >= due
        {
            match self.attach_extension() {
                Ok(()) => output.notes.push("extension locks are traced again".to_owned()),
                Err(error) => {
                    self.pause = Some(TracingPause::Until(now + BUDGET_COOL_DOWN));
                    output.notes.push(format!("extension locks are still not traced: {error}"));
                }
            }
        }
        if matches!(self.pause, Some(TracingPause::ForCredit)) && !self.is_pausing_noted {
            self.is_pausing_noted = true;
            let percent = self.credit.share() * 100.0;
            output.notes.push(format!(
                "extension locks are traced in some seconds only, so that this costs at most \
                 {percent} % of the server's processor time"
            ));
        }
        let Some(locks) = &mut self.extension else { return };
        let (totals, budget, credit) = (&mut self.totals, &mut self.budget, &mut self.credit);
        let cost = self.cost_of_lock;
        locks.drain(|lock| {
            totals.add(&lock);
            budget.spend(cost);
            credit.spend(cost);
        });
        if budget.is_used_up() {
            self.extension = None;
            self.pause = Some(TracingPause::Until(now + BUDGET_COOL_DOWN));
            output.notes.push(format!(
                "extension locks are not traced for {} s: there are too many for the budget",
                BUDGET_COOL_DOWN.as_secs()
            ));
        }
    }

    fn attach_extension(&mut self) -> Result<(), ProbeError> {
        self.extension = Some(ExtensionLocks::attach(&self.server)?);
        self.reported.extension = [0; 3];
        self.pause = None;
        Ok(())
    }

    /// Pauses tracing extension locks if they cost more than their share of the server's time, and
    /// resumes it when they no longer do, or at once when `is_needed`.
    fn pause_or_resume(&mut self, now: Instant, is_needed: bool) {
        let is_pausing = matches!(self.pause, Some(TracingPause::ForCredit));
        if self.extension.is_none() && !is_pausing {
            return;
        }
        self.credit.next_second(self.server.cpu_time().ok());
        if is_pausing && (is_needed || self.credit.is_enough()) {
            if self.attach_extension().is_err() {
                self.pause = Some(TracingPause::Until(now + BUDGET_COOL_DOWN));
            }
        } else if !is_pausing && !is_needed && self.credit.is_used_up() {
            self.extension = None;
            self.pause = Some(TracingPause::ForCredit);
        }
    }

    fn poll_checkpoints(&mut self, now: Instant, output: &mut PollOutput) {
        let Some(checkpoints) = &mut self.checkpoints else { return };
        if self.checkpoints_due.is_some_and(|due| now < due) {
            return;
        }
        let polled = checkpoints.poll(|update| output.records.push(phase_record(&update)));
        // A crash of any server process ends the checkpointer; the next one is found once it is
        // running.
        self.checkpoints_due = polled.is_err().then(|| now + CHECKPOINTER_RETRY_INTERVAL);
    }
}

/// Time without tracing after the budget was exceeded.
const BUDGET_COOL_DOWN: Duration = Duration::from_secs(60);
const CHECKPOINTER_RETRY_INTERVAL: Duration = Duration::from_millis(500);
/// Maximum number of relations recorded per second; the sums include all.
const RELATIONS_MAX: usize = 8;
/// Maximum number of relations counted within a second.
const RELATIONS_COUNTED_MAX: usize = 10_000;
/// Maximum number of rows of wait samples per second.
const ROWS_MAX: usize = 256;

pub(super) fn recorded_source(
    name: &str,
    source: Option<ProbeSource>,
    lacks: String,
) -> RecordedSource {
    RecordedSource { metric: name.to_owned(), source, limitation: lacks }
}

impl SecondTotals {
    fn add(&mut self, lock: &ExtensionLock) {
        self.extension.holds.add(lock.hold);
        if lock.is_conditional {
            self.extension.conditional += 1;
            return;
        }
        self.extension.waits.add(lock.wait);
        let of = (lock.database, lock.relation);
        if self.relations.len() >= RELATIONS_COUNTED_MAX && !self.relations.contains_key(&of) {
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

/// Whether on average at least one session waited for an extension lock.
fn has_waits(waits: &WaitSamples) -> bool {
    let of_extension = waits.rows.iter().filter(|row| row.event == "Lock:extend");
    let samples: u64 = of_extension.map(|row| row.samples).sum();
    waits.rounds > 0 && samples >= u64::from(waits.rounds)
}

fn wait_samples(report: &WaitReport, lost: &mut LostCounts) -> WaitSamples {
    let (reported, dropped) = report.rows.split_at(report.rows.len().min(ROWS_MAX));
    lost.uncounted_samples += dropped.iter().map(|row| row.samples).sum::<u64>();
    let rows = reported.iter().map(|row| WaitRow {
        group: row.group,
        kind: row.kind.name().to_owned(),
        class: row.event.class().name().to_owned(),
        event: row.event.to_string(),
        samples: row.samples,
    });
    WaitSamples { rounds: u32::try_from(report.rounds).unwrap_or(u32::MAX), rows: rows.collect() }
}

fn sweep_totals(sweep: &mut SweepSampler, now: Instant) -> SweepTotals {
    let row = sweep.cut(now);
    let milli = |ratio: f64| (ratio * 1000.0) as u64;
    SweepTotals {
        buffers: row.buffers,
        examined: row.examined,
        allocations: row.allocations,
        slices_milli: row
            .per_allocation
            .map(|PerAllocation { min, max, .. }| (milli(min), milli(max))),
        has_free_buffers: row.has_free_buffers,
    }
}

fn phase_record(update: &PhaseUpdate) -> FlightRecord {
    let depth = |depth: usize| u32::try_from(depth).unwrap_or(u32::MAX);
    match update {
        PhaseUpdate::Started { phase, pid, at, depth: d } => {
            FlightRecord::PhaseStarted(PhaseStarted {
                at_us: wall_us(*at),
                phase: *phase,
                pid: *pid,
                depth: depth(*d),
            })
        }
        PhaseUpdate::Finished(FinishedPhase {
            phase,
            pid,
            started_at,
            duration,
            depth: d,
            counts,
        }) => FlightRecord::PhaseEnded(PhaseEnded {
            at_us: wall_us(*started_at),
            duration_us: micros(*duration),
            phase: *phase,
            pid: *pid,
            depth: depth(*d),
            buffers: counts.buffers_written,
            files: counts.files_synced.filter(|_| *phase == CheckpointPhase::Sync),
        }),
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// Converts a time to microseconds since 1970.
pub(super) fn wall_us(at: SystemTime) -> i64 {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}
