//! Warms the cache while the client reads, or observes autoprewarm, and measures the cost.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use howdah_connect::{Client, ConnectTarget};
use howdah_inspect::OsProcess;

use crate::{
    CacheImage,
    benchmark::{
        error::{BenchmarkError, StepContext as _},
        resource_usage::{self, ResourceUsage},
        results::WarmingCost,
    },
    load::{self, LoadObserver, LoadOptions},
};

/// Data of a run for the thread that warms the cache or observes autoprewarm.
pub(crate) struct WarmingContext<'a> {
    pub(crate) target: &'a ConnectTarget,
    pub(crate) image: &'a CacheImage,
    pub(crate) options: &'a LoadOptions,
    pub(crate) postmaster: Option<OsProcess>,
    /// The client's backend, whose usage is not part of the cost of warming.
    pub(crate) client_backend: Option<i32>,
    pub(crate) client_thread: rustix::thread::Pid,
    pub(crate) began: Instant,
    pub(crate) is_finished: AtomicBool,
}

/// The resource usage of the server and of our own threads at a moment.
struct UsageReading {
    server: Option<ResourceUsage>,
    own: Duration,
}

impl WarmingContext<'_> {
    /// Loads the image by Howdah.
    pub(crate) fn load_image(&self) -> Result<WarmingCost, BenchmarkError> {
        let before = self.usage(None);
        let progress =
            TenthObserver { context: self, planned: 0.into(), done: 0.into(), tenth: 0.into() };
        let report = load::load(self.image, self.target, self.options, &progress)?;
        let wall = self.began.elapsed();
        let tenth = progress.tenth.load(Ordering::Relaxed);
        let share = report.residency.is_ok().then(|| report.share());
        let tenth_at = (tenth > 0).then(|| Duration::from_micros(tenth));
        Ok(self.cost_since(&before, None, wall, !report.is_cut_short, share, tenth_at))
    }

    /// Waits until autoprewarm's workers have exited, or the measurement ends. Its leader, which
    /// stays, starts one worker per database, one after another.
    pub(crate) fn wait_for_autoprewarm(&self) -> Result<WarmingCost, BenchmarkError> {
        const POLL_INTERVAL: Duration = Duration::from_millis(50);
        /// Number of polls without a worker after which autoprewarm is considered finished.
        const IDLE_POLLS: u32 = 4;
        /// Maximum wait for the first worker. A small file may be loaded before the first poll.
        const WORKER_START_TIMEOUT: Duration = Duration::from_secs(2);
        let sql = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'autoprewarm worker'";
        let mut client = Client::connect(self.target)?;
        let own_backend = client.process_id();
        let before = self.usage(own_backend);
        let (mut idle_polls, mut was_seen, mut wall) = (0, false, Duration::ZERO);
        while !self.is_finished.load(Ordering::Relaxed) {
            let workers = client.one_value(sql).step("query autoprewarm's workers")?;
            if workers.is_some_and(|workers| workers != "0") {
                (idle_polls, was_seen) = (0, true);
            } else {
                if idle_polls == 0 {
                    wall = self.began.elapsed();
                }
                idle_polls += 1;
            }
            if idle_polls >= IDLE_POLLS && (was_seen || self.began.elapsed() > WORKER_START_TIMEOUT)
            {
                return Ok(self.cost_since(&before, own_backend, wall, true, None, None));
            }
            thread::sleep(POLL_INTERVAL);
        }
        Ok(self.cost_since(&before, own_backend, self.began.elapsed(), false, None, None))
    }

    /// Returns the usage so far, excluding the client's backend and the backend `excluded`.
    fn usage(&self, excluded: Option<i32>) -> UsageReading {
        let server = self.postmaster.and_then(|postmaster| {
            let all = resource_usage::server_usage(postmaster).ok()?;
            Some(
                all.since(resource_usage::process_usage(self.client_backend))
                    .since(resource_usage::process_usage(excluded)),
            )
        });
        let own = resource_usage::own_cpu()
            .saturating_sub(resource_usage::thread_cpu(self.client_thread));
        UsageReading { server, own }
    }

    fn cost_since(
        &self,
        before: &UsageReading,
        excluded: Option<i32>,
        wall: Duration,
        is_done: bool,
        resident_share: Option<f64>,
        tenth_at: Option<Duration>,
    ) -> WarmingCost {
        let after = self.usage(excluded);
        let server = after.server.zip(before.server).map(|(after, before)| after.since(before));
        WarmingCost {
            wall,
            is_done,
            server_cpu: server.map(|used| used.cpu),
            own_cpu: after.own.saturating_sub(before.own),
            read_bytes: server.map(|used| used.read_bytes),
            resident_share,
            tenth_at,
        }
    }
}

/// Records when a tenth of the planned pages was loaded or skipped, and stops the load when the
/// measurement ends.
struct TenthObserver<'a> {
    context: &'a WarmingContext<'a>,
    planned: AtomicU64,
    done: AtomicU64,
    /// Time when a tenth was reached, in microseconds since the start; 0 until then.
    tenth: AtomicU64,
}

impl LoadObserver for TenthObserver<'_> {
    fn planned(&self, pages: u64) {
        self.planned.store(pages, Ordering::Relaxed);
    }

    fn progressed(&self, pages: u64) {
        let done = self.done.fetch_add(pages, Ordering::Relaxed) + pages;
        if done * 10 >= self.planned.load(Ordering::Relaxed) {
            let now = u64::try_from(self.context.began.elapsed().as_micros()).unwrap_or(u64::MAX);
            let _ = self.tenth.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    fn should_stop(&self) -> bool {
        self.context.is_finished.load(Ordering::Relaxed)
    }
}
