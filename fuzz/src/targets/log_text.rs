//! SQL text and parameters survive the way through the server's log: the replay sends the bytes
//! that the client sent.
//!
//! The input is a statement and values, separated by zero bytes, which PostgreSQL's texts cannot
//! contain. They are written as the server writes them, in each of the three formats.

use howdah_logs::{ImportOptions, Importer, ServerLogFormat};
use howdah_traffic::{Action, Event, Parameter, Text};

use super::Shape;

/// Texts that are hard to restore from a log.
pub const WORDS: &[&[u8]] = &[
    b"\0",
    b"\x01",
    b"\n",
    b"\n\t",
    b"\r\n",
    b"\r",
    b"'",
    b"''",
    b"\"",
    b"\\",
    b"\\n",
    b", $2 = ",
    b"NULL",
    b"...",
    b"copy t from stdin",
    b"copy t to stdout",
    b"LOG:  ",
    b"DETAIL:  ",
    b"\xff",
    b"\xe2\x82\xac",
    b"\x1b",
    b"2026-11-20 12:00:00.001 UTC [7] al@shop LOG:  statement: x",
    b"  ",
];

/// Statement names are not quoted in logs; the importer finds their end by the SQL that follows.
const VERB: &[u8] = b"select ";

/// Represents NULL in the input.
const NULL: &[u8] = b"\x01";

/// Writes the log, imports it, and compares the events with the input.
pub fn run(input: &[u8]) -> Shape {
    let mut parts = input.split(|byte| *byte == 0);
    let sql = parts.next().unwrap_or_default();
    let values: Vec<_> = parts.map(|value| (value != NULL).then_some(value)).collect();
    for format in [ServerLogFormat::Stderr, ServerLogFormat::Csv, ServerLogFormat::Json] {
        let events = import(format, sql, &values);
        let executions: Vec<_> =
            events.iter().filter(|event| event.action.kind().is_execution()).collect();
        assert_eq!(executions.len(), 2, "{format:?}: {events:?}");
        check_simple(format, &executions[0].action, sql);
        check_execute(format, &executions[1].action, sql, &values);
        assert_eq!(executions[1].outcome.duration_us, Some(1500), "{format:?}");
    }
    let breaks = sql.iter().filter(|byte| **byte == b'\n').count().min(3);
    let nulls = values.iter().filter(|value| value.is_none()).count().min(3);
    Shape::of((breaks, sql.first())).and((values.len().min(5), nulls)).and(sql.last())
}

fn check_simple(format: ServerLogFormat, action: &Action, sql: &[u8]) {
    assert!(
        matches!(action, Action::Simple { .. } | Action::Copy { .. }),
        "{format:?}: {action:?}"
    );
    assert_eq!(action.sql().map(Text::as_bytes), Some(sql), "{format:?}");
}

fn check_execute(format: ServerLogFormat, action: &Action, sql: &[u8], values: &[Option<&[u8]>]) {
    let Action::Execute(bound) = action else {
        assert_eq!(action.kind().as_str(), "execute", "{format:?}");
        return;
    };
    assert_eq!(bound.statement.as_bytes(), b"s1");
    assert_eq!(bound.sql.as_bytes(), [VERB, sql].concat(), "{format:?}");
    let read = bound.parameters.as_deref().unwrap_or_default();
    assert_eq!(read.len(), values.len(), "{format:?}: {read:?}");
    for (read, value) in read.iter().zip(values) {
        let read = match read {
            Parameter::Null => None,
            // A value that ends in `...` cannot be distinguished from a truncated one.
            Parameter::Value(text) | Parameter::Truncated(text) => Some(text.as_bytes()),
        };
        let cut = value.map(|value| value.strip_suffix(b"...").unwrap_or(value));
        assert!(read == *value || read == cut, "{format:?}: {read:?} for {value:?}");
    }
}

fn import(format: ServerLogFormat, sql: &[u8], values: &[Option<&[u8]>]) -> Vec<Event> {
    let mut log = Vec::new();
    // The importer learns the line ending from the first line.
    record(&mut log, format, 0, b"checkpoint starting: time", None);
    record(&mut log, format, 1, &[b"statement: ", sql].concat(), None);
    let message = [b"duration: 1.500 ms  execute s1: ", VERB, sql].concat();
    record(&mut log, format, 2, &message, detail(values).as_deref());
    record(&mut log, format, 3, b"checkpoint complete", None);
    let prefix = (format == ServerLogFormat::Stderr).then(|| "%m [%p] %u@%d ".to_owned());
    let options = ImportOptions { format: Some(format), prefix, ..ImportOptions::default() };
    let mut importer = Importer::new(options).expect("options of ours");
    importer.start_file("fuzz.log");
    importer.feed(&log).and_then(|()| importer.finish()).expect("a log as a server writes it");
    assert_eq!(importer.summary().rejected(), 0, "{format:?}: {:?}", importer.summary().problems);
    std::iter::from_fn(|| importer.poll_event()).collect()
}

/// Formats the DETAIL of parameters like `BuildParamLogString` in `params.c`.
fn detail(values: &[Option<&[u8]>]) -> Option<Vec<u8>> {
    let mut detail = b"Parameters: ".to_vec();
    for (number, value) in (1..).zip(values) {
        let comma = if number == 1 { "" } else { ", " };
        detail.extend(format!("{comma}${number} = ").bytes());
        match value {
            None => detail.extend_from_slice(b"NULL"),
            Some(value) => {
                detail.push(b'\'');
                detail.extend(doubled(value, b'\''));
                detail.push(b'\'');
            }
        }
    }
    (!values.is_empty()).then_some(detail)
}

/// Appends one message as the server writes it.
fn record(
    log: &mut Vec<u8>,
    format: ServerLogFormat,
    line: u32,
    message: &[u8],
    detail: Option<&[u8]>,
) {
    let time = format!("2026-11-20 12:00:00.00{line} UTC");
    match format {
        ServerLogFormat::Stderr => {
            let mut write = |label: &str, text: &[u8]| {
                log.extend(format!("{time} [7] al@shop {label}:  ").bytes());
                // Continuation lines start with a tab: `append_with_tabs` in `elog.c`.
                for byte in text {
                    log.push(*byte);
                    log.extend((*byte == b'\n').then_some(b'\t'));
                }
                log.push(b'\n');
            };
            write("LOG", message);
            if let Some(detail) = detail {
                write("DETAIL", detail);
            }
        }
        ServerLogFormat::Csv => {
            let quoted = |text: &[u8]| [b"\"", &*doubled(text, b'"'), b"\""].concat();
            let start = format!(
                "{time},\"al\",\"shop\",7,\"[local]\",6b004067.7,{line},\"idle\",\
                 2026-11-20 12:00:00 UTC,3/4,0,LOG,00000,"
            );
            log.extend(start.bytes());
            log.extend(quoted(message));
            log.push(b',');
            log.extend(detail.map(quoted).unwrap_or_default());
            log.extend_from_slice(b",,,,,,,,\"psql\",\"client backend\",,0\n");
        }
        ServerLogFormat::Json => {
            let start = format!(
                "{{\"timestamp\":\"{time}\",\"user\":\"al\",\"dbname\":\"shop\",\"pid\":7,\
                 \"session_id\":\"6b004067.7\",\"line_num\":{line},\"error_severity\":\"LOG\",\"message\":"
            );
            log.extend(start.bytes());
            log.extend(json_text(message));
            if let Some(detail) = detail {
                log.extend_from_slice(b",\"detail\":");
                log.extend(json_text(detail));
            }
            log.extend_from_slice(b",\"backend_type\":\"client backend\"}\n");
        }
    }
}

fn doubled(text: &[u8], quote: u8) -> Vec<u8> {
    text.iter()
        .flat_map(|byte| std::iter::repeat_n(*byte, 1 + usize::from(*byte == quote)))
        .collect()
}

/// Escapes like `escape_json` in `json.c`: bytes from 0x80 are copied, whatever the encoding.
fn json_text(text: &[u8]) -> Vec<u8> {
    let mut json = vec![b'"'];
    for byte in text {
        match byte {
            b'\x08' => json.extend_from_slice(b"\\b"),
            b'\x0c' => json.extend_from_slice(b"\\f"),
            b'\n' => json.extend_from_slice(b"\\n"),
            b'\r' => json.extend_from_slice(b"\\r"),
            b'\t' => json.extend_from_slice(b"\\t"),
            b'"' => json.extend_from_slice(b"\\\""),
            b'\\' => json.extend_from_slice(b"\\\\"),
            0..0x20 => json.extend(format!("\\u{byte:04x}").bytes()),
            _ => json.push(*byte),
        }
    }
    json.push(b'"');
    json
}
