//! Captures of the traffic of real clients.

use std::{
    fs,
    io::Write as _,
    path::Path,
    process::{Command, Stdio},
};

use howdah_dataset::Capture;
use howdah_lab::{Cluster, wait_until};
use howdah_pool::{ConfigOrigin, Pooler};
use howdah_pool_config::Config;
use howdah_traffic::{Action, CopyDirection, Event, Kind, Parameter, Source};
use tempfile::TempDir;

use crate::support::{PoolFixture, RawClient, WAIT_TIMEOUT, checked_stdout};

/// A pooler with captures enabled, and the folder for captures.
struct CaptureFixture {
    pool: PoolFixture,
    folder: TempDir,
}

impl CaptureFixture {
    fn start(test: &str, more: &str) -> Option<Self> {
        Self::start_with(test, more, "")
    }

    /// Starts with additional settings of `[pool.capture]`.
    fn start_with(test: &str, more: &str, capture: &str) -> Option<Self> {
        let folder = TempDir::new().unwrap();
        let path = folder.path().display();
        let settings = format!(
            "admin-users = [\"postgres\"]\ncapture = {{ path = \"{path}\"{capture} }}\n{more}"
        );
        Some(Self { pool: PoolFixture::start(test, &settings)?, folder })
    }

    fn start_capture(&self) {
        self.pool.pooler.control().start_capture(Some("it")).unwrap();
    }

    fn stop_capture(&self) -> Vec<Event> {
        let status = self.pool.pooler.control().stop_capture().unwrap();
        assert_eq!(status.error, None);
        self.events()
    }

    fn events(&self) -> Vec<Event> {
        read_events(&self.folder.path().join("it"))
    }

    /// Asserts that neither the events nor the raw files of the capture contain a text.
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

fn read_events(path: &Path) -> Vec<Event> {
    Capture::open(path).unwrap().events().map(|event| *event.unwrap()).collect()
}

/// A summary of an event: kind, text, values, rows, SQLSTATE.
fn summary(event: &Event) -> String {
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

/// Summaries of all events except connects and disconnects.
fn statements(events: &[Event]) -> Vec<String> {
    let is_session = |event: &&Event| matches!(event.action, Action::Connect | Action::Disconnect);
    events.iter().filter(|event| !is_session(event)).map(summary).collect()
}

#[test]
fn simple_statements_have_duration_rows_and_errors() {
    let Some(fixture) = CaptureFixture::start("simple", "") else { return };
    fixture.start_capture();
    fixture.pool.psql(&[
        "create table t (a int primary key, b text)",
        "insert into t select i, 'x' from generate_series(1, 5) i",
        "select pg_sleep(0.05), * from t",
    ]);
    let failed = fixture.pool.run_program(
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
    let events = fixture.stop_capture();
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
fn extended_protocol_details_are_captured() {
    let Some(fixture) = CaptureFixture::start("extended", "") else { return };
    fixture.start_capture();
    let mut raw = RawClient::log_in(fixture.pool.address());
    let parse =
        message(b'P', &[b"s\0select $1::int + i from generate_series(1, 3) i\0\0\x01\0\0\0\x17"]);
    let execute = |rows: u8| message(b'E', &[b"\0\0\0\0", &[rows]]);
    let sync = message(b'S', &[]);
    let flush = message(b'H', &[]);
    // A pipeline of two executions, the first with a row limit and a fetch of the rest.
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
    raw.read_until(b'Z');
    // A pipeline that fails in the middle, and another one after it.
    let bad = message(b'B', &[b"\0s\0\0\0\0\x01\0\0\0\x01x\0\0"]);
    let fine = [bind_binary(b"s", &[0, 0, 0, 12]), execute(0)].concat();
    raw.0.write_all(&[bad, execute(0), fine.clone(), sync.clone(), fine, sync].concat()).unwrap();
    raw.read_until(b'Z');
    raw.read_until(b'Z');
    raw.send(b'X', b"");
    assert!(raw.is_disconnected());
    let events = fixture.stop_capture();
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
fn copy_rows_are_captured_counted_or_omitted() {
    for (setting, has_rows, has_length) in [
        ("", true, true),
        (", copy = \"length\"", false, true),
        (", copy = \"off\"", false, false),
        (", copy-bytes-max = 5", false, true),
        (", redact = true", false, true),
    ] {
        let Some(fixture) = CaptureFixture::start_with("copy", "", setting) else { return };
        fixture.pool.psql(&["create table t (a int, b text)"]);
        fixture.start_capture();
        let mut psql = fixture.pool.command("psql");
        psql.args(["-Xq", "-c", "copy t from stdin", "-c", "copy t to stdout"]);
        psql.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut psql = psql.spawn().unwrap();
        psql.stdin.take().unwrap().write_all(b"1\tfifty-one\n2\ttwo\n").unwrap();
        assert_eq!(checked_stdout(psql.wait_with_output().unwrap()), "1\tfifty-one\n2\ttwo");
        let events = fixture.stop_capture();
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
        assert_eq!(copy.map(|copy| copy.bytes), has_length.then_some(18), "{setting}");
        let data = copy.and_then(|copy| copy.data[0].clone());
        assert_eq!(data, has_rows.then(|| "1\tfifty-one\n2\ttwo\n".into()), "{setting}");
        if !has_rows {
            fixture.assert_absent("fifty-one");
        }
    }
}

#[test]
fn open_sessions_join_capture_between_transactions() {
    let Some(fixture) = CaptureFixture::start("open", "sizes = { pool = 3 }") else { return };
    let mut idle = RawClient::log_in_with(fixture.pool.address(), &[("DateStyle", "SQL, DMY")]);
    idle.send(b'P', b"named\0select 4711\0\0\0");
    idle.send(b'S', b"");
    idle.read_until(b'Z');
    let mut busy = RawClient::log_in(fixture.pool.address());
    busy.send_query("begin");
    busy.read_until(b'Z');
    fixture.start_capture();
    // A worker handles the command to capture before it accepts a new session.
    fixture.pool.psql(&["select 'new'"]);
    for sql in ["select 'inside'", "commit", "select 'outside'"] {
        busy.send_query(sql);
        busy.read_until(b'Z');
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
    idle.read_until(b'Z');
    let events = fixture.stop_capture();
    assert_eq!(
        statements(&events),
        ["simple select 'new' = 1", "simple select 'outside' = 1", "execute select 4711 = 1"]
    );
    let joined: Vec<_> = events
        .iter()
        .filter(|event| event.action == Action::Connect && event.source == Source::Inferred)
        .collect();
    assert_eq!(joined.len(), 2);
    let date = ("DateStyle".into(), "SQL, DMY".into());
    let has_date = |event: &&Event| event.wire.as_ref().unwrap().settings.contains(&date);
    assert_eq!(joined.iter().filter(|event| has_date(event)).count(), 1);
}

#[test]
fn internal_queries_are_not_captured() {
    let more = "reset-query = \"select 'reset'\"\nreset-query-always = true";
    let Some(fixture) = CaptureFixture::start("own", more) else { return };
    fixture.start_capture();
    let mut one = RawClient::log_in_with(fixture.pool.address(), &[("TimeZone", "Asia/Tokyo")]);
    for n in 0..3 {
        one.send_query(&format!("select {n}"));
        one.read_until(b'Z');
        fixture.pool.psql(&["show timezone"]);
    }
    let events = fixture.stop_capture();
    let found: Vec<_> = statements(&events).into_iter().filter(|it| !it.contains("show")).collect();
    assert_eq!(found, ["simple select 0 = 1", "simple select 1 = 1", "simple select 2 = 1"]);
}

#[test]
fn cancel_is_event_of_cancelled_session() {
    let Some(fixture) = CaptureFixture::start("cancel", "") else { return };
    fixture.start_capture();
    let mut psql = fixture.pool.command("psql");
    psql.args(["-Xq", "-c", "select pg_sleep(600)"]).stderr(Stdio::piped());
    let psql = psql.spawn().unwrap();
    let running = "select count(*) from pg_stat_activity where query = 'select pg_sleep(600)'";
    wait_until("the statement to run", WAIT_TIMEOUT, || fixture.pool.query_server(running) == "1");
    let pid = i32::try_from(psql.id()).unwrap();
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(pid).unwrap(),
        rustix::process::Signal::INT,
    )
    .unwrap();
    assert!(!psql.wait_with_output().unwrap().status.success());
    let events = fixture.stop_capture();
    assert_eq!(statements(&events), ["simple select pg_sleep(600) ! 57014", "cancel"]);
    assert_eq!(events[1].session, events[2].session);
}

#[test]
fn passwords_are_never_captured() {
    let Some(fixture) = CaptureFixture::start_with("secrets", "", ", redact = true") else {
        return;
    };
    fixture.start_capture();
    fixture.pool.psql(&[
        "create role r password 'hunter2-x9'",
        "select 'Jane Roe-x9', 471147114711",
        "set app.name = 'Jane Roe-x9'",
    ]);
    let mut raw = RawClient::log_in(fixture.pool.address());
    raw.send(b'p', b"hunter2-x9\0");
    assert!(raw.is_disconnected());
    fixture.stop_capture();
    for secret in ["hunter2-x9", "Jane Roe-x9", "471147114711"] {
        fixture.assert_absent(secret);
    }

    let Some(fixture) = CaptureFixture::start("secrets", "") else { return };
    fixture.start_capture();
    fixture.pool.psql(&["create role r password 'hunter2-x9'", "select 'Jane Roe-x9'"]);
    let mut raw = RawClient::log_in(fixture.pool.address());
    raw.send(b'p', b"hunter2-x9\0");
    assert!(raw.is_disconnected());
    let events = fixture.stop_capture();
    fixture.assert_absent("hunter2-x9");
    assert!(statements(&events).iter().any(|words| words.contains("Jane Roe-x9")));
}

/// Servers quote invalid values in errors, in various ways.
#[test]
fn redacted_capture_contains_no_values() {
    let Some(fixture) = CaptureFixture::start_with("quoted", "", ", redact = true") else { return };
    fixture.pool.psql(&["create table t (a int primary key, b text)"]);
    fixture.start_capture();
    let mut raw = RawClient::log_in(fixture.pool.address());
    let secret = b"Jane Roe-x9";
    for sql in [
        "select 'Jane Roe-x9'::int",
        "do $$ begin raise exception 'it is Jane Roe-x9'; end $$",
        "bogus 'Jane Roe-x9'",
        "select 'Jane Roe-x9",
        "/* Jane Roe-x9 */ select $tag$Jane Roe-x9$tag$, E'Jane Roe-x9' -- Jane Roe-x9",
        "prepare p as select 'Jane Roe-x9'",
    ] {
        raw.send_query(sql);
        raw.read_until(b'Z');
    }
    // A Parse that fails, and an invalid value.
    raw.send(b'P', b"\0select 'Jane Roe-x9'::int\0\0\0");
    raw.send(b'S', b"");
    raw.read_until(b'Z');
    raw.send(b'P', b"\0select $1::int\0\0\0");
    let len = u32::try_from(secret.len()).unwrap().to_be_bytes();
    let value = [&len[..], secret].concat();
    raw.send(b'B', &[b"\0\0\0\0\0\x01", &value[..], b"\0\0"].concat());
    raw.send(b'S', b"");
    raw.read_until(b'Z');
    // int4pl
    raw.send(b'F', &[b"\0\0\0\xb1\0\0\0\x02", &value[..], &value, b"\0\0"].concat());
    raw.read_until(b'Z');
    // COPY: an invalid row, and a client that aborts with a message.
    for rows in [true, false] {
        raw.send_query("copy t from stdin");
        raw.read_until(b'G');
        if rows {
            raw.send(b'd', b"Jane Roe-x9\t1\n");
            raw.send(b'c', b"");
        } else {
            raw.send(b'f', b"because of Jane Roe-x9\0");
        }
        raw.read_until(b'Z');
    }
    let events = fixture.stop_capture();
    let failed = events.iter().filter(|event| event.outcome.error.is_some()).count();
    assert_eq!(failed, 9, "{events:#?}");
    fixture.assert_absent("Jane Roe");
    fixture.assert_absent("Roe-x9");
}

#[test]
fn invalid_message_ends_only_its_session() {
    let Some(fixture) = CaptureFixture::start("damaged", "") else { return };
    fixture.start_capture();
    for bytes in
        [&b"Q\0\0\0\x01"[..], b"B\0\0\0\x09\0\0\0\0\xff", b"\xff\0\0\0\x04", b"P\0\0\0\x05x"]
    {
        let mut raw = RawClient::log_in(fixture.pool.address());
        raw.send_query("select 1");
        raw.read_until(b'Z');
        raw.0.write_all(&[bytes, &message(b'S', &[])].concat()).unwrap();
        // The pooler may have closed the connection by now.
        let _ = raw.0.shutdown(std::net::Shutdown::Write);
        assert!(raw.is_disconnected());
    }
    fixture.pool.psql(&["select 2"]);
    let events = fixture.stop_capture();
    let found = statements(&events);
    assert_eq!(found.iter().filter(|words| *words == "simple select 1 = 1").count(), 4);
    assert_eq!(found.last().map(String::as_str), Some("simple select 2 = 1"));
}

#[test]
fn full_buffer_is_recorded_as_gap() {
    let Some(fixture) = CaptureFixture::start("overflow", "sizes = { pool = 4 }") else { return };
    fixture.start_capture();
    let control = fixture.pool.pooler.control();
    // More traffic in a short time than the buffers hold, so that the writer may not keep up.
    let path = fixture.folder.path().join("it");
    let text = format!("select length('{}')", "x".repeat(1 << 20));
    let mut raw = RawClient::log_in(fixture.pool.address());
    for _ in 0..400 {
        raw.send_query(&text);
        raw.read_until(b'Z');
    }
    let status = control.stop_capture().unwrap();
    assert_eq!(status.error, None);
    let manifest = Capture::open(&path).unwrap().manifest().clone();
    assert!(manifest.finished);
    let found = manifest.kinds.get(&Kind::Simple).copied().unwrap_or(0);
    // Whether the writer keeps up depends on the machine; a gap must be recorded if it does not.
    assert_eq!(found == 400, status.tally.gaps == 0, "{found} {:?}", status.tally);
}

#[test]
fn write_error_ends_capture_only() {
    let setting = ", file-bytes = 1048576, file-time = \"1s\"";
    let Some(fixture) = CaptureFixture::start_with("rotation", "", setting) else { return };
    fixture.start_capture();
    let control = fixture.pool.pooler.control();
    let text = format!("select length('{}')", "x".repeat(100_000));
    let mut raw = RawClient::log_in(fixture.pool.address());
    for _ in 0..30 {
        raw.send_query(&text);
        raw.read_until(b'Z');
    }
    wait_until("three files", WAIT_TIMEOUT, || control.capture().unwrap().files >= 3);
    // Finished files are readable while the capture is running, as after a crash.
    let capture = Capture::open(&fixture.folder.path().join("it")).unwrap();
    assert!(!capture.manifest().finished);
    assert!(capture.events().count() >= 20);
    // Without its folder, the next file cannot be written.
    fs::remove_dir_all(fixture.folder.path().join("it")).unwrap();
    fs::write(fixture.folder.path().join("it"), "in the way").unwrap();
    wait_until("the end of the capture", WAIT_TIMEOUT, || {
        raw.send_query(&text);
        raw.read_until(b'Z');
        control.capture().unwrap().is_finished
    });
    assert!(control.capture().unwrap().error.is_some());
    raw.send_query("select 1");
    raw.read_until(b'Z');
    // Another capture can be started.
    fs::remove_file(fixture.folder.path().join("it")).unwrap();
    fixture.start_capture();
    fixture.pool.psql(&["select 'again'"]);
    assert_eq!(statements(&fixture.stop_capture()), ["simple select 'again' = 1"]);
}

/// A small file system mounted on a folder; unmounted on drop.
struct SmallDisk<'a>(&'a Path);

impl<'a> SmallDisk<'a> {
    /// Prints a message and returns `None` if mounting is not permitted.
    fn mount(folder: &'a Path, size: &str) -> Option<Self> {
        let options = format!("size={size}");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &options, "howdah"]).arg(folder);
        match mount.output() {
            Ok(output) if output.status.success() => Some(Self(folder)),
            refused => {
                // Fails if stderr is closed.
                let _ = writeln!(
                    std::io::stderr(),
                    "SKIPPED: cannot mount a small file system: {refused:?}"
                );
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
fn full_disk_ends_capture_only() {
    let Some(fixture) = CaptureFixture::start_with("full", "", ", file-bytes = 1048576") else {
        return;
    };
    let Some(_disk) = SmallDisk::mount(fixture.folder.path(), "3m") else { return };
    fixture.start_capture();
    let control = fixture.pool.pooler.control();
    let mut raw = RawClient::log_in(fixture.pool.address());
    // Text that does not compress well.
    let (mut state, mut text) = (1_u64, String::new());
    wait_until("the end of the capture", WAIT_TIMEOUT, || {
        text.clear();
        while text.len() < 100_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            text.push_str(&format!("{:x}", state >> 16));
        }
        raw.send_query(&format!("select length('{text}')"));
        let row = raw.read_until(b'Z').into_iter().find(|(tag, _)| *tag == b'D').unwrap().1;
        assert!(row.ends_with(text.len().to_string().as_bytes()));
        control.capture().unwrap().is_finished
    });
    let error = control.capture().unwrap().error.unwrap();
    assert!(error.contains("No space left on device"), "{error}");
    let shown = fixture.pool.run_program("psql", &["-XAtq", "-d", "howdah", "-c", "show capture"]);
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.starts_with("failed|") || shown.contains("No space left"), "{shown}");
    // Files finished before are readable.
    let path = fixture.folder.path().join("it");
    let capture = Capture::open(&path).unwrap();
    assert!(!capture.manifest().finished);
    assert!(capture.events().filter_map(Result::ok).count() > 3);
    // With free space another capture can be started.
    fs::remove_dir_all(&path).unwrap();
    fixture.start_capture();
    fixture.pool.psql(&["select 'again'"]);
    assert_eq!(statements(&fixture.stop_capture()), ["simple select 'again' = 1"]);
}

#[test]
fn console_starts_stops_and_shows_capture() {
    let Some(fixture) = CaptureFixture::start("ordered", "") else { return };
    let console = |command: &str| {
        let output = fixture.pool.run_program("psql", &["-XAtq", "-d", "howdah", "-c", command]);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned() + &text)
    };
    assert_eq!(console("show capture"), (true, String::new()));
    let (is_done, text) = console("capture stop");
    assert!(!is_done && text.contains("no capture is running"), "{text}");
    let (is_done, text) = console("capture start ../x");
    assert!(!is_done && text.contains("not a valid capture name"), "{text}");
    let (is_done, text) = console("capture start it");
    assert!(is_done && text.contains("capturing to"), "{text}");
    let (is_done, text) = console("capture start it2");
    assert!(!is_done && text.contains("already running"), "{text}");
    fixture.pool.psql(&["select 1"]);
    let (is_done, text) = console("capture stop");
    assert!(is_done && text.contains("3 events of 1 session in"), "{text}");
    let (_, text) = console("show capture");
    assert!(text.starts_with("ended|") && text.contains("|3|1|1|0|0|0|0|0|"), "{text}");
    // Existing captures are never overwritten.
    let (is_done, text) = console("capture start it");
    assert!(!is_done && text.contains("it"), "{text}");
    let (is_done, text) = console("reload");
    assert!(!is_done || text.is_empty(), "{text}");
}

#[test]
fn reloaded_settings_apply_to_next_capture() {
    let Some(server) = howdah_lab::skip_without_postgres("reloaded", Cluster::builder().start())
    else {
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
    let origin = ConfigOrigin { path: file.clone(), workers: None };
    let pooler = Pooler::start_from_source(config, Some(origin)).unwrap();
    let (control, mut raw) = (pooler.control(), RawClient::log_in(pooler.addresses()[0]));
    let mut run = |sql: &str| {
        raw.send_query(sql);
        raw.read_until(b'Z');
    };
    control.start_capture(Some("it")).unwrap();
    run("select 'secret one'");
    write(&second, "redact = true");
    control.reload().unwrap();
    // The running capture is not affected.
    run("select 'secret two'");
    control.stop_capture().unwrap();
    let captured = statements(&read_events(&first.join("it")));
    assert_eq!(captured, ["simple select 'secret one' = 1", "simple select 'secret two' = 1"]);
    control.start_capture(Some("it")).unwrap();
    run("select 'secret three'");
    control.stop_capture().unwrap();
    let captured = statements(&read_events(&second.join("it")));
    assert!(captured.len() == 1 && !captured[0].contains("secret"), "{captured:?}");
    // Invalid settings change nothing.
    write(&first, "file-bytes = 1");
    assert!(control.reload().unwrap_err().to_string().contains("capture.file-bytes"));
    assert!(control.start_capture(Some("more")).unwrap().starts_with(&second));
    control.stop_capture().unwrap();
    // Without a folder, no capture can be started.
    let text = fs::read_to_string(&file).unwrap();
    let begin = text.find("[pool.capture]").unwrap();
    let end = text.find("[pool.databases").unwrap();
    fs::write(&file, [&text[..begin], &text[end..]].concat()).unwrap();
    control.reload().unwrap();
    let refused = control.start_capture(None).unwrap_err().to_string();
    assert!(refused.contains("capture.path"), "{refused}");
}

#[test]
fn shutdown_finishes_capture() {
    let Some(server) = howdah_lab::skip_without_postgres("ends", Cluster::builder().start()) else {
        return;
    };
    let folder = TempDir::new().unwrap();
    let path = folder.path().display();
    let more = format!("capture = {{ path = \"{path}\", start = true }}");
    let pooler: Pooler = crate::support::start_pooler(&server, &more);
    let pool = PoolFixture { server, pooler };
    pool.psql(&["select 1"]);
    let dir = pool.pooler.control().capture().unwrap().path;
    pool.pooler.drain();
    pool.pooler.join().unwrap();
    let capture = Capture::open(&dir).unwrap();
    assert!(capture.manifest().finished);
    assert_eq!(statements(&read_events(&dir)), ["simple select 1 = 1"]);
}
