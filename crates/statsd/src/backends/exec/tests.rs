//! Real programs.

use std::{
    fs,
    path::{Path, PathBuf},
};

use rustix::process::{Pid, test_kill_process};

use super::*;
use crate::backends::{
    LOST_VALUES, SPOOL_BATCHES, chain,
    testing::{snapshot, snapshot_with_timed},
};

/// Maximum wait for an expected event.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// A backend that runs a shell script with the folder as its argument.
fn shell(folder: &Path, script: &str) -> ExecBackend {
    let folder = folder.display().to_string();
    ExecBackend::new(ExecSettings {
        command: ["sh", "-c", script, &folder].map(str::to_owned).into(),
        format: ExecFormat::Lines,
        timeout: TEST_TIMEOUT,
        spool_bytes: 1 << 20,
    })
    .unwrap()
}

const LINES: &str = "\
counts.api.hits|30|1772359200
counts.api.hits;code=500|2|1772359200
counts.statsd.packets_received|12|1772359200
timers.api.latency.count_90|3|1772359200
";

#[test]
fn lines_are_written_to_standard_input() {
    let folder = tempfile::tempdir().unwrap();
    let mut exec = shell(folder.path(), r#"cat >> "$0/input"; echo done >&2"#);
    exec.flush(&snapshot()).unwrap();
    let input = fs::read_to_string(folder.path().join("input")).unwrap();
    assert!(input.starts_with(LINES), "{input}");
    for line in [
        "timers.api.latency.upper_90|30|1772359200\n",
        "timers.idle.count|0|1772359200\n",
        "gauges.pool.size|-2.5|1772359200\n",
        "sets.users|2|1772359200\n",
        "gauges.statsd.num_stats|7|1772359200\n",
    ] {
        assert!(input.contains(line), "{line} in {input}");
    }
    assert_eq!(exec.status.get("flush_length"), Some(input.len() as f64));
}

#[test]
fn json_has_names_and_tags_as_sent() {
    let folder = tempfile::tempdir().unwrap();
    let mut exec = shell(folder.path(), r#"cat > "$0/input""#);
    exec.settings.format = ExecFormat::Json;
    assert!(exec.requirements().names_as_sent);
    exec.flush(&snapshot()).unwrap();
    let input = fs::read_to_string(folder.path().join("input")).unwrap();
    let lines: Vec<serde_json::Value> =
        input.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let expected = serde_json::json!({
        "name": "api.hits",
        "type": "counter",
        "tags": { "code": "500" },
        "timestamp": 1_772_359_200,
        "interval": 10,
        "fields": { "count": 2, "rate": 0.2 },
    });
    assert!(lines.contains(&expected), "{input}");
    let kinds: Vec<_> = lines.iter().map(|line| line["type"].as_str().unwrap()).collect();
    assert_eq!(
        kinds,
        ["counter", "counter", "counter", "timer", "timer", "gauge", "set", "own"],
        "{input}"
    );
}

#[test]
fn values_with_timestamps_have_their_own_time() {
    let folder = tempfile::tempdir().unwrap();
    let mut exec = shell(folder.path(), r#"cat >> "$0/input""#);
    exec.flush(&Arc::new(snapshot_with_timed())).unwrap();
    exec.settings.format = ExecFormat::Json;
    exec.flush(&Arc::new(snapshot_with_timed())).unwrap();
    let input = fs::read_to_string(folder.path().join("input")).unwrap();
    for line in [
        "counts.jobs;q=a-b|25|1772355600",
        "gauges.load|1.5|1772359140",
        r#"{"name":"jobs","type":"counter","tags":{"q":"a/b"},"timestamp":1772355600,"interval":10,"fields":{"count":20,"rate":2}}"#,
        r#"{"name":"load","type":"gauge","tags":{},"timestamp":1772359140,"interval":10,"fields":{"value":1.5}}"#,
    ] {
        assert!(input.lines().any(|found| found == line), "{line} in {input}");
    }
}

#[test]
fn failed_interval_is_spooled_and_passed_again() {
    let folder = tempfile::tempdir().unwrap();
    let script = r#"[ -e "$0/ready" ] || { echo "not ready" >&2; exit 3; }; cat >> "$0/input""#;
    let mut exec = shell(folder.path(), script);
    exec.flush(&snapshot()).unwrap();
    assert_eq!(exec.status.get(SPOOL_BATCHES), Some(1.0));
    fs::write(folder.path().join("ready"), "").unwrap();
    exec.finish(TEST_TIMEOUT).unwrap();
    let input = fs::read_to_string(folder.path().join("input")).unwrap();
    assert!(input.starts_with(LINES), "{input}");
    assert_eq!(exec.status.get(SPOOL_BATCHES), Some(0.0));
    assert_eq!(exec.status.get(LOST_VALUES), Some(0.0));
}

#[test]
fn undelivered_interval_goes_to_another_process() {
    let folder = tempfile::tempdir().unwrap();
    let mut old = shell(folder.path(), "exit 1");
    old.flush(&snapshot()).unwrap();
    let mut spool = BackendSpool::default();
    old.hand_over(TEST_TIMEOUT, &mut spool).unwrap();
    assert_eq!(spool.batches.len(), 1);
    let mut new = shell(folder.path(), r#"cat >> "$0/input""#);
    new.adopt(spool);
    new.finish(TEST_TIMEOUT).unwrap();
    let input = fs::read_to_string(folder.path().join("input")).unwrap();
    assert!(input.starts_with(LINES), "{input}");
}

#[test]
fn refused_or_unspooled_interval_is_lost_with_its_reason() {
    let folder = tempfile::tempdir().unwrap();
    let mut refused = shell(folder.path(), "echo nonsense >&2; exit 65");
    let error = chain(&refused.flush(&snapshot()).unwrap_err());
    assert!(error.starts_with("sh: sending failed: values dropped: "), "{error}");
    assert!(error.ends_with(": exit status 65: nonsense"), "{error}");
    assert_eq!(refused.status.get(SPOOL_BATCHES), Some(0.0));

    let mut unspooled = shell(folder.path(), "kill -9 $$");
    unspooled.settings.spool_bytes = 0;
    unspooled.outbox = Outbox::new(0);
    let error = chain(&unspooled.flush(&snapshot()).unwrap_err());
    assert!(error.ends_with(": ended by signal 9"), "{error}");
    assert!(unspooled.status.get(LOST_VALUES) > Some(0.0));

    let mut missing = shell(folder.path(), "");
    missing.settings.command = vec!["/nonexistent/program".to_owned()];
    missing.outbox = Outbox::new(0);
    let error = chain(&missing.flush(&snapshot()).unwrap_err());
    assert!(error.contains("program: sending failed"), "{error}");
    assert!(error.ends_with("cannot start the program: No such file or directory (os error 2)"));
}

/// Reads the process id that a script wrote to the file `pid`, and waits until that process has
/// ended.
fn wait_for_end(folder: &Path) {
    let pid = fs::read_to_string(pid_file(folder)).unwrap().trim().parse().unwrap();
    let pid = Pid::from_raw(pid).unwrap();
    howdah_lab::wait_until("the child of the program to end", TEST_TIMEOUT, || {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // A zombie whose new parent has not waited for it has ended, too.
        test_kill_process(pid).is_err() || stat.contains(") Z ")
    });
}

fn pid_file(folder: &Path) -> PathBuf {
    folder.join("pid")
}

/// A program that ignores TERM, with a child of which the group must be rid, too.
const ENDLESS: &str = r#"trap '' TERM; sleep 600 & echo $! > "$0/new"; mv "$0/new" "$0/pid"; wait"#;

#[test]
fn program_that_runs_too_long_is_killed_with_its_children() {
    let folder = tempfile::tempdir().unwrap();
    let mut exec = shell(folder.path(), ENDLESS);
    exec.settings.timeout = Duration::from_millis(500);
    exec.flush(&snapshot()).unwrap();
    assert_eq!(exec.status.get(SPOOL_BATCHES), Some(1.0), "the interval is passed again");
    wait_for_end(folder.path());
}

#[test]
fn stop_deadline_ends_running_program() {
    let folder = tempfile::tempdir().unwrap();
    let mut exec = shell(folder.path(), ENDLESS);
    let stop = exec.stop_deadline().unwrap();
    let path = pid_file(folder.path());
    let stopper = std::thread::spawn(move || {
        howdah_lab::wait_until("the program to run", TEST_TIMEOUT, || path.exists());
        stop.set(Instant::now() + Duration::from_millis(100));
    });
    exec.flush(&snapshot()).unwrap();
    stopper.join().unwrap();
    wait_for_end(folder.path());
    let error = chain(&exec.finish(Duration::ZERO).unwrap_err());
    assert!(error.contains("values dropped: "), "{error}");
}

#[test]
fn program_may_write_before_it_reads() {
    let folder = tempfile::tempdir().unwrap();
    // More than a pipe in both directions, and more output than is retained.
    let script = r#"head -c 1000000 /dev/zero | tr '\0' x >&2; cat > "$0/input"; exit 3"#;
    let mut exec = shell(folder.path(), script);
    exec.outbox = Outbox::new(0);
    let mut large = FlushSnapshot::clone(&snapshot());
    let counter = large.counters[0].clone();
    large.counters = vec![counter; 20_000];
    let error = chain(&exec.flush(&Arc::new(large)).unwrap_err());
    assert!(error.contains("exit status 3: xxx"), "{error}");
    assert!(error.len() < 8192, "{} bytes", error.len());
    let input = fs::metadata(folder.path().join("input")).unwrap();
    assert!(input.len() > 20_000 * 20);
}
