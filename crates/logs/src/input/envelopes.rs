//! JSON objects around lines of a log: what container runtimes, clouds and operators make of it.
//!
//! | envelope | from | the log is at |
//! |---|---|---|
//! | `{"log":"…\n","stream":"stderr","time":"…"}` | Docker's json-file, Fluent Bit | `log` |
//! | `{"textPayload":"…","timestamp":"…","logName":"…"}` | Google Cloud Logging | `textPayload`, or an object at `jsonPayload` |
//! | `{"message":"…","ingestionTime":…}` | CloudWatch: `filter-log-events`, subscriptions | `message` |
//! | `{"category":"PostgreSQLLogs","properties":{"message":"…"}}` | Azure Monitor | `properties.message`, behind `prefix` and `errorLevel` where these are apart |
//! | `{"logger":"postgres","msg":"record","record":{…}}` | CloudNativePG | `record`: csvlog's columns by name |
//!
//! Envelopes may be in lines, in an array, or in an array of a document, and may be mixed.

use super::{
    assembly::{has_time, label},
    json::{self, Objects, members},
    layer::{Found, Layer, push_entry},
    stamp,
    turn::Turn,
};
use crate::{record::Label, summary::Reason};

/// Takes envelopes off.
#[derive(Debug)]
pub(super) struct Envelopes {
    objects: Objects,
    opener: Opener,
}

impl Envelopes {
    pub(super) fn new(bytes_max: usize) -> Self {
        Self { objects: Objects::new(bytes_max), opener: Opener::default() }
    }
}

impl Layer for Envelopes {
    fn feed(&mut self, bytes: &[u8], found: &mut Found) {
        let Self { objects, opener } = self;
        objects.feed(bytes, |object, line| opener.take(object, line, found));
    }

    fn finish(&mut self, found: &mut Found) {
        let rest = self.objects.rest().to_vec();
        self.objects.finish(|reason, line| {
            if let Err(reason) = reason {
                found.problem(reason, line, &rest);
            }
        });
        if let Some(reason) = self.opener.turn.finish(&mut found.inside) {
            found.problem(reason, 1, b"");
        }
    }

    fn idle(&mut self, found: &mut Found) {
        self.opener.turn.idle(&mut found.inside);
    }

    fn added_prefix(&self) -> Option<&'static str> {
        (self.opener.adds_time == Some(true)).then_some("%m ")
    }
}

/// What is known from one envelope to the next.
#[derive(Debug, Default)]
struct Opener {
    turn: Turn,
    /// The texts have no time of their own, so that of their entry is put in front; `None` until a text with a
    /// label shows it.
    adds_time: Option<bool>,
}

impl Opener {
    fn take(&mut self, object: Result<&[u8], Reason>, line: u64, found: &mut Found) {
        let object = match object {
            Ok(object) => object,
            Err(reason) => return found.problem(reason, line, b""),
        };
        let start = found.inside.len();
        match open(object, 0, &mut found.inside) {
            Some(Opened::Log { time }) => {
                self.add_time(time, start, &mut found.inside);
                if let Some(reason) = self.turn.take(time, start, &mut found.inside) {
                    found.problem(reason, line, object);
                }
            }
            Some(Opened::Other) => found.problem(Reason::OtherProgram, line, object),
            None => found.problem(Reason::BadWrapping, line, object),
        }
    }
}

impl Opener {
    /// Puts the time of an entry in front of its text, which begins at `start`, if texts have none. Only the
    /// entries of Google Cloud Logging have a time that is read here, in RFC 3339.
    fn add_time(&mut self, time: &[u8], start: usize, inside: &mut Vec<u8>) {
        let time = time.strip_prefix(b"\"").and_then(|time| stamp::iso(time, false));
        let Some(time) = time else { return };
        let text = &inside[start..];
        if self.adds_time.is_none() && !text.starts_with(b"{") {
            self.adds_time = label(text).map(|(_, at)| !has_time(&text[..at]));
        }
        // A text that begins with a tab goes on with the record before.
        if self.adds_time == Some(true) && !text.starts_with(b"\t") && !text.starts_with(b"{") {
            inside.splice(start..start, [time.text.as_bytes(), b" "].concat());
        }
    }
}

/// What was in an envelope.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Opened<'a> {
    /// A part of a log, whose entry has this time.
    Log { time: &'a [u8] },
    /// Something of another program.
    Other,
}

/// Appends the log that is in an envelope to `inside`; `None` if it is no envelope that we know.
pub(super) fn open<'a>(object: &'a [u8], depth: u32, inside: &mut Vec<u8>) -> Option<Opened<'a>> {
    let mut values = [None; NAMES.len()];
    for (name, value) in members(object) {
        if let Some(at) = NAMES.iter().position(|known| known.as_bytes() == name) {
            values[at] = Some(value);
        }
    }
    let [
        time,
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
    let time = time.unwrap_or_default();
    if let Some(log) = log.and_then(json::string) {
        push_stream(&log, inside);
        return Some(Opened::Log { time: b"" });
    }
    if let Some(logger) = logger {
        return open_operator(logger, record, inside);
    }
    if let Some(text) = text.and_then(json::string) {
        push_entry(&text, inside);
        return Some(Opened::Log { time });
    }
    if let Some(payload) = payload.filter(|_| depth < DEPTH_MAX) {
        return Some(match open(payload, depth + 1, inside) {
            Some(Opened::Log { .. }) => Opened::Log { time },
            Some(Opened::Other) => Opened::Other,
            None => open_payload(payload, time, inside),
        });
    }
    if name.is_some() {
        // An entry of an audit: it is no part of the server's log.
        return Some(Opened::Other);
    }
    if let Some(events) = events {
        push_events(events, inside);
        return Some(Opened::Log { time: b"" });
    }
    if ingested.or(id).is_some() {
        push_entry(&message.and_then(json::string)?, inside);
        return Some(Opened::Log { time });
    }
    if let Some(category) = category {
        let is_log = category == b"\"PostgreSQLLogs\"";
        let properties = properties.filter(|_| is_log);
        let Some(properties) = properties else { return Some(Opened::Other) };
        push_properties(properties, inside)?;
        return Some(Opened::Log { time: b"" });
    }
    None
}

/// Appends a record of Azure's. Its single servers take the line prefix off and have a member for each
/// part of the record; the others leave the line whole.
///
/// Source: "Logs in Azure Database for PostgreSQL - Single Server", table "Schema".
fn push_properties(properties: &[u8], inside: &mut Vec<u8>) -> Option<()> {
    let text = |name: &[u8]| {
        let value = members(properties).find(|(known, _)| *known == name)?.1;
        json::string(value).filter(|text| !text.is_empty())
    };
    let message = text(b"message")?;
    let Some(prefix) = text(b"prefix").filter(|prefix| !message.starts_with(prefix)) else {
        push_entry(&message, inside);
        return Some(());
    };
    let level = match Label::parse(&message) {
        Some(_) => Vec::new(),
        None => [&text(b"errorLevel")?[..], b":  "].concat(),
    };
    push_entry(&[&prefix[..], &level, &message].concat(), inside);
    if let Some(detail) = text(b"detail") {
        push_entry(&[&prefix[..], b"DETAIL:  ", &detail].concat(), inside);
    }
    Some(())
}

/// Members that tell what an envelope is, and what is in it.
const NAMES: [&str; 13] = [
    "timestamp",
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

/// Envelopes within envelopes that are opened.
const DEPTH_MAX: u32 = 2;

/// An object of CloudNativePG: only what the server wrote counts, pgaudit's own records do not.
fn open_operator<'a>(
    logger: &[u8],
    record: Option<&[u8]>,
    inside: &mut Vec<u8>,
) -> Option<Opened<'a>> {
    let record = record.filter(|record| logger == b"\"postgres\"" && record.starts_with(b"{"));
    let Some(record) = record else { return Some(Opened::Other) };
    // Raw newlines stand between the members only; a record must be one line.
    inside.extend(record.iter().map(|byte| if *byte == b'\n' { b' ' } else { *byte }));
    inside.push(b'\n');
    Some(Opened::Log { time: b"" })
}

/// An object that a logging agent made of a line: of a jsonlog, or with the text at `message`.
fn open_payload<'a>(payload: &[u8], time: &'a [u8], inside: &mut Vec<u8>) -> Opened<'a> {
    let member = |name: &[u8]| members(payload).find(|(n, _)| *n == name).map(|(_, value)| value);
    if member(b"error_severity").is_some() {
        inside.extend(payload.iter().map(|byte| if *byte == b'\n' { b' ' } else { *byte }));
        inside.push(b'\n');
        return Opened::Log { time };
    }
    match member(b"message").and_then(json::string) {
        Some(message) => {
            push_entry(&message, inside);
            Opened::Log { time }
        }
        None => Opened::Other,
    }
}

/// Appends a piece of a container's stream. Docker cuts long lines into pieces of 16 KiB, of which
/// only the last has a newline; agents take the newline off all.
fn push_stream(text: &[u8], inside: &mut Vec<u8>) {
    inside.extend_from_slice(text);
    if !text.ends_with(b"\n") && text.len() < DOCKER_PIECE_BYTES {
        inside.push(b'\n');
    }
}

const DOCKER_PIECE_BYTES: usize = 16 << 10;

/// Appends the messages of an array of events.
fn push_events(events: &[u8], inside: &mut Vec<u8>) {
    let mut objects = Objects::new(events.len());
    objects.feed(events, |event, _| {
        let message = event.ok().and_then(|event| {
            members(event).find(|(name, _)| *name == b"message").and_then(|(_, v)| json::string(v))
        });
        if let Some(message) = message {
            push_entry(&message, inside);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unwrap(text: &str) -> (String, Vec<Reason>) {
        let mut layer = Envelopes::new(100_000);
        let mut found = Found::default();
        layer.feed(text.as_bytes(), &mut found);
        layer.finish(&mut found);
        let reasons = found.problems.iter().map(|met| met.reason).collect();
        (String::from_utf8_lossy(&found.inside).into_owned(), reasons)
    }

    #[test]
    fn docker_cuts_long_lines() {
        let long = "x".repeat(DOCKER_PIECE_BYTES);
        let text = format!(
            "{{\"log\":\"{long}\",\"stream\":\"stderr\",\"time\":\"t\"}}\n\
             {{\"log\":\"y\\n\",\"stream\":\"stderr\",\"time\":\"t\"}}\n{{\"log\":\"z\"}}\n"
        );
        assert_eq!(unwrap(&text), (format!("{long}y\nz\n"), vec![]));
    }

    #[test]
    fn what_others_wrote_is_left_out() {
        let text = r#"{"level":"info","logger":"postgres","msg":"record","record":{"a":"b"}}
            {"level":"info","logger":"pgaudit","msg":"record","record":{"a":"c"}}
            {"level":"info","logger":"instance-manager","msg":"hello"}
            {"protoPayload":{},"logName":"x"}
            {"category":"PostgreSQLFlexSessions","properties":{}}
            {"what":"is this"}"#;
        let (inside, reasons) = unwrap(text);
        assert_eq!(inside, "{\"a\":\"b\"}\n");
        let other = Reason::OtherProgram;
        assert_eq!(reasons, [other, other, other, Reason::BadWrapping]);
    }

    #[test]
    fn entries_of_clouds() {
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
    fn a_prefix_that_azure_took_off_is_put_back() {
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
    fn entries_that_run_backwards_are_turned_round() {
        let entry = |time: u32| {
            format!("{{\"textPayload\":\"x {time}\",\"timestamp\":\"{}\"}},\n", time / 2)
        };
        let text = |times: &mut dyn Iterator<Item = u32>| times.map(entry).collect::<String>();
        let inside: String = (20..60).map(|time| format!("x {time}\n")).collect();
        let backwards = text(&mut (20..60).rev());
        assert_eq!(unwrap(&backwards), (inside.clone(), vec![Reason::Backwards]));
        assert_eq!(unwrap(&text(&mut (20..60))), (inside, vec![]));
        // Too few to be told by several steps.
        let two = unwrap(&text(&mut [23, 20].into_iter()));
        assert_eq!(two, ("x 20\nx 23\n".to_owned(), vec![Reason::Backwards]));
    }

    #[test]
    fn entries_without_a_time_have_that_of_their_envelope() {
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
    }
}
