//! Bad input through the real binary: damaged, huge, foreign or missing logs, captures and runs, and
//! places that cannot be written. Each case says which file (and line), exits with the right code, keeps
//! what was readable, and never shows a panic.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails, helpers included")]

use std::{
    fs::{self, File},
    io::{BufWriter, Write as _},
    path::Path,
    process::{Command, Output},
};

use howdah_dataset::{
    Capture, Damage, Disposition, ReadError, ReplayOutcome, Run, RunSettings, RunWriter,
};
use howdah_traffic::{Event, Kind, Text, Timestamp};
use tempfile::TempDir;

/// A record of a stderr log, at a millisecond of one second.
fn line(millis: u32, sql: &str) -> String {
    format!(
        "2026-11-20 12:43:20.{millis:03} UTC [7] app@shop LOG:  duration: 1.500 ms  statement: {sql}\n"
    )
}

/// The same in a csvlog.
fn row(millis: u32, sql: &str) -> String {
    format!(
        "2026-11-20 12:43:20.{millis:03} UTC,\"app\",\"shop\",7,\"[local]\",6b004067.7,{millis},\"idle\",\
         2026-11-20 12:43:20 UTC,3/4,0,LOG,00000,\"duration: 1.500 ms  statement: {sql}\",,,,,,,,,\
         \"psql\",\"client backend\",,0\n"
    )
}

/// The same in a jsonlog.
fn object(millis: u32, sql: &str) -> String {
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

/// The binary in a folder, out of reach of the tester's settings.
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
    let said = said(&output);
    assert!(!said.contains("panicked") && !said.contains("RUST_BACKTRACE"), "{said}");
    output
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Runs what has to fail, and checks what it says.
fn refused(folder: &TempDir, words: &[&str], code: i32, told: &[&str]) {
    let output = howdah(folder.path(), words);
    let said = said(&output);
    assert_eq!(output.status.code(), Some(code), "{words:?}: {said}");
    assert!(output.stdout.is_empty(), "{words:?}: a failure has no data");
    for told in told {
        assert!(said.contains(told), "{words:?}: {told:?} is not in: {said}");
    }
}

/// Runs what has to succeed; gives what it said.
fn done(folder: &TempDir, words: &[&str]) -> String {
    let output = howdah(folder.path(), words);
    assert_eq!(output.status.code(), Some(0), "{words:?}: {}", said(&output));
    said(&output)
}

/// The events of the capture `monday`.
fn events(folder: &TempDir) -> Vec<Event> {
    let capture = Capture::open(&folder.path().join("monday")).unwrap();
    capture.events().map(Result::unwrap).collect()
}

/// The SQL of the capture `monday`, the beginning of each.
fn statements(folder: &TempDir) -> Vec<String> {
    let events = events(folder);
    let texts = events.iter().filter_map(|event| event.action.sql());
    texts.map(|sql| sql.to_str_lossy().chars().take(12).collect()).collect()
}

/// Bytes without any meaning.
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
fn what_is_no_log_is_named_and_leaves_nothing() {
    let folder = folder();
    write(&folder, "empty.log", "");
    write(&folder, "junk.log", noise(1 << 20));
    write(&folder, "poem.txt", "\nTyger Tyger, burning bright\nIn the forests of the night\n");
    write(&folder, "server.log", line(1, "select 1"));
    fs::create_dir(folder.path().join("logs")).unwrap();
    let cases: [(&[&str], i32, &[&str]); 7] = [
        (&["missing.log"], 1, &["missing.log", "No such file"]),
        (&["logs"], 1, &["logs holds no files"]),
        (&["empty.log"], 1, &["empty.log is empty"]),
        (&["junk.log"], 1, &["junk.log: not text"]),
        (&["poem.txt"], 1, &["poem.txt:2", "Tyger Tyger", "log_line_prefix"]),
        (&["server.log", "--format", "toml"], 2, &["'toml'", "stderr, csv, json"]),
        (&["server.log", "--format", "csv"], 1, &["server.log:1", "not a csvlog record"]),
    ];
    for (words, code, told) in cases {
        let words = [&["capture", "import", "-o", "monday"], words].concat();
        refused(&folder, &words, code, told);
        assert!(!folder.path().join("monday").exists(), "{words:?}");
    }
}

#[test]
fn a_wrong_prefix_is_told_with_the_line_that_does_not_fit_and_one_that_would() {
    let folder = folder();
    write(&folder, "server.log", line(1, "select 1") + &line(2, "select 2"));
    let words = ["capture", "import", "server.log", "-o", "monday", "--prefix", "%m|%u|%d|%c|"];
    let told =
        ["server.log:1", "\"%m|%u|%d|%c|\"", "statement: select 1", "\"%m [%p] %q%u@%d \" would"];
    refused(&folder, &words, 1, &told);
}

#[test]
fn a_log_cut_mid_record_keeps_what_came_before() {
    for (name, record) in [
        ("server.log", line as fn(u32, &str) -> String),
        ("server.csv", row),
        ("server.json", object),
    ] {
        let folder = folder();
        let whole = record(1, "select 1") + &record(2, "select 2") + &record(3, "select 3");
        write(&folder, name, &whole[..whole.rfind("select").unwrap() + 3]);
        let told = done(&folder, &["capture", "import", name, "-o", "monday"]);
        assert_eq!(statements(&folder), ["select 1", "select 2"], "{name}");
        assert!(told.contains("records cut short: 1"), "{told}");
        assert!(told.contains(&format!("{name}:3")), "{told}");
    }
}

/// The kernel counts what a process may hold of its own (`RLIMIT_DATA`), reserved or touched: more than
/// what is ever resident.
const DATA_KILOBYTES_MAX: u32 = 600 << 10;

#[test]
fn a_line_of_100_megabytes_is_an_event_and_600_megabytes_are_enough() {
    for (name, record) in [("server.log", line as fn(u32, &str) -> String), ("server.csv", row)] {
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
        let output = within_memory(folder.path(), &["capture", "import", name, "-o", "monday"]);
        assert_eq!(output.status.code(), Some(0), "{name}: {}", said(&output));
        let events = events(&folder);
        let lengths: Vec<_> =
            events.iter().filter_map(|event| event.action.sql()).map(Text::len).collect();
        assert_eq!(lengths, [8, 100_000_009, 8], "{name}");
        let output = within_memory(folder.path(), &["capture", "cat", "monday"]);
        assert_eq!(output.status.code(), Some(0), "{name}: {}", said(&output));
        assert_eq!(output.stdout.split(|byte| *byte == b'\n').count(), 6, "{name}");
    }
}

#[test]
fn a_line_of_100_megabytes_that_is_no_record_is_counted() {
    let folder = folder();
    let mut file = BufWriter::new(File::create(folder.path().join("server.log")).unwrap());
    file.write_all(line(1, "select 1").as_bytes()).unwrap();
    for _ in 0..1000 {
        file.write_all(&[b'x'; 100_000]).unwrap();
    }
    write!(file, "\n{}", line(3, "select 3")).unwrap();
    file.flush().unwrap();
    let output = within_memory(folder.path(), &["capture", "import", "server.log", "-o", "monday"]);
    let told = said(&output);
    assert_eq!(output.status.code(), Some(0), "{told}");
    assert!(told.contains("lines that are no log record: 1"), "{told}");
    assert!(told.contains("server.log:2: xxx"), "{told}");
    assert_eq!(statements(&folder), ["select 1", "select 3"]);
}

fn within_memory(folder: &Path, words: &[&str]) -> Output {
    let script = format!(r#"ulimit -d {DATA_KILOBYTES_MAX} && exec "$0" "$@""#);
    let howdah = assert_cmd::cargo::cargo_bin!("howdah");
    run(Command::new("sh").args(["-c", &script]).arg(howdah).args(words), folder)
}

#[test]
fn mixed_encodings_are_shown_as_well_as_can_be_and_kept_as_they_are() {
    let folder = folder();
    let mut log = line(1, "select 'café'").into_bytes();
    log.extend(line(2, "select 'caf?'").bytes().map(|byte| if byte == b'?' { 0xe9 } else { byte }));
    write(&folder, "server.log", log);
    done(&folder, &["capture", "import", "server.log", "-o", "monday"]);
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
fn places_that_cannot_be_written_are_named() {
    let folder = folder();
    write(&folder, "server.log", line(1, "select 1"));
    write(&folder, "file", "");
    fs::create_dir(folder.path().join("mine")).unwrap();
    write(&folder, "mine/notes.txt", "keep me");
    let import = ["capture", "import", "server.log", "-o"];
    let to = |place: &'static str| [&import[..], &[place, "--force"]].concat();
    refused(&folder, &to("file"), 1, &["cannot write the capture", "file is not a folder"]);
    refused(&folder, &to("file/monday"), 1, &["cannot write file/monday", "Not a directory"]);
    refused(&folder, &to("/proc/monday"), 1, &["cannot write /proc/monday"]);
    refused(&folder, &to("mine"), 1, &["mine is not empty and holds no capture", "left alone"]);
    assert_eq!(fs::read(folder.path().join("mine/notes.txt")).unwrap(), b"keep me");

    done(&folder, &[&import[..], &["monday"]].concat());
    refused(
        &folder,
        &[&import[..], &["monday"]].concat(),
        1,
        &["monday already holds", "hint: --force"],
    );
    write_run(&folder.path().join("tuesday"));
    refused(&folder, &to("tuesday"), 1, &["tuesday holds a run, not a capture"]);
    assert!(Run::open(&folder.path().join("tuesday")).is_ok());
}

/// A small file system that only the script's own processes see, and that is gone when they are.
#[test]
fn a_full_disk_keeps_the_files_that_were_finished() {
    let folder = folder();
    let mut log = BufWriter::new(File::create(folder.path().join("server.log")).unwrap());
    let mut state = 1_u64;
    // Two files of 131,072 events; the disk has room for one and a half.
    for number in 0..264_000_u32 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let sql = format!("select '{:x}'", state >> 16);
        log.write_all(line(number / 1000, &sql).as_bytes()).unwrap();
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
        eprintln!("skipped: only root may mount a small disk");
        return;
    }
    let output = run(&mut command, folder.path());
    if output.status.code() == Some(77) || said(&output).contains("unshare failed") {
        eprintln!("skipped: this machine lets nobody mount: {}", said(&output));
        return;
    }
    let (told, shown) = (said(&output), String::from_utf8(output.stdout).unwrap());
    assert!(told.contains("no room to write disk/monday/events-000002.parquet"), "{told}");
    assert!(told.contains("1 finished files are kept"), "{told}");
    assert!(told.contains("hint: ") && told.contains("free some space"), "{told}");
    assert!(shown.starts_with("exit 1\n"), "{shown}");
    assert!(
        shown.contains("\"events\": 131072") && shown.contains("\"finished\": false"),
        "{shown}"
    );
    assert!(shown.ends_with("}\ncapture.json\nevents-000001.parquet\n"), "{shown}");
}

/// A run of one outcome.
fn write_run(dir: &Path) {
    let settings = RunSettings {
        capture: "monday".to_owned(),
        target: "db1:5432".to_owned(),
        rate: "1".to_owned(),
        server_version: "17.1".to_owned(),
        started: Timestamp::from_micros(0),
        overwrite: false,
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
    };
    writer.write(&outcome).unwrap();
    writer.finish(serde_json::Value::Null, true).unwrap();
}

/// A folder with the capture `monday`, the run `tuesday`, and a folder that is neither.
fn datasets() -> TempDir {
    let folder = folder();
    write(&folder, "server.log", line(1, "select 1") + &line(2, "select 2"));
    done(&folder, &["capture", "import", "server.log", "-o", "monday"]);
    write_run(&folder.path().join("tuesday"));
    fs::create_dir(folder.path().join("neither")).unwrap();
    folder
}

/// Every command that reads a capture, of one that is `dir`. Nobody listens at the target: a capture that
/// cannot be read is told before anybody is called.
fn readers(dir: &str) -> [Vec<&str>; 3] {
    [
        vec!["capture", "info", dir],
        vec!["capture", "cat", dir],
        vec!["replay", dir, "--target", "postgresql://localhost:1/shop"],
    ]
}

#[test]
fn what_is_no_capture_is_said_by_all_who_read_one() {
    let folder = datasets();
    for words in readers("neither") {
        refused(&folder, &words, 1, &["neither is not a capture", "hint: `howdah capture import"]);
    }
    for words in readers("tuesday") {
        refused(&folder, &words, 1, &["tuesday is a run, not a capture"]);
    }
    for words in &readers("wednesday")[..2] {
        refused(&folder, words, 1, &["wednesday does not exist", "hint: `howdah capture import"]);
    }
}

#[test]
fn what_is_no_run_is_said_by_compare() {
    let folder = datasets();
    for (dir, told) in [
        ("neither", "neither is not a run: there is no run.json"),
        ("monday", "monday is a capture, not a run"),
        ("wednesday", "wednesday does not exist"),
        ("server.log", "server.log is not a run"),
    ] {
        refused(&folder, &["compare", dir, "tuesday"], 1, &[told, "hint: "]);
        refused(&folder, &["compare", "tuesday", dir], 1, &[told, "hint: "]);
    }
}

#[test]
fn a_newer_format_is_said_so() {
    let folder = datasets();
    for (manifest, version) in [("monday/capture.json", 4), ("tuesday/run.json", 2)] {
        let path = folder.path().join(manifest);
        let text = fs::read_to_string(&path).unwrap();
        let present = format!("\"version\": {version},");
        assert!(text.contains(&present));
        fs::write(&path, text.replace(&present, "\"version\": 9, \"novel\": true,")).unwrap();
    }
    let told = "format version 9; this howdah reads up to version";
    for words in readers("monday") {
        refused(&folder, &words, 1, &["monday/capture.json", told]);
    }
    refused(&folder, &["compare", "tuesday", "tuesday"], 1, &["tuesday/run.json", told]);
}

/// Makes a damaged file of a sound one.
type Damaging = fn(&[u8]) -> Vec<u8>;

#[test]
fn damaged_files_are_named() {
    let damages: [Damaging; 4] = [
        |bytes| bytes[..bytes.len() / 2].to_vec(),
        |_| Vec::new(),
        |bytes| noise(bytes.len()),
        // The length of the footer.
        |bytes| [&bytes[..bytes.len() - 8], &[0xff; 4], b"PAR1"].concat(),
    ];
    for damage in damages {
        let folder = datasets();
        for name in ["monday/events-000001.parquet", "tuesday/outcomes-000001.parquet"] {
            let path = folder.path().join(name);
            fs::write(&path, damage(&fs::read(&path).unwrap())).unwrap();
        }
        for words in readers("monday") {
            refused(&folder, &words, 1, &["monday/events-000001.parquet is damaged"]);
        }
        let told = ["tuesday/outcomes-000001.parquet is damaged"];
        refused(&folder, &["compare", "tuesday", "tuesday"], 1, &told);
    }
}

#[test]
fn a_damaged_manifest_or_a_missing_file_is_named() {
    let folder = datasets();
    let manifest = folder.path().join("monday/capture.json");
    let whole = fs::read_to_string(&manifest).unwrap();
    fs::write(&manifest, &whole[..whole.len() / 2]).unwrap();
    for words in readers("monday") {
        refused(&folder, &words, 1, &["monday/capture.json is damaged", " line "]);
    }
    fs::write(&manifest, &whole).unwrap();
    fs::remove_file(folder.path().join("monday/events-000001.parquet")).unwrap();
    for words in readers("monday") {
        refused(&folder, &words, 1, &["monday/events-000001.parquet", "the file is missing"]);
    }
}

/// The Parquet decoder panics on some files; the panic was printed above the error, as if howdah itself
/// had failed.
#[test]
fn a_panic_of_the_parquet_decoder_is_an_error_about_the_file() {
    let folder = datasets();
    let path = folder.path().join("monday/events-000001.parquet");
    let sound = fs::read(&path).unwrap();
    let footer_bytes = u32::from_le_bytes(sound[sound.len() - 8..][..4].try_into().unwrap());
    let footer = sound.len() - 8 - footer_bytes as usize;
    // The lowest bit of a number in the footer is its sign.
    let gives_up = (footer..sound.len() - 8).any(|at| {
        let mut bytes = sound.clone();
        bytes[at] ^= 1;
        fs::write(&path, bytes).unwrap();
        let opened = Capture::open(&folder.path().join("monday"));
        let read = opened.and_then(|capture| capture.events().collect::<Result<Vec<_>, _>>());
        matches!(read, Err(ReadError::Damaged { source: Damage::Decoder { .. }, .. }))
    });
    assert!(gives_up, "the decoder has learnt to refuse what it panicked on");
    let output = howdah(folder.path(), &["capture", "cat", "monday"]);
    let told = said(&output);
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(
        told.contains("monday/events-000001.parquet is damaged: the decoder gave up"),
        "{told}"
    );
}
