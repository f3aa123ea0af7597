//! What is in a server's cache after a load, as `pg_buffercache` tells it.

use std::collections::BTreeSet;

use howdah_connect::{Client, Target};
use howdah_lab::{Cluster, MAJORS};
use howdah_warm::{
    CacheImage,
    dump::{self, Choice},
    load::{self, Loaded, Options, Outcome, Way},
};

use crate::support::{session, start, target};

/// A table with an index, TOAST, a visibility and a free space map, some hundred pages in all.
const SCHEMA: &str = "
    CREATE EXTENSION pg_buffercache;
    CREATE SCHEMA \"Odd.Schema\";
    CREATE TABLE \"Odd.Schema\".\"ta,ble\" (id int PRIMARY KEY, pad text);
    INSERT INTO \"Odd.Schema\".\"ta,ble\" SELECT n, repeat('x', 300) FROM generate_series(1, 8000) n;
    CREATE TABLE long (id int, body text);
    ALTER TABLE long ALTER body SET STORAGE EXTERNAL;
    INSERT INTO long SELECT n, repeat('y', 5000) FROM generate_series(1, 100) n;";

/// The blocks of a relation's main fork that are in the cache.
fn cached(client: &mut Client, relation: &str) -> BTreeSet<u32> {
    let sql = format!(
        "SELECT relblocknumber FROM pg_buffercache JOIN pg_database d ON d.oid = reldatabase
         WHERE d.datname = current_database() AND relforknumber = 0
         AND relfilenode = pg_relation_filenode('{relation}')"
    );
    let rows = client.query(&sql).unwrap().remove(0).rows;
    rows.iter().map(|row| row.text(0).unwrap().parse().unwrap()).collect()
}

fn image(target: &Target) -> CacheImage {
    dump::dump(target, Choice::Memory).unwrap().image
}

fn load(image: &CacheImage, target: &Target, options: &Options) -> Loaded {
    load::load(image, target, options, &()).unwrap()
}

fn outcome<'a>(loaded: &'a Loaded, name: &str) -> &'a Outcome {
    let is_it = |outcome: &&Outcome| match &outcome.relation {
        howdah_warm::diff::Known::Named(found) => found.to_string() == name,
        howdah_warm::diff::Known::File(_) => false,
    };
    loaded.outcomes.iter().find(is_it).unwrap()
}

/// Whether the sums close.
fn check_sums(loaded: &Loaded) {
    for outcome in &loaded.outcomes {
        let pages = outcome.pages;
        let sum = pages.resident + pages.loaded + pages.no_room + pages.failed;
        assert_eq!(pages.wanted, sum, "{outcome:?}");
    }
}

#[test]
fn what_was_cached_before_a_restart_is_cached_after_it() {
    for major in MAJORS {
        let test = format!("load on {major}");
        let Some(mut cluster) = start(&test, Cluster::builder().major(major)) else { continue };
        session(&target(&cluster, "postgres")).query("CREATE DATABASE shop").unwrap();
        let shop = target(&cluster, "shop");
        let mut client = session(&shop);
        client.query(SCHEMA).unwrap();
        client.query("CREATE EXTENSION pg_prewarm").unwrap();
        client.query("VACUUM").unwrap();
        // Only a part of the table, so that it shows whether more is loaded than asked for.
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
        let loaded = load(&image, &elsewhere, &Options::default());
        check_sums(&loaded);
        assert_eq!(loaded.share(), 1.0, "{major}: {:#?}", loaded.outcomes);
        assert!(loaded.residency.is_ok());
        let mut client = session(&shop);
        let after = tables.map(|table| cached(&mut client, table));
        assert_eq!(before, after, "{major}");
        let table = outcome(&loaded, "Odd.Schema.ta,ble");
        assert_eq!((table.pages.loaded, &*table.ways), (191, &[Way::PgPrewarm][..]));

        // Again: all is there.
        let again = load(&image, &elsewhere, &Options::default());
        assert_eq!(outcome(&again, "Odd.Schema.ta,ble").pages.resident, 191);
        assert_eq!(again.pages().loaded, 0, "{major}: {:#?}", again.pages());
    }
}
