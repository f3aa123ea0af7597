//! What can go wrong while an image is loaded, and what is said of it.

use std::{
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use howdah_connect::{Client, Target};
use howdah_lab::Cluster;
use howdah_warm::{
    CacheImage,
    dump::{self, Choice},
    image::Fork,
    load::{self, Event, LoadError, Loaded, Observer, Options, Problem},
};

use crate::support::{SCHEMA, cached, check_sums, image, load, outcome, session, start, target};

const MORE: &str = "
    CREATE EXTENSION pg_prewarm;
    CREATE TABLE one AS SELECT n, repeat('x', 500) AS pad FROM generate_series(1, 2000) n;
    CREATE TABLE two AS SELECT * FROM one;
    CREATE TABLE three AS SELECT * FROM one;
    CREATE UNLOGGED TABLE scratch AS SELECT * FROM one;
    CREATE TEMP TABLE mine AS SELECT * FROM one;
    CHECKPOINT;";

/// A server whose tables are in its cache, and the image of that.
fn warm_server(test: &str) -> Option<(Cluster, Target, CacheImage)> {
    let cluster = start(test, Cluster::builder())?;
    let here = target(&cluster, "postgres");
    let mut client = session(&here);
    client.query(SCHEMA).unwrap();
    client.query(MORE).unwrap();
    let image = image(&here);
    Some((cluster, here, image))
}

fn problem(loaded: &Loaded, name: &str) -> Problem {
    outcome(loaded, name).problem.clone().unwrap()
}

/// Has VACUUM give the empty end of a table back: not at once where an older transaction is still about, as that
/// of a session that drops its temporary tables, or where autovacuum looks at the table.
fn cut_off(client: &mut Client, table: &str) {
    let pages = format!("SELECT pg_relation_size('{table}')");
    let size = |client: &mut Client| {
        let answer = client.query(&pages).unwrap();
        answer[0].rows[0].text(0).unwrap().into_owned()
    };
    let before = size(client);
    let deadline = Instant::now() + Duration::from_secs(60);
    while size(client) == before {
        assert!(Instant::now() < deadline, "{table} is as long as before");
        client.query(&format!("VACUUM {table}")).unwrap();
    }
}

#[test]
fn what_became_of_relations_is_told_one_by_one() {
    let Some((mut cluster, here, image)) = warm_server("changed") else { return };
    let temporary = |relation: &&howdah_warm::image::Relation| {
        relation.name.as_ref().is_some_and(|name| name.to_string().ends_with(".mine"))
    };
    assert!(image.relations.iter().find(temporary).is_none(), "temporary tables are private");
    let mut client = session(&here);
    client.query("DELETE FROM one WHERE n > 1000").unwrap();
    cut_off(&mut client, "one");
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
    let loaded = load(&image, &here, &Options::default());
    check_sums(&loaded);
    assert!(matches!(problem(&loaded, "public.one"), Problem::Shrunk));
    let one = outcome(&loaded, "public.one").pages;
    assert!(one.beyond_end > 50 && one.loaded + one.resident == one.wanted, "{one:?}");
    assert!(matches!(problem(&loaded, "public.two"), Problem::NoPages("view")));
    assert!(matches!(problem(&loaded, "public.three"), Problem::NoPages("partitioned table")));
    assert!(matches!(problem(&loaded, "public.long"), Problem::Dropped));
    assert!(matches!(problem(&loaded, "public.long (TOAST)"), Problem::Dropped));
    // The crash emptied it.
    let scratch = outcome(&loaded, "public.scratch").pages;
    assert_eq!((scratch.loaded, scratch.wanted), (0, 0), "{scratch:?}");
    assert!(loaded.plan_share() > 0.99, "what is gone is not in the plan");
    assert!(loaded.share() < 0.9, "and is lacking of the image: {:#?}", loaded.pages());
}

#[test]
fn a_locked_table_is_skipped_and_the_rest_is_loaded() {
    let Some((mut cluster, here, image)) = warm_server("locked") else { return };
    cluster.restart().unwrap();
    let mut holder = session(&here);
    holder.query("BEGIN").unwrap();
    holder.query("LOCK TABLE two IN ACCESS EXCLUSIVE MODE").unwrap();
    let options = Options { lock_timeout: Duration::from_millis(50), ..Options::default() };
    let loaded = load(&image, &here, &options);
    check_sums(&loaded);
    assert!(matches!(problem(&loaded, "public.two"), Problem::Locked));
    assert_eq!(outcome(&loaded, "public.two").pages.loaded, 0);
    let one = outcome(&loaded, "public.one").pages;
    assert!(one.loaded > 100 && one.loaded == one.wanted, "{one:?}");
    assert!(loaded.share() < 0.99);
}

#[test]
fn a_smaller_cache_gets_the_hottest_pages_and_loses_none() {
    let Some((cluster, here, mut image)) = warm_server("smaller") else { return };
    // Pages of one table are hot, all others are not.
    for relation in &mut image.relations {
        let is_hot = relation.name.as_ref().is_some_and(|name| name.to_string() == "public.three");
        for fork in &mut relation.forks {
            let pages = fork.pages.iter();
            fork.pages = pages
                .map(|page| howdah_warm::image::Page { usage: if is_hot { 5 } else { 1 }, ..page })
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
    // In use: looked at several times. Else a page of a catalogue that a session reads takes the place of one,
    // when no buffer is free any more.
    let uses = "SELECT pg_prewarm('two', 'buffer', 'main', 0, 19) FROM generate_series(1, 5)";
    client.query(uses).unwrap();
    let loaded = load(&image, &there, &Options::default());
    check_sums(&loaded);
    let pages = loaded.pages();
    assert!(pages.no_room > 300, "{pages:?}");
    let hot = outcome(&loaded, "public.three").pages;
    assert!(hot.no_room == 0 && hot.loaded > 100, "{hot:?}");
    let kept = cached(&mut client, "two");
    assert!((0..20).all(|block| kept.contains(&block)), "{kept:?}");
    // Told to, it pushes others out.
    let evicting = load(&image, &there, &Options { evict: true, ..Options::default() });
    assert!(evicting.pages().loaded > pages.loaded / 2, "{:?}", evicting.pages());
    drop((cluster, here));
}

/// Does something once, when the first pages are loaded.
struct Once<F> {
    act: Mutex<F>,
    is_done: AtomicBool,
    restarts: Mutex<u32>,
}

impl<F: FnMut() + Send> Once<F> {
    fn new(act: F) -> Self {
        Self { act: Mutex::new(act), is_done: AtomicBool::new(false), restarts: Mutex::new(0) }
    }
}

impl<F: FnMut() + Send> Observer for Once<F> {
    fn advanced(&self, _: u64) {
        if !self.is_done.swap(true, Ordering::SeqCst) {
            (self.act.lock().unwrap())();
        }
    }

    fn said(&self, event: &Event) {
        if matches!(event, Event::Restarted) {
            *self.restarts.lock().unwrap() += 1;
        }
    }
}

#[test]
fn a_lost_connection_is_made_again() {
    let Some((mut cluster, here, image)) = warm_server("terminated") else { return };
    cluster.restart().unwrap();
    let observer = Once::new(|| {
        let sql = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                   WHERE application_name = 'howdah warm' AND query LIKE '%pg_prewarm%'";
        let ended = session(&here).one_value(sql).unwrap().unwrap();
        assert_ne!(ended, "0");
    });
    let options = Options { jobs: 3, ..Options::default() };
    let loaded = load::load(&image, &here, &options, &observer).unwrap();
    check_sums(&loaded);
    assert_eq!(loaded.share(), 1.0, "{:#?}", loaded.outcomes);
    assert_eq!(*observer.restarts.lock().unwrap(), 0);
}

#[test]
fn after_a_restart_of_the_server_all_begins_anew() {
    let Some((mut cluster, here, image)) = warm_server("restarted") else { return };
    cluster.restart().unwrap();
    let cluster = Mutex::new(cluster);
    let observer = Once::new(|| cluster.lock().unwrap().restart().unwrap());
    let loaded = load::load(&image, &here, &Options::default(), &observer).unwrap();
    check_sums(&loaded);
    assert!(loaded.share() > 0.99, "{:#?}", loaded.outcomes);
    assert_eq!(*observer.restarts.lock().unwrap(), 1);
    assert!(cached(&mut session(&here), "one").len() > 100);
}

#[test]
fn an_image_of_elsewhere_is_used_only_by_its_names() {
    let Some((cluster, here, mut image)) = warm_server("elsewhere") else { return };
    image.origin.system_identifier ^= 1;
    for relation in &mut image.relations {
        let is_one = relation.name.as_ref().is_some_and(|name| name.to_string() == "public.one");
        if !is_one {
            relation.name = None;
        }
    }
    let loaded = load(&image, &here, &Options::default());
    let nameless = loaded.outcomes.iter().filter(|outcome| {
        matches!(outcome.problem, Some(Problem::Nameless)) && outcome.pages.wanted == 0
    });
    assert_eq!(nameless.count(), image.relations.len() - 1);
    // Of the same cluster, file numbers serve as well.
    image.origin.system_identifier ^= 1;
    let loaded = load(&image, &here, &Options::default());
    assert!(loaded.outcomes.iter().all(|outcome| outcome.problem.is_none()), "{loaded:#?}");
    assert_eq!(loaded.share(), 1.0);

    image.origin.page_bytes = 4096;
    let error = load::load(&image, &here, &Options::default(), &()).unwrap_err();
    assert!(matches!(error, LoadError::PageBytes { image: 4096, server: 8192 }));
    drop(cluster);
}

#[test]
fn blocks_that_no_relation_has_are_not_asked_for() {
    let Some((cluster, here, mut image)) = warm_server("out of range") else { return };
    for fork in image.relations.iter_mut().flat_map(|relation| &mut relation.forks) {
        let beyond = howdah_warm::image::Page { block: u32::MAX - 1, usage: 5, is_dirty: false };
        fork.pages = fork.pages.iter().chain([beyond]).collect();
    }
    let loaded = load(&image, &here, &Options::default());
    check_sums(&loaded);
    assert!(loaded.outcomes.iter().all(|outcome| outcome.pages.beyond_end >= 1));
    assert!(loaded.share() > 0.99);
    drop(cluster);
}

#[test]
fn a_server_that_ends_while_it_is_dumped_gives_an_error_and_no_image() {
    let Some((mut cluster, here, image)) = warm_server("dump") else { return };
    let mut client = session(&here);
    let server = dump::local_server(&mut client).unwrap();
    drop(client);
    assert!(dump::dump_memory(&server, Some(&image)).is_ok());
    cluster.restart().unwrap();
    assert!(dump::dump_memory(&server, Some(&image)).is_err(), "that process is gone");
    let again = dump::dump(&here, Choice::Memory).unwrap().image;
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
    let look = Options { only_look: true, ..Options::default() };
    for options in [look, Options::default()] {
        let loaded = load(&image, &there, &options);
        check_sums(&loaded);
        assert!(loaded.expected() > 700, "{:?}", loaded.pages());
        assert!(loaded.share() < 0.5, "{:?} {:?}", loaded.residency, loaded.pages());
        assert_eq!(loaded.pages().no_room > 0, !options.only_look);
    }
    // A limit is the user's own wish: what it leaves out is not missing.
    let hottest = Options { limit: Some(10), evict: true, ..Options::default() };
    let loaded = load(&image, &there, &hottest);
    assert_eq!((loaded.expected(), loaded.limited), (10, image.page_count() - 10));
    let look = Options { limit: Some(10), only_look: true, ..Options::default() };
    assert_eq!(load(&image, &there, &look).resident(), 10);
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
        // Garbage where the header of page 7 has its checksum, flags and pointers.
        bytes[7 * 8192..7 * 8192 + 24].fill(0x5a);
        std::fs::write(&file, bytes).unwrap();
        cluster.start().unwrap();
        let loaded = load(&image, &here, &Options::default());
        check_sums(&loaded);
        assert!(matches!(problem(&loaded, "public.one"), Problem::Damaged(_)));
        let one = outcome(&loaded, "public.one").pages;
        assert_eq!((one.failed, one.loaded), (1, one.wanted - 1), "{test}: {one:?}");
        assert!(loaded.share() > 0.99);
    }
}

#[test]
fn session_that_ends_during_the_catalog_lookup_is_replaced() {
    let Some(cluster) = start("lookup", Cluster::builder()) else { return };
    let here = target(&cluster, "postgres");
    session(&here).query("CREATE DATABASE shop").unwrap();
    let shop = target(&cluster, "shop");
    session(&shop).query(SCHEMA).unwrap();
    let image = image(&shop);
    // Sessions of the database start without this catalog, and wait for it with their first query.
    let mut holder = session(&shop);
    holder.query("BEGIN; LOCK TABLE pg_namespace IN ACCESS EXCLUSIVE MODE").unwrap();
    let options = Options { lock_timeout: Duration::from_secs(60), ..Options::default() };
    let loaded = std::thread::scope(|scope| {
        let loaded = scope.spawn(|| load(&image, &here, &options));
        let ended = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                     WHERE application_name = 'howdah warm' AND wait_event_type = 'Lock'";
        let deadline = Instant::now() + Duration::from_secs(60);
        let mut other = session(&here);
        let mut is_waiting = || other.one_value(ended).unwrap().as_deref() != Some("0");
        while !is_waiting() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
        holder.query("ROLLBACK").unwrap();
        assert!(Instant::now() < deadline, "no session waits in the catalogs");
        loaded.join().unwrap()
    });
    check_sums(&loaded);
    assert_eq!(loaded.pages().not_found, 0, "{:#?}", loaded.outcomes);
}
