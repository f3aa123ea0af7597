//! A plain reader of well-formed logs, with which the tests compare the product's parsers.
//!
//! It reads one byte or line after another and copies every field. It knows nothing of damaged
//! logs, chunks, or prefixes that are ambiguous.

use std::collections::BTreeMap;

/// The fields of a record that are not empty, in the form of [`super::describe`].
pub(super) type PlainRecord = BTreeMap<&'static str, String>;

/// The names of csvlog columns, of which the empty ones are not read.
const COLUMNS: [&str; 26] = [
    "time",
    "user",
    "database",
    "pid",
    "remote",
    "session_id",
    "line",
    "tag",
    "",
    "vxid",
    "",
    "severity",
    "sqlstate",
    "message",
    "detail",
    "",
    "",
    "",
    "context",
    "statement",
    "",
    "location",
    "application",
    "backend_type",
    "leader",
    "query_id",
];

/// The names of jsonlog keys, in the order of [`JSON_NAMES`].
const JSON_KEYS: [&str; 18] = [
    "timestamp",
    "user",
    "dbname",
    "pid",
    "remote_host",
    "session_id",
    "line_num",
    "ps",
    "vxid",
    "error_severity",
    "state_code",
    "message",
    "detail",
    "context",
    "statement",
    "func_name",
    "application_name",
    "backend_type",
];
const JSON_NAMES: [&str; 18] = [
    "time",
    "user",
    "database",
    "pid",
    "remote",
    "session_id",
    "line",
    "tag",
    "vxid",
    "severity",
    "sqlstate",
    "message",
    "detail",
    "context",
    "statement",
    "function",
    "application",
    "backend_type",
];

/// Returns the rows of a csvlog, each with its source.
pub(super) fn csv(log: &str) -> Vec<(&str, PlainRecord)> {
    let mut rows = Vec::new();
    let mut rest = log;
    while !rest.is_empty() {
        let (mut columns, mut column, mut in_quotes) = (Vec::new(), String::new(), false);
        let mut chars = rest.char_indices().peekable();
        let mut end = rest.len();
        while let Some((at, char)) = chars.next() {
            match char {
                '"' if in_quotes && chars.next_if(|(_, next)| *next == '"').is_some() => {
                    column.push('"');
                }
                '"' => in_quotes = !in_quotes,
                ',' if !in_quotes => columns.push(std::mem::take(&mut column)),
                '\n' if !in_quotes => {
                    end = at + 1;
                    break;
                }
                _ => column.push(char),
            }
        }
        columns.push(column);
        let named = COLUMNS.into_iter().zip(columns);
        rows.push((&rest[..end], normalize(named.collect())));
        rest = &rest[end..];
    }
    rows
}

/// Returns the objects of a jsonlog, each with its source.
pub(super) fn json(log: &str) -> Vec<(&str, PlainRecord)> {
    let lines = log.split_inclusive('\n').map(|line| {
        let object: BTreeMap<String, serde_json::Value> =
            serde_json::from_str(line).expect("an object");
        let text = |key: &str| match object.get(key)? {
            serde_json::Value::String(text) => Some(text.clone()),
            other => Some(other.to_string()),
        };
        let named = JSON_NAMES.into_iter().zip(JSON_KEYS);
        let more = [("leader", "leader_pid"), ("query_id", "query_id")];
        let fields = named.chain(more).filter_map(|(name, key)| Some((name, text(key)?)));
        (line, normalize(fields.collect()))
    });
    lines.collect()
}

/// The prefix of a stderr log.
pub(super) enum PlainPrefix {
    /// Fields with the text after each; background processes have only those before `quit`. The
    /// values of padded fields are between spaces.
    Separated { fields: Vec<(&'static str, &'static str)>, quit: usize, is_padded: bool },
    /// The prefix of the fixtures with `log_error_verbosity = verbose`, [`VERBOSE`].
    Verbose,
}

/// A prefix with all escapes, some of which are padded.
pub(super) const VERBOSE: &str = "%n %-12u %8p %l %e %i %s %v %x %r %h %b %P %Q %% |%c| ";

impl PlainPrefix {
    /// Splits the fields from the front of a line.
    fn split<'a>(&self, line: &'a str) -> (PlainRecord, &'a str) {
        let (prefix, quit, is_padded) = match self {
            Self::Verbose => return split_verbose(line),
            Self::Separated { fields, quit, is_padded } => (fields, *quit, *is_padded),
        };
        let (mut fields, mut tail) = (PlainRecord::new(), line);
        for (number, (name, separator)) in prefix.iter().enumerate() {
            if number == quit && label(tail).is_some() {
                break;
            }
            // An application's name may contain the separator, so a label must follow the last one.
            let is_last = number + 1 == prefix.len();
            let mut ends = tail.match_indices(separator).map(|(at, _)| at);
            let end = ends.find(|at| !is_last || label(&tail[at + separator.len()..]).is_some());
            let (field, after) = tail.split_at(end.expect("the prefix"));
            let field = if is_padded { field.trim_matches(' ') } else { field };
            fields.insert(name, field.to_owned());
            tail = &after[separator.len()..];
        }
        (fields, tail)
    }
}

/// Splits a line with the prefix [`VERBOSE`].
fn split_verbose(line: &str) -> (PlainRecord, &str) {
    let (head, tail) = line.split_once(" % |").expect("the prefix");
    let (session_id, tail) = tail.split_once("| ").expect("a session id");
    let (time, rest) = head.split_once(' ').expect("a time");
    // Long names exceed the width.
    let user_end = 12 + rest[12..].find(' ').expect("a user");
    let (user, rest) = (&rest[..user_end], rest[user_end..].trim_start());
    let mut words = rest.splitn(4, ' ');
    let mut next = || words.next().expect("a field");
    let (pid, number, code, rest) = (next(), next(), next(), next());
    // The tag may contain spaces; the start of the session follows it.
    let zone = rest.find(" UTC ").expect("the start of the session");
    let tag = rest[..zone - "2026-11-20 12:43:22".len()].trim_end();
    let mut words = rest[zone + " UTC ".len()..].splitn(5, ' ');
    let mut next = || words.next().expect("a field");
    let (vxid, _, remote, _, rest) = (next(), next(), next(), next(), next());
    let mut words = rest.rsplitn(3, ' ');
    let mut next = || words.next().expect("a field");
    let (query_id, _, backend_type) = (next(), next(), next());
    let millis: i64 = time.replace('.', "").parse().expect("a time");
    let time = jiff::Timestamp::from_millisecond(millis).expect("a time").to_string();
    let fields = [
        ("time", time.as_str()),
        ("user", user.trim_end()),
        ("pid", pid),
        ("line", number),
        ("sqlstate", code),
        ("tag", tag),
        ("vxid", vxid),
        ("remote", remote),
        ("backend_type", backend_type),
        ("query_id", query_id),
        ("session_id", session_id),
    ];
    (fields.map(|(name, text)| (name, text.to_owned())).into(), tail)
}

/// Returns the records of a stderr log, each with its source.
pub(super) fn stderr<'a>(log: &'a str, prefix: &PlainPrefix) -> Vec<(&'a str, PlainRecord)> {
    let mut records: Vec<(usize, PlainRecord)> = Vec::new();
    let mut start = 0;
    let mut rest = log;
    while !rest.is_empty() {
        let newline = rest.match_indices('\n').find(|(at, _)| !rest[at + 1..].starts_with('\t'));
        let (line, after) = rest.split_at(newline.map_or(rest.len(), |(at, _)| at + 1));
        let (mut fields, tail) = prefix.split(line);
        let (label, text) = label(tail).expect("a label");
        let mut text = text.trim_end_matches('\n').replace("\n\t", "\n");
        let name = match label {
            "DETAIL" => "detail",
            "CONTEXT" => "context",
            "STATEMENT" => "statement",
            "LOCATION" => "function",
            "HINT" | "QUERY" => "",
            severity => {
                fields.insert("severity", severity.to_owned());
                records.push((start, normalize(fields)));
                "message"
            }
        };
        match (name, prefix) {
            // The message of a verbose record begins with its SQLSTATE.
            ("message", PlainPrefix::Verbose) => text.replace_range(..7, ""),
            ("function", _) => text.truncate(text.find(',').expect("a function")),
            _ => {}
        }
        if let Some((_, record)) = records.last_mut()
            && !name.is_empty()
            && !text.is_empty()
        {
            record.insert(name, text);
        }
        start += line.len();
        rest = after;
    }
    let ends = records.iter().skip(1).map(|(start, _)| *start).chain([log.len()]);
    let ends: Vec<_> = ends.collect();
    records.into_iter().zip(ends).map(|((start, record), end)| (&log[start..end], record)).collect()
}

fn label(text: &str) -> Option<(&str, &str)> {
    let (label, text) = text.split_once(":  ")?;
    label.chars().all(|char| char.is_ascii_uppercase()).then_some((label, text))
}

/// Brings fields into the form of [`super::describe`].
fn normalize(mut fields: PlainRecord) -> PlainRecord {
    for name in ["user", "database", "application"] {
        if fields.get(name).is_some_and(|name| name == "[unknown]") {
            fields.remove(name);
        }
    }
    if let Some((start, pid)) = fields.get("session_id").and_then(|id| id.split_once('.')) {
        let hex = |text| i64::from_str_radix(text, 16).expect("hexadecimal digits");
        let (start, pid) = (hex(start).to_string(), hex(pid).to_string());
        fields.insert("session_start", start);
        fields.insert("pid", pid);
    }
    if let Some(location) = fields.remove("location") {
        let function = location.split_once(',').map_or("", |(function, _)| function);
        fields.insert("function", function.to_owned());
    }
    if let Some(time) = fields.get_mut("time") {
        let iso = time.replacen(' ', "T", 1).replace(" UTC", "Z");
        let parsed: jiff::Timestamp = iso.parse().expect("a time");
        *time = parsed.as_microsecond().to_string();
    }
    fields.retain(|name, text| !name.is_empty() && !text.is_empty());
    fields
}
