//! Loads images of tables that were rewritten or copied, and measures how much of the heat is
//! there: the share of the hot rows whose pages are in the cache.

use std::{collections::BTreeSet, process::Command};

use howdah_connect::{Client, ConnectTarget};
use howdah_lab::{Cluster, client_tool, wait_until};
use howdah_warm::{
    CacheImage,
    dump::{self, DumpOptions, DumpSource},
    load::{LoadOptions, LoadReport, PageMapping},
};

use crate::support::{TIMEOUT, cached, check_sums, load, outcome, session, start, target};

/// A table whose first two thirds are bloated by nine tenths and whose last third is not, with hot
/// rows in both parts, and a second index.
const EVENTS: &str = "
    CREATE EXTENSION pg_buffercache; CREATE EXTENSION pg_prewarm;
    CREATE TABLE ev (id int PRIMARY KEY, at timestamptz NOT NULL, v text);
    INSERT INTO ev SELECT i, '2024-01-01'::timestamptz + i * interval '1 s', repeat('e', 300)
        FROM generate_series(1, 60000) i;
    DELETE FROM ev WHERE id < 40000 AND id % 10 <> 0;
    CREATE INDEX ev_at ON ev (at)";

/// The hot rows: every row in three ranges.
const HOT_ROWS: &str = "(id BETWEEN 12000 AND 16000 OR id BETWEEN 45000 AND 50000 OR id > 59000)";

/// Reads the hot rows several times by the indexes, with a cold cache, and takes an image.
fn heated(cluster: &mut Cluster, database: &str, source: DumpSource) -> CacheImage {
    cluster.restart().unwrap();
    let here = target(cluster, database);
    let mut client = session(&here);
    client.query("SET enable_seqscan = off; SET enable_bitmapscan = off").unwrap();
    for _ in 0..3 {
        for range in ["12000 AND 16000", "45000 AND 50000", "59001 AND 60000"] {
            client.query(&format!("SELECT count(v) FROM ev WHERE id BETWEEN {range}")).unwrap();
        }
        client.query("SELECT count(v) FROM ev WHERE at BETWEEN '2024-01-01 12:30' AND '2024-01-01 13:50'").unwrap();
    }
    let options = DumpOptions { source, row_keys: true, known: None };
    dump::dump(&here, options).unwrap().image
}

/// Returns the percentage of hot rows whose pages are among the blocks `held`.
fn heat(target: &ConnectTarget, held: &BTreeSet<u32>) -> f64 {
    let sql = format!(
        "SELECT (ctid::text::point)[0]::int8, count(*) FROM ev WHERE {HOT_ROWS} GROUP BY 1"
    );
    let result = session(target).query(&sql).unwrap().remove(0);
    let (mut all, mut hot) = (0, 0);
    for row in &result.rows {
        let [block, rows] = [0, 1].map(|column| row.text(column).unwrap().parse().unwrap());
        all += rows;
        hot += if held.contains(&block) { rows } else { 0 };
    }
    100.0 * f64::from(hot) / f64::from(all)
}

/// Returns the percentage of page accesses that find the page in the cache when the hot rows are
/// read by the primary key.
fn hits(target: &ConnectTarget) -> f64 {
    let mut client = session(target);
    client.query("SET enable_seqscan = off; SET enable_bitmapscan = off; SET jit = off").unwrap();
    let (mut hit, mut read) = (0.0, 0.0);
    for range in ["12000 AND 16000", "45000 AND 50000", "59001 AND 60000"] {
        let sql = format!(
            "EXPLAIN (ANALYZE, BUFFERS, COSTS OFF, TIMING OFF)
             SELECT count(v) FROM ev WHERE id BETWEEN {range}"
        );
        let plan = client.query(&sql).unwrap().remove(0);
        let lines: Vec<_> = plan.rows.iter().map(|row| row.text(0).unwrap()).collect();
        assert!(lines.iter().any(|line| line.contains("Index Scan using ev_pkey")), "{lines:?}");
        let counts = lines.iter().find_map(|line| line.trim().strip_prefix("Buffers: ")).unwrap();
        let count = |name: &str| -> f64 {
            let found = counts.split([' ', ',']).find_map(|it| it.strip_prefix(name));
            found.map_or(0.0, |number| number.parse().unwrap())
        };
        hit += count("hit=");
        read += count("read=");
    }
    100.0 * hit / (hit + read)
}

/// Loads the image after a restart, prints the heat, and returns it with the report.
fn reheat(
    cluster: &mut Cluster,
    database: &str,
    image: &CacheImage,
    how: &str,
) -> (f64, LoadReport) {
    cluster.restart().unwrap();
    let there = target(cluster, database);
    let loaded = load(image, &there, &LoadOptions::default());
    check_sums(&loaded);
    let held = cached(&mut session(&there), "ev");
    let hits = hits(&there);
    let (heat, pages) = (heat(&there, &held), held.len());
    let table = outcome(&loaded, "public.ev");
    let mapped = table.mapped_by;
    println!(
        "{how}: {heat:.1} % of the hot rows in {pages} pages ({} in the image), {hits:.1} % hits \
         with the index, {mapped:?}",
        table.pages.in_image
    );
    if matches!(mapped, Some(PageMapping::Keys { .. })) {
        assert!(hits >= 95.0, "{hits}");
    }
    (heat, loaded)
}

fn events(client: &mut Client) {
    for sql in [EVENTS, "VACUUM ANALYZE ev", "CHECKPOINT"] {
        client.query(sql).unwrap();
    }
}

#[test]
fn rows_are_found_after_vacuum_full() {
    for major in [15, 18] {
        for source in [DumpSource::Memory, DumpSource::PgBuffercache] {
            let how = format!("{source:?} on {major}");
            let Some(mut cluster) = start(&how, Cluster::builder().major(major)) else { continue };
            let here = target(&cluster, "postgres");
            events(&mut session(&here));
            let image = heated(&mut cluster, "postgres", source);
            let held = cached(&mut session(&here), "ev");
            assert_eq!(heat(&here, &held), 100.0);
            session(&here).query("VACUUM FULL ev").unwrap();
            let (kept, loaded) =
                reheat(&mut cluster, "postgres", &image, &format!("VACUUM FULL, {how}"));
            assert!(kept >= 95.0, "{:#?}", loaded.outcomes);
            let table = outcome(&loaded, "public.ev");
            assert!(matches!(table.mapped_by, Some(PageMapping::Keys { .. })), "{table:?}");
            for index in ["public.ev_pkey", "public.ev_at"] {
                let index = outcome(&loaded, index);
                assert!(matches!(index.mapped_by, Some(PageMapping::Descents { .. })), "{index:?}");
            }
        }
    }
}

#[test]
fn rows_in_another_order_are_sampled() {
    for major in [15, 18] {
        let how = format!("CLUSTER on {major}");
        let Some(mut cluster) = start(&how, Cluster::builder().major(major)) else { continue };
        let here = target(&cluster, "postgres");
        events(&mut session(&here));
        let image = heated(&mut cluster, "postgres", DumpSource::Memory);
        session(&here)
            .query("CREATE INDEX ev_mixed ON ev ((md5(id::text))); CLUSTER ev USING ev_mixed")
            .unwrap();
        let (reached, loaded) = reheat(&mut cluster, "postgres", &image, &how);
        let table = outcome(&loaded, "public.ev");
        let Some(PageMapping::SampledRows { percent, .. }) = table.mapped_by else {
            panic!("{table:?}")
        };
        assert!((f64::from(percent) - reached).abs() < 10.0, "{percent} {reached}");
        assert!(table.pages.loaded + table.pages.resident > 50, "{table:?}");
    }
}

#[test]
fn image_without_keys_is_mapped_by_length() {
    let Some(mut cluster) = start("no keys", Cluster::builder()) else { return };
    let here = target(&cluster, "postgres");
    events(&mut session(&here));
    let image = heated(&mut cluster, "postgres", DumpSource::Memory);
    let without = dump::dump(&here, DumpSource::Memory).unwrap().image;
    let keys = |image: &CacheImage| image.relations.iter().filter(|it| it.keys.is_some()).count();
    assert_eq!((keys(&image), keys(&without)), (1, 0), "system catalogs have no keys");
    session(&here).query("VACUUM FULL ev").unwrap();
    let (heat, loaded) = reheat(&mut cluster, "postgres", &without, "by length");
    assert!(heat < 90.0, "{heat}");
    assert_eq!(outcome(&loaded, "public.ev").mapped_by, Some(PageMapping::Length));
}

#[test]
fn reading_keys_from_memory_leaves_usage_counts() {
    for major in [15, 18] {
        let how = format!("usage counts on {major}");
        let Some(mut cluster) = start(&how, Cluster::builder().major(major)) else { continue };
        let here = target(&cluster, "postgres");
        events(&mut session(&here));
        let first = heated(&mut cluster, "postgres", DumpSource::Memory);
        // The pages of the indexes are used by the planner, too.
        let usage = |image: &CacheImage| -> Vec<_> {
            let table = image.relations.iter().find(|relation| relation.keys.is_some()).unwrap();
            let pages = table.forks[0].pages.iter();
            pages.map(|page| (page.block, page.usage)).collect()
        };
        let options = DumpOptions { source: DumpSource::Memory, row_keys: true, known: None };
        let second = dump::dump(&here, options).unwrap().image;
        assert!(usage(&first) == usage(&second), "{major}: reading from memory uses no page");
        // By SQL, each page is read once: the next image takes the rows from the previous one.
        let by_sql = |known| {
            let source = DumpSource::PgBuffercache;
            dump::dump(&here, DumpOptions { source, row_keys: true, known }).unwrap().image
        };
        let third = by_sql(None);
        assert!(usage(&second) == usage(&third), "{major}: counts of before");
        let fourth = by_sql(Some(&third));
        let fifth = by_sql(Some(&fourth));
        assert!(usage(&fourth) == usage(&fifth), "{major}: each page is read once");
        let rows = |image: &CacheImage| {
            image.relations.iter().find_map(|it| it.keys.clone()).unwrap().rows
        };
        let all = rows(&second);
        assert!(rows(&third).len() > 100 && rows(&third).iter().all(|row| all.contains(row)));
        assert_eq!(rows(&fifth), rows(&third));
    }
}

/// Copies the table into a database `copy` on another cluster by a shell command, and loads.
fn copied(image: &CacheImage, cluster: &Cluster, major: u32, how: &str, command: &str) {
    let Some(psql) = client_tool("psql") else { return };
    let how = format!("{how} to {major}");
    let builder = Cluster::builder().major(major).unique_system_identifier(true);
    let Some(mut copy) = start(&how, builder) else { return };
    session(&target(&copy, "postgres"))
        .query("CREATE EXTENSION pg_buffercache; CREATE EXTENSION pg_prewarm")
        .unwrap();
    let output = Command::new("bash")
        .args(["-c", &format!("set -e -o pipefail; {command}")])
        .env("FROM", cluster.uri("postgres"))
        .env("TO", copy.uri("postgres"))
        .env("PSQL", psql)
        .output()
        .unwrap();
    assert!(output.status.success(), "{how}: {output:?}");
    session(&target(&copy, "postgres")).query("ANALYZE ev").unwrap();
    let (kept, loaded) = reheat(&mut copy, "postgres", image, &how);
    assert!(kept >= 95.0, "{how}: {:#?}", loaded.outcomes);
}

#[test]
fn rows_are_found_in_copies() {
    let Some(pg_dump) = client_tool("pg_dump") else { return };
    for major in [15, 18] {
        let builder = Cluster::builder().major(major).unique_system_identifier(true);
        let Some(mut cluster) = start(&format!("copies from {major}"), builder) else { continue };
        events(&mut session(&target(&cluster, "postgres")));
        let image = heated(&mut cluster, "postgres", DumpSource::Memory);
        let schema = "\"$PSQL\" -qX -v ON_ERROR_STOP=1 \"$TO\" -c 'CREATE TABLE ev (id int PRIMARY KEY, at \
                      timestamptz NOT NULL, v text); CREATE INDEX ev_at ON ev (at)'";
        for to in [15, 18] {
            let copy = format!(
                "{schema}; \"$PSQL\" -qX \"$FROM\" -c 'COPY ev TO STDOUT' | \"$PSQL\" -qX \"$TO\" -c 'COPY ev FROM STDIN'"
            );
            copied(&image, &cluster, to, &format!("COPY from {major}"), &copy);
            // Clients are those of 15.
            if major == 15 {
                let dump = format!(
                    "{} -t ev \"$FROM\" | grep -v '^\\\\[ur]' | \"$PSQL\" -qX -v ON_ERROR_STOP=1 \"$TO\"",
                    pg_dump.display()
                );
                copied(&image, &cluster, to, "a dump of 15", &dump);
            }
        }
    }
}

#[test]
fn rows_are_found_after_logical_replication() {
    let builder = Cluster::builder().major(15).unique_system_identifier(true);
    let Some(mut cluster) = start("logical", builder.setting("wal_level", "logical")) else {
        return;
    };
    events(&mut session(&target(&cluster, "postgres")));
    let image = heated(&mut cluster, "postgres", DumpSource::Memory);
    session(&target(&cluster, "postgres")).query("CREATE PUBLICATION p FOR TABLE ev").unwrap();
    let builder = Cluster::builder().major(18).unique_system_identifier(true);
    let Some(mut copy) = start("subscriber", builder) else { return };
    let there = target(&copy, "postgres");
    let mut client = session(&there);
    for sql in [
        "CREATE EXTENSION pg_buffercache; CREATE EXTENSION pg_prewarm;
         CREATE TABLE ev (id int PRIMARY KEY, at timestamptz NOT NULL, v text);
         CREATE INDEX ev_at ON ev (at)"
            .to_owned(),
        format!("CREATE SUBSCRIPTION s CONNECTION '{}' PUBLICATION p", cluster.uri("postgres")),
    ] {
        client.query(&sql).unwrap();
    }
    wait_until("the copy to be complete", TIMEOUT, || {
        let state = "SELECT srsubstate::text FROM pg_subscription_rel";
        client.one_value(state).unwrap().as_deref() == Some("r")
    });
    client.query("ANALYZE ev").unwrap();
    drop(client);
    let (kept, loaded) = reheat(&mut copy, "postgres", &image, "logical replication from 15 to 18");
    assert!(kept >= 95.0, "{:#?}", loaded.outcomes);
}

#[test]
fn empty_tail_of_a_bulk_load_does_not_shift_pages() {
    for major in [15, 17, 18] {
        let how = format!("empty tail on {major}");
        let Some(mut cluster) = start(&how, Cluster::builder().major(major)) else { continue };
        let here = target(&cluster, "postgres");
        let mut client = session(&here);
        let sql = EVENTS.replace("DELETE FROM ev WHERE id < 40000 AND id % 10 <> 0;", "");
        client.query(&sql).unwrap();
        drop(client);
        let mut image = heated(&mut cluster, "postgres", DumpSource::Memory);
        // As in a copy from a server that leaves no empty pages: 2308 pages have rows.
        let data_end = "SELECT max((ctid::text::point)[0])::int8 + 1 FROM ev";
        let length = session(&here).one_value(data_end).unwrap().unwrap().parse().unwrap();
        for relation in image.relations.iter_mut().filter(|relation| relation.keys.is_some()) {
            relation.keys = None;
            relation.file.filenode += 1_000_000;
            relation.forks[0].length = Some(length);
        }
        let (kept, _) = reheat(&mut cluster, "postgres", &image, &how);
        assert!(kept >= 99.0, "{kept}");
    }
}

/// Tables whose keys have several columns, in another order than the table, after NULLs, dropped
/// columns and values that are stored elsewhere; of types that are read from memory and others.
const ODD_KEYS: &str = "
    CREATE EXTENSION pg_buffercache; CREATE EXTENSION pg_prewarm;
    CREATE TABLE \"Odd \"\"table\" (gone int, pad text, flag bool NOT NULL, \"the, id\" uuid NOT NULL,
        note text, day date NOT NULL, name varchar(40) NOT NULL, at timestamptz NOT NULL,
        small int2 NOT NULL, PRIMARY KEY (day, \"the, id\", name, at, small, flag));
    INSERT INTO \"Odd \"\"table\" SELECT 1, repeat('p', 100), i % 2 = 0,
        md5(i::text)::uuid, CASE WHEN i % 3 = 0 THEN repeat(i::text, 20) END,
        '1999-12-01'::date + i % 60, 'n\\a\"me, ' || i, '1999-12-31 23:59:59.9'::timestamptz + i * interval '1 s', i % 100
        FROM generate_series(1, 20000) i;
    ALTER TABLE \"Odd \"\"table\" DROP COLUMN gone;
    CREATE TABLE amounts (pad text, amount numeric UNIQUE NOT NULL);
    INSERT INTO amounts SELECT repeat('p', 200), i / 100.0 FROM generate_series(1, 20000) i;
    CREATE TABLE keyless (pad text, n int);
    INSERT INTO keyless SELECT repeat('p', 200), i FROM generate_series(1, 20000) i;";

#[test]
fn keys_of_any_types_and_columns_are_found() {
    for major in [15, 18] {
        let how = format!("odd keys on {major}");
        let Some(mut cluster) = start(&how, Cluster::builder().major(major)) else { continue };
        let here = target(&cluster, "postgres");
        let mut client = session(&here);
        client.query(ODD_KEYS).unwrap();
        client.query("VACUUM ANALYZE").unwrap();
        let tables = ["\"Odd \"\"table\"", "amounts", "keyless"];
        drop(client);
        cluster.restart().unwrap();
        let mut client = session(&here);
        for table in tables {
            client
                .query(&format!("SELECT pg_prewarm('{table}', 'buffer', 'main', 200, 250)"))
                .unwrap();
        }
        let options = DumpOptions { source: DumpSource::Memory, row_keys: true, known: None };
        let image = dump::dump(&here, options).unwrap().image;
        for table in tables {
            client.query(&format!("DELETE FROM {table} WHERE ctid < '(150,0)'")).unwrap();
            client.query(&format!("VACUUM FULL {table}")).unwrap();
        }
        drop(client);
        cluster.restart().unwrap();
        let loaded = load(&image, &here, &LoadOptions::default());
        let mapped = |name: &str| outcome(&loaded, name).mapped_by;
        // Its rows are read by a query, at a distance of a few pages.
        let [odd, amounts] = ["public.Odd \"table", "public.amounts"].map(mapped);
        assert_eq!(odd, Some(PageMapping::Keys { rows: 51 }), "{major}");
        assert!(matches!(amounts, Some(PageMapping::Keys { rows: 12..30 })), "{amounts:?}");
        assert_eq!(mapped("public.keyless"), Some(PageMapping::Length));
        let mut client = session(&here);
        for table in &tables[..2] {
            let held = cached(&mut client, table);
            assert!((52..=100).all(|block| held.contains(&block)), "{major} {table} {held:?}");
        }
    }
}

#[test]
fn role_without_privileges_gets_no_keys() {
    let Some(mut cluster) = start("privileges", Cluster::builder()) else { return };
    let here = target(&cluster, "postgres");
    events(&mut session(&here));
    heated(&mut cluster, "postgres", DumpSource::Memory);
    let mut client = session(&here);
    client.query("CREATE ROLE lim LOGIN; GRANT pg_monitor TO lim").unwrap();
    let options = DumpOptions { source: DumpSource::PgBuffercache, row_keys: true, known: None };
    let dump = || dump::dump(&here.with_user("lim"), options).unwrap();
    let keys =
        |image: &CacheImage| image.relations.iter().filter_map(|it| it.keys.as_ref()).count();
    let limited = dump();
    assert_eq!((keys(&limited.image), limited.unnamed.len()), (0, 0), "names need no privilege");
    client.query("GRANT SELECT ON ev TO lim").unwrap();
    assert_eq!(keys(&dump().image), 1);
    // A locked table is given up after a second.
    client.query("BEGIN; LOCK TABLE ev").unwrap();
    assert_eq!(keys(&dump().image), 0);
}

#[test]
fn keys_that_no_longer_fit_are_no_obstacle() {
    let Some(mut cluster) = start("changed keys", Cluster::builder()) else { return };
    let here = target(&cluster, "postgres");
    events(&mut session(&here));
    let image = heated(&mut cluster, "postgres", DumpSource::Memory);
    for change in [
        "ALTER TABLE ev DROP CONSTRAINT ev_pkey",
        "ALTER TABLE ev ALTER id TYPE date USING '2024-01-01'::date + id; ALTER TABLE ev ADD PRIMARY KEY (id)",
        "ALTER TABLE ev RENAME id TO number",
        "TRUNCATE ev",
    ] {
        session(&here).query(&format!("{change}; CLUSTER ev USING ev_at")).unwrap();
        cluster.restart().unwrap();
        let loaded = load(&image, &here, &LoadOptions::default());
        check_sums(&loaded);
        let table = outcome(&loaded, "public.ev");
        assert_eq!(table.mapped_by, Some(PageMapping::Length), "{change}");
        assert_eq!(table.pages.failed, 0, "{change}: {table:?}");
    }
}

/// Names that look like parts of a statement, an index with a column twice, one with another
/// collation, and a cast that leaves a trace.
const HOSTILE: &str = "
    CREATE EXTENSION pg_buffercache; CREATE EXTENSION pg_prewarm;
    CREATE TABLE traces (n int);
    CREATE TYPE mood AS ENUM ('good', 'bad');
    CREATE FUNCTION trace(mood) RETURNS text LANGUAGE sql VOLATILE AS
        $$INSERT INTO traces VALUES (1); SELECT 'x'$$;
    CREATE CAST (mood AS text) WITH FUNCTION trace(mood);
    CREATE FUNCTION equal(varchar, varchar) RETURNS bool LANGUAGE sql VOLATILE AS
        $$INSERT INTO traces VALUES (2); SELECT true$$;
    CREATE OPERATOR = (FUNCTION = equal, LEFTARG = varchar, RIGHTARG = varchar);
    CREATE TABLE \", (SELECT 1) FROM x --\" (pad text, \"{table}\" mood NOT NULL, \"{columns}\" varchar NOT NULL,
        n int NOT NULL, PRIMARY KEY (\"{table}\", \"{columns}\"));
    CREATE UNIQUE INDEX twice ON \", (SELECT 1) FROM x --\" (n, n);
    CREATE INDEX other_order ON \", (SELECT 1) FROM x --\" (\"{columns}\" COLLATE \"C\");
    INSERT INTO \", (SELECT 1) FROM x --\" SELECT repeat('p', 200),
        (CASE WHEN i % 2 = 0 THEN 'good' ELSE 'bad' END)::mood, 'key ' || i, i FROM generate_series(1, 20000) i;
    TRUNCATE traces";

#[test]
fn names_and_casts_of_users_are_not_executed() {
    for major in [15, 18] {
        let how = format!("hostile names on {major}");
        let Some(mut cluster) = start(&how, Cluster::builder().major(major)) else { continue };
        let here = target(&cluster, "postgres");
        session(&here).query(HOSTILE).unwrap();
        let source = DumpSource::PgBuffercache;
        let options = DumpOptions { source, row_keys: true, known: None };
        let dumped = dump::dump(&here, options).unwrap();
        assert!(dumped.unnamed.is_empty(), "{:?}", dumped.unnamed);
        let keys = dumped.image.relations.iter().find_map(|it| it.keys.as_ref()).unwrap();
        assert_eq!(keys.columns, ["{table}", "{columns}"], "{major}");
        assert_eq!(keys.rows[0].values, ["bad", "key 1"]);
        session(&here).query("VACUUM FULL \", (SELECT 1) FROM x --\"").unwrap();
        cluster.restart().unwrap();
        let loaded = load(&dumped.image, &here, &LoadOptions::default());
        check_sums(&loaded);
        let table = outcome(&loaded, "public., (SELECT 1) FROM x --");
        assert_eq!(table.pages.failed, 0, "{table:?}");
        assert_eq!(loaded.share(), 1.0, "{major}: {:#?}", loaded.outcomes);
        let traces = session(&here).one_value("SELECT count(*) FROM traces").unwrap();
        assert_eq!(traces.as_deref(), Some("0"), "{major}");
    }
}
