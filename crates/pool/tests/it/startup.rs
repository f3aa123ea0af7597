//! What clients may begin with, in either version of the protocol, at old servers and new ones.

use howdah_lab::{Cluster, or_say_why_not};

use crate::support::{Raw, Stage, pooler};

/// The secret part of the key that a client of protocol 3.`minor` gets, and what it was told about
/// versions.
fn key_for(stage: &Stage, minor: u16, more: &str) -> (usize, Option<Vec<u8>>) {
    let mut raw = Raw::connect(stage.address());
    raw.start(minor, more);
    let messages = raw.until(b'Z');
    let of = |wanted: u8| messages.iter().find(|(tag, _)| *tag == wanted).map(|it| it.1.clone());
    raw.query("select 1");
    assert!(raw.until(b'Z').iter().any(|(tag, _)| *tag == b'D'));
    (of(b'K').unwrap().len() - 4, of(b'v'))
}

fn versions_are_agreed_on_at(major: u32) {
    let built = Cluster::builder().name("pool-versions").major(major).start();
    let Some(server) = or_say_why_not("versions", built) else { return };
    let pooler = pooler(&server, "");
    let stage = Stage { server, pooler };
    let agreed = |minor: u8, names: &[u8]| {
        let count = u32::from(!names.is_empty()).to_be_bytes();
        Some([&[0, 3, 0, minor][..], &count, names].concat())
    };
    assert_eq!(key_for(&stage, 0, ""), (4, None));
    assert_eq!(key_for(&stage, 2, ""), (32, None));
    // One that does not exist yet, and an option that nobody knows.
    assert_eq!(key_for(&stage, 9, ""), (32, agreed(2, b"")));
    let grease = "_pq_.nobody_knows\0on\0";
    assert_eq!(key_for(&stage, 0, grease).1, agreed(0, b"_pq_.nobody_knows\0"));

    // The keys are good for something, on both legs.
    let mut child = stage.command("psql");
    let sleep = "select pg_sleep(600)";
    let child = child.args(["-c", sleep]).stderr(std::process::Stdio::piped()).spawn().unwrap();
    let running = format!("select count(*) from pg_stat_activity where query = '{sleep}'");
    while stage.direct(&running) != "1" {}
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let said = String::from_utf8(child.wait_with_output().unwrap().stderr).unwrap();
    assert!(said.contains("canceling statement due to user request"), "{said}");
}

#[test]
fn versions_are_agreed_on_before_postgresql_15() {
    versions_are_agreed_on_at(15);
}

#[test]
fn versions_are_agreed_on_before_postgresql_18() {
    versions_are_agreed_on_at(18);
}

#[test]
fn options_and_parameters_begin_a_connection_as_at_the_server() {
    let Some(stage) = Stage::set("parameters", "") else { return };
    let mut raw = Raw::connect(stage.address());
    raw.start(0, "application_name\0first\0options\0-c DateStyle=German --TimeZone=UTC\0");
    raw.until(b'Z');
    raw.query("select concat_ws('|', current_setting('application_name'), date '2026-02-01')");
    let row = raw.until(b'Z').into_iter().find(|(tag, _)| *tag == b'D').unwrap().1;
    assert!(row.ends_with(b"first|01.02.2026"), "{}", String::from_utf8_lossy(&row));

    // A value that tries to be more than a value.
    let hostile = "x'; drop table pg_class; --\\";
    let mut raw = Raw::connect(stage.address());
    raw.start(0, &format!("application_name\0{hostile}\0"));
    raw.until(b'Z');
    raw.query("show application_name");
    let row = raw.until(b'Z').into_iter().find(|(tag, _)| *tag == b'D').unwrap().1;
    assert!(row.ends_with(hostile.as_bytes()), "{}", String::from_utf8_lossy(&row));

    // What would get lost on the way from server to server is refused by name.
    let mut raw = Raw::connect(stage.address());
    raw.start(0, "work_mem\x001GB\0");
    let (tag, body) = raw.message().unwrap();
    assert_eq!(tag, b'E');
    assert!(String::from_utf8_lossy(&body).contains("work_mem"));
}
