//! Runs a fuzz target for long, or once on an input that was found.
//!
//! ```text
//! howdah-fuzz list
//! howdah-fuzz run TARGET|all SECONDS [SEED]
//! howdah-fuzz replay TARGET HEX|@FILE
//! ```

use std::{
    io::Write as _,
    process::ExitCode,
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use howdah_fuzz::{
    Campaign, TARGETS, Target,
    campaign::{check, from_hex, to_hex},
};

fn main() -> ExitCode {
    let words: Vec<_> = std::env::args().skip(1).collect();
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    let done = match words[..] {
        ["list"] => list(),
        ["run", target, seconds] => run(target, seconds, &clock_seed().to_string()),
        ["run", target, seconds, seed] => run(target, seconds, seed),
        ["replay", target, input] => replay(target, input),
        _ => Err("say: list | run TARGET|all SECONDS [SEED] | replay TARGET HEX|@FILE".to_owned()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            say(&message);
            ExitCode::FAILURE
        }
    }
}

fn list() -> Result<(), String> {
    for target in TARGETS {
        say(&format!("{:<18} {}", target.name, target.about));
    }
    Ok(())
}

fn run(name: &str, seconds: &str, seed: &str) -> Result<(), String> {
    let seconds = seconds.parse().map_err(|_| format!("{seconds:?} is no number of seconds"))?;
    let seed = seed.parse().map_err(|_| format!("{seed:?} is no seed"))?;
    let time = Duration::from_secs(seconds);
    let targets: Vec<_> = match name {
        "all" => TARGETS.iter().collect(),
        name => vec![find(name)?],
    };
    let failures: Vec<_> =
        targets.into_iter().filter_map(|target| run_one(target, time, seed).err()).collect();
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\n")) }
}

/// Runs one target for a while, and says how it went.
fn run_one(target: &'static Target, time: Duration, seed: u64) -> Result<(), String> {
    let current = Arc::new(Mutex::new((0, Vec::new())));
    let mut campaign = Campaign::new(target, seed);
    let started = Instant::now();
    watch(target.name, Arc::downgrade(&current));
    while started.elapsed() < time {
        let input = campaign.input();
        *current.lock().unwrap_or_else(PoisonError::into_inner) =
            (campaign.iterations(), input.clone());
        campaign.run(&input).map_err(|failure| failure.to_string())?;
    }
    let per_second = campaign.iterations() as f64 / started.elapsed().as_secs_f64();
    say(&format!(
        "{:<18} seed {seed}: {} inputs, {per_second:.0} per second, {} things seen",
        target.name,
        campaign.iterations(),
        campaign.seen()
    ));
    Ok(())
}

/// An input that does not end keeps its thread for ever, so another one has to tell of it.
fn watch(name: &'static str, current: std::sync::Weak<Mutex<(u64, Vec<u8>)>>) {
    thread::spawn(move || {
        let mut last = None;
        loop {
            thread::sleep(STUCK);
            let Some(current) = current.upgrade() else { return };
            let (iteration, input) = current.lock().unwrap_or_else(PoisonError::into_inner).clone();
            if last == Some(iteration) {
                say(&format!("{name}: input {iteration} does not end: {}", to_hex(&input)));
                std::process::exit(1);
            }
            last = Some(iteration);
        }
    });
}

/// Longer than shrinking a failure takes.
const STUCK: Duration = Duration::from_secs(120);

fn replay(name: &str, input: &str) -> Result<(), String> {
    let target = find(name)?;
    let input = match input.strip_prefix('@') {
        Some(path) => std::fs::read(path).map_err(|error| format!("{path}: {error}"))?,
        None => from_hex(input).ok_or("the input is not hexadecimal")?,
    };
    check(target, &input).map(|_| say("nothing is wrong with it"))
}

fn find(name: &str) -> Result<&'static Target, String> {
    let found = TARGETS.iter().find(|target| target.name == name);
    found.ok_or_else(|| format!("there is no target {name:?}; `list` names them"))
}

fn clock_seed() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |since| since.as_secs())
}

/// A person reads this, and nobody else: a closed stderr is no reason to stop.
fn say(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}
