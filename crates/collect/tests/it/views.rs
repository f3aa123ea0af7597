//! Every view of every major that is at hand.

use howdah_collect::{Cell, CollectError, Meaning, Server, VIEWS, View, rates};
use howdah_lab::{Cluster, MAJORS};

use crate::support::{session, start, target};

fn view(name: &str) -> &'static View {
    VIEWS.iter().find(|view| view.name == name).unwrap()
}

#[test]
fn every_view_of_every_major_is_read() {
    for major in MAJORS {
        let how = Cluster::builder()
            .major(major)
            .setting("shared_preload_libraries", "pg_stat_statements")
            .setting("wal_level", "logical")
            .setting("max_prepared_transactions", "5");
        let Some(cluster) = start("every_view_of_every_major_is_read", how) else { continue };
        let target = target(&cluster, "postgres");
        let mut client = session(&target);
        for sql in [
            "CREATE EXTENSION pg_stat_statements",
            "CREATE TABLE item (id int PRIMARY KEY, name text)",
            "INSERT INTO item SELECT i, 'x' FROM generate_series(1, 1000) i",
            "SELECT pg_create_physical_replication_slot('kept', true)",
            "BEGIN; INSERT INTO item VALUES (0, 'y'); PREPARE TRANSACTION 'waits'",
        ] {
            client.query(sql).unwrap();
        }
        let mut server = Server::connect(&target).unwrap();
        assert_eq!(server.identity().version.major(), major);
        for view in VIEWS {
            let reading =
                server.read(view).unwrap_or_else(|error| panic!("{major} {}: {error}", view.name));
            assert_eq!(
                reading.is_some(),
                view.name != "io" || major >= 16,
                "{major} {}",
                view.name
            );
        }
        let rows = |server: &mut Server, name| server.read(view(name)).unwrap().unwrap().rows;
        assert!(rows(&mut server, "databases").iter().any(|row| row[0] == "postgres".into()));
        assert!(rows(&mut server, "tables").iter().any(|row| row[1] == "item".into()));
        assert!(rows(&mut server, "indexes").iter().any(|row| row[2] == "item_pkey".into()));
        assert!(rows(&mut server, "slots").iter().any(|row| row[0] == "kept".into()));
        let horizon = rows(&mut server, "horizon");
        assert!(
            horizon
                .iter()
                .any(|row| row[0] == "prepared transaction".into() && row[1] == "waits".into())
        );
        assert!(server.overview().unwrap().frozen_age.is_some());
    }
}

#[test]
fn what_a_version_does_not_have_is_not_zero() {
    let how = Cluster::builder().major(14);
    let Some(cluster) = start("what_a_version_does_not_have_is_not_zero", how) else { return };
    let mut server = Server::connect(&target(&cluster, "postgres")).unwrap();
    let slots = view("slots");
    session(&target(&cluster, "postgres"))
        .query("SELECT pg_create_physical_replication_slot('kept')")
        .unwrap();
    let reading = server.read(slots).unwrap().unwrap();
    assert_eq!(reading.rows[0][slots.column("invalid").unwrap()], Cell::Unavailable);
    assert_eq!(reading.rows[0][slots.column("plugin").unwrap()], Cell::Null);
}

#[test]
fn counters_of_a_table_are_its_work_between_two_readings() {
    let Some(cluster) = start("counters_of_a_table", Cluster::builder()) else { return };
    let target = target(&cluster, "postgres");
    let mut client = session(&target);
    client.query("CREATE TABLE item (id int PRIMARY KEY)").unwrap();
    let mut server = Server::connect(&target).unwrap();
    let before = server.read(view("tables")).unwrap().unwrap();
    client.query("INSERT INTO item SELECT generate_series(1, 5000)").unwrap();
    // A session that ends has told all it did.
    drop(client);
    let inserted = view("tables").column("inserted").unwrap();
    let total = loop {
        let now = server.read(view("tables")).unwrap().unwrap();
        let rated = rates(Some(&before), &now);
        if let Some(rate) = rated.rows[0][inserted].number().filter(|rate| *rate > 0.0) {
            break rate * rated.seconds;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    };
    assert!((total - 5000.0).abs() < 1e-6, "{total}");
    assert_eq!(view("tables").columns[inserted].meaning, Meaning::Counter);
}

#[test]
fn a_role_without_grants_reads_every_view_or_is_told_why_not() {
    for major in [14, 18] {
        let how = Cluster::builder().major(major);
        let Some(cluster) = start("a_role_without_grants", how) else { continue };
        let admin = target(&cluster, "postgres");
        session(&admin).query("CREATE ROLE watcher LOGIN").unwrap();
        let mut server = Server::connect(&admin.with_user("watcher")).unwrap();
        assert_eq!(server.identity().data_directory, None, "it may not know");
        server.overview().unwrap();
        for view in VIEWS {
            match server.read(view) {
                Ok(_) => {}
                Err(error @ CollectError::NoExtension { .. }) => {
                    assert_eq!(view.name, "statements");
                    assert!(error.to_string().contains("CREATE EXTENSION pg_stat_statements"));
                    assert!(!error.is_fatal());
                }
                Err(error) => {
                    assert_eq!(error.sqlstate(), Some("42501"), "{major} {}: {error}", view.name);
                    assert!(!error.is_fatal(), "{major} {}", view.name);
                }
            }
        }
        assert!(!server.activity(true).unwrap().backends.is_empty());
    }
}
