//! The services run together for minutes or hours, while servers and services fail: nothing that
//! was acknowledged is lost, and memory and descriptors do not grow.
//!
//! `make soak` runs it for an hour. The faults depend on `HOWDAH_SOAK_SEED` only.

mod faults;
mod ledger;
mod replays;
mod service;
mod stats;

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use howdah_lab::{Cluster, skip_without_postgres, wait_until};

use self::{
    faults::{FaultPlan, Faults},
    ledger::Ledger,
    replays::ReplayLoop,
    service::Service,
    stats::StatsSender,
};
use crate::{as_this_user, howdah, pool::connect, text};

/// Maximum time for anything to recover.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Duration of the test if `HOWDAH_SOAK_SECONDS` does not set it.
const SECONDS: u64 = 100;

fn number_from_environment(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

/// Runs a statement directly at a server, and returns its first value.
fn value(server: &Cluster, sql: &str) -> String {
    connect(&server.uri("postgres")).unwrap().one_value(sql).unwrap().unwrap_or_default()
}

fn primary() -> Option<Cluster> {
    let primary = Cluster::builder()
        .setting("max_connections", "60")
        .setting("wal_level", "replica")
        .setting("hot_standby", "on")
        .start();
    skip_without_postgres("soak", primary)
}

const STATSD: &str = "\
[statsd]
flush-interval = 1
management = '127.0.0.1:0'
[[statsd.listen]]
type = 'udp'
address = '127.0.0.1:0'
[[statsd.listen]]
type = 'tcp'
address = '127.0.0.1:0'
[statsd.backends.file]
path = 'stats.tsv'
";

#[test]
fn services_survive_faults_together() {
    let Some(primary) = primary() else { return };
    let began = Instant::now();
    let duration = Duration::from_secs(number_from_environment("HOWDAH_SOAK_SECONDS", SECONDS));
    let seed = number_from_environment("HOWDAH_SOAK_SEED", 1);
    let scratch = tempfile::tempdir().unwrap();
    let folder = scratch.path();

    let standby = Cluster::builder().standby_of(&primary).start().unwrap();
    let mut faults = Faults::new(folder, primary, standby);
    let address = faults.pool_address();
    let ledger = Ledger::start(&address);

    let target = Cluster::builder().setting("shared_buffers", "64MB").start().unwrap();
    value(&target, ledger::TABLE);
    capture(folder, &address, &ledger);
    let statsd = start_statsd(folder);
    let probe = Service::start(
        folder,
        "probe",
        &["probe", "run", "-o", "flight.rec", "--max-size", "4MB", &target.uri("postgres")],
    );
    probe.wait_for("checkpoints ");
    let images = ["warm", "watch", "--interval", "5s", "-o", "images", &target.uri("postgres")];
    let warm = Service::start(folder, "warm", &images);
    warm.wait_for("image taken");
    let sender = StatsSender::start(&statsd);
    let replays = ReplayLoop::start(folder, target);

    let mut plan = FaultPlan::new(seed);
    let mut services = [statsd, probe, warm];
    while began.elapsed() < duration {
        let fault = plan.next_fault();
        faults.inject(fault, &services, &replays);
        ledger.wait_for_progress(&format!("writes after {fault:?}, seed {seed}"));
        services.iter_mut().for_each(Service::sample);
        faults.sample();
    }

    let acknowledged = ledger.finish();
    acknowledged.assert_stored(faults.primary());
    // The pooler must not send writes to a standby.
    let failed = acknowledged.failed();
    assert_eq!(failed.get("25006"), None, "{failed:?}");
    let sent = sender.finish();
    let replayed = replays.finish();
    assert!(replayed > 0, "no replay was completed");
    eprintln!("{} seconds, seed {seed}", began.elapsed().as_secs());
    eprintln!("faults: {}", plan.summary());
    eprintln!("rows acknowledged: {}; not acknowledged: {failed:?}", acknowledged.len());
    eprintln!("samples sent: {sent}, replays: {replayed}");
    let pool = faults.finish();
    for service in services.into_iter().chain([pool]) {
        eprintln!("{}", service.usage());
        service.assert_flat();
        service.terminate();
    }
    for counter in ["soak.tcp", "soak.udp"] {
        assert_eq!(stats::flushed(folder, counter), sent, "{counter}");
    }
    howdah(folder).args(["probe", "report", "flight.rec"]).assert().success();
    howdah(folder).args(["warm", "info", "images/newest.cache"]).assert().success();
}

/// Captures some of the ledger's traffic through the pooler, for the replays.
fn capture(folder: &Path, address: &str, ledger: &Ledger) {
    let mut console = connect(&format!("{address} dbname=howdah user=postgres")).unwrap();
    console.query("CAPTURE START soak").unwrap();
    for _ in 0..5 {
        ledger.wait_for_progress("captured writes");
    }
    console.query("CAPTURE STOP").unwrap();
    wait_until("the capture", TIMEOUT, || {
        let info = howdah(folder).args(["capture", "info", "captures/soak"]).output().unwrap();
        info.status.success()
    });
}

fn start_statsd(folder: &Path) -> Service {
    fs::write(folder.join("statsd.toml"), STATSD).unwrap();
    let statsd = Service::start(folder, "statsd", &["statsd", "-c", "statsd.toml"]);
    statsd.wait_for("management: ");
    statsd
}
