//! One attempt to load an image, from the first scan of the cache to the last.

use std::{collections::BTreeMap, panic::resume_unwind, thread, time::Duration};

use howdah_connect::{Client, ConnectTarget};
use howdah_inspect::{ClockSweep, OsProcess, RunningServer};

use super::{
    LoadError, LoadObserver, LoadOptions,
    backend_cpu::CpuSum,
    catalog::{self, CatalogLookup, LocatedRelation},
    forecast::{self, LoadForecast, SampleContext},
    load_threads::{LoadResult, LoadThreads},
    method::PrewarmMode,
    occupancy::Occupancy,
    plan::{self, CHUNK_PAGES_MAX, LoadChunk, LoadPlan, PlanLimits, touches::UsageDeficit},
    report::{
        LoadReport, RelationOutcome, RelationProblem, Residency, ResidencyError, UsageReport,
    },
    row_lookup,
    session::{self, LoadSession},
    worker,
};
use crate::{
    dump::{BufferSource, ClusterInfo, DumpError, DumpSource, QueryFailure},
    image::{CacheImage, Fork, ForkBlocks, RelationFile},
};

/// One attempt to load an image, which fails if the server restarts.
pub(super) struct Attempt<'a> {
    image: &'a CacheImage,
    target: ConnectTarget,
    options: &'a LoadOptions,
    observer: &'a dyn LoadObserver,
    client: Client,
    buffer_source: BufferSource,
    cluster_info: ClusterInfo,
    started: String,
    /// The server's process, if it runs on this host.
    postmaster: Option<OsProcess>,
}

/// The contents of the cache before and after the pages were loaded, if they could be read.
#[derive(Clone, Copy)]
struct UsageScans<'a> {
    before: Option<&'a Occupancy>,
    after: Option<&'a Occupancy>,
}

/// Maximum CPU time for restoring usage counts, relative to that of the load.
const USAGE_BUDGET: f64 = 0.3;
/// Budget that is always available: a small load costs less than its connections, and then a share
/// of it says nothing about the server.
const USAGE_BUDGET_MIN: Duration = Duration::from_millis(25);

/// The result of an attempt: a report, or the need for another attempt.
pub(super) enum AttemptResult {
    Done(Box<LoadReport>),
    /// The server restarted, so the loaded pages are lost.
    Restarted,
}

impl<'a> Attempt<'a> {
    /// Connects to the server, and queries its properties.
    pub(super) fn new(
        image: &'a CacheImage,
        target: &ConnectTarget,
        options: &'a LoadOptions,
        observer: &'a dyn LoadObserver,
    ) -> Result<Self, LoadError> {
        let mut client = worker::connect_with_retry(target, options.connect_timeout, observer)
            .map_err(LoadError::Server)?;
        let cluster_info = ClusterInfo::query(&mut client).map_err(LoadError::Server)?;
        let started = client.one_value(session::START_TIME).map_err(QueryFailure::from);
        let started = started.map_err(LoadError::Server)?.unwrap_or_default();
        if cluster_info.page_bytes != image.origin.page_bytes {
            return Err(LoadError::PageBytes {
                image: image.origin.page_bytes,
                server: cluster_info.page_bytes,
            });
        }
        let target = target.clone();
        let buffer_source = BufferSource::new(options.dump_source);
        Ok(Self {
            image,
            target,
            options,
            observer,
            client,
            buffer_source,
            cluster_info,
            started,
            postmaster: None,
        })
    }

    pub(super) fn run(mut self) -> Result<AttemptResult, LoadError> {
        let (mut located, mut occupancy) = self.locate_and_scan();
        // Each look-up may read a page of the table and two of the index.
        let rows_max = self.bounds(occupancy.as_ref().ok()).room / 4;
        let rows_max = usize::try_from(rows_max).unwrap_or(usize::MAX);
        if rows_max > 0 && row_lookup::find_rows(self.lookup(), &mut located, rows_max) {
            occupancy = self.scan();
        }
        let mut outcomes: Vec<_> = (0..self.image.relations.len())
            .map(|at| RelationOutcome::for_relation(self.image, at))
            .collect();
        self.mark_rewritten(&located, &mut outcomes);
        let bounds = self.bounds(occupancy.as_ref().ok());
        let LoadPlan { chunks, resident, requested } =
            plan::plan(self.image, &located, occupancy.as_ref().ok(), bounds, &mut outcomes);
        let goals = TargetSets {
            plan: planned_blocks(&located, &chunks, resident),
            image: merge_forks(requested),
        };
        let Some(loaded) = self.load(&located, chunks, outcomes) else {
            return Ok(AttemptResult::Restarted);
        };
        let (before, after) = match occupancy {
            Ok(before) => (Some(before), self.scan()),
            Err(error) => (None, Err(error)),
        };
        let LoadResult { outcomes, is_cut_short, sessions, server_cpu } = loaded;
        let usage = if self.options.restore_usage && !is_cut_short && !self.options.dry_run {
            let counts = UsageScans { before: before.as_ref(), after: after.as_ref().ok() };
            match self.restore_usage(&located, &outcomes, counts, sessions, &server_cpu) {
                Some(usage) => Some(usage),
                None => return Ok(AttemptResult::Restarted),
            }
        } else {
            None
        };
        let residency = after.map(|after| goals.residency(&after));
        Ok(AttemptResult::Done(Box::new(LoadReport {
            outcomes,
            is_cut_short,
            residency: residency.map_err(|error| ResidencyError(Box::new(error))),
            usage,
            limited: 0,
            buffers: self.cluster_info.buffers,
            is_origin_unknown: self.image.origin.system_identifier == 0,
            page_bytes: self.cluster_info.page_bytes,
            elapsed: Duration::ZERO,
        })))
    }

    /// Plans the load without running it.
    pub(super) fn forecast(mut self) -> LoadForecast {
        let (located, occupancy) = self.locate_and_scan();
        let mut outcomes: Vec<_> = (0..self.image.relations.len())
            .map(|at| RelationOutcome::for_relation(self.image, at))
            .collect();
        self.mark_rewritten(&located, &mut outcomes);
        let bounds = self.bounds(occupancy.as_ref().ok());
        let LoadPlan { chunks, .. } =
            plan::plan(self.image, &located, occupancy.as_ref().ok(), bounds, &mut outcomes);
        let context = SampleContext {
            target: &self.target,
            options: self.options,
            page_bytes: self.cluster_info.page_bytes,
            located: &located,
            should_stop: &|| self.observer.should_stop(),
        };
        let estimate = forecast::estimate(&context, &chunks);
        LoadForecast {
            outcomes,
            limited: 0,
            scan_error: occupancy.err().map(|error| ResidencyError(Box::new(error))),
            is_origin_unknown: self.image.origin.system_identifier == 0,
            page_bytes: self.cluster_info.page_bytes,
            estimate,
        }
    }

    /// Locates the relations, and the blocks that correspond to their pages, without a scan of the
    /// cache.
    pub(super) fn locate_blocks(self) -> (Vec<ForkBlocks>, Vec<RelationOutcome>) {
        let Self { image, target, options, observer, cluster_info, .. } = &self;
        let located = CatalogLookup { image, target, cluster_info, options, observer: *observer }
            .locate_all();
        let mut outcomes: Vec<_> =
            (0..image.relations.len()).map(|at| RelationOutcome::for_relation(image, at)).collect();
        self.mark_rewritten(&located, &mut outcomes);
        let bounds = self.bounds(None);
        let LoadPlan { requested, .. } =
            plan::plan(self.image, &located, None, bounds, &mut outcomes);
        let mut found: Vec<_> = requested
            .into_iter()
            .map(|(file, fork, blocks)| ForkBlocks { file, fork, blocks })
            .collect();
        for fork in &mut found {
            fork.blocks.sort_unstable();
        }
        (found, outcomes)
    }

    /// Locates the relations, over separate connections, and scans the cache at the same time.
    fn locate_and_scan(
        &mut self,
    ) -> (Vec<Result<LocatedRelation, RelationProblem>>, Result<Occupancy, DumpError>) {
        let Self { image, target, options, observer, client, buffer_source, cluster_info, .. } =
            self;
        let (image, target, cluster_info) = (*image, &*target, &*cluster_info);
        let (options, observer) = (*options, *observer);
        thread::scope(|scope| {
            let located = scope.spawn(|| {
                CatalogLookup { image, target, cluster_info, options, observer }.locate_all()
            });
            let occupancy = Occupancy::scan(client, cluster_info, buffer_source, target.database());
            (located.join().unwrap_or_else(|panic| resume_unwind(panic)), occupancy)
        })
    }

    fn lookup(&self) -> CatalogLookup<'_> {
        let Self { image, target, options, observer, cluster_info, .. } = self;
        CatalogLookup { image, target, cluster_info, options, observer: *observer }
    }

    fn scan(&mut self) -> Result<Occupancy, DumpError> {
        let database = self.target.database();
        Occupancy::scan(&mut self.client, &self.cluster_info, &mut self.buffer_source, database)
    }

    fn mark_rewritten(
        &self,
        located: &[Result<LocatedRelation, RelationProblem>],
        outcomes: &mut [RelationOutcome],
    ) {
        for ((relation, place), outcome) in self.image.relations.iter().zip(located).zip(outcomes) {
            if let Ok(found) = place {
                outcome.is_rewritten = catalog::is_rewritten(self.lookup(), relation, found);
                outcome.renamed = found.renamed.clone();
            }
        }
    }

    /// Returns the limits of the plan: room for as many pages as there are free buffers, minus a
    /// reserve for the catalogs of sessions, including ours. If pages may be evicted or free
    /// buffers cannot be counted, there is room in all buffers. A dry run needs no room.
    fn bounds(&self, occupancy: Option<&Occupancy>) -> PlanLimits {
        let all = u64::from(self.cluster_info.buffers);
        let room = match occupancy {
            _ if self.options.dry_run => u64::MAX,
            Some(occupancy) if !self.options.evict => {
                occupancy.free.saturating_sub((all / 64).clamp(64, 1024))
            }
            _ => all,
        };
        let chunk = match (self.options.bytes_per_second, self.options.max_latency) {
            // The bytes of a tenth of a second, for an even rate.
            (Some(rate), _) => rate / u64::from(self.cluster_info.page_bytes) / 10,
            (None, Some(_)) => u64::from(CHUNK_PAGES_MAX / 16),
            (None, None) => u64::from(CHUNK_PAGES_MAX),
        };
        PlanLimits {
            room,
            chunk: u32::try_from(chunk).unwrap_or(CHUNK_PAGES_MAX).clamp(1, CHUNK_PAGES_MAX),
        }
    }

    /// Restores usage counts, at a cost of at most [`USAGE_BUDGET`] of the load's CPU time, or
    /// [`USAGE_BUDGET_MIN`] if that is more. Returns
    /// `None` if the server restarted meanwhile.
    fn restore_usage(
        &mut self,
        located: &[Result<LocatedRelation, RelationProblem>],
        outcomes: &[RelationOutcome],
        UsageScans { before, after }: UsageScans<'_>,
        sessions: Vec<Option<LoadSession>>,
        server_cpu: &CpuSum,
    ) -> Option<UsageReport> {
        let is_resident_omitted = !self.options.raise_resident;
        let resident = before.filter(|_| is_resident_omitted);
        let deficit = UsageDeficit::new(self.image, located, outcomes, after, resident);
        // Pages that were in the cache already count as if they had been loaded, at the least cost.
        let resident: u64 = if is_resident_omitted {
            0
        } else {
            outcomes.iter().map(|outcome| outcome.pages.resident).sum()
        };
        let resident = u32::try_from(resident).unwrap_or(u32::MAX);
        let load_cpu = server_cpu.time();
        let budget =
            (load_cpu + worker::PAGE_CPU_MIN.saturating_mul(resident)).mul_f64(USAGE_BUDGET);
        let budget = budget.max(USAGE_BUDGET_MIN);
        let pages = deficit.pages;
        let threads = self.threads(located, &|| true);
        let touched = threads.touch(deficit, budget, sessions)?;
        Some(UsageReport {
            pages,
            restored: touched.restored,
            touches: touched.touches,
            cpu: touched.cpu,
            load_cpu,
            is_cpu_measured: touched.is_cpu_measured && server_cpu.is_measured(),
            elapsed: touched.elapsed,
        })
    }

    fn threads<'b>(
        &'b self,
        located: &'b [Result<LocatedRelation, RelationProblem>],
        has_room: &'b (dyn Fn() -> bool + Sync),
    ) -> LoadThreads<'b> {
        LoadThreads {
            target: &self.target,
            options: self.options,
            observer: self.observer,
            mode: PrewarmMode::Buffer,
            started: &self.started,
            page_bytes: self.cluster_info.page_bytes,
            postmaster: self.postmaster,
            located,
            has_room,
        }
    }

    /// Loads the chunks. Returns `None` if the server restarted during the load.
    fn load(
        &mut self,
        located: &[Result<LocatedRelation, RelationProblem>],
        chunks: Vec<LoadChunk>,
        outcomes: Vec<RelationOutcome>,
    ) -> Option<LoadResult> {
        let sweep = self.clock_sweep();
        // If reading fails, the server is stopping, which the connections notice.
        let has_room = || {
            let state = sweep.as_ref().and_then(|sweep| sweep.read().ok());
            state.is_none_or(|state| state.has_free_buffers)
        };
        if self.options.dump_source != DumpSource::PgBuffercache {
            let server = self.buffer_source.server(&mut self.client);
            self.postmaster = server.ok().map(RunningServer::postmaster);
        }
        self.threads(located, &has_room).load(chunks, outcomes)
    }

    /// Locates the clock sweep, which shows at any moment whether a buffer is free. The first scan
    /// cannot show this, because other sessions allocate buffers meanwhile. `None` if pages may
    /// be evicted, or if memory is not to be read or cannot be read; the load then relies on the
    /// scan's count.
    fn clock_sweep(&mut self) -> Option<ClockSweep> {
        if self.options.evict || self.options.dump_source == DumpSource::PgBuffercache {
            return None;
        }
        self.buffer_source.server(&mut self.client).ok()?.clock_sweep().ok()
    }
}

/// The blocks that should be in the cache after the load.
struct TargetSets {
    /// The blocks of the plan: requested, and with room for them.
    plan: TargetBlocks,
    /// The blocks of the image, including those without room.
    image: TargetBlocks,
}

impl TargetSets {
    fn residency(&self, occupancy: &Occupancy) -> Residency {
        let planned = self.plan.values().map(|blocks| blocks.len() as u64).sum();
        let (resident, of_image) =
            (count_resident(&self.plan, occupancy), count_resident(&self.image, occupancy));
        Residency { planned, resident, of_image, source: occupancy.source }
    }
}

type TargetBlocks = BTreeMap<(RelationFile, Fork), Vec<u32>>;

/// Returns the blocks that should be resident once the plan is loaded.
fn planned_blocks(
    located: &[Result<LocatedRelation, RelationProblem>],
    chunks: &[LoadChunk],
    resident: Vec<(RelationFile, Fork, Vec<u32>)>,
) -> TargetBlocks {
    let mut goal = merge_forks(resident);
    for chunk in chunks {
        if let Ok(found) = &located[chunk.relation] {
            let blocks = chunk.runs.iter().flat_map(|run| run.first..=run.last);
            goal.entry((found.file, chunk.fork)).or_default().extend(blocks);
        }
    }
    // Runs continue over pages that are resident already.
    sort_blocks(&mut goal);
    goal
}

fn merge_forks(forks: Vec<(RelationFile, Fork, Vec<u32>)>) -> TargetBlocks {
    let mut goal = TargetBlocks::new();
    for (file, fork, blocks) in forks {
        goal.entry((file, fork)).or_default().extend(blocks);
    }
    sort_blocks(&mut goal);
    goal
}

fn sort_blocks(goal: &mut TargetBlocks) {
    for blocks in goal.values_mut() {
        blocks.sort_unstable();
        blocks.dedup();
    }
}

/// Counts the blocks of `goal` that are in the cache.
fn count_resident(goal: &TargetBlocks, occupancy: &Occupancy) -> u64 {
    let of_fork = |(&(file, fork), blocks): (&(RelationFile, Fork), &Vec<u32>)| {
        let held = occupancy.blocks(file, fork);
        blocks.iter().filter(|block| held.binary_search(block).is_ok()).count() as u64
    };
    goal.iter().map(of_fork).sum()
}
