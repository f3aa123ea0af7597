//! Test servers, the contents of their caches, and daemons on threads.

use std::{path::Path, sync::Arc, thread, time::Duration};

use howdah_connect::{Client, ConnParams, ConnectTarget, Environment};
use howdah_lab::{Builder, Cluster, skip_without_postgres};
use howdah_stats::Registry;
use howdah_warm::daemon::{
    FollowSettings, ShutdownHandle, ShutdownSignal, WatchError, WatchSettings, follow, watch,
};
use howdah_warm::{dump::DumpSource, image::Generations, load::LoadOptions};
use rustix::process::{Pid, Signal, kill_process};

pub(crate) fn start(test: &str, builder: Builder) -> Option<Cluster> {
    skip_without_postgres(test, builder.setting("autovacuum", "off").start())
}

pub(crate) fn target(cluster: &Cluster) -> ConnectTarget {
    let params = ConnParams::from_conninfo(cluster.uri("postgres"));
    ConnectTarget::resolve(&params, &Environment::empty()).unwrap()
}

pub(crate) fn session(cluster: &Cluster) -> Client {
    Client::connect(&target(cluster)).unwrap()
}

/// Creates two tables of some hundred pages, and the extension that shows the cache.
pub(crate) fn create_tables(cluster: &Cluster) {
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

/// The number of cached pages of a table's main fork, and of all its pages. `None` if the server
/// does not respond.
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

/// Limit for everything that the tests wait for.
const WAIT_TIMEOUT: Duration = Duration::from_secs(120);

/// Waits until `condition` holds.
#[track_caller]
pub(crate) fn wait_until(what: &str, condition: impl FnMut() -> bool) {
    howdah_lab::wait_until(what, WAIT_TIMEOUT, condition);
}

pub(crate) fn wait_until_cached(cluster: &Cluster, table: &str) {
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

/// A daemon running on its own thread.
pub(crate) struct DaemonThread<T> {
    handle: ShutdownHandle,
    thread: thread::JoinHandle<T>,
    pub(crate) registry: Registry,
}

impl<T> DaemonThread<T> {
    pub(crate) fn stop(self) -> T {
        drop(self.handle);
        self.thread.join().unwrap()
    }

    /// The sum of a metric's lines that contain `part`.
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
        // The first image is taken immediately. Tests that need more set a shorter interval.
        interval: Some(Duration::from_secs(3600)),
        keep: Generations(2),
        row_keys: true,
        source: DumpSource::Best,
        load: LoadOptions { connect_timeout: Duration::from_secs(2), ..LoadOptions::default() },
        data_dir: None,
        readiness: Arc::default(),
    }
}

pub(crate) fn start_watch(settings: WatchSettings) -> DaemonThread<Result<(), WatchError>> {
    let registry = Registry::new();
    let (handle, stop) = ShutdownSignal::pair().unwrap();
    let daemon_registry = registry.clone();
    let thread = thread::spawn(move || watch(&settings, &stop, &daemon_registry));
    DaemonThread { handle, thread, registry }
}

pub(crate) fn start_follow(settings: FollowSettings) -> DaemonThread<()> {
    let registry = Registry::new();
    let (handle, stop) = ShutdownSignal::pair().unwrap();
    let daemon_registry = registry.clone();
    let thread = thread::spawn(move || follow(&settings, &stop, &daemon_registry));
    DaemonThread { handle, thread, registry }
}

pub(crate) const DUMPED: (&str, &str) = ("howdah_warm_dumps_total", "end=\"done\"");

/// Waits until `count` images were taken.
pub(crate) fn wait_for_images<T>(daemon: &DaemonThread<T>, count: u32) {
    let (name, part) = DUMPED;
    wait_until(&format!("{count} images"), || daemon.metric(name, part) >= f64::from(count));
}
