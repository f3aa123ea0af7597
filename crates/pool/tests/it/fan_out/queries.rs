//! Reads without a sharding key.

use howdah_connect::ResultSet;
use howdah_lab::{wait_for, wait_until};
use rustix::process::{Pid, Signal, kill_process};

use super::*;
use crate::support::WAIT_TIMEOUT;

/// The generator SplitMix64, with a fixed seed for the same statements in every run.
struct SplitMix64(u64);

impl SplitMix64 {
    fn next_below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ mixed >> 31) % end as u64).unwrap()
    }

    fn choose<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[self.next_below(of.len())]
    }
}

/// A read of several shards, and whether its order of rows is completely defined.
fn random_read(random: &mut SplitMix64) -> (String, bool) {
    let from = random.choose(&[
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
    let when = random.choose(&[
        "true",
        "o.a > 2",
        "o.a IS NULL",
        "o.id BETWEEN -5 AND 30",
        "o.a = 1 OR o.id = 7",
        "o.id IN (3, 4, 5)",
        "false",
        "o.id > random()",
    ]);
    match random.next_below(6) {
        0 => {
            let what = random.choose(&[
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
            let by = random.choose(&["o.id", "o.id, o.a", "o.a, o.id", "o.a"]);
            (format!("SELECT count(*), sum(o.a) FROM {from} WHERE {when} GROUP BY {by}"), false)
        }
        2..=4 => {
            let order = random.choose(&[
                "o.id, o.a",
                "2 DESC NULLS LAST, 1",
                "o.a NULLS FIRST, o.id",
                "1 DESC, 2 DESC",
            ]);
            let limit = random.choose(&["", " LIMIT 7", " LIMIT 0", " LIMIT 100"]);
            let offset = if random.next_below(8) == 0 { " OFFSET 2" } else { "" };
            (
                format!(
                    "SELECT o.id, o.a FROM {from} WHERE {when} ORDER BY {order}{limit}{offset}"
                ),
                true,
            )
        }
        _ => {
            let what = random.choose(&["*", "o.id, o.a", "o.id + 1 AS x, 'y'", "DISTINCT o.a"]);
            (format!("SELECT {what} FROM {from} WHERE {when}"), false)
        }
    }
}

/// Rows as text, sorted unless the query defines their order.
fn rows_as_text(results: &[ResultSet], is_ordered: bool) -> Vec<Vec<Option<String>>> {
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
fn reads_match_single_server_or_are_refused() {
    const READS: usize = 500;
    let Some(fixture) = FanOutFixture::start("reads of shards", "") else { return };
    fixture.insert_rows();
    let (mut whole, mut client) = (fixture.connect_to_server("whole"), fixture.client());
    let mut random = SplitMix64(4);
    let (mut answered, mut refused) = (0, 0);
    for turn in 0..READS {
        let (sql, is_ordered) = random_read(&mut random);
        let expected = rows_as_text(&whole.query(&sql).unwrap(), is_ordered);
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
                assert_eq!(rows_as_text(&found, is_ordered), expected, "{sql}");
                answered += 1;
            }
            Err(error) => {
                let error = error.to_string();
                assert!(error.contains("0A000"), "{sql}: {error}");
                refused += 1;
                // The session is still usable.
                client.query("SELECT 1").unwrap();
            }
        }
    }
    println!("{answered} answered, {refused} refused");
    assert!(answered >= 300 && refused >= 50, "{answered} answered, {refused} refused");
}

#[test]
fn merged_result_is_returned_in_both_protocols() {
    let Some(fixture) = FanOutFixture::start("one answer", "") else { return };
    fixture.insert_rows();
    let mut client = fixture.raw_client();
    assert_eq!(query_reply(&mut client, "select count(*) from orders"), "61, SELECT 1, I");
    let mut last = |tail: &str| {
        let sql = format!("select id from orders order by id desc limit {tail}");
        query_reply(&mut client, &sql)
    };
    assert_eq!(last("3"), "40, 39, 38, SELECT 3, I");
    assert_eq!(last("0"), "SELECT 0, I");
    // A batch with all supported messages.
    let all = [
        parse("s", "select sum(id) from orders where a = $1"),
        message(b'D', &[b"Ss\0"]),
        bind("s", &["1"]),
        message(b'D', &[b"P\0"]),
        execute(),
        message(b'C', &[b"Ss\0"]),
    ];
    assert_eq!(run_batch(&mut client, &all), "parsed, bound, 148, SELECT 1, closed, I");
    // Prepared first and bound in a later batch, twice.
    let parsed = run_batch(&mut client, &[parse("t", "select count(*) from items where a = $1")]);
    assert_eq!(parsed, "parsed, I");
    assert_eq!(
        run_batch(&mut client, &[bind("t", &["1"]), execute(), bind("t", &["2"]), execute(),]),
        "bound, 23, SELECT 1, bound, 23, SELECT 1, I"
    );
    let error = run_batch(&mut client, &[bind("t", &["x"]), execute()]);
    assert!(error.starts_with("22P02 ") && error.ends_with(", I"), "{error}");
    // Pipelined between requests for one shard.
    let mut several = Vec::new();
    for sql in ["select 1", "select count(*) from orders", "select id from orders where id = 7"] {
        several.extend(message(b'Q', &[sql.as_bytes(), b"\0"]));
    }
    client.0.write_all(&several).unwrap();
    assert_eq!(read_reply(&mut client), "1, SELECT 1, I");
    assert_eq!(read_reply(&mut client), "61, SELECT 1, I");
    assert_eq!(read_reply(&mut client), "7, SELECT 1, I");
    // Transactions run on one shard.
    assert_eq!(query_reply(&mut client, "begin"), "BEGIN, T");
    assert!(query_reply(&mut client, "select count(*) from orders").starts_with("0A000 "));
    query_reply(&mut client, "rollback");
    assert_eq!(query_reply(&mut client, "select count(*) from orders"), "61, SELECT 1, I");
}

#[test]
fn errors_settings_and_cancels_work_as_in_one_session() {
    let Some(fixture) = FanOutFixture::start("errors of shards", "") else { return };
    fixture.insert_rows();
    let mut client = fixture.client();
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
    let mut admin = fixture.connect_to_server("postgres");
    wait_until("three running statements", WAIT_TIMEOUT, || {
        admin.one_value(runs).unwrap().unwrap() == "3"
    });
    cancel.cancel().unwrap();
    let error = waiting.join().unwrap();
    assert!(error.contains("57014"), "{error}");
    wait_until("the end of all statements", WAIT_TIMEOUT, || {
        admin.one_value(runs).unwrap().unwrap() == "0"
    });
    // After the client disconnects, nothing keeps running.
    let mut gone = fixture.raw_client();
    gone.send_query("select count(pg_sleep(3600)) from orders");
    wait_until("three running statements", WAIT_TIMEOUT, || {
        admin.one_value(runs).unwrap().unwrap() == "3"
    });
    drop(gone);
    wait_until("the end of all statements", WAIT_TIMEOUT, || {
        admin.one_value(runs).unwrap().unwrap() == "0"
    });
}

#[test]
fn lost_shard_is_error_but_does_not_end_session() {
    let Some(fixture) = FanOutFixture::start("a lost shard", "") else { return };
    fixture.insert_rows();
    let mut client = fixture.client();
    let waiting = std::thread::spawn(move || {
        let error = client.query("select count(pg_sleep(3600)) from orders").unwrap_err();
        (client, error.to_string())
    });
    let victim = "select pid from pg_stat_activity where state = 'active' and datname = 's1' \
                  and query like '%3600%'";
    let mut admin = fixture.connect_to_server("postgres");
    let pid = wait_for("the statement to run", WAIT_TIMEOUT, || {
        let results = admin.query(victim).unwrap();
        let pid = results[0].rows.first().and_then(|row| row.iter().next().unwrap())?;
        Some(String::from_utf8_lossy(pid).into_owned())
    });
    admin.query(&format!("select pg_terminate_backend({pid})")).unwrap();
    let (mut client, error) = waiting.join().unwrap();
    assert!(error.contains("57P01") || error.contains("08006"), "{error}");
    assert_eq!(client.one_value("select count(*) from orders").unwrap().unwrap(), "61");
}

/// A server that has not read its query yet ignores a CancelRequest, so the request is repeated.
#[test]
fn shard_that_ignores_the_cancel_of_a_lost_request_is_cancelled_again() {
    let Some(fixture) = FanOutFixture::start("an ignored cancel", "") else { return };
    fixture.insert_rows();
    let mut client = fixture.client();
    client.query("select count(*) from orders").unwrap();
    let mut admin = fixture.connect_to_server("postgres");
    let mut sessions = |shard: &str, condition: &str| {
        wait_for(&format!("the pooler's sessions on {shard}"), WAIT_TIMEOUT, || {
            let sql = format!(
                "select string_agg(pid::text, ' ') from pg_stat_activity
                 where datname = '{shard}' and {condition}"
            );
            let pids = admin.one_value(&sql).unwrap()?;
            Some(pids.split(' ').map(|pid| pid.parse().unwrap()).collect::<Vec<i32>>())
        })
    };
    let stopped = sessions("s2", "state = 'idle'");
    let signal_stopped = |signal| {
        for pid in &stopped {
            kill_process(Pid::from_raw(*pid).unwrap(), signal).unwrap();
        }
    };
    signal_stopped(Signal::STOP);
    let waiting = std::thread::spawn(move || {
        client.query("select count(pg_sleep(3600)) from orders").unwrap_err().to_string()
    });
    let running = sessions("s1", "state = 'active' and query like '%3600%'")[0];
    kill_process(Pid::from_raw(running).unwrap(), Signal::TERM).unwrap();
    // The stopped server has the signal of the cancel, and reads its query only after it.
    wait_until("the first cancel", WAIT_TIMEOUT, || {
        stopped.iter().any(|pid| {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
            let pending = status.lines().find_map(|line| line.strip_prefix("ShdPnd:")).unwrap();
            u64::from_str_radix(pending.trim(), 16).unwrap() & 0b10 != 0
        })
    });
    signal_stopped(Signal::CONT);
    let error = waiting.join().unwrap();
    assert!(error.contains("57P01") || error.contains("08006"), "{error}");
}

/// Inserts more rows into each shard than are buffered for a shard that is ahead.
fn insert_wide_rows(fixture: &FanOutFixture) {
    for name in ["s0", "s1", "s2"] {
        let partition = name.replace('s', "orders_");
        let sql = format!(
            "ALTER TABLE orders DETACH PARTITION {partition};
             INSERT INTO {partition} SELECT n, 1, repeat('x', 100) FROM generate_series(1, 6000) n"
        );
        fixture.connect_to_server(name).query(&sql).unwrap();
        let mut direct = fixture.connect_to_server(name);
        direct.query("DROP TABLE orders").unwrap();
        direct.query(&format!("ALTER TABLE {partition} RENAME TO orders")).unwrap();
    }
}

/// Clients that read all these rows several times, in orders that could cause a deadlock.
fn read_wide_rows(fixture: &FanOutFixture, clients: usize) {
    let orders = ["order by id", "order by id desc", ""].into_iter().cycle().take(clients);
    let readers = orders.map(|order| {
        let mut client = fixture.client();
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
fn concurrent_fan_outs_do_not_deadlock() {
    let more = "[pool.sizes]\npool = 1";
    let Some(fixture) = FanOutFixture::start("a circle", more) else { return };
    insert_wide_rows(&fixture);
    read_wide_rows(&fixture, 9);
}

#[test]
fn fan_outs_do_not_deadlock_on_shared_limit() {
    // All allowed connections could be held for first shards by clients that wait for a second one.
    let more = "[pool.sizes]\npool = 4\n[pool.limits]\nservers-per-database = 4";
    let Some(fixture) = FanOutFixture::start("a shared limit", more) else { return };
    insert_wide_rows(&fixture);
    read_wide_rows(&fixture, 6);
}

#[test]
fn fan_out_to_more_shards_than_limit_is_refused() {
    let more = "[pool.sizes]\npool = 4\n[pool.limits]\nservers-per-database = 2";
    let Some(fixture) = FanOutFixture::start("too few", more) else { return };
    fixture.insert_rows();
    let mut client = fixture.client();
    let error = client.query("select count(*) from orders").unwrap_err().to_string();
    assert!(error.contains("53300") && error.contains("connections to 3 shards"), "{error}");
    // The session is still usable, with one shard.
    let one = client.one_value("select count(*) from orders where id = 5").unwrap();
    assert_eq!(one.as_deref(), Some("1"));
    let copy = client.query("copy orders (id, a, b) from stdin").unwrap_err().to_string();
    assert!(copy.contains("53300"), "{copy}");
}

#[test]
fn slow_reader_causes_back_pressure_on_all_shards() {
    let Some(fixture) = FanOutFixture::start("a slow reader", "") else { return };
    for name in ["s0", "s1", "s2"] {
        let sql = "DROP TABLE items; CREATE TABLE items (order_id int8, a text);
                   INSERT INTO items SELECT n, repeat('x', 1000) FROM generate_series(1, 50000) n";
        fixture.connect_to_server(name).query(sql).unwrap();
    }
    let mut slow = fixture.raw_client();
    slow.send_query("select * from items");
    // It reads a little; other clients are served meanwhile.
    for _ in 0..100 {
        slow.read_message().unwrap();
    }
    assert_eq!(fixture.client().one_value("select count(*) from orders").unwrap().unwrap(), "0");
    let mut rows = 99;
    loop {
        match slow.read_message().unwrap() {
            (b'D', _) => rows += 1,
            (b'C', tag) => assert_eq!(tag, b"SELECT 150000\0"),
            (b'Z', _) => break,
            (tag, body) => panic!("{} {}", char::from(tag), body.escape_ascii()),
        }
    }
    assert_eq!(rows, 150_000);
}
