//! The benchmark: measures one method of warming after another, each from the same cold start.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use crate::{
    CacheImage,
    dump::{self, DumpSource},
    load::{self, LoadObserver, LoadOptions},
};
use howdah_connect::{Client, ConnectTarget};
use howdah_inspect::OsProcess;

use crate::benchmark::{
    data,
    error::{BenchmarkError, StepContext as _},
    read_client::{ReadClient, ReadMeasurement, ThroughputStep},
    resource_usage::{self, ResourceUsage},
    row_sequence::RowSequence,
    server::{BenchmarkServer, ServerUnderTest},
    summary::{ThroughputSummary, steady_rate},
};

/// The settings of a benchmark.
#[derive(Clone, Debug)]
pub struct Benchmark {
    /// The server to measure.
    pub server: BenchmarkServer,
    /// Size of the table in units of 100 000 rows, which are about 15 MiB with the index; at least
    /// 1.
    pub scale: u32,
    /// Time for which the client reads after each restart.
    pub duration: Duration,
    /// Length of one step, the unit of time for which throughput is reported.
    pub step: Duration,
    /// Exponent of Zipf's law for the rows that are read; `None` is a uniform distribution.
    pub skew: Option<f64>,
    /// The part of the operating system's cache to drop at each restart.
    pub drop_caches: DropCaches,
    /// Options for the load by Howdah.
    pub load: LoadOptions,
    /// When set, the benchmark ends after the current read or stage.
    pub stop: Arc<AtomicBool>,
}

/// The part of the operating system's cache that is made cold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DropCaches {
    /// Drop the server's data files from the cache, if they are on this host and readable. Files of
    /// other programs stay cached.
    #[default]
    Files,
    /// Drop the whole cache, for all processes on the host. Needs root.
    System,
    /// Drop nothing: only the server's own cache is cold.
    Nothing,
}

/// A method of warming the cache after a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WarmMethod {
    /// Only the client's reads fill the cache.
    NoWarming,
    /// Contrib's autoprewarm loads its file after the restart.
    Autoprewarm,
    /// Howdah loads an image after the restart.
    Howdah,
}

/// The results of a benchmark: throughput with and without warming, and the settings of the
/// measurement.
#[derive(Clone, Debug)]
pub struct BenchmarkResults {
    /// The setting `server_version`.
    pub server: String,
    /// Copied from [`Benchmark`].
    pub scale: u32,
    /// Copied from [`Benchmark`].
    pub step: Duration,
    /// Copied from [`Benchmark`].
    pub duration: Duration,
    /// Copied from [`Benchmark`].
    pub skew: Option<f64>,
    /// Number of pages in the warm cache, and bytes per page.
    pub pages: (u64, u32),
    /// Reads per second with a warm cache: the median of the rate before the restarts and of those
    /// in the second halves of the runs whose warming finished, so that a host that became slower
    /// does not look like a cold cache.
    pub steady: f64,
    /// 99th percentile of the latency before the restarts, in microseconds.
    pub steady_p99_us: u64,
    /// One run per method that was not skipped, in the order of measurement.
    pub runs: Vec<BenchmarkRun>,
    /// Reasons for skipped methods, and what was done to the operating system's cache.
    pub notes: Vec<String>,
}

/// The measurements of one method: throughput, latency and cost.
#[derive(Clone, Debug)]
pub struct BenchmarkRun {
    /// The method by which the cache was warmed.
    pub method: WarmMethod,
    /// The client's throughput in each step; the first step begins once the client is connected.
    pub steps: Vec<ThroughputStep>,
    /// When throughput recovered in `steps`, and the reads lost by then.
    pub summary: ThroughputSummary,
    /// 99th percentile of the latency over the whole run, in microseconds.
    pub p99_us: u64,
    /// Maximum latency, in microseconds.
    pub max_us: u64,
    /// The cost of warming; `None` without warming.
    pub warming: Option<WarmingCost>,
}

/// Time and resources that were used for warming.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WarmingCost {
    /// Time from the start of the measurement until warming finished or was stopped.
    pub wall: Duration,
    /// Whether warming finished during the measurement.
    pub is_done: bool,
    /// CPU time of the server's processes, without the backends of the client and of the session
    /// that observes autoprewarm; `None` if the processes are not accessible.
    pub server_cpu: Option<Duration>,
    /// CPU time of the benchmark's own threads except the client's.
    pub own_cpu: Duration,
    /// Bytes read from disk by the same processes as in `server_cpu`. Processes whose
    /// `/proc/PID/io` cannot be read count as 0.
    pub read_bytes: Option<u64>,
    /// Share of the image that is resident at the end, 0 to 1, if it was measured.
    pub resident_share: Option<f64>,
    /// Time from the start of the measurement until a tenth of the planned pages was loaded or
    /// skipped; `None` for autoprewarm, or if that was not reached.
    pub tenth_at: Option<Duration>,
}

impl WarmMethod {
    /// All methods, in the order of measurement.
    pub const ALL: [Self; 3] = [Self::NoWarming, Self::Autoprewarm, Self::Howdah];

    /// Returns the method's name in output and files.
    pub fn name(self) -> &'static str {
        match self {
            Self::NoWarming => "no warming",
            Self::Autoprewarm => "autoprewarm",
            Self::Howdah => "howdah",
        }
    }
}

impl BenchmarkResults {
    /// Returns the number of rows in the table that the client read.
    pub fn row_count(&self) -> u64 {
        u64::from(self.scale) * data::ROWS_PER_SCALE
    }
}

impl BenchmarkRun {
    /// Returns the rate in the first whole step after `tenth_at`, as a share of `steady`; `None` if
    /// that time is unknown or the steps end before.
    pub fn share_after_a_tenth(&self, steady: f64, step: Duration) -> Option<f64> {
        let at = self.warming?.tenth_at?;
        let step_seconds = step.as_secs_f64();
        let after = self.steps.get((at.as_secs_f64() / step_seconds) as usize + 1)?;
        Some(after.transactions as f64 / step_seconds / steady)
    }
}

/// Seed of the rows that the client reads, the same for every method.
const SEED: u64 = 20_250_101;
/// Seed of the steady phase. It differs from [`SEED`], so that the runs do not read the same
/// sequence of rows as this phase.
const STEADY_SEED: u64 = 4;

impl Benchmark {
    /// Runs the benchmark. `report` receives a line at each stage.
    ///
    /// # Errors
    ///
    /// See [`BenchmarkError`]. Even then, if an existing server is reachable, the benchmark's
    /// schema is dropped and the previous setting of autoprewarm is restored.
    pub fn run(&self, mut report: impl FnMut(&str)) -> Result<BenchmarkResults, BenchmarkError> {
        report("starting");
        let mut server = ServerUnderTest::start(&self.server, self.scale)?;
        let results = self.measure(&mut server, &mut report);
        let restored = server.restore();
        // Report the benchmark's error first: a failure to restore the server may only be its
        // consequence.
        let results = results?;
        restored?;
        Ok(results)
    }

    fn measure(
        &self,
        server: &mut ServerUnderTest,
        report: &mut dyn FnMut(&str),
    ) -> Result<BenchmarkResults, BenchmarkError> {
        let target = server.target().clone();
        let mut client = Client::connect(&target)?;
        let version = client.parameter("server_version").unwrap_or("unknown").to_owned();
        let rows = u64::from(self.scale) * data::ROWS_PER_SCALE;
        report(&format!("PostgreSQL {version}: creating a table of {rows} rows"));
        data::create(&mut client, self.scale)?;
        self.check_interrupted()?;
        data::warm(&mut client)?;
        let time = (self.duration / 3).max(self.step * 6);
        report(&format!("measuring the warm cache for {:.0} s", time.as_secs_f64()));
        let steady = self.connect(&target, STEADY_SEED)?.run(self.step, time, &self.stop)?;
        let mut notes = Vec::new();
        let skip_reason = server.prepare_autoprewarm(&mut client)?;
        let image = dump::dump(&target, DumpSource::Best)?.image;
        drop(client);
        if let Some(reason) = &skip_reason {
            notes.push(format!("autoprewarm is skipped: {reason}"));
        }
        let mut runs = Vec::new();
        let mut rates = vec![steady_rate(&steady.steps, self.step)];
        for method in WarmMethod::ALL {
            if method == WarmMethod::Autoprewarm && skip_reason.is_some() {
                continue;
            }
            self.check_interrupted()?;
            report(&format!(
                "{}: restarting, then {:.0} s",
                method.name(),
                self.duration.as_secs_f64()
            ));
            let autoprewarm = skip_reason.is_none().then_some(method == WarmMethod::Autoprewarm);
            let note = server.restart(self.drop_caches, autoprewarm)?;
            if runs.is_empty() {
                notes.push(format!("before each restart: {note}"));
            }
            let run = self.run_method(method, server, &image)?;
            if run.warming.is_some_and(|warming| warming.is_done) {
                rates.push(steady_rate(&run.steps, self.step));
            }
            runs.push(run);
        }
        let rate = median(rates);
        for run in &mut runs {
            run.summary = ThroughputSummary::from_steps(&run.steps, self.step, rate);
        }
        Ok(BenchmarkResults {
            server: version,
            scale: self.scale,
            step: self.step,
            duration: self.duration,
            skew: self.skew,
            pages: (image.page_count(), image.origin.page_bytes),
            steady: rate,
            steady_p99_us: steady.latencies.at_us(0.99).unwrap_or(0),
            runs,
            notes,
        })
    }

    fn connect(&self, target: &ConnectTarget, seed: u64) -> Result<ReadClient, BenchmarkError> {
        let rows = u64::from(self.scale) * data::ROWS_PER_SCALE;
        ReadClient::connect(target, RowSequence::new(rows, self.skew, seed))
    }

    fn check_interrupted(&self) -> Result<(), BenchmarkError> {
        if self.stop.load(Ordering::Relaxed) { Err(BenchmarkError::Interrupted) } else { Ok(()) }
    }

    /// Measures one method right after the restart. While the client reads, another thread loads
    /// the image or observes autoprewarm, if that is the method.
    fn run_method(
        &self,
        method: WarmMethod,
        server: &ServerUnderTest,
        image: &CacheImage,
    ) -> Result<BenchmarkRun, BenchmarkError> {
        let (target, postmaster) = (server.target(), server.postmaster());
        let mut client = self.connect(target, SEED)?;
        let context = WarmingContext {
            target,
            image,
            options: &self.load,
            postmaster,
            client_backend: client.process_id(),
            client_thread: rustix::thread::gettid(),
            began: Instant::now(),
            is_finished: AtomicBool::new(false),
        };
        let (measured, warming) = thread::scope(|scope| {
            // Without warming, the sender is dropped and `recv` returns immediately.
            let (sender, receiver) = mpsc::channel();
            let context = &context;
            if method == WarmMethod::NoWarming {
                drop(sender);
            } else {
                scope.spawn(move || {
                    let cost = match method {
                        WarmMethod::Howdah => context.load_image(),
                        _ => context.wait_for_autoprewarm(),
                    };
                    // Sending fails only if the receiver is gone.
                    let _ = sender.send(cost);
                });
            }
            let measured = client.run(self.step, self.duration, &self.stop);
            context.is_finished.store(true, Ordering::Relaxed);
            (measured, receiver.recv().ok())
        });
        let ReadMeasurement { steps, latencies } = measured?;
        let warming = warming.transpose()?;
        Ok(BenchmarkRun {
            method,
            summary: ThroughputSummary::default(),
            steps,
            p99_us: latencies.at_us(0.99).unwrap_or(0),
            max_us: latencies.at_us(1.0).unwrap_or(0),
            warming,
        })
    }
}

/// Returns the median; with an even number of rates, the smaller one in the middle.
fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates.get(rates.len().saturating_sub(1) / 2).copied().unwrap_or(0.0)
}

/// Data of a run for the thread that warms the cache or observes autoprewarm.
struct WarmingContext<'a> {
    target: &'a ConnectTarget,
    image: &'a CacheImage,
    options: &'a LoadOptions,
    postmaster: Option<OsProcess>,
    /// The client's backend, whose usage is not part of the cost of warming.
    client_backend: Option<i32>,
    client_thread: rustix::thread::Pid,
    began: Instant,
    is_finished: AtomicBool,
}

/// The resource usage of the server and of our own threads at a moment.
struct UsageReading {
    server: Option<ResourceUsage>,
    own: Duration,
}

impl WarmingContext<'_> {
    fn load_image(&self) -> Result<WarmingCost, BenchmarkError> {
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
    fn wait_for_autoprewarm(&self) -> Result<WarmingCost, BenchmarkError> {
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
