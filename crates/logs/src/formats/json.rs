//! jsonlog: one object in each line; keys without a value are omitted.
//!
//! The reader accepts bytes that are not UTF-8, because a database may have another encoding. It
//! also reads records that an operator for Kubernetes wraps as `{"record": {…}}`, with the column
//! names of csvlog.
//!
//! Source: manual, Using JSON-Format Log Output; `write_jsonlog` in `jsonlog.c`; `escape_json` in
//! `json.c`.

mod framer;
mod object;

use howdah_log_input::{InputState, LogSeverity};
use howdah_traffic::SqlState;

pub(crate) use self::framer::JsonFramer;
use self::object::ObjectParser;
use super::input_item::InputItem;
use crate::{
    clock::LogClock,
    record::{
        frame::{RecordFrame, SessionFields},
        spans::{
            FieldSpan, function_name, known_name, parse_i64, parse_pid, parse_session_id, parse_u64,
        },
    },
    summary::ProblemReason,
};

/// Reader of jsonlog files.
#[derive(Debug)]
pub(crate) struct Json {
    max_record_bytes: usize,
    /// Number of bytes of the current line that were searched for its end.
    scanned: usize,
    /// Whether the rest of an overlong line is being skipped.
    is_skipping: bool,
    parser: ObjectParser,
    /// The values of the object found by the last step.
    keys: KeySpans,
}

/// The values of an object, indexed by [`JsonLogKey`].
type KeySpans = [FieldSpan; KEYS];

const NO_KEYS: KeySpans = [FieldSpan::ABSENT; KEYS];

macro_rules! keys {
    ($($key:ident: $($name:literal)|+;)*) => {
        /// A key whose value is read.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        enum JsonLogKey { $($key,)* }

        const KEYS: usize = [$(JsonLogKey::$key,)*].len();

        impl JsonLogKey {
            fn from_name(name: &[u8]) -> Option<Self> {
                Some(match name {
                    $($($name)|+ => Self::$key,)*
                    _ => return None,
                })
            }
        }
    };
}

// PostgreSQL's own name comes first, then that of the csvlog column.
keys! {
    Time: b"timestamp" | b"log_time";
    User: b"user" | b"user_name";
    Database: b"dbname" | b"database_name";
    Pid: b"pid" | b"process_id";
    Remote: b"remote_host" | b"connection_from";
    SessionId: b"session_id";
    Line: b"line_num" | b"session_line_num";
    Tag: b"ps" | b"command_tag";
    Vxid: b"vxid" | b"virtual_transaction_id";
    Severity: b"error_severity";
    SqlState: b"state_code" | b"sql_state_code";
    Message: b"message";
    Detail: b"detail";
    Context: b"context";
    Statement: b"statement" | b"query";
    Function: b"func_name";
    Location: b"location";
    Application: b"application_name";
    BackendType: b"backend_type";
    Leader: b"leader_pid";
    QueryId: b"query_id";
}

impl Json {
    pub(crate) fn new(max_record_bytes: usize) -> Self {
        let parser = ObjectParser::default();
        Self { max_record_bytes, scanned: 0, is_skipping: false, parser, keys: NO_KEYS }
    }

    /// Returns a reader with the same settings, for the beginning of another file.
    pub(crate) fn restarted(&self) -> Self {
        Self::new(self.max_record_bytes)
    }

    /// Returns a framer for chunks of the same file.
    pub(crate) fn framer(&self, clock: LogClock) -> JsonFramer {
        JsonFramer::new(self.max_record_bytes, clock)
    }

    pub(crate) fn step(
        &mut self,
        input: &[u8],
        state: InputState,
        scratch: &mut Vec<u8>,
    ) -> InputItem {
        let newline = memchr::memchr(b'\n', &input[self.scanned..]).map(|at| self.scanned + at);
        let Some(newline) = newline else { return self.unfinished(input, state, scratch) };
        let len = newline + 1;
        if self.is_skipping {
            self.is_skipping = false;
            return InputItem::Skip { len };
        }
        if newline > self.max_record_bytes {
            return InputItem::Junk { len, reason: ProblemReason::TooLong };
        }
        match input[..newline].trim_ascii_start() {
            [] => InputItem::Skip { len },
            [b'{', ..] if self.parse(&input[..newline], scratch).is_some() => {
                InputItem::Record { len }
            }
            [b'{', ..] => InputItem::Junk { len, reason: ProblemReason::BadObject },
            _ => InputItem::Junk { len, reason: ProblemReason::NotARecord },
        }
    }

    fn unfinished(&mut self, input: &[u8], state: InputState, scratch: &mut Vec<u8>) -> InputItem {
        self.scanned = input.len();
        let len = input.len();
        if len == 0 {
            return InputItem::More;
        }
        if self.is_skipping {
            return InputItem::Skip { len };
        }
        if len > self.max_record_bytes {
            self.is_skipping = true;
            return InputItem::Junk { len, reason: ProblemReason::TooLong };
        }
        match state {
            InputState::Open | InputState::Idle => InputItem::More,
            InputState::End if self.parse(input, scratch).is_some() => InputItem::Record { len },
            InputState::End => InputItem::Junk { len, reason: ProblemReason::CutShort },
        }
    }

    pub(crate) fn consumed(&mut self, _len: usize) {
        self.scanned = 0;
    }

    /// Finds the values of an object's known keys; `None` if the line is not an object.
    fn parse(&mut self, line: &[u8], scratch: &mut Vec<u8>) -> Option<()> {
        self.parser.start_text(line);
        self.parser.parse(line, (0, line.len()), &mut self.keys, scratch)
    }

    /// Whether a line is an object with the keys that every record has: time and severity.
    pub(crate) fn is_record(&mut self, line: &[u8]) -> bool {
        self.parse(line, &mut Vec::new()).is_some()
            && [JsonLogKey::Time, JsonLogKey::Severity]
                .iter()
                .all(|key| self.keys[*key as usize] != FieldSpan::ABSENT)
    }

    /// Decodes the object found by the last step.
    pub(crate) fn frame(
        &self,
        input: &[u8],
        clock: &mut LogClock,
        scratch: &[u8],
    ) -> Result<(RecordFrame, SessionFields), ProblemReason> {
        let frame = decode_frame(&self.keys, input, clock, scratch)?;
        Ok((frame, session_fields(&self.keys, input, scratch)))
    }
}

/// Decodes a record without its session fields.
#[inline]
fn decode_frame(
    keys: &KeySpans,
    input: &[u8],
    clock: &mut LogClock,
    scratch: &[u8],
) -> Result<RecordFrame, ProblemReason> {
    let span = |key: JsonLogKey| keys[key as usize];
    let text = |key: JsonLogKey| span(key).text(input, scratch);
    let line = parse_u64(text(JsonLogKey::Line));
    let time = span(JsonLogKey::Time).get(input, scratch).ok_or(ProblemReason::BadObject)?;
    let location = span(JsonLogKey::Location);
    Ok(RecordFrame {
        time: clock.read(time).ok_or(ProblemReason::BadTime)?,
        vxid: span(JsonLogKey::Vxid),
        query_id: parse_i64(text(JsonLogKey::QueryId)),
        tag: span(JsonLogKey::Tag),
        lines: line.map(|line| (line, line)),
        severity: LogSeverity::from_keyword(text(JsonLogKey::Severity))
            .ok_or(ProblemReason::BadSeverity)?,
        sqlstate: SqlState::new(text(JsonLogKey::SqlState)),
        message: span(JsonLogKey::Message),
        detail: span(JsonLogKey::Detail),
        context: span(JsonLogKey::Context),
        statement: span(JsonLogKey::Statement).unless_empty(),
        function: match (span(JsonLogKey::Function), location) {
            (FieldSpan::ABSENT, FieldSpan::ABSENT) => FieldSpan::ABSENT,
            (FieldSpan::ABSENT, _) => {
                location.truncated(function_name(location.text(input, scratch)).len())
            }
            (function, _) => function,
        },
        assumption: clock.take_assumption(),
        ..RecordFrame::EMPTY
    })
}

/// Decodes the session fields of an object.
fn session_fields(keys: &KeySpans, input: &[u8], scratch: &[u8]) -> SessionFields {
    let span = |key: JsonLogKey| keys[key as usize];
    let text = |key: JsonLogKey| span(key).text(input, scratch);
    let name = |key: JsonLogKey| known_name(span(key), input, scratch);
    let id = parse_session_id(text(JsonLogKey::SessionId));
    SessionFields {
        session_id: span(JsonLogKey::SessionId),
        session_start: id.map(|(start, _)| start),
        pid: parse_pid(text(JsonLogKey::Pid)).or(id.map(|(_, pid)| pid)),
        remote: span(JsonLogKey::Remote),
        user: name(JsonLogKey::User),
        database: name(JsonLogKey::Database),
        application: name(JsonLogKey::Application),
        backend_type: span(JsonLogKey::BackendType),
        has_leader: !text(JsonLogKey::Leader).is_empty(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(line: &[u8]) -> Option<Vec<u8>> {
        let (mut parser, mut keys, mut scratch) = (ObjectParser::default(), NO_KEYS, Vec::new());
        parser.start_text(line);
        parser.parse(line, (0, line.len()), &mut keys, &mut scratch)?;
        keys[JsonLogKey::Message as usize].get(line, &scratch).map(<[u8]>::to_vec)
    }

    #[test]
    fn escapes_are_decoded() {
        let line = br#"{"message":"a\n\t\"\\\/\u0001\u20ac\ud83d\ude00b"}"#;
        assert_eq!(message(line).as_deref(), Some("a\n\t\"\\/\u{1}€😀b".as_bytes()));
    }

    #[test]
    fn bytes_of_other_encodings_are_accepted() {
        assert_eq!(message(b"{\"message\":\"caf\xe9\"}").as_deref(), Some(&b"caf\xe9"[..]));
    }

    #[test]
    fn invalid_object_is_rejected() {
        for line in [
            &b"{"[..],
            b"{}x",
            b"{\"a\"}",
            b"{\"a\":}",
            b"{\"a\":1,}",
            b"{\"message\":\"x",
            b"{\"a\":\"\\x\"}",
            b"{\"a\":\"\\u12",
            b"[]",
            b"{\"a\":\"\\ud800\\u0041\"}",
        ] {
            assert_eq!(message(line), None, "{}", String::from_utf8_lossy(line));
        }
        let deep = format!("{{\"a\":{}", "[".repeat(100_000));
        assert_eq!(message(deep.as_bytes()), None);
    }

    #[test]
    fn nested_keys_do_not_shadow_top_level_keys() {
        let line = br#"{"message":"yes","x":{"message":"no","y":[1,{"message":"no\n"}]},"n":null}"#;
        assert_eq!(message(line).as_deref(), Some(&b"yes"[..]));
    }

    #[test]
    fn record_in_envelope_is_read() {
        let line = br#"{"level":"info","msg":"record","record":{"log_time":"x","error_severity":"LOG","message":"m"}}"#;
        assert_eq!(message(line).as_deref(), Some(&b"m"[..]));
        assert!(Json::new(1 << 20).is_record(line));
    }
}
