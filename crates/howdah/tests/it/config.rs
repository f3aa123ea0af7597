//! `howdah.toml`: search order, precedence, and error messages.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path};

use crate::{howdah, text};

/// Whether `howdah completions fish` logs at level debug.
fn logs_debug(folder: &Path, words: &[&str], variables: &[(&str, &str)]) -> bool {
    let mut command = howdah(folder);
    command.args(["completions", "fish"]).args(words).envs(variables.iter().copied());
    let output = command.assert().success();
    text(&output.get_output().stderr).contains("starting")
}

#[test]
fn command_line_wins_over_environment_over_file_over_default() {
    let folder = tempfile::tempdir().unwrap();
    let (debug, quiet) = (&[("HOWDAH_LOG_LEVEL", "debug")], &[("HOWDAH_LOG_LEVEL", "warn")]);
    let in_folder =
        |words: &[&str], variables: &[(&str, &str)]| logs_debug(folder.path(), words, variables);
    assert!(!in_folder(&[], &[]), "the default is warn");
    fs::write(folder.path().join("howdah.toml"), "log-level = 'debug'\n").unwrap();
    assert!(in_folder(&[], &[]), "the file wins over the default");
    assert!(!in_folder(&[], quiet), "the environment wins over the file");
    assert!(in_folder(&["--log-level=debug"], quiet), "the command line wins over both");
    fs::write(folder.path().join("howdah.toml"), "log-level = 'warn'\n").unwrap();
    assert!(in_folder(&[], debug));
    assert!(!in_folder(&["--log-level=warn"], debug));
}

#[test]
fn only_the_nearest_file_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::create_dir_all(path(".config/howdah")).unwrap();
    fs::write(path(".config/howdah/howdah.toml"), "log-level = 'debug'\n").unwrap();
    assert!(logs_debug(folder.path(), &[], &[]), "the file in the home folder is used");
    fs::write(path("howdah.toml"), "").unwrap();
    assert!(!logs_debug(folder.path(), &[], &[]), "an empty file in the working folder hides it");
    fs::write(path("named.toml"), "log-level = 'debug'\n").unwrap();
    assert!(logs_debug(folder.path(), &[], &[("HOWDAH_CONFIG", "named.toml")]));
    assert!(logs_debug(folder.path(), &["--config", "named.toml"], &[]));
    let words = ["--config=howdah.toml"];
    assert!(!logs_debug(folder.path(), &words, &[("HOWDAH_CONFIG", "named.toml")]));
}

#[test]
fn found_file_is_named_on_stderr_unless_quiet() {
    let folder = tempfile::tempdir().unwrap();
    let stderr = |words: &[&str]| {
        let output = howdah(folder.path()).args(["lab", "list"]).args(words).assert().success();
        text(&output.get_output().stderr)
    };
    fs::write(folder.path().join("howdah.toml"), "color = 'never'\n").unwrap();
    assert_eq!(stderr(&[]), "howdah: using howdah.toml\n");
    assert_eq!(stderr(&["--quiet"]), "");
    assert_eq!(
        stderr(&["--config=howdah.toml"]),
        "",
        "a file named on the command line is not reported"
    );
    fs::write(folder.path().join("howdah.toml"), "[pool]\nmode = 'session'\n").unwrap();
    assert_eq!(stderr(&[]), "", "a file without used keys is not reported");
}

#[test]
fn found_file_that_others_can_write_is_skipped_and_reported() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("howdah.toml");
    fs::write(&file, "log-level = 'loud'\n").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o664)).unwrap();
    let output = howdah(folder.path()).args(["lab", "list"]).assert().success();
    assert_eq!(
        text(&output.get_output().stderr),
        "howdah: not using howdah.toml: others can write to it (mode 0664); run `chmod go-w` on it, or name it with --config\n"
    );
    howdah(folder.path()).args(["--config", "howdah.toml", "lab", "list"]).assert().code(1);
}

#[test]
fn found_file_of_another_user_is_skipped_and_reported() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("howdah.toml");
    fs::write(&file, "log-level = 'loud'\n").unwrap();
    if std::os::unix::fs::chown(&file, Some(65534), None).is_err() {
        eprintln!("SKIPPED: only root can change the owner of a file");
        return;
    }
    let output = howdah(folder.path()).args(["lab", "list"]).assert().success();
    let stderr = text(&output.get_output().stderr);
    let expected =
        "howdah: not using howdah.toml: it is owned by user 65534, neither root nor you (0)";
    assert!(stderr.starts_with(expected), "{stderr}");
}

#[test]
fn file_found_in_the_working_folder_cannot_name_programs_files_or_receivers() {
    let folder = tempfile::tempdir().unwrap();
    let keys = "[warm.benchmark]\nrestart-command = 'id > out'\n[lab.start]\npg-bin = 'evil'\n\
                set = ['archive_command=id > out']\n[top]\nslow-log = 'f'\nwebhook = 'http://127.0.0.1:1/'\n\
                [metrics.statsd]\naddress = '127.0.0.1:1'\n[pool]\nmode = 'session'\n[statsd]\n";
    fs::write(folder.path().join("howdah.toml"), keys).unwrap();
    let check = howdah(folder.path()).args(["config", "check"]).assert().code(3);
    let report = text(&check.get_output().stdout);
    for key in [
        "2: warm.benchmark.restart-command: names a program to run",
        "4: lab.start.pg-bin: names a program to run",
        "5: lab.start.set: names a program to run",
        "7: top.slow-log: names a file or directory to write",
        "8: top.webhook: names a receiver of data",
        "10: metrics.statsd.address: names a receiver of data",
    ] {
        assert!(report.contains(&format!("howdah.toml:{key}")), "{key} in {report}");
    }
    howdah(folder.path()).args(["lab", "list"]).assert().code(1);
    howdah(folder.path()).args(["lab", "list", "--config", "howdah.toml"]).assert().success();

    fs::write(folder.path().join("howdah.toml"), "[pool]\nmode = 'session'\n[statsd]\n").unwrap();
    for server in ["pool", "statsd"] {
        let refused = howdah(folder.path()).args([server, "--check"]).assert();
        let output = refused.get_output();
        let all = text(&output.stdout) + &text(&output.stderr);
        assert!(all.contains("was found in the working directory"), "{server}: {all}");
        assert_ne!(output.status.code(), Some(0), "{server}");
        let named = howdah(folder.path()).args([server, "--check", "-c", "howdah.toml"]).assert();
        let output = named.get_output();
        let all = text(&output.stdout) + &text(&output.stderr);
        assert!(!all.contains("was found in the working directory"), "{server}: {all}");
    }

    // The user's own configuration folder is trusted.
    fs::remove_file(folder.path().join("howdah.toml")).unwrap();
    fs::create_dir_all(folder.path().join(".config/howdah")).unwrap();
    fs::write(folder.path().join(".config/howdah/howdah.toml"), keys).unwrap();
    howdah(folder.path()).args(["lab", "list"]).assert().success();
}

#[test]
fn config_errors_have_line_and_key() {
    let folder = tempfile::tempdir().unwrap();
    let text_of_file = "# howdah.toml\nlog-level = \"loud\"\ncolour = \"never\"\n[replya]\n";
    fs::write(folder.path().join("howdah.toml"), text_of_file).unwrap();

    let check = howdah(folder.path()).args(["config", "check"]).assert().code(3);
    insta::assert_snapshot!(text(&check.get_output().stdout), @r"
    howdah.toml:2: log-level: `loud` is not one of off, error, warn, info, debug, trace
    howdah.toml:3: colour: unknown key (did you mean `color`?)
    howdah.toml:4: replya: unknown section (did you mean `replay`?)
    ");

    let used = howdah(folder.path()).args(["lab", "list"]).assert().code(1);
    insta::assert_snapshot!(text(&used.get_output().stderr), @r"
    howdah: cannot use the configuration: howdah.toml:2: log-level: `loud` is not one of off, error, warn, info, debug, trace
    hint: `howdah config check` lists 2 more
    ");
}

#[test]
fn missing_named_file_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let output = howdah(folder.path()).args(["--config", "x.toml", "lab", "list"]).assert().code(1);
    insta::assert_snapshot!(
        text(&output.get_output().stderr),
        @"howdah: cannot read the configuration x.toml: No such file or directory (os error 2)"
    );
}

#[test]
fn file_that_is_not_utf8_is_refused_with_line() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("howdah.toml"), b"quiet = true\ncolor = '\xff'\n").unwrap();
    let output = howdah(folder.path()).args(["config", "check"]).assert().code(1);
    let messages = text(&output.get_output().stderr);
    assert!(messages.contains("howdah.toml: line 2 is not UTF-8"), "{messages}");
    fs::write(folder.path().join("howdah.toml"), vec![b'#'; 2 << 20]).unwrap();
    let output = howdah(folder.path()).args(["config", "check"]).assert().code(1);
    assert!(text(&output.get_output().stderr).contains("longer than 1 MiB"));
}

#[test]
fn help_works_with_a_broken_file() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("howdah.toml"), "[replay\n").unwrap();
    howdah(folder.path()).arg("--help").assert().success();
    howdah(folder.path()).args(["completions", "bash"]).assert().success();
    howdah(folder.path()).args(["lab", "list"]).assert().code(1);
}

#[test]
fn bad_environment_value_is_reported_with_variable() {
    let folder = tempfile::tempdir().unwrap();
    let output = howdah(folder.path())
        .args(["completions", "bash"])
        .env("HOWDAH_COLOR", "blue")
        .assert()
        .code(2);
    let messages = text(&output.get_output().stderr);
    assert!(
        messages.contains("hint: the value comes from the environment variable HOWDAH_COLOR\n"),
        "{messages}"
    );
}

#[test]
fn documented_example_file_is_valid() {
    let folder = tempfile::tempdir().unwrap();
    let page =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/src/reference/configuration.md");
    let page = fs::read_to_string(page).unwrap();
    let example = page.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
    fs::write(folder.path().join("howdah.toml"), example).unwrap();
    let check = howdah(folder.path()).args(["config", "check"]).output().unwrap();
    assert_eq!(text(&check.stdout), "howdah.toml: ok, 7 values\n");
}
