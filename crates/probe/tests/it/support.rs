//! Test servers of every available major version, sessions on them, and whether BPF programs may
//! run.

use std::{
    thread::{self, JoinHandle},
    time::Duration,
};

use howdah_connect::{Client, ConnParams, ConnectTarget, Environment};
use howdah_inspect::{MAJORS, RunningServer};
use howdah_lab::{Cluster, skip_without_postgres};
use howdah_probe::Capabilities;

/// Runs `check` on a small server of each major.
pub(crate) fn on_every_major(test: &str, check: impl Fn(&Cluster, &RunningServer)) {
    let settings = [
        ("shared_buffers", "16MB"),
        ("fsync", "on"),
        ("log_checkpoints", "on"),
        ("max_prepared_transactions", "2"),
    ];
    on_every_major_with(&settings, test, check);
}

/// Runs `check` on a server of each major version with these settings.
pub(crate) fn on_every_major_with(
    settings: &[(&str, &str)],
    test: &str,
    check: impl Fn(&Cluster, &RunningServer),
) {
    for major in MAJORS {
        let builder = Cluster::builder().major(major);
        let builder = settings.iter().fold(builder, |to, &(name, value)| to.setting(name, value));
        let built = builder.start();
        let Some(cluster) = skip_without_postgres(&format!("{test} on {major}"), built) else {
            continue;
        };
        let server = RunningServer::in_data_dir(cluster.data_dir()).unwrap();
        assert_eq!(server.major(), major);
        check(&cluster, &server);
    }
}

/// A server of any available major version.
pub(crate) fn cluster(test: &str) -> Option<Cluster> {
    skip_without_postgres(test, Cluster::builder().start())
}

/// A superuser's session.
pub(crate) fn session(cluster: &Cluster) -> Client {
    try_session(cluster).unwrap()
}

/// As [`session`], for a server that may not accept connections yet.
pub(crate) fn try_session(cluster: &Cluster) -> Option<Client> {
    Client::connect(&connect_target(cluster)).ok()
}

/// The address of the server for a superuser.
pub(crate) fn connect_target(cluster: &Cluster) -> ConnectTarget {
    let words = ConnParams::from_conninfo(cluster.uri("postgres"));
    ConnectTarget::resolve(&words, &Environment::empty()).unwrap()
}

pub(crate) fn pid(client: &Client) -> u32 {
    u32::try_from(client.process_id().unwrap()).unwrap()
}

/// Runs `sql` in a separate session and thread; returns the backend's process id. The session ends
/// with the server at the latest.
pub(crate) fn run_in_background(cluster: &Cluster, sql: &str) -> (u32, JoinHandle<()>) {
    let (mut client, sql) = (session(cluster), sql.to_owned());
    let pid = pid(&client);
    // The tests check the statement's effects, not its result.
    (pid, thread::spawn(move || drop(client.query(&sql))))
}

/// How long tests wait for a condition.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// Whether BPF programs may be run; prints why a test is skipped if not.
pub(crate) fn may_trace(test: &str) -> bool {
    let own = Capabilities::current();
    if !own.may_trace() {
        eprintln!("skipped {test}: needs {}", own.missing());
    }
    own.may_trace()
}

/// Runs a query that returns a single number.
pub(crate) fn number(client: &mut Client, sql: &str) -> u32 {
    client.one_value(sql).unwrap().unwrap().parse().unwrap()
}

/// Copies wide rows into the table `grown` from several sessions at once.
pub(crate) fn copy_concurrently(cluster: &Cluster) {
    const SESSIONS: usize = 8;
    let file = cluster.data_dir().join("rows.copy");
    let row = format!("{}\n", "x".repeat(1900));
    std::fs::write(&file, row.repeat(4000)).unwrap();
    let start = std::sync::Barrier::new(SESSIONS);
    thread::scope(|scope| {
        for _ in 0..SESSIONS {
            scope.spawn(|| {
                let mut client = session(cluster);
                start.wait();
                let from = file.display();
                client.query(&format!("COPY grown FROM '{from}'")).unwrap();
            });
        }
    });
}
