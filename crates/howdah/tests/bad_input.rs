//! Bad input for the real binary: damaged, huge, foreign or missing logs, captures and runs, and
//! unwritable output. Each case reports the file (and line), exits with the right code, keeps what
//! was readable, and never prints a panic.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails, helpers included")]

use std::{
    fs::{self, File},
    io::{BufWriter, Write as _},
    path::Path,
    process::{Command, Output},
};

use howdah_dataset::{
    Capture, Corruption, Disposition, ReadError, ReplayOutcome, ReplayRun, RunSettings, RunWriter,
};
use howdah_traffic::{Event, Kind, Text, Timestamp};
use tempfile::TempDir;

/// A record of a stderr log, at this millisecond of a fixed second.
fn stderr_record(millis: u32, sql: &str) -> String {
    format!(
        "2026-11-20 12:43:20.{millis:03} UTC [7] app@shop LOG:  duration: 1.500 ms  statement: {sql}\n"
    )
}

/// The same record in a csvlog.
fn csv_record(millis: u32, sql: &str) -> String {
    format!(
        "2026-11-20 12:43:20.{millis:03} UTC,\"app\",\"shop\",7,\"[local]\",6b004067.7,{millis},\"idle\",\
         2026-11-20 12:43:20 UTC,3/4,0,LOG,00000,\"duration: 1.500 ms  statement: {sql}\",,,,,,,,,\
         \"psql\",\"client backend\",,0\n"
    )
}

/// The same record in a jsonlog.
fn json_record(millis: u32, sql: &str) -> String {
    format!(
        "{{\"timestamp\":\"2026-11-20 12:43:20.{millis:03} UTC\",\"user\":\"app\",\"dbname\":\"shop\",\"pid\":7,\
         \"session_id\":\"6b004067.7\",\"error_severity\":\"LOG\",\
         \"message\":\"duration: 1.500 ms  statement: {sql}\"}}\n"
    )
}

fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

fn write(folder: &TempDir, name: &str, contents: impl AsRef<[u8]>) {
    fs::write(folder.path().join(name), contents).unwrap();
}

/// Runs the binary in a folder, isolated from the user's settings and environment.
fn howdah(folder: &Path, words: &[&str]) -> Output {
    run(Command::new(assert_cmd::cargo::cargo_bin!("howdah")).args(words), folder)
}

fn run(command: &mut Command, folder: &Path) -> Output {
    for (name, _) in std::env::vars_os() {
        let ours = name.to_string_lossy();
        if ours.starts_with("HOWDAH") || ours.starts_with("PG") || ours.starts_with("XDG") {
            command.env_remove(&name);
        }
    }
    let output = command.current_dir(folder).env("HOME", folder).output().unwrap();
    let messages = stderr_text(&output);
    assert!(!messages.contains("panicked") && !messages.contains("RUST_BACKTRACE"), "{messages}");
    output
}

fn stderr_text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Runs a command that must fail, and checks exit code and messages.
fn assert_fails(folder: &TempDir, words: &[&str], code: i32, expected: &[&str]) {
    let output = howdah(folder.path(), words);
    let messages = stderr_text(&output);
    assert_eq!(output.status.code(), Some(code), "{words:?}: {messages}");
    assert!(output.stdout.is_empty(), "{words:?}: output on stdout despite the failure");
    for expected in expected {
        assert!(messages.contains(expected), "{words:?}: {expected:?} is not in: {messages}");
    }
}

/// Runs a command that must succeed, and returns its stderr.
fn assert_succeeds(folder: &TempDir, words: &[&str]) -> String {
    let output = howdah(folder.path(), words);
    assert_eq!(output.status.code(), Some(0), "{words:?}: {}", stderr_text(&output));
    stderr_text(&output)
}

/// The events of the capture `monday`.
fn events(folder: &TempDir) -> Vec<Event> {
    let capture = Capture::open(&folder.path().join("monday")).unwrap();
    capture.events().map(|event| *event.unwrap()).collect()
}

/// The first 12 characters of each statement in the capture `monday`.
fn statements(folder: &TempDir) -> Vec<String> {
    let events = events(folder);
    let texts = events.iter().filter_map(|event| event.action.sql());
    texts.map(|sql| sql.to_str_lossy().chars().take(12).collect()).collect()
}

/// Pseudo-random bytes.
fn noise(bytes: usize) -> Vec<u8> {
    let mut state = 1_u64;
    std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        state.to_be_bytes()[0]
    })
    .take(bytes)
    .collect()
}

#[test]
fn invalid_log_is_reported_and_leaves_no_capture() {
    let folder = folder();
    write(&folder, "empty.log", "");
    write(&folder, "junk.log", noise(1 << 20));
    write(&folder, "poem.txt", "\nTyger Tyger, burning bright\nIn the forests of the night\n");
    write(&folder, "server.log", stderr_record(1, "select 1"));
    fs::create_dir(folder.path().join("logs")).unwrap();
    let cases: [(&[&str], i32, &[&str]); 7] = [
        (&["missing.log"], 1, &["missing.log", "No such file"]),
        (&["logs"], 1, &["logs contains no files"]),
        (&["empty.log"], 1, &["empty.log is empty"]),
        (&["junk.log"], 1, &["junk.log: not text"]),
        (&["poem.txt"], 1, &["poem.txt:2", "Tyger Tyger", "log_line_prefix"]),
        (&["server.log", "--format", "toml"], 2, &["'toml'", "stderr, csv, json"]),
        (&["server.log", "--format", "csv"], 1, &["server.log:1", "not a csvlog record"]),
    ];
    for (words, code, expected) in cases {
        let words = [&["capture", "import", "-o", "monday"], words].concat();
        assert_fails(&folder, &words, code, expected);
        assert!(!folder.path().join("monday").exists(), "{words:?}");
    }
}

#[test]
fn wrong_prefix_is_reported_with_line_and_suggestion() {
    let folder = folder();
    write(&folder, "server.log", stderr_record(1, "select 1") + &stderr_record(2, "select 2"));
    let words = ["capture", "import", "server.log", "-o", "monday", "--prefix", "%m|%u|%d|%c|"];
    let expected =
        ["server.log:1", "\"%m|%u|%d|%c|\"", "statement: select 1", "\"%m [%p] %q%u@%d \" would"];
    assert_fails(&folder, &words, 1, &expected);
}

#[test]
fn complete_records_of_truncated_log_are_imported() {
    for (name, record) in [
        ("server.log", stderr_record as fn(u32, &str) -> String),
        ("server.csv", csv_record),
        ("server.json", json_record),
    ] {
        let folder = folder();
        let whole = record(1, "select 1") + &record(2, "select 2") + &record(3, "select 3");
        write(&folder, name, &whole[..whole.rfind("select").unwrap() + 3]);
        let expected = assert_succeeds(&folder, &["capture", "import", name, "-o", "monday"]);
        assert_eq!(statements(&folder), ["select 1", "select 2"], "{name}");
        assert!(expected.contains("records cut short: 1"), "{expected}");
        assert!(expected.contains(&format!("{name}:3")), "{expected}");
    }
}

/// The limit of a process's private memory (`RLIMIT_DATA`), which counts reserved memory as well as
/// resident.
const DATA_KILOBYTES_MAX: u32 = 600 << 10;

#[test]
fn line_of_100_mb_is_imported_within_600_mb() {
    for (name, record) in
        [("server.log", stderr_record as fn(u32, &str) -> String), ("server.csv", csv_record)]
    {
        let folder = folder();
        let mut file = BufWriter::new(File::create(folder.path().join(name)).unwrap());
        let long = record(2, "select 'LONG'");
        let (before, after) = long.split_once("LONG").unwrap();
        write!(file, "{}{before}", record(1, "select 1")).unwrap();
        for _ in 0..1000 {
            file.write_all(&[b'x'; 100_000]).unwrap();
        }
        write!(file, "{after}{}", record(3, "select 3")).unwrap();
        file.flush().unwrap();
        let output =
            run_with_memory_limit(folder.path(), &["capture", "import", name, "-o", "monday"]);
        assert_eq!(output.status.code(), Some(0), "{name}: {}", stderr_text(&output));
        let events = events(&folder);
        let lengths: Vec<_> =
            events.iter().filter_map(|event| event.action.sql()).map(Text::len).collect();
        assert_eq!(lengths, [8, 100_000_009, 8], "{name}");
        let output = run_with_memory_limit(folder.path(), &["capture", "cat", "monday"]);
        assert_eq!(output.status.code(), Some(0), "{name}: {}", stderr_text(&output));
        assert_eq!(output.stdout.split(|byte| *byte == b'\n').count(), 6, "{name}");
    }
}

#[test]
fn invalid_line_of_100_mb_is_counted() {
    let folder = folder();
    let mut file = BufWriter::new(File::create(folder.path().join("server.log")).unwrap());
    file.write_all(stderr_record(1, "select 1").as_bytes()).unwrap();
    for _ in 0..1000 {
        file.write_all(&[b'x'; 100_000]).unwrap();
    }
    write!(file, "\n{}", stderr_record(3, "select 3")).unwrap();
    file.flush().unwrap();
    let output =
        run_with_memory_limit(folder.path(), &["capture", "import", "server.log", "-o", "monday"]);
    let expected = stderr_text(&output);
    assert_eq!(output.status.code(), Some(0), "{expected}");
    assert!(expected.contains("lines that are not log records: 1"), "{expected}");
    assert!(expected.contains("server.log:2: xxx"), "{expected}");
    assert_eq!(statements(&folder), ["select 1", "select 3"]);
}

fn run_with_memory_limit(folder: &Path, words: &[&str]) -> Output {
    let script = format!(r#"ulimit -d {DATA_KILOBYTES_MAX} && exec "$0" "$@""#);
    let howdah = assert_cmd::cargo::cargo_bin!("howdah");
    run(Command::new("sh").args(["-c", &script]).arg(howdah).args(words), folder)
}

#[test]
fn mixed_encodings_are_kept_and_shown_lossily() {
    let folder = folder();
    let mut log = stderr_record(1, "select 'café'").into_bytes();
    log.extend(
        stderr_record(2, "select 'caf?'")
            .bytes()
            .map(|byte| if byte == b'?' { 0xe9 } else { byte }),
    );
    write(&folder, "server.log", log);
    assert_succeeds(&folder, &["capture", "import", "server.log", "-o", "monday"]);
    let output = howdah(folder.path(), &["capture", "cat", "monday", "--format", "ndjson"]);
    let shown = String::from_utf8(output.stdout).unwrap();
    assert!(
        shown.contains("\"select 'café'\"") && shown.contains("\"select 'caf\u{fffd}'\""),
        "{shown}"
    );
    let events = events(&folder);
    let bytes: Vec<_> =
        events.iter().filter_map(|event| event.action.sql()).map(Text::as_bytes).collect();
    assert_eq!(bytes, ["select 'café'".as_bytes(), b"select 'caf\xe9'"]);
}

#[test]
fn unwritable_output_is_reported() {
    let folder = folder();
    write(&folder, "server.log", stderr_record(1, "select 1"));
    write(&folder, "file", "");
    fs::create_dir(folder.path().join("mine")).unwrap();
    write(&folder, "mine/notes.txt", "keep me");
    let import = ["capture", "import", "server.log", "-o"];
    let to = |place: &'static str| [&import[..], &[place, "--force"]].concat();
    assert_fails(&folder, &to("file"), 1, &["cannot write the capture", "file is not a folder"]);
    assert_fails(&folder, &to("file/monday"), 1, &["cannot write file/monday", "Not a directory"]);
    assert_fails(&folder, &to("/proc/monday"), 1, &["cannot write /proc/monday"]);
    assert_fails(
        &folder,
        &to("mine"),
        1,
        &["mine is not empty and contains no capture", "left unchanged"],
    );
    assert_eq!(fs::read(folder.path().join("mine/notes.txt")).unwrap(), b"keep me");

    assert_succeeds(&folder, &[&import[..], &["monday"]].concat());
    assert_fails(
        &folder,
        &[&import[..], &["monday"]].concat(),
        1,
        &["monday already contains", "hint: use --force"],
    );
    write_run(&folder.path().join("tuesday"));
    assert_fails(&folder, &to("tuesday"), 1, &["tuesday contains a run, not a capture"]);
    assert!(ReplayRun::open(&folder.path().join("tuesday")).is_ok());
}

/// The small file system is mounted in a private namespace, so it disappears with the script.
#[test]
fn finished_files_survive_full_disk() {
    let folder = folder();
    let mut log = BufWriter::new(File::create(folder.path().join("server.log")).unwrap());
    let mut state = 1_u64;
    // Two files of 131,072 events; the disk has room for one and a half.
    for number in 0..264_000_u32 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let sql = format!("select '{:x}'", state >> 16);
        log.write_all(stderr_record(number / 1000, &sql).as_bytes()).unwrap();
    }
    log.flush().unwrap();
    fs::create_dir(folder.path().join("disk")).unwrap();
    let script = r#"
        mount -t tmpfs -o size=1700k tmpfs disk || exit 77
        "$0" capture import server.log -o disk/monday; echo "exit $?"
        "$0" capture info disk/monday --format json
        ls -A disk/monday"#;
    let howdah = assert_cmd::cargo::cargo_bin!("howdah");
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script]).arg(howdah);
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: only root can mount a tmpfs");
        return;
    }
    let output = run(&mut command, folder.path());
    if output.status.code() == Some(77) || stderr_text(&output).contains("unshare failed") {
        eprintln!("SKIPPED: cannot mount a tmpfs: {}", stderr_text(&output));
        return;
    }
    let (expected, shown) = (stderr_text(&output), String::from_utf8(output.stdout).unwrap());
    assert!(expected.contains("no room to write disk/monday/events-000002.parquet"), "{expected}");
    assert!(expected.contains("finished files are kept (1 so far)"), "{expected}");
    assert!(expected.contains("hint: ") && expected.contains("free some space"), "{expected}");
    assert!(shown.starts_with("exit 1\n"), "{shown}");
    assert!(
        shown.contains("\"events\": 131072") && shown.contains("\"finished\": false"),
        "{shown}"
    );
    assert!(shown.ends_with("}\ncapture.json\nevents-000001.parquet\n"), "{shown}");
}

/// Writes a run with one outcome.
fn write_run(dir: &Path) {
    let settings = RunSettings {
        capture: "monday".to_owned(),
        target: "db1:5432".to_owned(),
        rate: "1".to_owned(),
        server_version: "17.1".to_owned(),
        started: Timestamp::from_micros(0),
        overwrite: false,
        part: None,
    };
    let mut writer = RunWriter::create(dir, settings).unwrap();
    let outcome = ReplayOutcome {
        time: Timestamp::from_micros(0),
        session: "656a1b2c.4d2".into(),
        user: "app".into(),
        database: "shop".into(),
        kind: Kind::Simple,
        fingerprint: None,
        due_us: 0,
        sent_us: Some(0),
        service_us: Some(250),
        schedule_error_us: None,
        dependency_lag_us: None,
        input_late_us: None,
        rows: None,
        disposition: Disposition::Done,
        captured_us: None,
        order_wait_us: None,
        captured_rows: None,
        check: None,
    };
    writer.write(&outcome).unwrap();
    writer.finish(serde_json::Value::Null, true).unwrap();
}

/// A folder with the capture `monday`, the run `tuesday`, and a folder that is neither.
fn write_datasets() -> TempDir {
    let folder = folder();
    write(&folder, "server.log", stderr_record(1, "select 1") + &stderr_record(2, "select 2"));
    assert_succeeds(&folder, &["capture", "import", "server.log", "-o", "monday"]);
    write_run(&folder.path().join("tuesday"));
    fs::create_dir(folder.path().join("neither")).unwrap();
    folder
}

/// Every command that reads a capture, for the capture `dir`. The target does not exist: an invalid
/// capture is reported before connecting.
fn commands_reading(dir: &str) -> [Vec<&str>; 3] {
    [
        vec!["capture", "info", dir],
        vec!["capture", "cat", dir],
        vec!["replay", dir, "--target", "postgresql://localhost:1/shop"],
    ]
}

#[test]
fn invalid_capture_is_reported_by_every_command() {
    let folder = write_datasets();
    for words in commands_reading("neither") {
        assert_fails(
            &folder,
            &words,
            1,
            &["neither is not a capture", "hint: `howdah capture import"],
        );
    }
    for words in commands_reading("tuesday") {
        assert_fails(&folder, &words, 1, &["tuesday is a run, not a capture"]);
    }
    for words in &commands_reading("wednesday")[..2] {
        assert_fails(
            &folder,
            words,
            1,
            &["wednesday does not exist", "hint: `howdah capture import"],
        );
    }
}

#[test]
fn invalid_run_is_reported_by_compare() {
    let folder = write_datasets();
    for (dir, expected) in [
        ("neither", "neither is not a run: there is no valid run.json"),
        ("monday", "monday is a capture, not a run"),
        ("wednesday", "wednesday does not exist"),
        ("server.log", "server.log is not a run"),
    ] {
        assert_fails(&folder, &["compare", dir, "tuesday"], 1, &[expected, "hint: "]);
        assert_fails(&folder, &["compare", "tuesday", dir], 1, &[expected, "hint: "]);
    }
}

#[test]
fn newer_format_version_is_reported() {
    let folder = write_datasets();
    for (manifest, version) in [("monday/capture.json", 5), ("tuesday/run.json", 3)] {
        let path = folder.path().join(manifest);
        let text = fs::read_to_string(&path).unwrap();
        let present = format!("\"version\": {version},");
        assert!(text.contains(&present));
        fs::write(&path, text.replace(&present, "\"version\": 9, \"novel\": true,")).unwrap();
    }
    let expected = "format version 9; this howdah reads up to version";
    for words in commands_reading("monday") {
        assert_fails(&folder, &words, 1, &["monday/capture.json", expected]);
    }
    assert_fails(&folder, &["compare", "tuesday", "tuesday"], 1, &["tuesday/run.json", expected]);
}

/// Damages the content of a file.
type Damaging = fn(&[u8]) -> Vec<u8>;

#[test]
fn damaged_files_are_reported() {
    let damages: [Damaging; 4] = [
        |bytes| bytes[..bytes.len() / 2].to_vec(),
        |_| Vec::new(),
        |bytes| noise(bytes.len()),
        // A wrong length of the footer.
        |bytes| [&bytes[..bytes.len() - 8], &[0xff; 4], b"PAR1"].concat(),
    ];
    for damage in damages {
        let folder = write_datasets();
        for name in ["monday/events-000001.parquet", "tuesday/outcomes-000001.parquet"] {
            let path = folder.path().join(name);
            fs::write(&path, damage(&fs::read(&path).unwrap())).unwrap();
        }
        for words in commands_reading("monday") {
            assert_fails(&folder, &words, 1, &["monday/events-000001.parquet is damaged"]);
        }
        let expected = ["tuesday/outcomes-000001.parquet is damaged"];
        assert_fails(&folder, &["compare", "tuesday", "tuesday"], 1, &expected);
    }
}

#[test]
fn damaged_manifest_or_missing_file_is_reported() {
    let folder = write_datasets();
    let manifest = folder.path().join("monday/capture.json");
    let whole = fs::read_to_string(&manifest).unwrap();
    fs::write(&manifest, &whole[..whole.len() / 2]).unwrap();
    for words in commands_reading("monday") {
        assert_fails(&folder, &words, 1, &["monday/capture.json is damaged", " line "]);
    }
    fs::write(&manifest, &whole).unwrap();
    fs::remove_file(folder.path().join("monday/events-000001.parquet")).unwrap();
    for words in commands_reading("monday") {
        assert_fails(&folder, &words, 1, &["monday/events-000001.parquet", "the file is missing"]);
    }
}

/// The Parquet decoder panics on some files. The panic message used to be printed above the error.
#[test]
fn parquet_decoder_panic_is_reported_as_damaged_file() {
    let folder = write_datasets();
    let path = folder.path().join("monday/events-000001.parquet");
    let sound = fs::read(&path).unwrap();
    let footer_bytes = u32::from_le_bytes(sound[sound.len() - 8..][..4].try_into().unwrap());
    let footer = sound.len() - 8 - footer_bytes as usize;
    // The lowest bit of a zigzag-encoded number in the footer is its sign.
    let gives_up = (footer..sound.len() - 8).any(|at| {
        let mut bytes = sound.clone();
        bytes[at] ^= 1;
        fs::write(&path, bytes).unwrap();
        let opened = Capture::open(&folder.path().join("monday"));
        let read = opened.and_then(|capture| capture.events().collect::<Result<Vec<_>, _>>());
        matches!(read, Err(ReadError::Damaged { source: Corruption::Decoder { .. }, .. }))
    });
    assert!(gives_up, "the decoder no longer panics on any of these files");
    let output = howdah(folder.path(), &["capture", "cat", "monday"]);
    let expected = stderr_text(&output);
    assert_eq!(output.status.code(), Some(1), "{expected}");
    assert!(
        expected.contains("monday/events-000001.parquet is damaged: the Parquet decoder failed"),
        "{expected}"
    );
}
