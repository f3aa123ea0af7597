//! Counts how often a comparison of three runs with three others reports a change, and how often it
//! finds one that was made.
//!
//! ```sh
//! cargo run --release --package howdah-compare --example calibrate -- RUN RUN RUN RUN RUN RUN…
//! ```
//!
//! All runs are of one unchanged setup, at least six of them. Prints tables in Markdown: the
//! verdicts of 1,000 random splits and the queries that were called changed, then for each of the
//! queries with the most total time the share of 200 splits in which it is found when its
//! executions on one side are scaled by 1.3.

#![allow(clippy::print_stdout, reason = "the tables are the result")]

use std::{collections::BTreeMap, path::Path};

use howdah_compare::{CompareSettings, Comparison, RunInfo, Samples, compare_runs};
use howdah_dataset::ReplayRun;

const RUNS_PER_SIDE: usize = 3;
const SPLITS: usize = 1_000;
const SCALED_SPLITS: usize = 200;
const SCALED_QUERIES: usize = 6;
const SCALE: f64 = 1.3;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let paths: Vec<String> = std::env::args().skip(1).collect();
    if paths.len() < 2 * RUNS_PER_SIDE {
        return Err("at least six runs are needed".into());
    }
    let runs: Vec<Samples> = paths.iter().map(|path| read(path, None)).collect::<Result<_, _>>()?;
    let mut random = SplitRandom(seed());
    let (mut verdicts, mut changed) = (BTreeMap::new(), BTreeMap::new());
    for _ in 0..SPLITS {
        let comparison = compare(&pick(&mut random, runs.len()), &runs, &runs);
        *verdicts.entry(comparison.verdict.as_str()).or_insert(0_usize) += 1;
        for query in comparison.slower().chain(comparison.faster()) {
            *changed.entry(beginning(&query.text.query)).or_insert(0_usize) += 1;
        }
    }
    println!("| verdict | splits of {SPLITS} |\n|---|---|");
    for (verdict, count) in &verdicts {
        println!("| {verdict} | {count} |");
    }
    if !changed.is_empty() {
        println!("\n| query called changed | splits of {SPLITS} |\n|---|---|");
    }
    for (query, count) in &changed {
        println!("| `{query}` | {count} |");
    }
    let all = compare(&(0..runs.len()).collect::<Vec<_>>(), &runs, &runs);
    println!(
        "\n| query | p50 | found of {SCALED_SPLITS} | others called changed |\n|---|---|---|---|"
    );
    let mut by_total: Vec<_> = all.queries.iter().collect();
    by_total.sort_by_key(|query| std::cmp::Reverse(query.base.map_or(0, |base| base.total_us)));
    for query in by_total.into_iter().take(SCALED_QUERIES) {
        let scaled: Vec<Samples> = paths
            .iter()
            .map(|path| read(path, Some(query.fingerprint.0)))
            .collect::<Result<_, _>>()?;
        let (mut found, mut others) = (0, 0);
        for _ in 0..SCALED_SPLITS {
            let comparison = compare(&pick(&mut random, runs.len()), &runs, &scaled);
            let mut changed = comparison.slower().chain(comparison.faster());
            found += usize::from(changed.any(|it| it.fingerprint == query.fingerprint));
            let mut changed = comparison.slower().chain(comparison.faster());
            others += usize::from(changed.any(|it| it.fingerprint != query.fingerprint));
        }
        let text = beginning(&query.text.query);
        let p50 = query.base.map_or(0, |base| base.p50_us);
        println!("| `{text}` | {p50} µs | {found} | {others} |");
    }
    Ok(())
}

/// The first 60 characters of a statement, on one line.
fn beginning(query: &str) -> String {
    query.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(60).collect()
}

/// Reads a run; the executions of `scaled` take longer by [`SCALE`].
fn read(path: &str, scaled: Option<u64>) -> Result<Samples, Box<dyn std::error::Error>> {
    let plain = Samples::read(Path::new(path))?;
    let Some(fingerprint) = scaled else { return Ok(plain) };
    let mut samples = Samples::new(RunInfo { ..plain.info().clone() });
    for outcome in ReplayRun::open(Path::new(path))?.outcomes() {
        let mut outcome = outcome?;
        if outcome.fingerprint == Some(fingerprint) {
            let scale = |service_us: u64| (service_us as f64 * SCALE).round() as u64;
            outcome.service_us = outcome.service_us.map(scale);
        }
        samples.record(&outcome);
    }
    Ok(match plain.machine() {
        Some(machine) => samples.with_machine(*machine),
        None => samples,
    })
}

/// Compares the first half of the chosen runs with the second.
fn compare(chosen: &[usize], base: &[Samples], run: &[Samples]) -> Comparison {
    let (first, second) = chosen.split_at(chosen.len() / 2);
    let take = |numbers: &[usize], from: &[Samples]| -> Vec<Samples> {
        numbers.iter().map(|number| from[*number].clone()).collect()
    };
    compare_runs(&take(first, base), &take(second, run), &CompareSettings::default())
}

/// Six different numbers below `count`.
fn pick(random: &mut SplitRandom, count: usize) -> Vec<usize> {
    let mut numbers: Vec<usize> = (0..count).collect();
    for index in 0..2 * RUNS_PER_SIDE {
        let other = index + (random.next() % (count - index) as u64) as usize;
        numbers.swap(index, other);
    }
    numbers.truncate(2 * RUNS_PER_SIDE);
    numbers
}

/// Other splits in each call, because a fixed seed could be tuned for.
fn seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(1, |now| now.as_nanos() as u64)
}

/// SplitMix64.
struct SplitRandom(u64);

impl SplitRandom {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}
