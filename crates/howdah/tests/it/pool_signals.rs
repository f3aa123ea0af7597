//! The signals of PgBouncer: SIGUSR1, SIGUSR2 and SIGQUIT.

use std::thread;

use howdah_connect::Client;
use howdah_lab::wait_until;
use rustix::process::Signal;

use crate::pool::{PoolerProcess, TIMEOUT, settings_without_password, start_cluster};

/// A value of SHOW STATE on the console.
fn show_state(console: &mut Client, key: &str) -> String {
    let table = console.query("show state").unwrap().remove(0);
    let row = table.rows.iter().find(|row| row.text(0).as_deref() == Some(key)).unwrap();
    row.text(1).unwrap().into_owned()
}

fn wait_for_state(console: &mut Client, key: &str, value: &str) {
    wait_until(&format!("{key} to be {value}"), TIMEOUT, || show_state(console, key) == value);
}

#[test]
fn usr1_pauses_usr2_resumes_quit_stops_immediately() {
    let Some(server) = start_cluster("signals") else { return };
    let folder = tempfile::tempdir().unwrap();
    let settings = settings_without_password(&server, "admin-users = ['postgres']");
    let pooler = PoolerProcess::start(folder.path(), "howdah.toml", &settings);
    let mut console = pooler.connect("user=postgres dbname=howdah").unwrap();
    let mut inside = pooler.connect("user=postgres").unwrap();
    inside.query("begin").unwrap();
    pooler.signal(Signal::USR1);
    wait_for_state(&mut console, "paused", "yes");
    let mut waits = pooler.connect("user=postgres").unwrap();
    let waiting = thread::spawn(move || waits.one_value("select 'served'").unwrap());
    wait_until("a waiting client", TIMEOUT, || {
        console.query("show pools").unwrap()[0]
            .rows
            .iter()
            .any(|row| row.text(3).as_deref() == Some("1"))
    });
    pooler.signal(Signal::USR2);
    assert_eq!(waiting.join().unwrap().as_deref(), Some("served"));
    wait_for_state(&mut console, "paused", "no");
    // SIGUSR2 also ends a suspension.
    console.query("suspend").unwrap();
    pooler.signal(Signal::USR2);
    wait_for_state(&mut console, "suspended", "no");

    pooler.signal(Signal::QUIT);
    let (status, messages) = pooler.wait();
    assert!(status.success(), "{messages}");
    inside.query("select 1").unwrap_err();
}
