//! Checks a server's cache after a load with `pg_buffercache`.

use howdah_lab::{Cluster, MAJORS};
use howdah_warm::{
    dump::DumpSource,
    load::{LoadMethod, LoadOptions, RelationOutcome},
};

use crate::support::{SCHEMA, cached, check_sums, image, load, outcome, session, start, target};

/// Relations of [`SCHEMA`].
const TABLE: &str = "\"Odd.Schema\".\"ta,ble\"";
const INDEX: &str = "\"Odd.Schema\".\"ta,ble_pkey\"";

#[test]
fn cached_pages_are_restored_after_restart() {
    for major in MAJORS {
        let test = format!("load on {major}");
        let Some(mut cluster) = start(&test, Cluster::builder().major(major)) else { continue };
        session(&target(&cluster, "postgres")).query("CREATE DATABASE shop").unwrap();
        let shop = target(&cluster, "shop");
        let mut client = session(&shop);
        client.query(SCHEMA).unwrap();
        client.query("CREATE EXTENSION pg_prewarm").unwrap();
        client.query("VACUUM").unwrap();
        // Only a part of the table, to detect pages loaded in excess.
        let tables = ["\"Odd.Schema\".\"ta,ble\"", "\"Odd.Schema\".\"ta,ble_pkey\"", "long"];
        drop(client);
        cluster.restart().unwrap();
        let mut client = session(&shop);
        client
            .query(
                "SELECT pg_prewarm('\"Odd.Schema\".\"ta,ble\"', 'buffer', 'main', 10, 200),
                 pg_prewarm('\"Odd.Schema\".\"ta,ble_pkey\"'), pg_prewarm('long')",
            )
            .unwrap();
        let before = tables.map(|table| cached(&mut client, table));
        assert_eq!(before[0], (10..=200).collect());
        let image = image(&shop);
        drop(client);

        cluster.restart().unwrap();
        let elsewhere = target(&cluster, "postgres");
        let loaded = load(&image, &elsewhere, &LoadOptions::default());
        check_sums(&loaded);
        assert_eq!(loaded.share(), 1.0, "{major}: {:#?}", loaded.outcomes);
        assert!(loaded.residency.is_ok());
        let mut client = session(&shop);
        let after = tables.map(|table| cached(&mut client, table));
        assert_eq!(before, after, "{major}");
        let table = outcome(&loaded, "Odd.Schema.ta,ble");
        assert_eq!((table.pages.loaded, &*table.methods), (191, &[LoadMethod::PgPrewarm][..]));

        // A second load finds everything resident.
        let again = load(&image, &elsewhere, &LoadOptions::default());
        assert_eq!(outcome(&again, "Odd.Schema.ta,ble").pages.resident, 191);
        assert_eq!(again.pages().loaded, 0, "{major}: {:#?}", again.pages());
    }
}

#[test]
fn standby_is_warmed_from_primary_image() {
    for major in [14, 15, 17, 18] {
        let test = format!("standby on {major}");
        let Some(primary) = start(&test, Cluster::builder().major(major)) else { continue };
        let here = target(&primary, "postgres");
        let mut client = session(&here);
        client.query(SCHEMA).unwrap();
        client.query("CREATE EXTENSION pg_prewarm").unwrap();
        let standby = Cluster::builder().standby_of(&primary).start().unwrap();
        // Pages replayed before the base backup are not in the standby's cache.
        let there = target(&standby, "postgres");
        client
            .query(&format!("SELECT count(*) FROM {TABLE}; SELECT count(body) FROM long"))
            .unwrap();
        let before = cached(&mut client, TABLE);
        assert!(before.len() > 300, "{}", before.len());
        let image = image(&here);
        let loaded = load(&image, &there, &LoadOptions::default());
        check_sums(&loaded);
        assert!(loaded.share() > 0.99, "{major}: {:#?}", loaded.outcomes);
        assert!(!outcome(&loaded, "Odd.Schema.ta,ble").is_rewritten);
        assert!(cached(&mut session(&there), TABLE).is_superset(&before), "{major}");
    }
}

#[test]
fn rewritten_and_restored_tables_are_found_by_name() {
    let Some(cluster) = start("rewritten", Cluster::builder().major(15)) else { return };
    session(&target(&cluster, "postgres")).query("CREATE DATABASE shop").unwrap();
    let shop = target(&cluster, "shop");
    let mut client = session(&shop);
    client.query(SCHEMA).unwrap();
    client.query("CREATE EXTENSION pg_prewarm").unwrap();
    client.query(&format!("SELECT count(*) FROM {TABLE}; SELECT count(body) FROM long")).unwrap();
    let image = image(&shop);

    client.query(&format!("DELETE FROM {TABLE} WHERE id % 4 = 0")).unwrap();
    client.query(&format!("VACUUM FULL {TABLE}")).unwrap();
    let mut cluster = cluster;
    drop(client);
    cluster.restart().unwrap();
    let loaded = load(&image, &shop, &LoadOptions::default());
    let table = outcome(&loaded, "Odd.Schema.ta,ble");
    assert!(table.is_rewritten && table.problem.is_none(), "{table:?}");
    let mut client = session(&shop);
    let length = "SELECT pg_relation_size('\"Odd.Schema\".\"ta,ble\"') / 8192";
    let length: usize = client.one_value(length).unwrap().unwrap().parse().unwrap();
    assert_eq!(
        cached(&mut client, TABLE).len(),
        length,
        "the whole table was cached and is cached again"
    );

    let Some(pg_dump) = howdah_lab::client_tool("pg_dump") else { return };
    let Some(copy) = start("copy", Cluster::builder().major(15)) else { return };
    session(&target(&copy, "postgres")).query("CREATE DATABASE shop").unwrap();
    let text = std::process::Command::new(pg_dump)
        .args(["--inserts", "--rows-per-insert=1000", &cluster.uri("shop")])
        .output()
        .unwrap();
    let there = target(&copy, "shop");
    let text = String::from_utf8(text.stdout).unwrap();
    // Newer minor versions emit psql meta-commands around the dump.
    let sql: Vec<_> = text.lines().filter(|line| !line.starts_with('\\')).collect();
    session(&there).query(&sql.join("\n")).unwrap();
    let mut copy = copy;
    copy.restart().unwrap();
    let loaded = load(&image, &there, &LoadOptions::default());
    check_sums(&loaded);
    // Other databases of the image do not have the extension, which some forks need.
    let of_shop = |outcome: &&RelationOutcome| outcome.database.as_deref() == Some("shop");
    let failed: Vec<_> =
        loaded.outcomes.iter().filter(of_shop).filter(|outcome| outcome.pages.failed > 0).collect();
    assert!(failed.is_empty(), "{failed:#?}");
    let toast = outcome(&loaded, "public.long (TOAST)");
    assert!(toast.is_rewritten && toast.pages.loaded > 50, "{toast:?}");
    assert_eq!(cached(&mut session(&there), TABLE).len(), length);
}

#[test]
fn reader_without_pg_prewarm_warms_tables_and_btrees() {
    for major in [14, 15, 17, 18] {
        let test = format!("by queries on {major}");
        let Some(mut cluster) = start(&test, Cluster::builder().major(major)) else { continue };
        let here = target(&cluster, "postgres");
        let mut client = session(&here);
        client.query(SCHEMA).unwrap();
        client.query(RIGHTS).unwrap();
        client.query("VACUUM ANALYZE").unwrap();
        client
            .query(&format!("SELECT count(*) FROM {TABLE}; SELECT count(body) FROM long"))
            .unwrap();
        client.query(&format!("SET enable_seqscan = off; SELECT count(id) FROM {TABLE}")).unwrap();
        client.query("SET enable_seqscan = off; SELECT count(n) FROM hashed WHERE n = 7").unwrap();
        let (table, index) = (cached(&mut client, TABLE), cached(&mut client, INDEX));
        assert!(table.len() > 300 && index.len() > 10);
        let image = image(&here);
        drop(client);
        cluster.restart().unwrap();

        let reader = here.with_user("reader");
        // It may not scan the cache, neither in memory nor with the extension.
        let options =
            LoadOptions { dump_source: DumpSource::PgBuffercache, ..LoadOptions::default() };
        let loaded = load(&image, &reader, &options);
        check_sums(&loaded);
        assert!(loaded.residency.is_err());
        assert_eq!(outcome(&loaded, "Odd.Schema.ta,ble").methods, [LoadMethod::RowPointers]);
        let scanned = outcome(&loaded, "Odd.Schema.ta,ble_pkey");
        assert_eq!(scanned.methods, [LoadMethod::IndexOnlyScan], "{major}: {scanned:?}");
        let mut client = session(&here);
        assert!(cached(&mut client, TABLE).is_superset(&table), "{major}");
        // The metapage and inner pages beside the first path are not read.
        let index_now = cached(&mut client, INDEX);
        let missed = index.difference(&index_now).count();
        assert!(missed * 10 <= index.len(), "{major}: {missed} of {}", index.len());
        let problem = |name: &str| outcome(&loaded, name).problem.as_ref().unwrap().to_string();
        assert!(
            problem("public.secret").contains("permission denied"),
            "{}",
            problem("public.secret")
        );
        assert!(problem("public.hashed_n_idx").contains("the extension pg_prewarm is needed"));
        assert!(cached(&mut client, "secret").is_empty());
    }
}

const RIGHTS: &str = "
    CREATE ROLE reader LOGIN;
    GRANT USAGE ON SCHEMA \"Odd.Schema\" TO reader;
    GRANT SELECT ON ALL TABLES IN SCHEMA \"Odd.Schema\" TO reader;
    CREATE TABLE hashed AS SELECT generate_series(1, 3000) AS n;
    CREATE INDEX ON hashed USING hash (n);
    GRANT SELECT ON hashed TO reader;
    REVOKE EXECUTE ON FUNCTION pg_buffercache_pages() FROM PUBLIC;
    CREATE TABLE secret AS SELECT generate_series(1, 3000) AS n;";

#[test]
fn renamed_objects_are_found_by_file_number() {
    let Some(mut cluster) = start("renamed", Cluster::builder()) else { return };
    session(&target(&cluster, "postgres")).query("CREATE DATABASE shop").unwrap();
    let shop = target(&cluster, "shop");
    let mut client = session(&shop);
    client.query(SCHEMA).unwrap();
    client.query("CREATE EXTENSION pg_prewarm; CREATE TABLE e AS SELECT repeat('x', 500) FROM generate_series(1, 2000)").unwrap();
    let image = image(&shop);
    client
        .query(
            "ALTER TABLE e RENAME TO e_old; CREATE TABLE e (n int); INSERT INTO e VALUES (1);
             ALTER SCHEMA \"Odd.Schema\" RENAME TO plain",
        )
        .unwrap();
    drop(client);
    cluster.restart().unwrap();
    session(&target(&cluster, "postgres")).query("ALTER DATABASE shop RENAME TO shop2").unwrap();
    let loaded = load(&image, &target(&cluster, "postgres"), &LoadOptions::default());
    check_sums(&loaded);
    assert_eq!(loaded.pages().not_found, 0, "{:#?}", loaded.outcomes);
    // Other databases of the image do not have the extension.
    let of_shop =
        loaded.outcomes.iter().filter(|outcome| outcome.database.as_deref() == Some("shop"));
    let failed = of_shop.filter(|outcome| outcome.pages.failed > 0).collect::<Vec<_>>();
    assert!(failed.is_empty(), "{failed:#?}");
    let mut client = session(&target(&cluster, "shop2"));
    assert!(cached(&mut client, "e_old").len() > 100);
    assert!(cached(&mut client, "plain.\"ta,ble\"").len() > 300);
    let e = outcome(&loaded, "public.e");
    let now = e.renamed.as_ref().unwrap();
    assert_eq!((&*now.database, &*now.name.to_string()), ("shop2", "public.e_old"));
    assert!(now.is_name_taken && !e.is_rewritten);
    let long = outcome(&loaded, "public.long").renamed.as_ref().unwrap();
    assert_eq!(
        (&*long.database, long.is_name_taken),
        ("shop2", false),
        "only its database was renamed"
    );
    let table = outcome(&loaded, "Odd.Schema.ta,ble").renamed.as_ref().unwrap();
    assert_eq!((&*table.name.to_string(), table.is_name_taken), ("plain.ta,ble", false));
}

#[test]
fn image_is_loaded_into_a_renamed_copy() {
    let Some(cluster) = start("mapped", Cluster::builder()) else { return };
    let admin = target(&cluster, "postgres");
    session(&admin).query("CREATE DATABASE shop").unwrap();
    let shop = target(&cluster, "shop");
    let mut client = session(&shop);
    client.query(SCHEMA).unwrap();
    client.query("CREATE EXTENSION pg_prewarm").unwrap();
    let image = image(&shop);
    drop(client);
    session(&admin).query("CREATE DATABASE shop_copy TEMPLATE shop").unwrap();
    let mut cluster = cluster;
    cluster.restart().unwrap();
    let options = LoadOptions {
        database_names: [("shop".to_owned(), "shop_copy".to_owned())].into(),
        ..LoadOptions::default()
    };
    let loaded = load(&image, &admin, &options);
    check_sums(&loaded);
    assert!(outcome(&loaded, "Odd.Schema.ta,ble").pages.loaded > 300, "{:#?}", loaded.pages());
    assert!(cached(&mut session(&target(&cluster, "shop_copy")), TABLE).len() > 300);
    assert!(cached(&mut session(&shop), TABLE).is_empty());
    let nowhere = LoadOptions {
        database_names: [("shop".to_owned(), "missing".to_owned())].into(),
        dry_run: true,
        ..LoadOptions::default()
    };
    let loaded = load(&image, &admin, &nowhere);
    assert!(loaded.pages().not_found > 300 && loaded.share() < 0.9, "{:?}", loaded.pages());
}

#[test]
fn autoprewarm_image_is_unusable_on_another_cluster() {
    let how = || Cluster::builder().setting("shared_preload_libraries", "pg_prewarm");
    let Some(cluster) = start("autoprewarm", how().unique_system_identifier(true)) else { return };
    let here = target(&cluster, "postgres");
    let mut client = session(&here);
    client.query(SCHEMA).unwrap();
    client.query("CREATE EXTENSION pg_prewarm; SELECT autoprewarm_dump_now()").unwrap();
    let identifier: u64 = client
        .one_value("SELECT system_identifier FROM pg_control_system()")
        .unwrap()
        .unwrap()
        .parse()
        .unwrap();
    let read = howdah_warm::autoprewarm::system_identifier(cluster.data_dir()).unwrap();
    assert_eq!(read, Some(identifier));
    let blocks = std::fs::File::open(cluster.data_dir().join("autoprewarm.blocks")).unwrap();
    let blocks = std::io::BufReader::new(blocks);
    let mut image = howdah_warm::autoprewarm::read(blocks, 8192, 0).unwrap();
    let dry_run = LoadOptions { dry_run: true, ..LoadOptions::default() };
    assert!(load(&image, &here, &dry_run).is_origin_unknown);
    image.origin.system_identifier = identifier;
    let own = load(&image, &here, &dry_run);
    assert!(own.share() > 0.9 && !own.is_origin_unknown, "{:?}", own.pages());

    let other = start("another cluster", how().unique_system_identifier(true)).unwrap();
    let loaded = load(&image, &target(&other, "postgres"), &dry_run);
    assert_eq!(loaded.pages().requested, 0);
    assert_eq!(loaded.share(), 0.0);
}
