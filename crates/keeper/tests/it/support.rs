//! Servers, what is in their caches, and keepers on threads of their own.

use std::{
    path::Path,
    thread,
    time::{Duration, Instant},
};

use howdah_connect::{Client, Environment, Target, Words};
use howdah_keeper::{FollowSettings, Stop, Stopper, WatchError, WatchSettings, follow, watch};
use howdah_lab::{Builder, Cluster, or_say_why_not};
use howdah_stats::Registry;
use howdah_warm::{dump::Choice, image::Generations, load::Options};
use rustix::process::{Pid, Signal, kill_process};

pub(crate) fn start(test: &str, how: Builder) -> Option<Cluster> {
    or_say_why_not(test, how.setting("autovacuum", "off").start())
}

pub(crate) fn target(cluster: &Cluster) -> Target {
    let words = Words::from_conninfo(cluster.uri("postgres"));
    Target::resolve(&words, &Environment::empty()).unwrap()
}

pub(crate) fn session(cluster: &Cluster) -> Client {
    Client::connect(&target(cluster)).unwrap()
}

/// Two tables of some hundred pages, and the extension by which the cache is looked at.
pub(crate) fn fill(cluster: &Cluster) {
    let sql = "CREATE EXTENSION pg_buffercache; CREATE EXTENSION pg_prewarm;
        CREATE TABLE early AS SELECT n, repeat('x', 200) AS pad FROM generate_series(1, 10000) n;
        CREATE TABLE late AS SELECT n, repeat('y', 200) AS pad FROM generate_series(1, 10000) n";
    let mut client = session(cluster);
    client.query(sql).unwrap();
    client.query("VACUUM").unwrap();
    client.query("CHECKPOINT").unwrap();
}

pub(crate) fn read(cluster: &Cluster, table: &str) {
    session(cluster).query(&format!("SELECT count(pad) FROM {table}")).unwrap();
}

/// Pages of a table's main fork that are in the cache, and all it has. Nothing while the server does not
/// answer.
pub(crate) fn resident(cluster: &Cluster, table: &str) -> Option<(u64, u64)> {
    let sql = format!(
        "SELECT (SELECT count(*) FROM pg_buffercache
                 WHERE relfilenode = pg_relation_filenode('{table}') AND relforknumber = 0
                 AND reldatabase = (SELECT oid FROM pg_database WHERE datname = 'postgres')),
                pg_relation_size('{table}') / 8192"
    );
    let results = Client::connect(&target(cluster)).ok()?.query(&sql).ok()?;
    let number = |column| results[0].rows[0].text(column)?.parse().ok();
    Some((number(0)?, number(1)?))
}

/// Waits for something that has to come.
pub(crate) fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(120);
    while !is_so() {
        assert!(Instant::now() < deadline, "in vain: {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

pub(crate) fn wait_until_whole(cluster: &Cluster, table: &str) {
    wait_until(&format!("{table} in the cache"), || {
        resident(cluster, table).is_some_and(|(cached, all)| cached == all && all > 100)
    });
}

pub(crate) fn kill(pid: u32) {
    signal(pid, Signal::KILL);
}

pub(crate) fn signal(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
}

/// A keeper at work.
pub(crate) struct Keeper<T> {
    stopper: Stopper,
    thread: thread::JoinHandle<T>,
    pub(crate) registry: Registry,
}

impl<T> Keeper<T> {
    pub(crate) fn stop(self) -> T {
        drop(self.stopper);
        self.thread.join().unwrap()
    }

    /// The sum of a metric's lines that hold `part`.
    pub(crate) fn metric(&self, name: &str, part: &str) -> f64 {
        let text = self.registry.prometheus();
        let lines = text.lines().filter(|line| line.starts_with(name) && line.contains(part));
        lines.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
    }
}

pub(crate) fn settings(cluster: &Cluster, folder: &Path) -> WatchSettings {
    WatchSettings {
        target: target(cluster),
        folder: folder.to_path_buf(),
        // The first image is taken at once; another only where a test wants it.
        interval: Some(Duration::from_secs(3600)),
        keep: Generations(2),
        choice: Choice::Best,
        load: Options { patience: Duration::from_secs(2), ..Options::default() },
        data_dir: None,
    }
}

pub(crate) fn keep(settings: WatchSettings) -> Keeper<Result<(), WatchError>> {
    let registry = Registry::new();
    let (stopper, stop) = Stop::pair().unwrap();
    let theirs = registry.clone();
    let thread = thread::spawn(move || watch(&settings, &stop, &theirs));
    Keeper { stopper, thread, registry }
}

pub(crate) fn keep_following(settings: FollowSettings) -> Keeper<()> {
    let registry = Registry::new();
    let (stopper, stop) = Stop::pair().unwrap();
    let theirs = registry.clone();
    let thread = thread::spawn(move || follow(&settings, &stop, &theirs));
    Keeper { stopper, thread, registry }
}

pub(crate) const DUMPED: (&str, &str) = ("howdah_warm_dumps_total", "end=\"done\"");

/// Waits until so many images were taken.
pub(crate) fn wait_for_images<T>(keeper: &Keeper<T>, count: u32) {
    let (name, part) = DUMPED;
    wait_until("an image", || keeper.metric(name, part) >= f64::from(count));
}
