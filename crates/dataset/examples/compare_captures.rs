//! Reports where the second of two captures differs from the first: in the messages that sessions
//! sent, or in the replies. `compat/run --replay` compares a capture with that of its replay, which
//! has one more session: that of the replay's own queries.
//!
//! ```sh
//! cargo run --package howdah-dataset --example compare_captures -- captures/monday captures/of-the-replay
//! ```

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "its output is for the terminal")]

use std::{collections::BTreeMap, path::Path, process::ExitCode};

use howdah_dataset::Capture;
use howdah_traffic::{Event, conversation};

/// Maximum lines of a difference that are printed.
const SHOWN: usize = 9;

/// Maximum characters of a printed line.
const LINE_BYTES: usize = 400;

fn main() -> ExitCode {
    let paths: Vec<_> = std::env::args().skip(1).collect();
    let [first, second] = &paths[..] else {
        eprintln!("usage: compare_captures CAPTURE CAPTURE");
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

/// The number of sessions and messages of the first capture, and the number of its sessions that
/// the second one lacks.
fn differences(
    first: &Path,
    second: &Path,
) -> Result<(usize, usize, usize), Box<dyn std::error::Error>> {
    let captured = conversations(first)?;
    let mut replayed = conversations(second)?;
    let mut missing_sessions = Vec::new();
    let (mut sessions, mut messages) = (0, 0);
    for (conversation, count) in &captured {
        sessions += count;
        messages += count * conversation.len();
        let found = replayed.remove(conversation).unwrap_or_default();
        if found > *count {
            replayed.insert(conversation.clone(), found - count);
        }
        missing_sessions.extend((found < *count).then(|| (conversation, count - found)));
    }
    for (conversation, count) in &missing_sessions {
        let nearest = replayed.keys().max_by_key(|other| common_prefix_len(conversation, other));
        let Some(nearest) = nearest else {
            println!("{count} sessions are missing");
            continue;
        };
        let from = common_prefix_len(conversation, nearest);
        println!("after {from} messages of {count} sessions:");
        for (sign, lines) in [('-', *conversation), ('+', nearest)] {
            for line in lines.iter().skip(from.saturating_sub(1)).take(SHOWN) {
                let line: String = line.chars().take(LINE_BYTES).collect();
                println!("  {sign} {line}");
            }
        }
    }
    let missing = missing_sessions.iter().map(|(_, count)| count).sum();
    Ok((sessions, messages, missing))
}

/// The number of messages at the start that two conversations have in common.
fn common_prefix_len(one: &[String], other: &[String]) -> usize {
    one.iter().zip(other).take_while(|(one, other)| one == other).count()
}

/// The conversations of a capture, each with the number of sessions that had it.
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
        sessions.entry(event.session.to_string()).or_default().push(*event);
    }
    let mut conversations = BTreeMap::new();
    for events in sessions.values() {
        *conversations.entry(conversation(events)).or_default() += 1;
    }
    Ok(conversations)
}
