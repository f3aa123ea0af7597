//! Servers of every major that can be had, sessions on them, and whether programs may run in the kernel.

use std::{
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use howdah_connect::{Client, Environment, Target, Words};
use howdah_inspect::{MAJORS, Server};
use howdah_lab::{Cluster, or_say_why_not};
use howdah_probe::Capabilities;

/// Runs `check` on a small server of each major.
pub(crate) fn on_every_major(test: &str, check: impl Fn(&Cluster, &Server)) {
    let settings = [
        ("shared_buffers", "16MB"),
        ("fsync", "on"),
        ("log_checkpoints", "on"),
        ("max_prepared_transactions", "2"),
    ];
    on_every_major_with(&settings, test, check);
}

/// Runs `check` on a server of each major with these settings.
pub(crate) fn on_every_major_with(
    settings: &[(&str, &str)],
    test: &str,
    check: impl Fn(&Cluster, &Server),
) {
    for major in MAJORS {
        let builder = Cluster::builder().major(major);
        let builder = settings.iter().fold(builder, |to, &(name, value)| to.setting(name, value));
        let built = builder.start();
        let Some(cluster) = or_say_why_not(&format!("{test} on {major}"), built) else { continue };
        let server = Server::in_data_dir(cluster.data_dir()).unwrap();
        assert_eq!(server.major(), major);
        check(&cluster, &server);
    }
}

/// One server, of whatever major is there.
pub(crate) fn cluster(test: &str) -> Option<Cluster> {
    or_say_why_not(test, Cluster::builder().start())
}

/// A superuser's session.
pub(crate) fn session(cluster: &Cluster) -> Client {
    try_session(cluster).unwrap()
}

/// The same of a server that may not be there yet.
pub(crate) fn try_session(cluster: &Cluster) -> Option<Client> {
    let words = Words::from_conninfo(cluster.uri("postgres"));
    Client::connect(&Target::resolve(&words, &Environment::empty()).unwrap()).ok()
}

pub(crate) fn pid(client: &Client) -> u32 {
    u32::try_from(client.process_id().unwrap()).unwrap()
}

/// Runs `sql` in a session of its own, which ends with the server at the latest. Gives its process id.
pub(crate) fn meanwhile(cluster: &Cluster, sql: &str) -> (u32, JoinHandle<()>) {
    let (mut client, sql) = (session(cluster), sql.to_owned());
    let pid = pid(&client);
    // What becomes of the statement is asserted by what the server does meanwhile.
    (pid, thread::spawn(move || drop(client.query(&sql))))
}

/// Asks until there is an answer.
pub(crate) fn until<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "waited a minute for {what}");
        // The pace of asking; nothing depends on it.
        thread::sleep(Duration::from_millis(1));
    }
}

/// Whether programs may be run in the kernel; says why a test is left out if not.
pub(crate) fn may_trace(test: &str) -> bool {
    let own = Capabilities::own();
    if !own.may_trace() {
        eprintln!("skipped {test}: needs {}", own.missing());
    }
    own.may_trace()
}

/// The only value of the only row, as a number.
pub(crate) fn number(client: &mut Client, sql: &str) -> u32 {
    client.one_value(sql).unwrap().unwrap().parse().unwrap()
}
