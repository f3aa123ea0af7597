//! Measures the cost of sampling: processor time of the sampling thread, by rate and by load of the
//! backends.
//!
//! ```sh
//! cargo run --release -p howdah-probe --example sampling -- [BACKENDS] [SECONDS]
//! ```
//!
//! Starts a server with that many sessions (100), and measures each case for so many seconds (5).
//! Processor time hardly depends on what else the machine does; missed ticks do. If `pgbench` is
//! installed, the sessions are also measured under load.

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
use howdah_probe::{
    sweep::SweepSampler,
    waits::{Profile, QueryOptions, SamplerOptions, TickSchedule, WaitSampler},
};
use rustix::time::{ClockId, clock_gettime};

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let mut number = |default: u32| args.next().map_or(Ok(default), |word| word.parse());
    let (backends, seconds) = (number(100)?, number(5)?);
    let length = Duration::from_secs(seconds.into());
    let cluster =
        Cluster::builder().setting("max_connections", (backends + 20).to_string()).start()?;
    let server = RunningServer::in_data_dir(cluster.data_dir())?;
    writeln!(stdout(), "PostgreSQL {}, {backends} backends, {seconds} s per case", server.major())?;
    writeln!(
        stdout(),
        "| backends | sampled | rate/s | µs/round | % of a core | missed | waiting or working |"
    )?;
    writeln!(stdout(), "|---|---|---|---|---|---|---|")?;
    let idle: Vec<_> = (0..backends).map(|_| session(&cluster)).collect::<Result<_, _>>()?;
    waits(&server, "idle", length)?;
    drop(idle);
    let nothing = measure(1000, length, |_| Ok(()))?;
    print("any", "nothing: wake-ups only", 1000, &nothing, "")?;
    if let Some(mut load) = pgbench(&cluster, backends)? {
        waits(&server, "pgbench -S", length)?;
        sweep(&server, "pgbench -S", length)?;
        load.kill()?;
        load.wait()?;
    }
    Ok(())
}

fn session(cluster: &Cluster) -> Result<Client, Box<dyn Error>> {
    let args = ConnParams::from_conninfo(cluster.uri("postgres"));
    Ok(Client::connect(&ConnectTarget::resolve(&args, &Environment::empty())?)?)
}

/// Runs `pgbench` until the child is killed; returns once all clients are connected.
fn pgbench(cluster: &Cluster, clients: u32) -> Result<Option<Child>, Box<dyn Error>> {
    let Some(pgbench) = client_tool("pgbench") else { return Ok(None) };
    let uri = cluster.socket_uri("postgres");
    let quiet = |command: &mut Command| command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    quiet(Command::new(&pgbench).args(["-i", "-s", "5", &uri]))?.wait()?;
    let clients = clients.to_string();
    let load =
        quiet(Command::new(&pgbench).args(["-S", "-n", "-c", &clients, "-T", "3600", &uri]))?;
    let mut monitor = session(cluster)?;
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgbench'";
    wait_until("pgbench clients", Duration::from_secs(60), || {
        monitor.one_value(sql).is_ok_and(|count| count.as_ref() == Some(&clients))
    });
    Ok(Some(load))
}

fn waits(server: &RunningServer, what: &str, length: Duration) -> Result<(), Box<dyn Error>> {
    for (rate, is_reading) in [(100, false), (1000, false), (100, true), (1000, true)] {
        let queries = is_reading.then(QueryOptions::default);
        let mut sampler =
            WaitSampler::open(server, SamplerOptions { queries, ..SamplerOptions::default() })?;
        let mut profile = Profile::default();
        let measured = measure(rate, length, |now| {
            profile.add(&sampler.sample(now)?);
            Ok(())
        })?;
        let report = profile.total();
        let active = report.database_time.as_secs_f64() / report.elapsed.as_secs_f64();
        let sampled = if is_reading { "waits and statements" } else { "waits" };
        print(what, sampled, rate, &measured, &format!("{active:.1}"))?;
    }
    Ok(())
}

fn sweep(server: &RunningServer, what: &str, length: Duration) -> Result<(), Box<dyn Error>> {
    let mut sweep = SweepSampler::open(server, Instant::now(), Duration::from_secs(1))?;
    let measured = measure(1000, length, |now| Ok(sweep.poll(now).map(|_| ())?))?;
    print(what, "sweep", 1000, &measured, "")
}

/// Result of measuring one case.
struct SamplingRun {
    rounds: u64,
    missed: u64,
    elapsed: Duration,
    cpu: Duration,
}

/// Runs `round` at a rate, and measures the whole thread, including wake-ups.
fn measure(
    rate: u32,
    length: Duration,
    mut round: impl FnMut(Instant) -> Result<(), Box<dyn Error>>,
) -> Result<SamplingRun, Box<dyn Error>> {
    let (start, cpu) = (Instant::now(), thread_cpu_time());
    let mut schedule = TickSchedule::new(start, Duration::from_secs(1) / rate);
    let mut rounds = 0;
    while start.elapsed() < length {
        thread::sleep(schedule.next_tick_at().saturating_duration_since(Instant::now()));
        let now = Instant::now();
        schedule.advance(now);
        round(now)?;
        rounds += 1;
    }
    Ok(SamplingRun {
        rounds,
        missed: schedule.missed(),
        elapsed: start.elapsed(),
        cpu: thread_cpu_time() - cpu,
    })
}

fn print(
    what: &str,
    sampled: &str,
    rate: u32,
    measured: &SamplingRun,
    active: &str,
) -> Result<(), Box<dyn Error>> {
    let SamplingRun { rounds, missed, elapsed, cpu } = measured;
    let per_round = cpu.as_secs_f64() * 1e6 / *rounds as f64;
    // Extrapolate to the full rate, which a busy machine may not reach.
    let share = per_round * f64::from(rate) / 1e4;
    let part = *missed as f64 * 100.0 / (elapsed.as_secs_f64() * f64::from(rate));
    writeln!(
        stdout(),
        "| {what} | {sampled} | {rate} | {per_round:.1} | {share:.2} | {part:.0} % | {active} |"
    )?;
    Ok(())
}

fn thread_cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or_default())
}
