//! Measures the cost of the flight recorder: processor time of the whole process, with a hundred
//! backends.
//!
//! ```sh
//! cargo run --release -p howdah-probe --example recorder -- [BACKENDS] [SECONDS]
//! ```
//!
//! Starts a server with that many sessions (100), and records it for so many seconds (20) with the
//! sessions idle and, if `pgbench` is installed, at work. Attaching and stopping are not counted;
//! the thread that writes the file is.

use std::{
    error::Error,
    io::{Write as _, stdout},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use howdah_connect::{Client, ConnParams, ConnectTarget, Environment};
use howdah_inspect::RunningServer;
use howdah_lab::{Cluster, client_tool, wait_until};
use howdah_probe::recorder::{FlightRecorder, RecorderOptions, RecordingTotals};
use rustix::time::{ClockId, clock_gettime};

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let mut number = |default: u32| args.next().map_or(Ok(default), |word| word.parse());
    let (backends, seconds) = (number(100)?, number(20)?);
    let length = Duration::from_secs(seconds.into());
    let connections = (backends + 20).to_string();
    let cluster = Cluster::builder().setting("max_connections", connections).start()?;
    let server = RunningServer::in_data_dir(cluster.data_dir())?;
    writeln!(stdout(), "PostgreSQL {}, {backends} backends, {seconds} s per case", server.major())?;
    writeln!(stdout(), "| backends | % of a core | samples | skipped | bytes per second |")?;
    writeln!(stdout(), "|---|---|---|---|---|")?;
    let idle: Vec<_> = (0..backends).map(|_| session(&cluster)).collect::<Result<_, _>>()?;
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

fn session(cluster: &Cluster) -> Result<Client, Box<dyn Error>> {
    let args = ConnParams::from_conninfo(cluster.uri("postgres"));
    Ok(Client::connect(&ConnectTarget::resolve(&args, &Environment::empty())?)?)
}

/// Runs `pgbench` until the child is killed; returns once all clients are connected.
fn pgbench(
    cluster: &Cluster,
    clients: u32,
    args: &[&str],
) -> Result<Option<Child>, Box<dyn Error>> {
    let Some(pgbench) = client_tool("pgbench") else { return Ok(None) };
    let uri = cluster.socket_uri("postgres");
    let quiet = |command: &mut Command| command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    quiet(Command::new(&pgbench).args(["-i", "-s", "5", &uri]))?.wait()?;
    let clients = clients.to_string();
    let load =
        quiet(Command::new(&pgbench).args(args).args(["-n", "-c", &clients, "-T", "3600", &uri]))?;
    let mut monitor = session(cluster)?;
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgbench'";
    wait_until("pgbench clients", Duration::from_secs(60), || {
        monitor.one_value(sql).is_ok_and(|count| count.as_ref() == Some(&clients))
    });
    Ok(Some(load))
}

/// Records for `length` into a new file, and prints the cost under the heading `what`.
fn record(server: &RunningServer, what: &str, length: Duration) -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("cost.rec");
    let mut recorder =
        FlightRecorder::start(server, &path, RecorderOptions::default(), None, Instant::now())?;
    let (start, cpu) = (Instant::now(), process_cpu());
    while start.elapsed() < length {
        thread::sleep(recorder.next_tick_at().saturating_duration_since(Instant::now()));
        recorder.tick(Instant::now());
    }
    let (cpu, elapsed) = (process_cpu() - cpu, start.elapsed().as_secs_f64());
    let RecordingTotals { samples: looks, lost, .. } = recorder.finish("measured", Instant::now());
    let share = 100.0 * cpu.as_secs_f64() / elapsed;
    // Skipped samples cost nothing: extrapolate to all of them.
    let extrapolated = share * (1.0 + lost.missed_samples as f64 / looks.max(1) as f64);
    // The episode slots come first and are not written. The recording is short enough for the first
    // slot of the ring.
    let bytes = std::os::unix::fs::MetadataExt::blocks(&std::fs::metadata(&path)?) * 512;
    let per_second = bytes as f64 / elapsed;
    writeln!(
        stdout(),
        "| {what} | {extrapolated:.2} | {looks} | {} | {per_second:.0} |",
        lost.missed_samples
    )?;
    Ok(())
}

fn process_cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or_default())
}
