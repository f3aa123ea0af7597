//! Says where the second of two captures differs from the first: in what sessions sent, message by message, or
//! in what they were answered. `compat/run --replay` compares a capture with that of its replay, which has a
//! session more: that of the replay's own questions.
//!
//! ```sh
//! cargo run --package howdah-dataset --example same -- captures/monday captures/of-the-replay
//! ```

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "that is all it does")]

use std::{collections::BTreeMap, path::Path, process::ExitCode};

use howdah_dataset::Capture;
use howdah_traffic::{Event, conversation};

/// Lines of a difference that are shown.
const SHOWN: usize = 9;

/// Most bytes of a line that are shown.
const LINE_BYTES: usize = 400;

fn main() -> ExitCode {
    let paths: Vec<_> = std::env::args().skip(1).collect();
    let [first, second] = &paths[..] else {
        eprintln!("usage: same CAPTURE CAPTURE");
        return ExitCode::from(2);
    };
    match differences(Path::new(first), Path::new(second)) {
        Ok((sessions, messages, 0)) => {
            println!("{messages} messages of {sessions} sessions");
            ExitCode::SUCCESS
        }
        Ok((sessions, _, different)) => {
            println!("{different} of {sessions} sessions are different");
            ExitCode::FAILURE
        }
        Err(error) => {
            println!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// How many sessions and messages the first capture has, and how many sessions of it the second has not.
fn differences(
    first: &Path,
    second: &Path,
) -> Result<(usize, usize, usize), Box<dyn std::error::Error>> {
    let captured = conversations(first)?;
    let mut replayed = conversations(second)?;
    let mut left = Vec::new();
    let (mut sessions, mut messages) = (0, 0);
    for (conversation, count) in &captured {
        sessions += count;
        messages += count * conversation.len();
        let found = replayed.remove(conversation).unwrap_or_default();
        if found > *count {
            replayed.insert(conversation.clone(), found - count);
        }
        left.extend((found < *count).then(|| (conversation, count - found)));
    }
    for (conversation, count) in &left {
        let nearest = replayed.keys().max_by_key(|other| alike(conversation, other));
        let Some(nearest) = nearest else {
            println!("{count} sessions are missing");
            continue;
        };
        let from = alike(conversation, nearest);
        println!("behind {from} messages of {count} sessions:");
        for (sign, lines) in [('-', *conversation), ('+', nearest)] {
            for line in lines.iter().skip(from.saturating_sub(1)).take(SHOWN) {
                let line: String = line.chars().take(LINE_BYTES).collect();
                println!("  {sign} {line}");
            }
        }
    }
    let missing = left.iter().map(|(_, count)| count).sum();
    Ok((sessions, messages, missing))
}

/// How many messages two conversations begin with alike.
fn alike(one: &[String], other: &[String]) -> usize {
    one.iter().zip(other).take_while(|(one, other)| one == other).count()
}

/// What sessions sent, and how many sent the same.
fn conversations(path: &Path) -> Result<BTreeMap<Vec<String>, usize>, Box<dyn std::error::Error>> {
    let capture = Capture::open(path)?;
    let manifest = capture.manifest();
    if !manifest.finished || manifest.report["completeness"] != serde_json::json!([]) {
        let path = path.display();
        return Err(format!("{path} is not complete: {}", manifest.report).into());
    }
    let mut sessions: BTreeMap<String, Vec<Event>> = BTreeMap::new();
    for event in capture.events() {
        let event = event?;
        sessions.entry(event.session.to_string()).or_default().push(event);
    }
    let mut conversations = BTreeMap::new();
    for events in sessions.values() {
        *conversations.entry(conversation(events)).or_default() += 1;
    }
    Ok(conversations)
}
