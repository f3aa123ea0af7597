//! Activity of real sessions.

use howdah_collect::{
    Activity, BackendActivity, BackendState, BackendType, Blocker, BlockingTrees,
    MonitorConnection, Privileges, WaitCounts,
};
use howdah_lab::Cluster;

use crate::support::{run_in_thread, session, start, target, wait_for_activity};

#[test]
fn session_in_transaction_keeps_its_statement() {
    let Some(cluster) = start("session_in_transaction_keeps_its_statement", Cluster::builder())
    else {
        return;
    };
    let target = target(&cluster, "postgres").with_application_name("shop");
    let mut server = MonitorConnection::connect(&target).unwrap();
    let mut client = session(&target);
    client.query("BEGIN; CREATE TABLE item (id int)").unwrap();
    let pid = client.process_id().unwrap();
    for _ in 0..3 {
        // The text is sent only with the first of these samples, and kept for all.
        let activity = server.activity(false).unwrap();
        let mine = activity.backends.iter().find(|backend| backend.pid == pid).unwrap();
        assert_eq!(mine.state, Some(BackendState::IdleInTransaction));
        assert_eq!(mine.kind, Some(BackendType::Client));
        assert_eq!(mine.application.as_deref(), Some("shop"));
        assert_eq!(mine.query.as_ref().unwrap().as_str(), "BEGIN; CREATE TABLE item (id int)");
        assert!(mine.transaction_age(activity.taken_us).is_some());
        assert!(mine.is_readable);
    }
    client.query("ROLLBACK").unwrap();
    let idle = |server: &mut MonitorConnection, texts| {
        let activity = server.activity(texts).unwrap();
        let mine = activity.backends.iter().find(|backend| backend.pid == pid).unwrap().clone();
        (mine.state, mine.query.map(|text| text.as_str().to_owned()))
    };
    assert_eq!(idle(&mut server, false), (Some(BackendState::Idle), None));
    assert_eq!(idle(&mut server, true), (Some(BackendState::Idle), Some("ROLLBACK".to_owned())));
}

#[test]
fn foreign_encodings_are_decoded_and_sanitized() {
    let Some(cluster) = start("foreign_encodings_are_decoded_and_sanitized", Cluster::builder())
    else {
        return;
    };
    let postgres = target(&cluster, "postgres");
    session(&postgres)
        .query("CREATE DATABASE old ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
        .unwrap();
    let mut server = MonitorConnection::connect(&postgres).unwrap();
    let mut client = session(&postgres.with_database("old"));
    client.query("BEGIN; SELECT 'caf\u{e9} \u{1b}]52;c;aGk=\u{7}'").unwrap();
    let pid = client.process_id().unwrap();
    let activity = server.activity(false).unwrap();
    let mine = activity.backends.iter().find(|backend| backend.pid == pid).unwrap();
    assert_eq!(mine.query.as_ref().unwrap().as_str(), "BEGIN; SELECT 'café ␛]52;c;aGk=␇'");
    assert!(!mine.query.as_ref().unwrap().is_exact);
    // Views with texts of sessions can be read, whatever bytes they contain.
    client.query("SELECT txid_current(), 'caf\u{e9} \u{1b}[2J'").unwrap();
    let texts: Vec<String> = howdah_collect::VIEWS
        .iter()
        .filter(|view| ["horizon", "waiting"].contains(&view.name))
        .flat_map(|view| server.read(view).unwrap().unwrap().rows.to_vec())
        .flat_map(|row| {
            row.iter().filter_map(|cell| cell.text().map(str::to_owned)).collect::<Vec<_>>()
        })
        .collect();
    assert!(texts.iter().any(|text| text.contains("caf\u{fffd} ␛[2J")), "{texts:?}");
}

#[test]
fn lock_chain_becomes_tree_with_root_first() {
    let Some(cluster) = start("lock_chain_becomes_tree_with_root_first", Cluster::builder()) else {
        return;
    };
    let target = target(&cluster, "postgres");
    let mut root = session(&target);
    root.query("CREATE TABLE item (id int)").unwrap();
    root.query("BEGIN; LOCK item").unwrap();
    let mut server = MonitorConnection::connect(&target).unwrap();
    let (first, first_ends) = run_in_thread(&target, "BEGIN; LOCK item; COMMIT");
    wait_for_activity(&mut server, |activity| {
        activity.backends.iter().any(|backend| backend.pid == first && !backend.blockers.is_empty())
    });
    let (second, second_ends) = run_in_thread(&target, "SELECT * FROM item");
    let activity = wait_for_activity(&mut server, |activity| {
        activity
            .backends
            .iter()
            .any(|backend| backend.pid == second && !backend.blockers.is_empty())
    });
    let trees = BlockingTrees::from_activity(&activity);
    let whom = root.process_id().unwrap();
    assert_eq!(trees.nodes[0].process, Blocker::Process(whom));
    assert_eq!(trees.nodes[0].victims, 2);
    assert_eq!(trees.nodes.len(), 3);
    let waits = |pid| activity.backends.iter().find(|backend| backend.pid == pid).unwrap();
    assert_eq!(waits(second).wait.as_ref().unwrap().to_string(), "Lock:relation");
    assert!(waits(second).blocked_for(activity.taken_us).is_some());
    root.query("COMMIT").unwrap();
    first_ends.join().unwrap().unwrap();
    second_ends.join().unwrap().unwrap();
}

#[test]
fn unprivileged_role_gets_unreadable_sessions_and_remedy() {
    let Some(cluster) =
        start("unprivileged_role_gets_unreadable_sessions_and_remedy", Cluster::builder())
    else {
        return;
    };
    let admin = target(&cluster, "postgres");
    let mut client = session(&admin);
    client.query("CREATE ROLE watcher LOGIN").unwrap();
    client.query("BEGIN").unwrap();
    let pid = client.process_id().unwrap();
    let mut server = MonitorConnection::connect(&admin.with_user("watcher")).unwrap();
    // Start times are hidden, so sessions cannot be recognized from one sample to the next.
    for _ in 0..3 {
        let activity = server.activity(false).unwrap();
        let hidden = activity.backends.iter().find(|backend| backend.pid == pid).unwrap();
        assert!(!hidden.is_readable);
        assert_eq!((hidden.state, &hidden.kind, &hidden.query), (None, &None, &None));
        assert_eq!(hidden.database.as_deref(), Some("postgres"));
        assert_eq!(hidden.user.as_deref(), Some("postgres"));
    }
    let privileges: Privileges = server.privileges().clone();
    let missing = privileges.missing(server.info().version);
    assert_eq!(missing[0].remedy, "GRANT pg_monitor TO \"watcher\"");
    client.query("GRANT pg_monitor TO watcher; COMMIT").unwrap();
    client.query("BEGIN").unwrap();
    let mut server = MonitorConnection::connect(&admin.with_user("watcher")).unwrap();
    let activity = server.activity(false).unwrap();
    let seen = activity.backends.iter().find(|backend| backend.pid == pid).unwrap();
    assert_eq!(seen.state, Some(BackendState::IdleInTransaction));
}

#[test]
fn server_side_wait_counts_match_activity() {
    for major in [14, 18] {
        let how = Cluster::builder().major(major);
        let Some(cluster) = start("server_side_wait_counts_match_activity", how) else { continue };
        let target = target(&cluster, "postgres");
        let mut server = MonitorConnection::connect(&target).unwrap();
        let sleepers: Vec<_> =
            (0..3).map(|_| run_in_thread(&target, "SELECT pg_sleep(600)")).collect();
        let asleep = |backend: &&BackendActivity| {
            backend.wait.as_ref().is_some_and(|wait| &*wait.event == "PgSleep")
        };
        let activity = wait_for_activity(&mut server, |activity| {
            activity.backends.iter().filter(asleep).count() == 3
        });
        assert_eq!(server.waits().unwrap(), WaitCounts::from_activity(&activity));
        let served = server.info().backend;
        assert!(served.pid > 0 && served.started_us >= server.info().started_us, "{served:?}");
        let mut client = session(&target);
        client
            .query(
                "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'PgSleep'",
            )
            .unwrap();
        for (_, ends) in sleepers {
            assert!(ends.join().unwrap().is_err());
        }
    }
}

/// The given sessions of a sample.
fn only(activity: Activity, pids: &[i32]) -> Vec<BackendActivity> {
    activity.backends.into_iter().filter(|backend| pids.contains(&backend.pid)).collect()
}

#[test]
fn delta_and_full_samples_agree_on_every_major() {
    const NAME: &str = r#"a "b", (c\d)"#;
    for major in 14..=18 {
        let how = Cluster::builder().major(major).setting("autovacuum", "off");
        let Some(cluster) = start("delta_and_full_samples_agree_on_every_major", how) else {
            continue;
        };
        let admin = target(&cluster, "postgres");
        let mut client = session(&admin);
        let quoted = NAME.replace('"', "\"\"");
        client.query(&format!("CREATE ROLE \"{quoted}\" LOGIN")).unwrap();
        client.query(&format!("CREATE DATABASE \"{quoted}\" OWNER \"{quoted}\"")).unwrap();
        client.query("CREATE TABLE item (id int)").unwrap();
        let strange = admin.with_user(NAME).with_database(NAME).with_application_name(NAME);
        let mut server = MonitorConnection::connect(&admin).unwrap();
        server.request_full_texts();
        server.activity(true).unwrap();

        // Start one session of each kind; none of them changes afterwards.
        let mut failed = session(&admin.with_application_name("shop"));
        failed.query("BEGIN; SELECT txid_current()").unwrap();
        failed.query("SELECT nonsense").unwrap_err();
        let mut idle = session(&strange);
        idle.query("SELECT '(,\"\\'").unwrap();
        let mut holds = session(&admin.with_application_name("shop"));
        holds.query("BEGIN; LOCK item").unwrap();
        let (waits, waits_end) = run_in_thread(&admin, "SELECT * FROM item");
        let (sleeps, sleeps_end) = run_in_thread(&strange, "SELECT pg_sleep(600)");
        let own = [&client, &failed, &idle, &holds].map(|client| client.process_id().unwrap());
        let pids = [&own[..], &[waits, sleeps]].concat();
        wait_for_activity(&mut server, |activity| {
            let is_there = |pid: i32, word: &str| {
                let mut backends = activity.backends.iter().filter(|backend| backend.pid == pid);
                backends.any(|it| it.wait.as_ref().is_some_and(|wait| wait.to_string() == word))
            };
            is_there(waits, "Lock:relation") && is_there(sleeps, "Timeout:PgSleep")
        });
        // Wait until the idle sessions have idled long enough to be sent by process id alone.
        let pieces = loop {
            server.activity(true).unwrap();
            let activity = server.activity(true).unwrap();
            let now_us = activity.taken_us;
            let backends = only(activity, &pids);
            if backends.iter().all(|backend| backend.duration(now_us).unwrap() > 0.5) {
                break backends;
            }
        };
        let mut other = MonitorConnection::connect(&admin).unwrap();
        other.request_full_texts();
        let whole = only(other.activity(true).unwrap(), &pids);
        assert_eq!(pieces, whole, "{major}");
        assert_eq!(whole.len(), pids.len(), "{major}");
        let mine = whole.iter().find(|backend| backend.pid == own[2]).unwrap();
        assert_eq!(mine.user.as_deref(), Some(NAME));
        assert_eq!(mine.database.as_deref(), Some(NAME));
        assert_eq!(mine.application.as_deref(), Some(NAME));
        assert_eq!(mine.query.as_ref().unwrap().as_str(), "SELECT '(,\"\\'");
        holds.query("COMMIT").unwrap();
        client.query(&format!("SELECT pg_cancel_backend({sleeps})")).unwrap();
        waits_end.join().unwrap().unwrap();
        sleeps_end.join().unwrap().unwrap_err();
    }
}

#[test]
fn unchanged_fields_are_kept_without_resending() {
    let Some(cluster) = start("unchanged_fields_are_kept_without_resending", Cluster::builder())
    else {
        return;
    };
    let target = target(&cluster, "postgres").with_application_name("shop");
    let mut server = MonitorConnection::connect(&target).unwrap();
    let mut client = session(&target);
    let pid = client.process_id().unwrap();
    let mine = |server: &mut MonitorConnection| {
        let activity = server.activity(false).unwrap();
        activity.backends.into_iter().find(|backend| backend.pid == pid).unwrap()
    };
    client.query("SELECT 1").unwrap();
    let first = mine(&mut server);
    // Long enough that the server no longer sends its fields.
    let idle = loop {
        let seen = mine(&mut server);
        assert_eq!(
            (seen.state, seen.user.as_deref()),
            (Some(BackendState::Idle), Some("postgres"))
        );
        let activity = server.activity(false).unwrap();
        if seen.duration(activity.taken_us).unwrap() > 0.5 {
            break mine(&mut server);
        }
    };
    assert_eq!(
        (idle.key(), &idle.database, &idle.kind),
        (first.key(), &first.database, &first.kind)
    );
    assert_eq!(idle.application.as_deref(), Some("shop"));
    // It becomes active again.
    client.query("SET application_name = 'cart'; BEGIN").unwrap();
    let awake = mine(&mut server);
    assert_eq!(awake.state, Some(BackendState::IdleInTransaction));
    assert_eq!(awake.application.as_deref(), Some("cart"));
    assert_eq!((awake.key(), awake.user.as_deref()), (first.key(), Some("postgres")));
    // A later session is known from its first sample on; one that ended is gone.
    let later = session(&target.with_application_name("later"));
    let later_pid = later.process_id().unwrap();
    let activity = server.activity(false).unwrap();
    let found = activity.backends.iter().find(|backend| backend.pid == later_pid).unwrap();
    assert_eq!(found.database.as_deref(), Some("postgres"));
    drop(later);
    wait_for_activity(&mut server, |activity| {
        activity.backends.iter().all(|backend| backend.pid != later_pid)
    });
}

#[test]
fn long_text_is_complete_after_one_second() {
    let Some(cluster) = start("long_text_is_complete_after_one_second", Cluster::builder()) else {
        return;
    };
    let target = target(&cluster, "postgres");
    let mut server = MonitorConnection::connect(&target).unwrap();
    server.activity(false).unwrap();
    let sql = format!("SELECT pg_sleep(600) /* {} */", "x".repeat(500));
    let mut client = session(&target);
    let pid = client.process_id().unwrap();
    let cancel = client.cancel_handle().unwrap();
    let long = sql.clone();
    let run = std::thread::spawn(move || client.query(&long).is_err());
    let text = |activity: &Activity| {
        let backend = activity.backends.iter().find(|backend| backend.pid == pid)?;
        Some((backend.duration(activity.taken_us)?, backend.query.clone()?))
    };
    let is_it = |activity: &Activity| {
        text(activity).is_some_and(|(_, query)| query.as_str().starts_with("SELECT pg_sleep"))
    };
    let first = wait_for_activity(&mut server, is_it);
    let (lasted, beginning) = text(&first).unwrap();
    if lasted < 1.0 {
        assert!(beginning.is_truncated);
        assert_eq!(beginning.as_str(), &sql[..200]);
    }
    let whole = wait_for_activity(&mut server, |activity| {
        text(activity).is_some_and(|(lasted, _)| lasted > 1.5)
    });
    assert_eq!(text(&whole).unwrap().1.as_str(), sql);
    assert!(!text(&whole).unwrap().1.is_truncated);
    let mut other = MonitorConnection::connect(&target).unwrap();
    other.request_full_texts();
    assert_eq!(text(&other.activity(false).unwrap()).unwrap().1.as_str(), sql);
    cancel.cancel().unwrap();
    assert!(run.join().unwrap());
}
