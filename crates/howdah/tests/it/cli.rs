//! Exit codes, streams and completions: the interface for scripts.

use std::{fs::OpenOptions, process::Stdio};

use crate::{howdah, text};

#[test]
fn usage_error_exits_2_with_message_on_stderr() {
    let folder = tempfile::tempdir().unwrap();
    for words in [&["--no-such-option"][..], &["no-such-command"], &["completions", "cobol"], &[]] {
        let output = howdah(folder.path()).args(words).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        assert!(output.stdout.is_empty(), "{words:?}");
        assert!(!output.stderr.is_empty(), "{words:?}");
    }
}

#[test]
fn help_and_version_go_to_stdout_and_exit_0() {
    let folder = tempfile::tempdir().unwrap();
    let version = |option: &str| {
        let shown = howdah(folder.path()).arg(option).assert().success();
        text(&shown.get_output().stdout)
    };
    let expected = format!("howdah {}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!(version("-V"), expected);
    let facts = version("--version");
    assert!(facts.starts_with(&expected), "{facts}");
    for fact in ["commit: ", "target: ", "features: "] {
        assert!(facts.contains(&format!("\n{fact}")), "{facts}");
    }
    let help = howdah(folder.path()).arg("--help").assert().success();
    assert!(help.get_output().stderr.is_empty());
}

#[test]
fn closed_pipe_is_not_an_error() {
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
fn full_disk_exits_1() {
    let Ok(full) = OpenOptions::new().write(true).open("/dev/full") else { return };
    let output = std::process::Command::new(assert_cmd::cargo::cargo_bin!("howdah"))
        .args(["completions", "bash"])
        .stdout(full)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let messages = text(&output.stderr);
    assert!(
        messages.starts_with("howdah: cannot write to standard output: No space left"),
        "{messages}"
    );
}

#[test]
fn completions_cover_commands_in_every_shell() {
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
fn man_pages_match_the_help() {
    let folder = tempfile::tempdir().unwrap();
    let page = |words: &[&str]| {
        let output = howdah(folder.path()).arg("man").args(words).assert().success();
        text(&output.get_output().stdout).to_owned()
    };
    assert!(page(&[]).contains("howdah\\-pool(1)"));
    let pool = page(&["pool"]);
    assert!(pool.contains(".TH howdah-pool 1") && pool.contains("\\-\\-check"), "{pool}");
    assert!(page(&["warm", "load"]).contains("\\-\\-jobs"));
    howdah(folder.path()).args(["man", "--output", "."]).assert().success();
    for name in
        ["howdah", "howdah-pool", "howdah-rehearse", "howdah-report-serve", "howdah-warm-load"]
    {
        let page = std::fs::read_to_string(folder.path().join(format!("{name}.1"))).unwrap();
        assert!(page.contains(&format!(".TH {name} 1")), "{name}: {page}");
    }
    assert!(!folder.path().join("howdah-help.1").exists());
    let missing = howdah(folder.path()).args(["man", "--output", "missing"]).assert().code(1);
    assert!(text(&missing.get_output().stderr).contains("cannot write missing/howdah.1"));
    let wrong = howdah(folder.path()).args(["man", "warm", "lod"]).assert().code(2);
    assert!(text(&wrong.get_output().stderr).contains("howdah warm has no command lod"));
}

#[test]
fn log_is_json_without_terminal_and_text_on_request() {
    let folder = tempfile::tempdir().unwrap();
    let messages = |format: &str| {
        let words = ["completions", "fish", "--log-level=debug", "--log-format", format];
        text(&howdah(folder.path()).args(words).assert().success().get_output().stderr)
    };
    let line = messages("auto");
    let event: serde_json::Value = serde_json::from_str(line.trim_end()).unwrap();
    assert_eq!((&event["level"], &event["message"]), (&"DEBUG".into(), &"starting".into()));
    let line = messages("text");
    assert!(
        line.contains("DEBUG") && line.contains("starting") && !line.contains('\x1b'),
        "{line}"
    );
}
