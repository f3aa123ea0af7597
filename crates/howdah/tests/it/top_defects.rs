//! Known defects of other PostgreSQL monitors, each tested not to occur in `howdah top`. The
//! numbers are those of docs/src/reference/top-defects.md.

use std::time::Duration;

use howdah_collect::{
    Activity, BackendActivity, BackendState, BackendType, GenericPlanError, MonitorConnection,
    SignalAction, SignalOutcome, SignalTarget, SqlText, ViewCell, explain_generic,
};
use howdah_connect::{Client, ConnectTarget};
use howdah_lab::{Cluster, skip_without_postgres, wait_for, wait_until};
use howdah_top::{
    RowFilter, ScreenKind, ScreenTable, ServerSnapshot, interactive,
    signal_plan::{SignalPlan, SignalPolicy},
    table::{RowId, TableOptions},
};
use serde_json::Value;

use crate::{
    howdah, text,
    tmux::Tmux,
    top_screen::{session, target},
};

/// Maximum time for the server to react.
const TIMEOUT: Duration = Duration::from_secs(60);

fn start_cluster(test: &str) -> Option<Cluster> {
    skip_without_postgres(test, Cluster::builder().start())
}

/// Runs a statement in a new session, and returns the session once the statement runs and waits.
fn start_statement(
    target: &ConnectTarget,
    server: &mut MonitorConnection,
    sql: &str,
) -> (BackendActivity, Activity) {
    let mut client = Client::connect(target).unwrap();
    let pid = client.process_id().unwrap();
    let sql = sql.to_owned();
    std::thread::spawn(move || client.query(&sql).is_ok());
    wait_for("the statement to run", TIMEOUT, || {
        let activity = server.activity(false).unwrap();
        let is_running = |backend: &&BackendActivity| {
            backend.pid == pid
                && backend.state == Some(BackendState::Active)
                && backend.wait.is_some()
        };
        let backend = activity.backends.iter().find(is_running).cloned()?;
        Some((backend, activity))
    })
}

/// Waits until a session runs no statement.
fn wait_until_not_active(server: &mut MonitorConnection, pid: i32) {
    wait_until("the statement to end", TIMEOUT, || {
        let backends = server.activity(false).unwrap().backends;
        !backends
            .iter()
            .any(|backend| backend.pid == pid && backend.state == Some(BackendState::Active))
    });
}

/// A snapshot of sessions, as the sampler creates them.
fn take_snapshot(server: &mut MonitorConnection, activity: Activity) -> ServerSnapshot {
    ServerSnapshot::from_activity(server.info().clone(), server.overview().unwrap(), activity)
}

/// The connection URI of a server for another role.
fn uri_for_role(cluster: &Cluster, role: &str) -> String {
    cluster.uri("postgres").replace("postgres@", &format!("{role}@"))
}

/// Runs `howdah top ARGS` without a terminal, and returns its stdout.
fn run_top(args: &[&str]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let output = howdah(folder.path()).arg("top").args(args).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

fn top_rows(args: &[&str]) -> Vec<Value> {
    let document: Value = serde_json::from_str(&run_top(args)).unwrap();
    document["samples"][0]["rows"].as_array().unwrap().clone()
}

#[test]
fn defect_01_explain_runs_no_second_statement_at_any_length() {
    let Some(cluster) = start_cluster("defect 1") else { return };
    let target = target(&cluster, "postgres");
    let runs = |text: &str| BackendActivity {
        database: Some("postgres".into()),
        query: Some(SqlText::new(text.as_bytes(), None, Some(1 << 20))),
        ..BackendActivity::default()
    };
    let smuggled = explain_generic(&target, &runs("select 1; commit; create table pwned()"));
    assert!(matches!(smuggled, Err(GenericPlanError::Refused { .. })), "{smuggled:?}");
    let mut client = session(&cluster);
    assert_eq!(client.one_value("SELECT to_regclass('pwned')").unwrap(), None);
    let long = format!("select 1 where 1 in ({})", vec!["1"; 40_000].join(", "));
    explain_generic(&target, &runs(&long)).unwrap();
}

#[test]
fn defect_02_kill_slower_spares_superusers_and_young_queries() {
    let Some(cluster) = start_cluster("defect 2") else { return };
    let target = target(&cluster, "postgres");
    session(&cluster).query("CREATE ROLE app LOGIN; CREATE ROLE lazy LOGIN").unwrap();
    let mut server = MonitorConnection::connect(&target).unwrap();
    let (slow, _) = start_statement(&target.with_user("app"), &mut server, "SELECT pg_sleep(600)");
    let (spared, _) = start_statement(&target, &mut server, "SELECT pg_sleep(601)");
    let mut idle = Client::connect(&target.with_user("lazy")).unwrap();
    idle.query("BEGIN").unwrap();
    let mut activity = server.activity(false).unwrap();
    // Pretends that the sample was taken 90 seconds later.
    activity.taken_us += 90_000_000;
    let snapshot = take_snapshot(&mut server, activity);
    let plan = SignalPlan::for_slow(&snapshot, 1.0, SignalAction::Cancel, SignalPolicy::default());
    // The superuser is spared, an idle transaction cannot be cancelled, and 1 s is below the
    // minimum.
    let listed: Vec<i32> = plan.signals.iter().map(|planned| planned.target.pid).collect();
    assert_eq!(listed, [slow.pid]);
    assert!(plan.spared.iter().any(|excluded| excluded.session.contains(&spared.pid.to_string())));
    let suspects: Vec<SignalTarget> = plan.signals.iter().map(|planned| planned.target).collect();
    let results = interactive::send_signals(&target, plan.action, &suspects);
    assert_eq!(results, [(suspects[0], Ok(SignalOutcome::Sent))]);
    wait_until_not_active(&mut server, slow.pid);
    let activity = server.activity(false).unwrap();
    let still_runs = |pid| activity.backends.iter().any(|backend| backend.pid == pid);
    assert!(still_runs(spared.pid) && still_runs(idle.process_id().unwrap()));
    // The minimum threshold is 30 s.
    let mut young = server.activity(false).unwrap();
    young.taken_us += 20_000_000;
    let snapshot = take_snapshot(&mut server, young);
    let policy = SignalPolicy { with_superusers: true };
    assert!(
        SignalPlan::for_slow(&snapshot, 1.0, SignalAction::Terminate, policy).signals.is_empty()
    );
}

#[test]
fn defect_03_refused_signal_is_reported_as_refused() {
    let Some(cluster) = start_cluster("defect 3") else { return };
    let target = target(&cluster, "postgres");
    session(&cluster).query("CREATE ROLE app LOGIN; CREATE ROLE weak LOGIN").unwrap();
    let mut server = MonitorConnection::connect(&target).unwrap();
    let (backend, _) =
        start_statement(&target.with_user("app"), &mut server, "SELECT pg_sleep(600)");
    let suspect = SignalTarget::for_statement(&backend);
    let refused =
        interactive::send_signals(&target.with_user("weak"), SignalAction::Cancel, &[suspect]);
    let [(_, Ok(SignalOutcome::Refused { sqlstate, .. }))] = &refused[..] else {
        // A role that cannot see the session gets the result `Gone`.
        assert_eq!(refused, [(suspect, Ok(SignalOutcome::Gone))]);
        return;
    };
    assert_eq!(sqlstate, "42501");
}

#[test]
fn defect_04_columns_are_shown_unless_an_option_hides_them() {
    let Some(cluster) = start_cluster("defect 4") else { return };
    let uri = cluster.uri("postgres");
    let args = ["--view", "databases", "--once", "--format", "json", "--interval", "200ms"];
    let shown = top_rows(&[&[uri.as_str()], &args[..]].concat());
    for column in ["temp_files", "temp_bytes", "backends", "conflicts", "frozen_age"] {
        assert!(shown.iter().all(|row| row.get(column).is_some()), "{column}");
    }
    // Without --idle, idle sessions are hidden.
    let idle = session(&cluster);
    let pid = idle.process_id().unwrap();
    let has = |more: &[&str]| {
        let args = [&[uri.as_str(), "--once", "--format", "json"], more].concat();
        top_rows(&args).iter().any(|row| row["pid"] == pid)
    };
    assert!(!has(&[]) && has(&["--idle"]));
}

#[test]
fn defect_05_aborted_transaction_is_counted_as_failed() {
    let Some(cluster) = start_cluster("defect 5") else { return };
    let uri = cluster.uri("postgres");
    let mut client = session(&cluster);
    client.query("BEGIN").unwrap();
    client.query("SELECT nonsense").unwrap_err();
    let shown = top_rows(&[&uri, "--once", "--format", "json"]);
    assert!(shown.iter().any(|row| row["state"] == "idle in transaction (aborted)"), "{shown:?}");
    let folder = tempfile::tempdir().unwrap();
    let args = ["top", uri.as_str(), "--interval", "300ms"];
    let Some(tmux) = Tmux::start("defect 5", folder.path(), (110, 20), &[], &args) else { return };
    tmux.wait_for_text("in tx 0  failed tx 1");
}

#[test]
fn defect_06_logical_replication_workers_are_recognized_in_all_majors() {
    for major in [15, 18] {
        let how = Cluster::builder().major(major).setting("wal_level", "logical");
        let Some(cluster) = skip_without_postgres("defect 6", how.start()) else { continue };
        let target = target(&cluster, "postgres");
        let mut client = session(&cluster);
        for sql in [
            "CREATE TABLE item (id int PRIMARY KEY)",
            "CREATE PUBLICATION items FOR TABLE item",
            "SELECT pg_create_logical_replication_slot('items', 'pgoutput')",
            "CREATE DATABASE copy",
        ] {
            client.query(sql).unwrap();
        }
        let mut copy = Client::connect(&target.with_database("copy")).unwrap();
        copy.query("CREATE TABLE item (id int PRIMARY KEY)").unwrap();
        let subscribe = format!(
            "CREATE SUBSCRIPTION items CONNECTION '{}' PUBLICATION items \
             WITH (create_slot = false, slot_name = items)",
            cluster.uri("postgres")
        );
        copy.query(&subscribe).unwrap();
        let mut server = MonitorConnection::connect(&target).unwrap();
        let word = wait_for("a replication worker", TIMEOUT, || {
            let activity = server.activity(false).unwrap();
            let kinds = activity.backends.iter().filter_map(|backend| backend.kind.clone());
            // The launcher has the same prefix.
            let mut workers = kinds.filter(BackendType::is_logical_replication);
            let worker = workers.find(|kind| kind.as_str().ends_with("worker"))?;
            Some(worker.as_str().to_owned())
        });
        let expected = if major < 17 {
            "logical replication worker"
        } else {
            "logical replication apply worker"
        };
        assert!(word == expected || word.ends_with("tablesync worker"), "{major} {word}");
        copy.query("ALTER SUBSCRIPTION items DISABLE").unwrap();
    }
}

#[test]
fn defect_07_unprivileged_role_sees_rows_and_required_grant() {
    let Some(cluster) = start_cluster("defect 7") else { return };
    let mut client = session(&cluster);
    client.query("CREATE ROLE plain LOGIN").unwrap();
    client.query("BEGIN").unwrap();
    let uri = uri_for_role(&cluster, "plain");
    let shown = top_rows(&[&uri, "--once", "--format", "json"]);
    let hidden = shown.iter().find(|row| row["pid"] == client.process_id().unwrap());
    let hidden = hidden.unwrap().as_object().unwrap();
    // Columns that the role may not read are left out, instead of empty or zero.
    assert!(!hidden.contains_key("state") && !hidden.contains_key("query"), "{hidden:?}");
    let folder = tempfile::tempdir().unwrap();
    let args = ["top", uri.as_str(), "--interval", "300ms"];
    let Some(tmux) = Tmux::start("defect 7", folder.path(), (110, 24), &[], &args) else { return };
    let screen = tmux.wait_for_text("this role lacks privileges: press g");
    assert!(screen.contains("n/a"), "{screen}");
    tmux.press(&["g"]);
    tmux.wait_for_text("GRANT pg_monitor TO \"plain\";");
}

#[test]
fn defect_08_unprivileged_role_can_run_top_on_every_major() {
    for major in howdah_lab::MAJORS {
        let how = Cluster::builder().major(major);
        let Some(cluster) = skip_without_postgres("defect 8", how.start()) else { continue };
        session(&cluster).query("CREATE ROLE plain LOGIN").unwrap();
        let uri = uri_for_role(&cluster, "plain");
        for view in ["activity", "blocking", "databases", "wal"] {
            run_top(&[&uri, "--once", "--interval", "200ms", "--view", view]);
        }
    }
}

#[test]
fn defect_09_refused_signal_does_not_stop_the_others() {
    let Some(cluster) = start_cluster("defect 9") else { return };
    let admin = target(&cluster, "postgres");
    let mut client = session(&cluster);
    for sql in [
        "CREATE ROLE app LOGIN",
        "CREATE ROLE killer LOGIN",
        "GRANT pg_signal_backend, pg_monitor TO killer",
    ] {
        client.query(sql).unwrap();
    }
    let killer = admin.with_user("killer");
    let mut server = MonitorConnection::connect(&killer).unwrap();
    let (superuser_s, _) = start_statement(&admin, &mut server, "SELECT pg_sleep(600)");
    let (app_s, _) = start_statement(&admin.with_user("app"), &mut server, "SELECT pg_sleep(600)");
    let gone = SignalTarget { pid: i32::MAX, started_us: 1, query_started_us: None };
    let suspects =
        [SignalTarget::for_statement(&superuser_s), gone, SignalTarget::for_statement(&app_s)];
    let results: Vec<_> = interactive::send_signals(&killer, SignalAction::Cancel, &suspects)
        .into_iter()
        .map(|(_, result)| result.unwrap())
        .collect();
    assert!(matches!(&results[0], SignalOutcome::Refused { sqlstate, .. } if sqlstate == "42501"));
    assert_eq!(results[1..], [SignalOutcome::Gone, SignalOutcome::Sent]);
}

#[test]
fn defect_10_recording_is_appended_and_survives_failing_views() {
    let Some(cluster) = start_cluster("defect 10") else { return };
    let folder = tempfile::tempdir().unwrap();
    let uri = cluster.uri("postgres");
    // pg_stat_statements is not installed: each reading of that view fails.
    for _ in 0..2 {
        let args =
            ["top", uri.as_str(), "--count", "14", "--interval", "100ms", "--record", "r.top"];
        let output = howdah(folder.path()).args(args).args(["--format", "csv"]).output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
    }
    let replay = ["top", "--replay", "r.top", "--format", "ndjson", "--idle"];
    let output = howdah(folder.path()).args(replay).output().unwrap();
    assert!(text(&output.stdout).lines().count() >= 28, "{}", text(&output.stdout));
    // The archiver's backlog is read without pg_ls_dir, which pg_monitor may not call.
    session(&cluster).query("CREATE ROLE monitor LOGIN; GRANT pg_monitor TO monitor").unwrap();
    let uri = uri_for_role(&cluster, "monitor");
    run_top(&[&uri, "--once", "--interval", "200ms", "--view", "wal"]);
}

#[test]
fn defect_11_only_blocking_sessions_are_blockers() {
    let Some(cluster) = start_cluster("defect 11") else { return };
    let postgres = target(&cluster, "postgres");
    session(&cluster).query("CREATE DATABASE other").unwrap();
    let other = postgres.with_database("other");
    let mut holder = Client::connect(&other).unwrap();
    holder.query("CREATE TABLE item (id int)").unwrap();
    holder.query("BEGIN; LOCK item IN SHARE MODE; SELECT pg_advisory_lock(42)").unwrap();
    // This session has a lock on the same table, but blocks no other session.
    let mut sharer = Client::connect(&other).unwrap();
    sharer.query("BEGIN; SELECT * FROM item").unwrap();
    let mut server = MonitorConnection::connect(&postgres).unwrap();
    let (writes, _) = start_statement(&other, &mut server, "INSERT INTO item VALUES (1)");
    let (advised, _) = start_statement(&other, &mut server, "SELECT pg_advisory_lock(42)");
    let activity = server.activity(false).unwrap();
    let snapshot = take_snapshot(&mut server, activity);
    let table =
        ScreenTable::new(ScreenKind::Blocking, &snapshot, &TableOptions::default()).unwrap();
    let pids: Vec<i32> = table
        .rows
        .iter()
        .filter_map(|row| match row.key {
            RowId::Session(pid, _) => Some(pid),
            RowId::Cells(_) => None,
        })
        .collect();
    assert_eq!(pids[0], holder.process_id().unwrap());
    assert!(pids.contains(&writes.pid) && pids.contains(&advised.pid), "{pids:?}");
    assert!(!pids.contains(&sharer.process_id().unwrap()), "{pids:?}");
    // The table is in another database: its oid is shown, not the name of a table in this one.
    let uri = cluster.uri("postgres");
    let waiting =
        top_rows(&[&uri, "--view", "waiting", "--once", "--interval", "200ms", "--format", "json"]);
    let on: Vec<&str> = waiting.iter().filter_map(|row| row["object"].as_str()).collect();
    assert!(on.iter().any(|on| on.starts_with("other:")), "{on:?}");
    assert!(on.iter().any(|on| on.starts_with("advisory ")), "{on:?}");
    holder.query("COMMIT; SELECT pg_advisory_unlock_all()").unwrap();
}

#[test]
fn defect_12_control_characters_in_statements_are_escaped() {
    let Some(cluster) = start_cluster("defect 12") else { return };
    let uri = cluster.uri("postgres");
    let mut client = session(&cluster);
    client.query("SET application_name = E'shop\\x1b[2J'").unwrap();
    client.query("BEGIN; SELECT '\u{1b}]52;c;aGk=\u{7} \u{9b}2J \u{202e}reversed'").unwrap();
    let sleeper = target(&cluster, "postgres");
    let mut server = MonitorConnection::connect(&sleeper).unwrap();
    start_statement(&sleeper, &mut server, "SELECT pg_sleep(600), '\u{1b}[31m\u{9}slow\r\n\u{85}'");
    let folder = tempfile::tempdir().unwrap();
    for (format, log) in
        [("table", "pgtop"), ("csv", "json"), ("ndjson", "pgtop"), ("json", "json")]
    {
        let output = howdah(folder.path())
            .args(["top", &uri, "--once", "--format", format, "--slow-threshold", "1ms"])
            .args(["--slow-log", "slow.log", "--slow-log-format", log, "--record", "r.top"])
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        let shown = text(&output.stdout) + &text(&output.stderr);
        let logged = std::fs::read_to_string(folder.path().join("slow.log")).unwrap();
        for (what, text) in [(format, shown), (log, logged)] {
            let steers = |c: char| {
                c.is_control() && !matches!(c, '\n' | '\r' | '\t')
                    || ('\u{202a}'..='\u{202e}').contains(&c)
            };
            assert!(!text.contains(steers), "{what}: {text:?}");
            assert!(text.contains("slow"), "{what}: {text:?}");
        }
    }
    let args = ["top", uri.as_str(), "--interval", "300ms"];
    let Some(tmux) = Tmux::start("defect 12", folder.path(), (140, 20), &[], &args) else { return };
    tmux.wait_for_text("␛]52;c;aGk=␇");
}

#[test]
fn defect_13_signals_and_keys_work_while_sampling_hangs() {
    let Some(cluster) = start_cluster("defect 13") else { return };
    let admin = target(&cluster, "postgres");
    session(&cluster).query("CREATE ROLE app LOGIN").unwrap();
    let mut server = MonitorConnection::connect(&admin).unwrap();
    let (backend, _) =
        start_statement(&admin.with_user("app"), &mut server, "SELECT pg_sleep(600)");
    let folder = tempfile::tempdir().unwrap();
    let uri = cluster.uri("postgres");
    let args = ["top", uri.as_str(), "--interval", "300ms"];
    let Some(tmux) = Tmux::start("defect 13", folder.path(), (120, 24), &[], &args) else { return };
    tmux.wait_for_text("pg_sleep");
    // Stops the backend of the sampling connection.
    let reader = "SELECT pid FROM pg_stat_activity WHERE application_name = 'howdah top' LIMIT 1";
    let reader = session(&cluster).one_value(reader).unwrap().unwrap();
    let reader = rustix::process::Pid::from_raw(reader.parse().unwrap()).unwrap();
    rustix::process::kill_process(reader, rustix::process::Signal::STOP).unwrap();
    tmux.press(&["?"]);
    tmux.wait_for_text("Keys");
    tmux.press(&["?"]);
    tmux.press(&["Home", "c", "y"]);
    tmux.wait_for_text("1 of 1 signalled");
    rustix::process::kill_process(reader, rustix::process::Signal::CONT).unwrap();
    wait_until_not_active(&mut server, backend.pid);
}

#[test]
fn defect_14_numeric_column_sorts_numerically_with_empty_cells() {
    let session = |pid: i32, seconds: Option<i64>| BackendActivity {
        pid,
        started_us: 1,
        kind: Some(BackendType::Client),
        state: Some(BackendState::Active),
        query_started_us: seconds.map(|seconds| 1_000_000_000 - seconds * 1_000_000),
        is_readable: true,
        ..BackendActivity::default()
    };
    let backends =
        vec![session(1, None), session(2, Some(9)), session(3, Some(100)), session(4, Some(20))];
    let activity = Activity { taken_us: 1_000_000_000, backends };
    let snapshot = ServerSnapshot::from_activity(Default::default(), Default::default(), activity);
    let choice = TableOptions {
        order: Some("time"),
        filter: RowFilter::default(),
        ..TableOptions::default()
    };
    let table = ScreenTable::new(ScreenKind::Activity, &snapshot, &choice).unwrap();
    let pids: Vec<&ViewCell> = table.rows.iter().map(|row| &row.cells[0]).collect();
    // As text, 9 would sort above 20 and 100. Empty cells come last in both orders.
    assert_eq!(pids, [&3_i64.into(), &4_i64.into(), &2_i64.into(), &1_i64.into()]);
}

#[test]
fn defect_15_multiple_servers_wait_chart_dry_run_and_read_only() {
    let Some(first) = start_cluster("defect 15") else { return };
    let Some(second) = start_cluster("defect 15") else { return };
    let (one, two) = (first.uri("postgres"), second.uri("postgres"));
    let document = run_top(&[&one, &two, "--once", "--format", "json", "--idle"]);
    let document: Value = serde_json::from_str(&document).unwrap();
    let servers =
        document["samples"].as_array().unwrap().iter().map(|sample| sample["server"].to_string());
    assert_eq!(servers.collect::<std::collections::BTreeSet<_>>().len(), 2);
    let folder = tempfile::tempdir().unwrap();
    let args = ["top", one.as_str(), two.as_str(), "--interval", "300ms", "--read-only", "--idle"];
    let Some(tmux) = Tmux::start("defect 15", folder.path(), (120, 30), &[], &args) else { return };
    tmux.wait_for_text("read only");
    tmux.press(&["K"]);
    tmux.press(&["3"]);
    let waits = tmux.wait_for_text("average active sessions");
    assert!(!waits.contains("Cancel all slower"), "{waits}");
    drop(tmux);
    let args = ["top", one.as_str(), "--interval", "300ms"];
    let Some(tmux) = Tmux::start("defect 15", folder.path(), (120, 30), &[], &args) else { return };
    let mut client = session(&first);
    client.query("BEGIN; SELECT 'listed first'").unwrap();
    tmux.wait_for_text("listed first");
    tmux.press(&["Home", "x"]);
    // Signals are listed before they are sent.
    tmux.wait_for_text("Send these signals?");
    tmux.press(&["n"]);
    client.query("COMMIT").unwrap();
}
