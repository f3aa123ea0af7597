//! Other majors, from the network where the machine lacks them.

use howdah_lab::{Cluster, MAJORS, Origin, Search, or_say_why_not};

use crate::support::{open_tempdir, sql, start};

#[test]
fn every_major_that_can_be_had_starts() {
    for major in MAJORS {
        let test = format!("major {major}");
        let Some(cluster) = start(&test, Cluster::builder().major(major)) else { continue };
        let version = sql(&cluster.uri("postgres"), "SHOW server_version_num");
        assert!(version.starts_with(&major.to_string()), "{version}");
        assert_eq!(cluster.major(), major);
    }
}

#[test]
fn a_fetched_major_needs_no_network_any_more() {
    let system = Search::new().fetch(false).cache_dir("/nowhere");
    let Some(major) = MAJORS.rev().find(|major| system.clone().major(*major).find().is_err())
    else {
        return; // all are installed
    };
    let cache = open_tempdir();
    let search = Search::new().major(major).cache_dir(cache.path());
    let Some(fetched) = or_say_why_not("fetched major", search.clone().find()) else { return };
    assert_eq!((fetched.origin(), fetched.version().major()), (Origin::Cache, major));
    assert!(fetched.dir().starts_with(cache.path()));
    // Not allowed to fetch, and it needs not.
    assert_eq!(search.fetch(false).find().unwrap(), fetched);
}

#[test]
fn fetching_at_once_fetches_once() {
    let system = Search::new().fetch(false).cache_dir("/nowhere");
    let Some(major) = MAJORS.rev().find(|major| system.clone().major(*major).find().is_err())
    else {
        return; // all are installed
    };
    let cache = open_tempdir();
    let search = Search::new().major(major).cache_dir(cache.path());
    let found: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..3).map(|_| scope.spawn(|| search.find())).collect();
        threads
            .into_iter()
            .filter_map(|thread| or_say_why_not("fetching at once", thread.join().unwrap()))
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
fn binaries_that_are_nowhere() {
    let cache = open_tempdir();
    let installed = |major| Search::new().major(major).fetch(false).cache_dir(cache.path()).find();
    let missing = MAJORS.filter_map(|major| Some((major, installed(major).err()?)));
    for (major, error) in missing {
        assert!(error.is_no_postgres());
        let text = error.to_string();
        assert!(text.starts_with(&format!("no PostgreSQL {major} was found: ")), "{text}");
    }
}
