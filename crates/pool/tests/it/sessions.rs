//! Session state: it belongs to the client in session mode, and is reset in the other modes.

use std::io::Write as _;

use howdah_lab::wait_until;

use crate::support::{PoolFixture, RawClient, WAIT_TIMEOUT, checked_stdout, start_pooler_in_mode};

#[test]
fn changed_table_does_not_break_described_statements() {
    let Some(fixture) = PoolFixture::start("outdated", "sizes = { pool = 1 }") else { return };
    fixture.query_server("create table things (a int); insert into things values (1)");
    let mut raw = RawClient::log_in(fixture.address());
    raw.send(b'P', b"s\0select * from things\0\0\0");
    raw.send(b'S', b"");
    raw.read_until(b'Z');
    let run = |raw: &mut RawClient, name: &str| {
        // In one write, as drivers do.
        let bind = format!("\0{name}\0\0\0\0\0\0\0");
        let mut batch = Vec::new();
        for (tag, body) in
            [(b'B', bind.as_bytes()), (b'D', b"P\0"), (b'E', b"\0\0\0\0\0"), (b'S', b"")]
        {
            batch.push(tag);
            batch.extend_from_slice(&u32::try_from(body.len() + 4).unwrap().to_be_bytes());
            batch.extend_from_slice(body);
        }
        raw.0.write_all(&batch).unwrap();
        raw.read_until(b'Z').iter().map(|(tag, _)| char::from(*tag)).collect::<String>()
    };
    assert_eq!(run(&mut raw, "s"), "2TDCZ");
    fixture.query_server("alter table things add b text default 'x'");
    assert_eq!(run(&mut raw, "s"), "2TDCZ");
    fixture.query_server("alter table things drop a");
    raw.send_query("begin");
    raw.read_until(b'Z');
    assert_eq!(run(&mut raw, "s"), "EZ", "in a transaction the error cannot be hidden");
    raw.send_query("rollback");
    raw.read_until(b'Z');
    raw.send(b'P', b"again\0select * from things\0\0\0");
    raw.send(b'S', b"");
    raw.read_until(b'Z');
    assert_eq!(run(&mut raw, "again"), "2TDCZ");
    // A function can deallocate statements without the pooler's knowledge.
    raw.send_query("do $$ begin execute 'deallocate all'; end $$");
    raw.read_until(b'Z');
    assert_eq!(run(&mut raw, "again"), "2TDCZ");
}

#[test]
fn notifications_reach_an_idle_client_in_session_mode() {
    let Some(mut fixture) = PoolFixture::start("listen", "") else { return };
    fixture.pooler = start_pooler_in_mode(&fixture.server, "session", "");
    let mut raw = RawClient::log_in(fixture.address());
    raw.send_query("listen news");
    raw.read_until(b'Z');
    fixture.query_server("notify news, 'hello'");
    let (tag, body) = raw.read_message().unwrap();
    assert_eq!((tag, &body[4..]), (b'A', &b"news\0hello\0"[..]));
}

#[test]
fn session_state_is_reset_for_next_client() {
    let Some(mut fixture) = PoolFixture::start("leftovers", "sizes = { pool = 1 }") else { return };
    for mode in ["transaction", "session", "statement"] {
        fixture.pooler = start_pooler_in_mode(&fixture.server, mode, "sizes = { pool = 1 }");
        let mut first = RawClient::log_in(fixture.address());
        for sql in [
            "create temp table left_over (n int)",
            "select pg_advisory_lock(42)",
            "set work_mem = '7MB'",
            "set search_path = nowhere",
            "listen left_over",
            "prepare left_over as select 1",
            "declare left_over cursor with hold for select 1",
            "set role pg_monitor",
        ] {
            first.send_query(sql);
            first.read_until(b'Z');
        }
        drop(first);
        let mut next = RawClient::log_in(fixture.address());
        next.send_query(
            "select coalesce(to_regclass('left_over')::text, 'none'), \
             (select count(*) from pg_locks where locktype = 'advisory'), \
             current_setting('work_mem'), current_setting('search_path'), \
             (select count(*) from pg_listening_channels()), \
             (select count(*) from pg_prepared_statements where name = 'left_over'), \
             (select count(*) from pg_cursors), current_user",
        );
        let row = next.read_until(b'Z').into_iter().find(|(tag, _)| *tag == b'D').unwrap().1;
        let text = row.escape_ascii().to_string();
        for expected in ["none", "4MB", "public", "postgres"] {
            assert!(text.contains(expected), "{mode}: {text}");
        }
        assert_eq!(text.matches("\\x00\\x00\\x00\\x010").count(), 4, "{mode}: {text}");
    }
}

#[test]
fn replication_has_dedicated_server_on_postgresql_15() {
    check_replication(15);
}

#[test]
fn replication_has_dedicated_server_on_postgresql_18() {
    check_replication(18);
}

fn check_replication(major: u32) {
    let Some(fixture) = PoolFixture::start_major("replication", major, "sizes = { pool = 1 }")
    else {
        return;
    };
    let database = "dbname=postgres replication=database";
    for _ in 0..3 {
        let system = checked_stdout(
            fixture.run_program("psql", &["-XAtq", "-d", database, "-c", "IDENTIFY_SYSTEM"]),
        );
        assert!(system.ends_with("|postgres"), "{system}");
    }
    let mut raw = RawClient::log_in_with(fixture.address(), &[("replication", "true")]);
    raw.send_query("IDENTIFY_SYSTEM");
    let row = raw.read_until(b'Z').into_iter().find(|(tag, _)| *tag == b'D').unwrap().1;
    let text = String::from_utf8_lossy(&row).into_owned();
    let start = text.split(char::is_control).find(|word| word.contains('/')).unwrap();
    let start: String = start.chars().filter(|c| c.is_ascii_hexdigit() || *c == '/').collect();
    raw.send_query(&format!("START_REPLICATION PHYSICAL {start}"));
    assert_eq!(raw.read_message().unwrap().0, b'W', "both sides send from now on");
    fixture.query_server("create table replicated (n int)");
    let (tag, body) = raw.read_message().unwrap();
    assert_eq!(tag, b'd');
    assert!(matches!(body[0], b'w' | b'k'));
    // A status update that requests a reply, while the server keeps sending.
    let status = [&b"r"[..], &[0; 24], &[0; 8], &[1]].concat();
    raw.send(b'd', &status);
    wait_until("the keepalive", WAIT_TIMEOUT, || raw.read_until(b'd').last().unwrap().1[0] == b'k');
    raw.send(b'c', b"");
    let rest = raw.read_until(b'Z');
    assert!(rest.iter().any(|(tag, _)| *tag == b'c'));
    drop(raw);
    let senders = "select count(*) from pg_stat_activity where backend_type = 'walsender'";
    wait_until("the walsender to end", WAIT_TIMEOUT, || fixture.query_server(senders) == "0");
    assert_eq!(fixture.psql(&["select 1"]), "1");
}

#[test]
fn vanished_client_does_not_cost_server_connection() {
    let Some(fixture) = PoolFixture::start("vanished", "sizes = { pool = 1 }") else { return };
    fixture.query_server("create table rows (n int)");
    let pid = || fixture.psql(&["select pg_backend_pid()"]);
    let first = pid();
    let long = "x".repeat(20_000);
    // Sends the header of a message and half of its body.
    let half = |raw: &mut RawClient, tag: u8, body: &str| {
        let length = u32::try_from(body.len() + 4).unwrap().to_be_bytes();
        let half = &body.as_bytes()[..body.len() / 2];
        raw.0.write_all(&[&[tag][..], &length, half].concat()).unwrap();
    };
    let states: [&dyn Fn(&mut RawClient); 13] = [
        &|raw| {
            raw.send_query("begin; insert into rows values (1)");
            raw.read_until(b'Z');
        },
        &|raw| {
            raw.send_query("select pg_sleep(600)");
            // A cancel that arrives before its query has no effect.
            let running = "select count(*) from pg_stat_activity where wait_event = 'PgSleep'";
            let is_running = || fixture.query_server(running) == "1";
            wait_until("the statement to run", WAIT_TIMEOUT, is_running);
        },
        &|raw| {
            raw.send_query("copy rows from stdin");
            raw.read_until(b'G');
            raw.send(b'd', b"1\n");
        },
        &|raw| {
            raw.send_query("copy (select generate_series(1, 10000000)) to stdout");
            raw.read_until(b'd');
        },
        &|raw| {
            // A batch without Sync, and an open portal.
            raw.send(b'P', b"\0select generate_series(1, 100)\0\0\0");
            raw.send(b'B', b"\0\0\0\0\0\0\0\0");
            raw.send(b'E', b"\0\0\0\0\x05");
            raw.send(b'H', b"");
            raw.read_until(b's');
        },
        &|raw| {
            raw.send(b'P', b"\0wrong\0\0\0");
            raw.send(b'H', b"");
            raw.read_until(b'E');
        },
        &|raw| raw.send(b'F', b"\0\0\0\xb1\0\0\0\x02\0\0\0\x012\0\0\0\x013\0\0"),
        &|raw| {
            // Executed, but never committed.
            raw.send(b'P', b"\0insert into rows values (2)\0\0\0");
            raw.send(b'B', b"\0\0\0\0\0\0\0\0");
            raw.send(b'E', b"\0\0\0\0\0");
            raw.send(b'H', b"");
            raw.read_until(b'C');
        },
        &|raw| half(raw, b'Q', "insert into rows values (3)        "),
        &|raw| half(raw, b'Q', &format!("insert into rows values (4) -- {long}\0")),
        &|raw| {
            raw.send_query("begin; insert into rows values (5)");
            raw.read_until(b'Z');
            half(raw, b'P', &format!("s\0select '{long}'\0\0\0"));
        },
        &|raw| {
            raw.send(b'P', b"\0insert into rows select 6 where $1 = $1\0\0\0");
            let length = char::from(u8::try_from(long.len() >> 8).unwrap());
            half(raw, b'B', &format!("\0\0\0\0\0\x01\0\0{length}\x20{long}\0\0"));
        },
        &|raw| {
            raw.send_query("copy rows from stdin");
            raw.read_until(b'G');
            half(raw, b'd', &"7\n".repeat(10_000));
        },
    ];
    for (number, state) in states.into_iter().enumerate() {
        let mut raw = RawClient::log_in(fixture.address());
        state(&mut raw);
        drop(raw);
        assert_eq!(pid(), first, "state {number}");
    }
    assert_eq!(fixture.psql(&["select count(*) from rows"]), "0");
}
