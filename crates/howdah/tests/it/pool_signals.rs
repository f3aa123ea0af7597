//! Signals that operators of PgBouncer know.

use std::{
    thread,
    time::{Duration, Instant},
};

use howdah_connect::Client;
use rustix::process::Signal;

use crate::pool::{Server, cluster, trusting};

/// A row of SHOW STATE at the console.
fn state(console: &mut Client, key: &str) -> String {
    let table = console.query("show state").unwrap().remove(0);
    let row = table.rows.iter().find(|row| row.text(0).as_deref() == Some(key)).unwrap();
    row.text(1).unwrap().into_owned()
}

fn until(console: &mut Client, key: &str, value: &str) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while state(console, key) != value {
        assert!(Instant::now() < deadline, "{key} is not {value} within a minute");
        thread::yield_now();
    }
}

#[test]
fn usr1_pauses_usr2_resumes_and_quit_ends_at_once() {
    let Some(server) = cluster("signals") else { return };
    let folder = tempfile::tempdir().unwrap();
    let settings = trusting(&server, "admin-users = ['postgres']");
    let pooler = Server::start(folder.path(), "howdah.toml", &settings);
    let mut console = pooler.connect("user=postgres dbname=howdah").unwrap();
    let mut inside = pooler.connect("user=postgres").unwrap();
    inside.query("begin").unwrap();
    pooler.send(Signal::USR1);
    until(&mut console, "paused", "yes");
    let mut waits = pooler.connect("user=postgres").unwrap();
    let waiting = thread::spawn(move || waits.one_value("select 'served'").unwrap());
    let deadline = Instant::now() + Duration::from_secs(60);
    while console.query("show pools").unwrap()[0].rows[0].text(3).as_deref() != Some("1") {
        assert!(Instant::now() < deadline, "nobody waits within a minute");
    }
    pooler.send(Signal::USR2);
    assert_eq!(waiting.join().unwrap().as_deref(), Some("served"));
    until(&mut console, "paused", "no");
    // A suspension is ended by it, too.
    console.query("suspend").unwrap();
    pooler.send(Signal::USR2);
    until(&mut console, "suspended", "no");

    pooler.send(Signal::QUIT);
    let (status, said) = pooler.end();
    assert!(status.success(), "{said}");
    inside.query("select 1").unwrap_err();
}
