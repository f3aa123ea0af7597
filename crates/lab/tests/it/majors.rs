//! All major versions, fetched if not installed.

use howdah_lab::{BinariesOrigin, BinariesSearch, Cluster, MAJORS, skip_without_postgres};

use crate::support::{open_tempdir, sql, start};

#[test]
fn every_available_major_starts() {
    for major in MAJORS {
        let test = format!("major {major}");
        let Some(cluster) = start(&test, Cluster::builder().major(major)) else { continue };
        let version = sql(&cluster.uri("postgres"), "SHOW server_version_num");
        assert!(version.starts_with(&major.to_string()), "{version}");
        assert_eq!(cluster.major(), major);
    }
}

#[test]
fn fetched_major_is_found_without_network() {
    let system = BinariesSearch::new().fetch(false).cache_dir("/nowhere");
    let Some(major) = MAJORS.rev().find(|major| system.clone().major(*major).find().is_err())
    else {
        return; // all are installed
    };
    let cache = open_tempdir();
    let search = BinariesSearch::new().major(major).cache_dir(cache.path());
    let Some(fetched) = skip_without_postgres("fetched major", search.clone().find()) else {
        return;
    };
    assert_eq!((fetched.origin(), fetched.version().major()), (BinariesOrigin::Cache, major));
    assert!(fetched.dir().starts_with(cache.path()));
    // Found in the cache although fetching is not allowed.
    assert_eq!(search.fetch(false).find().unwrap(), fetched);
}

#[test]
fn concurrent_fetches_download_once() {
    let system = BinariesSearch::new().fetch(false).cache_dir("/nowhere");
    let Some(major) = MAJORS.rev().find(|major| system.clone().major(*major).find().is_err())
    else {
        return; // all are installed
    };
    let cache = open_tempdir();
    let search = BinariesSearch::new().major(major).cache_dir(cache.path());
    let found: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..3).map(|_| scope.spawn(|| search.find())).collect();
        threads
            .into_iter()
            .filter_map(|thread| skip_without_postgres("fetching at once", thread.join().unwrap()))
            .collect()
    });
    assert!(found.windows(2).all(|pair| pair[0] == pair[1]), "{found:?}");
    if !found.is_empty() {
        let versions = std::fs::read_dir(cache.path().join("postgresql")).unwrap();
        let names = versions.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        assert_eq!(names.filter(|name| !name.starts_with('.')).count(), 1);
    }
}

#[test]
fn missing_major_is_reported() {
    let cache = open_tempdir();
    let installed =
        |major| BinariesSearch::new().major(major).fetch(false).cache_dir(cache.path()).find();
    let missing = MAJORS.filter_map(|major| Some((major, installed(major).err()?)));
    for (major, error) in missing {
        assert!(error.is_postgres_missing());
        let text = error.to_string();
        assert!(
            text.starts_with(&format!("no PostgreSQL {major} was found on the PATH, in ")),
            "{text}"
        );
    }
}
