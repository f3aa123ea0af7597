//! Writes records in each of the server's three formats.

use std::io::Write as _;

use crate::{GeneratedFormat, workload::GeneratedRecord};

/// Appends a record to `out`.
pub(crate) fn write_record(format: GeneratedFormat, record: &GeneratedRecord, out: &mut Vec<u8>) {
    match format {
        GeneratedFormat::Stderr => stderr(record, out),
        GeneratedFormat::Csv => csv(record, out),
        GeneratedFormat::Json => json(record, out),
    }
}

fn stderr(record: &GeneratedRecord, out: &mut Vec<u8>) {
    let mut line = |label: &str, text: &str| {
        let GeneratedRecord { user, database, session_start, pid, .. } = record;
        let time = time(record.time_ms, true);
        write(out, format_args!("{time}|{user}|{database}|{session_start:x}.{pid:x}|{label}:  "));
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

fn csv(record: &GeneratedRecord, out: &mut Vec<u8>) {
    let GeneratedRecord { session_start, pid, line, vxid, severity, sqlstate, .. } = record;
    write(out, format_args!("{},", time(record.time_ms, true)));
    let is_known = record.user != "[unknown]";
    for name in [record.user, record.database] {
        if is_known {
            quoted(name, out);
        }
        out.push(b',');
    }
    write(
        out,
        format_args!(
            "{pid},\"10.0.0.{}:{}\",{session_start:x}.{pid:x},{line},",
            pid % 200,
            record.port
        ),
    );
    quoted(record.tag, out);
    let start = time(session_start * 1000, false);
    write(out, format_args!(",{start},4/{vxid},0,{severity},{sqlstate},"));
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

fn json(record: &GeneratedRecord, out: &mut Vec<u8>) {
    let GeneratedRecord { session_start, pid, line, vxid, severity, sqlstate, .. } = record;
    write(out, format_args!("{{\"timestamp\":\"{}\",", time(record.time_ms, true)));
    let is_known = record.user != "[unknown]";
    if is_known {
        write(
            out,
            format_args!("\"user\":\"{}\",\"dbname\":\"{}\",", record.user, record.database),
        );
    }
    write(
        out,
        format_args!(
            "\"pid\":{pid},\"remote_host\":\"10.0.0.{}\",\"remote_port\":{},",
            pid % 200,
            record.port
        ),
    );
    write(
        out,
        format_args!(
            "\"session_id\":\"{session_start:x}.{pid:x}\",\"line_num\":{line},\"ps\":\"{}\",",
            record.tag
        ),
    );
    let start = time(session_start * 1000, false);
    write(out, format_args!("\"session_start\":\"{start}\",\"vxid\":\"4/{vxid}\",\"txid\":0,"));
    write(out, format_args!("\"error_severity\":\"{severity}\","));
    if *sqlstate != "00000" {
        write(out, format_args!("\"state_code\":\"{sqlstate}\","));
    }
    for (key, text) in
        [("message", &record.message), ("detail", &record.detail), ("statement", &record.statement)]
    {
        if !text.is_empty() {
            write(out, format_args!("\"{key}\":\""));
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

fn write(out: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    // Writing to a vector cannot fail.
    let _ = out.write_fmt(text);
}

/// Formats a time like `2026-03-01 10:00:00.123 UTC`. All runs fit into one month.
fn time(ms: u64, with_ms: bool) -> String {
    const MARCH_S: u64 = 1_772_323_200;
    let seconds = ms / 1000 - MARCH_S;
    let (day, hour) = (seconds / 86_400 + 1, seconds / 3600 % 24);
    let (minute, second) = (seconds / 60 % 60, seconds % 60);
    if with_ms {
        format!("2026-03-{day:02} {hour:02}:{minute:02}:{second:02}.{:03} UTC", ms % 1000)
    } else {
        format!("2026-03-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
    }
}
