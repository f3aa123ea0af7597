//! What lives in a session: in session mode it is the client's, in the other modes nobody finds it.

use std::io::Write as _;

use crate::support::{Raw, Stage, pooler_in, said};

#[test]
fn a_table_that_changes_is_no_matter_for_who_asks_for_its_columns() {
    let Some(stage) = Stage::set("outdated", "sizes = { pool = 1 }") else { return };
    stage.direct("create table things (a int); insert into things values (1)");
    let mut raw = Raw::log_in(stage.address());
    raw.send(b'P', b"s\0select * from things\0\0\0");
    raw.send(b'S', b"");
    raw.until(b'Z');
    let run = |raw: &mut Raw, name: &str| {
        // In one piece, as drivers do.
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
        raw.until(b'Z').iter().map(|(tag, _)| char::from(*tag)).collect::<String>()
    };
    assert_eq!(run(&mut raw, "s"), "2TDCZ");
    stage.direct("alter table things add b text default 'x'");
    assert_eq!(run(&mut raw, "s"), "2TDCZ");
    stage.direct("alter table things drop a");
    raw.query("begin");
    raw.until(b'Z');
    assert_eq!(run(&mut raw, "s"), "EZ", "in a transaction it is too late");
    raw.query("rollback");
    raw.until(b'Z');
    raw.send(b'P', b"again\0select * from things\0\0\0");
    raw.send(b'S', b"");
    raw.until(b'Z');
    assert_eq!(run(&mut raw, "again"), "2TDCZ");
    // A function may end statements, and nobody is told.
    raw.query("do $$ begin execute 'deallocate all'; end $$");
    raw.until(b'Z');
    assert_eq!(run(&mut raw, "again"), "2TDCZ");
}

#[test]
fn notifications_reach_an_idle_client_in_session_mode() {
    let Some(mut stage) = Stage::set("listen", "") else { return };
    stage.pooler = pooler_in(&stage.server, "session", "");
    let mut raw = Raw::log_in(stage.address());
    raw.query("listen news");
    raw.until(b'Z');
    stage.direct("notify news, 'hello'");
    let (tag, body) = raw.message().unwrap();
    assert_eq!((tag, &body[4..]), (b'A', &b"news\0hello\0"[..]));
}

#[test]
fn what_a_client_leaves_behind_is_gone_for_the_next() {
    let Some(mut stage) = Stage::set("leftovers", "sizes = { pool = 1 }") else { return };
    for mode in ["transaction", "session", "statement"] {
        stage.pooler = pooler_in(&stage.server, mode, "sizes = { pool = 1 }");
        let mut first = Raw::log_in(stage.address());
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
            first.query(sql);
            first.until(b'Z');
        }
        drop(first);
        let mut next = Raw::log_in(stage.address());
        next.query(
            "select coalesce(to_regclass('left_over')::text, 'none'), \
             (select count(*) from pg_locks where locktype = 'advisory'), \
             current_setting('work_mem'), current_setting('search_path'), \
             (select count(*) from pg_listening_channels()), \
             (select count(*) from pg_prepared_statements where name = 'left_over'), \
             (select count(*) from pg_cursors), current_user",
        );
        let row = next.until(b'Z').into_iter().find(|(tag, _)| *tag == b'D').unwrap().1;
        let text = row.escape_ascii().to_string();
        for expected in ["none", "4MB", "public", "postgres"] {
            assert!(text.contains(expected), "{mode}: {text}");
        }
        assert_eq!(text.matches("\\x00\\x00\\x00\\x010").count(), 4, "{mode}: {text}");
    }
}

#[test]
fn replication_has_a_server_of_its_own_on_postgresql_15() {
    replication_has_a_server_of_its_own_at(15);
}

#[test]
fn replication_has_a_server_of_its_own_on_postgresql_18() {
    replication_has_a_server_of_its_own_at(18);
}

fn replication_has_a_server_of_its_own_at(major: u32) {
    let Some(stage) = Stage::of_major("replication", major, "sizes = { pool = 1 }") else { return };
    let database = "dbname=postgres replication=database";
    for _ in 0..3 {
        let system = said(stage.run("psql", &["-XAtq", "-d", database, "-c", "IDENTIFY_SYSTEM"]));
        assert!(system.ends_with("|postgres"), "{system}");
    }
    let mut raw = Raw::log_in_with(stage.address(), &[("replication", "true")]);
    raw.query("IDENTIFY_SYSTEM");
    let row = raw.until(b'Z').into_iter().find(|(tag, _)| *tag == b'D').unwrap().1;
    let text = String::from_utf8_lossy(&row).into_owned();
    let start = text.split(char::is_control).find(|word| word.contains('/')).unwrap();
    let start: String = start.chars().filter(|c| c.is_ascii_hexdigit() || *c == '/').collect();
    raw.query(&format!("START_REPLICATION PHYSICAL {start}"));
    assert_eq!(raw.message().unwrap().0, b'W', "both sides talk now");
    stage.direct("create table replicated (n int)");
    let (tag, body) = raw.message().unwrap();
    assert_eq!(tag, b'd');
    assert!(matches!(body[0], b'w' | b'k'));
    // A status, which asks for an answer, while the server goes on sending.
    let status = [&b"r"[..], &[0; 24], &[0; 8], &[1]].concat();
    raw.send(b'd', &status);
    while raw.until(b'd').last().unwrap().1[0] != b'k' {}
    raw.send(b'c', b"");
    let rest = raw.until(b'Z');
    assert!(rest.iter().any(|(tag, _)| *tag == b'c'));
    drop(raw);
    let senders = "select count(*) from pg_stat_activity where backend_type = 'walsender'";
    while stage.direct(senders) != "0" {}
    assert_eq!(stage.psql(&["select 1"]), "1");
}

#[test]
fn a_client_that_vanishes_costs_no_server() {
    let Some(stage) = Stage::set("vanished", "sizes = { pool = 1 }") else { return };
    stage.direct("create table rows (n int)");
    let pid = || stage.psql(&["select pg_backend_pid()"]);
    let first = pid();
    let long = "x".repeat(20_000);
    // The header of a message, and half of its body.
    let half = |raw: &mut Raw, tag: u8, body: &str| {
        let length = u32::try_from(body.len() + 4).unwrap().to_be_bytes();
        let half = &body.as_bytes()[..body.len() / 2];
        raw.0.write_all(&[&[tag][..], &length, half].concat()).unwrap();
    };
    let states: [&dyn Fn(&mut Raw); 13] = [
        &|raw| {
            raw.query("begin; insert into rows values (1)");
            raw.until(b'Z');
        },
        &|raw| {
            raw.query("select pg_sleep(600)");
            // A cancel that comes before its query finds nothing to cancel.
            let running = "select count(*) from pg_stat_activity where wait_event = 'PgSleep'";
            while stage.direct(running) != "1" {}
        },
        &|raw| {
            raw.query("copy rows from stdin");
            raw.until(b'G');
            raw.send(b'd', b"1\n");
        },
        &|raw| {
            raw.query("copy (select generate_series(1, 10000000)) to stdout");
            raw.until(b'd');
        },
        &|raw| {
            // A batch without its end, and a portal.
            raw.send(b'P', b"\0select generate_series(1, 100)\0\0\0");
            raw.send(b'B', b"\0\0\0\0\0\0\0\0");
            raw.send(b'E', b"\0\0\0\0\x05");
            raw.send(b'H', b"");
            raw.until(b's');
        },
        &|raw| {
            raw.send(b'P', b"\0wrong\0\0\0");
            raw.send(b'H', b"");
            raw.until(b'E');
        },
        &|raw| raw.send(b'F', b"\0\0\0\xb1\0\0\0\x02\0\0\0\x012\0\0\0\x013\0\0"),
        &|raw| {
            // Done, but never to be committed.
            raw.send(b'P', b"\0insert into rows values (2)\0\0\0");
            raw.send(b'B', b"\0\0\0\0\0\0\0\0");
            raw.send(b'E', b"\0\0\0\0\0");
            raw.send(b'H', b"");
            raw.until(b'C');
        },
        &|raw| half(raw, b'Q', "insert into rows values (3)        "),
        &|raw| half(raw, b'Q', &format!("insert into rows values (4) -- {long}\0")),
        &|raw| {
            raw.query("begin; insert into rows values (5)");
            raw.until(b'Z');
            half(raw, b'P', &format!("s\0select '{long}'\0\0\0"));
        },
        &|raw| {
            raw.send(b'P', b"\0insert into rows select 6 where $1 = $1\0\0\0");
            let length = char::from(u8::try_from(long.len() >> 8).unwrap());
            half(raw, b'B', &format!("\0\0\0\0\0\x01\0\0{length}\x20{long}\0\0"));
        },
        &|raw| {
            raw.query("copy rows from stdin");
            raw.until(b'G');
            half(raw, b'd', &"7\n".repeat(10_000));
        },
    ];
    for (number, state) in states.into_iter().enumerate() {
        let mut raw = Raw::log_in(stage.address());
        state(&mut raw);
        drop(raw);
        assert_eq!(pid(), first, "state {number}");
    }
    assert_eq!(stage.psql(&["select count(*) from rows"]), "0");
}
