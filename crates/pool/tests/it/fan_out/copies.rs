//! `COPY … FROM STDIN` with rows for several shards.

use howdah_lab::wait_until;

use super::*;
use crate::support::WAIT_TIMEOUT;

/// Copies `data` through the pooler by psql, and returns psql's output.
fn copy_by_psql(fixture: &FanOutFixture, sql: &str, data: &[u8]) -> std::process::Output {
    let mut psql = std::process::Command::new(howdah_lab::client_tool("psql").unwrap());
    psql.args(["-XAt", "-d", &conninfo(fixture.address().port(), "app"), "-c", sql]);
    psql.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut psql = psql.spawn().unwrap();
    // psql stops reading at an error.
    let _ = psql.stdin.take().unwrap().write_all(data);
    psql.wait_with_output().unwrap()
}

#[test]
fn copy_distributes_million_rows() {
    let Some(fixture) = FanOutFixture::start("a million rows", "") else { return };
    let mut data = String::with_capacity(24 << 20);
    for n in 0..1_000_000 {
        data += &format!("{n}\t{}\tnote {n}\n", n % 7);
    }
    assert_eq!(
        checked_stdout(copy_by_psql(
            &fixture,
            "COPY orders (id, a, b) FROM STDIN",
            data.as_bytes()
        )),
        "COPY 1000000"
    );
    // A row on the wrong shard would have caused an error.
    let counts: Vec<u64> = fixture
        .query_each_shard("select count(*) from orders")
        .iter()
        .map(|it| it.parse().unwrap())
        .collect();
    assert_eq!(counts.iter().sum::<u64>(), 1_000_000);
    assert!(counts.iter().all(|count| *count > 300_000), "{counts:?}");
    let sums = "select sum(id), sum(a), max(b), min(b), count(*) from orders";
    let sums = fixture.client().query(sums).unwrap();
    let row = &sums[0].rows[0];
    let cells: Vec<_> =
        row.iter().map(|cell| String::from_utf8_lossy(cell.unwrap()).into_owned()).collect();
    assert_eq!(cells, ["499999500000", "2999997", "note 999999", "note 0", "1000000"]);
}

#[test]
fn csv_with_header_and_multi_line_rows_is_distributed() {
    let Some(fixture) = FanOutFixture::start("csv", "") else { return };
    let data = "id,a,b\r\n1,2,\"a\r\nb\"\r\n2,,\"\"\"\"\r\n3,4,\r\n";
    let sql = "COPY orders (id, a, b) FROM STDIN (FORMAT csv, HEADER)";
    assert_eq!(checked_stdout(copy_by_psql(&fixture, sql, data.as_bytes())), "COPY 3");
    let mut client = fixture.client();
    let found = client.query("select id, a, b from orders order by id").unwrap();
    let text = |row: usize, cell: usize| {
        found[0]
            .rows
            .get(row)
            .unwrap()
            .iter()
            .nth(cell)
            .unwrap()
            .map(|it| String::from_utf8_lossy(it).into_owned())
    };
    assert_eq!(
        (text(0, 2), text(1, 1), text(1, 2)),
        (Some("a\r\nb".into()), None, Some("\"".into()))
    );
    assert_eq!(text(2, 2), None);
}

#[test]
fn failed_copy_is_rolled_back_on_all_shards() {
    let Some(fixture) = FanOutFixture::start("copies that fail", "") else { return };
    for name in ["s0", "s1", "s2"] {
        let partition = name.replace('s', "orders_");
        let sql = format!("ALTER TABLE {partition} ADD CHECK (a < 100)");
        fixture.connect_to_server(name).query(&sql).unwrap();
    }
    let many: String = (0..50_000).map(|n| format!("{n}\t1\tx\n")).collect();
    let cases = [
        ("a check, early", format!("1\t100\tx\n{many}"), "violates check constraint"),
        ("a check, late", format!("{many}1\t100\tx\n"), "violates check constraint"),
        ("no key", format!("{many}x\t1\tx\n"), "22P02"),
        ("no columns", format!("{many}1\n"), "missing data"),
    ];
    for (what, data, _) in cases {
        let output = copy_by_psql(&fixture, "COPY orders (id, a, b) FROM STDIN", data.as_bytes());
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && error.contains("ERROR"), "{what}: {error}");
        assert_eq!(
            fixture.query_each_shard("select count(*) from orders"),
            ["0", "0", "0"],
            "{what}"
        );
    }
    // Nor do rows remain after CopyFail or a disconnected client.
    let mut client = fixture.raw_client();
    let begin = |client: &mut RawClient| {
        client.send_query("copy orders (id, a, b) from stdin");
        client.read_until(b'G');
        client.send(b'd', many.as_bytes());
    };
    begin(&mut client);
    client.send(b'f', b"no\0");
    let error = read_reply(&mut client);
    assert!(error.starts_with("57014 ") && error.ends_with(", I"), "{error}");
    assert_eq!(query_reply(&mut client, "select count(*) from orders"), "0, SELECT 1, I");
    begin(&mut client);
    drop(client);
    let mut admin = fixture.connect_to_server("postgres");
    let open =
        "select count(*) from pg_stat_activity where query ilike 'copy%' and state <> 'idle'";
    wait_until("the end of all COPY statements", WAIT_TIMEOUT, || {
        admin.one_value(open).unwrap().unwrap() == "0"
    });
    assert_eq!(fixture.query_each_shard("select count(*) from orders"), ["0", "0", "0"]);
    // The connections to all shards are terminated during COPY.
    let mut client = fixture.raw_client();
    begin(&mut client);
    let end = "select count(pg_terminate_backend(pid)) from pg_stat_activity
               where query ilike 'copy%' and state <> 'idle'";
    assert_eq!(admin.one_value(end).unwrap().unwrap(), "3");
    client.send(b'c', b"");
    let error = read_reply(&mut client);
    assert!(error.ends_with(", I"), "{error}");
    assert_eq!(query_reply(&mut client, "select count(*) from orders"), "0, SELECT 1, I");
    // A missing column, and a format that is not supported.
    let mut client = fixture.raw_client();
    let error = query_reply(&mut client, "copy orders (id, nothing) from stdin");
    assert!(error.starts_with("42703 ") && error.ends_with(", I"), "{error}");
    let error = query_reply(&mut client, "copy orders (id, a, b) from stdin (format binary)");
    assert!(error.starts_with("0A000 ") && error.ends_with(", I"), "{error}");
    assert_eq!(query_reply(&mut client, "select count(*) from orders"), "0, SELECT 1, I");
}

#[test]
fn concurrent_copies_share_few_servers() {
    let Some(fixture) = FanOutFixture::start("copies at once", "[pool.sizes]\npool = 1") else {
        return;
    };
    std::thread::scope(|scope| {
        for part in 0..6 {
            let fixture = &fixture;
            scope.spawn(move || {
                let data: String = (0..5000).map(|n| format!("{}\t1\tx\n", n * 6 + part)).collect();
                let sql = "COPY orders (id, a, b) FROM STDIN";
                assert_eq!(
                    checked_stdout(copy_by_psql(fixture, sql, data.as_bytes())),
                    "COPY 5000"
                );
            });
        }
    });
    assert_eq!(
        fixture.client().one_value("select count(*) from orders").unwrap().unwrap(),
        "30000"
    );
}
