//! Startup packets in all protocol versions, with old and new servers.

use howdah_lab::{Cluster, skip_without_postgres, wait_until};

use crate::support::{PoolFixture, RawClient, WAIT_TIMEOUT, start_pooler};

/// The length of the secret key that a client of protocol 3.`minor` gets, and the
/// NegotiateProtocolVersion message, if any.
fn cancel_key_for(fixture: &PoolFixture, minor: u16, more: &str) -> (usize, Option<Vec<u8>>) {
    let mut raw = RawClient::connect(fixture.address());
    raw.send_startup(minor, more);
    let messages = raw.read_until(b'Z');
    let of = |wanted: u8| messages.iter().find(|(tag, _)| *tag == wanted).map(|it| it.1.clone());
    raw.send_query("select 1");
    assert!(raw.read_until(b'Z').iter().any(|(tag, _)| *tag == b'D'));
    (of(b'K').unwrap().len() - 4, of(b'v'))
}

fn check_versions(major: u32) {
    let built = Cluster::builder().name("pool-versions").major(major).start();
    let Some(server) = skip_without_postgres("versions", built) else { return };
    let pooler = start_pooler(&server, "");
    let fixture = PoolFixture { server, pooler };
    let agreed = |minor: u8, names: &[u8]| {
        let count = u32::from(!names.is_empty()).to_be_bytes();
        Some([&[0, 3, 0, minor][..], &count, names].concat())
    };
    assert_eq!(cancel_key_for(&fixture, 0, ""), (4, None));
    assert_eq!(cancel_key_for(&fixture, 2, ""), (32, None));
    // A future version, and an unknown option.
    assert_eq!(cancel_key_for(&fixture, 9, ""), (32, agreed(2, b"")));
    let grease = "_pq_.unknown\0on\0";
    assert_eq!(cancel_key_for(&fixture, 0, grease).1, agreed(0, b"_pq_.unknown\0"));

    // The keys are valid for cancels, from the client to the server.
    let mut child = fixture.command("psql");
    let sleep = "select pg_sleep(600)";
    let child = child.args(["-c", sleep]).stderr(std::process::Stdio::piped()).spawn().unwrap();
    let running = format!("select count(*) from pg_stat_activity where query = '{sleep}'");
    wait_until("the statement to run", WAIT_TIMEOUT, || fixture.query_server(&running) == "1");
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let output = String::from_utf8(child.wait_with_output().unwrap().stderr).unwrap();
    assert!(output.contains("canceling statement due to user request"), "{output}");
}

#[test]
fn protocol_version_is_negotiated_with_postgresql_15() {
    check_versions(15);
}

#[test]
fn protocol_version_is_negotiated_with_postgresql_18() {
    check_versions(18);
}

#[test]
fn startup_parameters_apply_as_at_server() {
    let Some(fixture) = PoolFixture::start("parameters", "") else { return };
    let mut raw = RawClient::connect(fixture.address());
    raw.send_startup(0, "application_name\0first\0options\0-c DateStyle=German --TimeZone=UTC\0");
    raw.read_until(b'Z');
    raw.send_query("select concat_ws('|', current_setting('application_name'), date '2026-02-01')");
    let row = raw.read_until(b'Z').into_iter().find(|(tag, _)| *tag == b'D').unwrap().1;
    assert!(row.ends_with(b"first|01.02.2026"), "{}", String::from_utf8_lossy(&row));

    // An attempt of SQL injection.
    let hostile = "x'; drop table pg_class; --\\";
    let mut raw = RawClient::connect(fixture.address());
    raw.send_startup(0, &format!("application_name\0{hostile}\0"));
    raw.read_until(b'Z');
    raw.send_query("show application_name");
    let row = raw.read_until(b'Z').into_iter().find(|(tag, _)| *tag == b'D').unwrap().1;
    assert!(row.ends_with(hostile.as_bytes()), "{}", String::from_utf8_lossy(&row));

    // A parameter that cannot be tracked is refused by name.
    let mut raw = RawClient::connect(fixture.address());
    raw.send_startup(0, "work_mem\x001GB\0");
    let (tag, body) = raw.read_message().unwrap();
    assert_eq!(tag, b'E');
    assert!(String::from_utf8_lossy(&body).contains("work_mem"));
}
