//! Compares instructions per operation, counted by valgrind, with the figures in `figures.toml`.
//!
//! A case that needs fewer instructions fails as well, until its figure is lowered, so figures only
//! fall. If a new compiler makes a case more expensive, all figures are rewritten in a separate
//! commit: `CARGO_INCREMENTAL=0 HOWDAH_UPDATE_FIGURES=1 cargo test --workspace --test figures`.

use std::{collections::BTreeMap, env, fmt::Write as _, fs, path::Path, process::Command, thread};

/// Allowed difference between count and figure in percent: hash tables have random seeds.
const TOLERANCE_PERCENT: f64 = 3.0;

/// Tolerance for incremental builds, which split crates into other units and so inline other
/// functions. The figures are those of CI, where `CARGO_INCREMENTAL` is 0.
const INCREMENTAL_TOLERANCE_PERCENT: f64 = 8.0;

/// Rounds of the shorter run; the longer one has four times as many.
const ROUNDS: u32 = 500;

/// Instructions of a whole run.
fn instruction_count(case: &str, rounds: u32) -> f64 {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(env!("CARGO_BIN_EXE_howdah-bench-instructions"))
        .args([case, &rounds.to_string()])
        .output()
        .expect("valgrind is installed by scripts/setup");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{case}: {stderr}");
    let count = stderr.split("Collected : ").nth(1).and_then(|rest| rest.split_whitespace().next());
    let count = count.and_then(|count| count.parse().ok());
    assert!(count.is_some(), "{case}: {stderr}");
    count.unwrap_or_default()
}

/// Instructions of one operation: the difference between a longer and a shorter run, per round.
fn per_operation(case: &str) -> f64 {
    let [short, long] = [ROUNDS, 4 * ROUNDS].map(|rounds| instruction_count(case, rounds));
    (long - short) / f64::from(3 * ROUNDS)
}

#[test]
fn hot_paths_match_instruction_figures() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("figures.toml");
    let text = fs::read_to_string(&path).expect("figures.toml is in the package");
    let figures: BTreeMap<String, f64> = toml::from_str(&text).expect("figures.toml is TOML");
    let cases = Command::new(env!("CARGO_BIN_EXE_howdah-bench-instructions")).output().unwrap();
    let cases = String::from_utf8(cases.stdout).unwrap();
    let cases: Vec<&str> = cases.lines().collect();
    let found: BTreeMap<&str, f64> = thread::scope(|scope| {
        let runs: Vec<_> =
            cases.iter().map(|case| (*case, scope.spawn(|| per_operation(case)))).collect();
        runs.into_iter().map(|(case, run)| (case, run.join().unwrap())).collect()
    });
    if env::var_os("HOWDAH_UPDATE_FIGURES").is_some() {
        let comments: Vec<_> = text.lines().take_while(|line| line.starts_with('#')).collect();
        let mut text = comments.join("\n") + "\n";
        for (case, count) in &found {
            let _ = writeln!(text, "{case} = {count:.0}");
        }
        return fs::write(&path, text).unwrap();
    }
    let is_incremental = env::var("CARGO_INCREMENTAL").as_deref() != Ok("0");
    let tolerance = if is_incremental { INCREMENTAL_TOLERANCE_PERCENT } else { TOLERANCE_PERCENT };
    let mut wrong = String::new();
    for (case, count) in &found {
        let Some(figure) = figures.get(*case) else {
            let _ = writeln!(wrong, "{case}: {count:.0}, but figures.toml has no figure");
            continue;
        };
        let percent = (count / figure - 1.0) * 100.0;
        if percent.abs() > tolerance {
            let what =
                if percent > 0.0 { "more: make it cheaper" } else { "less: lower the figure" };
            let _ = writeln!(
                wrong,
                "{case}: {count:.0} instead of {figure:.0}, {percent:+.1} %, {what}"
            );
        }
    }
    for case in figures.keys().filter(|case| !found.contains_key(case.as_str())) {
        let _ = writeln!(wrong, "{case}: figures.toml has a figure, but the case does not exist");
    }
    assert!(wrong.is_empty(), "instructions per operation:\n{wrong}");
}
