//! A database of two shards, each a cluster. Tables are `PARTITION BY HASH`, and each shard has one of the two
//! partitions: a row on the wrong shard is an error.

mod changes;
mod own_writes;

use std::{collections::BTreeMap, io::Write as _, net::SocketAddr, process::Command};

use howdah_lab::{Cluster, client_tool, or_say_why_not};
use howdah_pool::Pooler;

use crate::{
    cluster::{direct, settings_of, until},
    route::{asked, batch, bind, client_at, execute, message, parse, run, said as answer},
    support::{Raw, pooler_of, said},
};

/// Two shards and a pooler before them.
struct Stage {
    /// Of each shard, the primary first.
    shards: Vec<Vec<Cluster>>,
    pooler: Pooler,
}

impl Stage {
    /// So many standbys for each shard; `more` is what else the settings of the database say.
    fn set(test: &str, standbys: usize, more: &str) -> Option<Self> {
        let mut shards = Vec::new();
        for number in 0..2 {
            let primary = Cluster::builder()
                .name(format!("shard{number}"))
                .setting("max_connections", "60")
                .setting("wal_level", "replica")
                .setting("hot_standby", "on")
                .start();
            let primary = or_say_why_not(test, primary)?;
            let standby = |at: usize| {
                let name = format!("shard{number}s{at}");
                Cluster::builder().name(name).standby_of(&primary).start().unwrap()
            };
            let standbys: Vec<_> = (0..standbys).map(standby).collect();
            shards.push([primary].into_iter().chain(standbys).collect());
        }
        let pooler = pooler_of(&settings(&shards, more));
        let stage = Self { shards, pooler };
        for shard in 0..2 {
            stage
                .direct(shard, "create table orders (id bigint, note text) partition by hash (id)");
            stage.direct(
                shard,
                &format!(
                    "create table orders_{shard} partition of orders \
                     for values with (modulus 2, remainder {shard})"
                ),
            );
            stage.direct(shard, &format!("create table place as select {shard} as shard"));
        }
        Some(stage)
    }

    fn address(&self) -> SocketAddr {
        self.pooler.addresses()[0]
    }

    fn client(&self) -> Raw {
        client_at(self.address())
    }

    /// Asks the primary of a shard itself.
    fn direct(&self, shard: usize, statement: &str) -> String {
        direct(&self.shards[shard][0], statement)
    }

    fn program(&self, name: &str) -> Command {
        let own = self.shards[0][0].binaries().program(name);
        let program = match own.is_file() {
            true => own,
            false => client_tool(name).expect("psql and pgbench are installed"),
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

    /// The shard that PostgreSQL has a key on.
    fn shard_of(&self, key: i64) -> usize {
        let sql = format!("select satisfies_hash_partition('orders'::regclass, 2, 1, {key}::int8)");
        usize::from(self.direct(0, &sql) == "t")
    }

    /// A key of each shard.
    fn keys(&self) -> [i64; 2] {
        [0, 1].map(|shard| (1..).find(|key| self.shard_of(*key) == shard).unwrap())
    }
}

fn settings(shards: &[Vec<Cluster>], more: &str) -> String {
    let shard = |servers: &Vec<Cluster>| {
        let server = |it: &Cluster| format!("{{ host = \"127.0.0.1\", port = {} }}", it.port());
        let servers: Vec<_> = servers.iter().map(server).collect();
        format!("[[pool.databases.app.shards]]\nservers = [{}]\n", servers.join(", "))
    };
    let shards: String = shards.iter().map(shard).collect();
    settings_of(&format!("{more}\n{shards}"))
}

const KEYED: &str =
    "sharding = { key = [\"bigint\"], tables = { orders = [\"id\"] }, default = 0 }";

const COMMANDS: &str = "
\\set key random(1, 1000000)
SET SHARDING KEY TO ':key';
SET SERVER ROLE TO 'primary';
INSERT INTO orders (id, note) VALUES (:key, 'from pgbench');
SET SERVER ROLE TO 'replica';
SELECT count(*) FROM orders WHERE id = :key;
";

/// Keys come from the statements themselves.
const PLAIN: &str = "
\\set key random(1, 1000000)
BEGIN;
INSERT INTO orders (id, note) VALUES (:key, 'by its key');
SELECT count(*) FROM orders WHERE id = :key;
END;
SELECT count(*) FROM orders WHERE id = :key;
";

#[test]
fn the_lines_of_pgcats_readme_with_two_shards_of_a_primary_and_two_standbys() {
    let more = format!("cluster = {{ role = \"auto\" }}\n{KEYED}");
    let Some(stage) = Stage::set("readme", 2, &more) else { return };
    // Tables that nobody has named are on the default shard.
    said(stage.program("pgbench").args(["-i", "-q"]).output().unwrap());
    for protocol in ["simple", "extended"] {
        let args = ["-n", "-t", "100", "--protocol", protocol];
        said(stage.program("pgbench").args(args).output().unwrap());
    }
    assert_eq!(stage.direct(0, "select count(*) from pgbench_history"), "200");
    assert_eq!(stage.direct(1, "select to_regclass('pgbench_history') is null"), "t");
    // Whoever reads at a standby has to find the tables there.
    for shard in &stage.shards {
        for standby in &shard[1..] {
            let sql = "select to_regclass('orders') is not null";
            until("the tables are at standbys", || direct(standby, sql) == "t");
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("script.sql");
    let load = |script: &str, protocol: &str| {
        std::fs::write(&file, script).unwrap();
        let args = ["-n", "-c", "4", "-t", "50", "-M", protocol, "-f"];
        let output = stage.program("pgbench").args(args).arg(&file).output().unwrap();
        let err = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{protocol} {script}: {err}");
    };
    load(COMMANDS, "simple");
    for protocol in ["simple", "extended", "prepared"] {
        load(PLAIN, protocol);
    }
    // The rows are where PostgreSQL has them, or they would not be there; all of them, on both.
    let rows = |shard| stage.direct(shard, "select count(*) from orders").parse::<u32>().unwrap();
    assert_eq!(rows(0) + rows(1), 800);
    assert!(rows(0) > 300 && rows(1) > 300, "{} {}", rows(0), rows(1));
    // Standbys of both had the reads.
    for shard in &stage.shards {
        for standby in &shard[1..] {
            let sql = "select xact_commit > 40 from pg_stat_database where datname = 'postgres'";
            until("each standby has had reads", || direct(standby, sql) == "t");
        }
    }
    let members = said(
        stage
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
    drop(stop); // One round.
    stage.pooler.control().keep_metrics(&registry, &stopped);
    for (shard, servers) in stage.shards.iter().enumerate() {
        let server = format!("server=\"127.0.0.1:{}\"", servers[0].port());
        let line = format!(
            "howdah_pool_member_primary{{database=\"app\",{server},shard=\"{shard}\"}} 1\n"
        );
        assert!(registry.prometheus().contains(&line), "{line}");
    }
}

const WHERE: &str = "select shard from place";

#[test]
fn a_session_says_its_shard_by_number_and_by_key() {
    let more = "sharding = { key = [\"bigint\"], default = 0 }\nrouting = { hints = true }";
    let Some(stage) = Stage::set("shard_commands", 0, more) else { return };
    let mut raw = stage.client();
    assert_eq!(asked(&mut raw, WHERE), "0, SELECT 1, I");
    for shard in ["1", "0"] {
        assert_eq!(asked(&mut raw, &format!("SET SHARD TO '{shard}'")), "SET SHARD, I");
        assert_eq!(asked(&mut raw, "SHOW SHARD"), format!("{shard}, SELECT 1, I"));
        assert_eq!(asked(&mut raw, WHERE), format!("{shard}, SELECT 1, I"));
        assert_eq!(run(&mut raw, WHERE, &[]), format!("parsed, bound, {shard}, SELECT 1, I"));
    }
    for key in [-5, 0, 1, 2, 3, 1234, i64::MAX] {
        let set = asked(&mut raw, &format!("SET SHARDING KEY TO '{key}'"));
        assert_eq!(set, "SET SHARDING KEY, I");
        let shard = stage.shard_of(key);
        assert_eq!(asked(&mut raw, WHERE), format!("{shard}, SELECT 1, I"), "{key}");
        assert_eq!(asked(&mut raw, "SHOW SHARD"), format!("{shard}, SELECT 1, I"));
    }
    // What cannot be leaves all as it is.
    asked(&mut raw, "SET SHARD TO '1'");
    let beyond = asked(&mut raw, "SET SHARD TO '2'");
    assert!(beyond.starts_with("58000 ") && beyond.contains("staying on shard 1"), "{beyond}");
    assert!(asked(&mut raw, "SET SHARDING KEY TO 'x'").starts_with("22P02 "));
    assert_eq!(asked(&mut raw, WHERE), "1, SELECT 1, I");
    // In a transaction, the shard is fixed.
    assert_eq!(asked(&mut raw, "begin"), "BEGIN, T");
    assert_eq!(asked(&mut raw, WHERE), "1, SELECT 1, T");
    let late = asked(&mut raw, "SET SHARD TO '0'");
    assert!(late.starts_with("25001 ") && late.ends_with(", T"), "{late}");
    let hint = asked(&mut raw, "/* shard_id: 0 */ select 1");
    assert!(hint.starts_with("0A000 ") && hint.ends_with(", T"), "{hint}");
    assert_eq!(asked(&mut raw, "commit"), "COMMIT, I");
    // A hint is for one statement, and the transaction that it begins.
    assert_eq!(asked(&mut raw, &format!("/* shard_id: 0 */ {WHERE}")), "0, SELECT 1, I");
    let [_, key] = stage.keys();
    asked(&mut raw, "SET SHARD TO '0'");
    let hinted = format!("/* sharding_key: '{key}' */ {WHERE}");
    assert_eq!(asked(&mut raw, &hinted), "1, SELECT 1, I");
    assert_eq!(run(&mut raw, &hinted, &[]), "parsed, bound, 1, SELECT 1, I");
    assert_eq!(asked(&mut raw, "/* shard_id: 1 */ begin"), "BEGIN, T");
    assert_eq!(asked(&mut raw, &format!("/* shard_id: 1 */ {WHERE}")), "1, SELECT 1, T");
    assert_eq!(asked(&mut raw, "rollback"), "ROLLBACK, I");
    assert_eq!(asked(&mut raw, WHERE), "0, SELECT 1, I");
    // Any shard is one of them.
    assert_eq!(asked(&mut raw, "SET SHARD TO ANY"), "SET SHARD, I");
    let shown = asked(&mut raw, "SHOW SHARD");
    assert!(["0, SELECT 1, I", "1, SELECT 1, I"].contains(&&*shown), "{shown}");
    assert_eq!(asked(&mut raw, WHERE), shown);
}

#[test]
fn statements_go_to_the_shard_of_their_key() {
    let more = KEYED.replace("default = 0", "default = \"refuse\"");
    let Some(stage) = Stage::set("shard_keys", 0, &more) else { return };
    let keys = stage.keys();
    let mut raw = stage.client();
    let insert = "insert into orders (id, note) values ($1, $2)";
    assert_eq!(batch(&mut raw, &[parse("in", insert)]), "parsed, I");
    let select = "select note from orders where id = $1";
    assert_eq!(batch(&mut raw, &[parse("out", select)]), "parsed, I");
    for (shard, key) in keys.iter().enumerate() {
        let text = key.to_string();
        let plain = format!("insert into orders (id, note) values ({key}, 'plain')");
        assert_eq!(asked(&mut raw, &plain), "INSERT 0 1, I");
        let bound = run(&mut raw, insert, &[&text, "bound"]);
        assert_eq!(bound, "parsed, bound, INSERT 0 1, I");
        let named = batch(&mut raw, &[bind("in", &[&text, "named"]), execute()]);
        assert_eq!(named, "bound, INSERT 0 1, I");
        let notes = batch(&mut raw, &[bind("out", &[&text]), execute()]);
        assert_eq!(notes, "bound, plain, bound, named, SELECT 3, I");
        assert_eq!(stage.direct(shard, "select count(*) from orders"), "3");
        // A BEGIN goes where the statement behind it does.
        assert_eq!(asked(&mut raw, "begin isolation level repeatable read"), "BEGIN, T");
        assert_eq!(asked(&mut raw, &plain), "INSERT 0 1, T");
        assert_eq!(asked(&mut raw, "show transaction_isolation"), "repeatable read, SHOW, T");
        assert_eq!(run(&mut raw, insert, &[&text, "x"]), "parsed, bound, INSERT 0 1, T");
        // A statement for the other shard is refused, and the transaction goes on.
        let other = keys[1 - shard].to_string();
        let refused = asked(&mut raw, &format!("select * from orders where id = {other}"));
        assert!(refused.starts_with("0A000 ") && refused.ends_with(", T"), "{refused}");
        let refused = batch(&mut raw, &[bind("out", &[&other]), execute()]);
        assert!(refused.starts_with("0A000 ") && refused.ends_with(", T"), "{refused}");
        assert_eq!(asked(&mut raw, "commit"), "COMMIT, I");
        assert_eq!(stage.direct(shard, "select count(*) from orders"), "5");
        // Nothing between: it was no transaction of any server.
        assert_eq!(asked(&mut raw, "begin"), "BEGIN, T");
        assert_eq!(asked(&mut raw, "commit"), "COMMIT, I");
    }
    // JDBC's way: BEGIN and the first statement in one batch.
    let both = [
        parse("", "begin"),
        bind("", &[]),
        execute(),
        bind("in", &[&keys[1].to_string(), "jdbc"]),
        execute(),
    ];
    let begun = batch(&mut raw, &both);
    assert_eq!(begun, "parsed, bound, BEGIN, bound, INSERT 0 1, T");
    assert_eq!(asked(&mut raw, "rollback"), "ROLLBACK, I");
    // A batch for two shards is refused before anything of it has happened.
    let [zero, one] = keys.map(|key| key.to_string());
    let two = [bind("in", &[&zero, "a"]), execute(), bind("in", &[&one, "b"]), execute()];
    let refused = batch(&mut raw, &two);
    assert!(refused.starts_with("0A000 the statement is for several shards"), "{refused}");
    assert_eq!(stage.direct(0, "select count(*) from orders"), "5");
    // The same where the first half was sent before, with a Flush: the batch fails as a whole.
    let half = [&two[..2].concat()[..], &message(b'H', &[])].concat();
    raw.0.write_all(&half).unwrap();
    assert_eq!(raw.until(b'C').last().unwrap().1, b"INSERT 0 1\0");
    let rest = batch(&mut raw, &two[2..]);
    assert!(rest.starts_with("22P02 ") && rest.contains("refused by the pooler"), "{rest}");
    assert_eq!(stage.direct(0, "select count(*) from orders"), "5");
    // Sent without waiting: each goes to its own shard.
    let query = |key: &str| {
        let sql = format!("select count(*) from orders where id = {key}\0");
        message(b'Q', &[sql.as_bytes()])
    };
    raw.0.write_all(&[query(&zero), query(&one), query(&zero)].concat()).unwrap();
    let answers = [answer(&mut raw), answer(&mut raw), answer(&mut raw)];
    assert_eq!(answers, ["5, SELECT 1, I"; 3]);
    // What tells no shard, or several.
    for (sql, code) in [
        ("update orders set note = 'x'", "0A000"),
        ("select avg(id) from orders", "0A000"),
        ("select * from place", "0A000"),
        ("update orders set id = 1 where id = 2", "0A000"),
        ("insert into orders values (1, 'x')", "0A000"),
    ] {
        let refused = asked(&mut raw, sql);
        assert!(refused.starts_with(code) && refused.ends_with(", I"), "{sql}: {refused}");
        let refused = run(&mut raw, sql, &[]);
        assert!(refused.starts_with(code) && refused.ends_with(", I"), "{sql}: {refused}");
    }
    // Without a table any shard will do; one that was said is not doubted.
    assert_eq!(asked(&mut raw, "select 1 + 1"), "2, SELECT 1, I");
    assert_eq!(asked(&mut raw, "SET SHARD TO '1'"), "SET SHARD, I");
    assert_eq!(asked(&mut raw, WHERE), "1, SELECT 1, I");
}

#[test]
fn in_session_mode_the_first_statement_fixes_the_shard() {
    let more = format!("mode = \"session\"\n{KEYED}");
    let Some(stage) = Stage::set("shard_session", 0, &more) else { return };
    let [zero, one] = stage.keys();
    let mut raw = stage.client();
    assert_eq!(asked(&mut raw, &format!("SET SHARDING KEY TO '{one}'")), "SET SHARDING KEY, I");
    assert_eq!(asked(&mut raw, WHERE), "1, SELECT 1, I");
    let late = asked(&mut raw, &format!("SET SHARDING KEY TO '{zero}'"));
    assert!(late.starts_with("25001 ") && late.contains("session mode"), "{late}");
    assert_eq!(asked(&mut raw, WHERE), "1, SELECT 1, I");
    // By a statement; those for the other shard are refused from then on, by whatever name.
    let mut raw = stage.client();
    let count = |key: i64| format!("select count(*) from orders where id = {key}");
    assert_eq!(asked(&mut raw, &count(one)), "0, SELECT 1, I");
    assert_eq!(asked(&mut raw, "SHOW SHARD"), "1, SELECT 1, I");
    assert!(asked(&mut raw, &count(zero)).starts_with("0A000 "));
    let prepared = parse("c", "select count(*) from orders where id = $1");
    assert_eq!(batch(&mut raw, &[prepared]), "parsed, I");
    let bound = |raw: &mut Raw, key: i64| batch(raw, &[bind("c", &[&key.to_string()]), execute()]);
    assert_eq!(bound(&mut raw, one), "bound, 0, SELECT 1, I");
    assert!(bound(&mut raw, zero).starts_with("0A000 "));
    assert_eq!(bound(&mut raw, one), "bound, 0, SELECT 1, I");
}
