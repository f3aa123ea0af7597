//! Compares images with the servers they were taken from.

use std::collections::BTreeMap;

use howdah_lab::{Cluster, MAJORS, wait_until};
use howdah_warm::{
    CacheImage, autoprewarm,
    dump::{self, DumpError, DumpSource},
    image::{CachedPage, Fork, ImageSource, RelationName},
};

use crate::support::{TIMEOUT, session, start, target};

const SCHEMA: &str = "
    CREATE SCHEMA \"Odd.Schema\";
    CREATE TABLE \"Odd.Schema\".\"ta,ble\" (id int PRIMARY KEY, pad text);
    INSERT INTO \"Odd.Schema\".\"ta,ble\" SELECT n, repeat('x', 300) FROM generate_series(1, 2000) n;
    CREATE TABLE long (id int, body text);
    ALTER TABLE long ALTER body SET STORAGE EXTERNAL;
    INSERT INTO long SELECT n, repeat('y', 5000) FROM generate_series(1, 50) n;
    CREATE UNLOGGED TABLE scratch AS SELECT generate_series(1, 1000) AS n;
    CREATE EXTENSION pg_buffercache;
    CHECKPOINT;";

/// Pages by relation and fork.
fn pages(image: &CacheImage) -> BTreeMap<(String, Fork), Vec<CachedPage>> {
    let mut all = BTreeMap::new();
    for relation in &image.relations {
        let database = image.database_name(relation.file.database).unwrap_or("(shared)");
        let Some(name) = &relation.name else { panic!("{:?} has no name", relation.file) };
        for fork in &relation.forks {
            all.insert((format!("{database} {name}"), fork.fork), fork.pages.iter().collect());
        }
    }
    all
}

#[test]
fn both_sources_agree_on_every_major() {
    for major in MAJORS {
        let test = format!("sources on {major}");
        let Some(cluster) = start(&test, Cluster::builder().major(major)) else { continue };
        let mut client = session(&target(&cluster, "postgres"));
        client.query("CREATE DATABASE shop").unwrap();
        let shop = target(&cluster, "shop");
        session(&shop).query(SCHEMA).unwrap();
        let memory = dump::dump(&shop, DumpSource::Memory).unwrap();
        let sql = dump::dump(&shop, DumpSource::PgBuffercache).unwrap();
        assert!(memory.unnamed.is_empty() && sql.unnamed.is_empty());
        let (memory, sql) = (memory.image, sql.image);
        assert_eq!(
            (memory.origin.source, sql.origin.source),
            (ImageSource::Memory, ImageSource::PgBuffercache)
        );
        assert_eq!(memory.origin.server_version / 10_000, major);
        assert_ne!(memory.origin.system_identifier, 0);
        assert_eq!(memory.origin.buffers, sql.origin.buffers);
        // The dumps themselves read catalogs, but not the tables.
        let (memory, sql) = (pages(&memory), pages(&sql));
        for name in
            ["shop Odd.Schema.ta,ble", "shop Odd.Schema.ta,ble_pkey", "shop public.long (TOAST)"]
        {
            let key = (name.to_owned(), Fork::Main);
            assert!(memory[&key].len() > 5, "{name} on {major}: {:?}", memory[&key]);
            assert_eq!(memory[&key], sql[&key], "{name} on {major}");
        }
        assert!(memory.contains_key(&("shop public.long (TOAST index)".to_owned(), Fork::Main)));
    }
}

#[test]
fn image_describes_relations_beside_their_pages() {
    let Some(cluster) = start("kinds", Cluster::builder()) else { return };
    let here = target(&cluster, "postgres");
    session(&here).query(SCHEMA).unwrap();
    let image = dump::dump(&here, DumpSource::Best).unwrap().image;
    let find = |expected: &str| {
        let is_it = |name: &RelationName| name.to_string() == expected;
        image.relations.iter().find(|relation| relation.name.as_ref().is_some_and(is_it)).unwrap()
    };
    assert!(!find("public.scratch").is_logged);
    let table = find("Odd.Schema.ta,ble");
    assert!(table.is_logged);
    let main = table.forks.iter().find(|fork| fork.fork == Fork::Main).unwrap();
    let length = main.length.unwrap();
    assert!(length > 50 && main.pages.len() as u64 == u64::from(length), "{length}");
    assert!(image.relations.iter().any(|relation| relation.file.database == 0));
    assert!(find("pg_catalog.pg_class").file.tablespace == 1663);
}

#[test]
fn dump_by_sql_needs_pg_buffercache() {
    let Some(cluster) = start("no extension", Cluster::builder()) else { return };
    let here = target(&cluster, "postgres");
    let error = dump::dump(&here, DumpSource::PgBuffercache).unwrap_err();
    let DumpError::PgBuffercache { source, .. } = error else { panic!("{error}") };
    assert_eq!(source.sqlstate(), Some("42P01"));
}

#[test]
fn autoprewarm_files_are_exchanged_both_ways() {
    let how = Cluster::builder().setting("shared_preload_libraries", "pg_prewarm");
    let Some(mut cluster) = start("autoprewarm", how) else { return };
    let here = target(&cluster, "postgres");
    let mut client = session(&here);
    client.query(SCHEMA).unwrap();
    client.query("CREATE EXTENSION pg_prewarm; SELECT autoprewarm_dump_now()").unwrap();
    let file = cluster.data_dir().join("autoprewarm.blocks");
    let text = std::fs::read(&file).unwrap();
    let theirs = autoprewarm::read(&*text, 8192, 0).unwrap();
    let ours = dump::dump(&here, DumpSource::Memory).unwrap().image;
    let filenode = |image: &CacheImage| {
        let is_it = |name: &RelationName| name.to_string() == "Odd.Schema.ta,ble";
        let found =
            image.relations.iter().find(|relation| relation.name.as_ref().is_some_and(is_it));
        found.unwrap().file
    };
    let table = filenode(&ours);
    let blocks = |image: &CacheImage| -> Vec<_> {
        let relation = image.relations.iter().find(|relation| relation.file == table).unwrap();
        let main = relation.forks.iter().find(|fork| fork.fork == Fork::Main).unwrap();
        main.pages.iter().map(|page| page.block).collect()
    };
    assert_eq!(blocks(&theirs), blocks(&ours));

    // Contrib loads our file when the server starts.
    drop(client);
    cluster.stop().unwrap();
    let mut out = Vec::new();
    autoprewarm::write(&ours, None, &mut out).unwrap();
    std::fs::write(&file, out).unwrap();
    cluster.start().unwrap();
    let mut client = session(&target(&cluster, "postgres"));
    let enough = format!(
        "SELECT count(*) = {} FROM pg_buffercache WHERE relfilenode = {} AND relforknumber = 0",
        blocks(&ours).len(),
        table.filenode
    );
    wait_until("autoprewarm to load our file", TIMEOUT, || {
        client.one_value(&enough).unwrap().as_deref() == Some("t")
    });
}
