//! [`LogStream`]: events in the order of their start, while the log is read.

use std::{io::Write, os::fd::AsRawFd, path::PathBuf};

use howdah_logs::{ImportOptions, LogStream};
use howdah_traffic::{Event, Kind, Timestamp};

use crate::support::fixture_path;

fn stream(paths: Vec<PathBuf>) -> LogStream {
    LogStream::open(paths, ImportOptions::default()).expect("a thread")
}

fn all_events(paths: Vec<PathBuf>) -> Vec<Event> {
    stream(paths).map(|event| event.expect("a log")).collect()
}

#[test]
fn statements_logged_at_their_end_are_ordered_by_start() {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("ordered.log");
    let line = |time: &str, pid: u32, text: &str| {
        format!("2026-11-20 12:00:{time} UTC [{pid}] u@d LOG:  duration: {text}\n")
    };
    let log = [
        line("01.000", 1, "1.000 ms  statement: select 'short'"),
        line("09.000", 2, "8500.000 ms  statement: select 'long'"),
        line("09.500", 1, "1.000 ms  statement: select 'late'"),
    ]
    .concat();
    std::fs::write(&path, log).expect("a writable directory");
    let texts: Vec<_> = all_events(vec![path])
        .iter()
        .filter_map(|event| event.action.sql().map(ToString::to_string))
        .collect();
    assert_eq!(texts, ["select 'long'", "select 'short'", "select 'late'"]);
}

#[test]
fn streamed_log_is_complete_and_ordered() {
    for setting in ["prod", "verbose", "durationonly"] {
        let events = all_events(vec![fixture_path("17", setting, "csv")]);
        assert!(events.is_sorted_by_key(|event| event.time), "{setting}");
        let executions = events.iter().filter(|event| event.action.kind().is_execution());
        assert!(executions.count() > 30, "{setting}");
        let connects = events.iter().filter(|event| event.action.kind() == Kind::Connect);
        assert_eq!(connects.count(), 5, "{setting}");
    }
}

#[test]
fn events_of_silent_pipe_are_emitted_while_it_is_open() {
    let (reader, mut writer) = std::io::pipe().expect("a pipe");
    let path = PathBuf::from(format!("/proc/self/fd/{}", reader.as_raw_fd()));
    writer
        .write_all(b"2026-11-20 12:00:00.000 UTC [1] u@d LOG:  statement: select 1\n")
        .expect("room in the pipe");
    let mut stream = stream(vec![path]);
    let first = stream.next().expect("an event").expect("a log");
    assert_eq!(first.action.kind(), Kind::Connect);
    let second = stream.next().expect("an event").expect("a log");
    assert_eq!(
        second.time.as_micros(),
        "2026-11-20T12:00:00Z".parse::<Timestamp>().unwrap().as_micros()
    );
    assert_eq!(second.action.kind(), Kind::Simple);
    drop(writer);
    assert!(stream.next().is_none());
    assert_eq!(stream.summary().map(|summary| summary.records), Some(1));
}

#[test]
fn read_error_ends_the_stream() {
    let mut stream = stream(vec!["/nonexistent/postgresql.log".into()]);
    let error = stream.next().expect("an answer").expect_err("missing");
    assert_eq!(error.to_string(), "cannot open /nonexistent/postgresql.log");
    assert!(stream.next().is_none());
}
