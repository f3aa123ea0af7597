//! What sampling costs: processor time of the sampling thread, by rate and by what the backends do.
//!
//! ```sh
//! cargo run --release -p howdah-probe --example sampling -- [BACKENDS] [SECONDS]
//! ```
//!
//! It starts a server of its own with that many sessions (100), and measures each case for so many
//! seconds (5). Processor time hardly depends on what else the machine does; ticks that were missed do. With
//! `pgbench` at hand, the sessions also work.

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
use howdah_probe::{
    sweep::SweepSampler,
    waits::{Options, Pace, Profile, QueryOptions, Sampler},
};
use rustix::time::{ClockId, clock_gettime};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    let mut words = std::env::args().skip(1);
    let mut number = |default: u32| words.next().map_or(Ok(default), |word| word.parse());
    let (backends, seconds) = (number(100)?, number(5)?);
    let length = Duration::from_secs(seconds.into());
    let cluster =
        Cluster::builder().setting("max_connections", (backends + 20).to_string()).start()?;
    let server = Server::in_data_dir(cluster.data_dir())?;
    writeln!(stdout(), "PostgreSQL {}, {backends} backends, {seconds} s a case", server.major())?;
    writeln!(
        stdout(),
        "| backends | sampled | rate/s | µs/round | % of a core | missed | waiting or working |"
    )?;
    writeln!(stdout(), "|---|---|---|---|---|---|---|")?;
    let idle: Vec<_> = (0..backends).map(|_| session(&cluster)).collect::<Result<_>>()?;
    waits(&server, "idle", length)?;
    drop(idle);
    let nothing = measure(1000, length, |_| Ok(()))?;
    print("any", "nothing: waking up only", 1000, &nothing, "")?;
    if let Some(mut load) = pgbench(&cluster, backends)? {
        waits(&server, "pgbench -S", length)?;
        sweep(&server, "pgbench -S", length)?;
        load.kill()?;
        load.wait()?;
    }
    Ok(())
}

fn session(cluster: &Cluster) -> Result<Client> {
    let words = Words::from_conninfo(cluster.uri("postgres"));
    Ok(Client::connect(&Target::resolve(&words, &Environment::empty())?)?)
}

/// Sessions at work, until the child is killed.
fn pgbench(cluster: &Cluster, clients: u32) -> Result<Option<Child>> {
    let Some(pgbench) = client_tool("pgbench") else { return Ok(None) };
    let uri = cluster.socket_uri("postgres");
    let quiet = |command: &mut Command| command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    quiet(Command::new(&pgbench).args(["-i", "-s", "5", &uri]))?.wait()?;
    let clients = clients.to_string();
    let load =
        quiet(Command::new(&pgbench).args(["-S", "-n", "-c", &clients, "-T", "3600", &uri]))?;
    let mut asking = session(cluster)?;
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgbench'";
    while asking.one_value(sql)?.as_ref() != Some(&clients) {
        thread::sleep(Duration::from_millis(50));
    }
    Ok(Some(load))
}

fn waits(server: &Server, what: &str, length: Duration) -> Result<()> {
    for (rate, is_reading) in [(100, false), (1000, false), (100, true), (1000, true)] {
        let queries = is_reading.then(QueryOptions::default);
        let mut sampler = Sampler::open(server, Options { queries, ..Options::default() })?;
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

fn sweep(server: &Server, what: &str, length: Duration) -> Result<()> {
    let mut sweep = SweepSampler::open(server, Instant::now(), Duration::from_secs(1))?;
    let measured = measure(1000, length, |now| Ok(sweep.poll(now).map(|_| ())?))?;
    print(what, "sweep", 1000, &measured, "")
}

struct Measured {
    rounds: u64,
    missed: u64,
    elapsed: Duration,
    cpu: Duration,
}

/// Runs `round` at a rate. The whole thread is measured: waking up, adding up and all.
fn measure(
    rate: u32,
    length: Duration,
    mut round: impl FnMut(Instant) -> Result<()>,
) -> Result<Measured> {
    let (begin, cpu) = (Instant::now(), own_cpu());
    let mut pace = Pace::new(begin, Duration::from_secs(1) / rate);
    let mut rounds = 0;
    while begin.elapsed() < length {
        thread::sleep(pace.due().saturating_duration_since(Instant::now()));
        let now = Instant::now();
        pace.reached(now);
        round(now)?;
        rounds += 1;
    }
    Ok(Measured { rounds, missed: pace.missed(), elapsed: begin.elapsed(), cpu: own_cpu() - cpu })
}

fn print(what: &str, sampled: &str, rate: u32, measured: &Measured, active: &str) -> Result<()> {
    let Measured { rounds, missed, elapsed, cpu } = measured;
    let per_round = cpu.as_secs_f64() * 1e6 / *rounds as f64;
    // At the full rate, also where a busy machine did not let us.
    let share = per_round * f64::from(rate) / 1e4;
    let part = *missed as f64 * 100.0 / (elapsed.as_secs_f64() * f64::from(rate));
    writeln!(
        stdout(),
        "| {what} | {sampled} | {rate} | {per_round:.1} | {share:.2} | {part:.0} % | {active} |"
    )?;
    Ok(())
}

fn own_cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or_default())
}
