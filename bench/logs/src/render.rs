//! A record as a server writes it, in each of its three formats.

use std::io::Write as _;

use crate::{LogFormat, workload::Record};

/// Appends a record to `out`.
pub(crate) fn record(format: LogFormat, record: &Record, out: &mut Vec<u8>) {
    match format {
        LogFormat::Stderr => stderr(record, out),
        LogFormat::Csv => csv(record, out),
        LogFormat::Json => json(record, out),
    }
}

fn stderr(record: &Record, out: &mut Vec<u8>) {
    let mut line = |label: &str, text: &str| {
        let Record { user, database, session_start, pid, .. } = record;
        let time = time(record.time_ms, true);
        put(out, format_args!("{time}|{user}|{database}|{session_start:x}.{pid:x}|{label}:  "));
        for (number, part) in text.split('\n').enumerate() {
            if number > 0 {
                out.extend_from_slice(b"\n\t");
            }
            out.extend_from_slice(part.as_bytes());
        }
        out.push(b'\n');
    };
    line(record.severity, &record.message);
    for (label, text) in [("DETAIL", &record.detail), ("STATEMENT", &record.statement)] {
        if !text.is_empty() {
            line(label, text);
        }
    }
}

fn csv(record: &Record, out: &mut Vec<u8>) {
    let Record { session_start, pid, line, vxid, severity, sqlstate, .. } = record;
    put(out, format_args!("{},", time(record.time_ms, true)));
    let is_known = record.user != "[unknown]";
    for name in [record.user, record.database] {
        if is_known {
            quoted(name, out);
        }
        out.push(b',');
    }
    put(
        out,
        format_args!(
            "{pid},\"10.0.0.{}:{}\",{session_start:x}.{pid:x},{line},",
            pid % 200,
            record.port
        ),
    );
    quoted(record.tag, out);
    let start = time(session_start * 1000, false);
    put(out, format_args!(",{start},4/{vxid},0,{severity},{sqlstate},"));
    quoted(&record.message, out);
    out.push(b',');
    if !record.detail.is_empty() {
        quoted(&record.detail, out);
    }
    out.extend_from_slice(b",,,,,");
    if !record.statement.is_empty() {
        quoted(&record.statement, out);
    }
    out.extend_from_slice(b",,,");
    quoted(if is_known { "web" } else { "" }, out);
    out.push(b',');
    quoted(if is_known { "client backend" } else { "not initialized" }, out);
    out.extend_from_slice(b",,0\n");
}

fn quoted(text: &str, out: &mut Vec<u8>) {
    out.push(b'"');
    for byte in text.bytes() {
        if byte == b'"' {
            out.push(b'"');
        }
        out.push(byte);
    }
    out.push(b'"');
}

fn json(record: &Record, out: &mut Vec<u8>) {
    let Record { session_start, pid, line, vxid, severity, sqlstate, .. } = record;
    put(out, format_args!("{{\"timestamp\":\"{}\",", time(record.time_ms, true)));
    let is_known = record.user != "[unknown]";
    if is_known {
        put(out, format_args!("\"user\":\"{}\",\"dbname\":\"{}\",", record.user, record.database));
    }
    put(
        out,
        format_args!(
            "\"pid\":{pid},\"remote_host\":\"10.0.0.{}\",\"remote_port\":{},",
            pid % 200,
            record.port
        ),
    );
    put(
        out,
        format_args!(
            "\"session_id\":\"{session_start:x}.{pid:x}\",\"line_num\":{line},\"ps\":\"{}\",",
            record.tag
        ),
    );
    let start = time(session_start * 1000, false);
    put(out, format_args!("\"session_start\":\"{start}\",\"vxid\":\"4/{vxid}\",\"txid\":0,"));
    put(out, format_args!("\"error_severity\":\"{severity}\","));
    if *sqlstate != "00000" {
        put(out, format_args!("\"state_code\":\"{sqlstate}\","));
    }
    for (key, text) in
        [("message", &record.message), ("detail", &record.detail), ("statement", &record.statement)]
    {
        if !text.is_empty() {
            put(out, format_args!("\"{key}\":\""));
            escaped(text, out);
            out.extend_from_slice(b"\",");
        }
    }
    if is_known {
        out.extend_from_slice(b"\"application_name\":\"web\",\"backend_type\":\"client backend\",");
    } else {
        out.extend_from_slice(b"\"backend_type\":\"not initialized\",");
    }
    out.extend_from_slice(b"\"query_id\":0}\n");
}

fn escaped(text: &str, out: &mut Vec<u8>) {
    for byte in text.bytes() {
        match byte {
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\t' => out.extend_from_slice(b"\\t"),
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
            _ => out.push(byte),
        }
    }
}

fn put(out: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    // A vector takes everything.
    let _ = out.write_fmt(text);
}

/// `2026-03-01 10:00:00.123 UTC`. All runs fit into one month.
fn time(ms: u64, with_ms: bool) -> String {
    const MARCH_S: u64 = 1_772_323_200;
    let seconds = ms / 1000 - MARCH_S;
    let (day, hour) = (seconds / 86_400 + 1, seconds / 3600 % 24);
    let (minute, second) = (seconds / 60 % 60, seconds % 60);
    match with_ms {
        true => format!("2026-03-{day:02} {hour:02}:{minute:02}:{second:02}.{:03} UTC", ms % 1000),
        false => format!("2026-03-{day:02} {hour:02}:{minute:02}:{second:02} UTC"),
    }
}
