//! Classifies the text of a `LOG` message by the client's action that it reports.
//!
//! Source: `exec_simple_query`, `exec_parse_message`, `exec_bind_message`, `exec_execute_message`
//! and `check_log_duration` in `postgres.c`; `log_fastpath_function_call` in `fastpath.c`;
//! `PerformAuthentication` in `postinit.c`.

use howdah_traffic::Hashed;
use memchr::memmem;

use crate::{
    language::Language,
    record::{
        LogRecord,
        message_fields::{DURATION, MessageFields, STATEMENT, parse_millis},
    },
};

/// A `LOG` message, classified by the client's action that it reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogMessage<'a> {
    /// An action whose start is logged.
    Begin(ProtocolStep<'a>),
    /// An action whose end is logged, with its duration. `step` is `None` if the message has no
    /// text, for example because the text was logged at the start.
    End { micros: u64, step: Option<ProtocolStep<'a>> },
    /// A session was authorized.
    Authorized(AuthorizedNames<'a>),
    /// A session for replication or backup, which is not a client.
    ReplicationAuthorized,
    /// A connection was accepted; its user is not known yet.
    Received,
    /// A session ended.
    Disconnection,
    /// The server has started, stopped or reinitialized, so all earlier sessions have ended.
    Restart,
    /// Any other message that is known to be in English.
    Recognized,
    /// The postmaster reports that the server process with this id crashed.
    ProcessExited(u32),
    /// A plan logged by auto_explain: it mentions a statement, but is not one.
    Plan,
    /// A message of pgaudit: it mentions a statement, but is not one.
    Audit,
    /// A statement or duration in another language; `None` if the language is not known.
    OtherLanguage(Option<Language>),
    /// Any other message.
    Other,
}

/// A logged step of the protocol. The texts of parse, bind, execute and fetch still contain name
/// and SQL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProtocolStep<'a> {
    Statement(Hashed<'a>),
    Parse(&'a [u8]),
    Bind(&'a [u8]),
    Execute(&'a [u8]),
    Fetch(&'a [u8]),
    Call(&'a [u8]),
}

/// The names in a `connection authorized` message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AuthorizedNames<'a> {
    pub(crate) user: &'a [u8],
    pub(crate) database: &'a [u8],
    pub(crate) application: &'a [u8],
}

impl<'a> LogMessage<'a> {
    /// Classifies a record's message.
    #[inline(always)]
    pub(crate) fn from_record(record: &LogRecord<'a>) -> Self {
        match record.message_fields() {
            MessageFields::BareDuration(micros) => Self::End { micros, step: None },
            MessageFields::Statement(hash) => {
                let sql = record.message().get(b"statement: ".len()..).unwrap_or_default();
                Self::Begin(ProtocolStep::Statement(Hashed::with_hash(sql, hash)))
            }
            MessageFields::NotRead => Self::parse(record.message()),
        }
    }

    #[inline]
    pub(crate) fn parse(text: &'a [u8]) -> Self {
        // Nearly all messages start with one of three keywords.
        if let Some((word, rest)) = text.split_first_chunk() {
            match u64::from_le_bytes(*word) {
                DURATION if rest.starts_with(b": ") => return parse_duration(&rest[2..]),
                STATEMENT if rest.starts_with(b"t: ") => {
                    return Self::Begin(ProtocolStep::Statement(Hashed::new(&rest[3..])));
                }
                EXECUTE => return Self::Begin(parse_execution(rest)),
                _ => {}
            }
        }
        Self::parse_any(text)
    }

    #[inline(never)]
    fn parse_any(text: &'a [u8]) -> Self {
        match text.first() {
            Some(b'd') => {
                if let Some(rest) = text.strip_prefix(b"duration: ") {
                    return parse_duration(rest);
                }
                if text.starts_with(b"disconnection: session time: ") {
                    return Self::Disconnection;
                }
            }
            // `parse` and `bind` are logged with their duration only, so alone they are not steps.
            Some(b's' | b'e' | b'f') => {
                if let Some(step) = parse_step(text)
                    .filter(|s| !matches!(s, ProtocolStep::Parse(_) | ProtocolStep::Bind(_)))
                {
                    return Self::Begin(step);
                }
            }
            Some(b'c' | b'r') => {
                if let Some(known) = parse_connection(text) {
                    return known;
                }
            }
            _ => {}
        }
        if RESTARTS.iter().any(|start| text.starts_with(start)) {
            return Self::Restart;
        }
        if let Some(pid) = parse_child_exit(text) {
            return Self::ProcessExited(pid);
        }
        if text.starts_with(b"AUDIT: ") {
            return Self::Audit;
        }
        if ENGLISH_STARTS.iter().any(|start| text.starts_with(start)) {
            return Self::Recognized;
        }
        // This check is last because it is the most expensive; most messages that reach it are
        // from applications.
        match Language::detect(text) {
            None if !is_translated_duration(text) => Self::Other,
            language => Self::OtherLanguage(language),
        }
    }
}

/// The first eight bytes of `execute` messages, as an integer like [`DURATION`].
const EXECUTE: u64 = u64::from_le_bytes(*b"execute ");

/// Messages that show that all earlier sessions have ended.
const RESTARTS: &[&[u8]] = &[
    b"starting PostgreSQL ",
    b"database system was ",
    b"database system is shut down",
    b"all server processes terminated; reinitializing",
];

/// Beginnings of frequent messages that prove the log to be in English.
const ENGLISH_STARTS: &[&[u8]] = &[
    b"checkpoint ",
    b"database system ",
    b"listening on ",
    b"received ",
    b"parameter \"",
    b"automatic ",
    b"temporary file",
    b"process ",
    b"could not ",
    b"unexpected EOF",
    b"redo ",
    b"shutting down",
    b"restored ",
    b"background worker ",
];

/// Parses the text after `duration: `.
fn parse_duration(rest: &[u8]) -> LogMessage<'_> {
    let Some((micros, rest)) = parse_millis(rest) else { return LogMessage::Other };
    if rest.is_empty() {
        return LogMessage::End { micros, step: None };
    }
    match rest.strip_prefix(b"  ").and_then(parse_step) {
        Some(step) => LogMessage::End { micros, step: Some(step) },
        None if rest.starts_with(b"  plan:") => LogMessage::Plan,
        None => LogMessage::Recognized,
    }
}

/// Parses the text after `execute `.
#[inline]
fn parse_execution(rest: &[u8]) -> ProtocolStep<'_> {
    match rest.strip_prefix(b"fetch from ") {
        Some(rest) => ProtocolStep::Fetch(rest),
        None => ProtocolStep::Execute(rest),
    }
}

fn parse_step(text: &[u8]) -> Option<ProtocolStep<'_>> {
    if let Some(sql) = text.strip_prefix(b"statement: ") {
        return Some(ProtocolStep::Statement(Hashed::new(sql)));
    }
    if let Some(rest) = text.strip_prefix(b"execute ") {
        return Some(parse_execution(rest));
    }
    if let Some(rest) = text.strip_prefix(b"parse ") {
        return Some(ProtocolStep::Parse(rest));
    }
    if let Some(rest) = text.strip_prefix(b"bind ") {
        return Some(ProtocolStep::Bind(rest));
    }
    let call = text.strip_prefix(b"fastpath function call: \"")?;
    Some(ProtocolStep::Call(&call[..memmem::rfind(call, b"\" (OID ")?]))
}

fn parse_connection(text: &[u8]) -> Option<LogMessage<'_>> {
    if let Some(rest) = text.strip_prefix(b"connection authorized: user=") {
        return Some(LogMessage::Authorized(parse_authorized(rest)));
    }
    if text.starts_with(b"connection received: ") {
        return Some(LogMessage::Received);
    }
    if text.starts_with(b"replication connection authorized: ")
        || text.starts_with(b"received replication command: ")
    {
        return Some(LogMessage::ReplicationAuthorized);
    }
    let known =
        text.starts_with(b"connection authenticated: ") || text.starts_with(b"connection ready: ");
    known.then_some(LogMessage::Recognized)
}

/// Parses the text after `connection authorized: user=`. Nothing in it is quoted: the application
/// name extends to the end, or to the note about encryption.
fn parse_authorized(rest: &[u8]) -> AuthorizedNames<'_> {
    let rest = without_encryption(rest);
    let (rest, application) = split_at_text(rest, b" application_name=");
    let (user, database) = split_at_text(rest, b" database=");
    AuthorizedNames { user, database, application }
}

/// Removes ` SSL enabled (…)` and ` GSS (…)` from the end.
fn without_encryption(mut text: &[u8]) -> &[u8] {
    for start in [&b" GSS ("[..], b" SSL enabled ("] {
        if text.ends_with(b")")
            && let Some(at) = memmem::rfind(text, start)
        {
            text = &text[..at];
        }
    }
    text
}

fn split_at_text<'a>(text: &'a [u8], at: &[u8]) -> (&'a [u8], &'a [u8]) {
    match memmem::find(text, at) {
        Some(found) => (&text[..found], &text[found + at.len()..]),
        None => (text, b""),
    }
}

/// Returns the process id in a message such as `server process (PID 4711) exited with exit code 1`.
///
/// Source: `LogChildExit` in `postmaster.c`.
fn parse_child_exit(text: &[u8]) -> Option<u32> {
    let rest = text.strip_prefix(b"server process (PID ")?;
    let digits = &rest[..memchr::memchr(b')', rest)?];
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// Whether a message looks like `Dauer: 0.562 ms` in any language: a word, a colon, a number with
/// three decimals.
fn is_translated_duration(text: &[u8]) -> bool {
    let head = &text[..text.len().min(64)];
    let Some(colon) = memmem::find(head, b": ") else { return false };
    let number = &head[colon + 2..];
    let digits = number.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let decimals = number.get(digits + 1..digits + 4);
    digits > 0
        && matches!(number.get(digits), Some(b'.' | b','))
        && decimals.is_some_and(|three| three.iter().all(u8::is_ascii_digit))
        && number.get(digits + 4) == Some(&b' ')
        && !head[..colon].trim_ascii_end().contains(&b' ')
}

/// Removes ` at character 8` from an error message; only stderr logs append it.
pub(crate) fn without_position(message: &[u8]) -> &[u8] {
    let digits = message.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
    match message[..message.len() - digits].strip_suffix(b" at character ") {
        Some(text) if digits > 0 => text,
        _ => message,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use howdah_log_input::LogSeverity;

    #[test]
    fn durations_with_and_without_a_step() {
        let bare = LogMessage::End { micros: 1065, step: None };
        assert_eq!(LogMessage::parse(b"duration: 1.065 ms"), bare);
        let full =
            LogMessage::End { micros: 70, step: Some(ProtocolStep::Parse(b"S_1: select 1")) };
        assert_eq!(LogMessage::parse(b"duration: 0.070 ms  parse S_1: select 1"), full);
        let empty =
            LogMessage::End { micros: 6, step: Some(ProtocolStep::Statement(Hashed::new(b""))) };
        assert_eq!(LogMessage::parse(b"duration: 0.006 ms  statement: "), empty);
        let call = LogMessage::End { micros: 75, step: Some(ProtocolStep::Call(b"random")) };
        assert_eq!(
            LogMessage::parse(b"duration: 0.075 ms  fastpath function call: \"random\" (OID 1598)"),
            call
        );
    }

    #[test]
    fn framed_fields_equal_parsed_message() {
        for (text, fields) in [
            ("duration: 1.065 ms", MessageFields::BareDuration(1065)),
            ("duration: 12345678.000 ms", MessageFields::BareDuration(12_345_678_000)),
            ("statement: select 1", MessageFields::Statement(Hashed::new(b"select 1").hash())),
            ("statement: ", MessageFields::Statement(Hashed::new(b"").hash())),
            ("duration: 1.065 ms  bind S_1: select 1", MessageFields::NotRead),
            ("duration: 1.0 ms", MessageFields::NotRead),
            ("duration: 1234567890123456.000 ms", MessageFields::NotRead),
            ("statement", MessageFields::NotRead),
            ("execute S_1: select 1", MessageFields::NotRead),
        ] {
            assert_eq!(MessageFields::parse(LogSeverity::Log, text.as_bytes()), fields, "{text}");
            let parsed = LogMessage::parse(text.as_bytes());
            let is_same = match (fields, parsed) {
                (MessageFields::BareDuration(one), LogMessage::End { micros, step: None }) => {
                    one == micros
                }
                (
                    MessageFields::Statement(hash),
                    LogMessage::Begin(ProtocolStep::Statement(sql)),
                ) => hash == sql.hash(),
                (MessageFields::NotRead, other) => !matches!(
                    other,
                    LogMessage::End { step: None, .. }
                        | LogMessage::Begin(ProtocolStep::Statement(_))
                ),
                _ => false,
            };
            assert!(is_same, "{text}: {parsed:?}");
        }
    }

    #[test]
    fn similar_messages_are_not_steps() {
        assert_eq!(
            LogMessage::parse(b"duration: 0.070 ms  plan:\nQuery Text: select 1"),
            LogMessage::Plan
        );
        assert_eq!(
            LogMessage::parse(b"AUDIT: SESSION,1,1,READ,SELECT,,,select 1,<none>"),
            LogMessage::Audit
        );
        assert_eq!(LogMessage::parse(b"duration: x ms"), LogMessage::Other);
        assert_eq!(
            LogMessage::parse(b"duration: 99999999999999999999999.000 ms"),
            LogMessage::Other
        );
        assert_eq!(LogMessage::parse(b"parse S_1: select 1"), LogMessage::Other);
        assert_eq!(
            LogMessage::parse(b"received replication command: SHOW x"),
            LogMessage::ReplicationAuthorized
        );
    }

    #[test]
    fn statement_and_execute_start_steps() {
        assert_eq!(
            LogMessage::parse(b"statement: a"),
            LogMessage::Begin(ProtocolStep::Statement(Hashed::new(b"a")))
        );
        assert_eq!(
            LogMessage::parse(b"execute S/C: a"),
            LogMessage::Begin(ProtocolStep::Execute(b"S/C: a"))
        );
        assert_eq!(
            LogMessage::parse(b"execute fetch from S/C: a"),
            LogMessage::Begin(ProtocolStep::Fetch(b"S/C: a"))
        );
    }

    #[test]
    fn authorized_names_are_unquoted() {
        let read = |text: &'static [u8]| match LogMessage::parse(text) {
            LogMessage::Authorized(names) => (names.user, names.database, names.application),
            other => panic!("{other:?}"),
        };
        let plain = read(b"connection authorized: user=a database=b");
        assert_eq!(plain, (&b"a"[..], &b"b"[..], &b""[..]));
        let spaced =
            read(b"connection authorized: user=a b database=c d application_name=we\"ird | app");
        assert_eq!(spaced, (&b"a b"[..], &b"c d"[..], &b"we\"ird | app"[..]));
        let secure = read(
            b"connection authorized: user=a database=b application_name=c (d) SSL enabled \
              (protocol=TLSv1.3, cipher=TLS_AES_256_GCM_SHA384, bits=256)",
        );
        assert_eq!(secure, (&b"a"[..], &b"b"[..], &b"c (d)"[..]));
    }

    #[test]
    fn other_languages_are_noticed() {
        for (text, language) in [
            ("Dauer: 0.562 ms", Some(Language::German)),
            ("durée : 0.562 ms", Some(Language::French)),
            ("trvání: 0,562 ms", None),
            ("Anweisung: select 1", Some(Language::German)),
        ] {
            assert_eq!(
                LogMessage::parse(text.as_bytes()),
                LogMessage::OtherLanguage(language),
                "{text}"
            );
        }
        assert_eq!(LogMessage::parse(b"some value: 1 of 2"), LogMessage::Other);
    }

    #[test]
    fn child_exit_has_its_process_id() {
        let text = b"server process (PID 4711) was terminated by signal 9: Killed";
        assert_eq!(LogMessage::parse(text), LogMessage::ProcessExited(4711));
        assert_eq!(LogMessage::parse(b"server process (PID x) was"), LogMessage::Other);
    }

    #[test]
    fn position_is_removed_from_error_message() {
        assert_eq!(without_position(b"syntax error at character 12"), b"syntax error");
        assert_eq!(without_position(b"error at character "), b"error at character ");
        assert_eq!(without_position(b""), b"");
    }
}
