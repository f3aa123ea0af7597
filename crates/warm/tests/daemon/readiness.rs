//! Readiness of servers: measured while it is queried.

use std::{fs, sync::Arc, time::Duration};

use howdah_lab::Cluster;
use howdah_warm::daemon::{ReadinessBoard, ServerReadiness, WarmFloors, WarmState};
use howdah_warm::load::LoadOptions;

use crate::support::{
    create_tables, read, session, settings, start, start_watch, wait_for_images, wait_until,
};

/// The readiness of the only server, polled as a probe does.
pub(crate) fn readiness(board: &ReadinessBoard) -> Option<ServerReadiness> {
    board.poll(None);
    board.query(None, None).unwrap().pop()
}

fn is_in_state(board: &ReadinessBoard, state: WarmState) -> bool {
    readiness(board).is_some_and(|found| found.state == state)
}

#[test]
fn watched_server_is_warm_only_while_its_pages_are_cached() {
    for major in [14, 15, 18] {
        let test = format!("readiness on {major}");
        let Some(mut cluster) = start(&test, Cluster::builder().major(major)) else { continue };
        create_tables(&cluster);
        for _ in 0..3 {
            read(&cluster, "early");
            read(&cluster, "late");
        }
        let folder = tempfile::tempdir().unwrap();
        let board = Arc::new(ReadinessBoard::default());
        let mut settings = settings(&cluster, folder.path());
        settings.readiness = Arc::clone(&board);
        let daemon = start_watch(settings.clone());
        wait_for_images(&daemon, 1);
        wait_until("a warm server", || is_in_state(&board, WarmState::Warm));
        let found = readiness(&board).unwrap();
        assert!(found.share.unwrap().heat_ratio() > Some(0.9), "{major}: {found:?}");
        assert_eq!(found.databases.iter().filter(|it| it.database == "postgres").count(), 1);

        cluster.stop().unwrap();
        wait_until("the end of the server", || is_in_state(&board, WarmState::Unreachable));
        cluster.start().unwrap();
        wait_until("a warm server again", || is_in_state(&board, WarmState::Warm));
        daemon.stop().unwrap();
    }
}

#[test]
fn server_stays_cold_after_a_load_without_privileges() {
    let Some(mut cluster) = start("readiness without privileges", Cluster::builder()) else {
        return;
    };
    create_tables(&cluster);
    read(&cluster, "early");
    read(&cluster, "late");
    let folder = tempfile::tempdir().unwrap();
    let board = Arc::new(ReadinessBoard::default());
    let mut settings = settings(&cluster, folder.path());
    settings.interval = Some(Duration::from_millis(300));
    settings.readiness = Arc::clone(&board);
    let daemon = start_watch(settings.clone());
    wait_for_images(&daemon, 1);
    daemon.stop().unwrap();
    session(&cluster).query("CREATE ROLE limited LOGIN; GRANT pg_monitor TO limited").unwrap();
    cluster.restart().unwrap();
    settings.target = settings.target.with_user("limited");
    let daemon = start_watch(settings);
    // Images of the cold cache do not become what the cache is compared with.
    wait_for_images(&daemon, 3);
    wait_until("a cold server", || is_in_state(&board, WarmState::Cold));
    let found = readiness(&board).unwrap();
    assert!(found.reason.unwrap().contains("below 90.0 %"));
    wait_for_images(&daemon, 5);
    assert!(is_in_state(&board, WarmState::Cold));

    // Its clients warm it.
    read(&cluster, "early");
    read(&cluster, "late");
    wait_until("a warm server", || is_in_state(&board, WarmState::Warm));
    daemon.stop().unwrap();
}

#[test]
fn rewritten_relations_do_not_count() {
    let Some(cluster) = start("readiness after a rewrite", Cluster::builder()) else { return };
    create_tables(&cluster);
    for _ in 0..3 {
        read(&cluster, "early");
        read(&cluster, "late");
    }
    let folder = tempfile::tempdir().unwrap();
    let board = Arc::new(ReadinessBoard::new(WarmFloors { all: 0.9, ..WarmFloors::default() }));
    let mut settings = settings(&cluster, folder.path());
    settings.readiness = Arc::clone(&board);
    let daemon = start_watch(settings);
    wait_for_images(&daemon, 1);
    session(&cluster).query("VACUUM FULL late").unwrap();
    wait_until("the rewritten table to be noticed", || {
        readiness(&board).and_then(|found| found.share).is_some_and(|it| it.unknown_pages > 100)
    });
    let found = readiness(&board).unwrap();
    assert_eq!(found.state, WarmState::Warm, "{found:?}");
    daemon.stop().unwrap();
}

#[test]
fn unread_image_of_the_folder_is_compared_at_the_start() {
    let Some(mut cluster) = start("readiness at the start", Cluster::builder()) else { return };
    create_tables(&cluster);
    read(&cluster, "early");
    let folder = tempfile::tempdir().unwrap();
    let board = Arc::new(ReadinessBoard::default());
    let mut settings = settings(&cluster, folder.path());
    settings.readiness = Arc::clone(&board);
    let daemon = start_watch(settings.clone());
    wait_for_images(&daemon, 1);
    daemon.stop().unwrap();
    assert!(fs::exists(folder.path().join("newest.cache")).unwrap());
    cluster.restart().unwrap();
    // So slow that the load does not end during the test.
    settings.load = LoadOptions { bytes_per_second: Some(100_000), ..settings.load };
    let daemon = start_watch(settings);
    wait_until("a load", || is_in_state(&board, WarmState::Loading));
    wait_until("a share during the load", || {
        readiness(&board).is_some_and(|it| it.share.is_some())
    });
    assert!(is_in_state(&board, WarmState::Loading));
    daemon.stop().unwrap();
}
