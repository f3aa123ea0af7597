//! Removes passwords of roles and servers, which a capture must never contain: in `PASSWORD '…'` of
//! statements about roles and user mappings, and in the connection strings of subscriptions and
//! functions.
//!
//! Secrets of the application (`where password = '…'`) are not removed; redaction removes those.

use std::sync::LazyLock;

use howdah_sql::{Lexer, TokenKind};
use howdah_traffic::Text;
use memchr::memmem::Finder;

/// The text that replaces a secret.
pub(crate) const PLACEHOLDER: &[u8] = b"redacted";

/// Returns a statement's text without secrets.
pub(crate) fn sql_text(sql: &[u8]) -> Text {
    match redact_secrets(sql) {
        Some(hidden) => hidden.into(),
        None => sql.into(),
    }
}

/// Returns the text without secrets, or `None` if it has none.
pub(crate) fn redact_secrets(sql: &[u8]) -> Option<Vec<u8>> {
    if !mentions(sql, PASSWORD) && SCHEME_END_FINDER.find(sql).is_none() {
        return None;
    }
    let mut out = Vec::with_capacity(sql.len());
    let mut is_after_password = false;
    for token in Lexer::new(sql) {
        match token.kind {
            TokenKind::Space | TokenKind::Comment => {
                // A comment may contain the secret.
                let comment = token.kind == TokenKind::Comment && mentions(token.text, PASSWORD);
                out.extend_from_slice(if comment { b" " } else { token.text });
                continue;
            }
            TokenKind::String if is_after_password => {
                out.push(b'\'');
                out.extend_from_slice(PLACEHOLDER);
                out.push(b'\'');
            }
            TokenKind::String => out.extend_from_slice(&redact_constant(token.text)),
            _ => out.extend_from_slice(token.text),
        }
        // A second string is a syntax error, but may contain the secret too.
        is_after_password = token.kind == TokenKind::Word
            && token.text.eq_ignore_ascii_case(PASSWORD)
            || token.kind == TokenKind::String && is_after_password;
    }
    (out != sql).then_some(out)
}

const PASSWORD: &[u8] = b"password";
const SCHEME_END: &[u8] = b"://";

/// A searcher for [`SCHEME_END`], created once because creation takes longer than searching a
/// statement.
static SCHEME_END_FINDER: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(SCHEME_END));

/// Whether a text contains a word, ignoring case. The word must have a `w` at index 4.
fn mentions(text: &[u8], word: &[u8]) -> bool {
    memchr::memchr2_iter(b'w', b'W', text).any(|at| {
        let found = at.checked_sub(4).and_then(|from| text.get(from..from + word.len()));
        found.is_some_and(|found| found.eq_ignore_ascii_case(word))
    })
}

/// Returns a string constant without secrets. The constant may be the body of a function or block,
/// or a connection string.
fn redact_constant(constant: &[u8]) -> Vec<u8> {
    let tag = match constant {
        [b'$', rest @ ..] => memchr::memchr(b'$', rest).map(|end| end + 2),
        _ => None,
    };
    if let Some(tag) = tag
        && let Some(body) = constant.len().checked_sub(tag).and_then(|end| constant.get(tag..end))
    {
        let body = redact_secrets(body).unwrap_or_else(|| body.to_vec());
        return [&constant[..tag], &body, &constant[constant.len() - tag..]].concat();
    }
    without_user_info(&without_passwords(constant))
}

/// Replaces the value after each `password=` in a connection string with [`PLACEHOLDER`]. The value
/// ends at white space, `&` or the constant's end. If it is quoted, it is replaced with its quotes,
/// which are doubled within the constant.
fn without_passwords(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) =
        rest.windows(PASSWORD.len()).position(|it| it.eq_ignore_ascii_case(PASSWORD))
    {
        let (before, after) = rest.split_at(at + PASSWORD.len());
        out.extend_from_slice(before);
        let value = after.trim_ascii_start().strip_prefix(b"=").map(<[u8]>::trim_ascii_start);
        let Some(value) = value else {
            rest = after;
            continue;
        };
        out.extend_from_slice(&after[..after.len() - value.len()]);
        let len = match value.strip_prefix(b"''") {
            Some(quoted) => memchr::memmem::find(quoted, b"''").map_or(value.len(), |end| end + 4),
            None => value
                .iter()
                .position(|byte| byte.is_ascii_whitespace() || matches!(byte, b'\'' | b'&'))
                .unwrap_or(value.len()),
        };
        out.extend_from_slice(PLACEHOLDER);
        rest = &value[len..];
    }
    out.extend_from_slice(rest);
    out
}

/// Replaces the password in `scheme://user:password@host` with [`PLACEHOLDER`].
fn without_user_info(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = memchr::memmem::find(rest, SCHEME_END) {
        let (before, after) = rest.split_at(at + SCHEME_END.len());
        out.extend_from_slice(before);
        let end = after.iter().position(|byte| matches!(byte, b'/' | b' ' | b'\''));
        let authority = &after[..end.unwrap_or(after.len())];
        let colon = memchr::memchr(b':', authority);
        let user_end = memchr::memrchr(b'@', authority);
        if let (Some(colon), Some(user_end)) = (colon, user_end)
            && colon < user_end
        {
            out.extend_from_slice(&authority[..=colon]);
            out.extend_from_slice(PLACEHOLDER);
            out.extend_from_slice(&authority[user_end..]);
        } else {
            out.extend_from_slice(authority);
        }
        rest = &after[authority.len()..];
    }
    out.extend_from_slice(rest);
    out
}

#[test]
fn secrets_are_replaced_and_the_rest_is_kept() {
    let hidden = |sql: &str| {
        let out = redact_secrets(sql.as_bytes())?;
        Some(String::from_utf8(out).expect("it was UTF-8"))
    };
    for (sql, expected) in [
        ("ALTER ROLE a PASSWORD 'hunter2'", "ALTER ROLE a PASSWORD 'redacted'"),
        (
            "create user a password\n  E'hun\\'ter2' login",
            "create user a password\n  'redacted' login",
        ),
        (
            "alter role a password $$hunter2$$; select 1",
            "alter role a password 'redacted'; select 1",
        ),
        (
            "do $b$ begin alter role a password 'hunter2'; end $b$",
            "do $b$ begin alter role a password 'redacted'; end $b$",
        ),
        (
            "create subscription s connection 'host=h password=hunter2 user=u' publication p",
            "create subscription s connection 'host=h password=redacted user=u' publication p",
        ),
        (
            "select dblink('password = ''hunter2 a'' user=u')",
            "select dblink('password = redacted user=u')",
        ),
        ("select dblink('postgres://u:hunter2@h/d')", "select dblink('postgres://u:redacted@h/d')"),
        (
            "create user mapping for a server s options (user 'u', password 'hunter2')",
            "create user mapping for a server s options (user 'u', password 'redacted')",
        ),
        (
            "alter role a password /* password hunter2 */ 'hunter2'",
            "alter role a password   'redacted'",
        ),
        ("alter role a password 'hunter2", "alter role a password 'redacted'"),
        (
            "alter role a password 'old' 'hunter2' login",
            "alter role a password 'redacted' 'redacted' login",
        ),
    ] {
        assert_eq!(hidden(sql).as_deref(), Some(expected), "{sql}");
    }
    for sql in [
        "select * from users where password = 'x'",
        "alter role a password null",
        "select 'http://h/p'",
        "select 1",
        "update t set password = $1",
    ] {
        assert_eq!(hidden(sql), None, "{sql}");
    }
}
