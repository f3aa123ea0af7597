//! Servers, and sessions on them.

use std::collections::BTreeSet;

use howdah_connect::{Client, Environment, Target, Words};
use howdah_lab::{Builder, Cluster, or_say_why_not};
use howdah_warm::{
    CacheImage,
    diff::Known,
    dump::{self, Choice},
    load::{self, Loaded, Options, Outcome},
};

pub(crate) fn start(test: &str, how: Builder) -> Option<Cluster> {
    or_say_why_not(test, how.start())
}

/// A superuser's connection words for a database.
pub(crate) fn target(cluster: &Cluster, database: &str) -> Target {
    Target::resolve(&Words::from_conninfo(cluster.uri(database)), &Environment::empty()).unwrap()
}

pub(crate) fn session(target: &Target) -> Client {
    Client::connect(target).unwrap()
}

/// A table with an index, TOAST, a visibility and a free space map, some hundred pages in all.
pub(crate) const SCHEMA: &str = "
    CREATE EXTENSION pg_buffercache;
    CREATE SCHEMA \"Odd.Schema\";
    CREATE TABLE \"Odd.Schema\".\"ta,ble\" (id int PRIMARY KEY, pad text);
    INSERT INTO \"Odd.Schema\".\"ta,ble\" SELECT n, repeat('x', 300) FROM generate_series(1, 8000) n;
    CREATE TABLE long (id int, body text);
    ALTER TABLE long ALTER body SET STORAGE EXTERNAL;
    INSERT INTO long SELECT n, repeat('y', 5000) FROM generate_series(1, 100) n;";

/// The blocks of a relation's main fork that are in the cache.
pub(crate) fn cached(client: &mut Client, relation: &str) -> BTreeSet<u32> {
    let sql = format!(
        "SELECT relblocknumber FROM pg_buffercache JOIN pg_database d ON d.oid = reldatabase
         WHERE d.datname = current_database() AND relforknumber = 0
         AND relfilenode = pg_relation_filenode('{relation}')"
    );
    let rows = client.query(&sql).unwrap().remove(0).rows;
    rows.iter().map(|row| row.text(0).unwrap().parse().unwrap()).collect()
}

pub(crate) fn image(target: &Target) -> CacheImage {
    dump::dump(target, Choice::Memory).unwrap().image
}

pub(crate) fn load(image: &CacheImage, target: &Target, options: &Options) -> Loaded {
    load::load(image, target, options, &()).unwrap()
}

/// What became of the relation of that name.
pub(crate) fn outcome<'a>(loaded: &'a Loaded, name: &str) -> &'a Outcome {
    let is_it = |outcome: &&Outcome| match &outcome.relation {
        Known::Named(found) => found.to_string() == name,
        Known::File(_) => false,
    };
    loaded.outcomes.iter().find(is_it).unwrap()
}

/// Whether the sums close.
pub(crate) fn check_sums(loaded: &Loaded) {
    for outcome in &loaded.outcomes {
        let pages = outcome.pages;
        let sum = pages.resident + pages.loaded + pages.no_room + pages.failed;
        assert_eq!(pages.wanted, sum, "{outcome:?}");
    }
}
