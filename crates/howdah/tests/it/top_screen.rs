//! `howdah top` on a terminal, against real servers under load.

use std::process::{Child, Command, Stdio};

use howdah_connect::{Client, Environment, Target, Words};
use howdah_lab::{Cluster, client_tool, or_say_why_not};
use rustix::process::{Pid, Signal, kill_process};

use crate::tmux::Tmux;

pub(crate) fn target(cluster: &Cluster, database: &str) -> Target {
    let words = Words::from_conninfo(cluster.uri(database));
    Target::resolve(&words, &Environment::empty()).unwrap()
}

pub(crate) fn session(cluster: &Cluster) -> Client {
    Client::connect(&target(cluster, "postgres")).unwrap()
}

/// pgbench at work until it is dropped.
struct Load(Child);

impl Load {
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

impl Drop for Load {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Five sessions, each of which waits for the one before it: the first idles in its transaction. Gives their
/// process ids; the chain is undone when what holds it is dropped.
pub(crate) struct Chain {
    root: Client,
    pub(crate) pids: Vec<i32>,
    waiting: Vec<std::thread::JoinHandle<bool>>,
}

impl Chain {
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
        while watcher.one_value(blocked).unwrap().as_deref() != Some("4") {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        Self { root, pids, waiting }
    }

    /// Lets it go; whether all that waited went on.
    pub(crate) fn undo(mut self) -> bool {
        self.root.query("COMMIT").unwrap();
        self.waiting.into_iter().all(|waits| waits.join().unwrap())
    }
}

/// The line of a screen that has a text.
fn line<'a>(screen: &'a str, part: &str) -> &'a str {
    screen.lines().find(|line| line.contains(part)).unwrap_or_default()
}

#[test]
fn a_lock_chain_of_five_under_load_on_three_majors() {
    for major in [14, 15, 18] {
        let test = "a_lock_chain_of_five_under_load";
        let how = Cluster::builder().major(major).setting("track_io_timing", "on");
        let Some(cluster) = or_say_why_not(test, how.start()) else { continue };
        let folder = tempfile::tempdir().unwrap();
        let load = Load::start(&cluster);
        let chain = Chain::build(&cluster);
        let mut failed = session(&cluster);
        failed.query("BEGIN").unwrap();
        failed.query("SELECT nonsense").unwrap_err();
        let uri = cluster.uri("postgres");
        let args = ["top", &uri, "--interval", "500ms", "--view", "blocking"];
        let Some(tmux) = Tmux::start(test, folder.path(), (140, 40), &[], &args) else { return };

        // Each under the one it waits for, the root with all its victims.
        let screen = tmux.until("the whole chain", |screen| {
            chain.pids.iter().all(|pid| screen.contains(&pid.to_string()))
        });
        let places: Vec<usize> =
            chain.pids.iter().map(|pid| screen.find(&pid.to_string()).unwrap()).collect();
        assert!(places.is_sorted(), "{major}\n{screen}");
        let root = line(&screen, &chain.pids[0].to_string());
        assert!(root.starts_with('B') && root.contains("idle in t"), "{major}\n{screen}");
        let victims = root.split_whitespace().nth(2).and_then(|count| count.parse::<u32>().ok());
        assert!(victims >= Some(4), "{major}\n{screen}");

        // The header has true figures: the failed transaction, this host, a version.
        assert!(screen.contains(&format!("PostgreSQL {major}")), "{screen}");
        tmux.until("one failed transaction", |screen| {
            line(screen, "sessions ").contains("failed tx 1")
        });
        tmux.until("figures of this host", |screen| {
            let host = line(screen, "host cpu ");
            host.contains("memory free ") && !host.contains("host cpu -")
        });
        if load.is_some() {
            tmux.until("transactions per second", |screen| {
                let tps = line(screen, "tps ").split_whitespace().nth(1).unwrap_or("-");
                tps.parse::<f64>().is_ok_and(|tps| tps > 0.0)
            });
        }

        // Every screen of every server is drawn; what a version lacks says so.
        for name in
            ["activity", "blocking", "waits", "databases", "tables", "indexes", "statements"]
        {
            let mut presses = 0;
            while !tmux.screen().lines().last().unwrap_or_default().starts_with(name) {
                assert!(presses < 40, "{name}\n{}", tmux.screen());
                tmux.press(&["Tab"]);
                presses += 1;
                std::thread::sleep(std::time::Duration::from_millis(60));
            }
            tmux.until("a table or a reason", |screen| !screen.contains("waiting for the server"));
        }
        tmux.press(&["3"]);
        let chart = tmux.until("the chart of waits", |screen| {
            screen.contains("average active sessions") && screen.contains("L Lock")
        });
        assert!(chart.contains("LLL"), "{major}\n{chart}");

        // Resized, nothing of the old picture is left; the last line is the last line.
        tmux.press(&["1"]);
        tmux.until_has("activity by time");
        tmux.resize((80, 24));
        let small = tmux.until("the footer on line 24", |screen| {
            screen.lines().nth(23).is_some_and(|line| line.starts_with("activity by"))
        });
        assert_eq!(small.lines().filter(|line| line.contains("q:quit")).count(), 1, "{small}");

        tmux.press(&["q"]);
        tmux.until_has("ended 0");
        assert_eq!(tmux.fact("alternate_on"), "0");
        drop(load);
        assert!(chain.undo());
    }
}

#[test]
fn a_chain_is_cut_at_its_root_from_the_screen() {
    let test = "a_chain_is_cut_at_its_root";
    let Some(cluster) = or_say_why_not(test, Cluster::builder().start()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let chain = Chain::build(&cluster);
    let uri = cluster.uri("postgres");
    let args = ["top", &uri, "--interval", "300ms", "--view", "blocking", "--superusers"];
    let Some(tmux) = Tmux::start(test, folder.path(), (120, 30), &[], &args) else { return };
    let root = chain.pids[0].to_string();
    tmux.until_has(&root);
    tmux.press(&["Home", "x"]);
    let list = tmux.until_has("Are these the ones?");
    assert!(list.contains(&format!("terminate {root}")), "{list}");
    tmux.press(&["y"]);
    tmux.until_has("1 of 1 signalled");
    tmux.until("nobody waits", |screen| screen.contains("no rows"));
    // What stood behind it went on; it did not.
    assert!(chain.waiting.into_iter().all(|waits| waits.join().unwrap()));
}

/// The processes of a server, its postmaster first.
fn processes(postmaster: u32) -> Vec<Pid> {
    let path = format!("/proc/{postmaster}/task/{postmaster}/children");
    let children = std::fs::read_to_string(path).unwrap();
    let children = children.split_whitespace().map(|pid| pid.parse::<i32>().unwrap());
    let postmaster = i32::try_from(postmaster).unwrap();
    std::iter::once(postmaster).chain(children).filter_map(Pid::from_raw).collect()
}

/// A server whose processes stand still until this is dropped.
struct Frozen(Vec<Pid>);

impl Frozen {
    fn freeze(cluster: &Cluster) -> Self {
        let frozen = Self(processes(cluster.pid().unwrap()));
        frozen.send(Signal::STOP);
        frozen
    }

    fn send(&self, signal: Signal) {
        for pid in &self.0 {
            // One that has ended meanwhile needs none.
            let _ = kill_process(*pid, signal);
        }
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        self.send(Signal::CONT);
    }
}

#[test]
fn two_servers_on_one_screen_and_one_of_them_hangs() {
    let test = "two_servers_and_one_hangs";
    let Some(lively) = or_say_why_not(test, Cluster::builder().start()) else { return };
    let Some(hanging) = or_say_why_not(test, Cluster::builder().start()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let (first, second) = (lively.uri("postgres"), hanging.uri("postgres"));
    let args = ["top", &first, &second, "--interval", "300ms", "--idle"];
    let Some(tmux) = Tmux::start(test, folder.path(), (120, 30), &[], &args) else { return };
    let strip = |screen: &str, cluster: &Cluster| {
        let port = format!(":{}/postgres", cluster.port());
        screen
            .lines()
            .find(|line| line.contains(&port) && !line.contains("PostgreSQL "))
            .map(str::to_owned)
    };
    tmux.until("both are read", |screen| {
        [&lively, &hanging]
            .iter()
            .all(|cluster| strip(screen, cluster).is_some_and(|line| line.contains("primary")))
    });
    let frozen = Frozen::freeze(&hanging);

    // The other goes on: a session that comes is seen, keys are answered.
    let mut client = session(&lively);
    client.query("BEGIN; SELECT 'while the other hangs'").unwrap();
    tmux.until_has("while the other hangs");
    tmux.press(&["?"]);
    tmux.until_has("Keys");
    tmux.press(&["?"]);
    tmux.press(&["n"]);
    tmux.until("the one that hangs is looked at", |screen| {
        strip(screen, &hanging).is_some_and(|line| line.starts_with('▶'))
    });
    // First it is old, then, when its answer is overdue, it is away; and why.
    tmux.until("it is away", |screen| {
        strip(screen, &hanging).is_some_and(|line| line.contains("AWAY"))
            && screen.contains("away for ")
            && screen.contains("last read ")
    });
    tmux.press(&["n"]);
    client.query("SELECT 'still here'").unwrap();
    tmux.until_has("still here");

    // It comes back without anybody's help.
    drop(frozen);
    tmux.until("it is back", |screen| {
        strip(screen, &hanging).is_some_and(|line| line.contains("primary"))
    });
    tmux.press(&["q"]);
    tmux.until_has("ended 0");
}

#[test]
fn a_server_that_restarts_comes_back_on_the_same_screen() {
    let test = "a_server_that_restarts";
    let Some(mut cluster) = or_say_why_not(test, Cluster::builder().start()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let uri = cluster.uri("postgres");
    let args = ["top", &uri, "--interval", "200ms", "--view", "databases"];
    let Some(tmux) = Tmux::start(test, folder.path(), (120, 20), &[], &args) else { return };
    tmux.until_has("template1");
    cluster.kill().unwrap();
    tmux.until_has("away for ");
    cluster.start().unwrap();
    let screen = tmux.until("it is read again", |screen| !screen.contains("away for "));
    // Counters began anew with the crash: what they grew by is not known, and is never below zero.
    for row in screen.lines().filter(|line| line.contains("template1") || line.starts_with("tps "))
    {
        let is_negative = |cell: &str| {
            cell.strip_prefix('-')
                .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
        };
        assert!(!row.split_whitespace().any(is_negative), "{row}");
    }
    // Its past is still there, with the hole.
    tmux.press(&["{"]);
    tmux.until_has(" PAST ");
    tmux.press(&["Escape"]);
    tmux.until("the present", |screen| !screen.contains(" PAST "));
}

#[test]
fn a_standby_that_is_promoted_is_shown_as_what_it_has_become() {
    let test = "a_standby_that_is_promoted";
    let Some(primary) = or_say_why_not(test, Cluster::builder().start()) else { return };
    let standby = Cluster::builder().standby_of(&primary).start();
    let Some(standby) = or_say_why_not(test, standby) else { return };
    let folder = tempfile::tempdir().unwrap();
    let uri = standby.uri("postgres");
    let args = ["top", &uri, "--interval", "200ms"];
    let Some(tmux) = Tmux::start(test, folder.path(), (120, 20), &[], &args) else { return };
    tmux.until("a standby with its lag", |screen| {
        screen.contains(" standby ") && line(screen, "tps ").contains("lag ")
    });
    session(&standby).query("SELECT pg_promote()").unwrap();
    tmux.until("a primary without lag", |screen| {
        screen.contains(" primary ") && !line(screen, "tps ").contains("lag ")
    });
}

#[test]
fn the_terminal_is_given_back_after_signals() {
    let test = "the_terminal_is_given_back";
    let Some(cluster) = or_say_why_not(test, Cluster::builder().start()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let uri = cluster.uri("postgres");
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let args = ["top", &uri];
        let Some(tmux) = Tmux::start(test, folder.path(), (80, 24), &[], &args) else { return };
        tmux.until_has("activity by time");
        assert_eq!(
            (tmux.fact("alternate_on"), tmux.fact("mouse_any_flag")),
            ("1".into(), "1".into())
        );
        let pid = Pid::from_raw(i32::try_from(tmux.pid()).unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
        tmux.until_has("ended ");
        assert_eq!(
            (tmux.fact("alternate_on"), tmux.fact("mouse_any_flag")),
            ("0".into(), "0".into())
        );
        // Echo is on again, and a line ends with Enter.
        tmux.type_in("typed and seen");
        tmux.press(&["Enter"]);
        tmux.until("echo and cat", |screen| screen.matches("typed and seen").count() == 2);
    }
}

#[test]
fn a_mouse_selects_sorts_and_scrolls_and_can_be_left_to_the_terminal() {
    let test = "a_mouse_selects";
    let Some(cluster) = or_say_why_not(test, Cluster::builder().start()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let uri = cluster.uri("postgres");
    let args = ["top", &uri, "--interval", "300ms", "--view", "databases"];
    let Some(tmux) = Tmux::start(test, folder.path(), (100, 20), &[], &args) else { return };
    let screen = tmux.until_has("template1");
    let heads = screen.lines().position(|line| line.contains("Backends")).unwrap();
    let at = screen.lines().nth(heads).unwrap().find("Backends").unwrap();
    // As xterm tells a click (SGR 1006): columns and rows from 1.
    tmux.type_in(&format!("\u{1b}[<0;{};{}M", at + 1, heads + 1));
    tmux.until_has("databases by backends ↓");
    tmux.type_in(&format!("\u{1b}[<0;{};{}M", at + 1, heads + 1));
    tmux.until_has("databases by backends ↑");
    let row = |tmux: &Tmux| {
        let screen = tmux.coloured();
        // Reversed: the selected row.
        screen.lines().position(|line| line.contains("\u{1b}[7m")).unwrap_or(0)
    };
    tmux.type_in(&format!("\u{1b}[<0;10;{}M", heads + 3));
    tmux.until("the second row is selected", |_| row(&tmux) == heads + 2);
    tmux.type_in("\u{1b}[<64;10;10M");
    tmux.until("the wheel went up", |_| row(&tmux) == heads + 1);
    tmux.press(&["m"]);
    tmux.until("the mouse is the terminal's", |_| tmux.fact("mouse_any_flag") == "0");
}

#[test]
fn no_color_means_none_and_themes_have_theirs() {
    let test = "no_color_means_none";
    let Some(cluster) = or_say_why_not(test, Cluster::builder().start()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let uri = cluster.uri("postgres");
    let has_colours = |variables: &[(&str, &str)], theme: &str| {
        let args = ["top", uri.as_str(), "--view", "waits", "--idle", "--theme", theme];
        let tmux = Tmux::start(test, folder.path(), (100, 30), variables, &args)?;
        tmux.until_has("average active sessions");
        // Colours are 30 to 49 and 90 to 107, and 38;5;n of the 256.
        let screen = tmux.coloured();
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
fn what_is_copied_goes_through_the_terminal_unless_that_is_off() {
    let test = "what_is_copied";
    let Some(cluster) = or_say_why_not(test, Cluster::builder().start()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let uri = cluster.uri("postgres");
    let mut client = session(&cluster);
    client.query("BEGIN; SELECT 'copied from top'").unwrap();
    let args = ["top", &uri, "--interval", "300ms"];
    let Some(tmux) = Tmux::start(test, folder.path(), (100, 20), &[], &args) else { return };
    // tmux takes what programs copy into a buffer of its own.
    tmux.tmux_set("set-clipboard", "on");
    tmux.until_has("copied from top");
    tmux.press(&["Home", "y"]);
    tmux.until("tmux has it", |_| tmux.buffer() == "BEGIN; SELECT 'copied from top'");
    let args = ["top", &uri, "--interval", "300ms", "--no-osc52"];
    let Some(tmux) = Tmux::start(test, folder.path(), (100, 20), &[], &args) else { return };
    tmux.until_has("copied from top");
    tmux.press(&["y"]);
    tmux.until_has("copying is switched off");
}

#[test]
fn a_plan_is_looked_at_and_nothing_is_run() {
    let test = "a_plan_is_looked_at";
    let Some(cluster) = or_say_why_not(test, Cluster::builder().start()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let uri = cluster.uri("postgres");
    let mut client = session(&cluster);
    client.query("CREATE TABLE item (id int PRIMARY KEY)").unwrap();
    client.query("BEGIN").unwrap();
    client.query("DELETE FROM item WHERE id = 7").unwrap();
    let args = ["top", &uri, "--interval", "300ms"];
    let Some(tmux) = Tmux::start(test, folder.path(), (100, 20), &[], &args) else { return };
    tmux.until_has("DELETE FROM item");
    tmux.press(&["Home", "e"]);
    tmux.until_has("Index Scan using item_pkey on item");
    tmux.press(&["Escape"]);
    client.query("COPY (SELECT 1) TO '/dev/null'").unwrap();
    tmux.until_has("COPY (SELECT 1)");
    tmux.press(&["e"]);
    tmux.until_has("the server makes no plan of it: syntax error");
}

#[test]
fn the_past_of_a_session_that_is_gone_can_be_looked_at() {
    let test = "the_past_of_a_session";
    let Some(cluster) = or_say_why_not(test, Cluster::builder().start()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let uri = cluster.uri("postgres");
    let mut client = session(&cluster);
    client.query("BEGIN; SELECT 'soon gone'").unwrap();
    let args = ["top", &uri, "--interval", "200ms"];
    let Some(tmux) = Tmux::start(test, folder.path(), (120, 20), &[], &args) else { return };
    tmux.until_has("soon gone");
    drop(client);
    tmux.until("it is gone", |screen| !screen.contains("soon gone"));
    tmux.press(&["{"]);
    let past = tmux.until_has("soon gone");
    assert!(past.contains(" PAST "), "{past}");
    // Nothing can be done to it there.
    tmux.press(&["x"]);
    tmux.until_has("this is the past: Esc goes back to now");
    tmux.press(&["]"]);
    tmux.press(&["Escape"]);
    tmux.until("now", |screen| !screen.contains(" PAST ") && !screen.contains("soon gone"));
}

#[test]
fn a_storm_of_lock_waits_is_sampled_ten_times_a_second() {
    let test = "a_storm_of_lock_waits";
    let Some(cluster) = or_say_why_not(test, Cluster::builder().start()) else { return };
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
    tmux.until_has("STORM: ten samples a second");
    let samples = |screen: &str| {
        let cell = line(screen, "relation").split_whitespace().last().unwrap_or("0").to_owned();
        cell.parse::<u32>().unwrap_or(0)
    };
    // Eight sessions in each sample: more than two readings have, or samples at one a second.
    let screen = tmux.until("many samples", |screen| samples(screen) > 8 * 30);
    assert!(screen.contains("L Lock"), "{screen}");
    root.query("COMMIT").unwrap();
    assert!(waiting.into_iter().all(|waits| waits.join().unwrap()));
}
