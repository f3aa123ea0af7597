//! What monitors of PostgreSQL have got wrong, each as a test of this one. The numbers are those of the list in
//! docs/src/reference/top-defects.md.

use std::time::Duration;

use howdah_collect::{
    Action, Activity, Backend, Cell, Kind, PlanError, Server, SignalTarget, Signalled, SqlText,
    State, plan,
};
use howdah_connect::{Client, Target};
use howdah_lab::{Cluster, or_say_why_not};
use howdah_top::{
    Filter, Screen, Snapshot, Table,
    kill::{Plan, Policy},
    run,
    table::{Choice, RowKey},
};
use serde_json::Value;

use crate::{
    howdah, text,
    tmux::Tmux,
    top_screen::{session, target},
};

fn cluster(test: &str) -> Option<Cluster> {
    or_say_why_not(test, Cluster::builder().start())
}

/// Runs a statement in a session of its own, which is told of as soon as the server shows it at work.
fn at_work(target: &Target, server: &mut Server, sql: &str) -> (Backend, Activity) {
    let mut client = Client::connect(target).unwrap();
    let pid = client.process_id().unwrap();
    let sql = sql.to_owned();
    std::thread::spawn(move || client.query(&sql).is_ok());
    loop {
        let activity = server.activity(false).unwrap();
        let works = |backend: &&Backend| {
            backend.pid == pid && backend.state == Some(State::Active) && backend.wait.is_some()
        };
        if let Some(backend) = activity.backends.iter().find(works).cloned() {
            return (backend, activity);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A snapshot of sessions, as the sampler makes them.
fn snapshot_of(server: &mut Server, activity: Activity) -> Snapshot {
    Snapshot::of_activity(server.identity().clone(), server.overview().unwrap(), activity)
}

/// The connection words of a server for another role.
fn uri_of(cluster: &Cluster, role: &str) -> String {
    cluster.uri("postgres").replace("postgres@", &format!("{role}@"))
}

/// `howdah top ARGS` without a terminal, which has to succeed.
fn written(args: &[&str]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let output = howdah(folder.path()).arg("top").args(args).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

fn rows(args: &[&str]) -> Vec<Value> {
    let document: Value = serde_json::from_str(&written(args)).unwrap();
    document["samples"][0]["rows"].as_array().unwrap().clone()
}

#[test]
fn defect_01_a_statement_that_is_explained_cannot_run_another_and_no_length_matters() {
    let Some(cluster) = cluster("defect 1") else { return };
    let target = target(&cluster, "postgres");
    let runs = |text: &str| Backend {
        database: Some("postgres".into()),
        query: Some(SqlText::new(text.as_bytes(), None, Some(1 << 20))),
        ..Backend::default()
    };
    let smuggled = plan(&target, &runs("select 1; commit; create table pwned()"));
    assert!(matches!(smuggled, Err(PlanError::Refused { .. })), "{smuggled:?}");
    let mut client = session(&cluster);
    assert_eq!(client.one_value("SELECT to_regclass('pwned')").unwrap(), None);
    let long = format!("select 1 where 1 in ({})", vec!["1"; 40_000].join(", "));
    plan(&target, &runs(&long)).unwrap();
}

#[test]
fn defect_02_kill_all_slower_than_kills_and_spares_whom_it_should() {
    let Some(cluster) = cluster("defect 2") else { return };
    let target = target(&cluster, "postgres");
    session(&cluster).query("CREATE ROLE app LOGIN; CREATE ROLE lazy LOGIN").unwrap();
    let mut server = Server::connect(&target).unwrap();
    let (slow, _) = at_work(&target.with_user("app"), &mut server, "SELECT pg_sleep(600)");
    let (spared, _) = at_work(&target, &mut server, "SELECT pg_sleep(601)");
    let mut idle = Client::connect(&target.with_user("lazy")).unwrap();
    idle.query("BEGIN").unwrap();
    let mut activity = server.activity(false).unwrap();
    // A minute and a half later.
    activity.taken_us += 90_000_000;
    let snapshot = snapshot_of(&mut server, activity);
    let plan = Plan::of_slow(&snapshot, 1.0, Action::Cancel, Policy::default());
    // The superuser's is spared, an idle transaction cannot be cancelled, 1 s is not taken.
    let listed: Vec<i32> = plan.listed.iter().map(|listed| listed.suspect.pid).collect();
    assert_eq!(listed, [slow.pid]);
    assert!(plan.excluded.iter().any(|excluded| excluded.who.contains(&spared.pid.to_string())));
    let suspects: Vec<SignalTarget> = plan.listed.iter().map(|listed| listed.suspect).collect();
    let results = run::signal(&target, plan.action, &suspects);
    assert_eq!(results, [(suspects[0], Ok(Signalled::Sent))]);
    while server
        .activity(false)
        .unwrap()
        .backends
        .iter()
        .any(|backend| backend.pid == slow.pid && backend.state == Some(State::Active))
    {
        std::thread::sleep(Duration::from_millis(20));
    }
    let activity = server.activity(false).unwrap();
    let still_runs = |pid| activity.backends.iter().any(|backend| backend.pid == pid);
    assert!(still_runs(spared.pid) && still_runs(idle.process_id().unwrap()));
    // 30 s is the least, whatever is asked for.
    let mut young = server.activity(false).unwrap();
    young.taken_us += 20_000_000;
    let snapshot = snapshot_of(&mut server, young);
    let policy = Policy { with_superusers: true };
    assert!(Plan::of_slow(&snapshot, 1.0, Action::Terminate, policy).listed.is_empty());
}

#[test]
fn defect_03_what_became_of_a_signal_is_told_as_it_is() {
    let Some(cluster) = cluster("defect 3") else { return };
    let target = target(&cluster, "postgres");
    session(&cluster).query("CREATE ROLE app LOGIN; CREATE ROLE weak LOGIN").unwrap();
    let mut server = Server::connect(&target).unwrap();
    let (backend, _) = at_work(&target.with_user("app"), &mut server, "SELECT pg_sleep(600)");
    let suspect = SignalTarget::statement_of(&backend);
    let refused = run::signal(&target.with_user("weak"), Action::Cancel, &[suspect]);
    let [(_, Ok(Signalled::Refused { sqlstate, .. }))] = &refused[..] else {
        // A role that may not look finds nobody there, which is said, too.
        assert_eq!(refused, [(suspect, Ok(Signalled::Gone))]);
        return;
    };
    assert_eq!(sqlstate, "42501");
}

#[test]
fn defect_04_what_no_option_hides_is_shown() {
    let Some(cluster) = cluster("defect 4") else { return };
    let uri = cluster.uri("postgres");
    let args = ["--view", "databases", "--once", "--format", "json", "--interval", "200ms"];
    let shown = rows(&[&[uri.as_str()], &args[..]].concat());
    for column in ["temp_files", "temp_bytes", "backends", "conflicts", "frozen_age"] {
        assert!(shown.iter().all(|row| row.get(column).is_some()), "{column}");
    }
    // An option does what it says, and the same by its absence.
    let idle = session(&cluster);
    let pid = idle.process_id().unwrap();
    let has = |more: &[&str]| {
        let args = [&[uri.as_str(), "--once", "--format", "json"], more].concat();
        rows(&args).iter().any(|row| row["pid"] == pid)
    };
    assert!(!has(&[]) && has(&["--idle"]));
}

#[test]
fn defect_05_a_failed_transaction_is_counted_as_one() {
    let Some(cluster) = cluster("defect 5") else { return };
    let uri = cluster.uri("postgres");
    let mut client = session(&cluster);
    client.query("BEGIN").unwrap();
    client.query("SELECT nonsense").unwrap_err();
    let shown = rows(&[&uri, "--once", "--format", "json"]);
    assert!(shown.iter().any(|row| row["state"] == "idle in transaction (aborted)"), "{shown:?}");
    let folder = tempfile::tempdir().unwrap();
    let args = ["top", uri.as_str(), "--interval", "300ms"];
    let Some(tmux) = Tmux::start("defect 5", folder.path(), (110, 20), &[], &args) else { return };
    tmux.until_has("in tx 0  failed tx 1");
}

#[test]
fn defect_06_workers_of_logical_replication_are_known_by_any_of_their_names() {
    for major in [15, 18] {
        let how = Cluster::builder().major(major).setting("wal_level", "logical");
        let Some(cluster) = or_say_why_not("defect 6", how.start()) else { continue };
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
        let mut server = Server::connect(&target).unwrap();
        let word = loop {
            let activity = server.activity(false).unwrap();
            let kinds = activity.backends.iter().filter_map(|backend| backend.kind.clone());
            // The launcher has the prefix, too; a worker is in a database.
            let mut workers = kinds.filter(Kind::is_logical_replication);
            if let Some(worker) = workers.find(|kind| kind.as_str().ends_with("worker")) {
                break worker.as_str().to_owned();
            }
            std::thread::sleep(Duration::from_millis(20));
        };
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
fn defect_07_a_role_that_may_not_look_sees_rows_and_what_would_help() {
    let Some(cluster) = cluster("defect 7") else { return };
    let mut client = session(&cluster);
    client.query("CREATE ROLE plain LOGIN").unwrap();
    client.query("BEGIN").unwrap();
    let uri = uri_of(&cluster, "plain");
    let shown = rows(&[&uri, "--once", "--format", "json"]);
    let hidden = shown.iter().find(|row| row["pid"] == client.process_id().unwrap());
    let hidden = hidden.unwrap().as_object().unwrap();
    // What it may not know is left out; it is not empty, and not zero.
    assert!(!hidden.contains_key("state") && !hidden.contains_key("query"), "{hidden:?}");
    let folder = tempfile::tempdir().unwrap();
    let args = ["top", uri.as_str(), "--interval", "300ms"];
    let Some(tmux) = Tmux::start("defect 7", folder.path(), (110, 24), &[], &args) else { return };
    let screen = tmux.until_has("this role does not see all: press g");
    assert!(screen.contains("n/a"), "{screen}");
    tmux.press(&["g"]);
    tmux.until_has("GRANT pg_monitor TO \"plain\";");
}

#[test]
fn defect_08_a_role_without_any_grant_can_start_it_on_every_major() {
    for major in howdah_lab::MAJORS {
        let how = Cluster::builder().major(major);
        let Some(cluster) = or_say_why_not("defect 8", how.start()) else { continue };
        session(&cluster).query("CREATE ROLE plain LOGIN").unwrap();
        let uri = uri_of(&cluster, "plain");
        for view in ["activity", "blocking", "databases", "wal"] {
            written(&[&uri, "--once", "--interval", "200ms", "--view", view]);
        }
    }
}

#[test]
fn defect_09_signals_are_counted_by_their_results_and_one_refusal_stops_no_other() {
    let Some(cluster) = cluster("defect 9") else { return };
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
    let mut server = Server::connect(&killer).unwrap();
    let (superuser_s, _) = at_work(&admin, &mut server, "SELECT pg_sleep(600)");
    let (app_s, _) = at_work(&admin.with_user("app"), &mut server, "SELECT pg_sleep(600)");
    let gone = SignalTarget { pid: i32::MAX, started_us: 1, query_started_us: None };
    let suspects =
        [SignalTarget::statement_of(&superuser_s), gone, SignalTarget::statement_of(&app_s)];
    let results: Vec<_> = run::signal(&killer, Action::Cancel, &suspects)
        .into_iter()
        .map(|(_, result)| result.unwrap())
        .collect();
    assert!(matches!(&results[0], Signalled::Refused { sqlstate, .. } if sqlstate == "42501"));
    assert_eq!(results[1..], [Signalled::Gone, Signalled::Sent]);
}

#[test]
fn defect_10_a_recording_is_appended_to_and_goes_on_without_what_cannot_be_read() {
    let Some(cluster) = cluster("defect 10") else { return };
    let folder = tempfile::tempdir().unwrap();
    let uri = cluster.uri("postgres");
    // The extension of this view is not there: each reading of it fails.
    for _ in 0..2 {
        let args =
            ["top", uri.as_str(), "--count", "14", "--interval", "100ms", "--record", "r.top"];
        let output = howdah(folder.path()).args(args).args(["--format", "csv"]).output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
    }
    let replay = ["top", "--replay", "r.top", "--format", "ndjson", "--idle"];
    let output = howdah(folder.path()).args(replay).output().unwrap();
    assert!(text(&output.stdout).lines().count() >= 28, "{}", text(&output.stdout));
    // What role does not matter: what the archiver has to do is read without pg_ls_dir.
    session(&cluster).query("CREATE ROLE monitor LOGIN; GRANT pg_monitor TO monitor").unwrap();
    let uri = uri_of(&cluster, "monitor");
    written(&[&uri, "--once", "--interval", "200ms", "--view", "wal"]);
}

#[test]
fn defect_11_only_what_blocks_is_a_blocker_and_names_are_not_guessed() {
    let Some(cluster) = cluster("defect 11") else { return };
    let postgres = target(&cluster, "postgres");
    session(&cluster).query("CREATE DATABASE other").unwrap();
    let other = postgres.with_database("other");
    let mut holder = Client::connect(&other).unwrap();
    holder.query("CREATE TABLE item (id int)").unwrap();
    holder.query("BEGIN; LOCK item IN SHARE MODE; SELECT pg_advisory_lock(42)").unwrap();
    // Shares the same table, and blocks nobody.
    let mut sharer = Client::connect(&other).unwrap();
    sharer.query("BEGIN; SELECT * FROM item").unwrap();
    let mut server = Server::connect(&postgres).unwrap();
    let (writes, _) = at_work(&other, &mut server, "INSERT INTO item VALUES (1)");
    let (advised, _) = at_work(&other, &mut server, "SELECT pg_advisory_lock(42)");
    let activity = server.activity(false).unwrap();
    let snapshot = snapshot_of(&mut server, activity);
    let table = Table::of(Screen::Blocking, &snapshot, &Choice::default()).unwrap();
    let pids: Vec<i32> = table
        .rows
        .iter()
        .filter_map(|row| match row.key {
            RowKey::Session(pid, _) => Some(pid),
            RowKey::Cells(_) => None,
        })
        .collect();
    assert_eq!(pids[0], holder.process_id().unwrap());
    assert!(pids.contains(&writes.pid) && pids.contains(&advised.pid), "{pids:?}");
    assert!(!pids.contains(&sharer.process_id().unwrap()), "{pids:?}");
    // The table is in another database: its oid is told, and no table of ours.
    let uri = cluster.uri("postgres");
    let waiting =
        rows(&[&uri, "--view", "waiting", "--once", "--interval", "200ms", "--format", "json"]);
    let on: Vec<&str> = waiting.iter().filter_map(|row| row["object"].as_str()).collect();
    assert!(on.iter().any(|on| on.starts_with("other:")), "{on:?}");
    assert!(on.iter().any(|on| on.starts_with("advisory ")), "{on:?}");
    holder.query("COMMIT; SELECT pg_advisory_unlock_all()").unwrap();
}

#[test]
fn defect_12_what_somebody_wrote_into_a_statement_does_not_reach_a_terminal_or_a_log() {
    let Some(cluster) = cluster("defect 12") else { return };
    let uri = cluster.uri("postgres");
    let mut client = session(&cluster);
    client.query("SET application_name = E'shop\\x1b[2J'").unwrap();
    client.query("BEGIN; SELECT '\u{1b}]52;c;aGk=\u{7} \u{9b}2J \u{202e}reversed'").unwrap();
    let sleeper = target(&cluster, "postgres");
    let mut server = Server::connect(&sleeper).unwrap();
    at_work(&sleeper, &mut server, "SELECT pg_sleep(600), '\u{1b}[31m\u{9}slow\r\n\u{85}'");
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
    tmux.until_has("␛]52;c;aGk=␇");
}

#[test]
fn defect_13_signals_and_keys_do_not_wait_for_what_reads() {
    let Some(cluster) = cluster("defect 13") else { return };
    let admin = target(&cluster, "postgres");
    session(&cluster).query("CREATE ROLE app LOGIN").unwrap();
    let mut server = Server::connect(&admin).unwrap();
    let (backend, _) = at_work(&admin.with_user("app"), &mut server, "SELECT pg_sleep(600)");
    let folder = tempfile::tempdir().unwrap();
    let uri = cluster.uri("postgres");
    let args = ["top", uri.as_str(), "--interval", "300ms"];
    let Some(tmux) = Tmux::start("defect 13", folder.path(), (120, 24), &[], &args) else { return };
    tmux.until_has("pg_sleep");
    // The process that serves the reading connection stands still.
    let reader = "SELECT pid FROM pg_stat_activity WHERE application_name = 'howdah top' LIMIT 1";
    let reader = session(&cluster).one_value(reader).unwrap().unwrap();
    let reader = rustix::process::Pid::from_raw(reader.parse().unwrap()).unwrap();
    rustix::process::kill_process(reader, rustix::process::Signal::STOP).unwrap();
    tmux.press(&["?"]);
    tmux.until_has("Keys");
    tmux.press(&["?"]);
    tmux.press(&["Home", "c", "y"]);
    tmux.until_has("1 of 1 signalled");
    rustix::process::kill_process(reader, rustix::process::Signal::CONT).unwrap();
    while server
        .activity(false)
        .unwrap()
        .backends
        .iter()
        .any(|other| other.pid == backend.pid && other.state == Some(State::Active))
    {
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn defect_14_a_column_is_sorted_as_what_it_is_whatever_its_first_cell_holds() {
    let session = |pid: i32, seconds: Option<i64>| Backend {
        pid,
        started_us: 1,
        kind: Some(Kind::Client),
        state: Some(State::Active),
        query_started_us: seconds.map(|seconds| 1_000_000_000 - seconds * 1_000_000),
        is_readable: true,
        ..Backend::default()
    };
    let backends =
        vec![session(1, None), session(2, Some(9)), session(3, Some(100)), session(4, Some(20))];
    let activity = Activity { taken_us: 1_000_000_000, backends };
    let snapshot = Snapshot::of_activity(Default::default(), Default::default(), activity);
    let choice = Choice { order: Some("time"), filter: Filter::default(), ..Choice::default() };
    let table = Table::of(Screen::Activity, &snapshot, &choice).unwrap();
    let pids: Vec<&Cell> = table.rows.iter().map(|row| &row.cells[0]).collect();
    // As text, 9 would stand above 20 and 100; what has no value comes last, both ways.
    assert_eq!(pids, [&3_i64.into(), &4_i64.into(), &2_i64.into(), &1_i64.into()]);
}

#[test]
fn defect_15_several_servers_waits_over_time_dry_kills_json_and_read_only_are_there() {
    let Some(first) = cluster("defect 15") else { return };
    let Some(second) = cluster("defect 15") else { return };
    let (one, two) = (first.uri("postgres"), second.uri("postgres"));
    let document = written(&[&one, &two, "--once", "--format", "json", "--idle"]);
    let document: Value = serde_json::from_str(&document).unwrap();
    let servers =
        document["samples"].as_array().unwrap().iter().map(|sample| sample["server"].to_string());
    assert_eq!(servers.collect::<std::collections::BTreeSet<_>>().len(), 2);
    let folder = tempfile::tempdir().unwrap();
    let args = ["top", one.as_str(), two.as_str(), "--interval", "300ms", "--read-only", "--idle"];
    let Some(tmux) = Tmux::start("defect 15", folder.path(), (120, 30), &[], &args) else { return };
    tmux.until_has("read only");
    tmux.press(&["K"]);
    tmux.press(&["3"]);
    let waits = tmux.until_has("average active sessions");
    assert!(!waits.contains("Cancel all slower"), "{waits}");
    drop(tmux);
    let args = ["top", one.as_str(), "--interval", "300ms"];
    let Some(tmux) = Tmux::start("defect 15", folder.path(), (120, 30), &[], &args) else { return };
    let mut client = session(&first);
    client.query("BEGIN; SELECT 'listed first'").unwrap();
    tmux.until_has("listed first");
    tmux.press(&["Home", "x"]);
    // A list, and nothing is done yet.
    tmux.until_has("Are these the ones?");
    tmux.press(&["n"]);
    client.query("COMMIT").unwrap();
}
