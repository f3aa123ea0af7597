//! Helpers: the binary, the servers, and the results of a replay.

use std::{
    io::Read as _,
    path::{Path, PathBuf},
    process::{Child, ExitStatus, Stdio},
    sync::LazyLock,
    time::Duration,
};

use assert_cmd::Command;
use howdah_connect::{Client, ConnParams, ConnectTarget, Environment};
use howdah_dataset::{Disposition, ReplayOutcome, ReplayRun};
use howdah_lab::{Cluster, skip_without_postgres, wait_for};
use howdah_traffic::Kind;
use serde_json::Value;

/// Maximum time for a process or a server to react.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(90);

/// The server shared by all tests that do not stop it. It is removed when the test process ends.
static SHARED: LazyLock<Option<Cluster>> =
    LazyLock::new(|| skip_without_postgres("replay", Cluster::builder().name("replay").start()));

/// A database of one test on the shared server, and a folder for its files.
pub(crate) struct ReplayFixture {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) cluster: &'static Cluster,
    pub(crate) database: String,
}

impl ReplayFixture {
    /// Creates the database; `None` if the test is skipped.
    pub(crate) fn new(database: &str) -> Option<Self> {
        let cluster = SHARED.as_ref()?;
        connect(cluster, "postgres").query(&format!("create database {database}")).unwrap();
        let folder = tempfile::tempdir().unwrap();
        Some(Self { folder, cluster, database: database.to_owned() })
    }

    pub(crate) fn client(&self) -> Client {
        connect(self.cluster, &self.database)
    }

    /// The first value of a query's result.
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

    /// The binary, in the test's folder. Other tests are active clients of the shared server.
    pub(crate) fn howdah(&self) -> Command {
        let mut command = howdah(self.folder.path());
        command.env("HOWDAH_REPLAY_ALLOW_PRODUCTION", &self.database);
        command
    }

    /// Replays a log with this text.
    pub(crate) fn replay(&self, log: &str, more: &[&str]) -> FinishedReplay {
        self.write("server.log", log);
        replay(self.folder.path(), "server.log", &self.uri(), more)
    }
}

/// The binary, in a folder, isolated from the user's settings and environment.
pub(crate) fn howdah(folder: &Path) -> Command {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("howdah"));
    for name in foreign_variables() {
        command.env_remove(name);
    }
    command.current_dir(folder).env("HOME", folder).env("COLUMNS", "100").timeout(TIMEOUT);
    command
}

fn foreign_variables() -> impl Iterator<Item = std::ffi::OsString> {
    std::env::vars_os().map(|(name, _)| name).filter(|name| {
        let name = name.to_string_lossy();
        ["HOWDAH", "PG", "XDG"].iter().any(|ours| name.starts_with(ours))
    })
}

/// The output of a command as text.
pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("output is not UTF-8")
}

/// Connects as the cluster's superuser.
pub(crate) fn connect(cluster: &Cluster, database: &str) -> Client {
    let words = ConnParams { conninfo: Some(cluster.uri(database)), ..ConnParams::default() };
    let environment = match cluster.password() {
        Some(password) => Environment::empty().with_variable("PGPASSWORD", password),
        None => Environment::empty(),
    };
    Client::connect(&ConnectTarget::resolve(&words, &environment).unwrap()).unwrap()
}

/// The first value of a query's result; empty for NULL and for no row.
pub(crate) fn value(client: &mut Client, sql: &str) -> String {
    client.one_value(sql).unwrap().unwrap_or_default()
}

/// The report and the run of a finished replay.
#[derive(Debug)]
pub(crate) struct FinishedReplay {
    pub(crate) report: Value,
    pub(crate) outcomes: Vec<ReplayOutcome>,
    pub(crate) complete: bool,
}

/// Replays into the run `run` in the folder; the replay must exit with 0.
pub(crate) fn replay(folder: &Path, input: &str, target: &str, more: &[&str]) -> FinishedReplay {
    let words = ["replay", input, "--target", target, "-o", "run", "--force", "--format", "json"];
    let mut command = howdah(folder);
    command.args(words).args(more);
    if !more.contains(&"--allow-production") {
        command.args(["--allow-production", database_of(target)]);
    }
    let done = command.assert().success();
    FinishedReplay::read(&done.get_output().stdout, &folder.join("run"))
}

/// The database that a connection string names.
fn database_of(conninfo: &str) -> &str {
    if let Some((_, name)) = conninfo.split_once("dbname=") {
        return name.split([' ', '&']).next().unwrap_or(name);
    }
    let (_, rest) = conninfo.split_once("://").expect("a URI or dbname");
    let (_, path) = rest.split_once('/').expect("a URI with a database");
    path.split('?').next().unwrap_or(path)
}

impl FinishedReplay {
    /// Reads a report and its run, and checks that their counts add up.
    pub(crate) fn read(report: &[u8], run: &Path) -> Self {
        let report: Value = serde_json::from_slice(report).unwrap();
        let run = ReplayRun::open(run).unwrap();
        assert!(run.manifest().finished, "{:?}", run.manifest());
        let outcomes: Vec<_> = run.outcomes().collect::<Result<_, _>>().unwrap();
        let replayed = Self { report, outcomes, complete: run.manifest().complete };
        let ends = &replayed.report["events"];
        assert_eq!(ends["total"], replayed.report["events_read"], "{}", replayed.report);
        assert_eq!(ends["total"], replayed.outcomes.len(), "{}", replayed.report);
        let names = ["done", "failed", "skipped", "dropped"];
        let sum = names.map(|end| ends[end].as_u64().unwrap());
        assert_eq!(ends["total"], sum.iter().sum::<u64>());
        for (end, sum) in names.into_iter().zip(sum) {
            assert_eq!(replayed.with_disposition(end).count() as u64, sum, "{end}");
        }
        replayed
    }

    /// Outcomes with a disposition: `done`, `failed`, `skipped` or `dropped`.
    pub(crate) fn with_disposition(&self, end: &str) -> impl Iterator<Item = &ReplayOutcome> {
        self.outcomes.iter().filter(move |outcome| disposition_name(outcome) == end)
    }

    /// The executed statements, in the order in which they were due.
    pub(crate) fn executions(&self) -> Vec<&ReplayOutcome> {
        let mut executions: Vec<_> =
            self.outcomes.iter().filter(|outcome| outcome.kind.is_execution()).collect();
        executions.sort_by_key(|outcome| (outcome.time, outcome.session.clone()));
        executions
    }

    /// Kind and disposition of all outcomes, sorted, for comparisons.
    pub(crate) fn kinds_and_dispositions(&self) -> Vec<(Kind, &'static str)> {
        let mut ends: Vec<_> =
            self.outcomes.iter().map(|outcome| (outcome.kind, disposition_name(outcome))).collect();
        ends.sort();
        ends
    }

    /// Checks that all events were replayed without error.
    pub(crate) fn assert_all_done(&self) {
        let bad: Vec<_> =
            self.outcomes.iter().filter(|outcome| disposition_name(outcome) != "done").collect();
        assert!(bad.is_empty(), "{bad:#?}");
        assert!(self.complete);
    }
}

/// The disposition's name, as in reports.
pub(crate) fn disposition_name(outcome: &ReplayOutcome) -> &'static str {
    match &outcome.disposition {
        Disposition::Done => "done",
        Disposition::Failed { .. } => "failed",
        Disposition::Skipped { .. } => "skipped",
        Disposition::Dropped { .. } => "dropped",
    }
}

/// When the complete reply was received, in microseconds since the start of the run.
pub(crate) fn ended_us(outcome: &ReplayOutcome) -> i64 {
    outcome.sent_us.unwrap() + i64::try_from(outcome.service_us.unwrap()).unwrap()
}

/// A replay that runs in the background.
pub(crate) struct ReplayProcess {
    child: Option<Child>,
    folder: PathBuf,
}

impl ReplayProcess {
    /// Starts a replay with a pipe as standard input.
    pub(crate) fn start(folder: &Path, input: &str, target: &str, more: &[&str]) -> Self {
        let mut command = std::process::Command::new(assert_cmd::cargo::cargo_bin!("howdah"));
        for name in foreign_variables() {
            command.env_remove(name);
        }
        let child = command
            .args(["replay", input, "--target", target, "-o", "run", "--format", "json"])
            .args(["--allow-production", database_of(target)])
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

    /// The process.
    pub(crate) fn child(&mut self) -> &mut Child {
        self.child.as_mut().unwrap()
    }

    /// Reads stderr up to a line with this text, and returns the rest of that line.
    pub(crate) fn read_announced(&mut self, label: &str) -> String {
        let stderr = self.child().stderr.as_mut().unwrap();
        // Byte by byte, so that the rest can still be read at the end.
        let mut line = Vec::new();
        loop {
            let mut byte = [0];
            assert_eq!(stderr.read(&mut byte).unwrap(), 1, "stderr ended without {label:?}");
            if byte[0] != b'\n' {
                line.push(byte[0]);
                continue;
            }
            let read = text(&std::mem::take(&mut line));
            if let Some((_, rest)) = read.split_once(label) {
                return rest.to_owned();
            }
        }
    }

    /// Sends SIGINT, like Ctrl-C.
    pub(crate) fn interrupt(&mut self) {
        use rustix::process::{Pid, Signal, kill_process};
        kill_process(Pid::from_child(self.child()), Signal::INT).unwrap();
    }

    /// Waits for the process to exit; returns its status, stderr, and results.
    pub(crate) fn wait(mut self) -> (ExitStatus, String, FinishedReplay) {
        // The output fits into the pipes' buffers, so it need not be read meanwhile.
        wait_for("the replay to exit", TIMEOUT, || self.child().try_wait().unwrap());
        let output = self.child.take().unwrap().wait_with_output().unwrap();
        let messages = text(&output.stderr);
        assert!(!output.stdout.is_empty(), "{:?}: {messages}", output.status);
        (output.status, messages, FinishedReplay::read(&output.stdout, &self.folder.join("run")))
    }
}

impl Drop for ReplayProcess {
    fn drop(&mut self) {
        // `child` is set only after a failed assertion.
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A held advisory lock, which blocks sessions that request it.
pub(crate) struct AdvisoryLock {
    client: Client,
    key: i64,
}

impl AdvisoryLock {
    pub(crate) fn acquire(mut client: Client, key: i64) -> Self {
        client.query(&format!("select pg_advisory_lock({key})")).unwrap();
        Self { client, key }
    }

    /// Waits until a session waits for the lock, and returns its process id.
    pub(crate) fn wait_for_waiter(&mut self) -> i32 {
        let sql = format!(
            "select pid from pg_locks where locktype = 'advisory' and objid = {} and not granted",
            self.key
        );
        wait_for("a session waiting for the lock", TIMEOUT, || {
            self.client.one_value(&sql).unwrap().map(|pid| pid.parse().unwrap())
        })
    }

    pub(crate) fn client(&mut self) -> &mut Client {
        &mut self.client
    }

    /// Releases the lock.
    pub(crate) fn release(mut self) {
        self.client.query("select pg_advisory_unlock_all()").unwrap();
    }
}
