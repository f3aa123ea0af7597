//! Sessions as they are.

use howdah_collect::{Blocker, Forest, Kind, Privileges, Server, State};
use howdah_lab::Cluster;

use crate::support::{activity_when, run_elsewhere, session, start, target};

#[test]
fn a_session_in_a_transaction_is_told_with_its_statement() {
    let Some(cluster) = start("a_session_in_a_transaction", Cluster::builder()) else { return };
    let target = target(&cluster, "postgres").with_application_name("shop");
    let mut server = Server::connect(&target).unwrap();
    let mut client = session(&target);
    client.query("BEGIN; CREATE TABLE item (id int)").unwrap();
    let pid = client.process_id().unwrap();
    for _ in 0..3 {
        // The text is sent in the first of these readings only, and known in all.
        let activity = server.activity(false).unwrap();
        let mine = activity.backends.iter().find(|backend| backend.pid == pid).unwrap();
        assert_eq!(mine.state, Some(State::IdleInTransaction));
        assert_eq!(mine.kind, Some(Kind::Client));
        assert_eq!(mine.application.as_deref(), Some("shop"));
        assert_eq!(mine.query.as_ref().unwrap().as_str(), "BEGIN; CREATE TABLE item (id int)");
        assert!(mine.transaction_age(activity.taken_us).is_some());
        assert!(mine.is_readable);
    }
    client.query("ROLLBACK").unwrap();
    let idle = |server: &mut Server, texts| {
        let activity = server.activity(texts).unwrap();
        let mine = activity.backends.iter().find(|backend| backend.pid == pid).unwrap().clone();
        (mine.state, mine.query.map(|text| text.as_str().to_owned()))
    };
    assert_eq!(idle(&mut server, false), (Some(State::Idle), None));
    assert_eq!(idle(&mut server, true), (Some(State::Idle), Some("ROLLBACK".to_owned())));
}

#[test]
fn texts_of_another_encoding_are_read_in_theirs_and_cannot_steer_a_terminal() {
    let Some(cluster) = start("texts_of_another_encoding", Cluster::builder()) else { return };
    let postgres = target(&cluster, "postgres");
    session(&postgres)
        .query("CREATE DATABASE old ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
        .unwrap();
    let mut server = Server::connect(&postgres).unwrap();
    let mut client = session(&postgres.with_database("old"));
    client.query("BEGIN; SELECT 'caf\u{e9} \u{1b}]52;c;aGk=\u{7}'").unwrap();
    let pid = client.process_id().unwrap();
    let activity = server.activity(false).unwrap();
    let mine = activity.backends.iter().find(|backend| backend.pid == pid).unwrap();
    assert_eq!(mine.query.as_ref().unwrap().as_str(), "BEGIN; SELECT 'café ␛]52;c;aGk=␇'");
    assert!(!mine.query.as_ref().unwrap().is_exact);
}

#[test]
fn a_lock_chain_is_a_tree_with_its_root_first() {
    let Some(cluster) = start("a_lock_chain", Cluster::builder()) else { return };
    let target = target(&cluster, "postgres");
    let mut root = session(&target);
    root.query("CREATE TABLE item (id int)").unwrap();
    root.query("BEGIN; LOCK item").unwrap();
    let mut server = Server::connect(&target).unwrap();
    let (first, first_ends) = run_elsewhere(&target, "BEGIN; LOCK item; COMMIT");
    activity_when(&mut server, |activity| {
        activity.backends.iter().any(|backend| backend.pid == first && !backend.blockers.is_empty())
    });
    let (second, second_ends) = run_elsewhere(&target, "SELECT * FROM item");
    let activity = activity_when(&mut server, |activity| {
        activity
            .backends
            .iter()
            .any(|backend| backend.pid == second && !backend.blockers.is_empty())
    });
    let forest = Forest::of(&activity);
    let whom = root.process_id().unwrap();
    assert_eq!(forest.nodes[0].who, Blocker::Process(whom));
    assert_eq!(forest.nodes[0].victims, 2);
    assert_eq!(forest.nodes.len(), 3);
    let waits = |pid| activity.backends.iter().find(|backend| backend.pid == pid).unwrap();
    assert_eq!(waits(second).wait.as_ref().unwrap().to_string(), "Lock:relation");
    assert!(waits(second).blocked_for(activity.taken_us).is_some());
    root.query("COMMIT").unwrap();
    first_ends.join().unwrap().unwrap();
    second_ends.join().unwrap().unwrap();
}

#[test]
fn a_role_without_privileges_sees_that_it_does_not_see() {
    let Some(cluster) = start("a_role_without_privileges", Cluster::builder()) else { return };
    let admin = target(&cluster, "postgres");
    let mut client = session(&admin);
    client.query("CREATE ROLE watcher LOGIN").unwrap();
    client.query("BEGIN").unwrap();
    let pid = client.process_id().unwrap();
    let mut server = Server::connect(&admin.with_user("watcher")).unwrap();
    let activity = server.activity(false).unwrap();
    let hidden = activity.backends.iter().find(|backend| backend.pid == pid).unwrap();
    assert!(!hidden.is_readable);
    assert_eq!((hidden.state, &hidden.kind), (None, &None));
    let privileges: Privileges = server.privileges().clone();
    let missing = privileges.missing(server.identity().version);
    assert_eq!(missing[0].remedy, "GRANT pg_monitor TO \"watcher\"");
    client.query("GRANT pg_monitor TO watcher; COMMIT").unwrap();
    client.query("BEGIN").unwrap();
    let mut server = Server::connect(&admin.with_user("watcher")).unwrap();
    let activity = server.activity(false).unwrap();
    let seen = activity.backends.iter().find(|backend| backend.pid == pid).unwrap();
    assert_eq!(seen.state, Some(State::IdleInTransaction));
}
