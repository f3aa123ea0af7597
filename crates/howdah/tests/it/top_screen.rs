//! `howdah top` on a terminal, against real servers under load.

use std::process::{Child, Command, Stdio};

use howdah_connect::{Client, ConnParams, ConnectTarget, Environment};
use howdah_lab::{Cluster, client_tool, skip_without_postgres, wait_until};
use rustix::process::{Pid, Signal, kill_process};

use crate::tmux::Tmux;

pub(crate) fn target(cluster: &Cluster, database: &str) -> ConnectTarget {
    let words = ConnParams::from_conninfo(cluster.uri(database));
    ConnectTarget::resolve(&words, &Environment::empty()).unwrap()
}

pub(crate) fn session(cluster: &Cluster) -> Client {
    Client::connect(&target(cluster, "postgres")).unwrap()
}

/// A pgbench that runs until the value is dropped.
struct BackgroundPgbench(Child);

impl BackgroundPgbench {
    fn start(cluster: &Cluster) -> Option<Self> {
        let pgbench = client_tool("pgbench")?;
        let uri = cluster.uri("postgres");
        let filled = Command::new(&pgbench).args(["-i", "-q", &uri]).output().unwrap();
        assert!(filled.status.success(), "{}", String::from_utf8_lossy(&filled.stderr));
        let run = ["-c", "4", "-T", "600", "-n", &uri];
        let quiet =
            Command::new(pgbench).args(run).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        Some(Self(quiet.unwrap()))
    }
}

impl Drop for BackgroundPgbench {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Five sessions, each of which waits for a row lock of the previous one. The first one idles in
/// its transaction.
pub(crate) struct LockChain {
    root: Client,
    pub(crate) pids: Vec<i32>,
    waiting: Vec<std::thread::JoinHandle<bool>>,
}

impl LockChain {
    pub(crate) fn build(cluster: &Cluster) -> Self {
        let mut root = session(cluster);
        root.query("CREATE TABLE IF NOT EXISTS link (id int PRIMARY KEY, name text)").unwrap();
        root.query("INSERT INTO link SELECT i FROM generate_series(1, 5) i").unwrap();
        root.query("BEGIN").unwrap();
        root.query("UPDATE link SET name = 'root' WHERE id = 1").unwrap();
        let mut pids = vec![root.process_id().unwrap()];
        let mut waiting = Vec::new();
        for id in 2..=5 {
            let mut client = session(cluster);
            pids.push(client.process_id().unwrap());
            client.query("BEGIN").unwrap();
            client.query(&format!("UPDATE link SET name = 'holds' WHERE id = {id}")).unwrap();
            let waits = format!("UPDATE link SET name = 'link {id}' WHERE id = {}", id - 1);
            waiting.push(std::thread::spawn(move || {
                client.query(&waits).and_then(|_| client.query("COMMIT")).is_ok()
            }));
        }
        let mut watcher = session(cluster);
        let blocked = "SELECT count(*) FROM pg_stat_activity WHERE cardinality(pg_blocking_pids(pid)) > 0 \
            AND query LIKE '%link%'";
        wait_until("four blocked sessions", std::time::Duration::from_secs(60), || {
            watcher.one_value(blocked).unwrap().as_deref() == Some("4")
        });
        Self { root, pids, waiting }
    }

    /// Commits the first session's transaction; returns whether all others committed, too.
    pub(crate) fn release(mut self) -> bool {
        self.root.query("COMMIT").unwrap();
        self.waiting.into_iter().all(|waits| waits.join().unwrap())
    }
}

/// The line of a screen that contains a text.
fn line<'a>(screen: &'a str, part: &str) -> &'a str {
    screen.lines().find(|line| line.contains(part)).unwrap_or_default()
}

#[test]
fn lock_chain_of_five_is_shown_under_load() {
    for major in [14, 15, 18] {
        let test = "lock_chain_of_five_is_shown_under_load";
        let how = Cluster::builder().major(major).setting("track_io_timing", "on");
        let Some(cluster) = skip_without_postgres(test, how.start()) else { continue };
        let folder = tempfile::tempdir().unwrap();
        let load = BackgroundPgbench::start(&cluster);
        let chain = LockChain::build(&cluster);
        let mut failed = session(&cluster);
        failed.query("BEGIN").unwrap();
        failed.query("SELECT nonsense").unwrap_err();
        let uri = cluster.uri("postgres");
        let args = ["top", &uri, "--interval", "500ms", "--view", "blocking"];
        let Some(tmux) = Tmux::start(test, folder.path(), (140, 40), &[], &args) else { return };

        // Each session is below its blocker, and the root blocker has the count of all its victims.
        let row_of = |screen: &str, pid: &i32| {
            let has_pid = |row: &str| {
                row.split(|c: char| !c.is_ascii_digit()).any(|it| it == pid.to_string())
            };
            // The first line has the server's port, which may be the same number.
            screen.lines().skip(1).position(has_pid)
        };
        let screen = tmux.wait_for("the whole chain", |screen| {
            chain.pids.iter().all(|pid| row_of(screen, pid).is_some())
        });
        assert!(chain.pids.iter().map(|pid| row_of(&screen, pid)).is_sorted(), "{major}\n{screen}");
        let root = line(&screen, &chain.pids[0].to_string());
        assert!(root.starts_with('B') && root.contains("idle in t"), "{major}\n{screen}");
        let victims = root.split_whitespace().nth(2).and_then(|count| count.parse::<u32>().ok());
        assert!(victims >= Some(4), "{major}\n{screen}");

        // The header shows the failed transaction, values of this host, and the version.
        assert!(screen.contains(&format!("PostgreSQL {major}")), "{screen}");
        tmux.wait_for("one failed transaction", |screen| {
            line(screen, "sessions ").contains("failed tx 1")
        });
        tmux.wait_for("figures of this host", |screen| {
            let host = line(screen, "host cpu ");
            host.contains("memory free ") && !host.contains("host cpu -")
        });
        if load.is_some() {
            tmux.wait_for("transactions per second", |screen| {
                let tps = line(screen, "tps ").split_whitespace().nth(1).unwrap_or("-");
                tps.parse::<f64>().is_ok_and(|tps| tps > 0.0)
            });
        }

        // Every screen is drawn, or states why it is not available in this version.
        for name in
            ["activity", "blocking", "waits", "databases", "tables", "indexes", "statements"]
        {
            let footer = || tmux.screen().lines().last().unwrap_or_default().to_owned();
            let mut presses = 0;
            while !footer().starts_with(name) {
                assert!(presses < 40, "{name}\n{}", tmux.screen());
                let before = footer();
                tmux.press(&["Tab"]);
                presses += 1;
                // Each press shows another screen, whose name is in the footer.
                tmux.wait_for("the next screen", |_| footer() != before);
            }
            tmux.wait_for("a table or a reason", |screen| {
                !screen.contains("waiting for the server")
            });
        }
        tmux.press(&["3"]);
        let chart = tmux.wait_for("the chart of waits", |screen| {
            screen.contains("average active sessions")
                && screen.contains("L Lock")
                && screen.contains("LLL")
        });
        assert!(chart.contains("LLL"), "{major}\n{chart}");

        // After a resize the footer is on the last line, and nothing of the old screen is left.
        tmux.press(&["1"]);
        tmux.wait_for_text("activity by time");
        tmux.resize((80, 24));
        let small = tmux.wait_for("the footer on line 24", |screen| {
            screen.lines().nth(23).is_some_and(|line| line.starts_with("activity by"))
        });
        assert_eq!(small.lines().filter(|line| line.contains("q:quit")).count(), 1, "{small}");

        tmux.press(&["q"]);
        tmux.wait_for_text("ended 0");
        assert_eq!(tmux.pane_variable("alternate_on"), "0");
        drop(load);
        assert!(chain.release());
    }
}

#[test]
fn terminating_the_root_blocker_releases_the_chain() {
    let test = "terminating_the_root_blocker";
    let Some(cluster) = skip_without_postgres(test, Cluster::builder().start()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let chain = LockChain::build(&cluster);
    let uri = cluster.uri("postgres");
    let args = ["top", &uri, "--interval", "300ms", "--view", "blocking", "--superusers"];
    let Some(tmux) = Tmux::start(test, folder.path(), (120, 30), &[], &args) else { return };
    let root = chain.pids[0].to_string();
    tmux.wait_for_text(&root);
    tmux.press(&["Home", "x"]);
    let list = tmux.wait_for_text("Send these signals?");
    assert!(list.contains(&format!("terminate {root}")), "{list}");
    tmux.press(&["y"]);
    tmux.wait_for_text("1 of 1 signalled");
    tmux.wait_for("no blocked session", |screen| screen.contains("no rows"));
    // The sessions that it blocked committed.
    assert!(chain.waiting.into_iter().all(|waits| waits.join().unwrap()));
}

/// The processes of a server, starting with the postmaster.
fn server_processes(postmaster: u32) -> Vec<Pid> {
    let path = format!("/proc/{postmaster}/task/{postmaster}/children");
    let children = std::fs::read_to_string(path).unwrap();
    let children = children.split_whitespace().map(|pid| pid.parse::<i32>().unwrap());
    let postmaster = i32::try_from(postmaster).unwrap();
    std::iter::once(postmaster).chain(children).filter_map(Pid::from_raw).collect()
}

/// A server whose processes are stopped by SIGSTOP until the value is dropped.
struct FrozenServer(Vec<Pid>);

impl FrozenServer {
    fn freeze(cluster: &Cluster) -> Self {
        let frozen = Self(server_processes(cluster.pid().unwrap()));
        frozen.signal(Signal::STOP);
        frozen
    }

    fn signal(&self, signal: Signal) {
        for pid in &self.0 {
            // Fails if the process has ended meanwhile.
            let _ = kill_process(*pid, signal);
        }
    }
}

impl Drop for FrozenServer {
    fn drop(&mut self) {
        self.signal(Signal::CONT);
    }
}

#[test]
fn hanging_server_does_not_block_the_other() {
    let test = "hanging_server_does_not_block_the_other";
    let Some(healthy) = skip_without_postgres(test, Cluster::builder().start()) else { return };
    let Some(hanging) = skip_without_postgres(test, Cluster::builder().start()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let (first, second) = (healthy.uri("postgres"), hanging.uri("postgres"));
    let args = ["top", &first, &second, "--interval", "300ms", "--idle"];
    let Some(tmux) = Tmux::start(test, folder.path(), (120, 30), &[], &args) else { return };
    let strip = |screen: &str, cluster: &Cluster| {
        let port = format!(":{}/postgres", cluster.port());
        screen
            .lines()
            .find(|line| line.contains(&port) && !line.contains("PostgreSQL "))
            .map(str::to_owned)
    };
    tmux.wait_for("both servers to be sampled", |screen| {
        [&healthy, &hanging]
            .iter()
            .all(|cluster| strip(screen, cluster).is_some_and(|line| line.contains("primary")))
    });
    let frozen = FrozenServer::freeze(&hanging);

    // The other server is still sampled, and keys still work.
    let mut client = session(&healthy);
    client.query("BEGIN; SELECT 'while the other hangs'").unwrap();
    tmux.wait_for_text("while the other hangs");
    tmux.press(&["?"]);
    tmux.wait_for_text("Keys");
    tmux.press(&["?"]);
    tmux.press(&["n"]);
    tmux.wait_for("the hanging server to be selected", |screen| {
        strip(screen, &hanging).is_some_and(|line| line.starts_with('▶'))
    });
    // After a timeout the hanging server is shown as unreachable, with the reason.
    tmux.wait_for("the server to be unreachable", |screen| {
        strip(screen, &hanging).is_some_and(|line| line.contains("UNREACHABLE"))
            && screen.contains("unreachable for ")
            && screen.contains("last sample ")
    });
    tmux.press(&["n"]);
    client.query("SELECT 'still here'").unwrap();
    tmux.wait_for_text("still here");

    // It recovers without user action.
    drop(frozen);
    tmux.wait_for("the server to be reachable", |screen| {
        strip(screen, &hanging).is_some_and(|line| line.contains("primary"))
    });
    tmux.press(&["q"]);
    tmux.wait_for_text("ended 0");
}

#[test]
fn restarted_server_is_sampled_again() {
    let test = "restarted_server_is_sampled_again";
    let Some(mut cluster) = skip_without_postgres(test, Cluster::builder().start()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let uri = cluster.uri("postgres");
    let args = ["top", &uri, "--interval", "200ms", "--view", "databases"];
    let Some(tmux) = Tmux::start(test, folder.path(), (120, 20), &[], &args) else { return };
    tmux.wait_for_text("template1");
    cluster.kill().unwrap();
    tmux.wait_for_text("unreachable for ");
    cluster.start().unwrap();
    let screen = tmux
        .wait_for("the server to be sampled again", |screen| !screen.contains("unreachable for "));
    // The crash reset the counters: rates are unknown, but never negative.
    for row in screen.lines().filter(|line| line.contains("template1") || line.starts_with("tps "))
    {
        let is_negative = |cell: &str| {
            cell.strip_prefix('-')
                .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
        };
        assert!(!row.split_whitespace().any(is_negative), "{row}");
    }
    // The history from before the restart is still available.
    tmux.press(&["{"]);
    tmux.wait_for_text(" PAST ");
    tmux.press(&["Escape"]);
    tmux.wait_for("the present", |screen| !screen.contains(" PAST "));
}

#[test]
fn promoted_standby_is_shown_as_primary() {
    let test = "promoted_standby_is_shown_as_primary";
    let Some(primary) = skip_without_postgres(test, Cluster::builder().start()) else { return };
    let standby = Cluster::builder().standby_of(&primary).start();
    let Some(standby) = skip_without_postgres(test, standby) else { return };
    let folder = tempfile::tempdir().unwrap();
    let uri = standby.uri("postgres");
    let args = ["top", &uri, "--interval", "200ms"];
    let Some(tmux) = Tmux::start(test, folder.path(), (120, 20), &[], &args) else { return };
    tmux.wait_for("a standby with its lag", |screen| {
        screen.contains(" standby ") && line(screen, "tps ").contains("lag ")
    });
    session(&standby).query("SELECT pg_promote()").unwrap();
    tmux.wait_for("a primary without lag", |screen| {
        screen.contains(" primary ") && !line(screen, "tps ").contains("lag ")
    });
}

#[test]
fn signal_restores_the_terminal() {
    let test = "signal_restores_the_terminal";
    let Some(cluster) = skip_without_postgres(test, Cluster::builder().start()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let uri = cluster.uri("postgres");
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let args = ["top", &uri];
        let Some(tmux) = Tmux::start(test, folder.path(), (80, 24), &[], &args) else { return };
        tmux.wait_for_text("activity by time");
        assert_eq!(
            (tmux.pane_variable("alternate_on"), tmux.pane_variable("mouse_any_flag")),
            ("1".into(), "1".into())
        );
        let pid = Pid::from_raw(i32::try_from(tmux.pid()).unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
        tmux.wait_for_text("ended ");
        assert_eq!(
            (tmux.pane_variable("alternate_on"), tmux.pane_variable("mouse_any_flag")),
            ("0".into(), "0".into())
        );
        // Echo and line mode are restored.
        tmux.type_text("typed and seen");
        tmux.press(&["Enter"]);
        tmux.wait_for("echo and cat", |screen| screen.matches("typed and seen").count() == 2);
    }
}

#[test]
fn mouse_selects_sorts_scrolls_and_can_be_disabled() {
    let test = "mouse_selects_sorts_scrolls";
    let Some(cluster) = skip_without_postgres(test, Cluster::builder().start()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let uri = cluster.uri("postgres");
    let args = ["top", &uri, "--interval", "300ms", "--view", "databases"];
    let Some(tmux) = Tmux::start(test, folder.path(), (100, 20), &[], &args) else { return };
    let screen = tmux.wait_for_text("template1");
    let heads = screen.lines().position(|line| line.contains("Backends")).unwrap();
    let at = screen.lines().nth(heads).unwrap().find("Backends").unwrap();
    // A click as xterm encodes it (SGR 1006), with columns and rows starting at 1.
    tmux.type_text(&format!("\u{1b}[<0;{};{}M", at + 1, heads + 1));
    tmux.wait_for_text("databases by backends ↓");
    tmux.type_text(&format!("\u{1b}[<0;{};{}M", at + 1, heads + 1));
    tmux.wait_for_text("databases by backends ↑");
    let row = |tmux: &Tmux| {
        let screen = tmux.colored_screen();
        // The selected row is in reverse video.
        screen.lines().position(|line| line.contains("\u{1b}[7m")).unwrap_or(0)
    };
    tmux.type_text(&format!("\u{1b}[<0;10;{}M", heads + 3));
    tmux.wait_for("the second row is selected", |_| row(&tmux) == heads + 2);
    tmux.type_text("\u{1b}[<64;10;10M");
    tmux.wait_for("the wheel went up", |_| row(&tmux) == heads + 1);
    tmux.press(&["m"]);
    tmux.wait_for("mouse reporting to be off", |_| tmux.pane_variable("mouse_any_flag") == "0");
}

#[test]
fn no_color_and_mono_theme_disable_colors() {
    let test = "no_color_and_mono_theme_disable_colors";
    let Some(cluster) = skip_without_postgres(test, Cluster::builder().start()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let uri = cluster.uri("postgres");
    let has_colours = |variables: &[(&str, &str)], theme: &str| {
        let args = ["top", uri.as_str(), "--view", "waits", "--idle", "--theme", theme];
        let tmux = Tmux::start(test, folder.path(), (100, 30), variables, &args)?;
        tmux.wait_for_text("average active sessions");
        // Colors are the codes 30 to 49 and 90 to 107, including 38;5;n.
        let screen = tmux.colored_screen();
        Some(screen.split("\u{1b}[").skip(1).any(|sequence| {
            let numbers = sequence.split('m').next().unwrap_or_default();
            numbers
                .split(';')
                .filter_map(|number| number.parse::<u32>().ok())
                .any(|number| matches!(number, 30..=38 | 40..=48 | 90..=107))
        }))
    };
    for (variables, theme, expected) in [
        (&[][..], "dark", true),
        (&[][..], "light", true),
        (&[][..], "contrast", true),
        (&[][..], "mono", false),
        (&[("NO_COLOR", "1")][..], "dark", false),
    ] {
        let Some(found) = has_colours(variables, theme) else { return };
        assert_eq!(found, expected, "{variables:?} {theme}");
    }
}

#[test]
fn copying_uses_osc52_unless_disabled() {
    let test = "copying_uses_osc52_unless_disabled";
    let Some(cluster) = skip_without_postgres(test, Cluster::builder().start()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let uri = cluster.uri("postgres");
    let mut client = session(&cluster);
    client.query("BEGIN; SELECT 'copied from top'").unwrap();
    let args = ["top", &uri, "--interval", "300ms"];
    let Some(tmux) = Tmux::start(test, folder.path(), (100, 20), &[], &args) else { return };
    // tmux stores what programs copy by OSC 52 in a paste buffer.
    tmux.set_option("set-clipboard", "on");
    tmux.wait_for_text("copied from top");
    tmux.press(&["Home", "y"]);
    tmux.wait_for("the text in the paste buffer", |_| {
        tmux.clipboard() == "BEGIN; SELECT 'copied from top'"
    });
    let args = ["top", &uri, "--interval", "300ms", "--no-osc52"];
    let Some(tmux) = Tmux::start(test, folder.path(), (100, 20), &[], &args) else { return };
    tmux.wait_for_text("copied from top");
    tmux.press(&["y"]);
    tmux.wait_for_text("copying is disabled");
}

#[test]
fn explain_shows_plan_without_running_the_statement() {
    let test = "explain_shows_plan";
    let Some(cluster) = skip_without_postgres(test, Cluster::builder().start()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let uri = cluster.uri("postgres");
    let mut client = session(&cluster);
    client.query("CREATE TABLE item (id int PRIMARY KEY)").unwrap();
    client.query("BEGIN").unwrap();
    client.query("DELETE FROM item WHERE id = 7").unwrap();
    let args = ["top", &uri, "--interval", "300ms"];
    let Some(tmux) = Tmux::start(test, folder.path(), (100, 20), &[], &args) else { return };
    tmux.wait_for_text("DELETE FROM item");
    tmux.press(&["Home", "e"]);
    tmux.wait_for_text("Index Scan using item_pkey on item");
    tmux.press(&["Escape"]);
    client.query("COPY (SELECT 1) TO '/dev/null'").unwrap();
    tmux.wait_for_text("COPY (SELECT 1)");
    tmux.press(&["e"]);
    tmux.wait_for_text("the server cannot plan the statement: syntax error");
}

#[test]
fn history_shows_sessions_that_have_ended() {
    let test = "history_shows_sessions_that_have_ended";
    let Some(cluster) = skip_without_postgres(test, Cluster::builder().start()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let uri = cluster.uri("postgres");
    let mut client = session(&cluster);
    client.query("BEGIN; SELECT 'soon gone'").unwrap();
    let args = ["top", &uri, "--interval", "200ms"];
    let Some(tmux) = Tmux::start(test, folder.path(), (120, 20), &[], &args) else { return };
    tmux.wait_for_text("soon gone");
    drop(client);
    tmux.wait_for("the session to disappear", |screen| !screen.contains("soon gone"));
    tmux.press(&["{"]);
    let past = tmux.wait_for_text("soon gone");
    assert!(past.contains(" PAST "), "{past}");
    // Signals cannot be sent from the history.
    tmux.press(&["x"]);
    tmux.wait_for_text("this is the past: press Esc to return to the present");
    tmux.press(&["]"]);
    tmux.press(&["Escape"]);
    tmux.wait_for("the present", |screen| {
        !screen.contains(" PAST ") && !screen.contains("soon gone")
    });
}

#[test]
fn lock_wait_storm_is_sampled_ten_times_a_second() {
    let test = "lock_wait_storm_is_sampled";
    let Some(cluster) = skip_without_postgres(test, Cluster::builder().start()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let mut root = session(&cluster);
    root.query("CREATE TABLE item (id int)").unwrap();
    root.query("BEGIN; LOCK item").unwrap();
    let waiting: Vec<_> = (0..8)
        .map(|_| {
            let mut client = session(&cluster);
            std::thread::spawn(move || client.query("SELECT * FROM item").is_ok())
        })
        .collect();
    let uri = cluster.uri("postgres");
    let args = ["top", &uri, "--interval", "2s", "--view", "waits"];
    let Some(tmux) = Tmux::start(test, folder.path(), (120, 40), &[], &args) else { return };
    tmux.wait_for_text("STORM: ten samples a second");
    let samples = |screen: &str| {
        let cell = line(screen, "relation").split_whitespace().last().unwrap_or("0").to_owned();
        cell.parse::<u32>().unwrap_or(0)
    };
    // Eight sessions per sample: more than the normal interval could have counted.
    let screen = tmux.wait_for("many samples", |screen| samples(screen) > 8 * 30);
    assert!(screen.contains("L Lock"), "{screen}");
    root.query("COMMIT").unwrap();
    assert!(waiting.into_iter().all(|waits| waits.join().unwrap()));
}
