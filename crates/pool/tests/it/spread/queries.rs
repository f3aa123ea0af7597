//! Reads without a key.

use howdah_connect::ResultSet;

use super::*;
use crate::cluster::until;

/// The generator SplitMix64: the same statements in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ mixed >> 31) % end as u64).unwrap()
    }

    fn one<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[self.below(of.len())]
    }
}

/// A read of several shards, and whether the order of its rows is said to the last.
fn read(random: &mut Random) -> (String, bool) {
    let from = random.one(&[
        "orders o",
        "orders o",
        "orders o",
        "items o",
        "items o",
        "orders o JOIN items i ON i.order_id = o.id",
        "orders o LEFT JOIN items i ON i.order_id = o.id AND i.a > 1",
        "orders o JOIN countries c ON c.code = o.a",
        "orders o JOIN items i ON i.id = o.id",
        "(SELECT * FROM orders WHERE a > 1) o",
    ]);
    let when = random.one(&[
        "true",
        "o.a > 2",
        "o.a IS NULL",
        "o.id BETWEEN -5 AND 30",
        "o.a = 1 OR o.id = 7",
        "o.id IN (3, 4, 5)",
        "false",
        "o.id > random()",
    ]);
    match random.below(6) {
        0 => {
            let what = random.one(&[
                "count(*)",
                "count(o.a), sum(o.a), min(o.id), max(o.a)",
                "sum(o.id)",
                "min(o.a::numeric / 3)",
                "sum(o.a::numeric / 3)",
                "max(o.id)",
                "avg(o.a)",
                "count(DISTINCT o.a)",
                "max(o.a) + 1",
                "count(*) FILTER (WHERE o.a = 1)",
            ]);
            (format!("SELECT {what} FROM {from} WHERE {when}"), true)
        }
        1 => {
            let by = random.one(&["o.id", "o.id, o.a", "o.a, o.id", "o.a"]);
            (format!("SELECT count(*), sum(o.a) FROM {from} WHERE {when} GROUP BY {by}"), false)
        }
        2..=4 => {
            let order = random.one(&[
                "o.id, o.a",
                "2 DESC NULLS LAST, 1",
                "o.a NULLS FIRST, o.id",
                "1 DESC, 2 DESC",
            ]);
            let limit = random.one(&["", " LIMIT 7", " LIMIT 0", " LIMIT 100"]);
            let offset = if random.below(8) == 0 { " OFFSET 2" } else { "" };
            (
                format!(
                    "SELECT o.id, o.a FROM {from} WHERE {when} ORDER BY {order}{limit}{offset}"
                ),
                true,
            )
        }
        _ => {
            let what = random.one(&["*", "o.id, o.a", "o.id + 1 AS x, 'y'", "DISTINCT o.a"]);
            (format!("SELECT {what} FROM {from} WHERE {when}"), false)
        }
    }
}

/// Rows as texts, ordered where their order was not asked for.
fn rows(results: &[ResultSet], is_ordered: bool) -> Vec<Vec<Option<String>>> {
    let text = |cell: Option<&[u8]>| cell.map(|it| String::from_utf8_lossy(it).into_owned());
    let last = results.last().unwrap();
    let mut rows: Vec<Vec<_>> =
        last.rows.iter().map(|row| row.iter().map(text).collect()).collect();
    if !is_ordered {
        rows.sort();
    }
    rows
}

#[test]
fn reads_are_answered_as_by_one_server_or_refused() {
    const READS: usize = 500;
    let Some(stage) = Stage::set("reads of shards", "") else { return };
    stage.fill();
    let (mut whole, mut client) = (stage.direct("whole"), stage.client());
    let mut random = Random(4);
    let (mut answered, mut refused) = (0, 0);
    for turn in 0..READS {
        let (sql, is_ordered) = read(&mut random);
        let expected = rows(&whole.query(&sql).unwrap(), is_ordered);
        let found = match turn % 3 {
            0 => client.query_with(&sql, &[]).map(|found| vec![found]),
            1 => {
                let name = format!("read {turn}");
                let prepared = client.prepare(&name, &sql);
                prepared.and_then(|()| client.query_prepared(&name, &[]).map(|found| vec![found]))
            }
            _ => client.query(&sql),
        };
        match found {
            Ok(found) => {
                assert_eq!(rows(&found, is_ordered), expected, "{sql}");
                answered += 1;
            }
            Err(error) => {
                let error = error.to_string();
                assert!(error.contains("0A000"), "{sql}: {error}");
                refused += 1;
                // The session goes on.
                client.query("SELECT 1").unwrap();
            }
        }
    }
    println!("{answered} answered, {refused} refused");
    assert!(answered >= 300 && refused >= 50, "{answered} answered, {refused} refused");
}

#[test]
fn one_answer_is_told_in_both_protocols() {
    let Some(stage) = Stage::set("one answer", "") else { return };
    stage.fill();
    let mut client = stage.raw();
    assert_eq!(asked(&mut client, "select count(*) from orders"), "61, SELECT 1, I");
    let mut last = |tail: &str| {
        let sql = format!("select id from orders order by id desc limit {tail}");
        asked(&mut client, &sql)
    };
    assert_eq!(last("3"), "40, 39, 38, SELECT 3, I");
    assert_eq!(last("0"), "SELECT 0, I");
    // A batch with all that may be in one.
    let all = [
        parse("s", "select sum(id) from orders where a = $1"),
        message(b'D', &[b"Ss\0"]),
        bind("s", &["1"]),
        message(b'D', &[b"P\0"]),
        execute(),
        message(b'C', &[b"Ss\0"]),
    ];
    assert_eq!(batch(&mut client, &all), "parsed, bound, 148, SELECT 1, closed, I");
    // Prepared now, bound later, after others; two of them in one batch.
    let parsed = batch(&mut client, &[parse("t", "select count(*) from items where a = $1")]);
    assert_eq!(parsed, "parsed, I");
    assert_eq!(
        batch(&mut client, &[bind("t", &["1"]), execute(), bind("t", &["2"]), execute(),]),
        "bound, 23, SELECT 1, bound, 23, SELECT 1, I"
    );
    let error = batch(&mut client, &[bind("t", &["x"]), execute()]);
    assert!(error.starts_with("22P02 ") && error.ends_with(", I"), "{error}");
    // Pipelined, between requests that one shard does.
    let mut several = Vec::new();
    for sql in ["select 1", "select count(*) from orders", "select id from orders where id = 7"] {
        several.extend(message(b'Q', &[sql.as_bytes(), b"\0"]));
    }
    client.0.write_all(&several).unwrap();
    assert_eq!(answer(&mut client), "1, SELECT 1, I");
    assert_eq!(answer(&mut client), "61, SELECT 1, I");
    assert_eq!(answer(&mut client), "7, SELECT 1, I");
    // Where there is a transaction, it is on one shard.
    assert_eq!(asked(&mut client, "begin"), "BEGIN, T");
    assert!(asked(&mut client, "select count(*) from orders").starts_with("0A000 "));
    asked(&mut client, "rollback");
    assert_eq!(asked(&mut client, "select count(*) from orders"), "61, SELECT 1, I");
}

#[test]
fn errors_settings_and_cancels_are_those_of_one_session() {
    let Some(stage) = Stage::set("errors of shards", "") else { return };
    stage.fill();
    let mut client = stage.client();
    let error = client.query("select 1 / (id - 7) from orders").unwrap_err().to_string();
    assert!(error.contains("division by zero"), "{error}");
    client.query("set timezone to 'Asia/Kolkata'").unwrap();
    let zones = client.query("select current_setting('timezone') from orders group by id").unwrap();
    let of = |row: usize| {
        String::from_utf8_lossy(zones[0].rows[row].iter().next().unwrap().unwrap()).into_owned()
    };
    assert_eq!(
        (zones[0].rows.len(), of(0), of(60)),
        (61, "Asia/Kolkata".into(), "Asia/Kolkata".into())
    );
    // Each shard sleeps for each of its rows.
    let cancel = client.cancel_handle().unwrap();
    let waiting = std::thread::spawn(move || {
        client.query("select count(pg_sleep(3600)) from orders").unwrap_err().to_string()
    });
    let runs = "select count(*) from pg_stat_activity where state = 'active' and query like '%3600%' \
                and query not like '%activity%'";
    let mut admin = stage.direct("postgres");
    until("3 run", || admin.one_value(runs).unwrap().unwrap() == "3");
    cancel.cancel().unwrap();
    let error = waiting.join().unwrap();
    assert!(error.contains("57014"), "{error}");
    until("0 run", || admin.one_value(runs).unwrap().unwrap() == "0");
    // A client that goes leaves nothing running.
    let mut gone = stage.raw();
    gone.query("select count(pg_sleep(3600)) from orders");
    until("3 run", || admin.one_value(runs).unwrap().unwrap() == "3");
    drop(gone);
    until("0 run", || admin.one_value(runs).unwrap().unwrap() == "0");
}

#[test]
fn a_shard_that_is_lost_is_an_error_and_no_end() {
    let Some(stage) = Stage::set("a lost shard", "") else { return };
    stage.fill();
    let mut client = stage.client();
    let waiting = std::thread::spawn(move || {
        let error = client.query("select count(pg_sleep(3600)) from orders").unwrap_err();
        (client, error.to_string())
    });
    let victim = "select pid from pg_stat_activity where state = 'active' and datname = 's1' \
                  and query like '%3600%'";
    let mut admin = stage.direct("postgres");
    let pid = loop {
        if let Some(pid) =
            admin.query(victim).unwrap()[0].rows.first().and_then(|row| row.iter().next().unwrap())
        {
            break String::from_utf8_lossy(pid).into_owned();
        }
    };
    admin.query(&format!("select pg_terminate_backend({pid})")).unwrap();
    let (mut client, error) = waiting.join().unwrap();
    assert!(error.contains("57P01") || error.contains("08006"), "{error}");
    assert_eq!(client.one_value("select count(*) from orders").unwrap().unwrap(), "61");
}

/// Puts rows into each shard of which more come than is held for one that is ahead.
fn fill_wide(stage: &Stage) {
    for name in ["s0", "s1", "s2"] {
        let partition = name.replace('s', "orders_");
        let sql = format!(
            "ALTER TABLE orders DETACH PARTITION {partition};
             INSERT INTO {partition} SELECT n, 1, repeat('x', 100) FROM generate_series(1, 6000) n"
        );
        stage.direct(name).query(&sql).unwrap();
        let mut direct = stage.direct(name);
        direct.query("DROP TABLE orders").unwrap();
        direct.query(&format!("ALTER TABLE {partition} RENAME TO orders")).unwrap();
    }
}

/// Clients that read all of these, several times, in orders that could make them wait for each other.
fn read_wide(stage: &Stage, clients: usize) {
    let orders = ["order by id", "order by id desc", ""].into_iter().cycle().take(clients);
    let readers = orders.map(|order| {
        let mut client = stage.client();
        std::thread::spawn(move || {
            for _ in 0..10 {
                let results = client.query(&format!("select * from orders {order}")).unwrap();
                assert_eq!(results[0].rows.len(), 18_000);
            }
        })
    });
    let readers: Vec<_> = readers.collect();
    readers.into_iter().for_each(|reader| reader.join().unwrap());
}

#[test]
fn clients_never_wait_for_each_other_in_a_circle() {
    let more = "[pool.sizes]\npool = 1";
    let Some(stage) = Stage::set("a circle", more) else { return };
    fill_wide(&stage);
    read_wide(&stage, 9);
}

#[test]
fn shards_that_share_a_limit_are_not_waited_for_in_a_circle() {
    // Every connection that there may be could be held for a first shard, by clients that wait for a second.
    let more = "[pool.sizes]\npool = 4\n[pool.limits]\nservers-per-database = 4";
    let Some(stage) = Stage::set("a shared limit", more) else { return };
    fill_wide(&stage);
    read_wide(&stage, 6);
}

#[test]
fn more_shards_than_a_limit_allows_are_refused() {
    let more = "[pool.sizes]\npool = 4\n[pool.limits]\nservers-per-database = 2";
    let Some(stage) = Stage::set("too few", more) else { return };
    stage.fill();
    let mut client = stage.client();
    let error = client.query("select count(*) from orders").unwrap_err().to_string();
    assert!(error.contains("53300") && error.contains("connections of 3 shards"), "{error}");
    // The session goes on, on one of them.
    let one = client.one_value("select count(*) from orders where id = 5").unwrap();
    assert_eq!(one.as_deref(), Some("1"));
    let copy = client.query("copy orders (id, a, b) from stdin").unwrap_err().to_string();
    assert!(copy.contains("53300"), "{copy}");
}

#[test]
fn a_client_that_does_not_read_holds_everything_back() {
    let Some(stage) = Stage::set("a slow reader", "") else { return };
    for name in ["s0", "s1", "s2"] {
        let sql = "DROP TABLE items; CREATE TABLE items (order_id int8, a text);
                   INSERT INTO items SELECT n, repeat('x', 1000) FROM generate_series(1, 50000) n";
        stage.direct(name).query(sql).unwrap();
    }
    let mut slow = stage.raw();
    slow.query("select * from items");
    // It reads a little, and others are served meanwhile.
    for _ in 0..100 {
        slow.message().unwrap();
    }
    assert_eq!(stage.client().one_value("select count(*) from orders").unwrap().unwrap(), "0");
    let mut rows = 99;
    loop {
        match slow.message().unwrap() {
            (b'D', _) => rows += 1,
            (b'C', tag) => assert_eq!(tag, b"SELECT 150000\0"),
            (b'Z', _) => break,
            (tag, body) => panic!("{} {}", char::from(tag), body.escape_ascii()),
        }
    }
    assert_eq!(rows, 150_000);
}
