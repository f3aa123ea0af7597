//! [`JsonLines`]: formats an event as one JSON object per line: time, level, fields and target.
//!
//! The lines are those of `tracing-subscriber`'s flattened JSON format for events outside of spans,
//! of which there are none here. A pooler writes two lines for each client, and that format costs
//! four times the instructions.

use std::{
    cell::Cell,
    fmt::{self, Debug, Write as _},
    time::{SystemTime, UNIX_EPOCH},
};

use tracing::{
    Event, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{
    fmt::{FmtContext, FormatEvent, FormatFields, format::Writer, time::FormatTime},
    registry::LookupSpan,
};

/// A formatter of events as JSON.
#[derive(Debug)]
pub(super) struct JsonLines;

/// Length in bytes of a time up to its seconds: `2026-03-01T10:00:00`.
const SECOND_BYTES: usize = 19;

thread_local! {
    /// The last second that was formatted, and its text.
    static SECOND: Cell<(u64, [u8; SECOND_BYTES])> = const { Cell::new((u64::MAX, [0; SECOND_BYTES])) };
}

impl<S, N> FormatEvent<S, N> for JsonLines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let metadata = event.metadata();
        let mut line = String::with_capacity(256);
        line.push_str("{\"timestamp\":\"");
        write_time(&mut line, SystemTime::now())?;
        line.push_str("\",\"level\":\"");
        line.push_str(metadata.level().as_str());
        line.push('"');
        event.record(&mut JsonFields(&mut line));
        line.push_str(",\"target\":");
        write_text(&mut line, metadata.target());
        line.push_str("}\n");
        writer.write_str(&line)
    }
}

/// Writes a time in UTC with microseconds. The text of the current second is written once.
fn write_time(line: &mut String, time: SystemTime) -> fmt::Result {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (second, mut text) = SECOND.get();
    if second != since.as_secs() {
        let mut whole = String::new();
        tracing_subscriber::fmt::time::SystemTime.format_time(&mut Writer::new(&mut whole))?;
        // The clock may have advanced since `time`, by less than the error of any clock.
        let Some(first) = whole.as_bytes().first_chunk::<SECOND_BYTES>() else {
            line.push_str(&whole);
            return Ok(());
        };
        text = *first;
        SECOND.set((since.as_secs(), text));
    }
    line.push_str(std::str::from_utf8(&text).map_err(|_| fmt::Error)?);
    write!(line, ".{:06}Z", since.subsec_micros())
}

/// Appends `,"name":value` for each field.
struct JsonFields<'a>(&'a mut String);

impl JsonFields<'_> {
    fn write_name(&mut self, field: &Field) {
        self.0.push(',');
        write_text(self.0, field.name());
        self.0.push(':');
    }

    fn write_display(&mut self, field: &Field, value: impl fmt::Display) {
        self.write_name(field);
        // Writing to a string cannot fail.
        let _ = write!(self.0, "{value}");
    }
}

impl Visit for JsonFields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.write_name(field);
        self.0.push('"');
        // Fails only if the value's implementation does; the line stays valid.
        let _ = write!(EscapingJson(self.0), "{value:?}");
        self.0.push('"');
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.write_name(field);
        write_text(self.0, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.write_display(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.write_display(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.write_display(field, value);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.write_display(field, serde_json::Value::from(value));
    }
}

/// Writes a JSON string with its quotes.
fn write_text(line: &mut String, text: &str) {
    line.push('"');
    write_escaped(line, text);
    line.push('"');
}

fn write_escaped(line: &mut String, text: &str) {
    let is_special = |byte: u8| byte < b' ' || byte == b'"' || byte == b'\\';
    if !text.bytes().any(is_special) {
        return line.push_str(text);
    }
    for character in text.chars() {
        match character {
            '"' => line.push_str("\\\""),
            '\\' => line.push_str("\\\\"),
            '\n' => line.push_str("\\n"),
            '\r' => line.push_str("\\r"),
            '\t' => line.push_str("\\t"),
            '\u{8}' => line.push_str("\\b"),
            '\u{c}' => line.push_str("\\f"),
            // Writing to a string cannot fail.
            '\0'..' ' => drop(write!(line, "\\u{:04x}", u32::from(character))),
            _ => line.push(character),
        }
    }
}

/// Writes text into a JSON string.
struct EscapingJson<'a>(&'a mut String);

impl fmt::Write for EscapingJson<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        write_escaped(self.0, text);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::{io, sync::Arc};

    use parking_lot::Mutex;
    use serde_json::Value;
    use tracing_subscriber::{fmt, fmt::MakeWriter, layer::SubscriberExt as _};

    use super::*;

    #[derive(Clone, Default)]
    struct LogLines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for LogLines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl MakeWriter<'_> for LogLines {
        type Writer = Self;

        fn make_writer(&self) -> Self {
            self.clone()
        }
    }

    /// Removes the time of a line, after checking that it is one.
    fn without_time(line: &str) -> String {
        let rest = line.strip_prefix("{\"timestamp\":\"").unwrap();
        let (time, rest) = rest.split_once('"').unwrap();
        let time = digits_as_d(time);
        assert_eq!(time, "dddd-dd-ddTdd:dd:dd.ddddddZ");
        rest.to_owned()
    }

    fn digits_as_d(time: &str) -> String {
        time.chars().map(|c| if c.is_ascii_digit() { 'd' } else { c }).collect()
    }

    #[test]
    fn lines_equal_those_of_tracing_subscriber() {
        let (ours, theirs) = (LogLines::default(), LogLines::default());
        let subscriber = tracing_subscriber::registry()
            .with(fmt::layer().event_format(JsonLines).with_writer(ours.clone()))
            .with(fmt::layer().json().flatten_event(true).with_writer(theirs.clone()));
        tracing::subscriber::with_default(subscriber, || {
            let hostile = "x\"\\\n\r\t\u{1}\u{8}\u{c}\u{7f}\u{202e}é";
            let error = io::Error::other(hostile);
            let dynamic: &(dyn std::error::Error + 'static) = &error;
            let (user, why) = (hostile, hostile.to_owned());
            tracing::info!(user, why, %error, count = 3, less = -4_i64, "client logged in");
            tracing::warn!(is = true, share = 0.5, no = f64::NAN, error = dynamic, "{hostile}");
            tracing::error!(debug = ?hostile, large = u128::MAX, r#type = "it");
            tracing::debug!(target: "odd\"target", "only text");
        });
        let text = |lines: &LogLines| String::from_utf8(lines.0.lock().clone()).unwrap();
        let (ours, theirs) = (text(&ours), text(&theirs));
        assert_eq!(ours.lines().count(), 4, "{ours}");
        for (ours, theirs) in ours.lines().zip(theirs.lines()) {
            assert_eq!(without_time(ours), without_time(theirs));
            serde_json::from_str::<Value>(ours).unwrap();
        }
        assert_eq!(ours.lines().count(), theirs.lines().count());
    }
}
