//! Usage counts after a load, and the effect they have: hot pages survive scans of cold tables.

use std::collections::BTreeMap;

use howdah_connect::{Client, ConnectTarget};
use howdah_lab::{Cluster, wait_until};
use howdah_warm::{
    CacheImage,
    dump::DumpSource,
    image::Fork,
    load::{self, LoadObserver, LoadOptions},
};

use crate::support::{SCHEMA, TIMEOUT, cached, image, load, session, start, target};

const OFF: fn() -> LoadOptions = || LoadOptions { restore_usage: false, ..LoadOptions::default() };

/// The usage counts of the cached pages of a relation's main fork.
fn usage(client: &mut Client, relation: &str) -> BTreeMap<u32, u8> {
    let sql = format!(
        "SELECT relblocknumber, usagecount FROM pg_buffercache
         JOIN pg_database d ON d.oid = reldatabase
         WHERE d.datname = current_database() AND relforknumber = 0
         AND relfilenode = pg_relation_filenode('{relation}')"
    );
    let rows = client.query(&sql).unwrap().remove(0).rows;
    let number = |text: Option<std::borrow::Cow<'_, str>>| text.unwrap().parse::<u32>().unwrap();
    rows.iter().map(|row| (number(row.text(0)), number(row.text(1)) as u8)).collect()
}

/// The counts of the main fork of a relation in an image.
fn in_image(image: &CacheImage, name: &str) -> BTreeMap<u32, u8> {
    let is_it = |relation: &&howdah_warm::image::Relation| {
        relation.name.as_ref().is_some_and(|found| found.to_string() == name)
    };
    let relation = image.relations.iter().find(is_it).unwrap();
    let main = relation.forks.iter().find(|fork| fork.fork == Fork::Main).unwrap();
    main.pages.iter().map(|page| (page.block, page.usage)).collect()
}

/// The relations of [`SCHEMA`]: how SQL and how an image name them.
const RELATIONS: [(&str, &str); 3] = [
    ("\"Odd.Schema\".\"ta,ble\"", "Odd.Schema.ta,ble"),
    ("\"Odd.Schema\".\"ta,ble_pkey\"", "Odd.Schema.ta,ble_pkey"),
    ("long", "public.long"),
];

/// Uses pages of [`SCHEMA`] unevenly, on a server that was just started: parts of the table in
/// blocks and in stripes, and one page of four of the index.
const USE_UNEVENLY: &str = "
    SELECT pg_prewarm('\"Odd.Schema\".\"ta,ble\"', 'buffer', 'main', 0, 299) FROM generate_series(1, 2);
    SELECT pg_prewarm('\"Odd.Schema\".\"ta,ble\"', 'buffer', 'main', 0, 99) FROM generate_series(1, 3);
    SELECT pg_prewarm('\"Odd.Schema\".\"ta,ble\"', 'buffer', 'main', n, n) FROM generate_series(200, 299, 3) n;
    SELECT pg_prewarm('\"Odd.Schema\".\"ta,ble_pkey\"');
    SELECT pg_prewarm('\"Odd.Schema\".\"ta,ble_pkey\"', 'buffer', 'main', n, n)
        FROM generate_series(0, 20, 4) n, generate_series(1, 4);
    SELECT pg_prewarm('long')";

/// The share of pages whose count is that of the image, in the relations of [`SCHEMA`]. No page
/// has more than the image; one that was loaded has at least 1.
fn equal_share(client: &mut Client, image: &CacheImage) -> f64 {
    let (mut equal, mut all) = (0, 0);
    for (sql, name) in RELATIONS {
        let (before, after) = (in_image(image, name), usage(client, sql));
        for (block, count) in before {
            let now = after[&block];
            assert!(now <= count.max(1), "{name} {block}: {now} of {count}");
            all += 1;
            equal += usize::from(now == count.max(1));
        }
    }
    equal as f64 / all as f64
}

fn prepare(cluster: &mut Cluster) -> (ConnectTarget, CacheImage) {
    let here = target(cluster, "postgres");
    let mut client = session(&here);
    client.query(SCHEMA).unwrap();
    client.query("CREATE EXTENSION pg_prewarm").unwrap();
    client.query("VACUUM ANALYZE").unwrap();
    drop(client);
    cluster.restart().unwrap();
    session(&here).query(USE_UNEVENLY).unwrap();
    let image = image(&here);
    let table = in_image(&image, RELATIONS[0].1);
    assert_eq!((table[&0], table[&100], table[&200]), (5, 2, 3));
    (here, image)
}

#[test]
fn usage_counts_are_those_of_the_image_after_a_load() {
    for major in [15, 18] {
        let test = format!("usage on {major}");
        let Some(mut cluster) = start(&test, Cluster::builder().major(major)) else { continue };
        let (here, image) = prepare(&mut cluster);

        cluster.restart().unwrap();
        let loaded = load(&image, &here, &LoadOptions::default());
        let report = loaded.usage.unwrap();
        let share = equal_share(&mut session(&here), &image);
        println!("PostgreSQL {major}: {share:.3} of the pages have their count; {report:?}");
        assert!(share >= 0.95, "{major}: {share}: {report:?}");
        assert!(report.share() >= 0.95 && report.is_cpu_measured, "{report:?}");
        assert!(report.touches > 0 && report.pages >= 400, "{report:?}");

        // Nothing is missing now.
        let again = load(&image, &here, &LoadOptions::default());
        assert!(again.usage.unwrap().touches < report.touches / 10, "{:?}", again.usage);

        cluster.restart().unwrap();
        let loaded = load(&image, &here, &OFF());
        assert!(loaded.usage.is_none());
        let mut client = session(&here);
        for (sql, name) in RELATIONS {
            let counts = usage(&mut client, sql);
            let once = counts.values().filter(|&&count| count == 1).count();
            assert!(once * 10 >= counts.len() * 9, "{major} {name}: {counts:?}");
        }

        // Pages that are cached already are touched, too, but not if they are to stay as they are.
        let only_loaded = LoadOptions { raise_resident: false, ..LoadOptions::default() };
        let untouched = load(&image, &here, &only_loaded).usage.unwrap();
        assert!(untouched.pages < 100, "{major}: {untouched:?}");
        let raised = load(&image, &here, &LoadOptions::default()).usage.unwrap();
        assert!(raised.touches > 0, "{raised:?}");
        let share = equal_share(&mut session(&here), &image);
        assert!(share >= 0.9, "{major}: {share}: {raised:?}");
    }
}

#[test]
fn usage_counts_are_restored_without_extensions() {
    for major in [14, 18] {
        let test = format!("usage by queries on {major}");
        let Some(mut cluster) = start(&test, Cluster::builder().major(major)) else { continue };
        let (here, image) = prepare(&mut cluster);
        session(&here)
            .query(
                "CREATE ROLE reader LOGIN; GRANT USAGE ON SCHEMA \"Odd.Schema\" TO reader;
                 GRANT SELECT ON ALL TABLES IN SCHEMA \"Odd.Schema\", public TO reader;
                 REVOKE EXECUTE ON FUNCTION pg_buffercache_pages() FROM PUBLIC;
                 DROP EXTENSION pg_prewarm",
            )
            .unwrap();
        let options =
            LoadOptions { dump_source: DumpSource::PgBuffercache, ..LoadOptions::default() };
        // On a busy host a touch takes so long that the budget, which is in CPU time, is not enough
        // for all of them.
        let (sql, name) = RELATIONS[0];
        let before = in_image(&image, name);
        wait_until("a load whose budget covers the touches", TIMEOUT, || {
            cluster.restart().unwrap();
            let loaded = load(&image, &here.with_user("reader"), &options);
            let report = loaded.usage.unwrap();
            assert!(!report.is_cpu_measured, "{major}: {report:?}");
            let after = usage(&mut session(&here), sql);
            // The scan of the index reads some pages of the table, too.
            let over = before.iter().filter(|(block, count)| after[block] > **count).count();
            assert!(over <= 2, "{major}: {over} over");
            let equal = before.iter().filter(|(block, count)| after[block] == **count).count();
            equal * 10 >= before.len() * 9
        });
        let mut client = session(&here);
        // It sets no hint bits.
        let dirty = "SELECT count(*) FROM pg_buffercache WHERE isdirty AND relfilenode =
                     pg_relation_filenode('\"Odd.Schema\".\"ta,ble\"')";
        assert_eq!(client.one_value(dirty).unwrap().as_deref(), Some("0"), "{major}");
    }
}

/// Stops when everything is loaded.
struct StopAfterLoad(std::sync::atomic::AtomicI64);

impl LoadObserver for StopAfterLoad {
    fn planned(&self, pages: u64) {
        self.0.store(pages.cast_signed(), std::sync::atomic::Ordering::Relaxed);
    }

    fn progressed(&self, pages: u64) {
        self.0.fetch_sub(pages.cast_signed(), std::sync::atomic::Ordering::Relaxed);
    }

    fn should_stop(&self) -> bool {
        self.0.load(std::sync::atomic::Ordering::Relaxed) <= 0
    }
}

#[test]
fn stopped_load_touches_little_and_gentle_one_everything() {
    let Some(mut cluster) = start("usage, stopped", Cluster::builder()) else { return };
    let (here, image) = prepare(&mut cluster);
    cluster.restart().unwrap();
    let stop = StopAfterLoad(1.into());
    let loaded = load::load(&image, &here, &LoadOptions::default(), &stop).unwrap();
    // Only the sample by which the costs are measured.
    if let Some(usage) = loaded.usage {
        assert!(usage.touches <= 2048 && usage.restored < usage.pages, "{usage:?}");
    }
    cluster.restart().unwrap();
    let gentle = LoadOptions {
        max_latency: Some(std::time::Duration::from_secs(1)),
        bytes_per_second: Some(100 << 20),
        ..LoadOptions::default()
    };
    let usage = load(&image, &here, &gentle).usage.unwrap();
    assert!(usage.share() >= 0.95, "{usage:?}");
}

/// A table whose first fifth is read by its key again and again, and cold tables, each smaller than
/// a quarter of the cache, as larger ones are scanned through a small ring of buffers.
const HOT_AND_COLD: &str = "
    CREATE EXTENSION pg_buffercache;
    CREATE EXTENSION pg_prewarm;
    CREATE TABLE hot (id int PRIMARY KEY, pad text);
    INSERT INTO hot SELECT n, repeat('h', 300) FROM generate_series(1, 60000) n;
    DO $$ BEGIN
        FOR t IN 1..12 LOOP
            EXECUTE format('CREATE TABLE cold%s AS
                SELECT n AS id, repeat(''c'', 800) AS pad FROM generate_series(1, 3000) n', t);
        END LOOP;
    END $$;
    CHECKPOINT";
const READ_HOT: &str = "
    SET enable_seqscan = off; SET enable_bitmapscan = off; SET max_parallel_workers_per_gather = 0;
    SELECT count(pad) FROM hot WHERE id <= 12000";

fn scan_cold_tables(client: &mut Client) {
    for table in 1..=12 {
        client.query(&format!("SELECT count(*) FROM cold{table}")).unwrap();
    }
}

#[test]
fn hot_pages_survive_cold_scans() {
    for major in [15, 18] {
        let test = format!("hot set on {major}");
        let builder = Cluster::builder()
            .major(major)
            .setting("shared_buffers", "16MB")
            .setting("autovacuum", "off");
        let Some(mut cluster) = start(&test, builder) else { continue };
        let here = target(&cluster, "postgres");
        session(&here).query(HOT_AND_COLD).unwrap();
        session(&here).query("VACUUM FREEZE ANALYZE").unwrap();
        cluster.restart().unwrap();
        let mut client = session(&here);
        for _ in 0..6 {
            client.query(READ_HOT).unwrap();
        }
        client.query("SELECT autoprewarm_dump_now()").unwrap();
        let hot = cached(&mut client, "hot");
        assert!(hot.len() > 400 && hot.len() < 900, "{}", hot.len());
        let image = image(&here);
        drop(client);

        let is_loaded = |client: &mut Client| cached(client, "hot").is_superset(&hot);
        let mut shares = Vec::new();
        for method in ["with counts", "without counts", "autoprewarm"] {
            if method == "autoprewarm" {
                let preload = "ALTER SYSTEM SET shared_preload_libraries = 'pg_prewarm'";
                session(&here).query(preload).unwrap();
            }
            cluster.restart().unwrap();
            let mut client = session(&here);
            match method {
                "with counts" => drop(load(&image, &here, &LoadOptions::default())),
                "without counts" => drop(load(&image, &here, &OFF())),
                _ => wait_until("autoprewarm", TIMEOUT, || is_loaded(&mut client)),
            }
            assert!(is_loaded(&mut client), "{major}, {method}");
            scan_cold_tables(&mut client);
            let left = cached(&mut client, "hot").intersection(&hot).count();
            shares.push(left as f64 / hot.len() as f64);
            println!("PostgreSQL {major}, {method}: {left} of {} hot pages are left", hot.len());
        }
        let [with, without, autoprewarm] = shares[..] else { unreachable!() };
        assert!(with >= 0.9, "{major}: {shares:?}");
        assert!(without <= 0.5 && autoprewarm <= 0.5, "{major}: {shares:?}");
    }
}
