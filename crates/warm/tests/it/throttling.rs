//! `--max-rate` and `--max-latency` on a real server.

use std::{
    sync::{
        Mutex, OnceLock,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use howdah_connect::ConnectTarget;
use howdah_lab::{Cluster, wait_for};
use howdah_warm::load::{self, LoadObserver, LoadOptions};
use rustix::process::{Pid, Signal, kill_process};

use crate::support::{TIMEOUT, check_sums, image, session, start, target};

const TABLE: &str = "
    CREATE EXTENSION pg_prewarm;
    CREATE TABLE wide (n int, pad text);
    INSERT INTO wide SELECT n, repeat('x', 800) FROM generate_series(1, 8000) n;
    CHECKPOINT;";
/// Minimum pages of the table: nine rows fit on a page.
const PAGES: u64 = 880;

/// Records the steps of a load.
#[derive(Default)]
struct Steps {
    largest: AtomicU64,
    count: AtomicU32,
}

impl LoadObserver for Steps {
    fn progressed(&self, pages: u64) {
        self.largest.fetch_max(pages, Ordering::Relaxed);
        self.count.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn load_respects_its_rate_evenly() {
    let Some(mut cluster) = start("rate", Cluster::builder()) else { return };
    let here = target(&cluster, "postgres");
    session(&here).query(TABLE).unwrap();
    let image = image(&here);
    cluster.restart().unwrap();
    let rate = 4 << 20;
    let options = LoadOptions { jobs: 3, bytes_per_second: Some(rate), ..LoadOptions::default() };
    let (steps, start) = (Steps::default(), Instant::now());
    let loaded = load::load(&image, &here, &options, &steps).unwrap();
    let took = start.elapsed();
    check_sums(&loaded);
    assert_eq!(loaded.share(), 1.0);
    let bytes = loaded.pages().loaded * 8192;
    assert!(bytes >= PAGES * 8192, "{bytes}");
    // The bytes of a tenth of a second are sent at once, and the last of them are not waited for.
    let largest = steps.largest.into_inner() * 8192;
    assert!(largest <= rate / 10, "{largest}");
    let least = (bytes - largest) as f64 / rate as f64;
    assert!(took.as_secs_f64() >= least, "{bytes} bytes in {took:?}");
}

const STALL_DURATION: Duration = Duration::from_secs(1);

/// Stops the backend of the latency check when the first pages are loaded.
struct StopBackend<'a> {
    target: &'a ConnectTarget,
    stopped: OnceLock<(Pid, Instant)>,
    /// Chunks loaded since then.
    after: AtomicU32,
    one_at_a_time: Mutex<()>,
}

impl LoadObserver for StopBackend<'_> {
    fn progressed(&self, _: u64) {
        let _alone = self.one_at_a_time.lock().unwrap();
        if self.stopped.get().is_some() {
            self.after.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let sql = "SELECT pid FROM pg_stat_activity
                   WHERE application_name = 'howdah warm' AND query LIKE '%oid = 1259%'
                   AND pid <> pg_backend_pid()";
        let mut client = session(self.target);
        let pid = wait_for("a latency check", TIMEOUT, || client.one_value(sql).unwrap());
        let pid = Pid::from_raw(pid.parse().unwrap()).unwrap();
        kill_process(pid, Signal::STOP).unwrap();
        let _ = self.stopped.set((pid, Instant::now()));
        // The stimulus: the next check must be overdue beyond doubt.
        thread::sleep(STALL_DURATION);
    }
}

#[test]
fn load_crawls_while_the_server_stalls() {
    for major in [15, 18] {
        let test = format!("latency on {major}");
        let Some(mut cluster) = start(&test, Cluster::builder().major(major)) else { continue };
        let here = target(&cluster, "postgres");
        session(&here).query(TABLE).unwrap();
        let image = image(&here);
        cluster.restart().unwrap();
        let stopper = StopBackend {
            target: &here,
            stopped: OnceLock::new(),
            after: AtomicU32::new(0),
            one_at_a_time: Mutex::new(()),
        };
        let limit = Some(Duration::from_millis(50));
        let options = LoadOptions { jobs: 1, max_latency: limit, ..LoadOptions::default() };
        let loaded = load::load(&image, &here, &options, &stopper);
        let (pid, since) = *stopper.stopped.get().unwrap();
        let took = since.elapsed();
        kill_process(pid, Signal::CONT).unwrap();
        let loaded = loaded.unwrap();
        check_sums(&loaded);
        assert_eq!(loaded.share(), 1.0, "the load finishes nevertheless");
        let after = stopper.after.into_inner();
        assert!(after >= 4, "{major}: {after} chunks");
        // The next chunk waits half a second for the reply; after two seconds another connection is
        // used.
        let least = STALL_DURATION + Duration::from_millis(500);
        assert!(took >= least, "{major}: {after} chunks in {took:?}");
    }
}

#[test]
fn latency_limited_load_finishes_under_traffic() {
    let Some(mut cluster) = start("latency under traffic", Cluster::builder()) else { return };
    let Some(pgbench) = howdah_lab::client_tool("pgbench") else { return };
    let here = target(&cluster, "postgres");
    session(&here).query(TABLE).unwrap();
    let image = image(&here);
    cluster.restart().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("select.sql");
    std::fs::write(&script, "\\set n random(1, 8000)\nSELECT pad FROM wide WHERE n = :n;\n")
        .unwrap();
    let mut traffic = std::process::Command::new(pgbench)
        .args(["-n", "-c", "4", "-T", "60", "-f"])
        .arg(&script)
        .arg(cluster.uri("postgres"))
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let options = LoadOptions {
        max_latency: Some(Duration::from_millis(1)),
        bytes_per_second: Some(64 << 20),
        ..LoadOptions::default()
    };
    let loaded = load::load(&image, &here, &options, &());
    traffic.kill().unwrap();
    traffic.wait().unwrap();
    let loaded = loaded.unwrap();
    check_sums(&loaded);
    assert_eq!(loaded.share(), 1.0, "{:#?}", loaded.outcomes);
}
