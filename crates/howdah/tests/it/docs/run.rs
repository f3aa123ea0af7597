//! The commands of the pages, run as they stand: on real servers with the names of the pages, in a
//! network and with folders of their own.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, ExitStatus},
    time::{Duration, Instant},
};

use howdah_lab::wait_until;
use rustix::process::{Pid, Signal, kill_process_group};

use super::{is_for_users, pages, shell_blocks, world::World};

/// How long a command may take to become ready, or to end after a signal.
const TIMEOUT: Duration = Duration::from_secs(60);
/// How long commands run that would go on for ever or for minutes, unless they show something
/// earlier.
const WATCH_TIME: Duration = Duration::from_secs(3);

/// How a command of the pages is run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Manner {
    /// Until it ends, successfully.
    Ends,
    /// Until it ends. It may also exit with 3 or 4, which are answers, too.
    Answers,
    /// Until the end of the page or the next service. Then it ends with SIGTERM, successfully. The
    /// page goes on when it has shown this part.
    Serves(&'static str),
    /// Until it shows something. Then it ends with SIGINT, as if its user had pressed Ctrl-C, and
    /// exits with this code.
    Watches(i32),
    /// The same at a terminal, which is closed in the end.
    Draws,
    /// Not here. The reason says where it is tried instead.
    Elsewhere(&'static str),
}

use Manner::{Answers, Draws, Elsewhere, Ends, Serves, Watches};

/// The first part that a command contains decides.
const MANNERS: [(&str, Manner); 53] = [
    ("apt install", Elsewhere("scripts/check-dist installs the package")),
    ("dnf install", Elsewhere("scripts/check-dist installs the package")),
    ("tar -xzf howdah-", Elsewhere("scripts/check-dist installs the package")),
    ("minisign -V", Elsewhere("scripts/sign-dist verifies the signature")),
    ("git clone", Elsewhere("the tests run in a clone")),
    ("make install", Elsewhere("it builds with optimisation; deploy::* tries scripts/install")),
    ("kubectl", Elsewhere("scripts/check-helm checks the chart; it needs a cluster")),
    ("helm ", Elsewhere("scripts/check-helm checks the chart; it needs a cluster")),
    ("docker ", Elsewhere("it needs a daemon")),
    ("systemctl", Elsewhere("it needs systemd as the first process")),
    ("spark-submit", Elsewhere("spark::* run the job; it needs a cluster")),
    ("zip -r howdah_compare", Elsewhere("it is for a cluster")),
    ("curl", Elsewhere("replay/pace.rs sends these requests")),
    ("mail -s", Elsewhere("it needs a mail server")),
    ("s3://", Elsewhere("it needs a store; replay/stores.rs has one")),
    ("--container", Elsewhere("howdah-probe's tests of containers")),
    ("pg_upgrade", Elsewhere("it needs two installed versions with their client programs")),
    ("--scale 250", Elsewhere("it needs 4 GB of data")),
    ("ssh -fN", Elsewhere("it needs another host")),
    ("--tls-client-ca", Elsewhere("top_agent::* have certificates")),
    ("openssl s_client", Elsewhere("program_of_openssl_can_send, of howdah-statsd")),
    ("--agent-ca", Elsewhere("top_agent::* have certificates")),
    ("howdah agent", Serves("agent: ")),
    ("warm benchmark", Watches(1)),
    ("capture doctor", Answers),
    ("howdah demo", Elsewhere("demo::*")),
    ("pool --check", Ends),
    ("pool import", Ends),
    ("pool advise", Ends),
    ("statsd --check", Ends),
    ("statsd import", Ends),
    ("statsd --takeover", Elsewhere("statsd_takeover::* have running servers")),
    ("howdah pool", Serves("listening: ")),
    ("howdah statsd", Serves("management: ")),
    ("report serve", Serves("http://")),
    ("warm watch", Serves("image taken")),
    ("warm follow", Serves("server is the primary")),
    ("top --watch", Serves("metrics: ")),
    ("replay -", Watches(1)),
    ("top --replay", Draws),
    ("--once", Ends),
    ("--interval 10s --format csv", Watches(0)),
    ("--format ndjson > /dev/null", Watches(0)),
    ("howdah top", Draws),
    ("probe report", Ends),
    ("probe doctor", Ends),
    ("probe lock-graph", Ends),
    ("--until-checkpoint", Watches(0)),
    ("howdah probe", Watches(0)),
    ("howdah compare", Answers),
    ("howdah rehearse", Answers),
    ("warm diff", Answers),
    ("warm load", Answers),
];

fn manner_of(command: &str) -> Manner {
    let command = without_comment(command);
    let rule = MANNERS.iter().find(|(part, _)| command.contains(part));
    rule.map_or(Ends, |(_, manner)| *manner)
}

fn without_comment(command: &str) -> String {
    let line = |line: &str| line.split_once(" # ").map_or(line, |(line, _)| line).to_owned();
    command.lines().map(line).collect::<Vec<_>>().join("\n")
}

/// Scripts that run before commands that contain a part: they make what the page assumes.
const BEFORE: [(&str, &str); 15] = [
    (
        "monday",
        "[ -e monday ] || howdah capture import postgresql.log -o monday",
    ),
    (
        "howdah compare",
        "[ -e monday ] || howdah capture import postgresql.log -o monday
         for run in a1 a2 a3 b1 b2 b3 run-a run-b; do
             [ -e $run ] || howdah replay monday --target postgres://localhost/shop -o $run
         done",
    ),
    (
        "web1 web2",
        "howdah capture import postgresql.log -o web1
         howdah capture import postgresql.csv -o web2",
    ),
    ("drop-index.sql", "echo 'drop index if exists sales.invoices_id;' > drop-index.sql"),
    ("_howdah", "mkdir -p .zfunc"),
    ("gz", "gzip --keep postgresql-1.csv; mkdir log; mv postgresql-1.csv.gz log"),
    ("serve", "mkdir -p rehearsals downloads"),
    ("pg_dumpall", "dropdb -h copy18 -U postgres shop"),
    ("diff monday.cache", "cp shop.cache monday.cache; cp shop.cache tuesday.cache"),
    ("diff primary.cache", "cp shop.cache primary.cache; cp shop.cache standby.cache"),
    ("warm table", "psql -qc 'create table if not exists orders as select * from items' shop"),
    (
        "autoprewarm.blocks",
        "psql -qc 'select autoprewarm_dump_now()' shop >&2
         mkdir -p /var/lib/postgresql/15/main
         cp \"$(psql -Atc 'show data_directory' shop)/autoprewarm.blocks\" /var/lib/postgresql/15/main",
    ),
    ("CAPTURE STOP", "psql -h 127.0.0.1 -p 6432 -U app -c 'select 1' shop"),
    ("postgresql:///postgres?host=/tmp/howdah-lab-07d1fa32b9c4", "howdah lab start --name shown"),
    (
        "-o /etc/howdah/howdah.toml",
        "cat \"$PACKAGES/howdah.toml\" > /etc/howdah/howdah.toml",
    ),
];

/// Pages whose commands talk to a pooler that runs already.
const BEHIND_POOLER: [&str; 5] = [
    "guide/pool-capture",
    "guide/pool-cluster",
    "guide/pool-mirror",
    "guide/pool-shards",
    "guide/top",
];

/// Runs all commands of a page, in their order.
fn run(page: &str, commands: &str, blocks: &[String]) {
    let Some(mut world) = World::new(page, commands) else { return };
    let mut services = Vec::new();
    if BEHIND_POOLER.contains(&page) {
        let pooler = "howdah pool -c /etc/howdah/howdah.toml --os-user howdah";
        run_command(&mut world, &mut services, pooler).unwrap();
    }
    let mut wrong = Vec::new();
    for block in blocks {
        for command in steps(block) {
            if let Err(problem) = run_command(&mut world, &mut services, &command) {
                wrong.push(format!("{command}\n{problem}"));
            }
        }
    }
    wrong.extend(stop(&mut services));
    assert!(wrong.is_empty(), "{page}.md:\n\n{}", wrong.join("\n\n"));
}

/// The parts of a block that are run one after the other: its lines, or all of it if it is a
/// script.
fn steps(block: &str) -> Vec<String> {
    let is_script = |line: &str| {
        line.starts_with("if ")
            || line.starts_with("while ")
            || line.contains(" & ")
            || line.ends_with(" &")
            || line.split_once('=').is_some_and(|(name, _)| name.chars().all(char::is_alphanumeric))
    };
    if block.lines().any(is_script) {
        return vec![block.to_owned()];
    }
    let lines = block.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.map(str::to_owned).collect()
}

fn run_command(
    world: &mut World,
    services: &mut Vec<(String, CommandProcess)>,
    command: &str,
) -> Result<(), String> {
    let manner = manner_of(command);
    if !matches!(manner, Elsewhere(_)) {
        for (_, script) in BEFORE.iter().filter(|(part, _)| command.contains(part)) {
            world.shell(script);
        }
        if let Some(output) = output_of(command).filter(|output| !output.starts_with("/etc")) {
            // Another command of the page may have written it.
            world.shell(&format!("rm -rf {output}"));
        }
    }
    let mut process = match manner {
        Elsewhere(_) => return Ok(()),
        // `script` has a terminal for it.
        Draws => {
            let quoted = command.replace('\'', r"'\''");
            CommandProcess::start(world, &format!("exec script -qec '{quoted}' /dev/null"))
        }
        Serves(_) => {
            if !command.contains("--takeover") {
                let problems = stop(services);
                if !problems.is_empty() {
                    return Err(problems.join("\n"));
                }
            }
            CommandProcess::start(world, command)
        }
        Ends | Answers | Watches(_) => CommandProcess::start(world, &world.with_facts(command)),
    };
    match manner {
        Serves(part) => {
            process.wait_until(command, |process| process.output().contains(part));
            if let Some(status) = process.ended() {
                return Err(format!("{status}\n{}", process.output()));
            }
            services.push((command.to_owned(), process));
            return Ok(());
        }
        Watches(_) | Draws => {
            let start = Instant::now();
            process.wait_until(command, |process| {
                start.elapsed() > WATCH_TIME || !process.output().is_empty()
            });
            process.signal(if manner == Draws { Signal::TERM } else { Signal::INT });
        }
        Ends | Answers | Elsewhere(_) => {}
    }
    let status = process.wait(command);
    let is_fine = match manner {
        Answers => matches!(status.code(), Some(0 | 3 | 4)),
        Watches(code) => status.code() == Some(code),
        _ => status.success(),
    };
    if is_fine { Ok(()) } else { Err(format!("{status}\n{}", process.output())) }
}

/// The file or folder that a command writes: the value of `-o` or `--output`.
fn output_of(command: &str) -> Option<&str> {
    let mut words = command.split_whitespace();
    words.find(|word| matches!(*word, "-o" | "--output"))?;
    words.next()
}

/// Ends services as a service manager does. Returns those that did not end successfully.
fn stop(services: &mut Vec<(String, CommandProcess)>) -> Vec<String> {
    let mut problems = Vec::new();
    for (command, mut process) in services.drain(..) {
        process.signal(Signal::TERM);
        let status = process.wait(&command);
        if !status.success() {
            problems.push(format!("{command}\nafter SIGTERM: {status}\n{}", process.output()));
        }
    }
    problems
}

/// A process group whose output goes to a file.
struct CommandProcess {
    child: Child,
    output: PathBuf,
}

impl CommandProcess {
    fn start(world: &World, line: &str) -> Self {
        let (file, output) = tempfile::NamedTempFile::new().unwrap().keep().unwrap();
        let mut command = world.command(line);
        command.stdout(file.try_clone().unwrap()).stderr(file).process_group(0);
        Self { child: command.spawn().unwrap(), output }
    }

    fn output(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.output).unwrap()).into_owned()
    }

    fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    fn signal(&self, signal: Signal) {
        // It may have ended.
        let _ = kill_process_group(Pid::from_child(&self.child), signal);
    }

    /// Waits until the process ends, or a condition holds.
    fn wait_until(&mut self, command: &str, condition: impl Fn(&Self) -> bool) {
        wait_until(&format!("output of {command}"), TIMEOUT, || {
            self.ended().is_some() || condition(self)
        });
    }

    fn wait(&mut self, command: &str) -> ExitStatus {
        let mut ended = None;
        let what = format!("the end of {command}");
        let deadline = Instant::now() + TIMEOUT;
        wait_until(&what, 2 * TIMEOUT, || {
            ended = self.ended();
            if Instant::now() > deadline {
                self.signal(Signal::KILL);
            }
            ended.is_some()
        });
        ended.unwrap()
    }
}

impl Drop for CommandProcess {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
        let _ = self.child.wait();
        let _ = fs::remove_file(&self.output);
    }
}

/// Declares one test for each page, and the list of the pages.
macro_rules! page_tests {
    ($($test:ident: $page:literal,)*) => {
        $(
            #[test]
            fn $test() {
                run_page($page);
            }
        )*

        const TESTED: &[&str] = &[$($page),*];
    };
}

page_tests! {
    capture: "guide/capture",
    checkpoints: "guide/checkpoints",
    compare: "guide/compare",
    getting_started: "guide/getting-started",
    lab: "guide/lab",
    move_from_pg_activity: "guide/move-from-pg-activity",
    move_from_pgbouncer: "guide/move-from-pgbouncer",
    move_from_pgcat: "guide/move-from-pgcat",
    move_from_pgreplay_go: "guide/move-from-pgreplay-go",
    move_from_statsd: "guide/move-from-statsd",
    pool: "guide/pool",
    pool_capture: "guide/pool-capture",
    pool_cluster: "guide/pool-cluster",
    pool_mirror: "guide/pool-mirror",
    pool_modes: "guide/pool-modes",
    pool_shards: "guide/pool-shards",
    probe: "guide/probe",
    rehearse: "guide/rehearse",
    replay: "guide/replay",
    statsd: "guide/statsd",
    top: "guide/top",
    upgrade: "guide/upgrade",
    warm: "guide/warm",
    warm_failover: "guide/warm-failover",
    warm_managed: "guide/warm-managed",
    inputs: "reference/inputs",
    readme: "README",
}

/// Pages whose commands are run by other tests.
const RUN_ELSEWHERE: [(&str, &str); 2] = [
    ("guide/rehearse-ci", "rehearse_ci::*"),
    ("guide/kubernetes", "needs a cluster; scripts/check-helm checks the chart"),
];

fn run_page(name: &str) {
    let text = pages().into_iter().find(|(path, _)| name_of(path) == name).unwrap().1;
    let blocks = shell_blocks(&text);
    run(name, &blocks.concat(), &blocks);
}

/// The name of a page in this file: its path in the book, without the extension.
fn name_of(path: &Path) -> String {
    path.strip_prefix("docs/src").unwrap_or(path).with_extension("").to_string_lossy().into_owned()
}

#[test]
fn all_pages_with_commands_are_run() {
    let with_commands = pages().into_iter().filter(is_for_users);
    let with_commands = with_commands.filter(|(_, text)| !shell_blocks(text).is_empty());
    let with_commands: BTreeSet<String> = with_commands.map(|(path, _)| name_of(&path)).collect();
    let elsewhere = RUN_ELSEWHERE.iter().map(|(page, _)| *page);
    let known = TESTED.iter().copied().chain(elsewhere).map(str::to_owned).collect();
    assert_eq!(with_commands, known);
}

#[test]
fn each_manner_is_needed() {
    let pages: Vec<_> = pages().into_iter().filter(is_for_users).collect();
    let commands: Vec<_> = pages
        .iter()
        .flat_map(|(_, text)| shell_blocks(text))
        .flat_map(|block| steps(&block))
        .collect();
    for (at, (part, _)) in MANNERS.iter().enumerate() {
        let decides = |command: &String| {
            let command = without_comment(command);
            MANNERS.iter().position(|(part, _)| command.contains(part)) == Some(at)
        };
        assert!(commands.iter().any(decides), "no command is run as {part:?} says");
    }
}
