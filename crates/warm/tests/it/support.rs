//! Test servers, and sessions on them.

use std::{collections::BTreeSet, time::Duration};

use howdah_connect::{Client, ConnParams, ConnectTarget, Environment};
use howdah_lab::{Builder, Cluster, skip_without_postgres};
use howdah_warm::{
    CacheImage,
    diff::RelationIdentity,
    dump::{self, DumpSource},
    load::{self, LoadOptions, LoadReport, RelationOutcome},
};

/// How long tests wait for a condition.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) fn start(test: &str, how: Builder) -> Option<Cluster> {
    skip_without_postgres(test, how.start())
}

/// A superuser's connection target for a database.
pub(crate) fn target(cluster: &Cluster, database: &str) -> ConnectTarget {
    ConnectTarget::resolve(&ConnParams::from_conninfo(cluster.uri(database)), &Environment::empty())
        .unwrap()
}

pub(crate) fn session(target: &ConnectTarget) -> Client {
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

pub(crate) fn image(target: &ConnectTarget) -> CacheImage {
    dump::dump(target, DumpSource::Memory).unwrap().image
}

pub(crate) fn load(
    image: &CacheImage,
    target: &ConnectTarget,
    options: &LoadOptions,
) -> LoadReport {
    load::load(image, target, options, &()).unwrap()
}

/// The outcome of the relation with that name.
pub(crate) fn outcome<'a>(loaded: &'a LoadReport, name: &str) -> &'a RelationOutcome {
    let is_it = |outcome: &&RelationOutcome| match &outcome.relation {
        RelationIdentity::Named(found) => found.to_string() == name,
        RelationIdentity::File(_) => false,
    };
    loaded.outcomes.iter().find(is_it).unwrap()
}

/// Checks that the sums of page counts are consistent.
pub(crate) fn check_sums(loaded: &LoadReport) {
    for outcome in &loaded.outcomes {
        let pages = outcome.pages;
        let sum = pages.resident + pages.loaded + pages.no_room + pages.failed;
        assert_eq!(pages.requested, sum, "{outcome:?}");
    }
}
