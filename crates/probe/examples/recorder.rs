//! What the flight recorder costs: processor time of the whole process, beside a hundred backends.
//!
//! ```sh
//! cargo run --release -p howdah-probe --example recorder -- [BACKENDS] [SECONDS]
//! ```
//!
//! It starts a server of its own with that many sessions (100), and records it for so many seconds (20) with
//! the sessions idle and, with `pgbench` at hand, at work. Attaching and the end are not counted, the thread
//! that writes the file is.

use std::{
    error::Error,
    io::{Write as _, stdout},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use howdah_connect::{Client, Environment, Target, Words};
use howdah_inspect::Server;
use howdah_lab::{Cluster, client_tool};
use howdah_probe::recorder::{Options, Recorder, Summary};
use rustix::time::{ClockId, clock_gettime};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    let mut words = std::env::args().skip(1);
    let mut number = |default: u32| words.next().map_or(Ok(default), |word| word.parse());
    let (backends, seconds) = (number(100)?, number(20)?);
    let length = Duration::from_secs(seconds.into());
    let connections = (backends + 20).to_string();
    let cluster = Cluster::builder().setting("max_connections", connections).start()?;
    let server = Server::in_data_dir(cluster.data_dir())?;
    writeln!(stdout(), "PostgreSQL {}, {backends} backends, {seconds} s a case", server.major())?;
    writeln!(stdout(), "| backends | % of a core | looks | left out | bytes a second |")?;
    writeln!(stdout(), "|---|---|---|---|---|")?;
    let idle: Vec<_> = (0..backends).map(|_| session(&cluster)).collect::<Result<_>>()?;
    record(&server, "idle", length)?;
    drop(idle);
    for (what, args) in [("pgbench -S", &["-S"][..]), ("pgbench", &["-N"])] {
        if let Some(mut load) = pgbench(&cluster, backends, args)? {
            record(&server, what, length)?;
            load.kill()?;
            load.wait()?;
        }
    }
    Ok(())
}

fn session(cluster: &Cluster) -> Result<Client> {
    let words = Words::from_conninfo(cluster.uri("postgres"));
    Ok(Client::connect(&Target::resolve(&words, &Environment::empty())?)?)
}

/// Sessions at work, until the child is killed.
fn pgbench(cluster: &Cluster, clients: u32, args: &[&str]) -> Result<Option<Child>> {
    let Some(pgbench) = client_tool("pgbench") else { return Ok(None) };
    let uri = cluster.socket_uri("postgres");
    let quiet = |command: &mut Command| command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    quiet(Command::new(&pgbench).args(["-i", "-s", "5", &uri]))?.wait()?;
    let clients = clients.to_string();
    let load =
        quiet(Command::new(&pgbench).args(args).args(["-n", "-c", &clients, "-T", "3600", &uri]))?;
    let mut asking = session(cluster)?;
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgbench'";
    while asking.one_value(sql)?.as_ref() != Some(&clients) {
        thread::sleep(Duration::from_millis(50));
    }
    Ok(Some(load))
}

/// Records for a while, into a file that is begun anew.
fn record(server: &Server, what: &str, length: Duration) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("cost.rec");
    let mut recorder = Recorder::begin(server, &path, Options::default(), Instant::now())?;
    let (begin, cpu) = (Instant::now(), process_cpu());
    while begin.elapsed() < length {
        thread::sleep(recorder.due().saturating_duration_since(Instant::now()));
        recorder.tick(Instant::now());
    }
    let (cpu, elapsed) = (process_cpu() - cpu, begin.elapsed().as_secs_f64());
    let Summary { looks, lost, .. } = recorder.finish("measured", Instant::now());
    let share = 100.0 * cpu.as_secs_f64() / elapsed;
    // What was left out was not paid for: as if nothing had been.
    let whole = share * (1.0 + lost.looks as f64 / looks.max(1) as f64);
    // The slots of episodes lie in front, unwritten; the first slot of the ring has all of so short a time.
    let bytes = std::os::unix::fs::MetadataExt::blocks(&std::fs::metadata(&path)?) * 512;
    let a_second = bytes as f64 / elapsed;
    writeln!(stdout(), "| {what} | {whole:.2} | {looks} | {} | {a_second:.0} |", lost.looks)?;
    Ok(())
}

fn process_cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or_default())
}
