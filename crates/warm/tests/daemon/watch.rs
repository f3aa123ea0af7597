//! A watched server is as warm after a restart as before, after shutdowns and crashes.

use std::time::Duration;

use howdah_lab::Cluster;
use howdah_warm::{CacheImage, dump::DumpSource};

use rustix::process::Signal;

use crate::support::{
    DUMPED, create_tables, kill, read, session, settings, signal, start, start_watch,
    wait_for_images, wait_until, wait_until_cached,
};

#[test]
fn restart_restores_pages_read_after_last_interval() {
    for major in [14, 15, 17, 18] {
        let test = format!("watch over a restart on {major}");
        let Some(mut cluster) = start(&test, Cluster::builder().major(major)) else { continue };
        create_tables(&cluster);
        cluster.restart().unwrap();
        let folder = tempfile::tempdir().unwrap();
        read(&cluster, "early");
        let daemon = start_watch(settings(&cluster, folder.path()));
        wait_for_images(&daemon, 1);
        // Only an image taken during the shutdown can contain this table.
        read(&cluster, "late");
        cluster.restart().unwrap();
        wait_until_cached(&cluster, "early");
        wait_until_cached(&cluster, "late");
        assert_eq!(daemon.metric("howdah_warm_restarts_total", ""), 1.0, "{major}");

        // Once more: an image of a cache that was still being loaded must not have replaced the
        // others.
        wait_for_images(&daemon, 3);
        cluster.restart().unwrap();
        wait_until_cached(&cluster, "late");
        daemon.stop().unwrap();
        let image = CacheImage::open(folder.path().join("newest.cache")).unwrap();
        assert!(image.page_count() > 500, "{major}: {}", image.page_count());
        assert!(folder.path().join("newest.cache.2").exists());
    }
}

#[test]
fn kill_9_restores_image_of_last_interval() {
    for major in [15, 18] {
        let test = format!("watch over kill -9 on {major}");
        let Some(mut cluster) = start(&test, Cluster::builder().major(major)) else { continue };
        create_tables(&cluster);
        read(&cluster, "early");
        let folder = tempfile::tempdir().unwrap();
        let daemon = start_watch(settings(&cluster, folder.path()));
        wait_for_images(&daemon, 1);
        kill(cluster.pid().unwrap());
        wait_until("the end of the server", || !cluster.is_running());
        // The postmaster cannot start before the children of the killed one have exited.
        wait_until("the server's new start", || cluster.start().is_ok());
        wait_until_cached(&cluster, "early");
        daemon.stop().unwrap();
    }
}

#[test]
fn crashed_session_triggers_load_of_emptied_cache() {
    let Some(cluster) = start("watch over a crash", Cluster::builder()) else { return };
    create_tables(&cluster);
    read(&cluster, "early");
    let folder = tempfile::tempdir().unwrap();
    let daemon = start_watch(settings(&cluster, folder.path()));
    wait_for_images(&daemon, 1);
    let postmaster = cluster.pid();
    let client = session(&cluster);
    kill(u32::try_from(client.process_id().unwrap()).unwrap());
    wait_until("a load", || daemon.metric("howdah_warm_loads_total", "end=\"done\"") >= 1.0);
    wait_until_cached(&cluster, "early");
    assert_eq!(cluster.pid(), postmaster, "the postmaster was not restarted");
    daemon.stop().unwrap();
}

#[test]
fn restart_is_detected_by_sql_without_local_access() {
    let Some(mut cluster) = start("watch by SQL", Cluster::builder()) else { return };
    create_tables(&cluster);
    read(&cluster, "early");
    let folder = tempfile::tempdir().unwrap();
    let mut settings = settings(&cluster, folder.path());
    settings.source = DumpSource::PgBuffercache;
    let daemon = start_watch(settings);
    wait_for_images(&daemon, 1);
    cluster.restart().unwrap();
    wait_until_cached(&cluster, "early");
    daemon.stop().unwrap();
}

#[test]
fn daemon_started_after_server_loads_cold_cache() {
    let Some(mut cluster) = start("watch after a reboot", Cluster::builder()) else { return };
    create_tables(&cluster);
    read(&cluster, "early");
    let folder = tempfile::tempdir().unwrap();
    let daemon = start_watch(settings(&cluster, folder.path()));
    wait_for_images(&daemon, 1);
    read(&cluster, "late");
    // It takes a last image when it shuts down.
    daemon.stop().unwrap();
    cluster.restart().unwrap();
    let daemon = start_watch(settings(&cluster, folder.path()));
    wait_until_cached(&cluster, "early");
    wait_until_cached(&cluster, "late");
    wait_for_images(&daemon, 1);
    daemon.stop().unwrap();

    // The next daemon finds a server as warm as its image, and loads nothing.
    let daemon = start_watch(settings(&cluster, folder.path()));
    wait_for_images(&daemon, 1);
    assert_eq!(daemon.metric("howdah_warm_loads_total", ""), 0.0);
    daemon.stop().unwrap();
}

#[test]
fn without_interval_image_is_taken_at_shutdown() {
    let Some(mut cluster) = start("watch at shutdown", Cluster::builder()) else { return };
    create_tables(&cluster);
    let folder = tempfile::tempdir().unwrap();
    let mut settings = settings(&cluster, folder.path());
    settings.interval = None;
    let daemon = start_watch(settings);
    // The first one is needed for the names of relations.
    wait_for_images(&daemon, 1);
    read(&cluster, "late");
    cluster.restart().unwrap();
    wait_until_cached(&cluster, "late");
    daemon.stop().unwrap();
}

#[test]
fn images_are_taken_at_each_interval() {
    let Some(cluster) = start("watch at intervals", Cluster::builder()) else { return };
    create_tables(&cluster);
    let folder = tempfile::tempdir().unwrap();
    let mut settings = settings(&cluster, folder.path());
    settings.interval = Some(Duration::from_millis(50));
    let daemon = start_watch(settings);
    wait_for_images(&daemon, 4);
    daemon.stop().unwrap();
}

#[test]
fn pages_read_during_smart_shutdown_are_restored() {
    let Some(mut cluster) = start("watch a smart shutdown", Cluster::builder()) else { return };
    create_tables(&cluster);
    cluster.restart().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let daemon = start_watch(settings(&cluster, folder.path()));
    wait_for_images(&daemon, 1);
    let mut last = session(&cluster);
    last.query("SELECT 1").unwrap();
    // The server rejects new connections and waits for this session. It would also wait for one of
    // the daemon, which therefore must keep none open.
    signal(cluster.pid().unwrap(), Signal::TERM);
    wait_for_images(&daemon, 2);
    last.query("SELECT count(pad) FROM late").unwrap();
    wait_for_images(&daemon, 4);
    drop(last);
    wait_until("the end of the server", || !cluster.is_running());
    cluster.start().unwrap();
    wait_until_cached(&cluster, "late");
    daemon.stop().unwrap();
}

#[test]
fn files_are_read_ahead_while_the_server_recovers() {
    let Some(mut cluster) = start("watch a recovery", Cluster::builder()) else { return };
    create_tables(&cluster);
    read(&cluster, "early");
    let folder = tempfile::tempdir().unwrap();
    let daemon = start_watch(settings(&cluster, folder.path()));
    wait_for_images(&daemon, 1);
    daemon.stop().unwrap();
    cluster.stop().unwrap();
    // The lock file of a postmaster in recovery, which lasts until the test removes the file.
    let lock_file = cluster.data_dir().join("postmaster.pid");
    let port = cluster.port();
    std::fs::write(&lock_file, format!("1\n/\n1795176000\n{port}\n/tmp\n\n  1 1\nstarting\n"))
        .unwrap();
    let mut settings = settings(&cluster, folder.path());
    settings.data_dir = Some(cluster.data_dir().to_path_buf());
    let daemon = start_watch(settings);
    let bytes = || daemon.metric("howdah_warm_read_ahead_bytes_total", "");
    wait_until("files to be read ahead", || bytes() > 2e6);
    std::fs::remove_file(&lock_file).unwrap();
    cluster.start().unwrap();
    wait_until_cached(&cluster, "early");
    daemon.stop().unwrap();
}

#[test]
fn partly_loaded_image_survives_colder_ones() {
    let Some(mut cluster) = start("watch without rights", Cluster::builder()) else { return };
    create_tables(&cluster);
    let rights = "CREATE ROLE lim LOGIN; GRANT pg_monitor TO lim; GRANT SELECT ON early TO lim";
    session(&cluster).query(rights).unwrap();
    read(&cluster, "early");
    read(&cluster, "late");
    let folder = tempfile::tempdir().unwrap();
    let mut settings = settings(&cluster, folder.path());
    settings.target = settings.target.with_user("lim");
    settings.interval = Some(Duration::from_millis(100));
    let daemon = start_watch(settings);
    wait_for_images(&daemon, 1);
    cluster.restart().unwrap();
    let loads = |count: f64| {
        wait_until("loads", || daemon.metric("howdah_warm_loads_total", "end=\"done\"") >= count);
    };
    loads(1.0);
    wait_until_cached(&cluster, "early");
    let (name, part) = DUMPED;
    let before = daemon.metric(name, part);
    // More than the folder retains.
    wait_until("images", || daemon.metric(name, part) >= before + 6.0);
    let open = |name: &str| CacheImage::open(folder.path().join(name)).unwrap();
    let aside = open("aside.cache").page_count();
    for name in ["newest.cache", "newest.cache.1", "newest.cache.2"] {
        assert!(open(name).page_count() < aside, "{name}: {aside} pages in aside.cache");
    }

    session(&cluster).query("GRANT SELECT ON late TO lim").unwrap();
    cluster.restart().unwrap();
    wait_until_cached(&cluster, "late");
    wait_until("removal of aside.cache", || !folder.path().join("aside.cache").exists());
    daemon.stop().unwrap();
    assert!(open("newest.cache").page_count() >= aside * 9 / 10);
}
