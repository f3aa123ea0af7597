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

/// The values of a key in a systemd unit, with continuation lines joined.
fn values(unit: &str, key: &str) -> Vec<String> {
    let lines = unit.replace("\\\n", " ");
    let values = lines.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    values.map(str::to_owned).collect()
}

#[test]
fn service_units_have_valid_command_lines() {
    let units = [
        ("pool", "--workers"),
        ("statsd", "--dialect"),
        ("top", "--interval"),
        ("warm", "--interval"),
    ];
    for (name, option) in units {
        let unit = read(&format!("deploy/systemd/howdah-{name}.service"));
        let variables = values(&unit, "Environment");
        let mut command = values(&unit, "ExecStart").concat();
        for (variable, value) in variables.iter().filter_map(|set| set.split_once('=')) {
            command = command.replace(&format!("${variable}"), value);
        }
        let files = ["/etc/howdah/howdah.toml", "/etc/howdah/statsd.toml", "%d/top.toml"];
        let command =
            files.iter().fold(command, |command, file| command.replace(file, "/dev/null"));
        let words = split_words(&command);
        assert_eq!(words[0], "/usr/bin/howdah");
        check_command_line_with(option, &words[1..]).unwrap();
        assert_eq!(values(&unit, "Type"), ["notify"], "{name} reports when it is ready");
    }
}

/// `systemd-analyze security` rates what a service could do: 0 is nothing, 10 everything.
#[test]
fn service_units_are_hardened() {
    const EXPOSURE_MAX: f64 = 3.0;
    let units = root().join("deploy/systemd");
    for unit in fs::read_dir(units).unwrap().map(|unit| unit.unwrap().path()) {
        if unit.extension().is_none_or(|extension| extension != "service") {
            continue;
        }
        let mut command = std::process::Command::new("systemd-analyze");
        let rated = command.args(["security", "--offline=true", "--no-pager"]).arg(&unit).output();
        let Ok(rated) = rated else {
            eprintln!("skipped: systemd-analyze is not installed");
            return;
        };
        let rated = text(&rated.stdout) + &text(&rated.stderr);
        let (_, exposure) = rated.rsplit_once("Overall exposure level for ").expect(&rated);
        let exposure = exposure.split_whitespace().nth(1).unwrap();
        assert!(exposure.parse::<f64>().unwrap() < EXPOSURE_MAX, "{}: {exposure}", unit.display());
    }
}

#[test]
fn pool_service_and_socket_units_match() {
    let unit = read("deploy/systemd/howdah-pool.service");
    // The unit relies on the pooler's sd_notify messages and on SIGHUP.
    assert_eq!(values(&unit, "NotifyAccess"), ["all"]);
    assert_eq!(values(&unit, "ExecReload"), ["/bin/kill -HUP $MAINPID"]);
    // A socket unit belongs to the service of the same name, which accepts connections itself.
    let sockets = read("deploy/systemd/howdah-pool.socket");
    assert!(!sockets.contains("Accept=") && !sockets.contains("Service="));
    let ports: Vec<_> = values(&sockets, "ListenStream");
    let ports: Vec<_> = ports.iter().filter_map(|place| place.rsplit(['.', ':']).next()).collect();
    assert_eq!(ports, ["6432", "6432"], "clients look for a unix socket by the port's number");
}

#[test]
fn statsd_service_and_socket_units_match() {
    let unit = read("deploy/systemd/howdah-statsd.service");
    // A new process that takes over reports itself as the main one.
    assert_eq!(values(&unit, "NotifyAccess"), ["all"]);
    let sockets = read("deploy/systemd/howdah-statsd.socket");
    assert!(!sockets.contains("Accept=") && !sockets.contains("Service="));
    // The addresses are those of the installed settings.
    let settings: toml::Table = toml::from_str(&read("deploy/packages/statsd.toml")).unwrap();
    let listen = settings["statsd"]["listen"].as_array().unwrap();
    let addresses: Vec<_> = listen.iter().map(|one| one["address"].as_str().unwrap()).collect();
    assert_eq!(values(&sockets, "ListenDatagram"), addresses);
}

/// The installed settings files are valid, also once their examples are uncommented.
#[test]
fn packaged_settings_are_valid() {
    let folder = tempfile::tempdir().unwrap();
    let check = |file: &str, text: String, words: &[&str]| {
        let path = folder.path().join(file);
        fs::write(&path, text).unwrap();
        howdah(folder.path()).args(words).assert().success();
    };
    let example = read("deploy/packages/howdah.toml");
    let (_, example) = example.split_once("\n\n").unwrap();
    let example = example.replace("# ", "").replace("/run/howdah", ".");
    assert!(example.contains("[pool.databases.shop]"), "{example}");
    let example = example.replace("db1.example.org", "127.0.0.1");
    let example = example.replace("[pool.listen]", "[pool.listen]\nport = 0");
    check("pool.toml", example, &["pool", "--check", "-c", "pool.toml"]);
    let statsd = read("deploy/packages/statsd.toml");
    let statsd = statsd.replace(":8125", ":0").replace(":9102", ":0");
    check("statsd.toml", statsd, &["statsd", "--check", "-c", "statsd.toml"]);
    let top = read("deploy/packages/top.toml");
    check("top.toml", top, &["--config", "top.toml", "config", "check"]);
}
