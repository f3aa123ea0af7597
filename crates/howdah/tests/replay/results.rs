//! Results captured by the pooler: compared with those of a replay, and used to replace generated
//! values.

use howdah_connect::Client;
use howdah_lab::{Cluster, skip_without_postgres};
use rustix::process::Signal;

use crate::{
    pooler_capture::{CapturePooler, bind, execute, message, parse, query, sync},
    support::{connect, replay, value},
};

const TABLES: &str = "create table orders (id serial primary key, item text); \
                      create table lines (order_id int references orders, line int); \
                      create table tokens (id uuid primary key default gen_random_uuid(), n int)";

/// The first number of the sequence, far from other numbers.
const FIRST: i32 = 500_000;

/// Inserts rows and refers to them by the values that the server generated, in text and binary
/// format, as bound values and as constants.
fn run_traffic(pool: &CapturePooler) {
    let mut client = pool.client();
    let id = |client: &mut Client, sql: &str| client.one_value(sql).unwrap().unwrap();
    for item in 0..5 {
        let order =
            id(&mut client, &format!("insert into orders (item) values ('i{item}') returning id"));
        client.query(&format!("insert into lines values ({order}, {item})")).unwrap();
        let token =
            id(&mut client, &format!("insert into tokens (n) values ({item}) returning id"));
        client.query(&format!("update tokens set n = n + 100 where id = '{token}'")).unwrap();
    }
    client.query("select count(*) from orders").unwrap();
    client.query("select clock_timestamp()").unwrap();

    let mut raw = pool.raw();
    raw.send(&[
        parse("", "insert into orders (item) values ('raw') returning id", 0),
        message(b'B', &[b"\0\0\0\0\0\0\0\x01\0\x01"]),
        execute("", 0),
        sync(),
    ]);
    raw.read_until_ready();
    // The sixth order, as binary int4.
    raw.send(&[
        parse("", "insert into lines values ($1, $2)", 2),
        bind("", "", &[FIRST + 5, 77]),
        execute("", 0),
        sync(),
        query("select 'end'"),
    ]);
    raw.read_until_ready();
    raw.read_until_ready();
}

/// The contents of the tables, independent of generated values.
const CONTENTS: &str = "select (select string_agg(item || '-' || line, ' ' order by line) \
                        from orders join lines on order_id = id) || ' ' || \
                        (select string_agg(n::text, ' ' order by n) from tokens)";

#[test]
fn results_are_compared_and_generated_values_replaced() {
    let started = Cluster::builder().name("results").start();
    let Some(cluster) = skip_without_postgres("results", started) else { return };
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    connect(&cluster, "postgres").query("create database bench").unwrap();
    let create = |first: i32| {
        let mut client = connect(&cluster, "bench");
        client.query(TABLES).unwrap();
        client.query(&format!("alter sequence orders_id_seq restart {first}")).unwrap();
    };
    create(FIRST);
    let pool = CapturePooler::start(folder, &cluster, ", results = true");
    pool.psql("howdah", "capture start it");
    run_traffic(&pool);
    pool.signal(Signal::TERM);
    pool.wait();
    let captured = value(&mut connect(&cluster, "bench"), CONTENTS);

    // The same database again: only the time and the tokens are different.
    let renew = |first: i32| {
        connect(&cluster, "postgres").query("drop database bench").unwrap();
        connect(&cluster, "postgres").query("create database bench").unwrap();
        create(first);
    };
    let target = cluster.uri("bench");
    renew(FIRST);
    let words = ["--check-results", "--order", "commit", "--allow-production", "bench"];
    let same = replay(folder, "captures/it", &target, &words);
    assert_eq!(same.report["results"]["different"], 6, "{}", same.report);
    assert!(same.report["results"]["compared"].as_u64().unwrap() >= 14, "{}", same.report);
    // The tokens were not found.
    assert_eq!(same.report["row_counts"]["different"], 5, "{}", same.report);

    // The sequence is elsewhere.
    renew(2_000);
    let words = ["--map-ids", "--order", "commit", "--allow-production", "bench"];
    let mapped = replay(folder, "captures/it", &target, &words);
    mapped.assert_all_done();
    assert_eq!(value(&mut connect(&cluster, "bench"), CONTENTS), captured);
    assert_eq!(mapped.report["row_counts"]["different"], 0, "{}", mapped.report);
    assert_eq!(mapped.report["results"], serde_json::Value::Null);

    // Without replacements the lines refer to orders that do not exist.
    renew(2_000);
    let words = ["--order", "commit", "--allow-production", "bench"];
    let unmapped = replay(folder, "captures/it", &target, &words);
    assert_eq!(unmapped.report["errors"]["23503"], 6, "{}", unmapped.report);
}
