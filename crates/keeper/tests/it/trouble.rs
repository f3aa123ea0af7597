//! What goes wrong is told and counted, and the keeper goes on.

use std::{fs, time::Duration};

use howdah_keeper::WatchError;
use howdah_lab::Cluster;
use howdah_warm::{CacheImage, dump::Choice};

use crate::support::{
    fill, keep, read, session, settings, start, wait_for_images, wait_until, wait_until_whole,
};

const FAILED: (&str, &str) = ("howdah_warm_dumps_total", "end=\"failed\"");

#[test]
fn an_image_that_cannot_be_written_is_tried_again() {
    let Some(cluster) = start("watch without a disk", Cluster::builder()) else { return };
    fill(&cluster);
    let folder = tempfile::tempdir().unwrap();
    let in_the_way = folder.path().join("newest.cache.tmp");
    fs::create_dir(&in_the_way).unwrap();
    let mut settings = settings(&cluster, folder.path());
    settings.interval = Some(Duration::from_millis(50));
    let keeper = keep(settings);
    wait_until("a failure", || keeper.metric(FAILED.0, FAILED.1) >= 2.0);
    assert!(!folder.path().join("newest.cache").exists());
    fs::remove_dir(&in_the_way).unwrap();
    wait_for_images(&keeper, 1);
    keeper.stop().unwrap();
    CacheImage::open(folder.path().join("newest.cache")).unwrap();
}

#[test]
fn a_server_that_is_away_is_waited_for() {
    let Some(mut cluster) = start("watch nobody", Cluster::builder()) else { return };
    fill(&cluster);
    cluster.stop().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let keeper = keep(settings(&cluster, folder.path()));
    wait_until("word of it", || keeper.registry.prometheus().contains("howdah_warm_server_up{"));
    assert_eq!(keeper.metric("howdah_warm_server_up", ""), 0.0);
    cluster.start().unwrap();
    wait_for_images(&keeper, 1);
    assert_eq!(keeper.metric("howdah_warm_server_up", ""), 1.0);
    keeper.stop().unwrap();
}

#[test]
fn a_damaged_image_gives_way_to_the_one_before() {
    let Some(mut cluster) = start("watch with a damaged image", Cluster::builder()) else { return };
    fill(&cluster);
    read(&cluster, "early");
    let folder = tempfile::tempdir().unwrap();
    let keeper = keep(settings(&cluster, folder.path()));
    wait_for_images(&keeper, 1);
    keeper.stop().unwrap();
    let newest = folder.path().join("newest.cache");
    let bytes = fs::read(&newest).unwrap();
    fs::write(&newest, &bytes[..bytes.len() / 2]).unwrap();
    assert!(folder.path().join("newest.cache.1").exists());
    cluster.restart().unwrap();
    let keeper = keep(settings(&cluster, folder.path()));
    wait_until_whole(&cluster, "early");
    keeper.stop().unwrap();
}

#[test]
fn what_cannot_begin_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let Some(cluster) = start("watch in vain", Cluster::builder()) else { return };
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let told = keep(settings(&cluster, &file)).stop().unwrap_err();
    assert!(matches!(&told, WatchError::Folder { folder, .. } if *folder == file), "{told}");

    let mut only_at_shutdown = settings(&cluster, &folder.path().join("a"));
    only_at_shutdown.interval = None;
    only_at_shutdown.choice = Choice::PgBuffercache;
    let keeper = keep(only_at_shutdown);
    wait_until("an arrival", || keeper.metric("howdah_warm_server_up", "") >= 1.0);
    let told = keeper.stop().unwrap_err();
    assert!(matches!(told, WatchError::NoMemory { .. }), "{told}");
}

#[test]
fn a_relation_that_is_locked_holds_up_no_image() {
    let Some(cluster) = start("watch beside a lock", Cluster::builder()) else { return };
    fill(&cluster);
    read(&cluster, "early");
    let mut other = session(&cluster);
    other.query("BEGIN; LOCK TABLE early").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let keeper = keep(settings(&cluster, folder.path()));
    wait_for_images(&keeper, 1);
    keeper.stop().unwrap();
    drop(other);
    let image = CacheImage::open(folder.path().join("newest.cache")).unwrap();
    let names: Vec<_> =
        image.relations.iter().filter_map(|it| it.name.as_ref()).map(ToString::to_string).collect();
    assert!(names.iter().any(|name| name == "public.early"), "{names:?}");
}
