//! The binary, the servers, and what a replay left behind.

use std::{
    path::{Path, PathBuf},
    process::{Child, ExitStatus, Stdio},
    sync::LazyLock,
    time::{Duration, Instant},
};

use assert_cmd::Command;
use howdah_connect::{Client, Environment, Target, Words};
use howdah_dataset::{Disposition, ReplayOutcome, Run};
use howdah_lab::{Cluster, or_say_why_not};
use howdah_traffic::Kind;
use serde_json::Value;

/// After this long, whatever was waited for is not going to happen.
const PATIENCE: Duration = Duration::from_secs(90);

/// The server of all tests that do it no harm. It goes when the test process ends.
static SHARED: LazyLock<Option<Cluster>> =
    LazyLock::new(|| or_say_why_not("replay", Cluster::builder().name("replay").start()));

/// A database of a test's own on the shared server, and a folder for its files.
pub(crate) struct Stage {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) cluster: &'static Cluster,
    pub(crate) database: String,
}

impl Stage {
    /// `None`, after saying so, where there is no PostgreSQL.
    pub(crate) fn new(database: &str) -> Option<Self> {
        let cluster = SHARED.as_ref()?;
        connect(cluster, "postgres").query(&format!("create database {database}")).unwrap();
        let folder = tempfile::tempdir().unwrap();
        Some(Self { folder, cluster, database: database.to_owned() })
    }

    pub(crate) fn client(&self) -> Client {
        connect(self.cluster, &self.database)
    }

    /// The one value that this query gives.
    pub(crate) fn value(&self, sql: &str) -> String {
        value(&mut self.client(), sql)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).unwrap();
    }

    pub(crate) fn uri(&self) -> String {
        self.cluster.uri(&self.database)
    }

    /// Replays a log of this text.
    pub(crate) fn replay(&self, log: &str, more: &[&str]) -> Replayed {
        self.write("server.log", log);
        replay(self.folder.path(), "server.log", &self.uri(), more)
    }
}

/// The binary, in a folder of its own, out of reach of the tester's settings.
pub(crate) fn howdah(folder: &Path) -> Command {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("howdah"));
    for name in foreign_variables() {
        command.env_remove(name);
    }
    command.current_dir(folder).env("HOME", folder).env("COLUMNS", "100").timeout(PATIENCE);
    command
}

fn foreign_variables() -> impl Iterator<Item = std::ffi::OsString> {
    std::env::vars_os().map(|(name, _)| name).filter(|name| {
        let name = name.to_string_lossy();
        ["HOWDAH", "PG", "XDG"].iter().any(|ours| name.starts_with(ours))
    })
}

/// What a command said on a stream.
pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("output is UTF-8")
}

/// A client of the cluster's superuser.
pub(crate) fn connect(cluster: &Cluster, database: &str) -> Client {
    let words = Words { conninfo: Some(cluster.uri(database)), ..Words::default() };
    let environment = match cluster.password() {
        Some(password) => Environment::empty().with_variable("PGPASSWORD", password),
        None => Environment::empty(),
    };
    Client::connect(&Target::resolve(&words, &environment).unwrap()).unwrap()
}

/// The one value that this query gives; empty for NULL and for no row.
pub(crate) fn value(client: &mut Client, sql: &str) -> String {
    client.one_value(sql).unwrap().unwrap_or_default()
}

/// What a finished replay said and wrote.
#[derive(Debug)]
pub(crate) struct Replayed {
    pub(crate) report: Value,
    pub(crate) outcomes: Vec<ReplayOutcome>,
    pub(crate) complete: bool,
}

/// Replays into the run `run` of the folder, and expects exit code 0.
pub(crate) fn replay(folder: &Path, input: &str, target: &str, more: &[&str]) -> Replayed {
    let words = ["replay", input, "--target", target, "-o", "run", "--force", "--format", "json"];
    let done = howdah(folder).args(words).args(more).assert().success();
    Replayed::read(&done.get_output().stdout, &folder.join("run"))
}

impl Replayed {
    /// Reads a report and the run it tells of, and checks that both close their sums.
    pub(crate) fn read(report: &[u8], run: &Path) -> Self {
        let report: Value = serde_json::from_slice(report).unwrap();
        let run = Run::open(run).unwrap();
        assert!(run.manifest().finished, "{:?}", run.manifest());
        let outcomes: Vec<_> = run.outcomes().collect::<Result<_, _>>().unwrap();
        let replayed = Self { report, outcomes, complete: run.manifest().complete };
        let ends = &replayed.report["events"];
        assert_eq!(ends["total"], replayed.report["events_read"], "{}", replayed.report);
        assert_eq!(ends["total"], replayed.outcomes.len(), "{}", replayed.report);
        let sum = ["done", "failed", "skipped"].map(|end| ends[end].as_u64().unwrap());
        assert_eq!(ends["total"], sum.iter().sum::<u64>());
        for (end, sum) in ["done", "failed", "skipped"].into_iter().zip(sum) {
            assert_eq!(replayed.ended(end).count() as u64, sum, "{end}");
        }
        replayed
    }

    /// Outcomes that ended in one way: `done`, `failed` or `skipped`.
    pub(crate) fn ended(&self, end: &str) -> impl Iterator<Item = &ReplayOutcome> {
        self.outcomes.iter().filter(move |outcome| word(outcome) == end)
    }

    /// What clients would call statements, in the order in which they were due.
    pub(crate) fn executions(&self) -> Vec<&ReplayOutcome> {
        let mut executions: Vec<_> =
            self.outcomes.iter().filter(|outcome| outcome.kind.is_execution()).collect();
        executions.sort_by_key(|outcome| (outcome.time, outcome.session.clone()));
        executions
    }

    /// Kind and end of all outcomes, for comparisons.
    pub(crate) fn kinds_and_ends(&self) -> Vec<(Kind, &'static str)> {
        let mut ends: Vec<_> =
            self.outcomes.iter().map(|outcome| (outcome.kind, word(outcome))).collect();
        ends.sort();
        ends
    }

    /// Everything that was asked for went well.
    pub(crate) fn assert_all_done(&self) {
        let bad: Vec<_> = self.outcomes.iter().filter(|outcome| word(outcome) != "done").collect();
        assert!(bad.is_empty(), "{bad:#?}");
        assert!(self.complete);
    }
}

/// How it ended, in a word.
pub(crate) fn word(outcome: &ReplayOutcome) -> &'static str {
    match &outcome.disposition {
        Disposition::Done => "done",
        Disposition::Failed { .. } => "failed",
        Disposition::Skipped { .. } => "skipped",
    }
}

/// When the whole answer was there, since the start of the run.
pub(crate) fn ended_us(outcome: &ReplayOutcome) -> i64 {
    outcome.sent_us.unwrap() + i64::try_from(outcome.service_us.unwrap()).unwrap()
}

/// A replay that runs while the test does something else.
pub(crate) struct Running {
    child: Option<Child>,
    folder: PathBuf,
}

impl Running {
    /// Starts it, with a pipe at its standard input.
    pub(crate) fn start(folder: &Path, input: &str, target: &str, more: &[&str]) -> Self {
        let mut command = std::process::Command::new(assert_cmd::cargo::cargo_bin!("howdah"));
        for name in foreign_variables() {
            command.env_remove(name);
        }
        let child = command
            .args(["replay", input, "--target", target, "-o", "run", "--format", "json"])
            .args(more)
            .current_dir(folder)
            .env("HOME", folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Self { child: Some(child), folder: folder.to_owned() }
    }

    /// Its process, until it is waited for.
    pub(crate) fn child(&mut self) -> &mut Child {
        self.child.as_mut().unwrap()
    }

    /// What Ctrl-C does.
    pub(crate) fn interrupt(&mut self) {
        use rustix::process::{Pid, Signal, kill_process};
        kill_process(Pid::from_child(self.child()), Signal::INT).unwrap();
    }

    /// Waits for its end: how it ended, what it said on stderr, and what it played.
    pub(crate) fn wait(mut self) -> (ExitStatus, String, Replayed) {
        // It says less than a pipe holds, so nobody has to read meanwhile.
        until("the replay ends", || self.child().try_wait().unwrap());
        let output = self.child.take().unwrap().wait_with_output().unwrap();
        let said = text(&output.stderr);
        assert!(!output.stdout.is_empty(), "{:?}: {said}", output.status);
        (output.status, said, Replayed::read(&output.stdout, &self.folder.join("run")))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Only after a failed assertion.
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Asks again and again until there is an answer.
pub(crate) fn until<T>(what: &str, mut answer: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(answer) = answer() {
            return answer;
        }
        assert!(Instant::now() < deadline, "never happened: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Holds an advisory lock, which stops the sessions that want it until they are let go on.
pub(crate) struct Gate {
    client: Client,
    key: i64,
}

impl Gate {
    pub(crate) fn close(mut client: Client, key: i64) -> Self {
        client.query(&format!("select pg_advisory_lock({key})")).unwrap();
        Self { client, key }
    }

    /// Waits until somebody stands before it; who, by process id.
    pub(crate) fn wait_for_one(&mut self) -> i32 {
        let sql = format!(
            "select pid from pg_locks where locktype = 'advisory' and objid = {} and not granted",
            self.key
        );
        until("somebody waits for the lock", || {
            self.client.one_value(&sql).unwrap().map(|pid| pid.parse().unwrap())
        })
    }

    pub(crate) fn client(&mut self) -> &mut Client {
        &mut self.client
    }

    /// Lets all go on.
    pub(crate) fn open(mut self) {
        self.client.query("select pg_advisory_unlock_all()").unwrap();
    }
}
