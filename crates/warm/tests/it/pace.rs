//! `--max-rate` and `--max-latency` on a real server: a load goes no faster than it may.

use std::{
    sync::{
        Mutex, OnceLock,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use howdah_connect::Target;
use howdah_lab::Cluster;
use howdah_warm::load::{self, Observer, Options};
use rustix::process::{Pid, Signal, kill_process};

use crate::support::{check_sums, image, session, start, target};

const TABLE: &str = "
    CREATE EXTENSION pg_prewarm;
    CREATE TABLE wide (n int, pad text);
    INSERT INTO wide SELECT n, repeat('x', 800) FROM generate_series(1, 8000) n;
    CHECKPOINT;";
/// Of the table at least: nine rows fit on a page.
const PAGES: u64 = 880;

/// Takes a look at each step of a load.
#[derive(Default)]
struct Steps {
    largest: AtomicU64,
    count: AtomicU32,
}

impl Observer for Steps {
    fn advanced(&self, pages: u64) {
        self.largest.fetch_max(pages, Ordering::Relaxed);
        self.count.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_rate_is_kept_and_evenly() {
    let Some(mut cluster) = start("rate", Cluster::builder()) else { return };
    let here = target(&cluster, "postgres");
    session(&here).query(TABLE).unwrap();
    let image = image(&here);
    cluster.restart().unwrap();
    let rate = 4 << 20;
    let options = Options { jobs: 3, bytes_per_second: Some(rate), ..Options::default() };
    let (steps, began) = (Steps::default(), Instant::now());
    let loaded = load::load(&image, &here, &options, &steps).unwrap();
    let took = began.elapsed();
    check_sums(&loaded);
    assert_eq!(loaded.share(), 1.0);
    let bytes = loaded.pages().loaded * 8192;
    assert!(bytes >= PAGES * 8192, "{bytes}");
    // A tenth of a second's bytes go out at once, and the last of them need not be waited for.
    let largest = steps.largest.into_inner() * 8192;
    assert!(largest <= rate / 10, "{largest}");
    let least = (bytes - largest) as f64 / rate as f64;
    assert!(took.as_secs_f64() >= least, "{bytes} bytes in {took:?}");
}

const BEYOND_DOUBT: Duration = Duration::from_secs(1);

/// Stops the process behind the probe when the first pages are loaded.
struct Stopper<'a> {
    target: &'a Target,
    stopped: OnceLock<(Pid, Instant)>,
    /// Pieces that were loaded since.
    after: AtomicU32,
    one_at_a_time: Mutex<()>,
}

impl Observer for Stopper<'_> {
    fn advanced(&self, _: u64) {
        let _alone = self.one_at_a_time.lock().unwrap();
        if self.stopped.get().is_some() {
            self.after.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let sql = "SELECT pid FROM pg_stat_activity
                   WHERE application_name = 'howdah warm' AND query LIKE '%oid = 1259%'
                   AND pid <> pg_backend_pid()";
        let mut client = session(self.target);
        let deadline = Instant::now() + Duration::from_secs(60);
        let pid = loop {
            match client.one_value(sql).unwrap() {
                Some(pid) => break pid.parse().unwrap(),
                None => assert!(Instant::now() < deadline, "nobody asks how the server does"),
            }
        };
        let pid = Pid::from_raw(pid).unwrap();
        kill_process(pid, Signal::STOP).unwrap();
        let _ = self.stopped.set((pid, Instant::now()));
        // Until the next question is late beyond doubt.
        thread::sleep(BEYOND_DOUBT);
    }
}

#[test]
fn while_the_server_does_not_answer_a_load_crawls() {
    for major in [15, 18] {
        let test = format!("latency on {major}");
        let Some(mut cluster) = start(&test, Cluster::builder().major(major)) else { continue };
        let here = target(&cluster, "postgres");
        session(&here).query(TABLE).unwrap();
        let image = image(&here);
        cluster.restart().unwrap();
        let stopper = Stopper {
            target: &here,
            stopped: OnceLock::new(),
            after: AtomicU32::new(0),
            one_at_a_time: Mutex::new(()),
        };
        let limit = Some(Duration::from_millis(50));
        let options = Options { jobs: 1, max_latency: limit, ..Options::default() };
        let loaded = load::load(&image, &here, &options, &stopper);
        let (pid, since) = *stopper.stopped.get().unwrap();
        let took = since.elapsed();
        kill_process(pid, Signal::CONT).unwrap();
        let loaded = loaded.unwrap();
        check_sums(&loaded);
        assert_eq!(loaded.share(), 1.0, "it comes to its end nevertheless");
        let after = stopper.after.into_inner();
        assert!(after >= 4, "{major}: {after} pieces");
        // The next piece waits half a second for the answer; after two, another connection asks.
        let least = BEYOND_DOUBT + Duration::from_millis(500);
        assert!(took >= least, "{major}: {after} pieces in {took:?}");
    }
}

#[test]
fn a_load_with_a_limit_ends_under_traffic() {
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
    let options = Options {
        max_latency: Some(Duration::from_millis(1)),
        bytes_per_second: Some(64 << 20),
        ..Options::default()
    };
    let loaded = load::load(&image, &here, &options, &());
    traffic.kill().unwrap();
    traffic.wait().unwrap();
    let loaded = loaded.unwrap();
    check_sums(&loaded);
    assert_eq!(loaded.share(), 1.0, "{:#?}", loaded.outcomes);
}
