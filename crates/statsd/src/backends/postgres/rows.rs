//! Encodes snapshots as COPY rows, in text or binary format.
//!
//! Source: PostgreSQL manual, `COPY`, "File Formats".

use std::fmt::Write as _;

use crate::{
    MetricName,
    backends::outbox::{BatchSink, ValueBatch},
    flush::{FlushSnapshot, TimedMetric, TimedType},
    js,
    settings::PostgresCopyFormat,
};

/// Approximate size in bytes of a batch, which is one transaction.
const BATCH_BYTES: usize = 2 << 20;
/// The epoch of PostgreSQL's binary timestamps, 2000-01-01, in seconds since 1970.
const POSTGRES_EPOCH: i64 = 946_684_800;
const SIGNATURE: &[u8] = b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0";

/// Encodes all rows as COPY bodies of about [`BATCH_BYTES`].
pub(super) fn encode(snapshot: &FlushSnapshot, format: PostgresCopyFormat, sink: BatchSink<'_>) {
    let mut rows = CopyRowEncoder::new(snapshot.timestamp, format, sink);
    for counter in snapshot.counters_as_sent() {
        rows.metric("counter", &counter.name);
        rows.add("count", counter.value);
        rows.add("rate", snapshot.rate(counter));
    }
    for timer in snapshot.timers_as_sent() {
        rows.metric("timer", &timer.name);
        timer.fields.iter().for_each(|(field, value)| rows.add(field, *value));
    }
    for gauge in snapshot.gauges_as_sent() {
        rows.metric("gauge", &gauge.name);
        rows.add("value", gauge.value);
    }
    for set in snapshot.sets_as_sent() {
        rows.metric("set", &set.name);
        rows.add("count", set.count as f64);
    }
    let seconds = snapshot.interval.as_secs_f64();
    for TimedMetric { kind, sent, time, value, .. } in &snapshot.timed {
        rows.set_time(*time);
        match kind {
            TimedType::Counter => {
                rows.metric("counter", sent);
                rows.add("count", *value);
                rows.add("rate", value / seconds);
            }
            TimedType::Gauge => {
                rows.metric("gauge", sent);
                rows.add("value", *value);
            }
        }
    }
    rows.set_time(snapshot.timestamp);
    let self_metrics = &snapshot.self_metrics;
    rows.metric("own", &MetricName::new(&self_metrics.prefix));
    self_metrics.values().for_each(|(field, value)| rows.add(field, value));
    rows.flush_batch();
}

struct CopyRowEncoder<'s> {
    format: PostgresCopyFormat,
    sink: BatchSink<'s>,
    body: Vec<u8>,
    values: u64,
    time_us: i64,
    time_text: String,
    /// The columns shared by all rows of the current metric: `kind`, `name`, `tags`.
    kind: &'static str,
    name: String,
    tags: String,
}

impl<'s> CopyRowEncoder<'s> {
    fn new(timestamp: i64, format: PostgresCopyFormat, sink: BatchSink<'s>) -> Self {
        let mut rows = Self {
            format,
            sink,
            body: Vec::new(),
            values: 0,
            time_us: 0,
            time_text: String::new(),
            kind: "",
            name: String::new(),
            tags: String::new(),
        };
        rows.set_time(timestamp);
        rows
    }

    /// Sets the time of the following rows, in seconds since 1970.
    fn set_time(&mut self, timestamp: i64) {
        let time = jiff::Timestamp::from_second(timestamp).unwrap_or(jiff::Timestamp::UNIX_EPOCH);
        self.time_us = timestamp.saturating_sub(POSTGRES_EPOCH).saturating_mul(1_000_000);
        self.time_text = time.to_string();
    }

    fn metric(&mut self, kind: &'static str, name: &MetricName) {
        self.kind = kind;
        // PostgreSQL's text type cannot store a zero byte.
        self.name = name.base().replace('\0', "\u{fffd}");
        let mut tags: Vec<(Box<str>, js::JsValue)> = Vec::new();
        for (key, value) in name.tags() {
            let clean = |text: &str| Box::<str>::from(text.replace('\0', "\u{fffd}"));
            tags.push((clean(&key), js::JsValue::Text(clean(&value))));
        }
        self.tags = js::json(&js::JsValue::Object(tags), js::Spacing::Spaced);
    }

    fn add(&mut self, field: &str, value: f64) {
        match self.format {
            PostgresCopyFormat::Binary => self.binary(field, value),
            PostgresCopyFormat::Text => self.text(field, value),
        }
        self.values += 1;
        if self.body.len() >= BATCH_BYTES {
            self.flush_batch();
        }
    }

    fn binary(&mut self, field: &str, value: f64) {
        if self.body.is_empty() {
            self.body.extend_from_slice(SIGNATURE);
        }
        self.body.extend_from_slice(&6i16.to_be_bytes());
        let cells: [&[&[u8]]; 6] = [
            &[&self.time_us.to_be_bytes()],
            &[self.kind.as_bytes()],
            &[self.name.as_bytes()],
            // The first byte is the version of jsonb's binary format.
            &[&[1], self.tags.as_bytes()],
            &[field.as_bytes()],
            &[&value.to_be_bytes()],
        ];
        for parts in cells {
            // Key lengths are limited by the settings, far below 2 GiB.
            let length = parts.iter().map(|part| part.len()).sum::<usize>() as u32;
            self.body.extend_from_slice(&length.to_be_bytes());
            parts.iter().for_each(|part| self.body.extend_from_slice(part));
        }
    }

    fn text(&mut self, field: &str, value: f64) {
        let mut line = String::new();
        for cell in [&self.time_text, self.kind, &self.name, &self.tags, field] {
            escape(cell, &mut line);
            line.push('\t');
        }
        // Writing into a String cannot fail. PostgreSQL accepts NaN and Infinity.
        let _ = writeln!(line, "{}", js::JsNumber(value));
        self.body.extend_from_slice(line.as_bytes());
    }

    fn flush_batch(&mut self) {
        if self.body.is_empty() {
            return;
        }
        let mut bytes = std::mem::take(&mut self.body);
        if self.format == PostgresCopyFormat::Binary {
            bytes.extend_from_slice(&(-1i16).to_be_bytes());
        }
        (self.sink)(ValueBatch::new(bytes, std::mem::take(&mut self.values)));
    }
}

fn escape(cell: &str, out: &mut String) {
    for char in cell.chars() {
        match char {
            '\\' => out.push_str("\\\\"),
            '\t' => out.push_str("\\t"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            char => out.push(char),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backends::testing::snapshot;

    fn encoded(format: PostgresCopyFormat) -> Vec<ValueBatch> {
        let mut batches = Vec::new();
        encode(&snapshot(), format, &mut |batch| batches.push(batch));
        batches
    }

    #[test]
    fn each_value_becomes_one_row() {
        let batches = encoded(PostgresCopyFormat::Text);
        let text = std::str::from_utf8(&batches[0].bytes).unwrap();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "2026-03-01T10:00:00Z\tcounter\tapi.hits\t{}\tcount\t30");
        let tagged = "2026-03-01T10:00:00Z\tcounter\tapi.hits\t{\"code\": \"500\"}\trate\t0.2";
        assert_eq!(lines[3], tagged);
        assert_eq!(lines.len() as u64, batches[0].values);
        assert_eq!(lines.len(), 6 + 16 + 2 + 1 + 1 + 2);
    }

    #[test]
    fn binary_rows_have_header_and_trailer() {
        let batches = encoded(PostgresCopyFormat::Binary);
        let bytes = &batches[0].bytes;
        assert!(bytes.starts_with(SIGNATURE));
        assert_eq!(SIGNATURE.len(), 19);
        assert!(bytes.ends_with(&[0xff, 0xff]));
        let first_cell = &bytes[19..];
        assert_eq!(first_cell[..6], [0, 6, 0, 0, 0, 8]);
        assert_eq!(first_cell[6..14], ((1_772_359_200 - POSTGRES_EPOCH) * 1_000_000).to_be_bytes());
    }

    #[test]
    fn text_cells_are_escaped() {
        let mut out = String::new();
        escape("a\tb\\c\nd\re", &mut out);
        assert_eq!(out, "a\\tb\\\\c\\nd\\re");
    }
}
