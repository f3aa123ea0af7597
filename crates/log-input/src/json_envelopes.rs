//! Removes the JSON objects that container runtimes, clouds and operators put around lines of a
//! log.
//!
//! | envelope | from | the log is at |
//! |---|---|---|
//! | `{"log":"…\n","stream":"stderr","time":"…"}` | Docker's json-file, Fluent Bit | `log` |
//! | `{"textPayload":"…","timestamp":"…","logName":"…"}` | Google Cloud Logging | `textPayload` |
//! | `{"message":"…","ingestionTime":…}` | CloudWatch, also in `logEvents` | `message` |
//! | `{"category":"PostgreSQLLogs","properties":{"message":"…"}}` | Azure Monitor | `properties` |
//! | `{"logger":"postgres","msg":"record","record":{…}}` | CloudNativePG | `record` |
//!
//! Google Cloud Logging may have an object at `jsonPayload` instead. Azure's `properties` has the
//! `message` and, if they are separate, its `prefix` and `errorLevel`. CloudNativePG's `record` has
//! csvlog's columns by name.
//!
//! Envelopes may be in lines, in an array, or in an array of a document, and may be mixed.

use super::{
    assembly::{find_label, has_time},
    entry_order::EntryOrder,
    json::{self, ObjectSplitter, members},
    layer::{Layer, LayerOutput, push_entry},
    stamp,
};
use crate::{label::LineLabel, problem::InputProblem, stamp_shape::stamp_len};

/// A layer that removes JSON envelopes.
#[derive(Debug)]
pub(super) struct JsonEnvelopes {
    objects: ObjectSplitter,
    opener: EnvelopeOpener,
}

impl JsonEnvelopes {
    pub(super) fn new(bytes_max: usize) -> Self {
        Self { objects: ObjectSplitter::new(bytes_max), opener: EnvelopeOpener::default() }
    }
}

impl Layer for JsonEnvelopes {
    fn feed(&mut self, bytes: &[u8], output: &mut LayerOutput) {
        let Self { objects, opener } = self;
        objects.feed(bytes, |object, line| opener.add_object(object, line, output));
    }

    fn finish(&mut self, output: &mut LayerOutput) {
        let rest = self.objects.rest().to_vec();
        self.objects.finish(|reason, line| {
            if let Err(reason) = reason {
                output.add_problem(reason, line, &rest);
            }
        });
        if let Some(reason) = self.opener.order.finish(&mut output.log) {
            output.add_problem(reason, 1, b"");
        }
    }

    fn idle(&mut self, output: &mut LayerOutput) {
        self.opener.order.idle(&mut output.log);
    }

    fn added_prefix(&self) -> Option<&'static str> {
        (self.opener.adds_timestamp == Some(true)).then_some("%m ")
    }
}

/// The state for opening successive envelopes.
#[derive(Debug, Default)]
struct EnvelopeOpener {
    order: EntryOrder,
    /// Whether the entry's time is put in front of each text, because the texts have none. `None`
    /// until a text with a label has been seen.
    adds_timestamp: Option<bool>,
}

impl EnvelopeOpener {
    fn add_object(
        &mut self,
        object: Result<&[u8], InputProblem>,
        line: u64,
        output: &mut LayerOutput,
    ) {
        let object = match object {
            Ok(object) => object,
            Err(reason) => return output.add_problem(reason, line, b""),
        };
        let start = output.log.len();
        match open_envelope(object, 0, &mut output.log) {
            Some(EnvelopeContent::Log { time }) => {
                self.add_timestamp(time, start, &mut output.log);
                if let Some(reason) = self.order.push(time, start, &mut output.log) {
                    output.add_problem(reason, line, object);
                }
            }
            Some(EnvelopeContent::Other) => {
                output.add_problem(InputProblem::OtherProgram, line, object);
            }
            None => output.add_problem(InputProblem::BadEnvelope, line, object),
        }
    }
}

impl EnvelopeOpener {
    /// Puts an entry's time in front of its text, which begins at `start`, if the texts have none.
    /// Only entries of Google Cloud Logging have a time in the expected format, RFC 3339, or in
    /// that of BigQuery, with spaces.
    fn add_timestamp(&mut self, time: &[u8], start: usize, out: &mut Vec<u8>) {
        let time = time.strip_prefix(b"\"");
        let time = time.and_then(|time| stamp::iso(time, false).or_else(|| stamp::iso(time, true)));
        let Some(time) = time else { return };
        let text = &out[start..];
        if self.adds_timestamp.is_none() && !text.starts_with(b"{") {
            self.adds_timestamp = find_label(text).map(|(_, at)| !has_time(&text[..at]));
        }
        // A text that begins with a tab continues the previous record.
        let has_none =
            !text.starts_with(b"\t") && !text.starts_with(b"{") && !begins_with_time(text);
        if self.adds_timestamp == Some(true) && has_none {
            out.splice(start..start, [time.text.as_bytes(), b" "].concat());
        }
    }
}

/// Whether a text begins with the time of a prefix: `%t` or `%m`.
fn begins_with_time(text: &[u8]) -> bool {
    stamp_len(text, true).or(stamp_len(text, false)).is_some()
}

/// The kind of contents of an envelope in a known format.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum EnvelopeContent<'a> {
    /// Text of the server's log. `time` is the JSON value of the entry's `timestamp`, or of its
    /// `receiveTimestamp` if it has no other; empty in formats without one.
    Log { time: &'a [u8] },
    /// Something else, such as an audit entry or output of another program.
    Other,
}

/// Appends the log in an envelope to `out`; `None` if the format of the envelope is not known, or
/// its message is missing.
pub(super) fn open_envelope<'a>(
    object: &'a [u8],
    depth: u32,
    out: &mut Vec<u8>,
) -> Option<EnvelopeContent<'a>> {
    let mut values = [None; NAMES.len()];
    for (name, value) in members(object) {
        if let Some(at) = NAMES.iter().position(|known| known.as_bytes() == name) {
            values[at] = Some(value);
        }
    }
    let [
        time,
        received,
        log,
        logger,
        record,
        text,
        payload,
        name,
        events,
        ingested,
        id,
        message,
        category,
        properties,
    ] = values;
    let time = time.or(received).unwrap_or_default();
    if let Some(log) = log.and_then(json::parse_string) {
        push_stream(&log, out);
        return Some(EnvelopeContent::Log { time: b"" });
    }
    if let Some(logger) = logger {
        return open_operator(logger, record, out);
    }
    if let Some(text) = text.and_then(json::parse_string) {
        push_entry(&text, out);
        return Some(EnvelopeContent::Log { time });
    }
    if let Some(payload) = payload.filter(|_| depth < DEPTH_MAX) {
        return Some(match open_envelope(payload, depth + 1, out) {
            Some(EnvelopeContent::Log { .. }) => EnvelopeContent::Log { time },
            Some(EnvelopeContent::Other) => EnvelopeContent::Other,
            None => open_payload(payload, time, out),
        });
    }
    if name.is_some() {
        // An audit entry is not part of the server's log.
        return Some(EnvelopeContent::Other);
    }
    if let Some(events) = events {
        push_events(events, out);
        return Some(EnvelopeContent::Log { time: b"" });
    }
    if ingested.or(id).is_some() {
        push_entry(&message.and_then(json::parse_string)?, out);
        return Some(EnvelopeContent::Log { time });
    }
    if let Some(category) = category {
        let is_log = category == b"\"PostgreSQLLogs\"";
        let properties = properties.filter(|_| is_log);
        let Some(properties) = properties else { return Some(EnvelopeContent::Other) };
        push_properties(properties, out)?;
        return Some(EnvelopeContent::Log { time: b"" });
    }
    None
}

/// Appends the record in an entry of Azure Monitor; `None` if it has no message, or has a separate
/// prefix but no level. Entries of Single Server have the line prefix and the other parts of the
/// record as separate members; those of Flexible Server have whole lines.
///
/// Source: "Logs in Azure Database for PostgreSQL - Single Server", table "Schema".
fn push_properties(properties: &[u8], out: &mut Vec<u8>) -> Option<()> {
    let text = |name: &[u8]| {
        let value = members(properties).find(|(known, _)| *known == name)?.1;
        json::parse_string(value).filter(|text| !text.is_empty())
    };
    let message = text(b"message")?;
    let Some(prefix) = text(b"prefix").filter(|prefix| !message.starts_with(prefix)) else {
        push_entry(&message, out);
        return Some(());
    };
    let level = match LineLabel::parse(&message) {
        Some(_) => Vec::new(),
        None => [&text(b"errorLevel")?[..], b":  "].concat(),
    };
    push_entry(&[&prefix[..], &level, &message].concat(), out);
    if let Some(detail) = text(b"detail") {
        push_entry(&[&prefix[..], b"DETAIL:  ", &detail].concat(), out);
    }
    Some(())
}

/// Members that identify an envelope, or contain the log or the time of the entry.
const NAMES: [&str; 14] = [
    "timestamp",
    "receiveTimestamp",
    "log",
    "logger",
    "record",
    "textPayload",
    "jsonPayload",
    "logName",
    "logEvents",
    "ingestionTime",
    "eventId",
    "message",
    "category",
    "properties",
];

/// Maximum nesting of `jsonPayload` objects.
const DEPTH_MAX: u32 = 2;

/// Opens an object of CloudNativePG: only the server's records count, not those of pgaudit.
fn open_operator<'a>(
    logger: &[u8],
    record: Option<&[u8]>,
    out: &mut Vec<u8>,
) -> Option<EnvelopeContent<'a>> {
    let record = record.filter(|record| logger == b"\"postgres\"" && record.starts_with(b"{"));
    let Some(record) = record else { return Some(EnvelopeContent::Other) };
    // Raw newlines occur only between members; a record must be on one line.
    out.extend(record.iter().map(|byte| if *byte == b'\n' { b' ' } else { *byte }));
    out.push(b'\n');
    Some(EnvelopeContent::Log { time: b"" })
}

/// Opens an object that a logging agent made from a line: a jsonlog record, or a text at `message`.
fn open_payload<'a>(payload: &[u8], time: &'a [u8], out: &mut Vec<u8>) -> EnvelopeContent<'a> {
    let member = |name: &[u8]| members(payload).find(|(n, _)| *n == name).map(|(_, value)| value);
    if member(b"error_severity").is_some() {
        out.extend(payload.iter().map(|byte| if *byte == b'\n' { b' ' } else { *byte }));
        out.push(b'\n');
        return EnvelopeContent::Log { time };
    }
    match member(b"message").and_then(json::parse_string) {
        Some(message) => {
            push_entry(&message, out);
            EnvelopeContent::Log { time }
        }
        None => EnvelopeContent::Other,
    }
}

/// Appends a part of a container's stream, with a newline unless the line continues in the next
/// part.
///
/// Docker cuts long lines into parts of 16 KiB and ends only the last with a newline, which some
/// agents remove. So a part of that size without a newline is taken to continue.
fn push_stream(text: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(text);
    if !text.ends_with(b"\n") && text.len() < DOCKER_CHUNK_BYTES {
        out.push(b'\n');
    }
}

const DOCKER_CHUNK_BYTES: usize = 16 << 10;

/// Appends the messages of an array of events.
fn push_events(events: &[u8], out: &mut Vec<u8>) {
    let mut objects = ObjectSplitter::new(events.len());
    objects.feed(events, |event, _| {
        let message = event.ok().and_then(|event| {
            members(event)
                .find(|(name, _)| *name == b"message")
                .and_then(|(_, v)| json::parse_string(v))
        });
        if let Some(message) = message {
            push_entry(&message, out);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unwrap(text: &str) -> (String, Vec<InputProblem>) {
        let mut layer = JsonEnvelopes::new(100_000);
        let mut output = LayerOutput::default();
        layer.feed(text.as_bytes(), &mut output);
        layer.finish(&mut output);
        let reasons = output.problems.iter().map(|problem| problem.reason).collect();
        (String::from_utf8_lossy(&output.log).into_owned(), reasons)
    }

    #[test]
    fn lines_cut_by_docker_are_joined() {
        let long = "x".repeat(DOCKER_CHUNK_BYTES);
        let text = format!(
            "{{\"log\":\"{long}\",\"stream\":\"stderr\",\"time\":\"t\"}}\n\
             {{\"log\":\"y\\n\",\"stream\":\"stderr\",\"time\":\"t\"}}\n{{\"log\":\"z\"}}\n"
        );
        assert_eq!(unwrap(&text), (format!("{long}y\nz\n"), vec![]));
    }

    #[test]
    fn entries_of_other_programs_are_skipped() {
        let text = r#"{"level":"info","logger":"postgres","msg":"record","record":{"a":"b"}}
            {"level":"info","logger":"pgaudit","msg":"record","record":{"a":"c"}}
            {"level":"info","logger":"instance-manager","msg":"hello"}
            {"protoPayload":{},"logName":"x"}
            {"category":"PostgreSQLFlexSessions","properties":{}}
            {"what":"is this"}"#;
        let (out, reasons) = unwrap(text);
        assert_eq!(out, "{\"a\":\"b\"}\n");
        let other = InputProblem::OtherProgram;
        assert_eq!(reasons, [other, other, other, InputProblem::BadEnvelope]);
    }

    #[test]
    fn cloud_entries_are_read() {
        for text in [
            r#"[{"textPayload": "LOG:  a\n\tb", "timestamp": "1", "logName": "x"}]"#,
            r#"{"jsonPayload":{"message":"LOG:  a\n\tb"},"logName":"x"}"#,
            r#"{"events":[{"message":"LOG:  a\n\tb","ingestionTime":1,"eventId":"2"}],"token":""}"#,
            r#"{"messageType":"DATA_MESSAGE","logEvents":[{"id":"1","message":"LOG:  a\n\tb"}]}"#,
            r#"{"category":"PostgreSQLLogs","properties":{"message":"LOG:  a\n\tb","x":1}}"#,
        ] {
            assert_eq!(unwrap(text), ("LOG:  a\n\tb\n".to_owned(), vec![]), "{text}");
        }
        let nested = r#"{"jsonPayload":{"logger":"postgres","record":{"a":"b"}},"logName":"x"}"#;
        assert_eq!(unwrap(nested).0, "{\"a\":\"b\"}\n");
    }

    #[test]
    fn prefix_removed_by_azure_is_restored() {
        let record = |more: &str| {
            let at = "2026-11-20 12:43:19 UTC-6b004067.7-";
            format!(r#"{{"category":"PostgreSQLLogs","properties":{{"prefix":"{at}",{more}}}}}"#)
        };
        for (more, lines) in [
            (
                r#""message":"execute s: select $1\nfrom t","detail":"parameters: $1 = '7'","errorLevel":"LOG""#,
                "LOG:  execute s: select $1\n\tfrom t\n@DETAIL:  parameters: $1 = '7'\n",
            ),
            (
                r#""message":"LOG:  statement: select 1","detail":"","errorLevel":"LOG""#,
                "LOG:  statement: select 1\n",
            ),
            (r#""message":"2026-11-20 12:43:19 UTC-6b004067.7-LOG:  a""#, "LOG:  a\n"),
        ] {
            let expected = format!("@{lines}").replace('@', "2026-11-20 12:43:19 UTC-6b004067.7-");
            assert_eq!(unwrap(&record(more)), (expected, vec![]), "{more}");
        }
    }

    #[test]
    fn backward_entries_are_reversed() {
        let entry = |time: u32| {
            format!("{{\"textPayload\":\"x {time}\",\"timestamp\":\"{}\"}},\n", time / 2)
        };
        let text = |times: &mut dyn Iterator<Item = u32>| times.map(entry).collect::<String>();
        let out: String = (20..60).map(|time| format!("x {time}\n")).collect();
        let backwards = text(&mut (20..60).rev());
        assert_eq!(unwrap(&backwards), (out.clone(), vec![InputProblem::Backwards]));
        assert_eq!(unwrap(&text(&mut (20..60))), (out, vec![]));
        // Too few entries for several time steps.
        let two = unwrap(&text(&mut [23, 20].into_iter()));
        assert_eq!(two, ("x 20\nx 23\n".to_owned(), vec![InputProblem::Backwards]));
    }

    #[test]
    fn entries_without_time_get_their_envelope_time() {
        let entry = |text: &str| {
            format!(
                "{{\"textPayload\":\"{text}\",\"timestamp\":\"2026-11-20T12:43:19.577123Z\",\"logName\":\"x\"}}\n"
            )
        };
        let cloud = entry("[7]: [1-1] db=shop,user=al LOG:  statement: select 1\\nfrom t")
            + &entry("[7]: [2-1] db=shop,user=al LOG:  duration: 1.000 ms");
        let time = "2026-11-20 12:43:19.577123 UTC";
        let expected = format!(
            "{time} [7]: [1-1] db=shop,user=al LOG:  statement: select 1\n\tfrom t\n\
             {time} [7]: [2-1] db=shop,user=al LOG:  duration: 1.000 ms\n"
        );
        assert_eq!(unwrap(&cloud), (expected, vec![]));
        let own = entry("2026-11-20 12:43:19.577 UTC [7]: LOG:  x");
        assert_eq!(unwrap(&own).0, "2026-11-20 12:43:19.577 UTC [7]: LOG:  x\n");
        // An entry with a time among others needs no other time.
        let mixed = entry("[7]: LOG:  x") + &own;
        assert_eq!(
            unwrap(&mixed).0,
            format!("{time} [7]: LOG:  x\n2026-11-20 12:43:19.577 UTC [7]: LOG:  x\n")
        );
        // The time of receipt replaces a missing time, and BigQuery writes times with spaces.
        for replacement in [
            "\"receiveTimestamp\":\"2026-11-20T12:43:19.577123Z\"",
            "\"timestamp\":\"2026-11-20 12:43:19.577123 UTC\"",
        ] {
            let timestamp = "\"timestamp\":\"2026-11-20T12:43:19.577123Z\"";
            let other = entry("LOG:  x").replace(timestamp, replacement);
            assert_eq!(unwrap(&other), (format!("{time} LOG:  x\n"), vec![]), "{replacement}");
        }
    }
}
