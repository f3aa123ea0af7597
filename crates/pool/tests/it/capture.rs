//! Traffic of real clients, captured on its way: what stands in the capture, and what does not.

use std::{
    fs,
    io::Write as _,
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use howdah_dataset::Capture;
use howdah_lab::Cluster;
use howdah_pool::{Origin, Pooler, config::Config};
use howdah_traffic::{Action, CopyDirection, Event, Kind, Parameter, Source};
use tempfile::TempDir;

use crate::support::{Raw, Stage, said};

/// A pooler that captures, and where.
struct Scene {
    stage: Stage,
    folder: TempDir,
}

impl Scene {
    fn set(test: &str, more: &str) -> Option<Self> {
        Self::with(test, more, "")
    }

    /// With more settings of the capture.
    fn with(test: &str, more: &str, capture: &str) -> Option<Self> {
        let folder = TempDir::new().unwrap();
        let path = folder.path().display();
        let settings = format!(
            "admin-users = [\"postgres\"]\ncapture = {{ path = \"{path}\"{capture} }}\n{more}"
        );
        Some(Self { stage: Stage::set(test, &settings)?, folder })
    }

    fn start(&self) {
        self.stage.pooler.control().start_capture(Some("it")).unwrap();
    }

    fn stop(&self) -> Vec<Event> {
        let status = self.stage.pooler.control().stop_capture().unwrap();
        assert_eq!(status.error, None);
        self.events()
    }

    fn events(&self) -> Vec<Event> {
        events(&self.folder.path().join("it"))
    }

    /// Every byte of the capture's files, and of what they hold unpacked.
    fn assert_absent(&self, secret: &str) {
        for event in self.events() {
            assert!(!format!("{event:?}").contains(secret), "{event:?}");
        }
        for entry in fs::read_dir(self.folder.path().join("it")).unwrap() {
            let path = entry.unwrap().path();
            let bytes = fs::read(&path).unwrap();
            let found = bytes.windows(secret.len()).any(|window| window == secret.as_bytes());
            assert!(!found, "{secret} in {}", path.display());
        }
    }
}

fn events(path: &Path) -> Vec<Event> {
    Capture::open(path).unwrap().events().collect::<Result<_, _>>().unwrap()
}

/// An event in a few words: kind, text, values, rows, SQLSTATE.
fn words(event: &Event) -> String {
    let mut words = vec![event.action.kind().as_str().to_owned()];
    words.extend(event.action.sql().map(|sql| sql.to_str_lossy().into_owned()));
    if let Action::Bind(bound) | Action::Execute(bound) = &event.action {
        let value = |value: &Parameter| match value {
            Parameter::Null => "NULL".to_owned(),
            Parameter::Value(text) | Parameter::Truncated(text) => {
                text.as_bytes().escape_ascii().to_string()
            }
        };
        let values = bound.parameters.iter().flatten().map(value).collect::<Vec<_>>();
        if !values.is_empty() {
            words.push(format!("({})", values.join(",")));
        }
    }
    let wire = event.wire.as_ref().unwrap();
    words.extend(wire.rows.map(|rows| format!("= {rows}")));
    words.extend(event.outcome.sqlstate.map(|code| format!("! {code}")));
    words.join(" ")
}

/// The words of statements, without sessions' beginnings and ends.
fn statements(events: &[Event]) -> Vec<String> {
    let is_session = |event: &&Event| matches!(event.action, Action::Connect | Action::Disconnect);
    events.iter().filter(|event| !is_session(event)).map(words).collect()
}

#[test]
fn simple_statements_have_times_rows_and_errors() {
    let Some(scene) = Scene::set("simple", "") else { return };
    scene.start();
    scene.stage.psql(&[
        "create table t (a int primary key, b text)",
        "insert into t select i, 'x' from generate_series(1, 5) i",
        "select pg_sleep(0.05), * from t",
    ]);
    let failed = scene.stage.run(
        "psql",
        &[
            "-XAtq",
            "-c",
            "begin",
            "-c",
            "insert into t values (1)",
            "-c",
            "select 1",
            "-c",
            "rollback",
        ],
    );
    assert!(!failed.stderr.is_empty());
    let events = scene.stop();
    assert_eq!(
        statements(&events),
        [
            "simple create table t (a int primary key, b text)",
            "simple insert into t select i, 'x' from generate_series(1, 5) i = 5",
            "simple select pg_sleep(0.05), * from t = 5",
            "simple begin",
            "simple insert into t values (1) ! 23505",
            "simple select 1 ! 25P02",
            "simple rollback",
        ]
    );
    let slept = &events[3];
    assert!(slept.outcome.duration_us.unwrap() >= 250_000, "{slept:?}");
    assert!(
        events.iter().all(|event| (&*event.user, &*event.database) == ("postgres", "postgres"))
    );
    assert!(
        events.iter().all(|event| event.source == Source::Wire && &*event.application == "psql")
    );
    assert_eq!(events[0].action, Action::Connect);
    let settings = &events[0].wire.as_ref().unwrap().settings;
    assert!(settings.contains(&("application_name".into(), "psql".into())), "{settings:?}");
    let ends = events.iter().filter(|event| event.action == Action::Disconnect).count();
    assert_eq!(ends, 2);
}

/// A message of the extended protocol.
fn message(tag: u8, body: &[&[u8]]) -> Vec<u8> {
    let body = body.concat();
    let len = u32::try_from(body.len() + 4).unwrap().to_be_bytes();
    [&[tag][..], &len, &body].concat()
}

fn bind_binary(statement: &[u8], value: &[u8]) -> Vec<u8> {
    let len = u32::try_from(value.len()).unwrap().to_be_bytes();
    message(b'B', &[b"\0", statement, b"\0\0\x01\0\x01\0\x01", &len, value, b"\0\x01\0\x01"])
}

#[test]
fn binary_values_types_row_limits_and_pipelines_are_kept() {
    let Some(scene) = Scene::set("extended", "") else { return };
    scene.start();
    let mut raw = Raw::log_in(scene.stage.address());
    let parse =
        message(b'P', &[b"s\0select $1::int + i from generate_series(1, 3) i\0\0\x01\0\0\0\x17"]);
    let execute = |rows: u8| message(b'E', &[b"\0\0\0\0", &[rows]]);
    let sync = message(b'S', &[]);
    let flush = message(b'H', &[]);
    // One pipeline of two executions, one with a row limit and what it left.
    let batch = [
        parse,
        bind_binary(b"s", &[0, 0, 0, 7]),
        execute(2),
        flush,
        execute(0),
        bind_binary(b"s", &[0, 0, 0, 8]),
        message(b'D', &[b"P\0"]),
        execute(0),
        sync.clone(),
    ];
    raw.0.write_all(&batch.concat()).unwrap();
    raw.until(b'Z');
    // A pipeline that fails in its middle, and one behind it.
    let bad = message(b'B', &[b"\0s\0\0\0\0\x01\0\0\0\x01x\0\0"]);
    let fine = [bind_binary(b"s", &[0, 0, 0, 12]), execute(0)].concat();
    raw.0.write_all(&[bad, execute(0), fine.clone(), sync.clone(), fine, sync].concat()).unwrap();
    raw.until(b'Z');
    raw.until(b'Z');
    raw.send(b'X', b"");
    assert!(raw.is_hung_up_on());
    let events = scene.stop();
    let sql = "select $1::int + i from generate_series(1, 3) i";
    assert_eq!(
        statements(&events),
        [
            format!("parse {sql}"),
            format!("execute {sql} (\\x00\\x00\\x00\\x07) = 2"),
            format!("fetch {sql} = 1"),
            format!("execute {sql} (\\x00\\x00\\x00\\x08) = 3"),
            format!("execute {sql} (x) ! 22P02"),
            format!("execute {sql} (\\x00\\x00\\x00\\x0c) = 3"),
        ]
    );
    let executed: Vec<_> = events.iter().filter(|event| event.pipeline.is_some()).collect();
    let pipelines: Vec<_> = executed.iter().map(|event| event.pipeline.unwrap()).collect();
    assert_eq!(pipelines, [1, 1, 1, 1, 2, 3]);
    let wire = executed[1].wire.as_ref().unwrap();
    assert_eq!(
        (&wire.types[..], &wire.formats[..], &wire.result_formats[..]),
        (&[23][..], &[1][..], &[1][..])
    );
    assert_eq!((wire.rows_max, wire.is_binary(0)), (2, true));
    assert!(!executed[4].wire.as_ref().unwrap().is_binary(0));
}

#[test]
fn rows_of_copies_are_kept_counted_or_passed_over() {
    for (setting, kept, counted) in [
        ("", true, true),
        (", copy = \"length\"", false, true),
        (", copy = \"off\"", false, false),
        (", copy-bytes-max = 5", false, true),
        (", redact = true", false, true),
    ] {
        let Some(scene) = Scene::with("copy", "", setting) else { return };
        scene.stage.psql(&["create table t (a int, b text)"]);
        scene.start();
        let mut psql = scene.stage.command("psql");
        psql.args(["-Xq", "-c", "copy t from stdin", "-c", "copy t to stdout"]);
        psql.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut psql = psql.spawn().unwrap();
        psql.stdin.take().unwrap().write_all(b"1\tfifty-one\n2\ttwo\n").unwrap();
        assert_eq!(said(psql.wait_with_output().unwrap()), "1\tfifty-one\n2\ttwo");
        let events = scene.stop();
        assert_eq!(
            statements(&events),
            ["copy copy t from stdin = 2", "copy copy t to stdout = 2"]
        );
        let direction = |event: &Event| match event.action {
            Action::Copy { direction, .. } => direction,
            _ => panic!("{event:?}"),
        };
        assert_eq!(direction(&events[1]), CopyDirection::In);
        assert_eq!(direction(&events[2]), CopyDirection::Out);
        let copy = events[1].wire.as_ref().unwrap().copy_in.as_ref();
        assert_eq!(copy.map(|copy| copy.bytes), counted.then_some(18), "{setting}");
        let data = copy.and_then(|copy| copy.data[0].clone());
        assert_eq!(data, kept.then(|| "1\tfifty-one\n2\ttwo\n".into()), "{setting}");
        if !kept {
            scene.assert_absent("fifty-one");
        }
    }
}

#[test]
fn sessions_that_are_open_enter_between_transactions() {
    let Some(scene) = Scene::set("open", "sizes = { pool = 3 }") else { return };
    let mut idle = Raw::log_in_with(scene.stage.address(), &[("DateStyle", "SQL, DMY")]);
    idle.send(b'P', b"named\0select 4711\0\0\0");
    idle.send(b'S', b"");
    idle.until(b'Z');
    let mut busy = Raw::log_in(scene.stage.address());
    busy.query("begin");
    busy.until(b'Z');
    scene.start();
    // The first thing that a new session hears comes behind the order to record.
    scene.stage.psql(&["select 'new'"]);
    for sql in ["select 'inside'", "commit", "select 'outside'"] {
        busy.query(sql);
        busy.until(b'Z');
    }
    idle.0
        .write_all(
            &[
                message(b'B', &[b"\0named\0\0\0\0\0\0\0"]),
                message(b'E', &[b"\0\0\0\0\0"]),
                message(b'S', &[]),
            ]
            .concat(),
        )
        .unwrap();
    idle.until(b'Z');
    let events = scene.stop();
    assert_eq!(
        statements(&events),
        ["simple select 'new' = 1", "simple select 'outside' = 1", "execute select 4711 = 1"]
    );
    let entered: Vec<_> = events
        .iter()
        .filter(|event| event.action == Action::Connect && event.source == Source::Inferred)
        .collect();
    assert_eq!(entered.len(), 2);
    let date = ("DateStyle".into(), "SQL, DMY".into());
    let has_date = |event: &&Event| event.wire.as_ref().unwrap().settings.contains(&date);
    assert_eq!(entered.iter().filter(|event| has_date(event)).count(), 1);
}

#[test]
fn what_the_pooler_asks_itself_is_not_in_it() {
    let more = "reset-query = \"select 'reset'\"\nreset-query-always = true";
    let Some(scene) = Scene::set("own", more) else { return };
    scene.start();
    let mut one = Raw::log_in_with(scene.stage.address(), &[("TimeZone", "Asia/Tokyo")]);
    for n in 0..3 {
        one.query(&format!("select {n}"));
        one.until(b'Z');
        scene.stage.psql(&["show timezone"]);
    }
    let events = scene.stop();
    let found: Vec<_> = statements(&events).into_iter().filter(|it| !it.contains("show")).collect();
    assert_eq!(found, ["simple select 0 = 1", "simple select 1 = 1", "simple select 2 = 1"]);
}

#[test]
fn cancels_are_events_of_their_sessions() {
    let Some(scene) = Scene::set("cancel", "") else { return };
    scene.start();
    let mut psql = scene.stage.command("psql");
    psql.args(["-Xq", "-c", "select pg_sleep(600)"]).stderr(Stdio::piped());
    let psql = psql.spawn().unwrap();
    let running = "select count(*) from pg_stat_activity where query = 'select pg_sleep(600)'";
    let deadline = Instant::now() + Duration::from_secs(60);
    while scene.stage.direct(running) != "1" {
        assert!(Instant::now() < deadline, "it never ran");
    }
    let pid = i32::try_from(psql.id()).unwrap();
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(pid).unwrap(),
        rustix::process::Signal::INT,
    )
    .unwrap();
    assert!(!psql.wait_with_output().unwrap().status.success());
    let events = scene.stop();
    assert_eq!(statements(&events), ["simple select pg_sleep(600) ! 57014", "cancel"]);
    assert_eq!(events[1].session, events[2].session);
}

#[test]
fn secrets_are_nowhere_in_it() {
    let Some(scene) = Scene::with("secrets", "", ", redact = true") else { return };
    scene.start();
    scene.stage.psql(&[
        "create role r password 'hunter2-x9'",
        "select 'Jane Roe-x9', 471147114711",
        "set app.name = 'Jane Roe-x9'",
    ]);
    let mut raw = Raw::log_in(scene.stage.address());
    raw.send(b'p', b"hunter2-x9\0");
    assert!(raw.is_hung_up_on());
    scene.stop();
    for secret in ["hunter2-x9", "Jane Roe-x9", "471147114711"] {
        scene.assert_absent(secret);
    }

    let Some(scene) = Scene::set("secrets", "") else { return };
    scene.start();
    scene.stage.psql(&["create role r password 'hunter2-x9'", "select 'Jane Roe-x9'"]);
    let mut raw = Raw::log_in(scene.stage.address());
    raw.send(b'p', b"hunter2-x9\0");
    assert!(raw.is_hung_up_on());
    let events = scene.stop();
    scene.assert_absent("hunter2-x9");
    assert!(statements(&events).iter().any(|words| words.contains("Jane Roe-x9")));
}

/// Servers quote values when they refuse them, each place in its own way.
#[test]
fn redacted_captures_have_no_value_in_errors_rows_or_arguments() {
    let Some(scene) = Scene::with("quoted", "", ", redact = true") else { return };
    scene.stage.psql(&["create table t (a int primary key, b text)"]);
    scene.start();
    let mut raw = Raw::log_in(scene.stage.address());
    let secret = b"Jane Roe-x9";
    for sql in [
        "select 'Jane Roe-x9'::int",
        "do $$ begin raise exception 'it is Jane Roe-x9'; end $$",
        "bogus 'Jane Roe-x9'",
        "select 'Jane Roe-x9",
        "/* Jane Roe-x9 */ select $tag$Jane Roe-x9$tag$, E'Jane Roe-x9' -- Jane Roe-x9",
        "prepare p as select 'Jane Roe-x9'",
    ] {
        raw.query(sql);
        raw.until(b'Z');
    }
    // A Parse that fails, and a value that does.
    raw.send(b'P', b"\0select 'Jane Roe-x9'::int\0\0\0");
    raw.send(b'S', b"");
    raw.until(b'Z');
    raw.send(b'P', b"\0select $1::int\0\0\0");
    let len = u32::try_from(secret.len()).unwrap().to_be_bytes();
    let value = [&len[..], secret].concat();
    raw.send(b'B', &[b"\0\0\0\0\0\x01", &value[..], b"\0\0"].concat());
    raw.send(b'S', b"");
    raw.until(b'Z');
    // int4pl
    raw.send(b'F', &[b"\0\0\0\xb1\0\0\0\x02", &value[..], &value, b"\0\0"].concat());
    raw.until(b'Z');
    // Rows: one that is refused, and a client that says why it gives up.
    for rows in [true, false] {
        raw.query("copy t from stdin");
        raw.until(b'G');
        if rows {
            raw.send(b'd', b"Jane Roe-x9\t1\n");
            raw.send(b'c', b"");
        } else {
            raw.send(b'f', b"because of Jane Roe-x9\0");
        }
        raw.until(b'Z');
    }
    let events = scene.stop();
    let failed = events.iter().filter(|event| event.outcome.error.is_some()).count();
    assert_eq!(failed, 9, "{events:#?}");
    scene.assert_absent("Jane Roe");
    scene.assert_absent("Roe-x9");
}

#[test]
fn damaged_messages_end_their_session_only() {
    let Some(scene) = Scene::set("damaged", "") else { return };
    scene.start();
    for bytes in
        [&b"Q\0\0\0\x01"[..], b"B\0\0\0\x09\0\0\0\0\xff", b"\xff\0\0\0\x04", b"P\0\0\0\x05x"]
    {
        let mut raw = Raw::log_in(scene.stage.address());
        raw.query("select 1");
        raw.until(b'Z');
        raw.0.write_all(&[bytes, &message(b'S', &[])].concat()).unwrap();
        // It may be gone by then.
        let _ = raw.0.shutdown(std::net::Shutdown::Write);
        assert!(raw.is_hung_up_on());
    }
    scene.stage.psql(&["select 2"]);
    let events = scene.stop();
    let found = statements(&events);
    assert_eq!(found.iter().filter(|words| *words == "simple select 1 = 1").count(), 4);
    assert_eq!(found.last().map(String::as_str), Some("simple select 2 = 1"));
}

#[test]
fn what_finds_no_room_is_counted_and_clients_do_not_notice() {
    let Some(scene) = Scene::set("overflow", "sizes = { pool = 4 }") else { return };
    scene.start();
    let control = scene.stage.pooler.control();
    // The folder's disk stands still, as far as anybody can tell: nothing is read from the tapes while
    // so much is written on them.
    let path = scene.folder.path().join("it");
    let text = format!("select length('{}')", "x".repeat(1 << 20));
    let mut raw = Raw::log_in(scene.stage.address());
    for _ in 0..400 {
        raw.query(&text);
        raw.until(b'Z');
    }
    let status = control.stop_capture().unwrap();
    assert_eq!(status.error, None);
    let manifest = Capture::open(&path).unwrap().manifest().clone();
    assert!(manifest.finished);
    let found = manifest.kinds.get(&Kind::Simple).copied().unwrap_or(0);
    // Whether the writer kept up is the machine's business; that what is missing is said is ours.
    assert_eq!(found == 400, status.tally.gaps == 0, "{found} {:?}", status.tally);
}

#[test]
fn files_are_finished_as_they_grow_and_a_full_disk_ends_the_capture_only() {
    let setting = ", file-bytes = 1048576, file-time = \"1s\"";
    let Some(scene) = Scene::with("rotation", "", setting) else { return };
    scene.start();
    let control = scene.stage.pooler.control();
    let text = format!("select length('{}')", "x".repeat(100_000));
    let mut raw = Raw::log_in(scene.stage.address());
    for _ in 0..30 {
        raw.query(&text);
        raw.until(b'Z');
    }
    let deadline = Instant::now() + Duration::from_secs(60);
    while control.capture().unwrap().files < 3 {
        assert!(Instant::now() < deadline, "{:?}", control.capture());
        std::thread::sleep(Duration::from_millis(20));
    }
    // What is finished can be read while the rest is written, as after a crash.
    let capture = Capture::open(&scene.folder.path().join("it")).unwrap();
    assert!(!capture.manifest().finished);
    assert!(capture.events().count() >= 20);
    // The folder is gone: the next file cannot be written.
    fs::remove_dir_all(scene.folder.path().join("it")).unwrap();
    fs::write(scene.folder.path().join("it"), "in the way").unwrap();
    while !control.capture().unwrap().is_over {
        assert!(Instant::now() < deadline, "{:?}", control.capture());
        raw.query(&text);
        raw.until(b'Z');
    }
    assert!(control.capture().unwrap().error.is_some());
    raw.query("select 1");
    raw.until(b'Z');
    // The next one may begin.
    fs::remove_file(scene.folder.path().join("it")).unwrap();
    scene.start();
    scene.stage.psql(&["select 'again'"]);
    assert_eq!(statements(&scene.stop()), ["simple select 'again' = 1"]);
}

/// A file system of its own on a folder, for as long as this lives.
struct SmallDisk<'a>(&'a Path);

impl<'a> SmallDisk<'a> {
    /// `None` where nobody lets us mount one, which is said.
    fn on(folder: &'a Path, size: &str) -> Option<Self> {
        let options = format!("size={size}");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &options, "howdah"]).arg(folder);
        match mount.output() {
            Ok(output) if output.status.success() => Some(Self(folder)),
            refused => {
                // Nobody is left to be told when stderr is closed.
                let _ = writeln!(std::io::stderr(), "SKIPPED: no small disk: {refused:?}");
                None
            }
        }
    }
}

impl Drop for SmallDisk<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0).output();
    }
}

#[test]
fn a_disk_that_is_full_ends_the_capture_and_no_client() {
    let Some(scene) = Scene::with("full", "", ", file-bytes = 1048576") else { return };
    let Some(_disk) = SmallDisk::on(scene.folder.path(), "3m") else { return };
    scene.start();
    let control = scene.stage.pooler.control();
    let mut raw = Raw::log_in(scene.stage.address());
    // Words that cannot be made much shorter.
    let (mut state, mut words) = (1_u64, String::new());
    let deadline = Instant::now() + Duration::from_secs(60);
    while !control.capture().unwrap().is_over {
        assert!(Instant::now() < deadline, "{:?}", control.capture());
        words.clear();
        while words.len() < 100_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            words.push_str(&format!("{:x}", state >> 16));
        }
        raw.query(&format!("select length('{words}')"));
        let row = raw.until(b'Z').into_iter().find(|(tag, _)| *tag == b'D').unwrap().1;
        assert!(row.ends_with(words.len().to_string().as_bytes()));
    }
    let error = control.capture().unwrap().error.unwrap();
    assert!(error.contains("No space left on device"), "{error}");
    let shown = scene.stage.run("psql", &["-XAtq", "-d", "howdah", "-c", "show capture"]);
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.starts_with("failed|") || shown.contains("No space left"), "{shown}");
    // What was finished before is there.
    let path = scene.folder.path().join("it");
    let capture = Capture::open(&path).unwrap();
    assert!(!capture.manifest().finished);
    assert!(capture.events().filter_map(Result::ok).count() > 3);
    // With room there may be another.
    fs::remove_dir_all(&path).unwrap();
    scene.start();
    scene.stage.psql(&["select 'again'"]);
    assert_eq!(statements(&scene.stop()), ["simple select 'again' = 1"]);
}

#[test]
fn a_capture_is_ordered_and_shown_at_the_console() {
    let Some(scene) = Scene::set("ordered", "") else { return };
    let console = |command: &str| {
        let output = scene.stage.run("psql", &["-XAtq", "-d", "howdah", "-c", command]);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned() + &text)
    };
    assert_eq!(console("show capture"), (true, String::new()));
    let (is_done, text) = console("capture stop");
    assert!(!is_done && text.contains("no capture is under way"), "{text}");
    let (is_done, text) = console("capture start ../x");
    assert!(!is_done && text.contains("no name for a capture"), "{text}");
    let (is_done, text) = console("capture start it");
    assert!(is_done && text.contains("capturing to"), "{text}");
    let (is_done, text) = console("capture start it2");
    assert!(!is_done && text.contains("under way"), "{text}");
    scene.stage.psql(&["select 1"]);
    let (is_done, text) = console("capture stop");
    assert!(is_done && text.contains("3 events of 1 sessions"), "{text}");
    let (_, text) = console("show capture");
    assert!(text.starts_with("ended|") && text.contains("|3|1|1|0|0|0|0|0|"), "{text}");
    // What there is already is never written over.
    let (is_done, text) = console("capture start it");
    assert!(!is_done && text.contains("it"), "{text}");
    let (is_done, text) = console("reload");
    assert!(!is_done || text.is_empty(), "{text}");
}

#[test]
fn other_settings_are_those_of_the_next_capture() {
    let Some(server) = howdah_lab::or_say_why_not("reloaded", Cluster::builder().start()) else {
        return;
    };
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("howdah.toml");
    let (first, second) = (folder.path().join("first"), folder.path().join("second"));
    let write = |path: &Path, more: &str| {
        let path = path.display();
        let text = format!(
            "[pool]\nmode = 'transaction'\nworkers = 2\n\
             [pool.listen]\naddresses = ['127.0.0.1']\nport = 0\nunix-directories = []\n\
             [pool.auth]\ntype = 'trust'\n[pool.users.postgres]\nsecret = ''\n\
             [pool.capture]\npath = '{path}'\n{more}\n\
             [pool.databases.postgres]\nhosts = ['127.0.0.1']\nport = {}\n",
            server.port()
        );
        fs::write(&file, text).unwrap();
    };
    fs::create_dir(&first).unwrap();
    fs::create_dir(&second).unwrap();
    write(&first, "");
    let config = Config::read(&file).unwrap().config;
    let origin = Origin { path: file.clone(), workers: None };
    let pooler = Pooler::start_from(config, Some(origin)).unwrap();
    let (control, mut raw) = (pooler.control(), Raw::log_in(pooler.addresses()[0]));
    let mut ask = |sql: &str| {
        raw.query(sql);
        raw.until(b'Z');
    };
    control.start_capture(Some("it")).unwrap();
    ask("select 'secret one'");
    write(&second, "redact = true");
    control.reload().unwrap();
    // What is under way goes on as it began.
    ask("select 'secret two'");
    control.stop_capture().unwrap();
    let captured = statements(&events(&first.join("it")));
    assert_eq!(captured, ["simple select 'secret one' = 1", "simple select 'secret two' = 1"]);
    control.start_capture(Some("it")).unwrap();
    ask("select 'secret three'");
    control.stop_capture().unwrap();
    let captured = statements(&events(&second.join("it")));
    assert!(captured.len() == 1 && !captured[0].contains("secret"), "{captured:?}");
    // Settings that are wrong change nothing.
    write(&first, "file-bytes = 1");
    assert!(control.reload().unwrap_err().to_string().contains("capture.file-bytes"));
    assert!(control.start_capture(Some("more")).unwrap().starts_with(&second));
    control.stop_capture().unwrap();
    // Without a folder there is no next one.
    let text = fs::read_to_string(&file).unwrap();
    let begin = text.find("[pool.capture]").unwrap();
    let end = text.find("[pool.databases").unwrap();
    fs::write(&file, [&text[..begin], &text[end..]].concat()).unwrap();
    control.reload().unwrap();
    let refused = control.start_capture(None).unwrap_err().to_string();
    assert!(refused.contains("capture.path"), "{refused}");
}

#[test]
fn a_pooler_that_ends_finishes_its_capture() {
    let Some(server) = howdah_lab::or_say_why_not("ends", Cluster::builder().start()) else {
        return;
    };
    let folder = TempDir::new().unwrap();
    let path = folder.path().display();
    let more = format!("capture = {{ path = \"{path}\", start = true }}");
    let pooler: Pooler = crate::support::pooler(&server, &more);
    let stage = Stage { server, pooler };
    stage.psql(&["select 1"]);
    let dir = stage.pooler.control().capture().unwrap().path;
    stage.pooler.drain();
    stage.pooler.join().unwrap();
    let capture = Capture::open(&dir).unwrap();
    assert!(capture.manifest().finished);
    assert_eq!(statements(&events(&dir)), ["simple select 1 = 1"]);
}
