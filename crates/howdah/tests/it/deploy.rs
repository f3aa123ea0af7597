//! The files in `deploy/` match the workspace and the command line.

use std::{fs, path::PathBuf};

use crate::{howdah, text};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn read(path: &str) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The instructions of a Dockerfile as words, with continuation lines joined and comments removed.
fn instructions(dockerfile: &str) -> Vec<Vec<String>> {
    let lines = dockerfile.lines().filter(|line| !line.starts_with('#'));
    let joined = lines.collect::<Vec<_>>().join("\n").replace("\\\n", " ");
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    joined.lines().map(words).filter(|words| !words.is_empty()).collect()
}

/// Checks that the parser accepts a command line: the only error is an appended invalid option.
fn check_command_line(words: &[String]) -> Result<(), String> {
    check_command_line_with("--interval", words)
}

/// Like [`check_command_line`], with another option to append.
fn check_command_line_with(option: &str, words: &[String]) -> Result<(), String> {
    let folder = tempfile::tempdir().unwrap();
    let output = howdah(folder.path()).args(words).args([option, "soon"]).output().unwrap();
    let messages = text(&output.stderr);
    match output.status.code() {
        Some(2) if messages.contains("'soon'") => Ok(()),
        code => Err(format!("{words:?} ends with {code:?}: {messages}")),
    }
}

/// Splits a shell command line with single quotes into words.
fn split_words(line: &str) -> Vec<String> {
    let part = |(at, part): (usize, &str)| match at % 2 {
        0 => part.split_whitespace().map(str::to_owned).collect(),
        _ => vec![part.to_owned()],
    };
    line.split('\'').enumerate().flat_map(part).collect()
}

#[test]
fn dockerfile_matches_workspace_and_commands() {
    let file = read("deploy/Dockerfile");
    let instructions = instructions(&file);
    let of = |name: &str| -> Vec<Vec<String>> {
        instructions
            .iter()
            .filter(|words| words[0] == name)
            .map(|words| words[1..].to_vec())
            .collect()
    };

    // The build stage uses the workspace's Rust version and builds this binary.
    let manifest: toml::Table = read("Cargo.toml").parse().unwrap();
    let rust = manifest["workspace"]["package"]["rust-version"].as_str().unwrap();
    let image = &of("FROM")[0];
    assert!(image[0].starts_with(&format!("rust:{rust}-")), "{image:?}, {rust}");
    assert_eq!(image[1..], ["AS", "build"]);
    let build = of("RUN").into_iter().find(|words| words[0] == "cargo").unwrap().join(" ");
    assert_eq!(build, "cargo build --locked --release -p howdah --bin howdah --features full");
    assert!(root().join("Cargo.lock").is_file());
    let target = ["target", "release", "howdah"].join("/");
    let copied = of("COPY");
    assert_eq!(copied[0], [".", "."]);
    assert_eq!(copied[1], ["--from=build", &format!("/src/{target}"), "/usr/bin/howdah"]);
    assert_eq!(of("WORKDIR")[0], ["/src"]);

    // The build context includes everything that is built.
    for line in read(".dockerignore").lines() {
        assert!(!["crates", "Cargo.toml", "Cargo.lock", "fuzz"].contains(&line), "{line}");
    }

    // Both stages use the same Debian release, so that the binary's C library matches.
    let release = image[0].rsplit('-').next().unwrap();
    assert_eq!(of("FROM")[1], [format!("debian:{release}-slim")]);

    // The entry point and the commands in the comments are valid.
    assert_eq!(of("ENTRYPOINT"), [["[\"howdah\"]"]]);
    assert_eq!(of("CMD"), [["[\"--help\"]"]]);
    let comments: Vec<&str> = file.lines().filter_map(|line| line.strip_prefix('#')).collect();
    let comments = comments.join("\n").replace("\\\n", " ");
    let runs = comments.lines().filter(|line| line.trim_start().starts_with("docker run"));
    let mut count = 0;
    for line in runs {
        let (_, args) = line.split_once(" howdah ").unwrap();
        // The configuration file must exist.
        let args = split_words(&args.replace("/pgtop", "/dev/null"));
        check_command_line(&args).unwrap();
        count += 1;
    }
    assert_eq!(count, 3);
}

#[test]
fn top_service_unit_has_valid_command_line() {
    let unit = read("deploy/howdah-top.service").replace("\\\n", " ");
    let start = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).unwrap();
    let words = split_words(&start.replace("%d/howdah.toml", "/dev/null"));
    assert_eq!(words[0], "/usr/bin/howdah");
    check_command_line(&words[1..]).unwrap();
}

#[test]
fn pool_service_and_socket_units_match() {
    let unit = read("deploy/howdah-pool.service");
    let start = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).unwrap();
    let words = split_words(start);
    assert_eq!(words[0], "/usr/bin/howdah");
    check_command_line_with("--workers", &words[1..]).unwrap();
    // The unit relies on the pooler's sd_notify messages and on SIGHUP.
    for line in ["Type=notify", "NotifyAccess=all", "ExecReload=/bin/kill -HUP $MAINPID"] {
        assert!(unit.lines().any(|it| it == line), "{line}");
    }
    // A socket unit belongs to the service of the same name, which accepts connections itself.
    let sockets = read("deploy/howdah-pool.socket");
    assert!(!sockets.contains("Accept=") && !sockets.contains("Service="));
    let listens = sockets.lines().filter_map(|line| line.strip_prefix("ListenStream="));
    let ports: Vec<_> = listens.map(|place| place.rsplit(['.', ':']).next().unwrap()).collect();
    assert_eq!(ports, ["6432", "6432"], "clients look for a unix socket by the port's number");
}
