//! Looks up names of relations and of their files in a real server.

use howdah_connect::Client;
use howdah_lab::{Cluster, skip_without_postgres, wait_until};
use howdah_probe::RelationNames;

use crate::support::{TIMEOUT, cluster, connect_target, number, session};

fn names(target: &howdah_connect::ConnectTarget) -> RelationNames {
    RelationNames::new(Some((target.clone(), Client::connect(target).unwrap())))
}

#[test]
fn every_kind_of_file_has_its_relation_name() {
    let Some(cluster) = cluster("names of files") else { return };
    let mut client = session(&cluster);
    client
        .query(
            "CREATE TABLE plain (id int PRIMARY KEY, pad text);
             CREATE TEMPORARY TABLE private (id int)",
        )
        .unwrap();
    let mut names = names(&connect_target(&cluster));
    let database =
        number(&mut client, "SELECT oid FROM pg_database WHERE datname = current_database()");
    let tablespace = number(
        &mut client,
        "SELECT dattablespace FROM pg_database WHERE datname = current_database()",
    );
    let mut file =
        |relation: &str| number(&mut client, &format!("SELECT pg_relation_filenode('{relation}')"));
    for (relation, name) in [
        ("plain", "postgres.public.plain"),
        ("plain_pkey", "postgres.public.plain_pkey"),
        ("pg_class", "postgres.pg_catalog.pg_class"),
    ] {
        assert_eq!(names.name_of_file(tablespace, database, file(relation)), name);
    }
    let found = names.name_of_file(tablespace, database, file("private"));
    let is_temporary = found.starts_with("postgres.pg_temp_") && found.ends_with(".private");
    assert!(is_temporary, "{found}");
    // Shared catalogs are in no database, and in their own tablespace.
    let shared = file("pg_database");
    assert_eq!(names.name_of_file(1664, 0, shared), "pg_catalog.pg_database");
    let oid = number(&mut client, "SELECT 'pg_authid'::regclass::oid");
    assert_eq!(names.name(0, oid), "pg_catalog.pg_authid");
    assert_eq!(names.name_of_file(tablespace, database, 3), format!("{database}/file 3"));
}

/// A relation is invisible until its transaction commits, but its file is already written to.
#[test]
fn uncommitted_relation_has_its_name_later() {
    let Some(cluster) = cluster("names of new files") else { return };
    let mut client = session(&cluster);
    client.query("BEGIN").and_then(|_| client.query("CREATE TABLE new (id int)")).unwrap();
    let file = number(&mut client, "SELECT pg_relation_filenode('new')");
    let database = "SELECT oid FROM pg_database WHERE datname = current_database()";
    let database = number(&mut client, database);
    let mut names = names(&connect_target(&cluster));
    assert_eq!(names.name_of_file(1663, database, file), format!("{database}/file {file}"));
    client.query("COMMIT").unwrap();
    wait_until("the name of a committed relation", TIMEOUT, || {
        names.name_of_file(1663, database, file) == "postgres.public.new"
    });
}

/// A server that does not respond costs one timeout, not one for each name.
#[test]
fn failed_lookup_is_repeated_only_after_a_while() {
    // A worker of autovacuum would wait for the same lock.
    let built = Cluster::builder().setting("autovacuum", "off").start();
    let Some(cluster) = skip_without_postgres("names of a stalled server", built) else { return };
    let mut client = session(&cluster);
    client.query("CREATE TABLE one (id int); CREATE TABLE two (id int)").unwrap();
    let database = "SELECT oid FROM pg_database WHERE datname = current_database()";
    let database = number(&mut client, database);
    let [one, two] =
        ["one", "two"].map(|name| number(&mut client, &format!("SELECT '{name}'::regclass::oid")));
    let mut names = names(&connect_target(&cluster));
    assert_eq!(names.name(database, one), "postgres.public.one");
    // Lookups that wait for pg_class.
    let waiting = "SELECT count(*) FROM pg_locks l JOIN pg_stat_activity a USING (pid) \
        WHERE NOT l.granted AND l.relation = 1259 AND a.application_name = 'howdah'";
    assert_eq!(number(&mut client, waiting), 0);
    client.query("BEGIN; LOCK TABLE pg_catalog.pg_class").unwrap();
    assert_eq!(names.name(database, two), format!("{database}/{two}"));
    // The server has not noticed that the connection of the lookup is closed.
    assert_eq!(number(&mut client, waiting), 1);
    for relation in 100_000..100_050 {
        assert_eq!(names.name(database, relation), format!("{database}/{relation}"));
    }
    assert_eq!(names.name(database, one), "postgres.public.one");
    assert_eq!(number(&mut client, waiting), 1);
    client.query("COMMIT").unwrap();
    wait_until("the name once the server responds", TIMEOUT, || {
        names.name(database, two) == "postgres.public.two"
    });
}
