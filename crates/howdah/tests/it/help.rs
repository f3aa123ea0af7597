//! `--help` of every command.

use std::{collections::BTreeSet, fs, path::Path};

use crate::{howdah, text};

/// The path of every command, parents first; the empty path is `howdah` itself.
fn commands(folder: &Path) -> Vec<Vec<String>> {
    let mut found = vec![vec![]];
    let mut at = 0;
    while at < found.len() {
        let path: Vec<String> = found[at].clone();
        let help = help(folder, &path);
        let below = help.split("\nCommands:\n").nth(1).unwrap_or("");
        for line in below.lines().take_while(|line| !line.is_empty()) {
            // A description that wraps is indented further.
            let Some(name) = line.strip_prefix("  ").filter(|line| !line.starts_with(' ')) else {
                continue;
            };
            let name = name.split(' ').next().unwrap_or_default();
            if name != "help" {
                found.push(path.iter().cloned().chain([name.to_owned()]).collect());
            }
        }
        at += 1;
    }
    found
}

fn help(folder: &Path, path: &[String]) -> String {
    text(&howdah(folder).args(path).arg("--help").assert().success().get_output().stdout)
}

#[test]
fn every_command_help_matches_its_snapshot() {
    let folder = tempfile::tempdir().unwrap();
    let mut known = BTreeSet::new();
    for path in commands(folder.path()) {
        let name = path.iter().fold("howdah".to_owned(), |name, word| format!("{name}-{word}"));
        // Global options are only in the snapshot of `howdah` itself.
        let whole = help(folder.path(), &path);
        let specific = if path.is_empty() {
            whole.as_str()
        } else {
            whole.split("\nGlobal options:\n").next().unwrap_or_default()
        };
        insta::assert_snapshot!(name.clone(), specific);
        known.insert(format!("it__help__{name}.snap"));
    }
    let snapshots = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/snapshots");
    for entry in fs::read_dir(snapshots).unwrap() {
        let file = entry.unwrap().file_name().into_string().unwrap();
        let stale = file.starts_with("it__help__") && file.ends_with(".snap");
        assert!(!stale || known.contains(&file), "{file} belongs to no command: remove it");
    }
}

#[test]
fn every_command_is_documented() {
    let folder = tempfile::tempdir().unwrap();
    let pages = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/src");
    let mut book = String::new();
    for entry in files_in(&pages) {
        book.push_str(&fs::read_to_string(entry).unwrap());
    }
    for path in commands(folder.path()) {
        let words = ["howdah".to_owned()].into_iter().chain(path).collect::<Vec<_>>().join(" ");
        assert!(book.contains(&words), "no page of docs/src mentions `{words}`");
    }
}

fn files_in(folder: &Path) -> Vec<std::path::PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { files.extend(files_in(&path)) } else { files.push(path) }
    }
    files
}
