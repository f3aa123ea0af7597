//! Servers of every major that can be had, and sessions on them.

use howdah_connect::{Client, Environment, Target, Words};
use howdah_inspect::{MAJORS, Server};
use howdah_lab::{Cluster, or_say_why_not};

/// Runs `check` on a small server of each major.
pub(crate) fn on_every_major(test: &str, check: impl Fn(&Server, &mut Client)) {
    for major in MAJORS {
        let built = Cluster::builder().major(major).setting("shared_buffers", "4MB").start();
        let Some(cluster) = or_say_why_not(&format!("{test} on {major}"), built) else { continue };
        let server = Server::in_data_dir(cluster.data_dir()).unwrap();
        assert_eq!(server.major(), major);
        check(&server, &mut session(&cluster));
    }
}

/// One server, of whatever major is there.
pub(crate) fn cluster(test: &str) -> Option<Cluster> {
    or_say_why_not(test, Cluster::builder().start())
}

/// A superuser's session.
pub(crate) fn session(cluster: &Cluster) -> Client {
    let words = Words::from_conninfo(cluster.uri("postgres"));
    Client::connect(&Target::resolve(&words, &Environment::empty()).unwrap()).unwrap()
}

/// The only value of the only row, as a number.
pub(crate) fn number(client: &mut Client, sql: &str) -> u64 {
    client.one_value(sql).unwrap().unwrap().parse().unwrap()
}
