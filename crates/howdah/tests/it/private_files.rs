//! Files with a server's traffic are private to their owner, whatever the umask allows.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use howdah_lab::{Cluster, skip_without_postgres};

use crate::{howdah, text};

const LOG: &str = "\
2026-11-20 12:43:20.100 UTC [7] postgres@postgres LOG:  connection authorized: user=postgres database=postgres
2026-11-20 12:43:20.200 UTC [7] postgres@postgres LOG:  duration: 1.500 ms  statement: select 'secret'
2026-11-20 12:43:21.000 UTC [8] postgres@postgres LOG:  duration: 0.800 ms  statement: select 2
";

/// Runs a command with the usual umask 022, under which others may read new files.
fn run(folder: &Path, words: &[&str]) -> Output {
    let binary = howdah(folder);
    let mut command = Command::new("sh");
    for (name, value) in binary.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command
        .args(["-c", "umask 022; exec \"$@\"", "sh"])
        .arg(binary.get_program())
        .args(words)
        .current_dir(folder)
        .output()
        .unwrap()
}

fn run_successfully(folder: &Path, words: &[&str]) {
    let output = run(folder, words);
    assert!(output.status.success(), "{words:?}: {}", text(&output.stderr));
}

/// All files and folders in a folder, recursively, with their modes.
fn modes(folder: &Path) -> Vec<(PathBuf, u32)> {
    let mut modes = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        modes.push((path.clone(), fs::metadata(&path).unwrap().permissions().mode() & 0o777));
        if path.is_dir() {
            modes.extend(self::modes(&path));
        }
    }
    modes
}

/// Checks the modes of everything in the folder except the log, and that the files `made` exist.
fn assert_private(folder: &Path, made: &[&str]) {
    let modes = modes(folder);
    for name in made {
        assert!(modes.iter().any(|(path, _)| *path == folder.join(name)), "no {name}: {modes:?}");
    }
    for (path, mode) in modes {
        let expected = if path.is_dir() { 0o700 } else { 0o600 };
        if !path.ends_with("server.log") {
            assert_eq!(mode, expected, "{}: {mode:o}", path.display());
        }
    }
}

#[test]
fn captures_are_readable_by_their_owner_only() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    fs::write(folder.join("server.log"), LOG).unwrap();
    run_successfully(folder, &["capture", "import", "server.log", "-o", "captures/monday"]);
    run_successfully(
        folder,
        &["capture", "sample", "captures/monday", "-o", "sample", "--sample-rate", "100%"],
    );
    run_successfully(
        folder,
        &["capture", "split", "captures/monday", "-o", "parts", "--sessions", "2"],
    );
    run_successfully(folder, &["capture", "merge", "captures/monday", "sample", "-o", "both"]);
    let made = [
        "captures/monday/capture.json",
        "captures/monday/events-000001.parquet",
        "sample/events-000001.parquet",
        "parts/1-of-2/capture.json",
        "both/events-000001.parquet",
    ];
    assert_private(folder, &made);
    // A folder that was opened to a group keeps its mode; files in it stay private.
    fs::set_permissions(folder.join("both"), fs::Permissions::from_mode(0o750)).unwrap();
    run_successfully(folder, &["capture", "merge", "sample", "-o", "both", "--force"]);
    let mode = |name: &str| fs::metadata(folder.join(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!([mode("both"), mode("both/capture.json")], [0o750, 0o600]);
}

#[test]
fn runs_recordings_images_and_slow_logs_are_readable_by_their_owner_only() {
    let started = Cluster::builder().start();
    let Some(cluster) = skip_without_postgres("files that commands write of a server", started)
    else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    fs::write(folder.join("server.log"), LOG).unwrap();
    let uri = cluster.uri("postgres");
    run_successfully(
        folder,
        &["replay", "server.log", "--target", &uri, "-o", "run", "--rate", "max"],
    );
    let top = ["top", &uri, "--interval", "100ms", "--count", "2", "--format", "ndjson"];
    run_successfully(
        folder,
        &[&top[..], &["--record", "r.top", "--slow-log", "slow.log"]].concat(),
    );
    run_successfully(folder, &["warm", "dump", &uri, "-o", "image", "--keep", "1"]);
    run_successfully(folder, &["warm", "dump", &uri, "-o", "image", "--keep", "1"]);
    run_successfully(folder, &["probe", "run", &uri, "-o", "a.rec", "--duration", "1s"]);
    run_successfully(folder, &["probe", "report", "a.rec", "--html", "report.html"]);
    let made = [
        "run/run.json",
        "run/outcomes-000001.parquet",
        "r.top",
        "slow.log",
        "image",
        "a.rec",
        "report.html",
    ];
    assert_private(folder, &made);
}
