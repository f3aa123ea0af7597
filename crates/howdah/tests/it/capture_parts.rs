//! `capture split`, `merge`, `sample` and `--redact`: counts and hashes of the results.

use std::{fs, path::Path};

use serde_json::Value;

use crate::{howdah, text};

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../logs/tests/fixtures/17");

/// A folder with the capture `all` of a log with most kinds of events.
fn imported_folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::copy(format!("{FIXTURES}/prod.json"), folder.path().join("prod.json")).unwrap();
    run(folder.path(), "capture import prod.json -o all");
    folder
}

/// Runs a command that must succeed; returns stdout and stderr.
fn run(folder: &Path, words: &str) -> (String, String) {
    let done = howdah(folder).args(words.split(' ')).assert().success();
    (text(&done.get_output().stdout), text(&done.get_output().stderr))
}

/// A capture's event counts by kind, and its hash.
fn hash(folder: &Path, words: &str) -> String {
    run(folder, &format!("capture cat --hash {words}")).0
}

fn number(table: &str, row: &str) -> u64 {
    let line = table.lines().find(|line| line.starts_with(row)).unwrap_or("0 0");
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

fn info(folder: &Path, capture: &str) -> Value {
    let words = format!("capture info --format json {capture}");
    serde_json::from_str(&run(folder, &words).0).unwrap()
}

#[test]
fn log_and_capture_have_same_hash() {
    let folder = imported_folder();
    let (discarded, _) = run(folder.path(), "capture import --discard prod.json");
    assert_eq!(discarded, hash(folder.path(), "all"));
    assert!(number(&discarded, "events") > 20, "{discarded}");
    let (_, messages) = run(folder.path(), "capture info --verify all");
    assert!(messages.contains("verified: "), "{messages}");
    // `--format` is still accepted as the former name of the option.
    let (again, _) = run(folder.path(), "capture import --discard --format json prod.json");
    assert_eq!(again, discarded);
}

#[test]
fn modified_capture_fails_verification() {
    let folder = imported_folder();
    let path = folder.path().join("all/capture.json");
    let manifest = fs::read_to_string(&path).unwrap();
    let hash = info(folder.path(), "all")["report"]["hash"].as_str().unwrap().to_owned();
    fs::write(&path, manifest.replace(&hash, &hash.replace(&hash[..2], "zz"))).unwrap();
    let mut verify = howdah(folder.path());
    verify.args(["capture", "info", "--verify", "all"]).assert().code(3);
}

#[test]
fn merged_parts_equal_the_original_capture() {
    let folder = imported_folder();
    let whole = hash(folder.path(), "all");
    run(folder.path(), "capture split all -o parts --sessions 3");
    let parts: Vec<_> = fs::read_dir(folder.path().join("parts")).unwrap().collect();
    assert!((1..=3).contains(&parts.len()));
    let names: Vec<_> = parts
        .iter()
        .map(|part| format!("parts/{}", part.as_ref().unwrap().file_name().to_string_lossy()))
        .collect();
    let merge = format!("capture merge {} -o joined --join-sessions", names.join(" "));
    run(folder.path(), &merge);
    assert_eq!(hash(folder.path(), "joined"), whole);
    // Without --join-sessions, sessions of different captures stay separate.
    run(folder.path(), "capture merge all joined -o twice");
    let (once, twice) = (info(folder.path(), "all"), info(folder.path(), "twice"));
    assert_eq!(twice["events"], once["events"].as_u64().unwrap() * 2);
    assert_eq!(twice["report"]["sessions"], once["report"]["sessions"].as_u64().unwrap() * 2);
    run(folder.path(), "capture split all -o databases --databases");
    run(folder.path(), "capture split all -o slices --every 1s");
}

#[test]
fn sample_is_deterministic_and_excluded_counts_add_up() {
    let folder = imported_folder();
    run(folder.path(), "capture sample all -o one --sample-rate 40%");
    run(folder.path(), "capture sample all -o two --sample-rate 40%");
    assert_eq!(hash(folder.path(), "one"), hash(folder.path(), "two"));
    let count = |capture: &str| info(folder.path(), capture)["events"].as_u64().unwrap();
    assert!(count("one") < count("all"));
    let left: u64 = info(folder.path(), "one")["report"]["left_out"]
        .as_array()
        .unwrap()
        .iter()
        .map(|reason| reason["count"].as_u64().unwrap())
        .sum();
    assert_eq!(count("one") + left, count("all"));
    run(folder.path(), "capture import prod.json -o reads --read-only");
    let reads = hash(folder.path(), "reads");
    assert_eq!(reads, hash(folder.path(), "all --read-only"));
    assert!(number(&reads, "events") < count("all"));
    howdah(folder.path())
        .args(["capture", "sample", "all", "-o", "all", "--force"])
        .assert()
        .code(2);
}

#[test]
fn redacted_capture_contains_no_values() {
    let folder = imported_folder();
    let secrets = ["hunter2sekret", "Jane-Roe-4711", "tok_abcdef123", "never-said"];
    let line = |number: u32, rest: &str| {
        format!("2026-11-20 12:43:20.{number}00 UTC [7] app@shop {rest}\n")
    };
    let log = [
        line(1, "LOG:  statement: alter role x password 'hunter2sekret'"),
        line(2, "LOG:  statement: select 1 /* hunter2sekret */ -- Jane-Roe-4711"),
        line(3, "LOG:  execute s: select $1"),
        line(3, "DETAIL:  Parameters: $1 = 'Jane-Roe-4711'"),
        line(4, "ERROR:  invalid input syntax for type integer: \"tok_abcdef123\""),
        line(4, "STATEMENT:  select 'tok_abcdef123'::int"),
        "junk: never-said\n".to_owned(),
    ];
    fs::write(folder.path().join("secret.log"), log.concat()).unwrap();
    let (_, messages) = run(folder.path(), "capture import secret.log -o hidden --redact");
    let manifest = fs::read_to_string(folder.path().join("hidden/capture.json")).unwrap();
    let (events, _) = run(folder.path(), "capture cat hidden --format ndjson");
    assert!(events.contains("alter role x password '"), "{events}");
    for secret in secrets {
        for place in [&messages, &manifest, &events] {
            assert!(!place.contains(secret), "{secret} in {place}");
        }
    }
    assert_eq!(
        info(folder.path(), "hidden")["events"].as_u64(),
        Some(events.lines().count() as u64)
    );
    // The same key gives the same result.
    fs::write(folder.path().join("key"), "a key of more than sixteen bytes").unwrap();
    let keyed = "--redact --redact-key key";
    let (one, _) = run(folder.path(), &format!("capture import secret.log --discard {keyed}"));
    assert_eq!(one, run(folder.path(), &format!("capture import secret.log --discard {keyed}")).0);
    fs::write(folder.path().join("key"), "short").unwrap();
    let mut short = howdah(folder.path());
    short.args(format!("capture cat all {keyed}").split(' ')).assert().code(2);
}
