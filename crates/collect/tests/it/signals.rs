//! Signals reach only their targets.

use howdah_collect::{
    BackendState, MonitorConnection, SignalAction, SignalConnection, SignalOutcome, SignalTarget,
};
use howdah_lab::Cluster;

use crate::support::{run_in_thread, session, start, target, wait_for_activity};

#[test]
fn cancelled_statement_does_not_end_its_session() {
    let Some(cluster) = start("cancelled_statement_leaves_its_session_alive", Cluster::builder())
    else {
        return;
    };
    let target = target(&cluster, "postgres");
    let mut server = MonitorConnection::connect(&target).unwrap();
    let (pid, ends) = run_in_thread(&target, "SELECT pg_sleep(600)");
    let is_it = |backend: &&howdah_collect::BackendActivity| {
        backend.pid == pid && backend.state == Some(BackendState::Active)
    };
    let activity =
        wait_for_activity(&mut server, |activity| activity.backends.iter().any(|b| is_it(&b)));
    let signal_target = SignalTarget::for_statement(activity.backends.iter().find(is_it).unwrap());
    let mut signals = SignalConnection::connect(&target).unwrap();
    // A session that reuses the pid, or another statement of the same session, is not the target.
    let reused = SignalTarget { started_us: signal_target.started_us + 1, ..signal_target };
    assert_eq!(signals.send(SignalAction::Terminate, reused).unwrap(), SignalOutcome::Gone);
    let later = SignalTarget {
        query_started_us: signal_target.query_started_us.map(|us| us + 1),
        ..signal_target
    };
    assert_eq!(signals.send(SignalAction::Cancel, later).unwrap(), SignalOutcome::Gone);
    assert_eq!(signals.send(SignalAction::Cancel, signal_target).unwrap(), SignalOutcome::Sent);
    let error = ends.join().unwrap().unwrap_err();
    assert!(error.contains("canceling statement due to user request"), "{error}");
}

#[test]
fn refusal_carries_the_server_message() {
    let Some(cluster) = start("refusal_carries_the_server_message", Cluster::builder()) else {
        return;
    };
    let admin = target(&cluster, "postgres");
    let mut client = session(&admin);
    client.query("CREATE ROLE watcher LOGIN; GRANT pg_monitor TO watcher").unwrap();
    client.query("BEGIN").unwrap();
    let pid = client.process_id().unwrap();
    let watcher = admin.with_user("watcher");
    let mut server = MonitorConnection::connect(&watcher).unwrap();
    let activity = server.activity(false).unwrap();
    let backend = activity.backends.iter().find(|backend| backend.pid == pid).unwrap();
    let mut signals = SignalConnection::connect(&watcher).unwrap();
    let answer = signals.send(SignalAction::Terminate, SignalTarget::for_session(backend)).unwrap();
    let SignalOutcome::Refused { sqlstate, message } = answer else { panic!("{answer:?}") };
    assert_eq!(sqlstate, "42501");
    assert!(!message.is_empty());
    client.query("COMMIT").unwrap();
}

#[test]
fn session_idle_in_transaction_is_terminated() {
    let Some(cluster) = start("session_idle_in_transaction_is_terminated", Cluster::builder())
    else {
        return;
    };
    let target = target(&cluster, "postgres");
    let mut client = session(&target);
    client.query("BEGIN").unwrap();
    let pid = client.process_id().unwrap();
    let mut server = MonitorConnection::connect(&target).unwrap();
    let activity = server.activity(false).unwrap();
    let backend = activity.backends.iter().find(|backend| backend.pid == pid).unwrap();
    let signal_target = SignalTarget::for_session(backend);
    let mut signals = SignalConnection::connect(&target).unwrap();
    assert_eq!(signals.send(SignalAction::Terminate, signal_target).unwrap(), SignalOutcome::Sent);
    wait_for_activity(&mut server, |activity| {
        activity.backends.iter().all(|backend| backend.pid != pid)
    });
    assert_eq!(signals.send(SignalAction::Terminate, signal_target).unwrap(), SignalOutcome::Gone);
    assert!(client.query("SELECT 1").is_err());
}
