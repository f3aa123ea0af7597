//! Faults: killed servers, vanishing clients, invalid messages, and the pooler's shutdown.

use std::io::Write as _;

use howdah_lab::wait_until;

use crate::support::{PoolFixture, RawClient, WAIT_TIMEOUT};

#[test]
fn invalid_startup_packet_closes_connection() {
    let Some(fixture) = PoolFixture::start("garbage", "") else { return };
    let long = [&[0, 0, 0x27, 0x11][..], &[0; 9996]].concat();
    let cases: [&[u8]; 7] = [
        b"\0\0\0\x04",
        b"\0\0\0\x07\0\0\0",
        b"\x7f\xff\xff\xff\0\x03\0\0",
        b"GET / HTTP/1.1\r\n\r\n",
        &long,
        // Plain bytes after a request for TLS.
        b"\0\0\0\x08\x04\xd2\x16\x2f\0\0\0\x09\0\x03\0\0\0",
        // Two requests for TLS.
        b"\0\0\0\x08\x04\xd2\x16\x2f",
    ];
    let mut asked_twice = false;
    for case in cases {
        let mut raw = RawClient::connect(fixture.address());
        raw.0.write_all(case).unwrap();
        if case.len() == 8 && case[4] == 4 {
            let mut answer = [0];
            std::io::Read::read_exact(&mut raw.0, &mut answer).unwrap();
            assert_eq!(answer, *b"N");
            raw.0.write_all(case).unwrap();
            asked_twice = true;
        }
        assert!(raw.is_disconnected(), "{case:?}");
    }
    assert!(asked_twice);
    assert_eq!(fixture.psql(&["select 1"]), "1");
}

#[test]
fn invalid_message_length_disconnects_client_only() {
    let Some(fixture) = PoolFixture::start("lengths", "") else { return };
    let mut other = RawClient::log_in(fixture.address());
    for header in [b"Q\0\0\0\x03", b"Q\xff\xff\xff\xff", b"\0\0\0\0\x04"] {
        let mut raw = RawClient::log_in(fixture.address());
        raw.0.write_all(header).unwrap();
        assert!(raw.is_disconnected(), "{header:?}");
    }
    other.send_query("select 7");
    assert!(other.read_until(b'Z').iter().any(|(tag, body)| *tag == b'D' && body.ends_with(b"7")));
}

#[test]
fn killed_server_disconnects_its_client_only() {
    let Some(mut fixture) = PoolFixture::start("killed", "") else { return };
    let mut raw = RawClient::log_in(fixture.address());
    raw.send_query("begin");
    raw.read_until(b'Z');
    fixture.server.kill().unwrap();
    assert!(raw.is_disconnected());
    fixture.server.start().unwrap();
    // Until the server has recovered, clients get an error or wait.
    let succeeds = || fixture.run_program("psql", &["-XAtqc", "select 1"]).status.success();
    wait_until("the server to recover", WAIT_TIMEOUT, succeeds);
}

#[test]
fn vanished_clients_leave_no_state() {
    let Some(fixture) = PoolFixture::start("vanish", "sizes = { pool = 1 }") else { return };
    let states: [fn(&mut RawClient); 6] = [
        |_| {},
        |raw| raw.send_query("begin; select 1"),
        |raw| {
            raw.send_query("begin; select 1");
            raw.read_until(b'Z');
        },
        |raw| raw.send_query("select pg_sleep(600)"),
        |raw| raw.send(b'P', b"\0select 1\0\0\0"),
        |raw| raw.0.write_all(b"Q\0\0\0\x20select").unwrap(),
    ];
    for state in states {
        let mut raw = RawClient::log_in(fixture.address());
        state(&mut raw);
        drop(raw);
        let mut next = RawClient::log_in(fixture.address());
        next.send_query(
            "select pg_current_xact_id_if_assigned() is null, txid_current() is not null",
        );
        let answers = next.read_until(b'Z');
        assert_eq!(answers.last().unwrap().1, b"I");
    }
}

#[test]
fn cancel_ends_statement_of_its_client() {
    let Some(fixture) = PoolFixture::start("cancel", "") else { return };
    let mut command = fixture.command("psql");
    command.args(["-XAtq", "-c", "set statement_timeout = 0", "-c", "select pg_sleep(600)"]);
    let child = command.stderr(std::process::Stdio::piped()).spawn().unwrap();
    let running = "select count(*) from pg_stat_activity where query like 'select pg_sleep%'";
    wait_until("the statement to run", WAIT_TIMEOUT, || fixture.query_server(running) == "1");
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let output = child.wait_with_output();
    let text = String::from_utf8(output.unwrap().stderr).unwrap();
    assert!(text.contains("canceling statement due to user request"), "{text}");
}

#[test]
fn drain_disconnects_idle_clients_and_waits_for_transactions() {
    let Some(fixture) = PoolFixture::start("drain", "") else { return };
    let (mut idle, mut busy) =
        (RawClient::log_in(fixture.address()), RawClient::log_in(fixture.address()));
    busy.send_query("begin");
    busy.read_until(b'Z');
    fixture.pooler.drain();
    let (tag, body) = idle.read_message().unwrap();
    assert_eq!(tag, b'E');
    assert!(body.windows(5).any(|five| five == b"57P01"));
    busy.send_query("select 5");
    assert!(busy.read_until(b'Z').iter().any(|(tag, body)| *tag == b'D' && body.ends_with(b"5")));
    busy.send_query("commit");
    busy.read_until(b'E');
    assert!(busy.is_disconnected());
    fixture.pooler.join().unwrap();
}

#[test]
fn client_that_does_not_read_costs_bounded_memory() {
    if !has_own_process("faults::client_that_does_not_read_costs_bounded_memory") {
        return;
    }
    let Some(fixture) = PoolFixture::start("slow reader", "") else { return };
    let mut slow = RawClient::log_in(fixture.address());
    let before = resident_bytes();
    slow.send_query("select repeat('x', 1000) from generate_series(1, 300000)");
    let (tag, _) = slow.read_message().unwrap();
    assert_eq!(tag, b'T');
    // The server is blocked once it waits for the pooler to read.
    let stuck = "select count(*) from pg_stat_activity where wait_event = 'ClientWrite'";
    wait_until("the server to block", WAIT_TIMEOUT, || fixture.query_server(stuck) == "1");
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < 64 << 20, "grew by {grown} bytes");
    let rows = slow.read_until(b'Z').iter().filter(|(tag, _)| *tag == b'D').count();
    assert_eq!(rows, 300_000);
}

/// Whether this test is alone in its process, so that memory can be measured. If not, runs it in a
/// process of its own, where it must pass.
fn has_own_process(test: &str) -> bool {
    const ALONE: &str = "HOWDAH_TEST_ALONE";
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let mut test_binary = std::process::Command::new(std::env::current_exe().unwrap());
    let done = test_binary.args(["--exact", test, "--nocapture"]).env(ALONE, "1").output().unwrap();
    let output = [done.stdout, done.stderr].concat();
    let output = String::from_utf8_lossy(&output);
    assert!(done.status.success() && output.contains("1 passed"), "{output}");
    false
}

fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

#[test]
fn half_closed_client_does_not_close_its_server() {
    let Some(fixture) = PoolFixture::start("half closed", "sizes = { pool = 1 }") else { return };
    let mut raw = RawClient::log_in(fixture.address());
    raw.send_query("select pg_backend_pid()");
    let first = raw.read_until(b'Z');
    raw.send_query("begin; select 1");
    raw.0.shutdown(std::net::Shutdown::Write).unwrap();
    assert!(raw.is_disconnected());
    // Its transaction is rolled back, and the server connection is reused.
    let mut next = RawClient::log_in(fixture.address());
    next.send_query("select pg_backend_pid()");
    assert_eq!(next.read_until(b'Z'), first);
}

#[test]
fn terminated_idle_servers_are_replaced() {
    let Some(fixture) = PoolFixture::start("idle servers end", "sizes = { pool = 3 }") else {
        return;
    };
    let mut raw = RawClient::log_in(fixture.address());
    // The connections of `query_server` are those of psql, and may still be closing.
    let of_the_pooler = "from pg_stat_activity \
                         where backend_type = 'client backend' and application_name <> 'psql'";
    let end = format!("select count(pg_terminate_backend(pid)) {of_the_pooler}");
    let left = format!("select count(*) {of_the_pooler}");
    for _ in 0..20 {
        raw.send_query("select 1");
        raw.read_until(b'Z');
        assert_eq!(fixture.query_server(&end), "1");
        wait_until("the backend to end", WAIT_TIMEOUT, || fixture.query_server(&left) == "0");
        raw.send_query("select 2");
        assert!(
            raw.read_until(b'Z').iter().any(|(tag, body)| *tag == b'D' && body.ends_with(b"2"))
        );
    }
    // In a transaction, the client gets the server's own error.
    raw.send_query("begin");
    raw.read_until(b'Z');
    fixture.query_server(&end);
    let (tag, body) = raw.read_message().unwrap();
    assert_eq!(tag, b'E');
    assert!(body.windows(5).any(|five| five == b"57P01"), "{}", String::from_utf8_lossy(&body));
    assert!(raw.is_disconnected());
    assert_eq!(fixture.psql(&["select 3"]), "3");
}

#[test]
fn clients_wait_for_restart_of_server() {
    let Some(mut fixture) = PoolFixture::start("refusing", "") else { return };
    // During a smart shutdown, old sessions continue and new ones are refused with 57P03.
    let old = crate::support::connect(&fixture.server.uri("postgres")).unwrap();
    let pid = fixture.server.pid().and_then(|pid| i32::try_from(pid).ok());
    let pid = pid.and_then(rustix::process::Pid::from_raw).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let uri = fixture.server.uri("postgres");
    wait_until("the shutdown to start", WAIT_TIMEOUT, || {
        let error = crate::support::connect(&uri).err();
        error.is_some_and(|error| error.sqlstate() == Some("57P03"))
    });

    let address = fixture.address();
    let waiting: Vec<_> = (0..5)
        .map(|number| {
            std::thread::spawn(move || {
                let mut raw = RawClient::log_in(address);
                raw.send_query(&format!("select {number}"));
                raw.read_until(b'Z').into_iter().find(|(tag, _)| *tag == b'D').unwrap().1
            })
        })
        .collect();
    // All clients wait before the server stops.
    let all_wait = || {
        let pools = fixture.pooler.control().snapshot(false).pools;
        pools.iter().map(|pool| pool.counts.clients_waiting).sum::<u32>() == 5
    };
    wait_until("all clients to wait", WAIT_TIMEOUT, all_wait);
    old.close();
    wait_until("the server to stop", WAIT_TIMEOUT, || !fixture.server.is_running());
    fixture.server.start().unwrap();
    for (number, client) in waiting.into_iter().enumerate() {
        assert!(client.join().unwrap().ends_with(number.to_string().as_bytes()));
    }
}

#[test]
fn message_of_two_gigabytes_is_not_buffered() {
    if !has_own_process("faults::message_of_two_gigabytes_is_not_buffered") {
        return;
    }
    let Some(fixture) = PoolFixture::start("2 GB", "sizes = { pool = 1 }") else { return };
    let before = resident_bytes();
    let part = [b' '; 1 << 20];
    for tag in *b"QPB" {
        let mut raw = RawClient::log_in(fixture.address());
        raw.0.write_all(&[tag, 0x7f, 0xff, 0xff, 0xff]).unwrap();
        // As much as the pooler reads.
        let _ = (0..64).try_for_each(|_| raw.0.write_all(&part));
        let grown = resident_bytes().saturating_sub(before);
        assert!(grown < 16 << 20, "{}: grew by {grown} bytes", char::from(tag));
        drop(raw);
        assert_eq!(fixture.psql(&["select 1"]), "1");
    }
}
