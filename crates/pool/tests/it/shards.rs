//! A database of two shards, each a cluster. Tables are `PARTITION BY HASH`, and each shard has one
//! of the two partitions, so that a row on the wrong shard is an error.

mod changes;
mod read_your_writes;

use std::{collections::BTreeMap, io::Write as _, net::SocketAddr, process::Command};

use howdah_lab::{Cluster, client_tool, skip_without_postgres, wait_until};
use howdah_pool::Pooler;

use crate::{
    cluster::{app_settings, query_server},
    routing::{
        bind, execute, log_in_to_app, message, parse, query_reply, read_reply, run_batch,
        run_extended,
    },
    support::{RawClient, WAIT_TIMEOUT, checked_stdout, start_pooler_with},
};

/// Two shards and a pooler in front of them.
struct ShardFixture {
    /// The servers of each shard, the primary first.
    shards: Vec<Vec<Cluster>>,
    pooler: Pooler,
}

impl ShardFixture {
    /// Starts shards with this number of standbys each; `more` are further lines of the database.
    fn start(test: &str, standbys: usize, more: &str) -> Option<Self> {
        let mut shards = Vec::new();
        for number in 0..2 {
            let primary = Cluster::builder()
                .name(format!("shard{number}"))
                .setting("max_connections", "60")
                .setting("wal_level", "replica")
                .setting("hot_standby", "on")
                .start();
            let primary = skip_without_postgres(test, primary)?;
            let standby = |at: usize| {
                let name = format!("shard{number}s{at}");
                Cluster::builder().name(name).standby_of(&primary).start().unwrap()
            };
            let standbys: Vec<_> = (0..standbys).map(standby).collect();
            shards.push([primary].into_iter().chain(standbys).collect());
        }
        let pooler = start_pooler_with(&settings(&shards, more));
        let fixture = Self { shards, pooler };
        for shard in 0..2 {
            fixture.query_server(
                shard,
                "create table orders (id bigint, note text) partition by hash (id)",
            );
            fixture.query_server(
                shard,
                &format!(
                    "create table orders_{shard} partition of orders \
                     for values with (modulus 2, remainder {shard})"
                ),
            );
            fixture.query_server(shard, &format!("create table place as select {shard} as shard"));
        }
        Some(fixture)
    }

    fn address(&self) -> SocketAddr {
        self.pooler.addresses()[0]
    }

    fn client(&self) -> RawClient {
        log_in_to_app(self.address())
    }

    /// Runs a statement directly at the primary of a shard.
    fn query_server(&self, shard: usize, statement: &str) -> String {
        query_server(&self.shards[shard][0], statement)
    }

    fn program(&self, name: &str) -> Command {
        let own = self.shards[0][0].binaries().program(name);
        let program = if own.is_file() {
            own
        } else {
            client_tool(name).expect("psql and pgbench are installed")
        };
        let mut command = Command::new(program);
        command
            .env_clear()
            .env("PGHOST", "127.0.0.1")
            .env("PGPORT", self.address().port().to_string())
            .env("PGUSER", "postgres")
            .env("PGDATABASE", "app")
            .env("PGCONNECT_TIMEOUT", "60");
        command
    }

    /// The shard of a key by PostgreSQL's hash partitioning.
    fn shard_for_key(&self, key: i64) -> usize {
        let sql = format!("select satisfies_hash_partition('orders'::regclass, 2, 1, {key}::int8)");
        usize::from(self.query_server(0, &sql) == "t")
    }

    /// One key of each shard.
    fn keys(&self) -> [i64; 2] {
        [0, 1].map(|shard| (1..).find(|key| self.shard_for_key(*key) == shard).unwrap())
    }
}

fn settings(shards: &[Vec<Cluster>], more: &str) -> String {
    let shard = |servers: &Vec<Cluster>| {
        let server = |it: &Cluster| format!("{{ host = \"127.0.0.1\", port = {} }}", it.port());
        let servers: Vec<_> = servers.iter().map(server).collect();
        format!("[[pool.databases.app.shards]]\nservers = [{}]\n", servers.join(", "))
    };
    let shards: String = shards.iter().map(shard).collect();
    app_settings(&format!("{more}\n{shards}"))
}

const KEYED_SHARDING: &str =
    "sharding = { key = [\"bigint\"], tables = { orders = [\"id\"] }, default = 0 }";

/// A pgbench script that sets shard and role by commands.
const SCRIPT_WITH_COMMANDS: &str = "
\\set key random(1, 1000000)
SET SHARDING KEY TO ':key';
SET SERVER ROLE TO 'primary';
INSERT INTO orders (id, note) VALUES (:key, 'from pgbench');
SET SERVER ROLE TO 'replica';
SELECT count(*) FROM orders WHERE id = :key;
";

/// A pgbench script whose statements contain their keys.
const SCRIPT_WITH_KEYS: &str = "
\\set key random(1, 1000000)
BEGIN;
INSERT INTO orders (id, note) VALUES (:key, 'by its key');
SELECT count(*) FROM orders WHERE id = :key;
END;
SELECT count(*) FROM orders WHERE id = :key;
";

#[test]
fn pgcat_readme_commands_work_with_shards_and_standbys() {
    let more = format!("cluster = {{ role = \"auto\" }}\n{KEYED_SHARDING}");
    let Some(fixture) = ShardFixture::start("readme", 2, &more) else { return };
    // Tables that are not configured are on the default shard.
    checked_stdout(fixture.program("pgbench").args(["-i", "-q"]).output().unwrap());
    for protocol in ["simple", "extended"] {
        let args = ["-n", "-t", "100", "--protocol", protocol];
        checked_stdout(fixture.program("pgbench").args(args).output().unwrap());
    }
    assert_eq!(fixture.query_server(0, "select count(*) from pgbench_history"), "200");
    assert_eq!(fixture.query_server(1, "select to_regclass('pgbench_history') is null"), "t");
    // Wait until the tables are replicated, before reads at standbys.
    for shard in &fixture.shards {
        for standby in &shard[1..] {
            let sql = "select to_regclass('orders') is not null";
            wait_until("the tables at standbys", WAIT_TIMEOUT, || {
                query_server(standby, sql) == "t"
            });
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("script.sql");
    let load = |script: &str, protocol: &str| {
        std::fs::write(&file, script).unwrap();
        let args = ["-n", "-c", "4", "-t", "50", "-M", protocol, "-f"];
        let output = fixture.program("pgbench").args(args).arg(&file).output().unwrap();
        let err = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{protocol} {script}: {err}");
    };
    load(SCRIPT_WITH_COMMANDS, "simple");
    for protocol in ["simple", "extended", "prepared"] {
        load(SCRIPT_WITH_KEYS, protocol);
    }
    // All rows are there; a row on the wrong shard would have been an error.
    let rows =
        |shard| fixture.query_server(shard, "select count(*) from orders").parse::<u32>().unwrap();
    assert_eq!(rows(0) + rows(1), 800);
    assert!(rows(0) > 300 && rows(1) > 300, "{} {}", rows(0), rows(1));
    // The standbys of both shards have served reads.
    for shard in &fixture.shards {
        for standby in &shard[1..] {
            let sql = "select xact_commit > 40 from pg_stat_database where datname = 'postgres'";
            wait_until("reads at each standby", WAIT_TIMEOUT, || query_server(standby, sql) == "t");
        }
    }
    let members = checked_stdout(
        fixture
            .program("psql")
            .args(["-XAtq", "-d", "howdah", "-c", "show members"])
            .output()
            .unwrap(),
    );
    let mut found = BTreeMap::new();
    for row in members.lines() {
        let fields: Vec<_> = row.split('|').collect();
        *found.entry((fields[15].to_owned(), fields[3].to_owned())).or_insert(0) += 1;
    }
    let of = |shard: &str, role: &str| found.get(&(shard.to_owned(), role.to_owned())).copied();
    for shard in ["0", "1"] {
        assert_eq!((of(shard, "primary"), of(shard, "replica")), (Some(1), Some(2)), "{members}");
    }
    let registry = howdah_stats::Registry::new();
    let (stop, stopped) = std::sync::mpsc::channel();
    drop(stop); // Export once.
    fixture.pooler.control().export_metrics(&registry, &stopped);
    for (shard, servers) in fixture.shards.iter().enumerate() {
        let server = format!("server=\"127.0.0.1:{}\"", servers[0].port());
        let line = format!(
            "howdah_pool_member_primary{{database=\"app\",{server},shard=\"{shard}\"}} 1\n"
        );
        assert!(registry.prometheus().contains(&line), "{line}");
    }
}

const SELECT_SHARD: &str = "select shard from place";

#[test]
fn session_sets_shard_by_number_and_key() {
    let more = "sharding = { key = [\"bigint\"], default = 0 }\nrouting = { hints = true }";
    let Some(fixture) = ShardFixture::start("shard_commands", 0, more) else { return };
    let mut raw = fixture.client();
    assert_eq!(query_reply(&mut raw, SELECT_SHARD), "0, SELECT 1, I");
    for shard in ["1", "0"] {
        assert_eq!(query_reply(&mut raw, &format!("SET SHARD TO '{shard}'")), "SET SHARD, I");
        assert_eq!(query_reply(&mut raw, "SHOW SHARD"), format!("{shard}, SELECT 1, I"));
        assert_eq!(query_reply(&mut raw, SELECT_SHARD), format!("{shard}, SELECT 1, I"));
        assert_eq!(
            run_extended(&mut raw, SELECT_SHARD, &[]),
            format!("parsed, bound, {shard}, SELECT 1, I")
        );
    }
    for key in [-5, 0, 1, 2, 3, 1234, i64::MAX] {
        let set = query_reply(&mut raw, &format!("SET SHARDING KEY TO '{key}'"));
        assert_eq!(set, "SET SHARDING KEY, I");
        let shard = fixture.shard_for_key(key);
        assert_eq!(query_reply(&mut raw, SELECT_SHARD), format!("{shard}, SELECT 1, I"), "{key}");
        assert_eq!(query_reply(&mut raw, "SHOW SHARD"), format!("{shard}, SELECT 1, I"));
    }
    // An invalid value changes nothing.
    query_reply(&mut raw, "SET SHARD TO '1'");
    let beyond = query_reply(&mut raw, "SET SHARD TO '2'");
    assert!(beyond.starts_with("58000 ") && beyond.contains("shard is still 1"), "{beyond}");
    assert!(query_reply(&mut raw, "SET SHARDING KEY TO 'x'").starts_with("22P02 "));
    assert_eq!(query_reply(&mut raw, SELECT_SHARD), "1, SELECT 1, I");
    // In a transaction, the shard is fixed.
    assert_eq!(query_reply(&mut raw, "begin"), "BEGIN, T");
    assert_eq!(query_reply(&mut raw, SELECT_SHARD), "1, SELECT 1, T");
    let late = query_reply(&mut raw, "SET SHARD TO '0'");
    assert!(late.starts_with("25001 ") && late.ends_with(", T"), "{late}");
    let hint = query_reply(&mut raw, "/* shard_id: 0 */ select 1");
    assert!(hint.starts_with("0A000 ") && hint.ends_with(", T"), "{hint}");
    assert_eq!(query_reply(&mut raw, "commit"), "COMMIT, I");
    // A hint applies to one statement, or to the transaction that it starts.
    assert_eq!(
        query_reply(&mut raw, &format!("/* shard_id: 0 */ {SELECT_SHARD}")),
        "0, SELECT 1, I"
    );
    let [_, key] = fixture.keys();
    query_reply(&mut raw, "SET SHARD TO '0'");
    let hinted = format!("/* sharding_key: '{key}' */ {SELECT_SHARD}");
    assert_eq!(query_reply(&mut raw, &hinted), "1, SELECT 1, I");
    assert_eq!(run_extended(&mut raw, &hinted, &[]), "parsed, bound, 1, SELECT 1, I");
    assert_eq!(query_reply(&mut raw, "/* shard_id: 1 */ begin"), "BEGIN, T");
    assert_eq!(
        query_reply(&mut raw, &format!("/* shard_id: 1 */ {SELECT_SHARD}")),
        "1, SELECT 1, T"
    );
    assert_eq!(query_reply(&mut raw, "rollback"), "ROLLBACK, I");
    assert_eq!(query_reply(&mut raw, SELECT_SHARD), "0, SELECT 1, I");
    // ANY selects one of the shards.
    assert_eq!(query_reply(&mut raw, "SET SHARD TO ANY"), "SET SHARD, I");
    let shown = query_reply(&mut raw, "SHOW SHARD");
    assert!(["0, SELECT 1, I", "1, SELECT 1, I"].contains(&&*shown), "{shown}");
    assert_eq!(query_reply(&mut raw, SELECT_SHARD), shown);
}

#[test]
fn statements_go_to_shard_of_key() {
    let more = KEYED_SHARDING.replace("default = 0", "default = \"refuse\"");
    let Some(fixture) = ShardFixture::start("shard_keys", 0, &more) else { return };
    let keys = fixture.keys();
    let mut raw = fixture.client();
    let insert = "insert into orders (id, note) values ($1, $2)";
    assert_eq!(run_batch(&mut raw, &[parse("in", insert)]), "parsed, I");
    let select = "select note from orders where id = $1";
    assert_eq!(run_batch(&mut raw, &[parse("out", select)]), "parsed, I");
    for (shard, key) in keys.iter().enumerate() {
        let text = key.to_string();
        let plain = format!("insert into orders (id, note) values ({key}, 'plain')");
        assert_eq!(query_reply(&mut raw, &plain), "INSERT 0 1, I");
        let bound = run_extended(&mut raw, insert, &[&text, "bound"]);
        assert_eq!(bound, "parsed, bound, INSERT 0 1, I");
        let named = run_batch(&mut raw, &[bind("in", &[&text, "named"]), execute()]);
        assert_eq!(named, "bound, INSERT 0 1, I");
        let notes = run_batch(&mut raw, &[bind("out", &[&text]), execute()]);
        assert_eq!(notes, "bound, plain, bound, named, SELECT 3, I");
        assert_eq!(fixture.query_server(shard, "select count(*) from orders"), "3");
        // A BEGIN goes to the shard of the first statement after it.
        assert_eq!(query_reply(&mut raw, "begin isolation level repeatable read"), "BEGIN, T");
        assert_eq!(query_reply(&mut raw, &plain), "INSERT 0 1, T");
        assert_eq!(query_reply(&mut raw, "show transaction_isolation"), "repeatable read, SHOW, T");
        assert_eq!(run_extended(&mut raw, insert, &[&text, "x"]), "parsed, bound, INSERT 0 1, T");
        // A statement for the other shard is refused without aborting the transaction.
        let other = keys[1 - shard].to_string();
        let refused = query_reply(&mut raw, &format!("select * from orders where id = {other}"));
        assert!(refused.starts_with("0A000 ") && refused.ends_with(", T"), "{refused}");
        let refused = run_batch(&mut raw, &[bind("out", &[&other]), execute()]);
        assert!(refused.starts_with("0A000 ") && refused.ends_with(", T"), "{refused}");
        assert_eq!(query_reply(&mut raw, "commit"), "COMMIT, I");
        assert_eq!(fixture.query_server(shard, "select count(*) from orders"), "5");
        // An empty transaction never reaches a server.
        assert_eq!(query_reply(&mut raw, "begin"), "BEGIN, T");
        assert_eq!(query_reply(&mut raw, "commit"), "COMMIT, I");
    }
    // As by JDBC: BEGIN and the first statement in one batch.
    let both = [
        parse("", "begin"),
        bind("", &[]),
        execute(),
        bind("in", &[&keys[1].to_string(), "jdbc"]),
        execute(),
    ];
    let begun = run_batch(&mut raw, &both);
    assert_eq!(begun, "parsed, bound, BEGIN, bound, INSERT 0 1, T");
    assert_eq!(query_reply(&mut raw, "rollback"), "ROLLBACK, I");
    // A batch for two shards is refused before any of it is executed.
    let [zero, one] = keys.map(|key| key.to_string());
    let two = [bind("in", &[&zero, "a"]), execute(), bind("in", &[&one, "b"]), execute()];
    let refused = run_batch(&mut raw, &two);
    assert!(refused.starts_with("0A000 the statement is for several shards"), "{refused}");
    assert_eq!(fixture.query_server(0, "select count(*) from orders"), "5");
    // The same if the first half was sent before with a Flush: the whole batch fails.
    let half = [&two[..2].concat()[..], &message(b'H', &[])].concat();
    raw.0.write_all(&half).unwrap();
    assert_eq!(raw.read_until(b'C').last().unwrap().1, b"INSERT 0 1\0");
    let rest = run_batch(&mut raw, &two[2..]);
    assert!(rest.starts_with("22P02 ") && rest.contains("refused by the pooler"), "{rest}");
    assert_eq!(fixture.query_server(0, "select count(*) from orders"), "5");
    // Pipelined statements go to their own shards.
    let query = |key: &str| {
        let sql = format!("select count(*) from orders where id = {key}\0");
        message(b'Q', &[sql.as_bytes()])
    };
    raw.0.write_all(&[query(&zero), query(&one), query(&zero)].concat()).unwrap();
    let answers = [read_reply(&mut raw), read_reply(&mut raw), read_reply(&mut raw)];
    assert_eq!(answers, ["5, SELECT 1, I"; 3]);
    // Statements for no shard or several.
    for (sql, code) in [
        ("update orders set note = 'x'", "0A000"),
        ("select avg(id) from orders", "0A000"),
        ("select * from place", "0A000"),
        ("update orders set id = 1 where id = 2", "0A000"),
        ("insert into orders values (1, 'x')", "0A000"),
    ] {
        let refused = query_reply(&mut raw, sql);
        assert!(refused.starts_with(code) && refused.ends_with(", I"), "{sql}: {refused}");
        let refused = run_extended(&mut raw, sql, &[]);
        assert!(refused.starts_with(code) && refused.ends_with(", I"), "{sql}: {refused}");
    }
    // Without a table any shard is used, or the one that the session has set.
    assert_eq!(query_reply(&mut raw, "select 1 + 1"), "2, SELECT 1, I");
    assert_eq!(query_reply(&mut raw, "SET SHARD TO '1'"), "SET SHARD, I");
    assert_eq!(query_reply(&mut raw, SELECT_SHARD), "1, SELECT 1, I");
}

#[test]
fn first_statement_fixes_shard_in_session_mode() {
    let more = format!("mode = \"session\"\n{KEYED_SHARDING}");
    let Some(fixture) = ShardFixture::start("shard_session", 0, &more) else { return };
    let [zero, one] = fixture.keys();
    let mut raw = fixture.client();
    assert_eq!(
        query_reply(&mut raw, &format!("SET SHARDING KEY TO '{one}'")),
        "SET SHARDING KEY, I"
    );
    assert_eq!(query_reply(&mut raw, SELECT_SHARD), "1, SELECT 1, I");
    let late = query_reply(&mut raw, &format!("SET SHARDING KEY TO '{zero}'"));
    assert!(late.starts_with("25001 ") && late.contains("session mode"), "{late}");
    assert_eq!(query_reply(&mut raw, SELECT_SHARD), "1, SELECT 1, I");
    // After a statement for one shard, statements for the other shard are refused, prepared ones
    // too.
    let mut raw = fixture.client();
    let count = |key: i64| format!("select count(*) from orders where id = {key}");
    assert_eq!(query_reply(&mut raw, &count(one)), "0, SELECT 1, I");
    assert_eq!(query_reply(&mut raw, "SHOW SHARD"), "1, SELECT 1, I");
    assert!(query_reply(&mut raw, &count(zero)).starts_with("0A000 "));
    let prepared = parse("c", "select count(*) from orders where id = $1");
    assert_eq!(run_batch(&mut raw, &[prepared]), "parsed, I");
    let bound = |raw: &mut RawClient, key: i64| {
        run_batch(raw, &[bind("c", &[&key.to_string()]), execute()])
    };
    assert_eq!(bound(&mut raw, one), "bound, 0, SELECT 1, I");
    assert!(bound(&mut raw, zero).starts_with("0A000 "));
    assert_eq!(bound(&mut raw, one), "bound, 0, SELECT 1, I");
}
