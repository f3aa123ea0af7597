//! Failures are logged and counted, and the daemon continues.

use std::{fs, time::Duration};

use howdah_lab::Cluster;
use howdah_warm::daemon::WatchError;
use howdah_warm::{CacheImage, dump::DumpSource};

use crate::support::{
    create_tables, read, session, settings, start, start_watch, wait_for_images, wait_until,
    wait_until_cached,
};

const FAILED: (&str, &str) = ("howdah_warm_dumps_total", "end=\"failed\"");

#[test]
fn unwritable_image_is_retried() {
    let Some(cluster) = start("watch without a disk", Cluster::builder()) else { return };
    create_tables(&cluster);
    let folder = tempfile::tempdir().unwrap();
    let obstacle = folder.path().join("newest.cache.tmp");
    fs::create_dir(&obstacle).unwrap();
    let mut settings = settings(&cluster, folder.path());
    settings.interval = Some(Duration::from_millis(50));
    let daemon = start_watch(settings);
    wait_until("a failure", || daemon.metric(FAILED.0, FAILED.1) >= 2.0);
    assert!(!folder.path().join("newest.cache").exists());
    fs::remove_dir(&obstacle).unwrap();
    wait_for_images(&daemon, 1);
    daemon.stop().unwrap();
    CacheImage::open(folder.path().join("newest.cache")).unwrap();
}

#[test]
fn unreachable_server_is_waited_for() {
    let Some(mut cluster) = start("watch a stopped server", Cluster::builder()) else { return };
    create_tables(&cluster);
    cluster.stop().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let daemon = start_watch(settings(&cluster, folder.path()));
    wait_until("the metric of the server", || {
        daemon.registry.prometheus().contains("howdah_warm_server_up{")
    });
    assert_eq!(daemon.metric("howdah_warm_server_up", ""), 0.0);
    cluster.start().unwrap();
    wait_for_images(&daemon, 1);
    assert_eq!(daemon.metric("howdah_warm_server_up", ""), 1.0);
    daemon.stop().unwrap();
}

#[test]
fn damaged_newest_image_falls_back_to_previous() {
    let Some(mut cluster) = start("watch with a damaged image", Cluster::builder()) else { return };
    create_tables(&cluster);
    read(&cluster, "early");
    let folder = tempfile::tempdir().unwrap();
    let daemon = start_watch(settings(&cluster, folder.path()));
    wait_for_images(&daemon, 1);
    daemon.stop().unwrap();
    let newest = folder.path().join("newest.cache");
    let bytes = fs::read(&newest).unwrap();
    fs::write(&newest, &bytes[..bytes.len() / 2]).unwrap();
    assert!(folder.path().join("newest.cache.1").exists());
    cluster.restart().unwrap();
    let daemon = start_watch(settings(&cluster, folder.path()));
    wait_until_cached(&cluster, "early");
    daemon.stop().unwrap();
}

#[test]
fn unusable_settings_are_rejected_with_a_reason() {
    let folder = tempfile::tempdir().unwrap();
    let Some(cluster) = start("watch with unusable settings", Cluster::builder()) else { return };
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let error = start_watch(settings(&cluster, &file)).stop().unwrap_err();
    assert!(matches!(&error, WatchError::Folder { folder, .. } if *folder == file), "{error}");

    let mut only_at_shutdown = settings(&cluster, &folder.path().join("a"));
    only_at_shutdown.interval = None;
    only_at_shutdown.source = DumpSource::PgBuffercache;
    let daemon = start_watch(only_at_shutdown);
    wait_until("a connection", || daemon.metric("howdah_warm_server_up", "") >= 1.0);
    let error = daemon.stop().unwrap_err();
    assert!(matches!(error, WatchError::UnreadableMemory { .. }), "{error}");
}

#[test]
fn locked_relation_does_not_delay_image() {
    let Some(cluster) = start("watch with a locked table", Cluster::builder()) else { return };
    create_tables(&cluster);
    read(&cluster, "early");
    let mut other = session(&cluster);
    other.query("BEGIN; LOCK TABLE early").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let daemon = start_watch(settings(&cluster, folder.path()));
    wait_for_images(&daemon, 1);
    daemon.stop().unwrap();
    drop(other);
    let image = CacheImage::open(folder.path().join("newest.cache")).unwrap();
    let names: Vec<_> =
        image.relations.iter().filter_map(|it| it.name.as_ref()).map(ToString::to_string).collect();
    assert!(names.iter().any(|name| name == "public.early"), "{names:?}");
}
