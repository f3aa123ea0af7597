//! Recognizes from the text of statements whether they change parse settings, or depend on them.

use crate::{
    prepared::parse_settings::{Uncertainty, is_parse_setting},
    session::state::strip_keyword,
};

/// The effect that running a text has on the parse settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ParseSettingsChange {
    /// The text makes the settings uncertain to this degree.
    Known(Uncertainty),
    /// The text changes the setting whose name is passed as a bound value.
    ByParameter,
}

/// Returns how running a query string or a prepared statement changes the settings. `is_reported`
/// tells whether the server reports a parameter. A text that is not understood is assumed to change
/// all settings.
pub(crate) fn change_of(sql: &[u8], is_reported: impl Fn(&[u8]) -> bool) -> ParseSettingsChange {
    let of_name = |name: &[u8]| match () {
        () if !is_parse_setting(name) => Uncertainty::None,
        () if is_reported(name) => Uncertainty::Reported,
        () => Uncertainty::Unreported,
    };
    let mut uncertainty = Uncertainty::None;
    let mut by_parameter = false;
    for argument in set_config_arguments(sql) {
        match argument {
            SetConfigName::Name(name) => uncertainty = uncertainty.max(of_name(name)),
            SetConfigName::Parameter => by_parameter = true,
            SetConfigName::Unclear => uncertainty = Uncertainty::Unreported,
        }
    }
    let has_comment = contains(sql, b"--") || contains(sql, b"/*");
    if has_comment && memchr::memchr(b';', sql).is_some() {
        // A semicolon may be part of the comment, so statements cannot be split there.
        if ["set", "reset", "discard"].iter().any(|word| contains_keyword(sql, word.as_bytes())) {
            uncertainty = Uncertainty::Unreported;
        }
    } else {
        for statement in sql.split(|byte| *byte == b';') {
            uncertainty = uncertainty.max(statement_uncertainty(statement, &of_name));
        }
    }
    if by_parameter && uncertainty != Uncertainty::Unreported {
        ParseSettingsChange::ByParameter
    } else {
        ParseSettingsChange::Known(uncertainty)
    }
}

/// Returns how uncertain a single statement makes the settings, apart from calls of `set_config`.
fn statement_uncertainty(statement: &[u8], of_name: &impl Fn(&[u8]) -> Uncertainty) -> Uncertainty {
    let sql = skip_comments(statement);
    let word_bytes = sql.iter().take_while(|byte| byte.is_ascii_alphabetic()).count();
    let (word, rest) = sql.split_at(word_bytes);
    let is = |name: &[u8]| word.eq_ignore_ascii_case(name);
    match () {
        () if is(b"set") => set_uncertainty(skip_comments(rest), of_name),
        () if is(b"reset") => {
            let rest = skip_comments(rest);
            if strip_name(rest, b"all").is_some() {
                Uncertainty::Reported
            } else {
                name_uncertainty(rest, of_name)
            }
        }
        () if is(b"discard") => Uncertainty::Reported,
        // The body of a DO block is part of the text.
        () if is(b"do") && contains_keyword(rest, b"set") => Uncertainty::Unreported,
        () => Uncertainty::None,
    }
}

/// Returns how uncertain a SET makes the settings, given the text after SET.
fn set_uncertainty(rest: &[u8], of_name: &impl Fn(&[u8]) -> Uncertainty) -> Uncertainty {
    let scoped = strip_name(rest, b"local").or_else(|| strip_name(rest, b"session"));
    name_uncertainty(scoped.map_or(rest, skip_comments), of_name)
}

/// Returns how uncertain changing the parameter named at the start of `rest` makes the settings.
fn name_uncertainty(rest: &[u8], of_name: &impl Fn(&[u8]) -> Uncertainty) -> Uncertainty {
    let is = |words: &[u8]| strip_name(rest, words).is_some();
    match rest.first() {
        Some(b'"') => match memchr::memchr(b'"', &rest[1..]) {
            Some(end) => of_name(&rest[1..=end]),
            None => Uncertainty::Unreported,
        },
        Some(byte) if byte.is_ascii_alphabetic() || *byte == b'_' => {
            if rest.len() > 2 && rest[1] == b'&' {
                return Uncertainty::Unreported; // U&"…"
            }
            match () {
                () if is(b"time") => of_name(b"TimeZone"),
                () if is(b"names") => of_name(b"client_encoding"),
                () if is(b"xml") => of_name(b"xmloption"),
                () => of_name(&rest[..name_bytes(rest)]),
            }
        }
        None => Uncertainty::None,
        Some(_) => Uncertainty::Unreported,
    }
}

fn name_bytes(text: &[u8]) -> usize {
    let is_end = |byte: &u8| !byte.is_ascii_alphanumeric() && !matches!(byte, b'_' | b'.' | b'$');
    text.iter().position(is_end).unwrap_or(text.len())
}

/// Returns the text after the name `word`; `None` if the text does not start with exactly this
/// name.
fn strip_name<'a>(text: &'a [u8], word: &[u8]) -> Option<&'a [u8]> {
    let (front, rest) = text.split_at(name_bytes(text));
    front.eq_ignore_ascii_case(word).then_some(rest)
}

/// The first argument of a call of `set_config`, the name of the setting.
enum SetConfigName<'a> {
    Name(&'a [u8]),
    Parameter,
    Unclear,
}

fn set_config_arguments(sql: &[u8]) -> impl Iterator<Item = SetConfigName<'_>> {
    const WORD: &[u8] = b"set_config";
    memchr::memchr_iter(b'_', sql).filter_map(|at| {
        let start = at.checked_sub(3)?;
        let word = sql.get(start..start + WORD.len())?;
        if !word.eq_ignore_ascii_case(WORD) {
            return None;
        }
        let rest = sql[start + WORD.len()..].trim_ascii_start();
        let Some(rest) = rest.strip_prefix(b"(") else {
            // It may be a quoted name, or have a comment before the parenthesis; otherwise it is
            // not a call.
            return matches!(rest.first(), Some(b'"' | b'-' | b'/'))
                .then_some(SetConfigName::Unclear);
        };
        let rest = rest.trim_ascii_start();
        Some(match rest {
            [b'\'', name @ ..] => match memchr::memchr2(b'\'', b'\\', name) {
                Some(end) if name[end] == b'\'' => SetConfigName::Name(&name[..end]),
                _ => SetConfigName::Unclear,
            },
            [b'$', digit, ..] if digit.is_ascii_digit() => {
                let digits = rest[1..].iter().take_while(|byte| byte.is_ascii_digit()).count();
                let after = rest[1 + digits..].trim_ascii_start();
                let is_alone = matches!(after.first(), Some(b',')) || after.starts_with(b"::");
                if is_alone { SetConfigName::Parameter } else { SetConfigName::Unclear }
            }
            _ => SetConfigName::Unclear,
        })
    })
}

/// Whether a prepared statement with this text may mean something else under other parse settings:
/// it contains a non-ASCII byte, a string literal, a cast, or NULL other than in IS NULL and IS NOT
/// NULL. `false` for a SET in ASCII without backslashes.
pub(crate) fn depends_on_parse_settings(sql: &[u8]) -> bool {
    if !sql.is_ascii() {
        return true; // The meaning of non-ASCII bytes depends on the encoding.
    }
    if strip_keyword(sql.trim_ascii_start(), b"set").is_some() && !sql.contains(&b'\\') {
        return false; // SET is not analyzed before it runs, and the text has no escapes.
    }
    let has_literal = memchr::memchr2_iter(b'\'', b'$', sql)
        .any(|at| sql[at] == b'\'' || !sql.get(at + 1).is_some_and(u8::is_ascii_digit));
    // A cast may convert a constant to text, and `= NULL` may mean IS NULL.
    has_literal || contains(sql, b"::") || contains_keyword(sql, b"cast") || compares_with_null(sql)
}

/// Whether NULL occurs anywhere except in IS NULL and IS NOT NULL.
fn compares_with_null(sql: &[u8]) -> bool {
    keyword_positions(sql, b"null").any(|at| {
        let before = sql[..at].trim_ascii_end();
        let before = strip_last_keyword(before, b"not").unwrap_or(before);
        strip_last_keyword(before, b"is").is_none()
    })
}

/// Returns the text before a trailing keyword and the white space before it; `None` if the text
/// does not end with this keyword.
fn strip_last_keyword<'a>(text: &'a [u8], word: &[u8]) -> Option<&'a [u8]> {
    let (rest, last) = text.split_at_checked(text.len().checked_sub(word.len())?)?;
    let before = rest.trim_ascii_end();
    (last.eq_ignore_ascii_case(word) && before.len() < rest.len()).then_some(before)
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    memchr::memmem::find(text, part).is_some()
}

fn contains_keyword(text: &[u8], word: &[u8]) -> bool {
    keyword_positions(text, word).next().is_some()
}

/// Returns the positions at which `word` occurs as a whole word, ignoring case.
fn keyword_positions<'a>(text: &'a [u8], word: &'a [u8]) -> impl Iterator<Item = usize> + 'a {
    let first = word.first().copied().unwrap_or_default();
    let starts = memchr::memchr2_iter(first, first.to_ascii_uppercase(), text);
    starts.filter(move |at| {
        let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
        let end = at + word.len();
        text.get(*at..end).is_some_and(|found| found.eq_ignore_ascii_case(word))
            && !at.checked_sub(1).is_some_and(|before| is_part(&text[before]))
            && !text.get(end).is_some_and(is_part)
    })
}

/// Returns the text without leading white space and comments.
pub(crate) fn skip_comments(sql: &[u8]) -> &[u8] {
    let mut rest = sql.trim_ascii_start();
    loop {
        if rest.starts_with(b"--") {
            let Some(end) = memchr::memchr2(b'\n', b'\r', rest) else { return &[] };
            rest = rest[end..].trim_ascii_start();
        } else if rest.starts_with(b"/*") {
            let (mut depth, mut at) = (1, 2);
            while depth > 0 {
                let Some(found) = memchr::memchr2(b'*', b'/', rest.get(at..).unwrap_or_default())
                else {
                    return &[];
                };
                at += found;
                match rest.get(at..at + 2) {
                    Some(b"/*") => (depth, at) = (depth + 1, at + 2),
                    Some(b"*/") => (depth, at) = (depth - 1, at + 2),
                    _ => at += 1,
                }
            }
            rest = rest[at..].trim_ascii_start();
        } else {
            return rest;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_that_change_parse_settings_are_found() {
        let is_reported = |name: &[u8]| {
            name.eq_ignore_ascii_case(b"TimeZone") || name.eq_ignore_ascii_case(b"client_encoding")
        };
        const NO: ParseSettingsChange = ParseSettingsChange::Known(Uncertainty::None);
        const REPORTED: ParseSettingsChange = ParseSettingsChange::Known(Uncertainty::Reported);
        const UNREPORTED: ParseSettingsChange = ParseSettingsChange::Known(Uncertainty::Unreported);
        for (sql, change) in [
            ("set timezone = 'UTC'", REPORTED),
            ("SET LOCAL \"TimeZone\" TO 'UTC'", REPORTED),
            ("set session time zone 'UTC'", REPORTED),
            ("set/**/local timezone = 'UTC'", REPORTED),
            ("set local/* a */timezone = 'UTC'", REPORTED),
            ("set names 'latin1'", REPORTED),
            ("set client_encoding=latin1", REPORTED),
            ("set xml option document", UNREPORTED),
            ("set local backslash_quote = on", UNREPORTED),
            ("set U&\"timezone\" = 'UTC'", UNREPORTED),
            ("/* app:a */ set timezone = 'UTC'", REPORTED),
            ("-- a\nset timezone = 'UTC'", REPORTED),
            ("/* a; b */ set timezone = 'UTC'", UNREPORTED),
            ("begin; set local timezone = 'UTC'", REPORTED),
            ("reset timezone", REPORTED),
            ("reset all", REPORTED),
            ("discard all", REPORTED),
            ("do $$ begin set local timezone = 'UTC'; end $$", UNREPORTED),
            ("select set_config('TimeZone', $1, true)", REPORTED),
            ("select pg_catalog.set_config ( 'array_nulls', 'off', true)", UNREPORTED),
            ("select set_config($1, $2, true)", ParseSettingsChange::ByParameter),
            ("select set_config($1 || 'zone', $2, true)", UNREPORTED),
            ("select set_config(name, value, true) from wanted", UNREPORTED),
            ("select \"set_config\"('TimeZone', 'UTC', true)", UNREPORTED),
            ("set local statement_timeout = '1s'", NO),
            ("set local app.tenant = '7'", NO),
            ("set transaction isolation level serializable", NO),
            ("set role bob", NO),
            ("set search_path = a, b", NO),
            ("reset statement_timeout", NO),
            ("select set_config('app.tenant', '7', true)", NO),
            ("select set_config from t", NO),
            ("update t set timezone = 'UTC'", NO),
            ("alter role bob set timezone = 'UTC'", NO),
            ("", NO),
        ] {
            assert_eq!(change_of(sql.as_bytes(), is_reported), change, "{sql}");
        }
    }

    #[test]
    fn only_texts_without_literals_are_independent_of_parse_settings() {
        for sql in [
            "select a, b from t where id = $1 and n > 5 and c is not null order by d limit 10",
            "insert into t (a, b) values ($1, $2)",
            "update t set a = $1 where b IS NULL",
            "set local timezone = 'UTC'",
            "begin",
        ] {
            assert!(!depends_on_parse_settings(sql.as_bytes()), "{sql}");
        }
        for sql in [
            "select '2024-01-01'::timestamptz",
            "select timestamptz $$2024-01-01$$",
            "select $a$x$a$",
            "select ä from t",
            "select 1 where $1 = null",
            "select sqrt(2)::text",
            "select cast(sqrt(2) as text)",
            r"set a = '\''",
        ] {
            assert!(depends_on_parse_settings(sql.as_bytes()), "{sql}");
        }
    }

    #[test]
    fn incomplete_texts_are_scanned_without_panic() {
        for sql in [
            "set",
            "set ",
            "set \"",
            "/*",
            "/* /* */",
            "--",
            "set_config(",
            "set_config('",
            "reset",
            "set local",
            "$",
        ] {
            change_of(sql.as_bytes(), |_| false);
            depends_on_parse_settings(sql.as_bytes());
        }
    }
}
