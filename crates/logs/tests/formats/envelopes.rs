//! Puts the fixtures into the envelopes of services, so that the result can be compared with the
//! plain fixture.
//!
//! The doc comment of each function names the service and the source of its format.

use std::fmt::Write as _;

/// The lines of a text, without newlines.
pub(crate) fn lines(log: &[u8]) -> Vec<&[u8]> {
    log.strip_suffix(b"\n").unwrap_or(log).split(|byte| *byte == b'\n').collect()
}

/// The entries of a log: each line with its continuation lines.
fn entries(log: &[u8]) -> Vec<String> {
    let mut entries: Vec<String> = Vec::new();
    for line in lines(log) {
        let line = String::from_utf8_lossy(line);
        match entries.last_mut() {
            Some(last) if line.starts_with('\t') => *last += &format!("\n{line}"),
            _ => entries.push(line.into_owned()),
        }
    }
    entries
}

pub(crate) fn json_text(text: &str) -> String {
    let mut json = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => json.extend(['\\', c]),
            '\n' => json += "\\n",
            '\t' => json += "\\t",
            c if c < ' ' => write!(json, "\\u{:04x}", u32::from(c)).expect("a string"),
            c => json.push(c),
        }
    }
    json + "\""
}

/// Log files of containerd: Kubernetes, `kubelet-cri-logging.md`. Lines are cut after `part` bytes.
pub(crate) fn cri(log: &[u8], part: usize) -> Vec<u8> {
    let mut out = Vec::new();
    for line in lines(log) {
        let mut rest = line;
        loop {
            let (now, later) = rest.split_at(rest.len().min(part));
            let tag = if later.is_empty() { "F" } else { "P" };
            out.extend(format!("2026-11-20T12:43:19.577123456Z stderr {tag} ").bytes());
            out.extend_from_slice(now);
            out.push(b'\n');
            rest = later;
            if rest.is_empty() {
                break;
            }
        }
    }
    out
}

/// Docker's json-file driver.
pub(crate) fn docker(log: &[u8]) -> Vec<u8> {
    let line = |line: &&[u8]| {
        let text = json_text(&(String::from_utf8_lossy(line) + "\n"));
        format!("{{\"log\":{text},\"stream\":\"stderr\",\"time\":\"2026-11-20T12:43:19.577Z\"}}\n")
    };
    lines(log).iter().map(line).collect::<String>().into_bytes()
}

/// `kubectl logs --timestamps`.
pub(crate) fn timestamps(log: &[u8]) -> Vec<u8> {
    let stamped = |line: &&[u8]| [b"2026-11-20T12:43:19.577123456Z ", *line, b"\n"].concat();
    lines(log).iter().flat_map(stamped).collect()
}

/// Entries of Cloud SQL as Google Cloud Logging exports them to a bucket: one per line.
pub(crate) fn cloud_sql(log: &[u8]) -> Vec<u8> {
    let entry = |(number, text): (usize, String)| {
        format!(
            "{{\"insertId\":\"{number}\",\"logName\":\"projects/p/logs/cloudsql.googleapis.com%2Fpostgres.log\",\
             \"receiveTimestamp\":\"2026-11-20T13:00:00Z\",\"resource\":{{\"labels\":{{\"database_id\":\"p:db\"}},\
             \"type\":\"cloudsql_database\"}},\"severity\":\"INFO\",\"textPayload\":{},\
             \"timestamp\":\"2026-11-20T12:43:{:02}.5Z\"}}\n",
            json_text(&text),
            number.min(59),
        )
    };
    entries(log).into_iter().enumerate().map(entry).collect::<String>().into_bytes()
}

/// The same in the form of `gcloud logging read --order=asc --format=json`: one array, over many
/// lines.
pub(crate) fn cloud_sql_array(log: &[u8]) -> Vec<u8> {
    let text = String::from_utf8(cloud_sql(log)).expect("text");
    let objects: Vec<_> = text.lines().map(|line| line.replacen("{\"", "  {\n    \"", 1)).collect();
    format!("[\n{}\n]\n", objects.join(",\n")).into_bytes()
}

/// `aws logs filter-log-events` over the log group of an RDS instance.
pub(crate) fn cloudwatch(log: &[u8]) -> Vec<u8> {
    let event = |text: String| {
        format!(
            "        {{\n            \"logStreamName\": \"db.0\",\n            \"timestamp\": 1795178599577,\n\
             \x20           \"message\": {},\n            \"ingestionTime\": 1795178600000,\n\
             \x20           \"eventId\": \"1\"\n        }}",
            json_text(&text)
        )
    };
    let events: Vec<_> = entries(log).into_iter().map(event).collect();
    let events = events.join(",\n");
    format!("{{\n    \"events\": [\n{events}\n    ],\n    \"searchedLogStreams\": []\n}}\n")
        .into_bytes()
}

/// CloudNativePG's instance manager: `record` has csvlog's columns by name, all of them strings.
pub(crate) fn cloud_native_pg(csv: &[u8]) -> Vec<u8> {
    const COLUMNS: [&str; 26] = [
        "log_time",
        "user_name",
        "database_name",
        "process_id",
        "connection_from",
        "session_id",
        "session_line_num",
        "command_tag",
        "session_start_time",
        "virtual_transaction_id",
        "transaction_id",
        "error_severity",
        "sql_state_code",
        "message",
        "detail",
        "hint",
        "internal_query",
        "internal_query_pos",
        "context",
        "query",
        "query_pos",
        "location",
        "application_name",
        "backend_type",
        "leader_pid",
        "query_id",
    ];
    let mut out = String::from(
        "{\"level\":\"info\",\"ts\":\"2026-11-20T12:43:19Z\",\"logger\":\"instance-manager\",\"msg\":\"starting\"}\n",
    );
    for row in rows(csv) {
        let members: Vec<_> = COLUMNS
            .iter()
            .zip(row)
            .filter(|(_, value)| !value.is_empty())
            .map(|(name, value)| format!("\"{name}\":{}", json_text(&value)))
            .collect();
        writeln!(
            out,
            "{{\"level\":\"info\",\"ts\":\"2026-11-20T12:43:19.577Z\",\"logger\":\"postgres\",\
             \"msg\":\"record\",\"logging_pod\":\"cluster-1\",\"record\":{{{}}}}}",
            members.join(",")
        )
        .expect("a string");
    }
    out.into_bytes()
}

/// The form in which a tool writes a csvlog again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CsvStyle {
    pub(crate) delimiter: char,
    /// Whether every column is quoted, or only those that need it.
    pub(crate) quotes_all: bool,
    pub(crate) line_end: &'static str,
    /// The text before the rows: a byte-order mark, a header.
    pub(crate) head: &'static str,
    /// The zone after times, which the server writes as ` UTC`.
    pub(crate) zone: &'static str,
}

/// A csvlog as spreadsheets and data warehouses export it: RFC 4180, and `COPY` with `HEADER` and
/// `FORCE_QUOTE`.
pub(crate) fn csv_export(csv: &[u8], style: CsvStyle) -> Vec<u8> {
    let mut out = style.head.to_owned();
    for row in rows(csv) {
        let column = |(number, text): (usize, String)| {
            let text = if number == 0 { text.replace(" UTC", style.zone) } else { text };
            let is_needed = text.contains(['"', '\n', '\r', style.delimiter]);
            if style.quotes_all || is_needed {
                format!("\"{}\"", text.replace('"', "\"\""))
            } else {
                text
            }
        };
        let columns: Vec<_> = row.into_iter().enumerate().map(column).collect();
        out += &columns.join(&style.delimiter.to_string());
        out += style.line_end;
    }
    out.into_bytes()
}

/// The rows of a csvlog, with their columns.
pub(crate) fn rows(csv: &[u8]) -> Vec<Vec<String>> {
    let text = String::from_utf8_lossy(csv);
    let (mut rows, mut row, mut field) = (Vec::new(), Vec::new(), String::new());
    let mut quoted = false;
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '"' if quoted && chars.peek() == Some(&'"') => {
                chars.next();
                field.push('"');
            }
            '"' => quoted = !quoted,
            ',' if !quoted => row.push(std::mem::take(&mut field)),
            '\n' if !quoted => {
                row.push(std::mem::take(&mut field));
                rows.push(std::mem::take(&mut row));
            }
            c => field.push(c),
        }
    }
    rows
}

/// The fragments that the server sends to syslog for one message: `write_syslog` in `elog.c`.
pub(crate) fn fragments(message: &[u8], number: usize) -> Vec<Vec<u8>> {
    const LIMIT: usize = 900;
    let mut fragments = Vec::new();
    let mut line = message;
    while !line.is_empty() {
        if line[0] == b'\n' {
            line = &line[1..];
            continue;
        }
        let newline = line.iter().position(|byte| *byte == b'\n').unwrap_or(line.len());
        let mut len = newline.min(LIMIT);
        // `pg_mbcliplen`: no character is cut.
        while len < line.len() && (line[len] & 0xc0) == 0x80 {
            len -= 1;
        }
        if line.get(len).is_some_and(|byte| !byte.is_ascii_whitespace())
            && let Some(space) = line[..len].iter().rposition(u8::is_ascii_whitespace)
            && space > 0
        {
            len = space;
        }
        let head = format!("[{number}-{}] ", fragments.len() + 1);
        fragments.push([head.as_bytes(), &line[..len]].concat());
        line = &line[len..];
    }
    fragments
}

/// Escapes control characters like rsyslog.
pub(crate) fn escaped(text: &[u8]) -> Vec<u8> {
    let escape = |byte: &u8| match byte {
        0..0x20 | 0x7f => format!("#{byte:03o}").into_bytes(),
        byte => vec![*byte],
    };
    text.iter().flat_map(escape).collect()
}

/// The messages of a stderr log: each with its further lines, as the server writes them in one go.
pub(crate) fn messages(log: &[u8]) -> Vec<Vec<u8>> {
    const FURTHER: [&str; 7] = [
        "DETAIL:  ",
        "HINT:  ",
        "QUERY:  ",
        "CONTEXT:  ",
        "LOCATION:  ",
        "BACKTRACE:  ",
        "STATEMENT:  ",
    ];
    let mut messages: Vec<Vec<u8>> = Vec::new();
    for entry in entries(log) {
        let label = entry.find(":  ").unwrap_or_default();
        let start = entry[..label].rfind(|c: char| !c.is_ascii_uppercase()).map_or(0, |at| at + 1);
        let is_further = FURTHER.iter().any(|word| entry[start..].starts_with(word));
        match messages.last_mut() {
            Some(last) if is_further => last.extend(format!("{entry}\n").bytes()),
            _ => messages.push(format!("{entry}\n").into_bytes()),
        }
    }
    messages
}
