//! Reading from files.

use std::{convert::Infallible, io::Write, ops::ControlFlow, os::fd::AsRawFd, path::PathBuf};

use howdah_logs::{Emit, ImportOptions, ImportSummary, ReadFilesError, ReadPlanError, read_files};
use howdah_traffic::Event;

use crate::support::{fixture, fixture_path, import};

fn read(paths: &[PathBuf]) -> Result<(Vec<Event>, ImportSummary), ReadFilesError<Infallible>> {
    let mut events = Vec::new();
    let summary = read_files(
        paths,
        ImportOptions::default(),
        |_| ControlFlow::Continue(()),
        |event| {
            events.push(event);
            Ok(())
        },
    )?;
    Ok((events, summary))
}

fn temporary(name: &str, content: &[u8]) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, content).expect("a writable directory");
    path
}

#[test]
fn file_gives_the_events_of_its_bytes() {
    let path = fixture_path("17", "prod", "csv");
    let (events, summary) = read(std::slice::from_ref(&path)).expect("a log");
    assert_eq!(events, import(fixture("17", "prod", "csv")).0);
    assert_eq!((summary.files, summary.bytes), (1, std::fs::metadata(path).expect("a file").len()));
}

#[test]
fn progress_reaches_the_total() {
    let paths = [fixture_path("17", "prod", "csv"), fixture_path("17", "prod", "json")];
    let mut last = None;
    let sink = |_| Ok::<(), Infallible>(());
    read_files(
        &paths,
        ImportOptions::default(),
        |progress| {
            last = Some(progress);
            ControlFlow::Continue(())
        },
        sink,
    )
    .expect("logs");
    let last = last.expect("progress");
    assert_eq!(Some(last.bytes), last.bytes_total);
}

#[test]
fn unreadable_path_is_named() {
    let missing = PathBuf::from("/nonexistent/postgresql.log");
    let error = read(&[fixture_path("17", "prod", "csv"), missing.clone()]).expect_err("missing");
    assert!(
        matches!(&error, ReadFilesError::Plan(ReadPlanError::Open { path, .. }) if *path == missing)
    );
    assert_eq!(error.to_string(), "cannot open /nonexistent/postgresql.log");
    let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let error = read(std::slice::from_ref(&directory)).expect_err("a directory");
    let ReadFilesError::Plan(ReadPlanError::NotOnlyLogs { path, .. }) = &error else {
        panic!("{error}");
    };
    assert_eq!((path, error.to_string().contains("Cargo.toml")), (&directory, true));
    let empty = temporary("empty.log", b"");
    let error = read(std::slice::from_ref(&empty)).expect_err("empty");
    assert!(matches!(&error, ReadFilesError::Empty { path } if *path == empty));
}

#[test]
fn empty_file_among_others_is_accepted() {
    let empty = temporary("empty_among_others.log", b"");
    let (events, summary) = read(&[empty, fixture_path("17", "prod", "log")]).expect("a log");
    assert_eq!((events.len(), summary.files), (88, 2));
}

#[test]
fn failing_sink_stops_the_import() {
    let mut taken = 0;
    let error = read_files(
        &[fixture_path("17", "prod", "csv")],
        ImportOptions::default(),
        |_| ControlFlow::Continue(()),
        |_| {
            taken += 1;
            if taken == 3 { Err("full") } else { Ok(()) }
        },
    );
    assert!(matches!(error, Err(ReadFilesError::Sink("full"))));
    assert_eq!(taken, 3);
}

#[test]
fn binary_file_is_rejected_without_events() {
    let binary = temporary("binary.log", &[0; 100_000]);
    let mut count = 0;
    let paths = [binary];
    let result = read_files(
        &paths,
        ImportOptions::default(),
        |_| ControlFlow::Continue(()),
        |_| {
            count += 1;
            Ok::<(), Infallible>(())
        },
    );
    assert!(matches!(result, Err(ReadFilesError::Import(_))));
    assert_eq!(count, 0);
}

#[test]
fn pipe_gives_events_while_open() {
    let (reader, mut writer) = std::io::pipe().expect("a pipe");
    let path = PathBuf::from(format!("/proc/self/fd/{}", reader.as_raw_fd()));
    let (sender, events) = std::sync::mpsc::channel();
    let reading = std::thread::spawn(move || {
        let options = ImportOptions { emit: Emit::Start, ..ImportOptions::default() };
        read_files(
            &[path],
            options,
            |_| ControlFlow::Continue(()),
            |event| sender.send(event).map_err(|_| "gone"),
        )
        .map(|summary| summary.records)
    });
    for sql in ["select 1", "select 2"] {
        let line = format!("2026-11-20 12:00:00.000 UTC [7] al@shop LOG:  statement: {sql}\n");
        writer.write_all(line.as_bytes()).expect("an open pipe");
        // Nothing more is written until the statement was emitted.
        let is_it = |event: &Event| event.action.sql().is_some_and(|text| text.to_string() == sql);
        assert!(events.iter().any(|event| is_it(&event)));
    }
    drop((writer, reader));
    assert_eq!(reading.join().expect("no panic").expect("a log"), 2);
}
