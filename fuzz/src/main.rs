//! Lists the fuzz targets, exports one for libFuzzer (see `scripts/fuzz`), or runs one on a given
//! input.
//!
//! ```text
//! howdah-fuzz list
//! howdah-fuzz export TARGET FOLDER
//! howdah-fuzz replay TARGET HEX|@FILE
//! ```

use std::{io::Write as _, process::ExitCode};

use howdah_fuzz::{
    TARGETS, Target,
    campaign::{check, from_hex},
};

fn main() -> ExitCode {
    let words: Vec<_> = std::env::args().skip(1).collect();
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    let done =
        match words[..] {
            ["list"] => list(),
            ["export", target, folder] => export(target, folder),
            ["replay", target, input] => replay(target, input),
            _ => Err("usage: howdah-fuzz list | export TARGET FOLDER | replay TARGET HEX|@FILE"
                .to_owned()),
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

/// Writes the files that libFuzzer needs for a target: its seeds into `folder`, its words into
/// `folder.dict`, and the length of the longest input into `folder.longest`.
fn export(name: &str, folder: &str) -> Result<(), String> {
    let target = find(name)?;
    let write = |path: String, bytes: &[u8]| {
        std::fs::write(&path, bytes).map_err(|error| format!("{path}: {error}"))
    };
    for (number, seed) in target.seeds.inputs().iter().enumerate() {
        write(format!("{folder}/seed-{number}"), seed)?;
    }
    let mut dictionary = String::new();
    for word in target.words.iter().filter(|word| !word.is_empty()) {
        let bytes: String = word.iter().map(|byte| format!("\\x{byte:02x}")).collect();
        dictionary += &format!("\"{bytes}\"\n");
    }
    write(format!("{folder}.dict"), dictionary.as_bytes())?;
    write(format!("{folder}.longest"), target.bytes_max.to_string().as_bytes())
}

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

/// Prints a line on stderr; a closed stderr is ignored.
fn say(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}
