//! What `deploy/` says of us is so: names of files and packages, and each command line.

use std::{fs, path::PathBuf};

use crate::{howdah, text};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn read(path: &str) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The instructions of a Dockerfile: their words, continued lines joined, without comments.
fn instructions(dockerfile: &str) -> Vec<Vec<String>> {
    let lines = dockerfile.lines().filter(|line| !line.starts_with('#'));
    let joined = lines.collect::<Vec<_>>().join("\n").replace("\\\n", " ");
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    joined.lines().map(words).filter(|words| !words.is_empty()).collect()
}

/// Whether a command line is understood up to one wrong option behind it.
fn is_understood(words: &[String]) -> Result<(), String> {
    is_understood_but("--interval", words)
}

/// The same with another option that takes no such word.
fn is_understood_but(option: &str, words: &[String]) -> Result<(), String> {
    let folder = tempfile::tempdir().unwrap();
    let output = howdah(folder.path()).args(words).args([option, "soon"]).output().unwrap();
    let said = text(&output.stderr);
    match output.status.code() {
        Some(2) if said.contains("'soon'") => Ok(()),
        code => Err(format!("{words:?} ends with {code:?}: {said}")),
    }
}

/// The words of a shell's command line, of which some are quoted.
fn words(line: &str) -> Vec<String> {
    let part = |(at, part): (usize, &str)| match at % 2 {
        0 => part.split_whitespace().map(str::to_owned).collect(),
        _ => vec![part.to_owned()],
    };
    line.split('\'').enumerate().flat_map(part).collect()
}

#[test]
fn the_dockerfile_builds_and_copies_what_there_is() {
    let file = read("deploy/Dockerfile");
    let instructions = instructions(&file);
    let of = |name: &str| -> Vec<Vec<String>> {
        instructions
            .iter()
            .filter(|words| words[0] == name)
            .map(|words| words[1..].to_vec())
            .collect()
    };

    // The stage that builds has the Rust that the workspace asks for, and builds this binary of it.
    let manifest: toml::Table = read("Cargo.toml").parse().unwrap();
    let rust = manifest["workspace"]["package"]["rust-version"].as_str().unwrap();
    let image = &of("FROM")[0];
    assert!(image[0].starts_with(&format!("rust:{rust}-")), "{image:?}, {rust}");
    assert_eq!(image[1..], ["AS", "build"]);
    let build = of("RUN").into_iter().find(|words| words[0] == "cargo").unwrap().join(" ");
    assert_eq!(build, "cargo build --locked --release -p howdah --bin howdah");
    assert!(root().join("Cargo.lock").is_file());
    let target = ["target", "release", "howdah"].join("/");
    let copied = of("COPY");
    assert_eq!(copied[0], [".", "."]);
    assert_eq!(copied[1], ["--from=build", &format!("/src/{target}"), "/usr/bin/howdah"]);
    assert_eq!(of("WORKDIR")[0], ["/src"]);

    // What is left out of the context is nothing that is built.
    for line in read(".dockerignore").lines() {
        assert!(!["crates", "Cargo.toml", "Cargo.lock", "fuzz"].contains(&line), "{line}");
    }

    // Both stages are of the same release of Debian: the binary finds its C library.
    let release = image[0].rsplit('-').next().unwrap();
    assert_eq!(of("FROM")[1], [format!("debian:{release}-slim")]);

    // What runs, and what people are told to run.
    assert_eq!(of("ENTRYPOINT"), [["[\"howdah\"]"]]);
    assert_eq!(of("CMD"), [["[\"--help\"]"]]);
    let comments: Vec<&str> = file.lines().filter_map(|line| line.strip_prefix('#')).collect();
    let comments = comments.join("\n").replace("\\\n", " ");
    let runs = comments.lines().filter(|line| line.trim_start().starts_with("docker run"));
    let mut count = 0;
    for line in runs {
        let (_, args) = line.split_once(" howdah ").unwrap();
        // A file that the option names has to be there.
        let args = words(&args.replace("/pgtop", "/dev/null"));
        is_understood(&args).unwrap();
        count += 1;
    }
    assert_eq!(count, 3);
}

#[test]
fn the_unit_of_a_watch_starts_what_there_is() {
    let unit = read("deploy/howdah-top.service").replace("\\\n", " ");
    let start = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).unwrap();
    let words = words(&start.replace("%d/howdah.toml", "/dev/null"));
    assert_eq!(words[0], "/usr/bin/howdah");
    is_understood(&words[1..]).unwrap();
}

#[test]
fn the_units_of_the_pooler_belong_together() {
    let unit = read("deploy/howdah-pool.service");
    let start = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).unwrap();
    let words = words(start);
    assert_eq!(words[0], "/usr/bin/howdah");
    is_understood_but("--workers", &words[1..]).unwrap();
    // What the pooler says and does by itself is what the unit counts on.
    for line in ["Type=notify", "NotifyAccess=all", "ExecReload=/bin/kill -HUP $MAINPID"] {
        assert!(unit.lines().any(|it| it == line), "{line}");
    }
    // A socket unit is for the service of its name unless it says otherwise, and has to be accepted from.
    let sockets = read("deploy/howdah-pool.socket");
    assert!(!sockets.contains("Accept=") && !sockets.contains("Service="));
    let listens = sockets.lines().filter_map(|line| line.strip_prefix("ListenStream="));
    let ports: Vec<_> = listens.map(|place| place.rsplit(['.', ':']).next().unwrap()).collect();
    assert_eq!(ports, ["6432", "6432"], "clients look for a unix socket by the port's number");
}
