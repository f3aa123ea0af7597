//! Recognizes the form of a connection string, and parses the keyword/value form.
//!
//! Source: PostgreSQL manual, "Connection Strings"; where it is silent,
//! `recognized_connection_string` and `conninfo_parse` in `fe-connect.c`.

use crate::{
    resolve_error::ResolveError, setting_origin::SettingOrigin, settings::KeywordValues, uri,
};

/// Parses a connection string: a URI, a keyword/value string, or a plain database name.
pub(crate) fn parse(text: &str) -> Result<KeywordValues, ResolveError> {
    if let Some(rest) = uri::after_scheme(text)? {
        return uri::parse(rest);
    }
    if text.contains('=') {
        return parse_keywords(text);
    }
    // libpq would request a database with that name from the server, and the password that the text
    // most probably contains would appear in the server's log.
    let credentials = text.split_once('@').is_some_and(|(before, _)| before.contains(':'));
    if credentials {
        return Err(ResolveError::UriWithoutScheme);
    }
    let mut settings = KeywordValues::default();
    settings.set("dbname", text, SettingOrigin::Argument)?;
    Ok(settings)
}

/// Parses `keyword = value` pairs. A value with spaces is enclosed in single quotes; a backslash
/// escapes the next character, inside and outside quotes.
fn parse_keywords(text: &str) -> Result<KeywordValues, ResolveError> {
    let mut settings = KeywordValues::default();
    let mut rest = text.trim_ascii_start();
    let mut after_password = false;
    while !rest.is_empty() {
        let pair = KeywordPair::read(rest).and_then(|pair| {
            settings.set(&pair.keyword, pair.value, SettingOrigin::Argument)?;
            Ok((pair.keyword, pair.rest))
        });
        let (keyword, after) = match pair {
            // This may be the second half of a password with a space in it.
            Err(_) if after_password => return Err(ResolveError::PasswordNotQuoted),
            other => other?,
        };
        after_password |= matches!(keyword.as_str(), "password" | "sslpassword");
        rest = after.trim_ascii_start();
    }
    Ok(settings)
}

struct KeywordPair<'a> {
    keyword: String,
    value: String,
    rest: &'a str,
}

impl<'a> KeywordPair<'a> {
    /// Parses one pair at the start of `text`.
    fn read(text: &'a str) -> Result<Self, ResolveError> {
        let end = text.find(|c: char| c == '=' || is_space(c)).unwrap_or(text.len());
        let (keyword, rest) = text.split_at(end);
        let Some(rest) = rest.trim_start_matches(is_space).strip_prefix('=') else {
            return Err(match ResolveError::unknown_keyword(keyword) {
                ResolveError::UnknownKeyword { keyword, .. } => {
                    ResolveError::MissingEquals { keyword }
                }
                unreadable => unreadable,
            });
        };
        let rest = rest.trim_start_matches(is_space);
        let read = match rest.strip_prefix('\'') {
            Some(quoted) => read_value(quoted, |c| c == '\''),
            None => read_value(rest, is_space),
        };
        match (read, rest.starts_with('\'')) {
            ((_, None), true) => {
                Err(ResolveError::UnterminatedQuote { keyword: keyword.to_owned() })
            }
            ((value, rest), _) => {
                Ok(Self { keyword: keyword.to_owned(), value, rest: rest.unwrap_or_default() })
            }
        }
    }
}

/// Reads a value up to the character that ends it. Returns the value, and the text after that
/// character, or `None` if it is missing.
fn read_value(text: &str, ends: impl Fn(char) -> bool) -> (String, Option<&str>) {
    let mut value = String::new();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => value.extend(chars.next()),
            c if ends(c) => return (value, Some(chars.as_str())),
            c => value.push(c),
        }
    }
    (value, None)
}

/// Whether C's `isspace` accepts the character.
fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\n' | '\x0b' | '\x0c' | '\r')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Vec<(&'static str, String)> {
        let settings = parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        let value = |name| settings.value(name).unwrap_or_default().to_owned();
        settings.names().map(|name| (name, value(name))).collect()
    }

    #[test]
    fn keyword_value_strings_parse_like_libpq() {
        let table: &[(&str, &[(&str, &str)])] = &[
            ("shop", &[("dbname", "shop")]),
            ("", &[("dbname", "")]),
            ("host=a port=1", &[("host", "a"), ("port", "1")]),
            ("  host = a\n port\t=  1 ", &[("host", "a"), ("port", "1")]),
            ("host='a'port=1", &[("host", "a"), ("port", "1")]),
            (r"host = a\ b", &[("host", "a b")]),
            (r"host=a\", &[("host", "a")]),
            ("host=", &[("host", "")]),
            ("host='' port=2", &[("host", ""), ("port", "2")]),
            // A value may follow after spaces, so the host is not empty here.
            ("host= port=1", &[("host", "port=1")]),
            ("host=a'b'c", &[("host", "a'b'c")]),
            (r"password='it\'s \\ '", &[("password", r"it's \ ")]),
            ("host=a host=b", &[("host", "b")]),
            (
                "options='-c geqo=off -c work_mem=1MB'",
                &[("options", "-c geqo=off -c work_mem=1MB")],
            ),
        ];
        for (text, expected) in table {
            let expected: Vec<_> =
                expected.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
            assert_eq!(read(text), expected, "{text}");
        }
    }

    #[test]
    fn errors_name_the_keyword() {
        let error = |text| parse(text).err().map(|error| error.to_string()).unwrap_or_default();
        assert_eq!(error("port=1 host"), "missing \"=\" after \"host\" in the connection string");
        assert_eq!(
            error("host=a sslmod=x"),
            "unknown connection keyword \"sslmod\", did you mean sslmode?"
        );
        assert_eq!(
            error("host='a port=1"),
            "the quoted value of \"host\" is not closed in the connection string"
        );
        assert_eq!(
            error("mysql://u:hunter2@h/d?a=b"),
            "mysql:// is not a PostgreSQL URI: write postgresql://"
        );
        assert!(error("=x").contains("not of the form"));
    }

    #[test]
    fn errors_never_contain_password_parts() {
        let table = [
            "host=a password=correct hunter2",
            "host=a password=correct hunter2=x",
            "host=a password='it's hunter2'",
            "password='hunter2",
            "user:hunter2@host/db",
            "user:hunter2@host/db?sslmode=require",
            "mysql://user:hunter2=@host/db",
        ];
        for text in table {
            let error = parse(text).err().unwrap_or_else(|| panic!("{text} was accepted"));
            assert!(!error.to_string().contains("hunter2"), "{text}: {error}");
            assert!(!format!("{error:?}").contains("hunter2"), "{text}: {error:?}");
        }
    }
}
