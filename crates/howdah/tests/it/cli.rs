//! Exit codes, streams and completions: what scripts rely on.

use std::{fs::OpenOptions, process::Stdio};

use crate::{howdah, text};

#[test]
fn wrong_usage_exits_2_and_says_so_on_stderr() {
    let folder = tempfile::tempdir().unwrap();
    for words in [&["--no-such-option"][..], &["no-such-command"], &["completions", "cobol"], &[]] {
        let output = howdah(folder.path()).args(words).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        assert!(output.stdout.is_empty(), "{words:?}");
        assert!(!output.stderr.is_empty(), "{words:?}");
    }
}

#[test]
fn help_and_version_are_data_and_exit_0() {
    let folder = tempfile::tempdir().unwrap();
    let version = howdah(folder.path()).arg("--version").assert().success();
    let expected = format!("howdah {}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!(text(&version.get_output().stdout), expected);
    let help = howdah(folder.path()).arg("--help").assert().success();
    assert!(help.get_output().stderr.is_empty());
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let folder = tempfile::tempdir().unwrap();
    for words in [&["completions", "zsh"][..], &["--help"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let child = std::process::Command::new(assert_cmd::cargo::cargo_bin!("howdah"))
            .args(words)
            .current_dir(folder.path())
            .stdout(writer)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{words:?}");
        assert_eq!(text(&output.stderr), "", "{words:?}");
    }
}

#[test]
fn a_full_disk_is_a_failure() {
    let Ok(full) = OpenOptions::new().write(true).open("/dev/full") else { return };
    let output = std::process::Command::new(assert_cmd::cargo::cargo_bin!("howdah"))
        .args(["completions", "bash"])
        .stdout(full)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stderr);
    assert!(said.starts_with("howdah: cannot write to standard output: No space left"), "{said}");
}

#[test]
fn completions_know_the_commands_in_every_shell() {
    let folder = tempfile::tempdir().unwrap();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = howdah(folder.path()).args(["completions", shell]).assert().success();
        let script = text(&output.get_output().stdout);
        assert!(script.contains("completions") && script.contains("log-level"), "{shell}");
    }
    let script = howdah(folder.path()).args(["completions", "bash"]).output().unwrap().stdout;
    assert_cmd::Command::new("bash").arg("-n").write_stdin(script).assert().success();
}

#[test]
fn pages_of_the_manual_have_what_the_help_has() {
    let folder = tempfile::tempdir().unwrap();
    let page = |words: &[&str]| {
        let output = howdah(folder.path()).arg("man").args(words).assert().success();
        text(&output.get_output().stdout).to_owned()
    };
    assert!(page(&[]).contains("howdah\\-pool(1)"));
    let pool = page(&["pool"]);
    assert!(pool.contains(".TH howdah-pool 1") && pool.contains("\\-\\-check"), "{pool}");
    assert!(page(&["warm", "load"]).contains("\\-\\-jobs"));
    let wrong = howdah(folder.path()).args(["man", "warm", "lod"]).assert().code(2);
    assert!(text(&wrong.get_output().stderr).contains("howdah warm has no command lod"));
}

#[test]
fn log_lines_are_json_when_nobody_watches_and_text_when_asked() {
    let folder = tempfile::tempdir().unwrap();
    let said = |format: &str| {
        let words = ["completions", "fish", "--log-level=debug", "--log-format", format];
        text(&howdah(folder.path()).args(words).assert().success().get_output().stderr)
    };
    let line = said("auto");
    let event: serde_json::Value = serde_json::from_str(line.trim_end()).unwrap();
    assert_eq!((&event["level"], &event["message"]), (&"DEBUG".into(), &"starting".into()));
    let line = said("text");
    assert!(
        line.contains("DEBUG") && line.contains("starting") && !line.contains('\x1b'),
        "{line}"
    );
}
