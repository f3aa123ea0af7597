//! The benchmark with real servers. It is kept small: the tests check its behaviour, not its
//! measurements.

#![allow(clippy::panic, clippy::unwrap_used, reason = "test helpers count as tests")]

use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use howdah_connect::{Client, ConnParams, ConnectTarget, Environment};
use howdah_lab::{BinariesSearch, Cluster, skip_without_postgres};
use howdah_warm::benchmark::{
    Benchmark, BenchmarkError, BenchmarkObstacle, BenchmarkResults, BenchmarkServer, DropCaches,
    ExistingServer, TemporaryServer, WarmMethod,
};
use howdah_warm::load::LoadOptions;

/// Limit for a benchmark with its restarts.
const BENCHMARK_TIMEOUT: Duration = Duration::from_secs(300);

/// Too few for a verdict, which tests must not depend on.
const RUNS: u32 = 2;

fn benchmark(server: BenchmarkServer) -> Benchmark {
    Benchmark {
        server,
        runs: RUNS,
        scale: 1,
        duration: Duration::from_millis(600),
        step: Duration::from_millis(100),
        skew: None,
        drop_caches: DropCaches::Files,
        load: LoadOptions::default(),
        stop: Arc::new(AtomicBool::new(false)),
    }
}

/// Checks the properties that results have independent of the speed of the machine.
fn check(results: &BenchmarkResults, methods: &[WarmMethod]) {
    assert_eq!(results.runs.len(), RUNS as usize);
    for (run, number) in results.runs.iter().zip(0..) {
        let mut expected = methods.to_vec();
        expected.rotate_left(number);
        let found: Vec<_> = run.measurements.iter().map(|it| it.method).collect();
        assert_eq!(found, expected, "{:?}", results.notes);
    }
    assert!(results.steady > 0.0 && results.steady_before > 0.0);
    // 1640 pages of the table and 276 of its key are warm before the restart.
    assert!(results.pages.0 >= 1900, "{:?}", results.pages);
    assert!(results.host.processors.is_some() && results.host.memory_bytes.is_some());
    for measurement in results.all_measurements() {
        assert_eq!(measurement.steps.len(), 6);
        assert!(measurement.summary.transactions > 0);
        let sum: u64 = measurement.steps.iter().map(|step| step.transactions).sum();
        assert_eq!(sum, measurement.summary.transactions);
        // The backend is a new process, to which every page of the cache is new.
        let faults = measurement.steps.iter().filter_map(|step| step.conditions.backend_faults);
        assert!(faults.sum::<u64>() > 100, "{measurement:?}");
        let interference = measurement.interference;
        assert!(interference.others_share.is_some() && interference.steal_share.is_some());
        assert!(interference.wait_share.is_some(), "{interference:?}");
    }
    let verdict = results.verdict();
    let too_few = BenchmarkObstacle::TooFewRuns { runs: RUNS as usize };
    assert!(verdict.obstacles.contains(&too_few), "{verdict:?}");
    assert!(!verdict.overall().is_decided());
}

#[test]
fn temporary_server_is_measured_with_each_method() {
    for major in [15, 18] {
        let search = BinariesSearch::new().major(major);
        let test = format!("benchmark on {major}");
        if skip_without_postgres(&test, search.find()).is_none() {
            continue;
        }
        let mut messages = Vec::new();
        let server = BenchmarkServer::Temporary(TemporaryServer { search, shared_buffers: None });
        let results = benchmark(server).run(|line| messages.push(line.to_owned())).unwrap();
        let is_skipped = results.notes.iter().any(|note| note.contains("autoprewarm is skipped"));
        if is_skipped {
            check(&results, &[WarmMethod::NoWarming, WarmMethod::Howdah]);
        } else {
            check(&results, &WarmMethod::ALL);
        }
        assert!(results.server.starts_with(&major.to_string()));
        assert!(results.notes.iter().any(|note| note.contains("data files")), "{results:?}");
        let has_restart =
            messages.iter().any(|line| line.starts_with("run 2 of 2, howdah: restarting"));
        assert!(has_restart, "{messages:?}");
        let howdah = results.measurements(WarmMethod::Howdah).last().unwrap().warming.unwrap();
        assert!(howdah.server_cpu.is_some() && howdah.read_bytes.is_some(), "{howdah:?}");
        if howdah.is_done {
            assert!(howdah.resident_share.unwrap() > 0.9, "{howdah:?}");
        }
        assert!(results.measurements(WarmMethod::NoWarming).all(|it| it.warming.is_none()));
    }
}

fn target(cluster: &Cluster) -> ConnectTarget {
    let params = ConnParams::from_conninfo(cluster.uri("postgres"));
    ConnectTarget::resolve(&params, &Environment::empty()).unwrap()
}

/// Runs the benchmark on an existing server. The restart command asks this process to restart the
/// cluster, and waits until that is done.
fn benchmark_existing(cluster: &mut Cluster) -> BenchmarkResults {
    let folder = tempfile::tempdir().unwrap();
    let (requested, done) = (folder.path().join("requested"), folder.path().join("done"));
    let restart_command = format!(
        "rm -f {done}; touch {requested}; while ! [ -e {done} ]; do sleep 0.02; done",
        requested = requested.display(),
        done = done.display()
    );
    let target = target(cluster);
    let server = BenchmarkServer::Existing(Box::new(ExistingServer { target, restart_command }));
    let benchmark = benchmark(server);
    let is_finished = AtomicBool::new(false);
    thread::scope(|scope| {
        let runner = scope.spawn(|| {
            let results = benchmark.run(|_| {});
            is_finished.store(true, Ordering::Relaxed);
            results
        });
        howdah_lab::wait_until("the end of the benchmark", BENCHMARK_TIMEOUT, || {
            if fs::remove_file(&requested).is_ok() {
                cluster.restart().unwrap();
                fs::write(&done, "").unwrap();
            }
            is_finished.load(Ordering::Relaxed)
        });
        runner.join().unwrap().unwrap()
    })
}

#[test]
fn existing_server_is_restored_after_the_benchmark() {
    let test = "benchmark of an existing server";
    let Some(mut cluster) = skip_without_postgres(test, Cluster::builder().start()) else { return };
    let results = benchmark_existing(&mut cluster);
    check(&results, &[WarmMethod::NoWarming, WarmMethod::Howdah]);
    let note_expected = "autoprewarm is skipped: pg_prewarm is not in shared_preload_libraries";
    assert!(results.notes.iter().any(|note| note == note_expected), "{:?}", results.notes);
    let schemas = "SELECT count(*) FROM pg_namespace WHERE nspname = 'howdah_benchmark'";
    let mut client = Client::connect(&target(&cluster)).unwrap();
    assert_eq!(client.one_value(schemas).unwrap().as_deref(), Some("0"));
}

#[test]
fn existing_server_with_autoprewarm_keeps_its_settings() {
    let builder = Cluster::builder()
        .setting("shared_preload_libraries", "pg_prewarm")
        .setting("pg_prewarm.autoprewarm_interval", "77");
    let test = "benchmark of an existing server with autoprewarm";
    let Some(mut cluster) = skip_without_postgres(test, builder.start()) else { return };
    let results = benchmark_existing(&mut cluster);
    check(&results, &WarmMethod::ALL);
    let autoprewarm = results.measurements(WarmMethod::Autoprewarm).next().unwrap();
    assert!(autoprewarm.warming.unwrap().server_cpu.is_some(), "{autoprewarm:?}");
    // The benchmark switched it off for the other methods, and must have restored it.
    let mut client = Client::connect(&target(&cluster)).unwrap();
    let changed = "SELECT count(*) FROM pg_file_settings WHERE name = 'pg_prewarm.autoprewarm'";
    assert_eq!(client.one_value(changed).unwrap().as_deref(), Some("0"));
    let interval = "SHOW pg_prewarm.autoprewarm_interval";
    assert_eq!(client.one_value(interval).unwrap().as_deref(), Some("77s"));
}

#[test]
fn interrupted_benchmark_has_no_results() {
    let test = "interruption of a benchmark";
    let search = BinariesSearch::new();
    if skip_without_postgres(test, search.find()).is_none() {
        return;
    }
    let server = BenchmarkServer::Temporary(TemporaryServer { search, shared_buffers: None });
    let benchmark = benchmark(server);
    let stop = Arc::clone(&benchmark.stop);
    let error = benchmark
        .run(|line| {
            if line.starts_with("run 1 of 2, howdah") {
                stop.store(true, Ordering::Relaxed);
            }
        })
        .unwrap_err();
    assert!(matches!(error, BenchmarkError::Interrupted), "{error}");
}

#[test]
fn restart_command_without_restart_is_an_error() {
    let test = "benchmark without a restart";
    let Some(cluster) = skip_without_postgres(test, Cluster::builder().start()) else { return };
    let target = target(&cluster);
    let error_for = |command: &str| {
        let (target, restart_command) = (target.clone(), command.to_owned());
        let server = ExistingServer { target, restart_command };
        benchmark(BenchmarkServer::Existing(Box::new(server))).run(|_| {}).unwrap_err()
    };
    assert!(matches!(error_for("true"), BenchmarkError::NotRestarted { .. }));
    assert!(matches!(error_for("exit 3"), BenchmarkError::CommandFailed { .. }));
    let schemas = "SELECT count(*) FROM pg_namespace WHERE nspname = 'howdah_benchmark'";
    let mut client = Client::connect(&target).unwrap();
    assert_eq!(
        client.one_value(schemas).unwrap().as_deref(),
        Some("0"),
        "the schema is dropped after an error"
    );
}
