//! Foreign servers, whose system identifier differs from the primary's.

use std::collections::BTreeSet;

use howdah_lab::{Cluster, skip_without_postgres, wait_until};
use howdah_pool::{ConfigOrigin, Pooler};
use howdah_pool_config::Config;

use super::{AUTO_ROLES, FIXED_ROLES, RawClient, SELECT_PORT, query_server, query_value, settings};
use crate::support::WAIT_TIMEOUT;

/// A primary with its own initdb, and its standby.
fn start_system(test: &str, name: &str) -> Option<[Cluster; 2]> {
    let primary = Cluster::builder().name(name).unique_system_identifier(true).start();
    let primary = skip_without_postgres(test, primary)?;
    let standby = Cluster::builder().name(format!("{name}s")).standby_of(&primary).start().unwrap();
    Some([primary, standby])
}

/// A primary, its standby, and a server of another system, with a pooler with a configuration file.
struct ForeignSystemFixture {
    servers: Vec<Cluster>,
    /// The primary of the last of the servers.
    foreign_primary: Cluster,
    pooler: Pooler,
    folder: tempfile::TempDir,
}

impl ForeignSystemFixture {
    fn start(test: &str, entries: &[&str], more: &str) -> Option<Self> {
        let [primary, standby] = start_system(test, "ours")?;
        let [foreign_primary, foreign] = start_system(test, "theirs")?;
        let servers = vec![primary, standby, foreign];
        for (system, at) in [("ours", &servers[0]), ("theirs", &foreign_primary)] {
            query_server(at, &format!("create table whose as select '{system}'::text as system"));
        }
        for server in &servers[1..] {
            let is_there = "select count(*) from pg_class where relname = 'whose'";
            wait_until("the table at the standby", WAIT_TIMEOUT, || {
                query_server(server, is_there) == "1"
            });
        }
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("howdah.toml");
        std::fs::write(&file, settings(&servers, entries, more)).unwrap();
        let config = Config::read(&file).unwrap().config;
        let origin = ConfigOrigin { path: file, workers: None };
        let pooler = Pooler::start_from_source(config, Some(origin)).unwrap();
        Some(Self { servers, foreign_primary, pooler, folder })
    }

    fn reload(&self, entries: &[&str], more: &str) {
        let text = settings(&self.servers, entries, more);
        std::fs::write(self.folder.path().join("howdah.toml"), text).unwrap();
        self.pooler.control().reload().unwrap();
    }

    fn client(&self, attributes: &str) -> RawClient {
        let mut raw = RawClient::connect(self.pooler.addresses()[0]);
        raw.send_startup_for_database("app", &format!("target_session_attrs\0{attributes}\0"));
        raw.read_until(b'Z');
        raw
    }

    /// Role, state and system identifier of each server from SHOW MEMBERS.
    fn members(&self) -> Vec<(String, String, String)> {
        let mut console = RawClient::connect(self.pooler.addresses()[0]);
        console.send_startup_for_database("howdah", "");
        console.read_until(b'Z');
        console.send_query("show members");
        let rows = console.read_until(b'Z').into_iter().filter(|(tag, _)| *tag == b'D');
        let cells = |(_, row): (u8, Vec<u8>)| {
            let (mut rest, mut cells) = (&row[2..], Vec::new());
            while let Some((length, after)) = rest.split_first_chunk::<4>() {
                let length = usize::try_from(i32::from_be_bytes(*length)).unwrap_or(0);
                cells.push(String::from_utf8(after[..length].to_vec()).unwrap());
                rest = &after[length..];
            }
            (cells[3].clone(), cells[4].clone(), cells.pop().unwrap())
        };
        rows.map(cells).collect()
    }

    fn states(&self) -> String {
        let shown = self.members().into_iter().map(|(role, state, _)| format!("{role} {state}"));
        shown.collect::<Vec<_>>().join(", ")
    }

    /// The servers that have served some reads.
    fn servers_read(&self, raw: &mut RawClient) -> BTreeSet<usize> {
        let place = |port: String| {
            self.servers.iter().position(|server| server.port().to_string() == port).unwrap()
        };
        (0..20).map(|_| place(query_value(raw, SELECT_PORT))).collect()
    }
}

#[test]
fn foreign_replica_gets_no_reads_unless_allowed() {
    let Some(fixture) = ForeignSystemFixture::start("another system", &FIXED_ROLES, "") else {
        return;
    };
    let mut raw = fixture.client("standby");
    wait_until("the foreign server to be detected", WAIT_TIMEOUT, || {
        fixture.states() == "primary up, replica up, replica foreign"
    });
    assert_eq!(fixture.servers_read(&mut raw), [1].into());
    assert_eq!(fixture.servers_read(&mut fixture.client("any")), [0, 1].into());
    let systems: Vec<_> = fixture.members().into_iter().map(|(_, _, system)| system).collect();
    let of = |server: &Cluster| {
        query_server(server, "select system_identifier from pg_control_system()")
    };
    assert_eq!(systems, [0, 1, 2].map(|at| of(&fixture.servers[at])));
    assert!(systems[0] == systems[1] && systems[0] != systems[2], "{systems:?}");
    // The identifier stays known while the standby's replay is paused.
    query_server(&fixture.servers[1], "select pg_wal_replay_pause()");
    fixture.reload(&FIXED_ROLES, "cluster = { require-same-system-identifier = false }");
    wait_until("the foreign server to serve", WAIT_TIMEOUT, || {
        fixture.servers_read(&mut raw) == [1, 2].into()
    });
    assert_eq!(fixture.states(), "primary up, replica up, replica up");
    fixture.reload(&FIXED_ROLES, "");
    wait_until("the foreign server to be detected again", WAIT_TIMEOUT, || {
        fixture.states().ends_with("replica foreign")
    });
    assert_eq!(fixture.servers_read(&mut raw), [1].into());
}

/// A promoted foreign server has a newer timeline than the primary, which must be ignored.
#[test]
fn foreign_primary_never_gets_writes() {
    let more = "cluster = { check-interval = \"50ms\", failover-timeout = \"60s\", primary-rejoin-delay = 0 }";
    let Some(mut fixture) = ForeignSystemFixture::start("another primary", &AUTO_ROLES, more)
    else {
        return;
    };
    let mut raw = fixture.client("read-write");
    assert_eq!(query_value(&mut raw, "select system from whose"), "ours");
    wait_until("the foreign server to be detected", WAIT_TIMEOUT, || {
        fixture.states() == "primary up, replica up, replica foreign"
    });
    let (mut any, mut standby) = (fixture.client("any"), fixture.client("standby"));
    assert_eq!(fixture.servers_read(&mut any), [0, 1].into());
    fixture.foreign_primary.stop().unwrap();
    query_server(&fixture.servers[2], "select pg_promote(false)");
    wait_until("the promotion to be detected", WAIT_TIMEOUT, || {
        fixture.states() == "primary up, replica up, foreign foreign"
    });
    assert_eq!(fixture.servers_read(&mut raw), [0].into());
    assert_eq!(fixture.servers_read(&mut any), [0, 1].into());
    assert_eq!(fixture.servers_read(&mut standby), [1].into());
    // Nor if our primary is down; our standby is then promoted, to a timeline that is not newer.
    fixture.servers[0].kill().unwrap();
    wait_until("the primary to be down", WAIT_TIMEOUT, || {
        fixture.states().starts_with("primary down")
    });
    assert_eq!(fixture.servers_read(&mut any), [1].into());
    query_server(&fixture.servers[1], "select pg_promote(false)");
    let mut raw = fixture.client("read-write");
    assert_eq!(query_value(&mut raw, "select system from whose"), "ours");
    assert_eq!(fixture.servers_read(&mut raw), [1].into());
}

/// If the identifiers cannot be queried, servers are not excluded.
#[test]
fn unknown_system_identifier_does_not_exclude_server() {
    let more = "cluster = { check-user = \"plain\" }\n[pool.users.plain]\nsecret = ''";
    let Some(fixture) = ForeignSystemFixture::start("no system", &FIXED_ROLES, more) else {
        return;
    };
    // The privilege is revoked before the first health check.
    for primary in [&fixture.servers[0], &fixture.foreign_primary] {
        query_server(primary, "create role plain login");
        query_server(primary, "revoke execute on function pg_control_system() from public");
    }
    for standby in &fixture.servers[1..] {
        let is_there = "select count(*) from pg_roles where rolname = 'plain' \
                        and not has_function_privilege(oid, 'pg_control_system()', 'execute')";
        wait_until("the role at the standby", WAIT_TIMEOUT, || {
            query_server(standby, is_there) == "1"
        });
    }
    let mut raw = fixture.client("standby");
    wait_until("both standbys to serve", WAIT_TIMEOUT, || {
        fixture.servers_read(&mut raw) == [1, 2].into()
    });
    let is_known = |(_, state, system): (String, String, String)| {
        assert_eq!((state.as_str(), system.as_str()), ("up", ""));
    };
    wait_until("health checks of all servers", WAIT_TIMEOUT, || {
        query_server(
            &fixture.servers[2],
            "select count(*) from pg_stat_activity where usename = 'plain'",
        ) == "1"
    });
    fixture.members().into_iter().for_each(is_known);
    assert_eq!(fixture.servers_read(&mut raw), [1, 2].into());
}
