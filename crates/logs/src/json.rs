//! jsonlog: one object in each line; keys are absent when there is nothing to say.
//!
//! The reader takes bytes that are not UTF-8, because a database may have another encoding. Records that
//! an operator for Kubernetes wrapped as `{"record": {…}}`, with the column names of csvlog, are
//! read as well.
//!
//! Source: manual, Using JSON-Format Log Output; `write_jsonlog` in `jsonlog.c`; `escape_json` in `json.c`.

mod framer;
mod quick;

use howdah_traffic::SqlState;

pub(crate) use self::framer::JsonFramer;
use crate::{
    clock::Clock,
    frame::{Frame, Owner},
    pieces::{Span, function, number, process, session_id, signed},
    reader::{Closing, Step},
    record::Severity,
    stderr::known,
    summary::Reason,
};

/// Reader of jsonlog files.
#[derive(Debug)]
pub(crate) struct Json {
    max_record_bytes: usize,
    /// How far the current line was searched for its end.
    scanned: usize,
    /// Inside a line that is too long.
    skipping: bool,
    keys: Keys,
}

/// The values of the wanted keys.
type Keys = [Span; KEYS];

const NO_KEYS: Keys = [Span::ABSENT; KEYS];

macro_rules! keys {
    ($($key:ident: $($name:literal)|+;)*) => {
        /// Keys that are read.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        enum Key { $($key,)* }

        const KEYS: usize = [$(Key::$key,)*].len();

        impl Key {
            fn from_name(name: &[u8]) -> Option<Self> {
                Some(match name {
                    $($($name)|+ => Self::$key,)*
                    _ => return None,
                })
            }
        }
    };
}

// PostgreSQL's own name first, then csvlog's.
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
        Self { max_record_bytes, scanned: 0, skipping: false, keys: NO_KEYS }
    }

    /// The same reader at the beginning of another file.
    pub(crate) fn restarted(&self) -> Self {
        Self::new(self.max_record_bytes)
    }

    /// What others need to frame pieces of the same file.
    pub(crate) fn framer(&self, clock: Clock) -> JsonFramer {
        JsonFramer::new(self.max_record_bytes, clock)
    }

    pub(crate) fn step(&mut self, input: &[u8], closing: Closing, scratch: &mut Vec<u8>) -> Step {
        let newline = memchr::memchr(b'\n', &input[self.scanned..]).map(|at| self.scanned + at);
        let Some(newline) = newline else { return self.unfinished(input, closing, scratch) };
        let len = newline + 1;
        if self.skipping {
            self.skipping = false;
            return Step::Skip { len };
        }
        if newline > self.max_record_bytes {
            return Step::Junk { len, reason: Reason::TooLong };
        }
        match input[..newline].trim_ascii_start() {
            [] => Step::Skip { len },
            [b'{', ..] if self.parse(&input[..newline], scratch).is_some() => Step::Record { len },
            [b'{', ..] => Step::Junk { len, reason: Reason::BadObject },
            _ => Step::Junk { len, reason: Reason::NotARecord },
        }
    }

    fn unfinished(&mut self, input: &[u8], closing: Closing, scratch: &mut Vec<u8>) -> Step {
        self.scanned = input.len();
        let len = input.len();
        if len == 0 {
            return Step::More;
        }
        if self.skipping {
            return Step::Skip { len };
        }
        if len > self.max_record_bytes {
            self.skipping = true;
            return Step::Junk { len, reason: Reason::TooLong };
        }
        match closing {
            Closing::Open | Closing::Idle => Step::More,
            Closing::End if self.parse(input, scratch).is_some() => Step::Record { len },
            Closing::End => Step::Junk { len, reason: Reason::CutShort },
        }
    }

    pub(crate) fn consumed(&mut self, _len: usize) {
        self.scanned = 0;
    }

    /// Finds the keys of an object.
    fn parse(&mut self, line: &[u8], scratch: &mut Vec<u8>) -> Option<()> {
        self.keys = NO_KEYS;
        parse(line, 0, &mut self.keys, scratch)
    }

    /// Whether a line is an object with what every record has.
    pub(crate) fn is_record(&mut self, line: &[u8]) -> bool {
        self.parse(line, &mut Vec::new()).is_some()
            && [Key::Time, Key::Severity].iter().all(|key| self.keys[*key as usize] != Span::ABSENT)
    }

    /// The record of the object that was found.
    pub(crate) fn frame(
        &self,
        input: &[u8],
        clock: &mut Clock,
        scratch: &[u8],
    ) -> Result<(Frame, Owner), Reason> {
        decode(&self.keys, input, clock, scratch)
    }
}

/// Finds the keys of an object that fills `line` from `at` on.
fn parse(line: &[u8], at: usize, keys: &mut Keys, scratch: &mut Vec<u8>) -> Option<()> {
    let mut parser = Parser { line, at, keys, scratch };
    parser.object(0)?;
    parser.space();
    (parser.at == line.len()).then_some(())
}

/// Reads the fields of a record.
fn decode(
    keys: &Keys,
    input: &[u8],
    clock: &mut Clock,
    scratch: &[u8],
) -> Result<(Frame, Owner), Reason> {
    let frame = decode_frame(keys, input, clock, scratch)?;
    Ok((frame, owner_of(keys, input, scratch)))
}

/// The same without whose it is.
#[inline]
fn decode_frame(
    keys: &Keys,
    input: &[u8],
    clock: &mut Clock,
    scratch: &[u8],
) -> Result<Frame, Reason> {
    let span = |key: Key| keys[key as usize];
    let text = |key: Key| span(key).text(input, scratch);
    let line = number(text(Key::Line));
    let time = span(Key::Time).get(input, scratch).ok_or(Reason::BadObject)?;
    let location = span(Key::Location);
    Ok(Frame {
        time: clock.read(time).ok_or(Reason::BadTime)?,
        vxid: span(Key::Vxid),
        query_id: signed(text(Key::QueryId)),
        tag: span(Key::Tag),
        lines: line.map(|line| (line, line)),
        severity: Severity::from_word(text(Key::Severity)).ok_or(Reason::BadSeverity)?,
        sqlstate: SqlState::new(text(Key::SqlState)),
        message: span(Key::Message),
        detail: span(Key::Detail),
        context: span(Key::Context),
        statement: span(Key::Statement).unless_empty(),
        function: match (span(Key::Function), location) {
            (Span::ABSENT, Span::ABSENT) => Span::ABSENT,
            (Span::ABSENT, _) => location.shortened(function(location.text(input, scratch)).len()),
            (function, _) => function,
        },
        assumption: clock.take_assumption(),
        ..Frame::EMPTY
    })
}

/// Whose a record is.
fn owner_of(keys: &Keys, input: &[u8], scratch: &[u8]) -> Owner {
    let span = |key: Key| keys[key as usize];
    let text = |key: Key| span(key).text(input, scratch);
    let name = |key: Key| known(span(key), input, scratch);
    let id = session_id(text(Key::SessionId));
    Owner {
        session_id: span(Key::SessionId),
        session_start: id.map(|(start, _)| start),
        pid: process(text(Key::Pid)).or(id.map(|(_, pid)| pid)),
        remote: span(Key::Remote),
        user: name(Key::User),
        database: name(Key::Database),
        application: name(Key::Application),
        backend_type: span(Key::BackendType),
        has_leader: !text(Key::Leader).is_empty(),
    }
}

/// A pass over one object that keeps the wanted values of the outermost level.
struct Parser<'a> {
    line: &'a [u8],
    at: usize,
    keys: &'a mut Keys,
    scratch: &'a mut Vec<u8>,
}

/// The server's names are shorter.
const NAME_BYTES: usize = 32;

/// Deepest nesting that is followed.
const DEPTH_MAX: u32 = 16;

impl Parser<'_> {
    /// Reads `{"key": value, …}`. Keys below the top are kept only inside `record`.
    fn object(&mut self, depth: u32) -> Option<()> {
        self.space();
        self.expect(b'{')?;
        self.space();
        if self.expect(b'}').is_some() {
            return Some(());
        }
        loop {
            self.space();
            let name = self.name()?;
            let name = name.get(self.line, self.scratch)?;
            let is_record = name == b"record";
            let key = Key::from_name(name);
            self.space();
            self.expect(b':')?;
            self.space();
            if is_record && depth == 0 && self.line.get(self.at) == Some(&b'{') {
                self.object(depth + 1)?;
            } else {
                let value = self.value(depth)?;
                if let Some(key) = key {
                    self.keys[key as usize] = value;
                }
            }
            self.space();
            if self.expect(b'}').is_some() {
                return Some(());
            }
            self.expect(b',')?;
        }
    }

    /// Reads any value. An object or array comes out as its source text.
    fn value(&mut self, depth: u32) -> Option<Span> {
        let start = self.at;
        match self.line.get(start)? {
            b'"' => return self.string(),
            b'{' | b'[' if depth < DEPTH_MAX => self.nested(depth)?,
            b'{' | b'[' => return None,
            _ => {
                let len = self.line[start..]
                    .iter()
                    .take_while(|b| b.is_ascii_alphanumeric() || b"+-.".contains(b))
                    .count();
                self.at += len;
                if len == 0 {
                    return None;
                }
            }
        }
        if &self.line[start..self.at] == b"null" {
            return Some(Span::ABSENT);
        }
        Some(Span::input(start, self.at))
    }

    /// Passes over an object or array of no interest.
    fn nested(&mut self, depth: u32) -> Option<()> {
        let close = if self.line[self.at] == b'{' { b'}' } else { b']' };
        self.at += 1;
        let from = self.scratch.len();
        loop {
            self.space();
            if self.expect(close).is_some() {
                self.scratch.truncate(from);
                return Some(());
            }
            if self.expect(b',').is_none() && self.expect(b':').is_none() {
                self.value(depth + 1)?;
            }
        }
    }

    /// The name of a key: too short for a search.
    #[inline]
    fn name(&mut self) -> Option<Span> {
        let start = self.at + 1;
        let text = self.line.get(start..)?;
        let plain = |byte: &u8| *byte != b'"' && *byte != b'\\';
        let len = text.iter().take(NAME_BYTES).take_while(|byte| plain(byte)).count();
        if self.line[self.at] != b'"' || text.get(len) != Some(&b'"') {
            return self.string();
        }
        self.at = start + len + 1;
        Some(Span::input(start, start + len))
    }

    #[inline]
    fn string(&mut self) -> Option<Span> {
        self.expect(b'"')?;
        let start = self.at;
        let from = self.scratch.len();
        let mut plain = start;
        loop {
            let found = plain_end(&self.line[self.at..])?;
            self.at += found + 1;
            if self.line[self.at - 1] == b'"' {
                break;
            }
            self.scratch.extend_from_slice(&self.line[plain..self.at - 1]);
            self.escape()?;
            plain = self.at;
        }
        let end = self.at - 1;
        if plain == start {
            return Some(Span::input(start, end));
        }
        self.scratch.extend_from_slice(&self.line[plain..end]);
        Some(Span::scratch(from, self.scratch.len()))
    }

    /// Reads what follows a backslash.
    fn escape(&mut self) -> Option<()> {
        let letter = *self.line.get(self.at)?;
        self.at += 1;
        let byte = match letter {
            b'n' => b'\n',
            b't' => b'\t',
            b'r' => b'\r',
            b'b' => 0x08,
            b'f' => 0x0c,
            b'"' | b'\\' | b'/' => letter,
            b'u' => return self.unicode(),
            _ => return None,
        };
        self.scratch.push(byte);
        Some(())
    }

    fn unicode(&mut self) -> Option<()> {
        let first = self.hex()?;
        let is_high = (0xd800..0xdc00).contains(&first);
        let code = if is_high && self.line[self.at..].starts_with(b"\\u") {
            self.at += 2;
            let second = self.hex()?;
            let low = second.checked_sub(0xdc00).filter(|low| *low < 0x400)?;
            0x1_0000 + ((first - 0xd800) << 10) + low
        } else {
            first
        };
        let character = char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER);
        self.scratch.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
        Some(())
    }

    fn hex(&mut self) -> Option<u32> {
        let digits = self.line.get(self.at..self.at + 4)?;
        self.at += 4;
        digits.iter().try_fold(0, |sum, digit| Some(sum * 16 + char::from(*digit).to_digit(16)?))
    }

    #[inline]
    fn space(&mut self) {
        while self.line.get(self.at).is_some_and(u8::is_ascii_whitespace) {
            self.at += 1;
        }
    }

    #[inline]
    fn expect(&mut self, byte: u8) -> Option<()> {
        (self.line.get(self.at) == Some(&byte)).then(|| self.at += 1)
    }
}

/// Where the text up to a quote or a backslash ends.
fn plain_end(text: &[u8]) -> Option<usize> {
    memchr::memchr2(b'"', b'\\', text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(line: &[u8]) -> Option<Vec<u8>> {
        let (mut keys, mut scratch) = (NO_KEYS, Vec::new());
        parse(line, 0, &mut keys, &mut scratch)?;
        keys[Key::Message as usize].get(line, &scratch).map(<[u8]>::to_vec)
    }

    #[test]
    fn escapes_are_undone() {
        let line = br#"{"message":"a\n\t\"\\\/\u0001\u20ac\ud83d\ude00b"}"#;
        assert_eq!(message(line).as_deref(), Some("a\n\t\"\\/\u{1}€😀b".as_bytes()));
    }

    #[test]
    fn bytes_of_other_encodings_pass() {
        assert_eq!(message(b"{\"message\":\"caf\xe9\"}").as_deref(), Some(&b"caf\xe9"[..]));
    }

    #[test]
    fn what_is_not_an_object_is_refused() {
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
    fn nested_values_do_not_shadow_the_records_own() {
        let line = br#"{"message":"yes","x":{"message":"no","y":[1,{"message":"no\n"}]},"n":null}"#;
        assert_eq!(message(line).as_deref(), Some(&b"yes"[..]));
    }

    #[test]
    fn wrapped_records_are_unwrapped() {
        let line = br#"{"level":"info","msg":"record","record":{"log_time":"x","error_severity":"LOG","message":"m"}}"#;
        assert_eq!(message(line).as_deref(), Some(&b"m"[..]));
        assert!(Json::new(1 << 20).is_record(line));
    }
}
