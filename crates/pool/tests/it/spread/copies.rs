//! `COPY … FROM STDIN` of rows for several shards.

use super::*;
use crate::cluster::until;

/// Copies `data` through the pooler by psql, and gives what that said.
fn copy(stage: &Stage, sql: &str, data: &[u8]) -> std::process::Output {
    let mut psql = std::process::Command::new(howdah_lab::client_tool("psql").unwrap());
    psql.args(["-XAt", "-d", &words(stage.address().port(), "app"), "-c", sql]);
    psql.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut psql = psql.spawn().unwrap();
    // It stops reading at an error.
    let _ = psql.stdin.take().unwrap().write_all(data);
    psql.wait_with_output().unwrap()
}

#[test]
fn a_million_rows_are_each_on_its_shard() {
    let Some(stage) = Stage::set("a million rows", "") else { return };
    let mut data = String::with_capacity(24 << 20);
    for n in 0..1_000_000 {
        data += &format!("{n}\t{}\tnote {n}\n", n % 7);
    }
    assert_eq!(
        said(copy(&stage, "COPY orders (id, a, b) FROM STDIN", data.as_bytes())),
        "COPY 1000000"
    );
    // A row on the wrong shard would have been an error of its server.
    let counts: Vec<u64> =
        stage.on_each("select count(*) from orders").iter().map(|it| it.parse().unwrap()).collect();
    assert_eq!(counts.iter().sum::<u64>(), 1_000_000);
    assert!(counts.iter().all(|count| *count > 300_000), "{counts:?}");
    let sums = "select sum(id), sum(a), max(b), min(b), count(*) from orders";
    let sums = stage.client().query(sums).unwrap();
    let row = &sums[0].rows[0];
    let cells: Vec<_> =
        row.iter().map(|cell| String::from_utf8_lossy(cell.unwrap()).into_owned()).collect();
    assert_eq!(cells, ["499999500000", "2999997", "note 999999", "note 0", "1000000"]);
}

#[test]
fn csv_with_a_header_and_rows_of_several_lines() {
    let Some(stage) = Stage::set("csv", "") else { return };
    let data = "id,a,b\r\n1,2,\"a\r\nb\"\r\n2,,\"\"\"\"\r\n3,4,\r\n";
    let sql = "COPY orders (id, a, b) FROM STDIN (FORMAT csv, HEADER)";
    assert_eq!(said(copy(&stage, sql, data.as_bytes())), "COPY 3");
    let mut client = stage.client();
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
fn what_fails_is_undone_on_every_shard() {
    let Some(stage) = Stage::set("copies that fail", "") else { return };
    for name in ["s0", "s1", "s2"] {
        let partition = name.replace('s', "orders_");
        let sql = format!("ALTER TABLE {partition} ADD CHECK (a < 100)");
        stage.direct(name).query(&sql).unwrap();
    }
    let many: String = (0..50_000).map(|n| format!("{n}\t1\tx\n")).collect();
    let cases = [
        ("a check, early", format!("1\t100\tx\n{many}"), "violates check constraint"),
        ("a check, late", format!("{many}1\t100\tx\n"), "violates check constraint"),
        ("no key", format!("{many}x\t1\tx\n"), "22P02"),
        ("no columns", format!("{many}1\n"), "missing data"),
    ];
    for (what, data, _) in cases {
        let output = copy(&stage, "COPY orders (id, a, b) FROM STDIN", data.as_bytes());
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && error.contains("ERROR"), "{what}: {error}");
        assert_eq!(stage.on_each("select count(*) from orders"), ["0", "0", "0"], "{what}");
    }
    // Neither a client's own no, nor one that is gone, leaves anything.
    let mut client = stage.raw();
    let begin = |client: &mut Raw| {
        client.query("copy orders (id, a, b) from stdin");
        client.until(b'G');
        client.send(b'd', many.as_bytes());
    };
    begin(&mut client);
    client.send(b'f', b"no\0");
    let error = answer(&mut client);
    assert!(error.starts_with("57014 ") && error.ends_with(", I"), "{error}");
    assert_eq!(asked(&mut client, "select count(*) from orders"), "0, SELECT 1, I");
    begin(&mut client);
    drop(client);
    let mut admin = stage.direct("postgres");
    let open =
        "select count(*) from pg_stat_activity where query ilike 'copy%' and state <> 'idle'";
    until("none is open", || admin.one_value(open).unwrap().unwrap() == "0");
    assert_eq!(stage.on_each("select count(*) from orders"), ["0", "0", "0"]);
    // All shards are lost in the middle of it.
    let mut client = stage.raw();
    begin(&mut client);
    let end = "select count(pg_terminate_backend(pid)) from pg_stat_activity
               where query ilike 'copy%' and state <> 'idle'";
    assert_eq!(admin.one_value(end).unwrap().unwrap(), "3");
    client.send(b'c', b"");
    let error = answer(&mut client);
    assert!(error.ends_with(", I"), "{error}");
    assert_eq!(asked(&mut client, "select count(*) from orders"), "0, SELECT 1, I");
    // A table that is not there, and what is not split.
    let mut client = stage.raw();
    let error = asked(&mut client, "copy orders (id, nothing) from stdin");
    assert!(error.starts_with("42703 ") && error.ends_with(", I"), "{error}");
    let error = asked(&mut client, "copy orders (id, a, b) from stdin (format binary)");
    assert!(error.starts_with("0A000 ") && error.ends_with(", I"), "{error}");
    assert_eq!(asked(&mut client, "select count(*) from orders"), "0, SELECT 1, I");
}

#[test]
fn several_copy_at_once_through_few_servers() {
    let Some(stage) = Stage::set("copies at once", "[pool.sizes]\npool = 1") else { return };
    std::thread::scope(|scope| {
        for part in 0..6 {
            let stage = &stage;
            scope.spawn(move || {
                let data: String = (0..5000).map(|n| format!("{}\t1\tx\n", n * 6 + part)).collect();
                let sql = "COPY orders (id, a, b) FROM STDIN";
                assert_eq!(said(copy(stage, sql, data.as_bytes())), "COPY 5000");
            });
        }
    });
    assert_eq!(stage.client().one_value("select count(*) from orders").unwrap().unwrap(), "30000");
}
