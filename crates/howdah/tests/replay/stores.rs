//! Captures and runs in an object store, and several importers and workers. The store is s3rver, an
//! S3 server on the local disk that knows one access key, and does not check signatures.

mod server;

use std::{collections::BTreeMap, path::Path, process::Output, thread};

use howdah_dataset::{Capture, Disposition, ReplayRun, SessionShare};
use howdah_lab::wait_for;
use howdah_traffic::Timestamp;
use serde_json::Value;

use self::server::S3Server;
use crate::{
    logs::LogBuilder,
    support::{ReplayFixture, TIMEOUT, text, value},
};

/// A database, two logs of the same server, and a store.
struct StoreFixture {
    replay: ReplayFixture,
    server: S3Server,
}

impl StoreFixture {
    /// `None` if the test is skipped.
    fn new(database: &str) -> Option<Self> {
        let server = S3Server::start("traffic")?;
        let replay = ReplayFixture::new(database)?;
        replay.client().query("create table seen (session int, step int)").unwrap();
        for (name, steps) in [("first.log", 0..10), ("second.log", 10..20)] {
            replay.write(name, &log(database, steps).text);
        }
        Some(Self { replay, server })
    }

    /// The binary, with the variables that name the store.
    fn howdah(&self) -> assert_cmd::Command {
        let mut command = self.replay.howdah();
        for (name, value) in self.server.variables() {
            command.env(name, value);
        }
        command
    }

    /// Runs a command that must succeed; returns its standard output.
    fn run(&self, command: &str) -> String {
        let done = self.howdah().args(command.split(' ')).assert().success();
        text(&done.get_output().stdout)
    }

    /// Runs a command that must fail; returns what it says.
    fn fail(&self, command: &str) -> String {
        let done = self.howdah().args(command.split(' ')).assert().failure();
        text(&done.get_output().stderr)
    }

    /// Runs commands at the same time; all must succeed.
    fn run_all(&self, commands: &[String]) -> Vec<String> {
        thread::scope(|scope| {
            let threads: Vec<_> =
                commands.iter().map(|words| scope.spawn(|| self.run(words))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    /// Spawns a command, which is not waited for.
    fn spawn(&self, words: &str) -> std::process::Child {
        let mut command = std::process::Command::new(assert_cmd::cargo::cargo_bin!("howdah"));
        command.args(words.split(' ')).envs(self.server.variables());
        command.env("HOWDAH_REPLAY_ALLOW_PRODUCTION", &self.replay.database);
        command.current_dir(self.replay.folder.path());
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        command.spawn().unwrap()
    }

    fn import_both(&self, capture: &str, buckets: u32) {
        let import = |log: &str, name: &str| {
            format!("capture import {log} -o {capture} --part {name} --buckets {buckets}")
        };
        self.run_all(&[import("first.log", "a"), import("second.log", "b")]);
    }

    fn replay_command(&self, capture: &str, run: &str) -> String {
        format!("replay {capture} --target {} -o {run} --no-calibration", self.replay.uri())
    }

    fn worker_command(&self, capture: &str, run: &str, worker: &str, start: &str) -> String {
        let words = self.replay_command(capture, run);
        format!("{words} --worker {worker} --start-at {start} --run-id friday")
    }

    /// Reads a run from the store's disk.
    fn open_run(&self, name: &str) -> ReplayRun {
        let copy = self.replay.path(&format!("copy-of-{name}"));
        self.server.copy("traffic", name, &copy);
        ReplayRun::open(&copy).unwrap()
    }
}

/// Commands that make the capture `plain`, without parts. The importer of the second log also sees
/// sessions that are open at its start.
const PLAIN: [&str; 3] = [
    "capture import first.log -o a",
    "capture import second.log -o b",
    "capture merge a b --join-sessions -o plain",
];

/// Twelve sessions that insert rows, and one of their statements that fails. The sessions are open
/// before and after, so that the logs of all steps are of the same sessions.
fn log(database: &str, steps: std::ops::Range<u64>) -> LogBuilder {
    let mut log = LogBuilder::new(database);
    for step in steps {
        for pid in 1..=12 {
            let millis = step * 100 + u64::from(pid) * 3;
            let sql = match (pid + u32::try_from(step).unwrap()) % 5 {
                0 => "select * from missing".to_owned(),
                1 => format!("select generate_series(1, {pid})"),
                _ => format!("insert into seen values ({pid}, {step})"),
            };
            log.query(millis, pid, &sql);
        }
    }
    log
}

/// A time, some seconds from now, as `--start-at` takes it.
fn start_in(seconds: i64) -> String {
    Timestamp::from_micros(Timestamp::now().as_micros() + seconds * 1_000_000).to_string()
}

/// Calls, rows and SQLSTATEs of each fingerprint.
fn totals(run: &ReplayRun) -> BTreeMap<Option<u64>, (u64, u64, Vec<String>)> {
    let mut totals: BTreeMap<_, (u64, u64, Vec<String>)> = BTreeMap::new();
    for outcome in run.outcomes().map(Result::unwrap).filter(|it| it.kind.is_execution()) {
        let (calls, rows, errors) = totals.entry(outcome.fingerprint).or_default();
        *calls += 1;
        *rows += outcome.rows.unwrap_or(0);
        match outcome.disposition {
            Disposition::Done => {}
            Disposition::Failed { sqlstate, .. } => {
                errors.push(sqlstate.map_or(String::new(), |code| code.to_string()));
            }
            other => panic!("not replayed: {other:?}"),
        }
    }
    totals.values_mut().for_each(|(_, _, errors)| errors.sort());
    totals
}

/// Calls and errors of each query in a comparison, on both sides.
fn compared(document: &Value) -> Vec<[Value; 4]> {
    let queries = document["queries"].as_array().unwrap();
    queries
        .iter()
        .map(|query| {
            [("base", "calls"), ("run", "calls"), ("base", "errors"), ("run", "errors")]
                .map(|(side, figure)| query[side][figure].clone())
        })
        .collect()
}

#[test]
fn four_workers_and_two_importers_equal_one_of_each() {
    let Some(fixture) = StoreFixture::new("workers") else { return };
    fixture.import_both("s3://traffic/monday", 8);
    for words in PLAIN {
        fixture.run(words);
    }
    let hash = fixture.run("capture cat --hash s3://traffic/monday");
    assert_eq!(hash, fixture.run("capture cat --hash plain"));
    let info: Value =
        serde_json::from_str(&fixture.run("capture info --format json s3://traffic/monday"))
            .unwrap();
    assert_eq!(info["parts"].as_array().unwrap().len(), 16);
    assert_eq!(info["events"].as_u64().unwrap(), info_events(&fixture, "plain"));
    fixture.run("capture info --verify s3://traffic/monday");

    fixture.run(&fixture.replay_command("s3://traffic/monday", "s3://traffic/one"));
    let one = fixture.open_run("one");
    assert!(one.manifest().complete && one.parts().is_empty(), "{:?}", one.manifest());

    // One worker is killed while it waits, and started again.
    let start = start_in(8);
    let words = |worker: usize| {
        let worker = format!("{worker}/4");
        fixture.worker_command("s3://traffic/monday", "s3://traffic/four", &worker, &start)
    };
    let mut killed = fixture.spawn(&words(2));
    wait_for("the killed worker's part", TIMEOUT, || {
        fixture.server.has("traffic", "four/worker-2-of-4/run.json").then_some(())
    });
    killed.kill().unwrap();
    killed.wait().unwrap();
    fixture.run_all(&[0, 1, 2].map(words));
    // While a worker is missing, the comparison says so.
    let done = fixture.run("compare s3://traffic/one s3://traffic/four");
    assert!(done.contains("it lacks the part of worker 3"), "{done}");
    fixture.run(&words(3));

    let four = fixture.open_run("four");
    assert!(four.manifest().complete, "{:?}", four.manifest());
    assert_eq!(four.parts().len(), 4);
    assert_eq!(totals(&one), totals(&four));
    assert_eq!(one.manifest().outcomes, four.manifest().outcomes);
    // Each session belongs to one worker, and the schedule starts with the first event of all.
    let origin = four.outcomes().map(|it| it.unwrap().time).min().unwrap();
    for outcome in four.outcomes().map(Result::unwrap) {
        let offset = outcome.time.saturating_since(origin).as_micros();
        assert_eq!(u128::try_from(outcome.due_us).unwrap(), offset);
    }
    for part in four.parts() {
        assert_eq!(part.start.to_string(), start);
        // Both clocks are that of this machine.
        let error = part.clock_round_trip_us.div_ceil(2) + 1;
        assert!(part.clock_offset_us.unsigned_abs() <= error, "{part:?}");
    }
    let document: Value = serde_json::from_str(
        &fixture.run("compare s3://traffic/one s3://traffic/four --format json"),
    )
    .unwrap();
    let queries = compared(&document);
    assert_eq!(queries.len(), 3, "{document}");
    for [base_calls, run_calls, base_errors, run_errors] in queries {
        assert_eq!((base_calls, base_errors), (run_calls, run_errors));
    }
    assert_eq!(document["run"]["complete"], true);
}

fn info_events(fixture: &StoreFixture, capture: &str) -> u64 {
    let info = fixture.run(&format!("capture info --format json {capture}"));
    serde_json::from_str::<Value>(&info).unwrap()["events"].as_u64().unwrap()
}

#[test]
fn store_that_is_away_only_delays() {
    let Some(mut fixture) = StoreFixture::new("away") else { return };
    // The import starts while the store is away.
    fixture.server.stop();
    let import = fixture.spawn("capture import first.log second.log -o s3://traffic/monday");
    fixture.server.restart_after_refusals(2);
    expect_success(import);
    assert_eq!(info_events(&fixture, "s3://traffic/monday"), 240 + 12);

    // The replay loses it between its first and its last statement.
    let words = fixture.replay_command("s3://traffic/monday", "s3://traffic/run");
    let replay = fixture.spawn(&words);
    let mut client = fixture.replay.client();
    let mut wait_for_step = |step: u32| {
        let sql = format!("select count(*) from seen where step >= {step}");
        wait_for("a replayed statement", TIMEOUT, || {
            (value(&mut client, &sql) != "0").then_some(())
        });
    };
    wait_for_step(0);
    fixture.server.stop();
    wait_for_step(19);
    fixture.server.restart_after_refusals(1);
    expect_success(replay);
    let run = fixture.open_run("run");
    assert!(run.manifest().complete);
    assert_eq!(totals(&run).values().map(|(calls, ..)| calls).sum::<u64>(), 240);
}

fn expect_success(process: std::process::Child) -> Output {
    let output = process.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    output
}

#[test]
fn errors_name_the_url_and_the_remedy() {
    let Some(fixture) = StoreFixture::new("store_errors") else { return };
    fixture.run("capture import first.log -o s3://traffic/monday");
    let missing = fixture.fail("capture info s3://traffic/tuesday");
    assert!(missing.contains("s3://traffic/tuesday does not exist"), "{missing}");
    assert!(missing.contains("howdah capture import LOG -o s3://traffic/tuesday"), "{missing}");
    for words in ["capture info s3://nowhere/monday", "capture import first.log -o s3://nowhere/x"]
    {
        let missing = fixture.fail(words);
        assert!(missing.contains("s3://nowhere/"), "{missing}");
        assert!(missing.contains("the bucket does not exist"), "{missing}");
    }
    let exists = fixture.fail("capture import first.log -o s3://traffic/monday");
    assert!(exists.contains("already contains a capture"), "{exists}");
    assert!(exists.contains("use --force"), "{exists}");
    fixture.run("capture import second.log -o s3://traffic/monday --force");
    let not_a_run = fixture.fail("compare s3://traffic/monday s3://traffic/monday");
    assert!(not_a_run.contains("s3://traffic/monday is a capture, not a run"), "{not_a_run}");

    let mut denied = fixture.howdah();
    denied.env("AWS_ACCESS_KEY_ID", "UNKNOWNKEY").env("AWS_SECRET_ACCESS_KEY", "not-the-secret");
    let denied = denied.args(["capture", "info", "s3://traffic/monday"]).assert().failure();
    let denied = text(&denied.get_output().stderr);
    assert!(denied.contains("cannot read s3://traffic/monday/capture.json"), "{denied}");
    let refused = "the store refused the credentials (InvalidAccessKeyId)";
    assert!(denied.contains(refused), "{denied}");
    assert!(denied.contains("AWS_SECRET_ACCESS_KEY"), "{denied}");
    assert!(!denied.contains("UNKNOWNKEY") && !denied.contains("not-the-secret"), "{denied}");

    let mut unencrypted = fixture.howdah();
    unencrypted.env("AWS_ENDPOINT_URL", "http://store.example:9000");
    let refused = unencrypted.args(["capture", "info", "s3://traffic/monday"]).assert().failure();
    let refused = text(&refused.get_output().stderr);
    assert!(refused.contains("AWS_ALLOW_HTTP=true"), "{refused}");
    let scheme = fixture.fail("capture info ftp://traffic/monday");
    assert!(scheme.contains("use s3://, gs://, az:// or file://"), "{scheme}");
}

#[test]
fn parts_are_replaced_by_their_importer_and_read_by_their_worker() {
    let Some(fixture) = ReplayFixture::new("parts") else { return };
    fixture.write("first.log", &log("parts", 0..10).text);
    fixture.write("second.log", &log("parts", 10..20).text);
    let run = |words: &str| {
        let done = fixture.howdah().args(words.split(' ')).assert().success();
        text(&done.get_output().stdout)
    };
    let hash = |capture: &str| run(&format!("capture cat --hash {capture}"));
    for words in PLAIN {
        run(words);
    }
    run("capture import second.log -o monday --part a --buckets 3");
    run("capture import second.log -o monday --part b --buckets 40");
    assert_ne!(hash("monday"), hash("plain"));
    // The importer starts again, with another log and another number of buckets.
    run("capture import first.log -o monday --part a --buckets 4");
    assert_eq!(hash("monday"), hash("plain"));
    assert_eq!(hash(&format!("file://{}", fixture.path("monday").display())), hash("plain"));

    let capture = Capture::open(&fixture.path("monday")).unwrap();
    assert!(capture.manifest().finished);
    assert_eq!(capture.parts().len(), 44);
    let all: Vec<_> = capture.events().map(|event| event.unwrap().time).collect();
    assert!(all.is_sorted());
    for count in [1, 2, 3, 4, 7] {
        let shares = (0..count).map(|index| SessionShare::new(index, count).unwrap());
        let mut sum = 0;
        for share in shares {
            let events: Vec<_> = capture.events_of(share).map(Result::unwrap).collect();
            assert!(events.iter().all(|event| share.contains(&event.session)));
            sum += events.len();
        }
        assert_eq!(sum, all.len(), "{count} workers");
    }

    // A part that is gone is missed.
    std::fs::remove_dir_all(fixture.path("monday/part-a-002-of-004")).unwrap();
    let error = Capture::open(&fixture.path("monday")).unwrap_err();
    assert!(error.to_string().contains("part-a-002-of-004"), "{error}");
    let mut plain = fixture.howdah();
    let refused = plain.args("capture import first.log -o monday --force".split(' '));
    let refused = text(&refused.assert().failure().get_output().stderr);
    assert!(refused.contains("consists of parts"), "{refused}");
}

#[test]
fn workers_refuse_what_needs_all_sessions() {
    let Some(fixture) = ReplayFixture::new("worker_options") else { return };
    fixture.write("server.log", &log("worker_options", 0..2).text);
    let import = ["capture", "import", "server.log", "-o", "monday"];
    fixture.howdah().args(import).assert().success();
    let words = |input: &str, worker: &str, more: &str| {
        let target = fixture.uri();
        let options = format!("--worker {worker} --start-at {} --run-id a {more}", start_in(0));
        let mut command = fixture.howdah();
        let words = format!("replay {input} --target {target} {options}");
        command.args(words.split_whitespace());
        command
    };
    for (input, worker, more, expected) in [
        ("monday", "0/2", "--order commit", "--worker 0/2 cannot be used with --order commit"),
        ("monday", "1/2", "--skip-idle 1s", "--worker 1/2 cannot be used with --skip-idle"),
        ("server.log", "0/2", "", "--worker needs a capture"),
        ("monday", "2/2", "", "write INDEX/COUNT"),
    ] {
        let refused = words(input, worker, more).assert().code(2);
        let refused = text(&refused.get_output().stderr);
        assert!(refused.contains(expected), "{refused}");
    }
    words("monday", "0/1", "--order commit").assert().success();
    // With more workers than sessions, some have nothing to do, and say so in the run.
    let run = fixture.path("run");
    for worker in 0..20 {
        words("monday", &format!("{worker}/20"), "-o run").assert().success();
    }
    let run: &Path = &run;
    let run = ReplayRun::open(run).unwrap();
    assert!(run.manifest().complete && run.missing_workers().is_empty());
    assert_eq!(run.manifest().outcomes, 24 + 12);
    // Another run is not mixed with this one.
    let mut other = fixture.howdah();
    let start = start_in(0);
    let target = fixture.uri();
    other.args(["replay", "monday", "--target", &target, "-o", "run", "--worker", "0/2"]);
    other.args(["--start-at", &start, "--run-id", "b"]);
    let refused = text(&other.assert().failure().get_output().stderr);
    assert!(refused.contains("already contains a run"), "{refused}");
    other.arg("--force").assert().success();
    assert_eq!(ReplayRun::open(&fixture.path("run")).unwrap().missing_workers(), [1]);
}
