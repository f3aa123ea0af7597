//! Test servers of every available major version, and sessions on them.

use howdah_connect::{Client, ConnParams, ConnectTarget, Environment};
use howdah_inspect::{MAJORS, RunningServer};
use howdah_lab::{Cluster, skip_without_postgres};

/// Runs `check` on a small server of each major.
pub(crate) fn on_every_major(test: &str, check: impl Fn(&RunningServer, &mut Client)) {
    for major in MAJORS {
        let built = Cluster::builder().major(major).setting("shared_buffers", "4MB").start();
        let Some(cluster) = skip_without_postgres(&format!("{test} on {major}"), built) else {
            continue;
        };
        let server = RunningServer::in_data_dir(cluster.data_dir()).unwrap();
        assert_eq!(server.major(), major);
        check(&server, &mut session(&cluster));
    }
}

/// A server of any available major version.
pub(crate) fn cluster(test: &str) -> Option<Cluster> {
    skip_without_postgres(test, Cluster::builder().start())
}

/// A superuser's session.
pub(crate) fn session(cluster: &Cluster) -> Client {
    let words = ConnParams::from_conninfo(cluster.uri("postgres"));
    Client::connect(&ConnectTarget::resolve(&words, &Environment::empty()).unwrap()).unwrap()
}

/// Runs a query that returns a single number.
pub(crate) fn number(client: &mut Client, sql: &str) -> u64 {
    client.one_value(sql).unwrap().unwrap().parse().unwrap()
}
