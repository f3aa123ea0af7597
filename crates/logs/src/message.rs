//! What the text of a `LOG` message tells of a client's doings.
//!
//! Source: `exec_simple_query`, `exec_parse_message`, `exec_bind_message`, `exec_execute_message`
//! and `check_log_duration` in `postgres.c`; `log_fastpath_function_call` in `fastpath.c`;
//! `PerformAuthentication` in `postinit.c`.

use howdah_traffic::Hashed;
use memchr::memmem;

use crate::{
    language::Language,
    record::{Record, Severity},
};

/// A message, sorted by what it is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Message<'a> {
    /// An action that begins now.
    Begin(Step<'a>),
    /// An action that ends now, and how long it took. `None`: the text was logged before.
    End { micros: u64, step: Option<Step<'a>> },
    /// A session was authorised.
    Authorized(Authorized<'a>),
    /// A session for replication or backup: not a client in our sense.
    ReplicationAuthorized,
    /// A connection was accepted; nobody knows yet whose.
    Received,
    /// A session ended.
    Disconnection,
    /// All sessions that were open are gone.
    Restart,
    /// Anything else that an untranslated server says about connections or itself.
    Known,
    /// A server process ended without a word of its own: the one with this id.
    Died(u32),
    /// A plan that auto_explain logged: about a statement, but not one.
    Plan,
    /// What pgaudit logged: about a statement, but not one.
    Audit,
    /// Looks like a statement or a duration in another language, if it is known in which.
    Foreign(Option<Language>),
    /// Anything else.
    Other,
}

/// A step of a query protocol. The texts after parse, bind and execute still hold name and SQL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step<'a> {
    Statement(Hashed<'a>),
    Parse(&'a [u8]),
    Bind(&'a [u8]),
    Execute(&'a [u8]),
    Fetch(&'a [u8]),
    Call(&'a [u8]),
}

/// What the line `connection authorized` says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Authorized<'a> {
    pub(crate) user: &'a [u8],
    pub(crate) database: &'a [u8],
    pub(crate) application: &'a [u8],
}

/// What is read of a message when it is framed: on all processors, where records are taken on one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Said {
    /// Nothing, or nothing was looked for.
    Unread,
    /// A duration without a text, in microseconds.
    Bare(u64),
    /// A statement that begins, by the hash of its text.
    Statement(u64),
}

impl Said {
    /// Reads a message.
    #[inline]
    pub(crate) fn by(severity: Severity, text: &[u8]) -> Self {
        if severity != Severity::Log {
            return Self::Unread;
        }
        let Some((word, rest)) = text.split_first_chunk() else { return Self::Unread };
        match u64::from_le_bytes(*word) {
            DURATION if rest.len() < BARE_BYTES_MAX && rest.starts_with(b": ") => {
                match millis(&rest[2..]) {
                    Some((micros, b"")) => Self::Bare(micros),
                    _ => Self::Unread,
                }
            }
            STATEMENT if rest.starts_with(b"t: ") => {
                Self::Statement(Hashed::new(&rest[3..]).hash())
            }
            _ => Self::Unread,
        }
    }
}

/// More than the longest duration has behind its word.
const BARE_BYTES_MAX: usize = 32;

impl<'a> Message<'a> {
    /// The message of a record of the log.
    #[inline(always)]
    pub(crate) fn of(record: &Record<'a>) -> Self {
        match record.said() {
            Said::Bare(micros) => Self::End { micros, step: None },
            Said::Statement(hash) => {
                let sql = record.message().get(b"statement: ".len()..).unwrap_or_default();
                Self::Begin(Step::Statement(Hashed::with_hash(sql, hash)))
            }
            Said::Unread => Self::parse(record.message()),
        }
    }

    #[inline]
    pub(crate) fn parse(text: &'a [u8]) -> Self {
        // Nearly all are one of three.
        if let Some((word, rest)) = text.split_first_chunk() {
            match u64::from_le_bytes(*word) {
                DURATION if rest.starts_with(b": ") => return duration(&rest[2..]),
                STATEMENT if rest.starts_with(b"t: ") => {
                    return Self::Begin(Step::Statement(Hashed::new(&rest[3..])));
                }
                EXECUTE => return Self::Begin(execution(rest)),
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
                    return duration(rest);
                }
                if text.starts_with(b"disconnection: session time: ") {
                    return Self::Disconnection;
                }
            }
            Some(b's' | b'e' | b'f') => {
                if let Some(step) =
                    step(text).filter(|s| !matches!(s, Step::Parse(_) | Step::Bind(_)))
                {
                    return Self::Begin(step);
                }
            }
            Some(b'c' | b'r') => {
                if let Some(known) = connection(text) {
                    return known;
                }
            }
            _ => {}
        }
        if RESTARTS.iter().any(|start| text.starts_with(start)) {
            return Self::Restart;
        }
        if let Some(pid) = died(text) {
            return Self::Died(pid);
        }
        if text.starts_with(b"AUDIT: ") {
            return Self::Audit;
        }
        if KNOWN.iter().any(|start| text.starts_with(start)) {
            return Self::Known;
        }
        match Language::of(text) {
            None if !is_foreign_duration(text) => Self::Other,
            language => Self::Foreign(language),
        }
    }
}

/// The first eight bytes of messages.
const DURATION: u64 = u64::from_le_bytes(*b"duration");
const STATEMENT: u64 = u64::from_le_bytes(*b"statemen");
const EXECUTE: u64 = u64::from_le_bytes(*b"execute ");

/// Messages after which no session of before is left.
const RESTARTS: &[&[u8]] = &[
    b"starting PostgreSQL ",
    b"database system was ",
    b"database system is shut down",
    b"all server processes terminated; reinitializing",
];

/// Beginnings of frequent messages that prove the log to be in English.
const KNOWN: &[&[u8]] = &[
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

/// What follows `duration: `.
fn duration(rest: &[u8]) -> Message<'_> {
    let Some((micros, rest)) = millis(rest) else { return Message::Other };
    if rest.is_empty() {
        return Message::End { micros, step: None };
    }
    match rest.strip_prefix(b"  ").and_then(step) {
        Some(step) => Message::End { micros, step: Some(step) },
        None if rest.starts_with(b"  plan:") => Message::Plan,
        None => Message::Known,
    }
}

/// Digits before the point of a duration, at most: a number of microseconds has three more.
const MILLIS_DIGITS_MAX: usize = 15;

/// Reads `12.345 ms` as microseconds.
#[inline]
fn millis(text: &[u8]) -> Option<(u64, &[u8])> {
    let digit = |byte: &u8| Some(byte.wrapping_sub(b'0')).filter(|digit| *digit < 10);
    let (mut whole, mut len) = (0_u64, 0);
    while let Some(next) = text.get(len).and_then(digit) {
        whole = whole * 10 + u64::from(next);
        len += 1;
        // Thirty thousand years.
        if len > MILLIS_DIGITS_MAX {
            return None;
        }
    }
    let rest = text.get(len..)?;
    let [b'.', a, b, c, b' ', b'm', b's', after @ ..] = rest else { return None };
    let is_whole = len > 0 && [a, b, c].iter().all(|digit| digit.is_ascii_digit());
    let fraction = [a, b, c].iter().fold(0, |sum, digit| sum * 10 + u64::from(**digit & 0x0f));
    is_whole.then_some((whole * 1000 + fraction, after))
}

/// What follows `execute `.
#[inline]
fn execution(rest: &[u8]) -> Step<'_> {
    match rest.strip_prefix(b"fetch from ") {
        Some(rest) => Step::Fetch(rest),
        None => Step::Execute(rest),
    }
}

fn step(text: &[u8]) -> Option<Step<'_>> {
    if let Some(sql) = text.strip_prefix(b"statement: ") {
        return Some(Step::Statement(Hashed::new(sql)));
    }
    if let Some(rest) = text.strip_prefix(b"execute ") {
        return Some(execution(rest));
    }
    if let Some(rest) = text.strip_prefix(b"parse ") {
        return Some(Step::Parse(rest));
    }
    if let Some(rest) = text.strip_prefix(b"bind ") {
        return Some(Step::Bind(rest));
    }
    let call = text.strip_prefix(b"fastpath function call: \"")?;
    Some(Step::Call(&call[..memmem::rfind(call, b"\" (OID ")?]))
}

fn connection(text: &[u8]) -> Option<Message<'_>> {
    if let Some(rest) = text.strip_prefix(b"connection authorized: user=") {
        return Some(Message::Authorized(authorized(rest)));
    }
    if text.starts_with(b"connection received: ") {
        return Some(Message::Received);
    }
    if text.starts_with(b"replication connection authorized: ")
        || text.starts_with(b"received replication command: ")
    {
        return Some(Message::ReplicationAuthorized);
    }
    let known =
        text.starts_with(b"connection authenticated: ") || text.starts_with(b"connection ready: ");
    known.then_some(Message::Known)
}

/// Reads what follows `connection authorized: user=`. Nothing in it is quoted: the application name
/// goes to the end, or to the remark about encryption.
fn authorized(rest: &[u8]) -> Authorized<'_> {
    let rest = without_encryption(rest);
    let (rest, application) = split(rest, b" application_name=");
    let (user, database) = split(rest, b" database=");
    Authorized { user, database, application }
}

/// Cuts ` SSL enabled (…)` and ` GSS (…)` off the end.
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

fn split<'a>(text: &'a [u8], at: &[u8]) -> (&'a [u8], &'a [u8]) {
    match memmem::find(text, at) {
        Some(found) => (&text[..found], &text[found + at.len()..]),
        None => (text, b""),
    }
}

/// Reads `server process (PID 4711) was terminated by signal 9: Killed`, or `exited with exit code 1`.
///
/// Source: `LogChildExit` in `postmaster.c`.
fn died(text: &[u8]) -> Option<u32> {
    let rest = text.strip_prefix(b"server process (PID ")?;
    let digits = &rest[..memchr::memchr(b')', rest)?];
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// Whether a message reads like `Dauer: 0.562 ms`, whatever the language: a word, a colon, a number
/// with three decimals.
fn is_foreign_duration(text: &[u8]) -> bool {
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

/// The message of an error without ` at character 8`, which only a stderr log appends.
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

    #[test]
    fn durations_with_and_without_a_step() {
        let bare = Message::End { micros: 1065, step: None };
        assert_eq!(Message::parse(b"duration: 1.065 ms"), bare);
        let full = Message::End { micros: 70, step: Some(Step::Parse(b"S_1: select 1")) };
        assert_eq!(Message::parse(b"duration: 0.070 ms  parse S_1: select 1"), full);
        let empty = Message::End { micros: 6, step: Some(Step::Statement(Hashed::new(b""))) };
        assert_eq!(Message::parse(b"duration: 0.006 ms  statement: "), empty);
        let call = Message::End { micros: 75, step: Some(Step::Call(b"random")) };
        assert_eq!(
            Message::parse(b"duration: 0.075 ms  fastpath function call: \"random\" (OID 1598)"),
            call
        );
    }

    #[test]
    fn what_is_said_when_framed_is_what_is_parsed() {
        for (text, said) in [
            ("duration: 1.065 ms", Said::Bare(1065)),
            ("duration: 12345678.000 ms", Said::Bare(12_345_678_000)),
            ("statement: select 1", Said::Statement(Hashed::new(b"select 1").hash())),
            ("statement: ", Said::Statement(Hashed::new(b"").hash())),
            ("duration: 1.065 ms  bind S_1: select 1", Said::Unread),
            ("duration: 1.0 ms", Said::Unread),
            ("duration: 1234567890123456.000 ms", Said::Unread),
            ("statement", Said::Unread),
            ("execute S_1: select 1", Said::Unread),
        ] {
            assert_eq!(Said::by(Severity::Log, text.as_bytes()), said, "{text}");
            let parsed = Message::parse(text.as_bytes());
            let is_same = match (said, parsed) {
                (Said::Bare(one), Message::End { micros, step: None }) => one == micros,
                (Said::Statement(hash), Message::Begin(Step::Statement(sql))) => hash == sql.hash(),
                (Said::Unread, other) => !matches!(
                    other,
                    Message::End { step: None, .. } | Message::Begin(Step::Statement(_))
                ),
                _ => false,
            };
            assert!(is_same, "{text}: {parsed:?}");
        }
    }

    #[test]
    fn look_alikes_are_nothing() {
        assert_eq!(
            Message::parse(b"duration: 0.070 ms  plan:\nQuery Text: select 1"),
            Message::Plan
        );
        assert_eq!(
            Message::parse(b"AUDIT: SESSION,1,1,READ,SELECT,,,select 1,<none>"),
            Message::Audit
        );
        assert_eq!(Message::parse(b"duration: x ms"), Message::Other);
        assert_eq!(Message::parse(b"duration: 99999999999999999999999.000 ms"), Message::Other);
        assert_eq!(Message::parse(b"parse S_1: select 1"), Message::Other);
        assert_eq!(
            Message::parse(b"received replication command: SHOW x"),
            Message::ReplicationAuthorized
        );
    }

    #[test]
    fn steps_that_begin() {
        assert_eq!(
            Message::parse(b"statement: a"),
            Message::Begin(Step::Statement(Hashed::new(b"a")))
        );
        assert_eq!(Message::parse(b"execute S/C: a"), Message::Begin(Step::Execute(b"S/C: a")));
        assert_eq!(
            Message::parse(b"execute fetch from S/C: a"),
            Message::Begin(Step::Fetch(b"S/C: a"))
        );
    }

    #[test]
    fn authorized_takes_names_as_they_are() {
        let read = |text: &'static [u8]| match Message::parse(text) {
            Message::Authorized(who) => (who.user, who.database, who.application),
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
            assert_eq!(Message::parse(text.as_bytes()), Message::Foreign(language), "{text}");
        }
        assert_eq!(Message::parse(b"some value: 1 of 2"), Message::Other);
    }

    #[test]
    fn a_process_that_died_is_named() {
        let text = b"server process (PID 4711) was terminated by signal 9: Killed";
        assert_eq!(Message::parse(text), Message::Died(4711));
        assert_eq!(Message::parse(b"server process (PID x) was"), Message::Other);
    }

    #[test]
    fn the_position_is_no_part_of_the_message() {
        assert_eq!(without_position(b"syntax error at character 12"), b"syntax error");
        assert_eq!(without_position(b"error at character "), b"error at character ");
        assert_eq!(without_position(b""), b"");
    }
}
