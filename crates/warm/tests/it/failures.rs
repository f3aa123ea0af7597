//! Failures during a load, and how they are reported.

use std::{
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use howdah_connect::{Client, ConnectTarget};
use howdah_lab::{Cluster, wait_until};
use howdah_warm::{
    CacheImage,
    dump::{self, DumpSource},
    image::Fork,
    load::{self, LoadError, LoadEvent, LoadObserver, LoadOptions, LoadReport, RelationProblem},
};

use crate::support::{
    SCHEMA, TIMEOUT, cached, check_sums, image, load, outcome, session, start, target,
};

const MORE: &str = "
    CREATE EXTENSION pg_prewarm;
    CREATE TABLE one AS SELECT n, repeat('x', 500) AS pad FROM generate_series(1, 2000) n;
    CREATE TABLE two AS SELECT * FROM one;
    CREATE TABLE three AS SELECT * FROM one;
    CREATE UNLOGGED TABLE scratch AS SELECT * FROM one;
    CREATE TEMP TABLE mine AS SELECT * FROM one;
    CHECKPOINT;";

/// A server with cached tables, and an image of it.
fn warm_server(test: &str) -> Option<(Cluster, ConnectTarget, CacheImage)> {
    let cluster = start(test, Cluster::builder())?;
    let here = target(&cluster, "postgres");
    let mut client = session(&here);
    client.query(SCHEMA).unwrap();
    client.query(MORE).unwrap();
    let image = image(&here);
    Some((cluster, here, image))
}

fn problem(loaded: &LoadReport, name: &str) -> RelationProblem {
    outcome(loaded, name).problem.clone().unwrap()
}

/// Truncates the empty end of a table with VACUUM, retrying while an older transaction prevents it,
/// such as that of a session dropping its temporary tables, or autovacuum.
fn truncate_by_vacuum(client: &mut Client, table: &str) {
    let pages = format!("SELECT pg_relation_size('{table}')");
    let size = |client: &mut Client| {
        let answer = client.query(&pages).unwrap();
        answer[0].rows[0].text(0).unwrap().into_owned()
    };
    let before = size(client);
    wait_until(&format!("{table} to be truncated"), TIMEOUT, || {
        client.query(&format!("VACUUM {table}")).unwrap();
        size(client) != before
    });
}

#[test]
fn changed_relations_are_reported_individually() {
    let Some((mut cluster, here, image)) = warm_server("changed") else { return };
    let temporary = |relation: &&howdah_warm::image::Relation| {
        relation.name.as_ref().is_some_and(|name| name.to_string().ends_with(".mine"))
    };
    assert!(image.relations.iter().find(temporary).is_none(), "temporary tables are private");
    let mut client = session(&here);
    client.query("DELETE FROM one WHERE n > 1000").unwrap();
    truncate_by_vacuum(&mut client, "one");
    client
        .query(
            "DROP TABLE two; CREATE VIEW two AS SELECT 1;
             DROP TABLE three; CREATE TABLE three (n int) PARTITION BY RANGE (n);
             DROP TABLE long",
        )
        .unwrap();
    drop(client);
    cluster.kill().unwrap();
    cluster.start().unwrap();
    let loaded = load(&image, &here, &LoadOptions::default());
    check_sums(&loaded);
    assert!(matches!(problem(&loaded, "public.one"), RelationProblem::Shrunk));
    let one = outcome(&loaded, "public.one").pages;
    assert!(one.beyond_end > 50 && one.loaded + one.resident == one.requested, "{one:?}");
    assert!(matches!(problem(&loaded, "public.two"), RelationProblem::NoPages("view")));
    assert!(matches!(
        problem(&loaded, "public.three"),
        RelationProblem::NoPages("partitioned table")
    ));
    assert!(matches!(problem(&loaded, "public.long"), RelationProblem::Dropped));
    assert!(matches!(problem(&loaded, "public.long (TOAST)"), RelationProblem::Dropped));
    // The crash emptied the unlogged table.
    let scratch = outcome(&loaded, "public.scratch").pages;
    assert_eq!((scratch.loaded, scratch.requested), (0, 0), "{scratch:?}");
    assert!(loaded.plan_share() > 0.99, "dropped relations are not in the plan");
    assert!(loaded.share() < 0.9, "but missing from the image: {:#?}", loaded.pages());
}

#[test]
fn locked_table_is_skipped_and_others_are_loaded() {
    let Some((mut cluster, here, image)) = warm_server("locked") else { return };
    cluster.restart().unwrap();
    let mut holder = session(&here);
    holder.query("BEGIN").unwrap();
    holder.query("LOCK TABLE two IN ACCESS EXCLUSIVE MODE").unwrap();
    let options = LoadOptions { lock_timeout: Duration::from_millis(50), ..LoadOptions::default() };
    let loaded = load(&image, &here, &options);
    check_sums(&loaded);
    assert!(matches!(problem(&loaded, "public.two"), RelationProblem::Locked));
    assert_eq!(outcome(&loaded, "public.two").pages.loaded, 0);
    let one = outcome(&loaded, "public.one").pages;
    assert!(one.loaded > 100 && one.loaded == one.requested, "{one:?}");
    assert!(loaded.share() < 0.99);
}

#[test]
fn smaller_cache_gets_hottest_pages_without_eviction() {
    let Some((cluster, here, mut image)) = warm_server("smaller") else { return };
    // Only the pages of one table are hot.
    for relation in &mut image.relations {
        let is_hot = relation.name.as_ref().is_some_and(|name| name.to_string() == "public.three");
        for fork in &mut relation.forks {
            let pages = fork.pages.iter();
            fork.pages = pages
                .map(|page| howdah_warm::image::CachedPage {
                    usage: if is_hot { 5 } else { 1 },
                    ..page
                })
                .collect();
        }
    }
    let how = Cluster::builder().setting("shared_buffers", "6MB").setting("autovacuum", "off");
    let Some(mut small) = start("small", how) else { return };
    let there = target(&small, "postgres");
    let mut client = session(&there);
    client.query(SCHEMA).unwrap();
    client.query(MORE).unwrap();
    drop(client);
    small.restart().unwrap();
    let mut client = session(&there);
    // Use the pages several times; otherwise a catalog page read by a session replaces one when no
    // buffer is free.
    let uses = "SELECT pg_prewarm('two', 'buffer', 'main', 0, 19) FROM generate_series(1, 5)";
    client.query(uses).unwrap();
    let loaded = load(&image, &there, &LoadOptions::default());
    check_sums(&loaded);
    let pages = loaded.pages();
    assert!(pages.no_room > 300, "{pages:?}");
    let hot = outcome(&loaded, "public.three").pages;
    assert!(hot.no_room == 0 && hot.loaded > 100, "{hot:?}");
    let kept = cached(&mut client, "two");
    assert!((0..20).all(|block| kept.contains(&block)), "{kept:?}");
    // With `evict`, other pages are evicted.
    let evicting = load(&image, &there, &LoadOptions { evict: true, ..LoadOptions::default() });
    assert!(evicting.pages().loaded > pages.loaded / 2, "{:?}", evicting.pages());
    drop((cluster, here));
}

/// Runs an action once, when the first pages are loaded.
struct OnFirstProgress<F> {
    act: Mutex<F>,
    is_done: AtomicBool,
    restarts: Mutex<u32>,
}

impl<F: FnMut() + Send> OnFirstProgress<F> {
    fn new(act: F) -> Self {
        Self { act: Mutex::new(act), is_done: AtomicBool::new(false), restarts: Mutex::new(0) }
    }
}

impl<F: FnMut() + Send> LoadObserver for OnFirstProgress<F> {
    fn progressed(&self, _: u64) {
        if !self.is_done.swap(true, Ordering::SeqCst) {
            (self.act.lock().unwrap())();
        }
    }

    fn notify(&self, event: &LoadEvent) {
        if matches!(event, LoadEvent::Restarted) {
            *self.restarts.lock().unwrap() += 1;
        }
    }
}

#[test]
fn lost_connections_are_reestablished() {
    let Some((mut cluster, here, image)) = warm_server("terminated") else { return };
    cluster.restart().unwrap();
    let observer = OnFirstProgress::new(|| {
        let sql = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                   WHERE application_name = 'howdah warm' AND query LIKE '%pg_prewarm%'";
        let ended = session(&here).one_value(sql).unwrap().unwrap();
        assert_ne!(ended, "0");
    });
    let options = LoadOptions { jobs: 3, ..LoadOptions::default() };
    let loaded = load::load(&image, &here, &options, &observer).unwrap();
    check_sums(&loaded);
    assert_eq!(loaded.share(), 1.0, "{:#?}", loaded.outcomes);
    assert_eq!(*observer.restarts.lock().unwrap(), 0);
}

#[test]
fn load_restarts_after_a_server_restart() {
    let Some((mut cluster, here, image)) = warm_server("restarted") else { return };
    cluster.restart().unwrap();
    let cluster = Mutex::new(cluster);
    let observer = OnFirstProgress::new(|| cluster.lock().unwrap().restart().unwrap());
    let loaded = load::load(&image, &here, &LoadOptions::default(), &observer).unwrap();
    check_sums(&loaded);
    assert!(loaded.share() > 0.99, "{:#?}", loaded.outcomes);
    assert_eq!(*observer.restarts.lock().unwrap(), 1);
    assert!(cached(&mut session(&here), "one").len() > 100);
}

#[test]
fn foreign_image_is_matched_by_name_only() {
    let Some((cluster, here, mut image)) = warm_server("elsewhere") else { return };
    image.origin.system_identifier ^= 1;
    for relation in &mut image.relations {
        let is_one = relation.name.as_ref().is_some_and(|name| name.to_string() == "public.one");
        if !is_one {
            relation.name = None;
        }
    }
    let loaded = load(&image, &here, &LoadOptions::default());
    let nameless = loaded.outcomes.iter().filter(|outcome| {
        matches!(outcome.problem, Some(RelationProblem::Nameless)) && outcome.pages.requested == 0
    });
    assert_eq!(nameless.count(), image.relations.len() - 1);
    // On the same cluster, file numbers work as well.
    image.origin.system_identifier ^= 1;
    let loaded = load(&image, &here, &LoadOptions::default());
    assert!(loaded.outcomes.iter().all(|outcome| outcome.problem.is_none()), "{loaded:#?}");
    assert_eq!(loaded.share(), 1.0);

    image.origin.page_bytes = 4096;
    let error = load::load(&image, &here, &LoadOptions::default(), &()).unwrap_err();
    assert!(matches!(error, LoadError::PageBytes { image: 4096, server: 8192 }));
    drop(cluster);
}

#[test]
fn blocks_beyond_relations_are_not_requested() {
    let Some((cluster, here, mut image)) = warm_server("out of range") else { return };
    for fork in image.relations.iter_mut().flat_map(|relation| &mut relation.forks) {
        let beyond =
            howdah_warm::image::CachedPage { block: u32::MAX - 1, usage: 5, is_dirty: false };
        fork.pages = fork.pages.iter().chain([beyond]).collect();
    }
    let loaded = load(&image, &here, &LoadOptions::default());
    check_sums(&loaded);
    assert!(loaded.outcomes.iter().all(|outcome| outcome.pages.beyond_end >= 1));
    assert!(loaded.share() > 0.99);
    drop(cluster);
}

#[test]
fn stopped_server_yields_an_error_and_no_image() {
    let Some((mut cluster, here, image)) = warm_server("dump") else { return };
    let mut client = session(&here);
    let server = dump::local_server(&mut client).unwrap();
    drop(client);
    assert!(dump::dump_memory(&server, Some(&image)).is_ok());
    cluster.restart().unwrap();
    assert!(dump::dump_memory(&server, Some(&image)).is_err(), "the process is gone");
    let again = dump::dump(&here, DumpSource::Memory).unwrap().image;
    assert!(again.relations.iter().any(|relation| relation.forks[0].fork == Fork::Main));
}

#[test]
fn full_cache_without_the_image_is_not_warm() {
    let Some((cluster, here, image)) = warm_server("full of others") else { return };
    let how = Cluster::builder().setting("shared_buffers", "8MB").setting("autovacuum", "off");
    let Some(mut small) = start("full", how) else { return };
    let there = target(&small, "postgres");
    let mut client = session(&there);
    client.query(SCHEMA).unwrap();
    client.query(MORE).unwrap();
    client
        .query("CREATE TABLE big AS SELECT repeat('z', 800) FROM generate_series(1, 16000)")
        .unwrap();
    drop(client);
    small.restart().unwrap();
    session(&there).query("SELECT pg_prewarm('big')").unwrap();
    let dry_run = LoadOptions { dry_run: true, ..LoadOptions::default() };
    for options in [dry_run, LoadOptions::default()] {
        let loaded = load(&image, &there, &options);
        check_sums(&loaded);
        assert!(loaded.expected() > 700, "{:?}", loaded.pages());
        assert!(loaded.share() < 0.5, "{:?} {:?}", loaded.residency, loaded.pages());
        assert_eq!(loaded.pages().no_room > 0, !options.dry_run);
    }
    // A limit is the user's choice: excluded pages are not missing.
    let hottest = LoadOptions { limit: Some(10), evict: true, ..LoadOptions::default() };
    let loaded = load(&image, &there, &hottest);
    assert_eq!((loaded.expected(), loaded.limited), (10, image.page_count() - 10));
    let dry_run = LoadOptions { limit: Some(10), dry_run: true, ..LoadOptions::default() };
    assert_eq!(load(&image, &there, &dry_run).resident(), 10);
    drop((cluster, here));
}

#[test]
fn damaged_page_costs_one_page() {
    for major in [15, 18] {
        let test = format!("damaged page on {major}");
        let Some(mut cluster) = start(&test, Cluster::builder().major(major)) else { continue };
        let here = target(&cluster, "postgres");
        let mut client = session(&here);
        client.query(SCHEMA).unwrap();
        client.query(MORE).unwrap();
        let image = image(&here);
        let file = client.one_value("SELECT pg_relation_filepath('one')").unwrap().unwrap();
        drop(client);
        cluster.stop().unwrap();
        let file = cluster.data_dir().join(file);
        let mut bytes = std::fs::read(&file).unwrap();
        // Overwrite the header of page 7: checksum, flags and pointers.
        bytes[7 * 8192..7 * 8192 + 24].fill(0x5a);
        std::fs::write(&file, bytes).unwrap();
        cluster.start().unwrap();
        let loaded = load(&image, &here, &LoadOptions::default());
        check_sums(&loaded);
        assert!(matches!(problem(&loaded, "public.one"), RelationProblem::Damaged(_)));
        let one = outcome(&loaded, "public.one").pages;
        assert_eq!((one.failed, one.loaded), (1, one.requested - 1), "{test}: {one:?}");
        assert!(loaded.share() > 0.99);
    }
}

#[test]
fn session_lost_during_catalog_lookup_is_replaced() {
    let Some(cluster) = start("lookup", Cluster::builder()) else { return };
    let here = target(&cluster, "postgres");
    session(&here).query("CREATE DATABASE shop").unwrap();
    let shop = target(&cluster, "shop");
    session(&shop).query(SCHEMA).unwrap();
    let image = image(&shop);
    // Sessions start without this catalog, and wait for it in their first query.
    let mut holder = session(&shop);
    holder.query("BEGIN; LOCK TABLE pg_namespace IN ACCESS EXCLUSIVE MODE").unwrap();
    let options = LoadOptions { lock_timeout: Duration::from_secs(60), ..LoadOptions::default() };
    let loaded = std::thread::scope(|scope| {
        let loaded = scope.spawn(|| load(&image, &here, &options));
        let terminate = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                     WHERE application_name = 'howdah warm' AND wait_event_type = 'Lock'";
        let mut other = session(&here);
        wait_until("a session blocked in the catalogs", TIMEOUT, || {
            other.one_value(terminate).unwrap().as_deref() != Some("0")
        });
        holder.query("ROLLBACK").unwrap();
        loaded.join().unwrap()
    });
    check_sums(&loaded);
    assert_eq!(loaded.pages().not_found, 0, "{:#?}", loaded.outcomes);
}
