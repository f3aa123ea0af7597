//! Headers of Heroku's logplex, which collects the lines of an application's processes and of its
//! databases.
//!
//! ```text
//! 2026-11-20T12:43:19.577123+00:00 app[postgres.123]: [DATABASE] [5-1] sql_error_code = …
//! 214 <134>1 2026-11-20T12:43:19+00:00 host app postgres.123 - [DATABASE] [5-1] sql_error_code = …
//! ```
//!
//! The first form is printed by `heroku logs`. The second is sent to drains: RFC 5424 with its
//! length in front and without structured data. The text of a database begins with the name under
//! which it is attached to the application.
//!
//! Source: Heroku Dev Center, "Logging", "Log Drains", "Heroku Postgres: Logs and Errors".

use std::borrow::Cow;

use crate::label::LineLabel;

/// A process of an application, such as `postgres.123` or `web.1`, and the text after its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HerokuMessage<'a> {
    /// Name under which the database is attached; empty for other processes.
    pub(super) attachment: &'a [u8],
    /// Process id of the server; `None` for other processes.
    pub(super) pid: Option<&'a [u8]>,
    pub(super) text: Cow<'a, [u8]>,
}

/// Splits the part of a line of `heroku logs` after its time; `None` if it has another form.
pub(super) fn split_line(rest: &[u8]) -> Option<HerokuMessage<'_>> {
    let inner = SOURCES.iter().find_map(|source| rest.strip_prefix(*source)?.strip_prefix(b"["))?;
    let end = memchr::memchr(b']', &inner[..inner.len().min(PROCESS_BYTES_MAX)])?;
    let text = inner[end + 1..].strip_prefix(b":")?;
    Some(message(&inner[..end], text.strip_prefix(b" ").unwrap_or(text)))
}

/// Interprets the program, the process and the rest of a message in RFC 5424; `None` if they are
/// not Heroku's.
pub(super) fn from_syslog<'a>(
    program: &[u8],
    process: &'a [u8],
    rest: &'a [u8],
) -> Option<HerokuMessage<'a>> {
    // Processes of other systems are numbers.
    let is_named = process.first().is_some_and(u8::is_ascii_alphabetic);
    if !is_named || !SOURCES.contains(&program) {
        return None;
    }
    // Some forwarders add the structured data that is missing.
    Some(message(process, rest.strip_prefix(b"- ").unwrap_or(rest)))
}

/// Sources of lines: the application with its databases, and Heroku itself.
const SOURCES: [&[u8]; 2] = [b"app", b"heroku"];

/// Maximum length of a process name with the bracket after it.
const PROCESS_BYTES_MAX: usize = 128;

fn message<'a>(process: &'a [u8], text: &'a [u8]) -> HerokuMessage<'a> {
    let pid = process.strip_prefix(b"postgres.");
    let Some(pid) = pid.filter(|pid| pid.iter().all(u8::is_ascii_digit)) else {
        return HerokuMessage { attachment: b"", pid: None, text: Cow::Borrowed(text) };
    };
    let (attachment, text) = split_attachment(text).unwrap_or((b"", text));
    HerokuMessage { attachment, pid: Some(pid), text: restore_label(text) }
}

/// Splits off `[DATABASE] `.
fn split_attachment(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let inner = text.strip_prefix(b"[")?;
    inner.first().filter(|byte| byte.is_ascii_alphabetic())?;
    let end = memchr::memchr(b']', &inner[..inner.len().min(PROCESS_BYTES_MAX)])?;
    Some((&inner[..end], inner[end + 1..].strip_prefix(b" ")?))
}

/// Restores the second space after a label, which services that squeeze spaces remove.
fn restore_label(text: &[u8]) -> Cow<'_, [u8]> {
    let head = &text[..text.len().min(LABEL_WINDOW_BYTES)];
    let mut colons = memchr::memmem::find_iter(head, b": ").filter(|colon| {
        let start = LineLabel::start(head, *colon);
        let label = [&head[start..*colon], b":  "].concat();
        (start == 0 || head[start - 1] == b' ') && LineLabel::parse(&label).is_some()
    });
    match colons.next() {
        Some(colon) if head.get(colon + 2) != Some(&b' ') => {
            Cow::Owned([&text[..colon], b":  ", &text[colon + 2..]].concat())
        }
        _ => Cow::Borrowed(text),
    }
}

/// Number of bytes at the front of a text that are searched for a label.
const LABEL_WINDOW_BYTES: usize = 512;

#[test]
fn messages_of_databases_and_dynos_are_split() {
    let database = |text: &'static str| HerokuMessage {
        attachment: b"DATABASE",
        pid: Some(b"123"),
        text: Cow::Borrowed(text.as_bytes()),
    };
    let text = "[5-1]  sql_error_code = 00000 LOG:  x: y";
    let line = format!("app[postgres.123]: [DATABASE] {text}");
    assert_eq!(split_line(line.as_bytes()), Some(database(text)));
    let squeezed = b"[DATABASE] [5-1] sql_error_code = 00000 LOG: x: y";
    let restored = database("[5-1] sql_error_code = 00000 LOG:  x: y");
    assert_eq!(from_syslog(b"app", b"postgres.123", squeezed), Some(restored));
    for (line, text) in [
        ("app[web.1]: [DATABASE] LOG: x", "[DATABASE] LOG: x"),
        ("heroku[router]: at=info", "at=info"),
        ("app[heroku-postgres]: source=DATABASE", "source=DATABASE"),
        ("app[web.1]:", ""),
    ] {
        let other = split_line(line.as_bytes()).expect(line);
        assert_eq!((other.pid, &other.text[..]), (None, text.as_bytes()), "{line}");
    }
    for not in ["db postgres[7]: [3-1] LOG:  x", "app[postgres.123] x", "app: x", ""] {
        assert_eq!(split_line(not.as_bytes()), None, "{not}");
    }
    assert_eq!(from_syslog(b"app", b"123", b"x"), None);
    assert_eq!(from_syslog(b"postgres", b"postgres.1", b"x"), None);
    assert_eq!(message(b"postgres.1", b"[").attachment, b"");
}
