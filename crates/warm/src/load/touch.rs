//! Restores usage counts after a load: touches pages that are in the cache, within a budget of CPU
//! time.
//!
//! A page that was just loaded has the usage count 1, however hot it was, so the first scan of cold
//! tables would evict hot and cold pages alike. A touch finds the page in the cache and adds one;
//! it reads nothing from a disk, unless the page was evicted meanwhile.
//!
//! The cost of a touch is measured on a few hundred pages, and then determines which classes are
//! restored how far. In addition, touching stops when the budget is used up: the rounds are ordered
//! such that hotter pages are ahead at any moment.

use std::{
    collections::VecDeque,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use super::{
    backend_cpu::CpuSum,
    load_threads::DatabaseNumbers,
    plan::touches::{TouchChunk, TouchCosts, TouchMethod, UsageDeficit},
    session::{ChunkResult, LoadSession},
    worker::{self, LoadContext},
};

/// The touches after one load.
pub(super) struct TouchRun<'a> {
    shared: &'a LoadContext<'a>,
    databases: &'a DatabaseNumbers,
    budget: Duration,
    cpu: CpuSum,
    touches: AtomicU64,
    restored: AtomicU64,
    /// Whether a session could not be made, so that nothing more is touched.
    is_given_up: AtomicBool,
}

/// The result of touching pages.
#[derive(Debug)]
pub(super) struct TouchResult {
    pub(super) touches: u64,
    /// Number of pages that have the count of the image, including those that had it before.
    pub(super) restored: u64,
    pub(super) cpu: Duration,
    pub(super) is_cpu_measured: bool,
    pub(super) elapsed: Duration,
}

/// Touches with the number of their database.
type TouchQueue = VecDeque<(usize, TouchChunk)>;

/// Part of the budget for which touches are planned: the measured cost may be exceeded.
const PLANNED_SHARE: f64 = 0.9;
/// Bounds of a measured cost, relative to the estimate. A remote server's time includes the round
/// trip.
const COST_FACTORS: std::ops::RangeInclusive<f64> = 0.2..=20.0;

impl<'a> TouchRun<'a> {
    pub(super) fn new(
        shared: &'a LoadContext<'a>,
        databases: &'a DatabaseNumbers,
        budget: Duration,
    ) -> Self {
        Self {
            shared,
            databases,
            budget,
            cpu: CpuSum::default(),
            touches: AtomicU64::new(0),
            restored: AtomicU64::new(0),
            is_given_up: AtomicBool::new(false),
        }
    }

    /// Measures the cost of touches, and returns those that the budget covers, in order. Also
    /// returns the number of pages that need none.
    pub(super) fn plan(
        &self,
        mut deficit: UsageDeficit,
        session: &mut Option<LoadSession>,
    ) -> (TouchQueue, u64) {
        let mut sample = |method| {
            if self.should_stop() {
                return None;
            }
            let sample = deficit.take_sample(method)?;
            let database = self.databases.number(sample.chunk.relation)?;
            let cost = self.touch(session, database, &sample)?;
            let factor = cost.as_nanos() as f64 / sample.estimated_ns() as f64;
            Some(factor.clamp(*COST_FACTORS.start(), *COST_FACTORS.end()))
        };
        // The first statement of a kind also fills the session's catalog caches, so the lesser
        // figure counts.
        let mut measure = |method| {
            let first: f64 = sample(method)?;
            Some(sample(method).map_or(first, |second| second.min(first)))
        };
        let ranges = measure(TouchMethod::Ranges);
        let pointers = measure(TouchMethod::RowPointers);
        let costs = TouchCosts {
            ranges: ranges.or(pointers).unwrap_or(1.0),
            pointers: pointers.or(ranges).unwrap_or(1.0),
        };
        let left = self.budget.saturating_sub(self.cpu.time()).mul_f64(PLANNED_SHARE);
        let caps = deficit.affordable(costs, u64::try_from(left.as_nanos()).unwrap_or(u64::MAX));
        let is_gentle = self.shared.options.max_latency.is_some();
        let chunks = deficit.chunks(caps, is_gentle).into_iter();
        let numbered =
            chunks.filter_map(|touch| Some((self.databases.number(touch.chunk.relation)?, touch)));
        (numbered.collect(), deficit.count_restored())
    }

    /// Touches pages until none is left, the budget is used up, or the load stops.
    pub(super) fn touch_all(&self, queue: &Mutex<TouchQueue>, mut session: Option<LoadSession>) {
        while !self.should_stop() && self.cpu.time() < self.budget {
            let here = session.as_ref().map(|session| session.database);
            let Some((database, touch)) = pop(&mut worker::lock(queue), here) else { break };
            let start = Instant::now();
            let throttle = &self.shared.throttle;
            // Nothing is read, so there are no bytes to wait for, but replies may be late.
            throttle.admit(0, || self.shared.should_stop());
            if self.touch(&mut session, database, &touch).is_some() {
                self.restored.fetch_add(touch.restores, Ordering::Relaxed);
            }
            throttle.pause_after(start.elapsed(), || self.shared.should_stop());
        }
    }

    /// Touches the pages of a chunk once, and returns the cost; `None` if that failed. Failures are
    /// not retried: the pages are in the cache all the same.
    fn touch(
        &self,
        session: &mut Option<LoadSession>,
        database: usize,
        touch: &TouchChunk,
    ) -> Option<Duration> {
        let Ok(found) = &self.shared.located[touch.chunk.relation] else { return None };
        let ready = match worker::ensure_session(self.shared, session, database) {
            Ok(ready) => ready,
            Err(failure) => {
                // Each further attempt would wait for the server as long as this one.
                self.is_given_up.store(true, Ordering::Relaxed);
                self.check_crash(&failure);
                return None;
            }
        };
        // Also counts what a new session has cost.
        self.cpu.add(Some(ready.lap_cpu().unwrap_or_default()), || Duration::ZERO);
        let start = Instant::now();
        let result = ready.touch(found, touch);
        let (measured, took) = (ready.lap_cpu(), start.elapsed());
        self.cpu.add(measured, || took);
        match result {
            ChunkResult::Loaded(_) => {
                self.touches.fetch_add(touch.touches(), Ordering::Relaxed);
                Some(measured.unwrap_or(took))
            }
            ChunkResult::ConnectionLost(failure) => {
                *session = None;
                self.check_crash(&failure);
                None
            }
            _ => None,
        }
    }

    fn should_stop(&self) -> bool {
        self.is_given_up.load(Ordering::Relaxed) || self.shared.should_stop()
    }

    fn check_crash(&self, failure: &crate::dump::QueryFailure) {
        if worker::is_crash(failure) {
            self.shared.is_restarted.store(true, Ordering::Relaxed);
        }
    }

    pub(super) fn result(self, met: u64, elapsed: Duration) -> TouchResult {
        TouchResult {
            touches: self.touches.into_inner(),
            restored: met + self.restored.into_inner(),
            cpu: self.cpu.time(),
            is_cpu_measured: self.cpu.is_measured(),
            elapsed,
        }
    }
}

/// Removes and returns the next chunk of the first round, of the session's database `here` if there
/// is one.
fn pop(queue: &mut TouchQueue, here: Option<usize>) -> Option<(usize, TouchChunk)> {
    let round = queue.front()?.1.chunk.class;
    let of_round = queue.iter().take_while(|(_, touch)| touch.chunk.class == round);
    let found = of_round.map(|&(database, _)| Some(database)).position(|of| of == here);
    queue.remove(found.unwrap_or(0))
}
