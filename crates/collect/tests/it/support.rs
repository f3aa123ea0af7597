//! Test servers and sessions.

use std::time::Duration;

use howdah_collect::{Activity, MonitorConnection};
use howdah_connect::{Client, ConnParams, ConnectTarget, Environment};
use howdah_lab::{Builder, Cluster, skip_without_postgres, wait_for};

pub(crate) fn start(test: &str, how: Builder) -> Option<Cluster> {
    skip_without_postgres(test, how.start())
}

/// A superuser's connection target for a database.
pub(crate) fn target(cluster: &Cluster, database: &str) -> ConnectTarget {
    ConnectTarget::resolve(&ConnParams::from_conninfo(cluster.uri(database)), &Environment::empty())
        .unwrap()
}

pub(crate) fn session(target: &ConnectTarget) -> Client {
    Client::connect(target).unwrap()
}

/// Runs a statement in its own session on another thread, which returns the outcome.
pub(crate) fn run_in_thread(
    target: &ConnectTarget,
    sql: &str,
) -> (i32, std::thread::JoinHandle<Result<(), String>>) {
    let mut client = session(target);
    let pid = client.process_id().unwrap();
    let sql = sql.to_owned();
    let run = move || client.query(&sql).map(drop).map_err(|error| error.to_string());
    (pid, std::thread::spawn(run))
}

/// Samples activity until it satisfies `wanted`.
pub(crate) fn wait_for_activity(
    server: &mut MonitorConnection,
    wanted: impl Fn(&Activity) -> bool,
) -> Activity {
    wait_for("the awaited activity", Duration::from_secs(30), || {
        Some(server.activity(false).unwrap()).filter(|activity| wanted(activity))
    })
}
