//! Signals reach those they are for, and nobody else.

use howdah_collect::{Action, Server, SignalTarget, Signalled, Signals, State};
use howdah_lab::Cluster;

use crate::support::{activity_when, run_elsewhere, session, start, target};

#[test]
fn a_statement_is_cancelled_and_its_session_lives() {
    let Some(cluster) = start("a_statement_is_cancelled", Cluster::builder()) else { return };
    let target = target(&cluster, "postgres");
    let mut server = Server::connect(&target).unwrap();
    let (pid, ends) = run_elsewhere(&target, "SELECT pg_sleep(600)");
    let is_it = |backend: &&howdah_collect::Backend| {
        backend.pid == pid && backend.state == Some(State::Active)
    };
    let activity =
        activity_when(&mut server, |activity| activity.backends.iter().any(|b| is_it(&b)));
    let suspect = SignalTarget::statement_of(activity.backends.iter().find(is_it).unwrap());
    let mut signals = Signals::connect(&target).unwrap();
    // Another session that got the same pid, another statement of the same session: not meant.
    let reused = SignalTarget { started_us: suspect.started_us + 1, ..suspect };
    assert_eq!(signals.send(Action::Terminate, reused).unwrap(), Signalled::Gone);
    let later =
        SignalTarget { query_started_us: suspect.query_started_us.map(|us| us + 1), ..suspect };
    assert_eq!(signals.send(Action::Cancel, later).unwrap(), Signalled::Gone);
    assert_eq!(signals.send(Action::Cancel, suspect).unwrap(), Signalled::Sent);
    let error = ends.join().unwrap().unwrap_err();
    assert!(error.contains("canceling statement due to user request"), "{error}");
}

#[test]
fn a_refusal_is_told_in_the_server_s_words() {
    let Some(cluster) = start("a_refusal_is_told", Cluster::builder()) else { return };
    let admin = target(&cluster, "postgres");
    let mut client = session(&admin);
    client.query("CREATE ROLE watcher LOGIN; GRANT pg_monitor TO watcher").unwrap();
    client.query("BEGIN").unwrap();
    let pid = client.process_id().unwrap();
    let watcher = admin.with_user("watcher");
    let mut server = Server::connect(&watcher).unwrap();
    let activity = server.activity(false).unwrap();
    let backend = activity.backends.iter().find(|backend| backend.pid == pid).unwrap();
    let mut signals = Signals::connect(&watcher).unwrap();
    let answer = signals.send(Action::Terminate, SignalTarget::session_of(backend)).unwrap();
    let Signalled::Refused { sqlstate, message } = answer else { panic!("{answer:?}") };
    assert_eq!(sqlstate, "42501");
    assert!(!message.is_empty());
    client.query("COMMIT").unwrap();
}

#[test]
fn a_session_that_idles_in_its_transaction_is_terminated() {
    let Some(cluster) = start("a_session_that_idles", Cluster::builder()) else { return };
    let target = target(&cluster, "postgres");
    let mut client = session(&target);
    client.query("BEGIN").unwrap();
    let pid = client.process_id().unwrap();
    let mut server = Server::connect(&target).unwrap();
    let activity = server.activity(false).unwrap();
    let backend = activity.backends.iter().find(|backend| backend.pid == pid).unwrap();
    let suspect = SignalTarget::session_of(backend);
    let mut signals = Signals::connect(&target).unwrap();
    assert_eq!(signals.send(Action::Terminate, suspect).unwrap(), Signalled::Sent);
    activity_when(&mut server, |activity| {
        activity.backends.iter().all(|backend| backend.pid != pid)
    });
    assert_eq!(signals.send(Action::Terminate, suspect).unwrap(), Signalled::Gone);
    assert!(client.query("SELECT 1").is_err());
}
