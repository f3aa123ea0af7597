//! `howdah.toml`: where it is found, what wins, what its mistakes look like.

use std::{fs, path::Path};

use crate::{howdah, text};

/// Whether `howdah completions fish` logs its start, which it does at level debug.
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
fn the_nearest_file_is_read_and_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::create_dir_all(path(".config/howdah")).unwrap();
    fs::write(path(".config/howdah/howdah.toml"), "log-level = 'debug'\n").unwrap();
    assert!(logs_debug(folder.path(), &[], &[]), "the one in the home folder");
    fs::write(path("howdah.toml"), "").unwrap();
    assert!(!logs_debug(folder.path(), &[], &[]), "an empty one here hides it");
    fs::write(path("named.toml"), "log-level = 'debug'\n").unwrap();
    assert!(logs_debug(folder.path(), &[], &[("HOWDAH_CONFIG", "named.toml")]));
    assert!(logs_debug(folder.path(), &["--config", "named.toml"], &[]));
    let words = ["--config=howdah.toml"];
    assert!(!logs_debug(folder.path(), &words, &[("HOWDAH_CONFIG", "named.toml")]));
}

#[test]
fn mistakes_are_told_with_line_and_key() {
    let folder = tempfile::tempdir().unwrap();
    let text_of_file = "# howdah.toml\nlog-level = \"loud\"\ncolour = \"never\"\n[replya]\n";
    fs::write(folder.path().join("howdah.toml"), text_of_file).unwrap();

    let check = howdah(folder.path()).args(["config", "check"]).assert().code(3);
    insta::assert_snapshot!(text(&check.get_output().stdout), @r"
    howdah.toml:2: log-level: `loud` is none of off, error, warn, info, debug, trace
    howdah.toml:3: colour: no such key (did you mean `color`?)
    howdah.toml:4: replya: no such section (did you mean `replay`?)
    ");

    let used = howdah(folder.path()).args(["lab", "list"]).assert().code(1);
    insta::assert_snapshot!(text(&used.get_output().stderr), @r"
    howdah: cannot use the configuration: howdah.toml:2: log-level: `loud` is none of off, error, warn, info, debug, trace
    hint: `howdah config check` lists 2 more
    ");
}

#[test]
fn a_named_file_has_to_exist() {
    let folder = tempfile::tempdir().unwrap();
    let output = howdah(folder.path()).args(["--config", "x.toml", "lab", "list"]).assert().code(1);
    insta::assert_snapshot!(
        text(&output.get_output().stderr),
        @"howdah: cannot read the configuration x.toml: No such file or directory (os error 2)"
    );
}

#[test]
fn what_is_no_text_is_refused_with_its_line() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("howdah.toml"), b"quiet = true\ncolor = '\xff'\n").unwrap();
    let output = howdah(folder.path()).args(["config", "check"]).assert().code(1);
    let said = text(&output.get_output().stderr);
    assert!(said.contains("howdah.toml: line 2 is not UTF-8"), "{said}");
    fs::write(folder.path().join("howdah.toml"), vec![b'#'; 2 << 20]).unwrap();
    let output = howdah(folder.path()).args(["config", "check"]).assert().code(1);
    assert!(text(&output.get_output().stderr).contains("longer than 1 MiB"));
}

#[test]
fn a_broken_file_keeps_nobody_from_the_help() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("howdah.toml"), "[replay\n").unwrap();
    howdah(folder.path()).arg("--help").assert().success();
    howdah(folder.path()).args(["completions", "bash"]).assert().success();
    howdah(folder.path()).args(["lab", "list"]).assert().code(1);
}

#[test]
fn a_bad_value_from_the_environment_is_traced_to_it() {
    let folder = tempfile::tempdir().unwrap();
    let output = howdah(folder.path())
        .args(["completions", "bash"])
        .env("HOWDAH_COLOR", "blue")
        .assert()
        .code(2);
    let said = text(&output.get_output().stderr);
    assert!(said.contains("hint: the value comes from the variable HOWDAH_COLOR\n"), "{said}");
}

#[test]
fn the_file_in_the_book_is_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let page =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/src/reference/configuration.md");
    let page = fs::read_to_string(page).unwrap();
    let example = page.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
    fs::write(folder.path().join("howdah.toml"), example).unwrap();
    let check = howdah(folder.path()).args(["config", "check"]).output().unwrap();
    assert_eq!(text(&check.stdout), "howdah.toml: ok, 7 values\n");
}
