//! A watched server is as warm after a restart as before, however it ended.

use std::time::Duration;

use howdah_lab::Cluster;
use howdah_warm::{CacheImage, dump::Choice};

use rustix::process::Signal;

use crate::support::{
    DUMPED, fill, keep, kill, read, session, settings, signal, start, wait_for_images, wait_until,
    wait_until_whole,
};

#[test]
fn a_restart_brings_back_what_was_read_after_the_last_interval() {
    for major in [14, 15, 17, 18] {
        let test = format!("watch over a restart on {major}");
        let Some(mut cluster) = start(&test, Cluster::builder().major(major)) else { continue };
        fill(&cluster);
        cluster.restart().unwrap();
        let folder = tempfile::tempdir().unwrap();
        read(&cluster, "early");
        let keeper = keep(settings(&cluster, folder.path()));
        wait_for_images(&keeper, 1);
        // Only an image of the shutdown can hold this one.
        read(&cluster, "late");
        cluster.restart().unwrap();
        wait_until_whole(&cluster, "early");
        wait_until_whole(&cluster, "late");
        assert_eq!(keeper.metric("howdah_warm_restarts_total", ""), 1.0, "{major}");

        // And once more: an image of a cache that is being filled has replaced nothing.
        wait_for_images(&keeper, 3);
        cluster.restart().unwrap();
        wait_until_whole(&cluster, "late");
        keeper.stop().unwrap();
        let image = CacheImage::open(folder.path().join("newest.cache")).unwrap();
        assert!(image.page_count() > 500, "{major}: {}", image.page_count());
        assert!(folder.path().join("newest.cache.2").exists());
    }
}

#[test]
fn kill_9_brings_back_the_image_of_the_last_interval() {
    for major in [15, 18] {
        let test = format!("watch over kill -9 on {major}");
        let Some(mut cluster) = start(&test, Cluster::builder().major(major)) else { continue };
        fill(&cluster);
        read(&cluster, "early");
        let folder = tempfile::tempdir().unwrap();
        let keeper = keep(settings(&cluster, folder.path()));
        wait_for_images(&keeper, 1);
        kill(cluster.pid().unwrap());
        wait_until("the end of the server", || !cluster.is_running());
        // Its children need a moment to notice, and nobody may start before.
        wait_until("the server's new start", || cluster.start().is_ok());
        wait_until_whole(&cluster, "early");
        keeper.stop().unwrap();
    }
}

#[test]
fn a_crashed_session_empties_the_cache_and_that_is_noticed() {
    let Some(cluster) = start("watch over a crash", Cluster::builder()) else { return };
    fill(&cluster);
    read(&cluster, "early");
    let folder = tempfile::tempdir().unwrap();
    let keeper = keep(settings(&cluster, folder.path()));
    wait_for_images(&keeper, 1);
    let postmaster = cluster.pid();
    let client = session(&cluster);
    kill(u32::try_from(client.process_id().unwrap()).unwrap());
    wait_until("a load", || keeper.metric("howdah_warm_loads_total", "end=\"done\"") >= 1.0);
    wait_until_whole(&cluster, "early");
    assert_eq!(cluster.pid(), postmaster, "the server as such went on");
    keeper.stop().unwrap();
}

#[test]
fn a_server_elsewhere_is_asked() {
    let Some(mut cluster) = start("watch by SQL", Cluster::builder()) else { return };
    fill(&cluster);
    read(&cluster, "early");
    let folder = tempfile::tempdir().unwrap();
    let mut settings = settings(&cluster, folder.path());
    settings.choice = Choice::PgBuffercache;
    let keeper = keep(settings);
    wait_for_images(&keeper, 1);
    cluster.restart().unwrap();
    wait_until_whole(&cluster, "early");
    keeper.stop().unwrap();
}

#[test]
fn a_keeper_that_starts_with_the_server_knows_that_it_is_cold() {
    let Some(mut cluster) = start("watch after a reboot", Cluster::builder()) else { return };
    fill(&cluster);
    read(&cluster, "early");
    let folder = tempfile::tempdir().unwrap();
    let keeper = keep(settings(&cluster, folder.path()));
    wait_for_images(&keeper, 1);
    read(&cluster, "late");
    // Told to stop, it takes a last image.
    keeper.stop().unwrap();
    cluster.restart().unwrap();
    let keeper = keep(settings(&cluster, folder.path()));
    wait_until_whole(&cluster, "early");
    wait_until_whole(&cluster, "late");
    wait_for_images(&keeper, 1);
    keeper.stop().unwrap();

    // The next one finds a server that is as warm as its image, and loads nothing.
    let keeper = keep(settings(&cluster, folder.path()));
    wait_for_images(&keeper, 1);
    assert_eq!(keeper.metric("howdah_warm_loads_total", ""), 0.0);
    keeper.stop().unwrap();
}

#[test]
fn without_an_interval_the_shutdown_is_the_only_image() {
    let Some(mut cluster) = start("watch at shutdown", Cluster::builder()) else { return };
    fill(&cluster);
    let folder = tempfile::tempdir().unwrap();
    let mut settings = settings(&cluster, folder.path());
    settings.interval = None;
    let keeper = keep(settings);
    // The first is for the names of relations.
    wait_for_images(&keeper, 1);
    read(&cluster, "late");
    cluster.restart().unwrap();
    wait_until_whole(&cluster, "late");
    keeper.stop().unwrap();
}

#[test]
fn intervals_go_on() {
    let Some(cluster) = start("watch at intervals", Cluster::builder()) else { return };
    fill(&cluster);
    let folder = tempfile::tempdir().unwrap();
    let mut settings = settings(&cluster, folder.path());
    settings.interval = Some(Duration::from_millis(50));
    let keeper = keep(settings);
    wait_for_images(&keeper, 4);
    keeper.stop().unwrap();
}

#[test]
fn what_is_read_during_a_smart_shutdown_comes_back() {
    let Some(mut cluster) = start("watch a smart shutdown", Cluster::builder()) else { return };
    fill(&cluster);
    cluster.restart().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let keeper = keep(settings(&cluster, folder.path()));
    wait_for_images(&keeper, 1);
    let mut last = session(&cluster);
    last.query("SELECT 1").unwrap();
    // The server lets nobody in any more, and waits for this session: for no other, so none is held.
    signal(cluster.pid().unwrap(), Signal::TERM);
    wait_for_images(&keeper, 2);
    last.query("SELECT count(pad) FROM late").unwrap();
    wait_for_images(&keeper, 4);
    drop(last);
    wait_until("the end of the server", || !cluster.is_running());
    cluster.start().unwrap();
    wait_until_whole(&cluster, "late");
    keeper.stop().unwrap();
}

#[test]
fn files_are_read_ahead_while_the_server_recovers() {
    let Some(mut cluster) = start("watch a recovery", Cluster::builder()) else { return };
    fill(&cluster);
    read(&cluster, "early");
    let folder = tempfile::tempdir().unwrap();
    let keeper = keep(settings(&cluster, folder.path()));
    wait_for_images(&keeper, 1);
    keeper.stop().unwrap();
    cluster.stop().unwrap();
    // What a postmaster writes while it recovers for as long as this test likes.
    let lock_file = cluster.data_dir().join("postmaster.pid");
    let port = cluster.port();
    std::fs::write(&lock_file, format!("1\n/\n1795176000\n{port}\n/tmp\n\n  1 1\nstarting\n"))
        .unwrap();
    let mut settings = settings(&cluster, folder.path());
    settings.data_dir = Some(cluster.data_dir().to_path_buf());
    let keeper = keep(settings);
    let bytes = || keeper.metric("howdah_warm_read_ahead_bytes_total", "");
    wait_until("files to be read ahead", || bytes() > 2e6);
    std::fs::remove_file(&lock_file).unwrap();
    cluster.start().unwrap();
    wait_until_whole(&cluster, "early");
    keeper.stop().unwrap();
}

#[test]
fn image_loaded_in_part_only_outlasts_the_colder_ones_after_it() {
    let Some(mut cluster) = start("watch without rights", Cluster::builder()) else { return };
    fill(&cluster);
    let rights = "CREATE ROLE lim LOGIN; GRANT pg_monitor TO lim; GRANT SELECT ON early TO lim";
    session(&cluster).query(rights).unwrap();
    read(&cluster, "early");
    read(&cluster, "late");
    let folder = tempfile::tempdir().unwrap();
    let mut settings = settings(&cluster, folder.path());
    settings.target = settings.target.with_user("lim");
    settings.interval = Some(Duration::from_millis(100));
    let keeper = keep(settings);
    wait_for_images(&keeper, 1);
    cluster.restart().unwrap();
    let loads = |count: f64| {
        wait_until("loads", || keeper.metric("howdah_warm_loads_total", "end=\"done\"") >= count);
    };
    loads(1.0);
    wait_until_whole(&cluster, "early");
    let (name, part) = DUMPED;
    let before = keeper.metric(name, part);
    // More than are kept.
    wait_until("images", || keeper.metric(name, part) >= before + 6.0);
    let open = |name: &str| CacheImage::open(folder.path().join(name)).unwrap();
    let aside = open("aside.cache").page_count();
    for name in ["newest.cache", "newest.cache.1", "newest.cache.2"] {
        assert!(open(name).page_count() < aside, "{name}: {aside} pages are aside");
    }

    session(&cluster).query("GRANT SELECT ON late TO lim").unwrap();
    cluster.restart().unwrap();
    wait_until_whole(&cluster, "late");
    wait_until("its removal", || !folder.path().join("aside.cache").exists());
    keeper.stop().unwrap();
    assert!(open("newest.cache").page_count() >= aside * 9 / 10);
}
