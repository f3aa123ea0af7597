//! What goes wrong: servers that die, clients that vanish or lie, and the pooler's own end.

use std::io::Write as _;

use crate::support::{Raw, Stage};

#[test]
fn what_is_no_startup_packet_is_hung_up_on_and_others_go_on() {
    let Some(stage) = Stage::set("garbage", "") else { return };
    let long = [&[0, 0, 0x27, 0x11][..], &[0; 9996]].concat();
    let cases: [&[u8]; 7] = [
        b"\0\0\0\x04",
        b"\0\0\0\x07\0\0\0",
        b"\x7f\xff\xff\xff\0\x03\0\0",
        b"GET / HTTP/1.1\r\n\r\n",
        &long,
        // Bytes behind a request for TLS, which came in the clear.
        b"\0\0\0\x08\x04\xd2\x16\x2f\0\0\0\x09\0\x03\0\0\0",
        // Asked twice.
        b"\0\0\0\x08\x04\xd2\x16\x2f",
    ];
    let mut asked_twice = false;
    for case in cases {
        let mut raw = Raw::connect(stage.address());
        raw.0.write_all(case).unwrap();
        if case.len() == 8 && case[4] == 4 {
            let mut answer = [0];
            std::io::Read::read_exact(&mut raw.0, &mut answer).unwrap();
            assert_eq!(answer, *b"N");
            raw.0.write_all(case).unwrap();
            asked_twice = true;
        }
        assert!(raw.is_hung_up_on(), "{case:?}");
    }
    assert!(asked_twice);
    assert_eq!(stage.psql(&["select 1"]), "1");
}

#[test]
fn messages_of_impossible_lengths_end_their_client_only() {
    let Some(stage) = Stage::set("lengths", "") else { return };
    let mut other = Raw::log_in(stage.address());
    for header in [b"Q\0\0\0\x03", b"Q\xff\xff\xff\xff", b"\0\0\0\0\x04"] {
        let mut raw = Raw::log_in(stage.address());
        raw.0.write_all(header).unwrap();
        assert!(raw.is_hung_up_on(), "{header:?}");
    }
    other.query("select 7");
    assert!(other.until(b'Z').iter().any(|(tag, body)| *tag == b'D' && body.ends_with(b"7")));
}

#[test]
fn a_server_that_is_killed_ends_its_client_and_the_next_gets_another() {
    let Some(mut stage) = Stage::set("killed", "") else { return };
    let mut raw = Raw::log_in(stage.address());
    raw.query("begin");
    raw.until(b'Z');
    stage.server.kill().unwrap();
    assert!(raw.is_hung_up_on());
    stage.server.start().unwrap();
    // The server may have to recover first; a client of then is told so, or waits.
    let again = || stage.run("psql", &["-XAtqc", "select 1"]).status.success();
    assert!((0..600).any(|_| again() || {
        std::thread::yield_now();
        false
    }));
}

#[test]
fn clients_that_vanish_leave_nothing_behind() {
    let Some(stage) = Stage::set("vanish", "sizes = { pool = 1 }") else { return };
    let states: [fn(&mut Raw); 6] = [
        |_| {},
        |raw| raw.query("begin; select 1"),
        |raw| {
            raw.query("begin; select 1");
            raw.until(b'Z');
        },
        |raw| raw.query("select pg_sleep(600)"),
        |raw| raw.send(b'P', b"\0select 1\0\0\0"),
        |raw| raw.0.write_all(b"Q\0\0\0\x20select").unwrap(),
    ];
    for state in states {
        let mut raw = Raw::log_in(stage.address());
        state(&mut raw);
        drop(raw);
        let mut next = Raw::log_in(stage.address());
        next.query("select pg_current_xact_id_if_assigned() is null, txid_current() is not null");
        let answers = next.until(b'Z');
        assert_eq!(answers.last().unwrap().1, b"I");
    }
}

#[test]
fn a_cancel_hits_the_statement_of_its_client() {
    let Some(stage) = Stage::set("cancel", "") else { return };
    let mut command = stage.command("psql");
    command.args(["-XAtq", "-c", "set statement_timeout = 0", "-c", "select pg_sleep(600)"]);
    let child = command.stderr(std::process::Stdio::piped()).spawn().unwrap();
    let running = "select count(*) from pg_stat_activity where query like 'select pg_sleep%'";
    while stage.direct(running) != "1" {}
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let output = child.wait_with_output();
    let text = String::from_utf8(output.unwrap().stderr).unwrap();
    assert!(text.contains("canceling statement due to user request"), "{text}");
}

#[test]
fn draining_waits_for_transactions_and_sends_idle_clients_away() {
    let Some(stage) = Stage::set("drain", "") else { return };
    let (mut idle, mut busy) = (Raw::log_in(stage.address()), Raw::log_in(stage.address()));
    busy.query("begin");
    busy.until(b'Z');
    stage.pooler.drain();
    let (tag, body) = idle.message().unwrap();
    assert_eq!(tag, b'E');
    assert!(body.windows(5).any(|five| five == b"57P01"));
    busy.query("select 5");
    assert!(busy.until(b'Z').iter().any(|(tag, body)| *tag == b'D' && body.ends_with(b"5")));
    busy.query("commit");
    busy.until(b'E');
    assert!(busy.is_hung_up_on());
    stage.pooler.join().unwrap();
}

#[test]
fn a_client_that_stops_reading_costs_bounded_memory() {
    if !is_alone("faults::a_client_that_stops_reading_costs_bounded_memory") {
        return;
    }
    let Some(stage) = Stage::set("slow reader", "") else { return };
    let mut slow = Raw::log_in(stage.address());
    let before = resident_bytes();
    slow.query("select repeat('x', 1000) from generate_series(1, 300000)");
    let (tag, _) = slow.message().unwrap();
    assert_eq!(tag, b'T');
    // The server is stuck when it waits for us to take more.
    let stuck = "select count(*) from pg_stat_activity where wait_event = 'ClientWrite'";
    while stage.direct(stuck) != "1" {}
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < 64 << 20, "grew by {grown} bytes");
    let rows = slow.until(b'Z').iter().filter(|(tag, _)| *tag == b'D').count();
    assert_eq!(rows, 300_000);
}

/// Whether this test has its process, and so the memory of it, to itself. If not it is run in one that it
/// has, and must pass there.
fn is_alone(test: &str) -> bool {
    const ALONE: &str = "HOWDAH_TEST_ALONE";
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let mut itself = std::process::Command::new(std::env::current_exe().unwrap());
    let done = itself.args(["--exact", test, "--nocapture"]).env(ALONE, "1").output().unwrap();
    let said = [done.stdout, done.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(done.status.success() && said.contains("1 passed"), "{said}");
    false
}

fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

#[test]
fn a_client_that_closes_its_half_gets_its_answer_and_its_server_lives_on() {
    let Some(stage) = Stage::set("half closed", "sizes = { pool = 1 }") else { return };
    let mut raw = Raw::log_in(stage.address());
    raw.query("select pg_backend_pid()");
    let first = raw.until(b'Z');
    raw.query("begin; select 1");
    raw.0.shutdown(std::net::Shutdown::Write).unwrap();
    assert!(raw.is_hung_up_on());
    // Its transaction is rolled back, not its server's end.
    let mut next = Raw::log_in(stage.address());
    next.query("select pg_backend_pid()");
    assert_eq!(next.until(b'Z'), first);
}

#[test]
fn servers_that_end_while_nobody_uses_them_are_not_missed() {
    let Some(stage) = Stage::set("idle servers end", "sizes = { pool = 3 }") else { return };
    let mut raw = Raw::log_in(stage.address());
    let end = "select count(pg_terminate_backend(pid)) from pg_stat_activity \
               where backend_type = 'client backend' and pid <> pg_backend_pid()";
    let left = "select count(*) from pg_stat_activity where backend_type = 'client backend'";
    for _ in 0..20 {
        raw.query("select 1");
        raw.until(b'Z');
        assert_eq!(stage.direct(end), "1");
        while stage.direct(left) != "1" {}
        raw.query("select 2");
        assert!(raw.until(b'Z').iter().any(|(tag, body)| *tag == b'D' && body.ends_with(b"2")));
    }
    // In a transaction it is missed, and the client is told by the server's own words.
    raw.query("begin");
    raw.until(b'Z');
    stage.direct(end);
    let (tag, body) = raw.message().unwrap();
    assert_eq!(tag, b'E');
    assert!(body.windows(5).any(|five| five == b"57P01"), "{}", String::from_utf8_lossy(&body));
    assert!(raw.is_hung_up_on());
    assert_eq!(stage.psql(&["select 3"]), "3");
}

#[test]
fn clients_wait_for_a_server_that_refuses_and_is_restarted() {
    let Some(mut stage) = Stage::set("refusing", "") else { return };
    // In a smart shutdown, old sessions go on and new ones are refused by 57P03.
    let old = crate::support::connect(&stage.server.uri("postgres")).unwrap();
    let pid = stage.server.pid().and_then(|pid| i32::try_from(pid).ok());
    let pid = pid.and_then(rustix::process::Pid::from_raw).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let uri = stage.server.uri("postgres");
    let refused = || crate::support::connect(&uri).err();
    while refused().and_then(|error| error.sqlstate().map(str::to_owned)).as_deref()
        != Some("57P03")
    {}

    let address = stage.address();
    let waiting: Vec<_> = (0..5)
        .map(|number| {
            std::thread::spawn(move || {
                let mut raw = Raw::log_in(address);
                raw.query(&format!("select {number}"));
                raw.until(b'Z').into_iter().find(|(tag, _)| *tag == b'D').unwrap().1
            })
        })
        .collect();
    // All of them wait before the server ends.
    let all_wait = || {
        let pools = stage.pooler.control().view(false).pools;
        pools.iter().map(|pool| pool.counts.clients_waiting).sum::<u32>() == 5
    };
    while !all_wait() {}
    old.close();
    while stage.server.is_running() {}
    stage.server.start().unwrap();
    for (number, client) in waiting.into_iter().enumerate() {
        assert!(client.join().unwrap().ends_with(number.to_string().as_bytes()));
    }
}

#[test]
fn a_message_of_two_gigabytes_is_not_waited_for_in_memory() {
    if !is_alone("faults::a_message_of_two_gigabytes_is_not_waited_for_in_memory") {
        return;
    }
    let Some(stage) = Stage::set("2 GB", "sizes = { pool = 1 }") else { return };
    let before = resident_bytes();
    let part = [b' '; 1 << 20];
    for tag in *b"QPB" {
        let mut raw = Raw::log_in(stage.address());
        raw.0.write_all(&[tag, 0x7f, 0xff, 0xff, 0xff]).unwrap();
        // As much as anybody takes of it.
        let _ = (0..64).try_for_each(|_| raw.0.write_all(&part));
        let grown = resident_bytes().saturating_sub(before);
        assert!(grown < 16 << 20, "{}: grew by {grown} bytes", char::from(tag));
        drop(raw);
        assert_eq!(stage.psql(&["select 1"]), "1");
    }
}
