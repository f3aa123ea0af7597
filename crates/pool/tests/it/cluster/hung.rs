//! Servers that stop answering without a word: their connections stay, and nothing comes by them.

use super::{AUTO, NAMED, PORT, Raw, Stage, until, value};
use crate::{route::asked, support::signal};

/// A server whose processes stand still until this goes.
struct Frozen(u32);

impl Frozen {
    fn new(stage: &Stage, server: usize) -> Self {
        let postmaster = stage.servers[server].pid().unwrap();
        signal(postmaster, "-STOP");
        Self(postmaster)
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        signal(self.0, "-CONT");
    }
}

/// What a client is told whose connection ends: SQLSTATE and text of the error.
fn last_words(raw: &mut Raw) -> String {
    let mut words = String::new();
    while let Ok((tag, body)) = raw.message() {
        if tag == b'E' {
            words = String::from_utf8_lossy(&body).replace('\0', " ");
        }
    }
    words
}

/// In a transaction at a server.
fn begun_at(stage: &Stage, attributes: &str, server: usize) -> Raw {
    let port = stage.servers[server].port().to_string();
    let mut found = None;
    until("it is there", || {
        let mut raw = stage.client(attributes);
        asked(&mut raw, "begin");
        found = (value(&mut raw, PORT) == port).then_some(raw);
        found.is_some()
    });
    found.unwrap()
}

const SOON: &str = "check-interval = \"100ms\", check-timeout = \"300ms\", ban = \"1s\"";

#[test]
fn what_runs_at_a_standby_that_hangs_is_given_up() {
    let more = format!("cluster = {{ {SOON}, check-failure-timeout = \"1s\" }}");
    let Some(stage) = Stage::set("hung standby", &NAMED, &more) else { return };
    let (mut hangs, mut idles) = (begun_at(&stage, "standby", 1), begun_at(&stage, "standby", 1));
    let mut other = begun_at(&stage, "standby", 2);
    hangs.query("select pg_sleep(600)");
    let frozen = Frozen::new(&stage, 1);
    for raw in [&mut hangs, &mut idles] {
        let words = last_words(raw);
        assert!(words.contains(" C08006 ") && words.contains("given up"), "{words}");
    }
    // Who is elsewhere notices nothing.
    assert_eq!(value(&mut other, PORT), stage.servers[2].port().to_string());
    assert!(asked(&mut other, "commit").ends_with("COMMIT, I"));
    assert_eq!(value(&mut other, PORT), stage.servers[2].port().to_string());
    drop(frozen);
    drop(begun_at(&stage, "standby", 1));
}

/// Nobody knows whether what was under way was done. It is told so, and nothing is done twice.
#[test]
fn a_write_at_a_primary_that_hangs_is_not_repeated() {
    let more = format!(
        "cluster = {{ {SOON}, check-failure-timeout = \"1s\", failover-timeout = \"60s\" }}"
    );
    let Some(stage) = Stage::set("hung primary", &AUTO[..2], &more) else { return };
    let mut first = stage.client("read-write");
    asked(&mut first, "create table kept (number int)");
    let mut hang: Vec<_> = (0..4).map(|_| begun_at(&stage, "read-write", 0)).collect();
    for (number, raw) in hang.iter_mut().enumerate() {
        asked(raw, &format!("insert into kept values ({number})"));
    }
    let frozen = Frozen::new(&stage, 0);
    for raw in &mut hang {
        raw.query("commit");
    }
    for raw in &mut hang {
        let words = last_words(raw);
        assert!(words.contains(" C08006 "), "{words}");
    }
    // Reads go on at the standby; a write waits for the primary.
    let mut waits = stage.client("read-write");
    waits.query("insert into kept values (5)");
    assert_eq!(value(&mut stage.client("standby"), PORT), stage.servers[1].port().to_string());
    drop(frozen);
    let told = crate::route::said(&mut waits);
    assert_eq!(told, "INSERT 0 1, I");
    let mine = "select count(*) from pg_stat_activity \
                where backend_type = 'client backend' and state <> 'idle' and pid <> pg_backend_pid()";
    until("what was cut is over", || stage.direct(0, mine) == "0");
    let twice = "select count(*) from (select from kept group by number having count(*) > 1) it";
    assert_eq!(stage.direct(0, twice), "0");
    assert_eq!(stage.direct(0, "select count(*) from kept where number = 5"), "1");
}

/// As before there was such a thing: statements wait for as long as their own limits let them.
#[test]
fn a_server_that_hangs_is_waited_for_where_that_is_wished_for() {
    let more = format!("cluster = {{ {SOON}, check-failure-timeout = 0 }}");
    let Some(stage) = Stage::set("hung and waited for", &NAMED, &more) else { return };
    let mut raw = begun_at(&stage, "standby", 1);
    let frozen = Frozen::new(&stage, 1);
    raw.query("select 'late'");
    let port = stage.servers[1].port();
    // Until its ban has been over, and it was banned again.
    let mut first = None;
    until("it is silent for a while", || {
        let bans = stage.console("show bans");
        let ban = bans.lines().find(|line| line.contains(&format!("|{port}|")));
        let ends = ban.and_then(|ban| Some(ban.split('|').nth(4)?.to_owned()));
        let before = first.get_or_insert_with(|| ends.clone());
        ends.is_some() && std::mem::replace(before, ends.clone()).is_some_and(|it| Some(it) != ends)
    });
    drop(frozen);
    let row = raw.until(b'Z').into_iter().find(|(tag, _)| *tag == b'D').unwrap().1;
    assert!(row.ends_with(b"late"));
}

/// A client that says nothing of which servers would do.
fn client(stage: &Stage) -> Raw {
    let mut raw = Raw::connect(stage.address());
    raw.start_in("app", "");
    raw.until(b'Z');
    raw
}

/// Long before the server is given up, reads are answered by others; a write waits for its own server.
#[test]
fn reads_at_a_server_that_hangs_are_answered_by_others() {
    let more = format!("cluster = {{ {SOON}, check-failure-timeout = \"1h\", role = \"auto\" }}");
    let Some(stage) = Stage::set("hung reads", &AUTO, &more) else { return };
    let mut writer = client(&stage);
    asked(&mut writer, "create table kept (number int)");
    // Functions that a standby refuses are not sent there, whosever turn it is.
    for call in ["pg_current_wal_lsn()", "pg_walfile_name(pg_current_wal_insert_lsn())"] {
        for _ in 0..6 {
            let told = asked(&mut writer, &format!("select {call} is not null"));
            assert!(told.ends_with("SELECT 1, I"), "{told}");
        }
    }
    let mut readers: Vec<_> = (0..12).map(|_| client(&stage)).collect();
    let ports: Vec<_> = stage.servers.iter().map(|server| server.port().to_string()).collect();
    until("each server is read from", || {
        let read: std::collections::BTreeSet<_> =
            readers.iter_mut().map(|raw| value(raw, PORT)).collect();
        read.len() == 3
    });
    let frozen = Frozen::new(&stage, 1);
    for raw in &mut readers[..6] {
        raw.query(PORT);
    }
    for raw in &mut readers[6..] {
        raw.send(b'P', format!("\0{PORT}\0\0\0").as_bytes());
        raw.send(b'B', b"\0\0\0\0\0\0\0\0");
        raw.send(b'E', b"\0\0\0\0\0");
        raw.send(b'S', b"");
    }
    for raw in &mut readers {
        let answers = raw.until(b'Z');
        let row = answers.iter().find(|(tag, _)| *tag == b'D').expect("a row").1.clone();
        let port = String::from_utf8_lossy(&row[6..]).into_owned();
        assert!(port == ports[0] || port == ports[2], "{port}");
    }
    drop(frozen);
    // The primary hangs: a read goes to a standby, a write is neither repeated nor given up.
    let frozen = Frozen::new(&stage, 0);
    writer.query("insert into kept values (1)");
    for raw in &mut readers {
        raw.query(PORT);
    }
    for raw in &mut readers {
        let row = raw.until(b'Z').into_iter().find(|(tag, _)| *tag == b'D').expect("a row").1;
        assert_ne!(String::from_utf8_lossy(&row[6..]), ports[0].as_str());
    }
    drop(frozen);
    assert_eq!(crate::route::said(&mut writer), "INSERT 0 1, I");
    assert_eq!(stage.direct(0, "select count(*) from kept"), "1");
}
