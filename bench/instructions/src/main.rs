//! Runs one operation of a hot path repeatedly, so that its instructions can be counted.
//!
//! `howdah-bench-instructions CASE ROUNDS` runs one case; without arguments it lists them. The test
//! of this package counts instructions with valgrind and compares them with `figures.toml`.

mod cases;

use std::{io::Write as _, process::ExitCode};

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let case = args.next().and_then(|name| cases::ALL.iter().find(|case| case.name == name));
    let rounds = args.next().and_then(|rounds| rounds.parse::<u32>().ok());
    let text = match (case, rounds) {
        // The sum is printed so that the compiler cannot optimize the work away.
        (Some(case), Some(rounds)) => format!("{}\n", (case.run)(rounds)),
        _ => cases::ALL.iter().map(|case| format!("{}\n", case.name)).collect(),
    };
    match std::io::stdout().write_all(text.as_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}
