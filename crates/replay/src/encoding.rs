//! The client encoding of replayed sessions.
//!
//! A log contains text in the encoding of the database, whatever encoding the client used.
//! Therefore a replayed session uses the encoding of the captured database from the login on, and a
//! captured `SET client_encoding` must not change it: the statement is sent with the session's
//! encoding instead of the captured one. Replies use the session's encoding, too.
//!
//! Functions that set the encoding, and `set_config` with a bound value, are not detected.

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashMap},
    str::FromStr,
};

use howdah_connect::{Client, QueryError};
use howdah_sql::{Lexer, SqlCommand, SqlToken, TokenKind};

/// Client encodings of sessions, by captured or target database.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EncodingMap {
    /// PostgreSQL's names of the encodings, by captured database; the empty key applies to all
    /// databases that are not listed.
    pub captured: BTreeMap<String, String>,
    /// PostgreSQL's names of the encodings, by database of the target. They are used if the
    /// captured encoding is not known: a copy of a database has the same encoding.
    pub target: HashMap<String, String>,
}

impl EncodingMap {
    /// Queries the encodings of the target's databases.
    ///
    /// # Errors
    ///
    /// The server refused the query, or the connection is lost.
    pub fn query_target(&mut self, client: &mut Client) -> Result<(), QueryError> {
        const ENCODINGS_SQL: &str = "select datname, pg_catalog.pg_encoding_to_char(encoding) \
                           from pg_catalog.pg_database";
        let results = client.query(ENCODINGS_SQL)?;
        let rows = results.first().map_or(&[][..], |result| &result.rows);
        let pairs = rows.iter().filter_map(|row| Some((row.text(0)?, row.text(1)?)));
        self.target = pairs.map(|(name, of)| (name.into_owned(), of.into_owned())).collect();
        Ok(())
    }

    /// Returns the encoding for a session captured in one database and replayed in another, if it
    /// is known.
    pub(crate) fn for_database(&self, captured: &str, target: &str) -> Option<&str> {
        let known = self.captured.get(captured).or_else(|| self.captured.get(""));
        known.or_else(|| self.target.get(target)).map(String::as_str)
    }
}

/// Client encoding of sessions captured in a database, from `--encoding [DATABASE=]ENCODING`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatabaseEncoding {
    /// The captured database; empty for all databases that are not listed.
    pub database: String,
    /// PostgreSQL's name of the encoding.
    pub encoding: String,
}

/// The error for a text of `--encoding` that does not name a known encoding.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{encoding:?} is not an encoding of PostgreSQL databases: use one such as UTF8, LATIN1 or \
     WIN1252, or DATABASE=ENCODING"
)]
pub struct ParseEncodingError {
    encoding: String,
}

impl FromStr for DatabaseEncoding {
    type Err = ParseEncodingError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (database, encoding) = text.rsplit_once('=').unwrap_or(("", text));
        let known =
            ENCODINGS.iter().find(|known| is_same_encoding(known.as_bytes(), encoding.as_bytes()));
        match known {
            Some(known) => {
                Ok(Self { database: database.to_owned(), encoding: (*known).to_owned() })
            }
            None => Err(ParseEncodingError { encoding: encoding.to_owned() }),
        }
    }
}

/// Encodings that a database, and therefore a log, can have.
///
/// Source: PostgreSQL manual, "Supported Character Sets".
const ENCODINGS: &[&str] = &[
    "UTF8",
    "SQL_ASCII",
    "LATIN1",
    "LATIN2",
    "LATIN3",
    "LATIN4",
    "LATIN5",
    "LATIN6",
    "LATIN7",
    "LATIN8",
    "LATIN9",
    "LATIN10",
    "ISO_8859_5",
    "ISO_8859_6",
    "ISO_8859_7",
    "ISO_8859_8",
    "WIN866",
    "WIN874",
    "WIN1250",
    "WIN1251",
    "WIN1252",
    "WIN1253",
    "WIN1254",
    "WIN1255",
    "WIN1256",
    "WIN1257",
    "WIN1258",
    "KOI8R",
    "KOI8U",
    "EUC_CN",
    "EUC_JP",
    "EUC_JIS_2004",
    "EUC_KR",
    "EUC_TW",
    "MULE_INTERNAL",
];

/// Whether two names denote the same encoding: PostgreSQL ignores case and punctuation.
fn is_same_encoding(one: &[u8], other: &[u8]) -> bool {
    let alphanumerics = |name: &[u8]| -> Vec<u8> {
        name.iter().filter(|b| b.is_ascii_alphanumeric()).map(u8::to_ascii_lowercase).collect()
    };
    alphanumerics(one) == alphanumerics(other)
}

/// Returns the statement with `encoding` in place of any other client encoding that it sets.
pub(crate) fn with_session_encoding<'a>(sql: &'a [u8], encoding: Option<&str>) -> Cow<'a, [u8]> {
    let may_set = SqlCommand::from_sql(sql) == SqlCommand::Set || mentions_setting(sql);
    match encoding.filter(|name| may_set && name.bytes().all(is_name_byte)) {
        Some(encoding) => replace(sql, encoding),
        None => Cow::Borrowed(sql),
    }
}

fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-')
}

const SETTING: &[u8] = b"client_encoding";

fn mentions_setting(sql: &[u8]) -> bool {
    memchr::memchr_iter(b'_', sql).any(|at| {
        let word = at.checked_sub(6).and_then(|from| sql.get(from..from + SETTING.len()));
        word.is_some_and(|word| word.eq_ignore_ascii_case(SETTING))
    })
}

fn replace<'a>(sql: &'a [u8], encoding: &str) -> Cow<'a, [u8]> {
    let mut at = 0;
    let mut tokens = Vec::new();
    for token in Lexer::new(sql) {
        if !matches!(token.kind, TokenKind::Space | TokenKind::Comment) {
            tokens.push((at, token));
        }
        at += token.text.len();
    }
    let mut out = Vec::new();
    let mut copied = 0;
    for first in 0..tokens.len() {
        let begins = first == 0 || tokens[first - 1].1.text == b";";
        let Some(offset) = value_position(&tokens[first..], begins) else { continue };
        let Some((start, value)) = tokens.get(first + offset) else { continue };
        if is_same_encoding(unquoted(value.text), encoding.as_bytes()) {
            continue;
        }
        out.extend_from_slice(&sql[copied..*start]);
        out.extend_from_slice(format!("'{encoding}'").as_bytes());
        copied = start + value.text.len();
    }
    if copied == 0 {
        return Cow::Borrowed(sql);
    }
    out.extend_from_slice(&sql[copied..]);
    Cow::Owned(out)
}

/// Returns the index of the token with the encoding, if the tokens start with a command or call
/// that sets the client encoding. `begins` means that they are the start of a statement; elsewhere,
/// only a call is recognized.
fn value_position(tokens: &[(usize, SqlToken<'_>)], begins: bool) -> Option<usize> {
    let text = |at: usize| tokens.get(at).map_or(&b""[..], |(_, token)| token.text);
    let is = |at: usize, word: &str| text(at).eq_ignore_ascii_case(word.as_bytes());
    let is_setting = |at: usize| unquoted(text(at)).eq_ignore_ascii_case(SETTING);
    let kind = |at: usize| tokens.get(at).map(|(_, token)| token.kind);
    if is(0, "set_config") && text(1) == b"(" && is_setting(2) && text(3) == b"," {
        return Some(4).filter(|at| kind(*at) == Some(TokenKind::String));
    }
    if !begins || !is(0, "set") {
        return None;
    }
    let name = if is(1, "session") || is(1, "local") { 2 } else { 1 };
    if is(name, "names") {
        return Some(name + 1).filter(|at| kind(*at) == Some(TokenKind::String));
    }
    let value = name + 2;
    let sets = is_setting(name) && (is(name + 1, "to") || text(name + 1) == b"=");
    // DEFAULT is the encoding of the login.
    let is_name =
        matches!(kind(value), Some(TokenKind::String | TokenKind::Word | TokenKind::QuotedName));
    (sets && is_name && !is(value, "default")).then_some(value)
}

/// Returns the contents of a string constant or a quoted name, without quotes or a prefix such as
/// `E`.
fn unquoted(text: &[u8]) -> &[u8] {
    let is_quote = |byte: &u8| matches!(byte, b'\'' | b'"');
    match (text.iter().position(is_quote), text.iter().rposition(is_quote)) {
        (Some(from), Some(to)) if from < to => &text[from + 1..to],
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rewritten(sql: &str) -> String {
        String::from_utf8(with_session_encoding(sql.as_bytes(), Some("UTF8")).into_owned()).unwrap()
    }

    #[test]
    fn client_encoding_settings_are_rewritten() {
        for (sql, expected) in [
            ("SET client_encoding = 'LATIN1'", "SET client_encoding = 'UTF8'"),
            ("set session Client_Encoding to win1252;", "set session Client_Encoding to 'UTF8';"),
            ("set local \"client_encoding\" = E'latin1'", "set local \"client_encoding\" = 'UTF8'"),
            ("SET NAMES 'SQL_ASCII'", "SET NAMES 'UTF8'"),
            (
                "begin; set /* x */ client_encoding=latin1",
                "begin; set /* x */ client_encoding='UTF8'",
            ),
            (
                "select set_config('client_encoding', 'LATIN1', false), 1",
                "select set_config('client_encoding', 'UTF8', false), 1",
            ),
        ] {
            assert_eq!(rewritten(sql), expected);
        }
    }

    #[test]
    fn other_statements_are_unchanged() {
        for sql in [
            "set client_encoding to 'utf-8'",
            "set client_encoding to default",
            "reset client_encoding",
            "set search_path to 'LATIN1'",
            "show client_encoding",
            "select 'set client_encoding = latin1'",
            "update t set client_encoding = 'LATIN1'",
            "set names",
            "set client_encoding",
            "set client_encoding =",
            "",
        ] {
            assert_eq!(rewritten(sql), sql);
        }
        assert_eq!(&*with_session_encoding(b"set names 'LATIN1'", None), b"set names 'LATIN1'");
    }

    #[test]
    fn encoding_is_chosen_by_captured_then_target_database() {
        let parse = |text: &str| text.parse::<DatabaseEncoding>().unwrap();
        let parsed = [parse("latin-1"), parse("a=b=koi8r")];
        let pairs = parsed.into_iter().map(|mark| (mark.database, mark.encoding));
        let mut encodings = EncodingMap { captured: pairs.collect(), ..EncodingMap::default() };
        encodings.target.insert("there".to_owned(), "UTF8".to_owned());
        assert_eq!(encodings.for_database("a=b", "there"), Some("KOI8R"));
        assert_eq!(encodings.for_database("shop", "there"), Some("LATIN1"));
        encodings.captured.remove("");
        assert_eq!(encodings.for_database("shop", "there"), Some("UTF8"));
        assert_eq!(encodings.for_database("shop", "elsewhere"), None);
        assert!("shop=".parse::<DatabaseEncoding>().is_err());
        assert!("LATIN11".parse::<DatabaseEncoding>().is_err());
    }
}
