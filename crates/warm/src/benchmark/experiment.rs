//! The benchmark: measures one method of warming after another, each from the same cold start, and
//! repeats that in several runs.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use crate::{
    CacheImage,
    dump::{self, DumpSource},
    load::LoadOptions,
};
use howdah_connect::{Client, ConnectTarget};
use howdah_inspect::OsProcess;

use crate::benchmark::{
    data,
    error::BenchmarkError,
    host::{self, HostInfo, HostTime},
    interference::Interference,
    method_order::method_order,
    read_client::{ReadClient, ReadMeasurement},
    resource_usage,
    results::{BenchmarkResults, BenchmarkRun, MethodMeasurement, WarmMethod},
    row_sequence::RowSequence,
    server::{BenchmarkServer, ServerUnderTest},
    summary::{ThroughputSummary, steady_rate},
    warming::WarmingContext,
};

/// The settings of a benchmark.
#[derive(Clone, Debug)]
pub struct Benchmark {
    /// The server to measure.
    pub server: BenchmarkServer,
    /// Number of runs, each of which measures every method once; at least 1. A verdict needs
    /// [`MIN_RUNS`](super::MIN_RUNS).
    pub runs: u32,
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
    /// When set, the benchmark ends after the current read or stage, without results.
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

/// Seed of the rows that the client reads, the same for every measurement.
const SEED: u64 = 20_250_101;
/// Seed of the steady phase. It differs from [`SEED`], so that the measurements do not read the
/// same sequence of rows as this phase.
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
        let mut reader = self.connect(&target, STEADY_SEED)?;
        let backend = local_backend(server.postmaster(), reader.process_id());
        let steady = reader.run(self.step, time, backend, &self.stop)?;
        drop(reader);
        let mut notes = Vec::new();
        notes.push(if steady.is_bound {
            "the client and its session were bound to two processors".to_owned()
        } else {
            "the client and its session could not be bound to two processors, which makes steady \
             rates vary more"
                .to_owned()
        });
        let skip_reason = server.prepare_autoprewarm(&mut client)?;
        let image = dump::dump(&target, DumpSource::Best)?.image;
        drop(client);
        let has_autoprewarm = skip_reason.is_none();
        if let Some(reason) = &skip_reason {
            notes.push(format!("autoprewarm is skipped: {reason}"));
        }
        let (runs, note) = self.measure_runs(server, &image, has_autoprewarm, report)?;
        notes.extend(note);
        let mut results = BenchmarkResults {
            server: version,
            host: HostInfo::query(),
            scale: self.scale,
            step: self.step,
            duration: self.duration,
            skew: self.skew,
            pages: (image.page_count(), image.origin.page_bytes),
            steady_before: steady_rate(&steady.steps, self.step, Duration::ZERO).unwrap_or(0.0),
            steady_p99_us: steady.latencies.at_us(0.99).unwrap_or(0),
            steady: 0.0,
            runs,
            notes,
        };
        results.summarize();
        Ok(results)
    }

    /// Measures each method in each run. Returns the runs, and a note on what was done to the
    /// operating system's cache.
    fn measure_runs(
        &self,
        server: &mut ServerUnderTest,
        image: &CacheImage,
        has_autoprewarm: bool,
        report: &mut dyn FnMut(&str),
    ) -> Result<(Vec<BenchmarkRun>, Option<String>), BenchmarkError> {
        let is_measured =
            |method: &WarmMethod| has_autoprewarm || *method != WarmMethod::Autoprewarm;
        let methods: Vec<_> = WarmMethod::ALL.into_iter().filter(is_measured).collect();
        let mut progress = BenchmarkProgress::new(self.runs, methods.len(), self.duration);
        let (mut runs, mut note) = (Vec::new(), None);
        for run in 0..self.runs {
            let mut measurements = Vec::with_capacity(methods.len());
            for method in method_order(&methods, run) {
                self.check_interrupted()?;
                report(&progress.line(method));
                let autoprewarm = has_autoprewarm.then_some(method == WarmMethod::Autoprewarm);
                let load_before = host::load_average();
                let restarted = server.restart(self.drop_caches, autoprewarm)?;
                note.get_or_insert_with(|| format!("before each restart: {restarted}"));
                measurements.push(self.measure_method(method, server, image, load_before)?);
                progress.finished += 1;
            }
            runs.push(BenchmarkRun { measurements });
        }
        Ok((runs, note))
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
    fn measure_method(
        &self,
        method: WarmMethod,
        server: &ServerUnderTest,
        image: &CacheImage,
        load_before: Option<f64>,
    ) -> Result<MethodMeasurement, BenchmarkError> {
        let (target, postmaster) = (server.target(), server.postmaster());
        let mut client = self.connect(target, SEED)?;
        let local_backend = local_backend(postmaster, client.process_id());
        let before = ProcessorReading::now(postmaster);
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
            let measured = client.run(self.step, self.duration, local_backend, &self.stop);
            context.is_finished.store(true, Ordering::Relaxed);
            (measured, receiver.recv().ok())
        });
        let ReadMeasurement { steps, latencies, .. } = measured?;
        let warming = warming.transpose()?;
        let warm_at = match warming {
            None => Some(Duration::ZERO),
            Some(cost) => cost.is_done.then_some(cost.wall),
        };
        let shares = before.zip(ProcessorReading::now(postmaster)).and_then(|(before, now)| {
            let own = now.own.zip(before.own).map(|(now, before)| now.saturating_sub(before));
            now.host.shares_since(before.host, own)
        });
        let interference = Interference::new(&steps, self.step, warm_at, shares, load_before);
        Ok(MethodMeasurement {
            method,
            steps,
            p99_us: latencies.at_us(0.99).unwrap_or(0),
            max_us: latencies.at_us(1.0).unwrap_or(0),
            warming,
            interference,
            steady: None,
            summary: ThroughputSummary::default(),
        })
    }
}

/// Returns the process id of the client's backend if it runs on this host: if it is a child of the
/// postmaster. On another host or in a container, the number means another process.
fn local_backend(postmaster: Option<OsProcess>, backend: Option<i32>) -> Option<i32> {
    let pid = u32::try_from(backend?).ok()?;
    let children = postmaster?.children().ok()?;
    children.iter().any(|child| child.pid() == pid).then_some(backend?)
}

/// The processor time of the host, and of the server and the benchmark, at a moment.
#[derive(Clone, Copy, Debug)]
struct ProcessorReading {
    host: HostTime,
    /// Processor time of the server and the benchmark; `None` if the server does not run on this
    /// host.
    own: Option<Duration>,
}

impl ProcessorReading {
    fn now(postmaster: Option<OsProcess>) -> Option<Self> {
        let server = postmaster.and_then(|it| resource_usage::server_usage(it).ok());
        let own = server.map(|server| server.cpu + resource_usage::own_cpu());
        Some(Self { host: HostTime::now()?, own })
    }
}

/// Estimates how long the benchmark takes.
struct BenchmarkProgress {
    runs: u32,
    methods: usize,
    duration: Duration,
    began: Instant,
    /// Number of measurements that are finished.
    finished: usize,
}

/// Assumed time of a restart, until one was measured.
const RESTART_ESTIMATE: Duration = Duration::from_secs(2);

impl BenchmarkProgress {
    fn new(runs: u32, methods: usize, duration: Duration) -> Self {
        Self { runs, methods, duration, began: Instant::now(), finished: 0 }
    }

    /// Describes the measurement that begins now.
    fn line(&self, method: WarmMethod) -> String {
        format!(
            "run {} of {}, {}: restarting, then {:.0} s; {} left",
            self.finished / self.methods.max(1) + 1,
            self.runs,
            method.name(),
            self.duration.as_secs_f64(),
            rounded_time(self.remaining(self.began.elapsed())),
        )
    }

    fn remaining(&self, elapsed: Duration) -> Duration {
        let total = self.runs as usize * self.methods;
        let each = match u32::try_from(self.finished) {
            Ok(finished @ 1..) => elapsed / finished,
            _ => self.duration + RESTART_ESTIMATE,
        };
        each * u32::try_from(total - self.finished).unwrap_or(u32::MAX)
    }
}

/// Formats an estimated time: `about 40 s`, `about 5 min`.
fn rounded_time(time: Duration) -> String {
    match time.as_secs() {
        seconds @ ..100 => format!("about {seconds} s"),
        seconds => format!("about {} min", (seconds + 30) / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remaining_time_is_estimated_from_finished_measurements() {
        let mut progress = BenchmarkProgress::new(3, 3, Duration::from_secs(25));
        assert_eq!(progress.remaining(Duration::ZERO), Duration::from_secs(9 * 27));
        let line = progress.line(WarmMethod::NoWarming);
        assert_eq!(line, "run 1 of 3, no warming: restarting, then 25 s; about 4 min left");
        progress.finished = 4;
        assert_eq!(progress.remaining(Duration::from_secs(120)), Duration::from_secs(150));
        assert!(progress.line(WarmMethod::Howdah).starts_with("run 2 of 3, howdah: restarting"));
        progress.finished = 9;
        assert_eq!(progress.remaining(Duration::from_secs(270)), Duration::ZERO);
    }
}
