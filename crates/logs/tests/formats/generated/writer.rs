//! Writes records like the server, byte for byte, in its three formats.
//!
//! Source: `log_status_format` and `send_message_to_server_log` in `elog.c`, `write_csvlog` in
//! `csvlog.c`, `write_jsonlog` in `jsonlog.c`, `escape_json` in `json.c`.

use super::plan::{Escape, PlannedPrefixItem, SessionPlan};

/// One server message.
#[derive(Clone, Debug)]
pub(super) struct ServerRecord {
    /// Milliseconds since the Unix epoch.
    pub(super) millis: i64,
    pub(super) severity: &'static str,
    pub(super) tag: &'static str,
    /// Number of the transaction; 0 for none.
    pub(super) transaction: u32,
    pub(super) query_id: i64,
    pub(super) sqlstate: &'static str,
    pub(super) message: Vec<u8>,
    pub(super) detail: Option<Vec<u8>>,
    pub(super) hint: Option<Vec<u8>>,
    pub(super) context: Option<Vec<u8>>,
    pub(super) statement: Option<Vec<u8>>,
    /// Position of the error in the statement.
    pub(super) position: Option<u32>,
    pub(super) application: Vec<u8>,
    /// The session's names are known to the server.
    pub(super) is_authorized: bool,
}

impl ServerRecord {
    pub(super) fn log(message: impl Into<Vec<u8>>) -> Self {
        Self {
            millis: 0,
            severity: "LOG",
            tag: "idle",
            transaction: 0,
            query_id: 0,
            sqlstate: "00000",
            message: message.into(),
            detail: None,
            hint: None,
            context: None,
            statement: None,
            position: None,
            application: Vec::new(),
            is_authorized: true,
        }
    }
}

/// The process that writes a record, and its number of lines so far.
pub(super) struct RecordWriter<'a> {
    /// `None` for a process without a client.
    pub(super) session: Option<&'a SessionPlan>,
    /// Lines so far in the stderr format, messages in the others.
    pub(super) lines: &'a mut u64,
}

impl RecordWriter<'_> {
    fn pid(&self) -> u32 {
        self.session.map_or(BACKGROUND_PID, |session| session.pid)
    }

    fn start(&self) -> i64 {
        self.session.map_or(BACKGROUND_START, |session| session.start)
    }

    fn id(&self) -> String {
        format!("{:x}.{:x}", self.start(), self.pid())
    }

    fn vxid(&self, record: &ServerRecord) -> String {
        self.session.map_or(String::new(), |session| session.vxid(record.transaction))
    }

    fn kind(&self) -> &'static str {
        if self.session.is_some() { "client backend" } else { "checkpointer" }
    }

    /// Writes a record in the stderr format.
    pub(super) fn stderr(
        &mut self,
        prefix: &[PlannedPrefixItem],
        verbose: bool,
        record: &ServerRecord,
        out: &mut Vec<u8>,
    ) {
        self.prefix(prefix, record, out);
        out.extend_from_slice(format!("{}:  ", record.severity).as_bytes());
        if verbose {
            out.extend_from_slice(format!("{}: ", record.sqlstate).as_bytes());
        }
        with_tabs(&record.message, out);
        if let Some(position) = record.position {
            out.extend_from_slice(format!(" at character {position}").as_bytes());
        }
        out.push(b'\n');
        let location =
            verbose.then(|| format!("{}, postgres.c:1079", function(record)).into_bytes());
        for (label, text) in [
            ("DETAIL", &record.detail),
            ("HINT", &record.hint),
            ("CONTEXT", &record.context),
            ("LOCATION", &location),
            ("STATEMENT", &record.statement),
        ] {
            if let Some(text) = text {
                self.prefix(prefix, record, out);
                out.extend_from_slice(format!("{label}:  ").as_bytes());
                with_tabs(text, out);
                out.push(b'\n');
            }
        }
    }

    fn prefix(&mut self, prefix: &[PlannedPrefixItem], record: &ServerRecord, out: &mut Vec<u8>) {
        *self.lines += 1;
        for item in prefix {
            match item {
                PlannedPrefixItem::Literal(text) => {
                    out.extend_from_slice(text.replace("%%", "%").as_bytes());
                }
                PlannedPrefixItem::Quit if self.session.is_none() => return,
                PlannedPrefixItem::Quit => {}
                PlannedPrefixItem::Field(escape, width) => {
                    let value = self.field(*escape, record);
                    let missing = (width.unsigned_abs() as usize).saturating_sub(value.len());
                    let spaces = vec![b' '; missing];
                    let (before, after) =
                        if *width < 0 { (&[][..], &spaces[..]) } else { (&spaces[..], &[][..]) };
                    out.extend([before, &value, after].concat());
                }
            }
        }
    }

    fn field(&self, escape: Escape, record: &ServerRecord) -> Vec<u8> {
        let of_session =
            |value: &dyn Fn(&SessionPlan) -> Vec<u8>| self.session.map_or(Vec::new(), value);
        let named = |name: &[u8]| {
            if record.is_authorized && !name.is_empty() {
                name.to_vec()
            } else {
                b"[unknown]".to_vec()
            }
        };
        match escape {
            Escape::Application => of_session(&|_| {
                if record.application.is_empty() {
                    b"[unknown]".to_vec()
                } else {
                    record.application.clone()
                }
            }),
            Escape::User => of_session(&|session| named(&session.user)),
            Escape::Database => of_session(&|session| named(&session.database)),
            Escape::Remote => of_session(&|session| session.remote.prefixed()),
            Escape::Host => of_session(&|session| session.remote.host().into()),
            Escape::LocalAddress => match self.session {
                Some(session) => session.remote.host().into(),
                None => b"[none]".to_vec(),
            },
            Escape::BackendType => self.kind().into(),
            Escape::Pid => self.pid().to_string().into(),
            Escape::Leader => Vec::new(),
            Escape::Seconds => stamp(record.millis, false).into(),
            Escape::Millis => stamp(record.millis, true).into(),
            Escape::Epoch => format!("{}.{:03}", record.millis / 1000, record.millis % 1000).into(),
            Escape::Tag => of_session(&|_| record.tag.into()),
            Escape::SqlState => record.sqlstate.into(),
            Escape::SessionId => self.id().into(),
            Escape::Line => self.lines.to_string().into(),
            Escape::Start => stamp(self.start() * 1000, false).into(),
            Escape::Vxid => self.vxid(record).into(),
            Escape::Txid => b"0".to_vec(),
            Escape::QueryId => record.query_id.to_string().into(),
        }
    }

    /// Writes a row of csvlog.
    pub(super) fn csv(&mut self, verbose: bool, record: &ServerRecord, out: &mut Vec<u8>) {
        *self.lines += 1;
        let session = self.session;
        let named = |name: Option<&Vec<u8>>| name.filter(|_| record.is_authorized).cloned();
        let quoted = |text: Option<Vec<u8>>| text.map_or(Vec::new(), |text| literal(&text));
        let plain = |text: String| text.into_bytes();
        let location =
            verbose.then(|| format!("{}, postgres.c:1079", function(record)).into_bytes());
        let position = record.position.map_or(Vec::new(), |position| position.to_string().into());
        let columns = [
            plain(stamp(record.millis, true)),
            quoted(named(session.map(|session| &session.user))),
            quoted(named(session.map(|session| &session.database))),
            plain(self.pid().to_string()),
            quoted(session.map(|session| session.remote.joined())),
            plain(self.id()),
            plain(self.lines.to_string()),
            quoted(session.map(|_| record.tag.into())),
            plain(stamp(self.start() * 1000, false)),
            plain(self.vxid(record)),
            b"0".to_vec(),
            plain(record.severity.to_owned()),
            plain(record.sqlstate.to_owned()),
            quoted(Some(record.message.clone())),
            quoted(record.detail.clone()),
            quoted(record.hint.clone()),
            Vec::new(),
            Vec::new(),
            quoted(record.context.clone()),
            quoted(record.statement.clone()),
            position,
            quoted(location),
            quoted(Some(record.application.clone())),
            quoted(Some(self.kind().into())),
            Vec::new(),
            plain(record.query_id.to_string()),
        ];
        out.extend(columns.join(&b','));
        out.push(b'\n');
    }

    /// Writes an object of jsonlog.
    pub(super) fn json(&mut self, verbose: bool, record: &ServerRecord, out: &mut Vec<u8>) {
        *self.lines += 1;
        let session = self.session;
        let named = |name: Option<&Vec<u8>>| name.filter(|_| record.is_authorized).cloned();
        let bytes = |text: &str| Some(text.as_bytes().to_vec());
        let optional = |text: String| Some(text.into_bytes()).filter(|text| !text.is_empty());
        let location = verbose.then(|| function(record));
        let keys: [(&str, Option<Vec<u8>>, bool); 21] = [
            ("timestamp", optional(stamp(record.millis, true)), true),
            ("user", named(session.map(|session| &session.user)), true),
            ("dbname", named(session.map(|session| &session.database)), true),
            ("pid", optional(self.pid().to_string()), false),
            ("remote_host", session.and_then(|session| bytes(session.remote.host())), true),
            ("remote_port", session.and_then(|session| session.remote.port()), false),
            ("session_id", optional(self.id()), true),
            ("line_num", optional(self.lines.to_string()), false),
            ("ps", session.and_then(|_| bytes(record.tag)), true),
            ("session_start", optional(stamp(self.start() * 1000, false)), true),
            ("vxid", optional(self.vxid(record)), true),
            ("txid", bytes("0"), false),
            ("error_severity", bytes(record.severity), true),
            ("state_code", bytes(record.sqlstate).filter(|_| record.severity != "LOG"), true),
            ("message", Some(record.message.clone()), true),
            ("detail", record.detail.clone(), true),
            ("hint", record.hint.clone(), true),
            ("context", record.context.clone(), true),
            ("statement", record.statement.clone(), true),
            ("func_name", location.and_then(bytes), true),
            ("application_name", Some(record.application.clone()).filter(|a| !a.is_empty()), true),
        ];
        out.push(b'{');
        for (number, (key, value, is_text)) in keys.into_iter().enumerate() {
            let Some(value) = value else { continue };
            if number > 0 {
                out.push(b',');
            }
            out.extend(format!("\"{key}\":").bytes());
            out.extend(if is_text { escaped(&value) } else { value });
        }
        let (kind, query_id) = (self.kind(), record.query_id);
        out.extend(format!(",\"backend_type\":\"{kind}\",\"query_id\":{query_id}}}\n").bytes());
    }
}

const BACKGROUND_PID: u32 = 1;
const BACKGROUND_START: i64 = 1_795_000_000;

fn function(record: &ServerRecord) -> &'static str {
    match record.tag {
        "PARSE" => "exec_parse_message",
        "BIND" => "exec_bind_message",
        _ => "exec_simple_query",
    }
}

fn with_tabs(text: &[u8], out: &mut Vec<u8>) {
    for byte in text {
        out.push(*byte);
        if *byte == b'\n' {
            out.push(b'\t');
        }
    }
}

fn literal(text: &[u8]) -> Vec<u8> {
    let mut quoted = vec![b'"'];
    for byte in text {
        if *byte == b'"' {
            quoted.push(b'"');
        }
        quoted.push(*byte);
    }
    quoted.push(b'"');
    quoted
}

fn escaped(text: &[u8]) -> Vec<u8> {
    let mut quoted = vec![b'"'];
    for byte in text {
        match byte {
            0x08 => quoted.extend_from_slice(b"\\b"),
            0x0c => quoted.extend_from_slice(b"\\f"),
            b'\n' => quoted.extend_from_slice(b"\\n"),
            b'\r' => quoted.extend_from_slice(b"\\r"),
            b'\t' => quoted.extend_from_slice(b"\\t"),
            b'"' => quoted.extend_from_slice(b"\\\""),
            b'\\' => quoted.extend_from_slice(b"\\\\"),
            0..=0x1f => quoted.extend(format!("\\u{byte:04x}").bytes()),
            _ => quoted.push(*byte),
        }
    }
    quoted.push(b'"');
    quoted
}

/// `2026-11-20 12:00:00.000 UTC`, for times of that month.
fn stamp(millis: i64, with_fraction: bool) -> String {
    let (seconds, fraction) = (millis.div_euclid(1000), millis.rem_euclid(1000));
    let since = seconds - MONTH_START;
    let (day, second) = (since.div_euclid(86_400) + 1, since.rem_euclid(86_400));
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let fraction = if with_fraction { format!(".{fraction:03}") } else { String::new() };
    format!("2026-11-{day:02} {hour:02}:{minute:02}:{second:02}{fraction} UTC")
}

/// 2026-11-01 00:00:00 UTC.
const MONTH_START: i64 = 1_793_491_200;
