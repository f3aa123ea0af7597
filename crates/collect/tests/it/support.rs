//! Servers, and sessions on them.

use std::time::{Duration, Instant};

use howdah_collect::{Activity, Server};
use howdah_connect::{Client, Environment, Target, Words};
use howdah_lab::{Builder, Cluster, or_say_why_not};

pub(crate) fn start(test: &str, how: Builder) -> Option<Cluster> {
    or_say_why_not(test, how.start())
}

/// A superuser's connection words for a database.
pub(crate) fn target(cluster: &Cluster, database: &str) -> Target {
    Target::resolve(&Words::from_conninfo(cluster.uri(database)), &Environment::empty()).unwrap()
}

pub(crate) fn session(target: &Target) -> Client {
    Client::connect(target).unwrap()
}

/// Runs a statement on its own session, from another thread, and gives what became of it.
pub(crate) fn run_elsewhere(
    target: &Target,
    sql: &str,
) -> (i32, std::thread::JoinHandle<Result<(), String>>) {
    let mut client = session(target);
    let pid = client.process_id().unwrap();
    let sql = sql.to_owned();
    let run = move || client.query(&sql).map(drop).map_err(|error| error.to_string());
    (pid, std::thread::spawn(run))
}

/// Reads activity until it is as `wanted`; a state of the server has no bell to wait for.
pub(crate) fn activity_when(server: &mut Server, wanted: impl Fn(&Activity) -> bool) -> Activity {
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        let activity = server.activity(false).unwrap();
        if wanted(&activity) {
            return activity;
        }
        assert!(Instant::now() < end, "never seen: {activity:#?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
