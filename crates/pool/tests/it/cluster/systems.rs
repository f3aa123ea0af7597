//! Servers that are somebody else's: of another system than the primary.

use std::collections::BTreeSet;

use howdah_lab::{Cluster, or_say_why_not};
use howdah_pool::{Origin, Pooler, config::Config};

use super::{AUTO, NAMED, PORT, Raw, direct, settings, until, value};

/// A primary that was made by its own initdb, and its standby.
fn system(test: &str, name: &str) -> Option<[Cluster; 2]> {
    let primary = Cluster::builder().name(name).own_system(true).start();
    let primary = or_say_why_not(test, primary)?;
    let standby = Cluster::builder().name(format!("{name}s")).standby_of(&primary).start().unwrap();
    Some([primary, standby])
}

/// A primary, its standby, and a server of another system, with a pooler whose settings stand in a file.
struct Stage {
    servers: Vec<Cluster>,
    /// Whose standby the last of the servers is.
    elsewhere: Cluster,
    pooler: Pooler,
    folder: tempfile::TempDir,
}

impl Stage {
    fn set(test: &str, entries: &[&str], more: &str) -> Option<Self> {
        let [primary, standby] = system(test, "ours")?;
        let [elsewhere, foreign] = system(test, "theirs")?;
        let servers = vec![primary, standby, foreign];
        for (system, at) in [("ours", &servers[0]), ("theirs", &elsewhere)] {
            direct(at, &format!("create table whose as select '{system}'::text as system"));
        }
        for server in &servers[1..] {
            let is_there = "select count(*) from pg_class where relname = 'whose'";
            until("the table", || direct(server, is_there) == "1");
        }
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("howdah.toml");
        std::fs::write(&file, settings(&servers, entries, more)).unwrap();
        let config = Config::read(&file).unwrap().config;
        let origin = Origin { path: file, workers: None };
        let pooler = Pooler::start_from(config, Some(origin)).unwrap();
        Some(Self { servers, elsewhere, pooler, folder })
    }

    fn reload(&self, entries: &[&str], more: &str) {
        let text = settings(&self.servers, entries, more);
        std::fs::write(self.folder.path().join("howdah.toml"), text).unwrap();
        self.pooler.control().reload().unwrap();
    }

    fn client(&self, attributes: &str) -> Raw {
        let mut raw = Raw::connect(self.pooler.addresses()[0]);
        raw.start_in("app", &format!("target_session_attrs\0{attributes}\0"));
        raw.until(b'Z');
        raw
    }

    /// Of each server what SHOW MEMBERS says: role, state and system.
    fn members(&self) -> Vec<(String, String, String)> {
        let mut console = Raw::connect(self.pooler.addresses()[0]);
        console.start_in("howdah", "");
        console.until(b'Z');
        console.query("show members");
        let rows = console.until(b'Z').into_iter().filter(|(tag, _)| *tag == b'D');
        let cells = |(_, row): (u8, Vec<u8>)| {
            let (mut rest, mut cells) = (&row[2..], Vec::new());
            while let Some((length, behind)) = rest.split_first_chunk::<4>() {
                let length = usize::try_from(i32::from_be_bytes(*length)).unwrap_or(0);
                cells.push(String::from_utf8(behind[..length].to_vec()).unwrap());
                rest = &behind[length..];
            }
            (cells[3].clone(), cells[4].clone(), cells.pop().unwrap())
        };
        rows.map(cells).collect()
    }

    fn states(&self) -> String {
        let shown = self.members().into_iter().map(|(role, state, _)| format!("{role} {state}"));
        shown.collect::<Vec<_>>().join(", ")
    }

    /// Where some reads were done.
    fn places(&self, raw: &mut Raw) -> BTreeSet<usize> {
        let place = |port: String| {
            self.servers.iter().position(|server| server.port().to_string() == port).unwrap()
        };
        (0..20).map(|_| place(value(raw, PORT))).collect()
    }
}

#[test]
fn a_replica_of_another_system_gets_no_reads_unless_it_may() {
    let Some(stage) = Stage::set("another system", &NAMED, "") else { return };
    let mut raw = stage.client("standby");
    until("it is known", || stage.states() == "primary up, replica up, replica foreign");
    assert_eq!(stage.places(&mut raw), [1].into());
    assert_eq!(stage.places(&mut stage.client("any")), [0, 1].into());
    let systems: Vec<_> = stage.members().into_iter().map(|(_, _, system)| system).collect();
    let of = |server: &Cluster| direct(server, "select system_identifier from pg_control_system()");
    assert_eq!(systems, [0, 1, 2].map(|at| of(&stage.servers[at])));
    assert!(systems[0] == systems[1] && systems[0] != systems[2], "{systems:?}");
    // Its own may be away: whose it is stays known.
    direct(&stage.servers[1], "select pg_wal_replay_pause()");
    stage.reload(&NAMED, "cluster = { require-same-system-identifier = false }");
    until("it is let to", || stage.places(&mut raw) == [1, 2].into());
    assert_eq!(stage.states(), "primary up, replica up, replica up");
    stage.reload(&NAMED, "");
    until("it is known again", || stage.states().ends_with("replica foreign"));
    assert_eq!(stage.places(&mut raw), [1].into());
}

/// One that is promoted begins a timeline that is newer than that of the primary. It is none of its business.
#[test]
fn the_primary_of_another_system_is_never_written_to() {
    let more = "cluster = { check-interval = \"50ms\", failover-timeout = \"60s\", primary-rejoin-delay = 0 }";
    let Some(mut stage) = Stage::set("another primary", &AUTO, more) else { return };
    let mut raw = stage.client("read-write");
    assert_eq!(value(&mut raw, "select system from whose"), "ours");
    until("it is known", || stage.states() == "primary up, replica up, replica foreign");
    let (mut any, mut standby) = (stage.client("any"), stage.client("standby"));
    assert_eq!(stage.places(&mut any), [0, 1].into());
    stage.elsewhere.stop().unwrap();
    direct(&stage.servers[2], "select pg_promote(false)");
    until("it is promoted", || stage.states() == "primary up, replica up, foreign foreign");
    assert_eq!(stage.places(&mut raw), [0].into());
    assert_eq!(stage.places(&mut any), [0, 1].into());
    assert_eq!(stage.places(&mut standby), [1].into());
    // Nor when ours is gone; ours is promoted in its turn, to a timeline that is no newer.
    stage.servers[0].kill().unwrap();
    until("it is gone", || stage.states().starts_with("primary down"));
    assert_eq!(stage.places(&mut any), [1].into());
    direct(&stage.servers[1], "select pg_promote(false)");
    let mut raw = stage.client("read-write");
    assert_eq!(value(&mut raw, "select system from whose"), "ours");
    assert_eq!(stage.places(&mut raw), [1].into());
}

/// It may be that nobody is let to know. Then all is as if there were no such thing.
#[test]
fn a_system_that_is_not_told_is_no_reason() {
    let more = "cluster = { check-user = \"plain\" }\n[pool.users.plain]\nsecret = ''";
    let Some(stage) = Stage::set("no system", &NAMED, more) else { return };
    // Who is asked before does not take part.
    for primary in [&stage.servers[0], &stage.elsewhere] {
        direct(primary, "create role plain login");
        direct(primary, "revoke execute on function pg_control_system() from public");
    }
    for standby in &stage.servers[1..] {
        let is_there = "select count(*) from pg_roles where rolname = 'plain' \
                        and not has_function_privilege(oid, 'pg_control_system()', 'execute')";
        until("the role", || direct(standby, is_there) == "1");
    }
    let mut raw = stage.client("standby");
    until("they serve", || stage.places(&mut raw) == [1, 2].into());
    let is_known = |(_, state, system): (String, String, String)| {
        assert_eq!((state.as_str(), system.as_str()), ("up", ""));
    };
    until("all are asked", || {
        direct(&stage.servers[2], "select count(*) from pg_stat_activity where usename = 'plain'")
            == "1"
    });
    stage.members().into_iter().for_each(is_known);
    assert_eq!(stage.places(&mut raw), [1, 2].into());
}
