//! The page of a session, the header's figures, chosen columns and waits by dimension of
//! `howdah top`, on a terminal and against real servers.

use std::{fs, os::unix::fs::PermissionsExt as _, time::Duration};

use howdah_connect::{Client, ConnParams, ConnectTarget, Environment};
use howdah_lab::{Cluster, skip_without_postgres, wait_until};
use serde_json::Value;

use crate::{
    howdah, text,
    tmux::Tmux,
    top_screen::{LockChain, session},
};

/// Waits until a session other than ours has this state.
fn wait_for_session(cluster: &Cluster, condition: &str) {
    let mut watcher = session(cluster);
    let count = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND {condition}"
    );
    wait_until(condition, Duration::from_secs(60), || {
        watcher.one_value(&count).unwrap().as_deref() != Some("0")
    });
}

#[test]
fn session_page_shows_locks_and_blockers_and_ends_the_session() {
    let test = "session_page_shows_locks_and_blockers";
    for (major, size) in [(15, (80, 24)), (18, (120, 40)), (18, (200, 50))] {
        let how = Cluster::builder().major(major);
        let Some(cluster) = skip_without_postgres(test, how.start()) else { continue };
        let folder = tempfile::tempdir().unwrap();
        let chain = LockChain::build(&cluster);
        let (root, second, third) = (chain.pids[0], chain.pids[1], chain.pids[2]);
        let uri = cluster.uri("postgres");
        let args = ["top", &uri, "--interval", "300ms", "--superusers", "--filter", "\"link 2\""];
        let Some(tmux) = Tmux::start(test, folder.path(), size, &[], &args) else { return };
        tmux.wait_for_text(&second.to_string());
        tmux.press(&["Enter"]);
        let has = |screen: &str, parts: &[&str]| parts.iter().all(|part| screen.contains(part));
        let (blocker, victim) = (format!("  {root} "), format!("  {third} "));
        tmux.wait_for("who blocks whom", |screen| {
            has(screen, &["blocked by 1", "blocks 1", &blocker, &victim, "Lock:transactionid"])
        });
        // The rest is reached by scrolling.
        tmux.press(&["End"]);
        tmux.wait_for("locks by name", |screen| {
            has(screen, &["ShareLock on transaction", "RowExclusiveLock on link"])
        });
        if major >= 18 {
            tmux.wait_for_text("I/O and WAL since it connected");
        }
        tmux.press(&["Home"]);
        tmux.wait_for("waits of the last minutes", |screen| {
            screen.lines().any(|line| line.contains("samples")) && screen.contains("100%")
        });
        // The page is about one session: the key ends it, after a confirmation.
        tmux.press(&["x"]);
        let list = tmux.wait_for_text("Send these signals?");
        assert!(list.contains(&format!("terminate {second}")), "{list}");
        tmux.press(&["y"]);
        tmux.wait_for_text("1 of 1 signalled");
        tmux.wait_for_text("there is no such session any more");
        tmux.press(&["Escape"]);
        tmux.wait_for("the table", |screen| screen.contains("Query"));
        tmux.press(&["q"]);
        tmux.wait_for_text("ended 0");
        drop(chain);
    }
}

#[test]
fn session_page_shows_progress_and_plan() {
    let test = "session_page_shows_progress_and_plan";
    let Some(cluster) = skip_without_postgres(test, Cluster::builder().start()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let mut client = session(&cluster);
    client.query("CREATE TABLE item AS SELECT i FROM generate_series(1, 200000) i").unwrap();
    client.query("DELETE FROM item WHERE i % 2 = 0").unwrap();
    let mut vacuum = session(&cluster);
    vacuum.query("SET vacuum_cost_delay = 100; SET vacuum_cost_limit = 1").unwrap();
    std::thread::spawn(move || vacuum.query("VACUUM item").is_ok());
    wait_for_session(&cluster, "query = 'VACUUM item' AND state = 'active'");
    let uri = cluster.uri("postgres");
    let args = ["top", &uri, "--interval", "300ms", "--filter", "vacuum"];
    let Some(tmux) = Tmux::start(test, folder.path(), (120, 40), &[], &args) else { return };
    tmux.wait_for_text("VACUUM item");
    tmux.press(&["Enter"]);
    tmux.wait_for_text("progress of vacuum item");
    tmux.press(&["e"]);
    tmux.wait_for_text("no plan: ");

    // VACUUM itself does not hold back other vacuums.
    let output = howdah(folder.path())
        .args(["top", &uri, "--view", "horizon", "--once", "--format", "json"])
        .output()
        .unwrap();
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = document["samples"][0]["rows"].as_array().unwrap();
    assert!(rows.iter().all(|row| row["query"] != "VACUUM item"), "{rows:?}");
}

#[test]
fn session_page_shows_io() {
    let test = "session_page_shows_io";
    let how = Cluster::builder().major(18);
    let Some(cluster) = skip_without_postgres(test, how.start()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let mut client = session(&cluster);
    client.query("CREATE TABLE item AS SELECT i FROM generate_series(1, 20000) i").unwrap();
    // An idle server process reports its statistics after ten seconds at the latest.
    let uri = cluster.uri("postgres");
    let args = ["top", &uri, "--interval", "300ms", "--idle", "--filter", "item"];
    let Some(tmux) = Tmux::start(test, folder.path(), (80, 24), &[], &args) else { return };
    tmux.wait_for_text("CREATE TABLE item");
    tmux.press(&["Enter"]);
    tmux.wait_for("I/O and WAL", |screen| {
        screen.contains("relation normal: hits ")
            && screen.contains("since it connected; WAL ")
            && !screen.contains("WAL 0B")
    });
}

#[test]
fn header_has_workers_and_sizes() {
    let test = "header_has_workers_and_sizes";
    for major in [14, 18] {
        let how = Cluster::builder().major(major).setting("max_replication_slots", "10");
        let Some(cluster) = skip_without_postgres(test, how.start()) else { continue };
        session(&cluster).query("SELECT pg_create_physical_replication_slot('standby')").unwrap();
        let folder = tempfile::tempdir().unwrap();
        let uri = cluster.uri("postgres");
        let args = ["top", &uri, "--interval", "500ms"];
        let Some(tmux) = Tmux::start(test, folder.path(), (200, 50), &[], &args) else { return };
        let figures = |screen: &str| -> String {
            screen.lines().find(|line| line.starts_with("size ")).unwrap_or_default().to_owned()
        };
        let all = ["MB  growth ", "autovacuum 0/3", "slots 1/10", "walsenders 0/10", "workers "];
        let screen = tmux.wait_for("workers and sizes", |screen| {
            all.iter().all(|part| figures(screen).contains(part))
        });
        assert!(figures(&screen).contains("temp files "), "{screen}");
        // Numbers stand out.
        assert!(tmux.colored_screen().contains("\u{1b}[1m"), "{}", tmux.colored_screen());
        for width in [120, 80] {
            tmux.resize((width, 24));
            let screen = tmux.wait_for("the narrower header", |screen| {
                let line = figures(screen);
                line.contains("autovacuum 0/3") && line.len() <= usize::from(width)
            });
            assert!(figures(&screen).contains("MB"), "{screen}");
        }
    }
}

#[test]
fn chosen_columns_are_saved_for_the_next_start() {
    let test = "chosen_columns_are_saved";
    let Some(cluster) = skip_without_postgres(test, Cluster::builder().start()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let mut client = session(&cluster);
    client.query("BEGIN; SELECT 'something\nto see'").unwrap();
    let uri = cluster.uri("postgres");
    let config = folder.path().join("config");
    let variables = [("XDG_CONFIG_HOME", config.to_str().unwrap())];
    let args = ["top", &uri, "--interval", "300ms"];
    let start = |args: &[&str]| Tmux::start(test, folder.path(), (200, 40), &variables, args);
    let titles = |screen: &str| -> String {
        screen.lines().find(|line| line.contains("Time↓")).unwrap_or_default().to_owned()
    };
    let Some(tmux) = start(&args) else { return };
    tmux.wait_for("all columns", |screen| titles(screen).contains("Database"));
    tmux.press(&["v"]);
    tmux.wait_for_text("[x] Database");
    tmux.press(&["Down", "Space"]);
    tmux.wait_for_text("[ ] Database");
    tmux.press(&["s"]);
    tmux.wait_for_text("columns are saved in ");
    tmux.wait_for("no database", |screen| {
        titles(screen).contains("User") && !titles(screen).contains("Database")
    });
    tmux.press(&["q"]);
    tmux.wait_for_text("ended 0");
    let file = config.join("howdah/top-columns");
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);

    let Some(tmux) = start(&args) else { return };
    let screen = tmux.wait_for("the titles", |screen| titles(screen).contains("User"));
    assert!(!titles(&screen).contains("Database"), "{screen}");
    drop(tmux);
    // An option has precedence, and output for programs does not depend on the file.
    let Some(tmux) = start(&[&args[..], &["--columns", "activity=pid,database"]].concat()) else {
        return;
    };
    tmux.wait_for("the columns of the option", |screen| {
        titles(screen).contains("Database") && !titles(screen).contains("User")
    });
    drop(tmux);
    let rows = |more: &[&str]| -> Value {
        let output = howdah(folder.path())
            .envs(variables)
            .args([&["top", &uri, "--once", "--format", "json"], more].concat())
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        let document: Value = serde_json::from_slice(&output.stdout).unwrap();
        document["samples"][0]["rows"][0].clone()
    };
    assert_eq!(rows(&[])["database"], "postgres");
    // Statements have their line breaks.
    assert_eq!(rows(&[])["query"], "BEGIN; SELECT 'something\nto see'");
    let only = rows(&["--columns", "activity=pid,user"]);
    assert_eq!(only.as_object().unwrap().len(), 2, "{only}");
    let output = howdah(folder.path())
        .args(["top", &uri, "--once", "--columns", "activity=nonsense"])
        .output()
        .unwrap();
    let problem = text(&output.stderr);
    assert!(problem.contains("activity has no column \"nonsense\""), "{problem}");
}

#[test]
fn waits_are_shown_by_application_live_and_recorded() {
    let test = "waits_are_shown_by_application";
    let Some(cluster) = skip_without_postgres(test, Cluster::builder().start()) else { return };
    let folder = tempfile::tempdir().unwrap();
    for name in ["checkout", "reports"] {
        let uri = format!("{}?application_name={name}", cluster.uri("postgres"));
        let params = ConnParams::from_conninfo(&uri);
        let target = ConnectTarget::resolve(&params, &Environment::empty()).unwrap();
        let mut client = Client::connect(&target).unwrap();
        std::thread::spawn(move || client.query("SELECT pg_sleep(300)").is_ok());
    }
    wait_for_session(&cluster, "wait_event = 'PgSleep' AND application_name = 'reports'");
    wait_for_session(&cluster, "wait_event = 'PgSleep' AND application_name = 'checkout'");
    let uri = cluster.uri("postgres");
    let args = ["top", &uri, "--interval", "300ms", "--view", "waits", "--record", "shop.top"];
    let Some(tmux) = Tmux::start(test, folder.path(), (120, 40), &[], &args) else { return };
    tmux.wait_for_text("PgSleep");
    let is_row = |screen: &str, name: &str| {
        screen.lines().any(|line| line.contains("PgSleep") && line.contains(name))
    };
    tmux.press(&["d"]);
    tmux.wait_for_text("per statement since ");
    tmux.wait_for("the statement", |screen| is_row(screen, "pg_sleep"));
    tmux.press(&["d", "d", "d"]);
    tmux.wait_for("both applications", |screen| {
        screen.contains("per application")
            && is_row(screen, "checkout")
            && is_row(screen, "reports")
    });
    // The next key clears the notice.
    tmux.press(&["w", "Down"]);
    tmux.wait_for("the period since the mark", |screen| {
        let footer = screen.lines().last().unwrap_or_default();
        footer.contains("s) ") && is_row(screen, "checkout")
    });
    tmux.press(&["q"]);
    tmux.wait_for_text("ended 0");

    let args = ["top", "--replay", "shop.top", "--view", "waits"];
    let Some(tmux) = Tmux::start(test, folder.path(), (80, 24), &[], &args) else { return };
    tmux.wait_for_text("RECORDING");
    tmux.press(&["]", "]", "]", "d", "d", "d", "d"]);
    tmux.wait_for("the application in the recording", |screen| {
        screen.contains("per application") && is_row(screen, "checkout")
    });
    // A session's page shows what was recorded.
    tmux.press(&["1"]);
    tmux.wait_for_text("pg_sleep");
    tmux.press(&["Enter"]);
    tmux.wait_for("a page of the recording", |screen| {
        screen.contains("locks, progress and I/O are not recorded") && screen.contains("100%")
    });
}

#[test]
fn own_statements_are_not_among_those_of_the_server() {
    let test = "own_statements_are_not_listed";
    for major in [14, 18] {
        let how = Cluster::builder()
            .major(major)
            .setting("shared_preload_libraries", "pg_stat_statements");
        let Some(cluster) = skip_without_postgres(test, how.start()) else { continue };
        session(&cluster).query("CREATE EXTENSION pg_stat_statements").unwrap();
        session(&cluster).query("SELECT 1,\n\t2").unwrap();
        let folder = tempfile::tempdir().unwrap();
        let uri = cluster.uri("postgres");
        let args = ["top", &uri, "--view", "statements", "--count", "3", "--interval", "200ms"];
        let output = howdah(folder.path()).args(args).args(["--format", "json"]).output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        let document: Value = serde_json::from_slice(&output.stdout).unwrap();
        let samples = document["samples"].as_array().unwrap();
        let rows = samples.iter().flat_map(|sample| sample["rows"].as_array().unwrap());
        let queries: Vec<&str> = rows.filter_map(|row| row["query"].as_str()).collect();
        assert!(queries.contains(&"SELECT $1,\n\t$2"), "{major} {queries:?}");
        let own = |query: &&&str| query.contains("pg_stat_activity") || query.contains("howdah");
        assert_eq!(queries.iter().find(own), None, "{major}");
    }
}

#[test]
fn audit_log_names_the_account_without_variables() {
    let test = "audit_log_names_the_account";
    let Some(cluster) = skip_without_postgres(test, Cluster::builder().start()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let mut client = session(&cluster);
    std::thread::spawn(move || client.query("SELECT pg_sleep(300)").is_ok());
    wait_for_session(&cluster, "wait_event = 'PgSleep'");
    let uri = cluster.uri("postgres");
    let args = ["top", &uri, "--superusers", "--audit-log", "audit", "--filter", "pg_sleep"];
    // tmux starts it without USER and SUDO_USER.
    let Some(tmux) = Tmux::start(test, folder.path(), (80, 24), &[], &args) else { return };
    tmux.wait_for_text("pg_sleep");
    tmux.press(&["c"]);
    tmux.wait_for_text("Send these signals?");
    tmux.press(&["y"]);
    tmux.wait_for_text("1 of 1 signalled");
    let written = fs::read_to_string(folder.path().join("audit")).unwrap();
    let line: Value = serde_json::from_str(written.lines().next().unwrap()).unwrap();
    let account = std::process::Command::new("id").arg("-un").output().unwrap();
    assert_eq!(line["os_user"].as_str().unwrap(), text(&account.stdout).trim());
}
