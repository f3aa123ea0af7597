//! Helpers to import a text and to describe the result.

use std::path::PathBuf;

use howdah_logs::{ImportError, ImportOptions, ImportSummary, Importer};
use howdah_traffic::{Action, Bound, Event, Parameter};

/// The servers whose logs are in the fixtures.
pub(crate) const MAJORS: [&str; 2] = ["15", "17"];
/// The settings they were run with.
pub(crate) const SETTINGS: [&str; 3] = ["prod", "durationonly", "verbose"];
/// The formats each run was logged in.
pub(crate) const FORMATS: [&str; 3] = ["log", "csv", "json"];

pub(crate) fn fixture_path(major: &str, setting: &str, format: &str) -> PathBuf {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    root.join(major).join(format!("{setting}.{format}"))
}

pub(crate) fn fixture(major: &str, setting: &str, format: &str) -> Vec<u8> {
    std::fs::read(fixture_path(major, setting, format)).expect("a fixture")
}

/// The events and summary of a log fed in chunks that end at `cuts`, or the error.
pub(crate) fn try_import(
    log: &[u8],
    options: ImportOptions,
    cuts: impl IntoIterator<Item = usize>,
) -> Result<(Vec<Event>, ImportSummary), ImportError> {
    let mut importer = Importer::new(options).expect("options");
    importer.start_file("test.log");
    let mut events = Vec::new();
    let mut from = 0;
    for cut in cuts.into_iter().chain([log.len()]) {
        importer.feed(&log[from..cut])?;
        events.extend(std::iter::from_fn(|| importer.poll_event()));
        from = cut;
    }
    importer.finish()?;
    events.extend(std::iter::from_fn(|| importer.poll_event()));
    Ok((events, importer.summary().clone()))
}

pub(crate) fn import_with(
    log: impl AsRef<[u8]>,
    options: ImportOptions,
) -> (Vec<Event>, ImportSummary) {
    try_import(log.as_ref(), options, []).expect("a log")
}

pub(crate) fn import(log: impl AsRef<[u8]>) -> (Vec<Event>, ImportSummary) {
    import_with(log, ImportOptions::default())
}

/// Lines of a session with pid 7 and the prefix `%m [%p] %q%u@%d `, one millisecond apart.
pub(crate) fn log(lines: &[&str]) -> String {
    let mut text = String::new();
    for (number, line) in lines.iter().enumerate() {
        text += &format!("2026-11-20 12:00:00.{number:03} UTC [7] al@shop {line}\n");
    }
    text
}

/// The events of [`log`], without the inferred Connect at the beginning.
pub(crate) fn import_events(lines: &[&str]) -> Vec<Event> {
    let (mut events, _) = import(log(lines));
    assert_eq!(events.remove(0).action, Action::Connect);
    events
}

/// An action in one line, for display in assertions.
pub(crate) fn describe(event: &Event) -> String {
    let kind = event.action.kind();
    match &event.action {
        Action::Connect | Action::Disconnect | Action::Cancel => kind.to_string(),
        Action::Simple { sql } => format!("{kind} {sql}"),
        Action::Copy { sql, direction } => format!("{kind} {direction:?} {sql}"),
        Action::Parse { statement, sql } => format!("{kind} [{statement}] {sql}"),
        Action::Call { function } => format!("{kind} {function}"),
        Action::Bind(bound) | Action::Execute(bound) | Action::Fetch(bound) => {
            format!("{kind} {}", describe_bound(bound))
        }
    }
}

fn describe_bound(Bound { statement, portal, sql, parameters }: &Bound) -> String {
    let values = match parameters {
        None => "?".to_owned(),
        Some(values) => values.iter().map(describe_value).collect::<Vec<_>>().join(","),
    };
    format!("[{statement}/{portal}] {sql} ({values})")
}

fn describe_value(value: &Parameter) -> String {
    match value {
        Parameter::Null => "NULL".to_owned(),
        Parameter::Value(text) => format!("'{text}'"),
        Parameter::Truncated(text) => format!("'{text}'…"),
    }
}

pub(crate) fn descriptions(events: &[Event]) -> Vec<String> {
    events.iter().map(describe).collect()
}

/// The error of an event, empty if it did not fail.
pub(crate) fn error(event: &Event) -> String {
    event.outcome.error.as_ref().map(ToString::to_string).unwrap_or_default()
}
