//! Compares the parsers, record by record, with a [plain reader](plain_reader) of the same logs,
//! which real servers wrote.

mod plain_reader;

use howdah_log_input::InputState;
use proptest::{collection::vec, prelude::*, sample::Index};

use self::plain_reader::{PlainPrefix, PlainRecord, VERBOSE};
use super::{
    detector::FormatDetector,
    input_item::InputItem,
    reader::{Framer, LogReader},
};
use crate::{
    clock::LogClock,
    prefix::{SessionLookup, SessionNames},
    record::frame::{ChunkFrames, RecordFrame, SessionFields},
    server_log_format::ServerLogFormat,
    summary::LogPosition,
};

/// A log with the records in it.
struct PlainLog {
    format: ServerLogFormat,
    prefix: Option<&'static str>,
    text: String,
    /// The offset of each record, and its fields.
    records: Vec<(usize, PlainRecord)>,
    /// Number of lines that are not part of a record.
    junk: usize,
}

/// A server that wrote a log: its version, and the name of its settings.
fn server() -> impl Strategy<Value = (&'static str, &'static str)> {
    let settings = &["prod", "durationonly", "verbose"][..];
    (prop::sample::select(&["15", "17"][..]), prop::sample::select(settings))
}

fn fixture(version: &str, setting: &str, format: &str) -> String {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures");
    std::fs::read_to_string(format!("{root}/{version}/{setting}.{format}")).expect("a fixture")
}

impl PlainLog {
    /// Reads a fixture, and puts these lines before some of its records. `is_windows` adds carriage
    /// returns to line ends.
    fn new(
        format: ServerLogFormat,
        (version, setting): (&str, &str),
        changes: PrefixChanges,
        junk: &[(Index, &'static str)],
        is_windows: bool,
    ) -> Self {
        let extension = match format {
            ServerLogFormat::Stderr => "log",
            ServerLogFormat::Csv => "csv",
            ServerLogFormat::Json => "json",
        };
        let mut text = fixture(version, setting, extension);
        let mut prefix = None;
        let mut plain = PlainPrefix::Verbose;
        if format == ServerLogFormat::Stderr {
            (prefix, plain, text) = stderr_prefix(setting, changes, &text);
        }
        let records = match format {
            ServerLogFormat::Stderr => plain_reader::stderr(&text, &plain),
            ServerLogFormat::Csv => plain_reader::csv(&text),
            ServerLogFormat::Json => plain_reader::json(&text),
        };
        let mut log = Self { format, prefix, text: String::new(), records: Vec::new(), junk: 0 };
        let len = records.len();
        for (number, (source, record)) in records.into_iter().enumerate() {
            let before = junk.iter().filter(|(at, _)| number > 0 && at.index(len) == number);
            for (_, line) in before {
                log.text += line;
                log.junk += usize::from(!line.trim_ascii().is_empty());
            }
            log.records.push((log.text.len(), record));
            match (is_windows, format) {
                (true, ServerLogFormat::Stderr) => log.text += &source.replace('\n', "\r\n"),
                (true, ServerLogFormat::Csv) => {
                    log.text += source.strip_suffix('\n').unwrap_or(source);
                    log.text += "\r\n";
                }
                _ => log.text += source,
            }
        }
        log
    }

    fn reader(&self) -> LogReader {
        let detector = FormatDetector::new(Some(self.format), self.prefix, 1 << 20);
        let position = LogPosition { file: "test.log", line: 1 };
        let reader =
            detector.expect("a prefix").reader(self.text.as_bytes(), InputState::End, position);
        reader.expect("a log").expect("enough of it")
    }

    /// Reads the log in order, in parts of these sizes.
    fn read(&self, reader: &mut LogReader, clock: &mut LogClock, sizes: &[usize]) -> Self {
        let bytes = self.text.as_bytes();
        let (mut records, mut junk) = (Vec::new(), 0);
        let (mut at, mut end, mut sizes) = (0, 0, sizes.iter().cycle());
        let mut scratch = Vec::new();
        loop {
            let is_all = end == bytes.len();
            let state = if is_all { InputState::End } else { InputState::Open };
            scratch.clear();
            let len = match reader.step(&bytes[at..end], state, &NoNames, &mut scratch) {
                InputItem::More if is_all => break,
                InputItem::More => {
                    end = (end + sizes.next().unwrap_or(&1)).min(bytes.len());
                    continue;
                }
                InputItem::Skip { len } => len,
                InputItem::Junk { len, .. } => {
                    junk += 1;
                    len
                }
                InputItem::Record { len } => {
                    junk += reader.foreign_lines().count as usize;
                    let input = &bytes[at..at + len];
                    let (frame, fields) =
                        reader.frame(input, clock, &mut scratch).expect("a valid record");
                    records.push((at, describe(&frame, &fields, input, &scratch)));
                    len
                }
            };
            at += len;
            reader.consumed(len);
        }
        Self { text: self.text.clone(), records, junk, ..*self }
    }

    /// Returns the records that are framed in chunks of these sizes.
    fn frame(&self, framer: &mut Framer, sizes: &[usize]) -> Vec<(usize, PlainRecord)> {
        let (mut records, mut frames) = (Vec::new(), ChunkFrames::default());
        let (mut at, mut rest) = (0, self.text.as_bytes());
        for size in sizes.iter().cycle() {
            let (chunk, after) = rest.split_at((*size).min(rest.len()));
            framer.frames(chunk, &mut frames);
            records.extend(frames.frames.iter().map(|frame| {
                let fields = &frames.sessions[frame.session as usize];
                let record = describe(frame, fields, chunk, &frames.scratch);
                (at + frame.start as usize, record)
            }));
            (at, rest) = (at + chunk.len(), after);
            if rest.is_empty() {
                break;
            }
        }
        records
    }
}

/// Changes to the prefix of a fixture.
#[derive(Clone, Copy, Debug)]
struct PrefixChanges {
    /// Whether a field is added that changes within a session.
    has_transactions: bool,
    /// Whether fields are padded.
    is_padded: bool,
}

/// Returns the prefix of a fixture in the stderr format, and the text, after these changes.
fn stderr_prefix(
    setting: &str,
    PrefixChanges { has_transactions, is_padded }: PrefixChanges,
    log: &str,
) -> (Option<&'static str>, PlainPrefix, String) {
    match setting {
        "verbose" => (Some(VERBOSE), PlainPrefix::Verbose, log.to_owned()),
        "prod" => {
            let mut fields =
                vec![("time", "|"), ("user", "|"), ("database", "|"), ("session_id", "|")];
            let mut text = log.to_owned();
            if has_transactions {
                fields.push(("vxid", "|"));
                text = with_transactions(&text);
            }
            if is_padded {
                text = padded(&text, &["|", "|", "|", "|"], &[0, -12, 10, -20]);
            }
            let prefix = match (has_transactions, is_padded) {
                (false, false) => "%m|%u|%d|%c|",
                (true, false) => "%m|%u|%d|%c|%v|",
                (false, true) => "%m|%-12u|%10d|%-20c|",
                (true, true) => "%m|%-12u|%10d|%-20c|%v|",
            };
            (Some(prefix), PlainPrefix::Separated { fields, quit: usize::MAX, is_padded }, text)
        }
        _ => {
            let separators = [" [", "] ", "@", "/", " "];
            let names = ["time", "pid", "user", "database", "application"];
            let fields = names.into_iter().zip(separators).collect();
            let prefix =
                if is_padded { "%m [%8p] %q%-12u@%10d/%a " } else { "%m [%p] %q%u@%d/%a " };
            let text = if is_padded {
                padded(log, &separators[..4], &[0, 8, -12, 10])
            } else {
                log.to_owned()
            };
            (Some(prefix), PlainPrefix::Separated { fields, quit: 2, is_padded }, text)
        }
    }
}

/// Pads the first fields of each line to these widths, on the right if they are negative, like the
/// server. Background processes may have fewer fields.
fn padded(log: &str, separators: &[&str], widths: &[isize]) -> String {
    let mut out = String::new();
    for line in log.split_inclusive('\n') {
        let mut rest = line;
        for (separator, width) in separators.iter().zip(widths) {
            let end = rest.find(separator).filter(|end| !rest[..*end].contains(":  "));
            let Some(end) = end.filter(|_| !line.starts_with('\t')) else { break };
            let (field, size) = (&rest[..end], width.unsigned_abs());
            out += &match width {
                ..0 => format!("{field:<size$}"),
                _ => format!("{field:>size$}"),
            };
            out += separator;
            rest = &rest[end + separator.len()..];
        }
        out += rest;
    }
    out
}

/// Adds a field to the prefix of each line that changes within a session.
fn with_transactions(log: &str) -> String {
    let mut lines = Vec::new();
    for (number, line) in log.split_inclusive('\n').enumerate() {
        match line.match_indices('|').nth(3).filter(|_| !line.starts_with('\t')) {
            Some((at, _)) => {
                // The lines of one record have the same transaction.
                let number = if line[at + 1..].starts_with("LOG") { number } else { 0 };
                lines.push(format!("{}{}/{number}|{}", &line[..=at], 3, &line[at + 1..]));
            }
            None => lines.push(line.to_owned()),
        }
    }
    lines.concat()
}

/// Knows no names of sessions.
struct NoNames;

impl SessionLookup for NoNames {
    fn names(&self, _: &[u8], _: Option<u32>) -> SessionNames<'_> {
        SessionNames::default()
    }
}

/// Returns the fields of a record that are not empty.
fn describe(
    frame: &RecordFrame,
    fields: &SessionFields,
    input: &[u8],
    scratch: &[u8],
) -> PlainRecord {
    let texts = [
        ("vxid", frame.vxid),
        ("tag", frame.tag),
        ("message", frame.message),
        ("detail", frame.detail),
        ("context", frame.context),
        ("statement", frame.statement),
        ("function", frame.function),
        ("session_id", fields.session_id),
        ("remote", fields.remote),
        ("user", fields.user),
        ("database", fields.database),
        ("application", fields.application),
        ("backend_type", fields.backend_type),
    ];
    let texts = texts.map(|(name, span)| {
        (name, String::from_utf8_lossy(span.text(input, scratch)).into_owned())
    });
    let number = |number: Option<i64>| number.map(|it| it.to_string()).unwrap_or_default();
    let numbers = [
        ("time", number(Some(frame.time.as_micros()))),
        ("severity", frame.severity.as_str().to_owned()),
        ("sqlstate", frame.sqlstate.map(|code| code.to_string()).unwrap_or_default()),
        ("query_id", number(frame.query_id)),
        ("line", frame.lines.map(|(line, _)| line.to_string()).unwrap_or_default()),
        ("session_start", number(fields.session_start)),
        ("pid", number(fields.pid.map(i64::from))),
    ];
    texts.into_iter().chain(numbers).filter(|(_, text)| !text.is_empty()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// In any parts and chunks, the reader finds exactly the records of the plain reader, and the
    /// framer finds only such.
    #[test]
    fn parsers_find_the_records_of_the_plain_reader(
        format in prop::sample::select(&[
            ServerLogFormat::Stderr, ServerLogFormat::Csv, ServerLogFormat::Json,
        ][..]),
        server in server(),
        (has_transactions, is_padded) in any::<(bool, bool)>(),
        junk in vec(
            (any::<Index>(), prop::sample::select(&["libfoo: it's \"bad\"\n", "\n", "  x: 1\n"][..])),
            0..6,
        ),
        is_windows in any::<bool>(),
        parts in vec(1..3000_usize, 1..20),
        chunks in vec(1..20_000_usize, 1..20),
    ) {
        let changes = PrefixChanges { has_transactions, is_padded };
        let plain = PlainLog::new(format, server, changes, &junk, is_windows);
        let mut clock = LogClock::new(None).expect("a clock");
        let mut reader = plain.reader();
        let read = plain.read(&mut reader, &mut clock, &parts);
        prop_assert_eq!(&read.records, &plain.records);
        prop_assert_eq!(read.junk, plain.junk);
        let mut framer = reader.framer(&clock).expect("a framer");
        for (at, record) in plain.frame(&mut framer, &chunks) {
            let known = plain.records.iter().find(|(start, _)| *start == at);
            prop_assert_eq!(known.map(|(_, record)| record), Some(&record));
        }
        // Only the first and the last record, ambiguous ones, and those before lines that belong to
        // no record are left to the reader.
        let framed = plain.frame(&mut framer, &[plain.text.len()]).len();
        prop_assert!((framed + junk.len()) * 10 >= plain.records.len() * 9, "{} framed", framed);
    }
}
