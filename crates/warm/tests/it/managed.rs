//! A role with exactly the statements of the page about managed services, and SQL only.

use howdah_connect::{ConnParams, ConnectTarget, Environment};
use howdah_lab::Cluster;
use howdah_warm::{
    dump::{self, DumpSource},
    load::{self, LoadOptions},
};

use crate::support::{session, start, target};

const PAGE: &str = include_str!("../../../../docs/src/guide/warm-managed.md");
const TABLES: &str = "
    CREATE TABLE orders (id int PRIMARY KEY, pad text);
    INSERT INTO orders SELECT n, repeat('x', 300) FROM generate_series(1, 8000) n;
    CREATE TABLE long (id int, body text);
    ALTER TABLE long ALTER body SET STORAGE EXTERNAL;
    INSERT INTO long SELECT n, repeat('y', 5000) FROM generate_series(1, 100) n;";

/// The page's SQL: what is run in each database, and what once.
fn statements() -> [&'static str; 2] {
    let mut blocks = PAGE.split("```sql\n").skip(1);
    let mut next = || blocks.next().unwrap().split("```").next().unwrap();
    let found = [next(), next()];
    assert!(blocks.next().is_none());
    found
}

#[test]
fn grants_of_the_page_suffice_to_dump_and_load() {
    let [in_each_database, once] = statements();
    for major in [15, 18] {
        let test = format!("managed service on {major}");
        let Some(mut cluster) = start(&test, Cluster::builder().major(major)) else { continue };
        let admin = |database| target(&cluster, database);
        session(&admin("postgres")).query("CREATE DATABASE shop").unwrap();
        for database in ["postgres", "shop", "template1"] {
            session(&admin(database)).query(in_each_database).unwrap();
        }
        session(&admin("postgres")).query(once).unwrap();
        let mut client = session(&admin("shop"));
        client.query(TABLES).unwrap();
        client.query("VACUUM").unwrap();
        client.query("SELECT pg_prewarm('orders'), pg_prewarm('long')").unwrap();
        drop(client);
        let uri = cluster.uri("shop").replace("postgres@", "howdah@");
        let resolve = || {
            let params = ConnParams::from_conninfo(uri.clone());
            ConnectTarget::resolve(&params, &Environment::empty()).unwrap()
        };
        let howdah = resolve();
        let is_superuser = session(&howdah).one_value("SHOW is_superuser").unwrap();
        assert_eq!(is_superuser.as_deref(), Some("off"));

        let dumped = dump::dump(&howdah, DumpSource::PgBuffercache).unwrap();
        assert!(dumped.unnamed.is_empty(), "{:?}", dumped.unnamed);
        assert!(dumped.image.page_count() > 500);
        cluster.restart().unwrap();
        let options =
            LoadOptions { dump_source: DumpSource::PgBuffercache, ..LoadOptions::default() };
        let howdah = resolve();
        let loaded = load::load(&dumped.image, &howdah, &options, &()).unwrap();
        assert!(loaded.residency.is_ok(), "{major}: {:?}", loaded.residency);
        assert!(loaded.share() >= 0.99, "{major}: {} {:#?}", loaded.share(), loaded.outcomes);
        assert_eq!(loaded.pages().failed, 0, "{major}");
        // The readiness check of the page.
        let options = LoadOptions { dry_run: true, ..options };
        assert!(load::load(&dumped.image, &howdah, &options, &()).unwrap().share() >= 0.99);
    }
}
