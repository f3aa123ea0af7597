//! Reads every view on every installed major version.

use std::time::Duration;

use howdah_collect::{
    CollectError, ColumnKind, MonitorConnection, StatsView, VIEWS, ViewCell, rates,
};
use howdah_lab::{Cluster, MAJORS, wait_for};

use crate::support::{session, start, target};

fn view(name: &str) -> &'static StatsView {
    VIEWS.iter().find(|view| view.name == name).unwrap()
}

#[test]
fn every_view_is_read_on_every_major() {
    for major in MAJORS {
        let how = Cluster::builder()
            .major(major)
            .setting("shared_preload_libraries", "pg_stat_statements")
            .setting("wal_level", "logical")
            .setting("max_prepared_transactions", "5");
        let Some(cluster) = start("every_view_is_read_on_every_major", how) else { continue };
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
        let mut server = MonitorConnection::connect(&target).unwrap();
        assert_eq!(server.info().version.major(), major);
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
        let rows =
            |server: &mut MonitorConnection, name| server.read(view(name)).unwrap().unwrap().rows;
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
fn column_missing_in_version_is_unavailable() {
    let how = Cluster::builder().major(14);
    let Some(cluster) = start("column_missing_in_version_is_unavailable", how) else { return };
    let mut server = MonitorConnection::connect(&target(&cluster, "postgres")).unwrap();
    let slots = view("slots");
    session(&target(&cluster, "postgres"))
        .query("SELECT pg_create_physical_replication_slot('kept')")
        .unwrap();
    let reading = server.read(slots).unwrap().unwrap();
    assert_eq!(reading.rows[0][slots.column("invalid").unwrap()], ViewCell::Unavailable);
    assert_eq!(reading.rows[0][slots.column("plugin").unwrap()], ViewCell::Null);
}

#[test]
fn table_counters_become_rates_between_samples() {
    let Some(cluster) = start("table_counters_become_rates_between_samples", Cluster::builder())
    else {
        return;
    };
    let target = target(&cluster, "postgres");
    let mut client = session(&target);
    client.query("CREATE TABLE item (id int PRIMARY KEY)").unwrap();
    let mut server = MonitorConnection::connect(&target).unwrap();
    let before = server.read(view("tables")).unwrap().unwrap();
    client.query("INSERT INTO item SELECT generate_series(1, 5000)").unwrap();
    // A session flushes its statistics when it ends.
    drop(client);
    let inserted = view("tables").column("inserted").unwrap();
    let total = wait_for("inserted rows", Duration::from_secs(30), || {
        let now = server.read(view("tables")).unwrap().unwrap();
        let rate_view = rates(Some(&before), &now);
        let rate = rate_view.rows[0][inserted].number().filter(|rate| *rate > 0.0)?;
        Some(rate * rate_view.seconds)
    });
    assert!((total - 5000.0).abs() < 1e-6, "{total}");
    assert_eq!(view("tables").columns[inserted].kind, ColumnKind::Counter);
}

#[test]
fn unprivileged_role_reads_views_or_gets_42501() {
    for major in [14, 18] {
        let how = Cluster::builder().major(major);
        let Some(cluster) = start("unprivileged_role_reads_views_or_gets_42501", how) else {
            continue;
        };
        let admin = target(&cluster, "postgres");
        session(&admin).query("CREATE ROLE watcher LOGIN").unwrap();
        let mut server = MonitorConnection::connect(&admin.with_user("watcher")).unwrap();
        assert_eq!(server.info().data_directory, None, "it may not know");
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
