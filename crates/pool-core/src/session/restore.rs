//! Finds the session parameters that a statement resets, so that the pooler can restore them.
//!
//! A client expects RESET to restore the value that it requested at startup. A server does not know
//! that value: its session started with the pooler's login. So the pooler sets the client's startup
//! parameters again after a statement that reset them.

mod splice;

pub(crate) use splice::{SplicedQuery, splice, unambiguous_statements};

use crate::{
    prepared::parse_settings::skip_comments,
    session::{
        parameter::{SessionParameter, eq_name},
        state::strip_keyword,
    },
};

/// Returns the startup parameters that a query string resets; `None` if it changes no parameters
/// beyond its transaction. A parameter that is set again later in the string is not included.
/// Statements are split at every semicolon, even within literals.
pub(crate) fn parameters_reset_by(
    sql: &[u8],
    startup: &[SessionParameter],
) -> Option<Vec<SessionParameter>> {
    let is_lasting =
        |change: &ParameterChange<'_>| !matches!(change, ParameterChange::ResetLocal(_));
    let changes = || {
        let of = statements(sql)
            .filter_map(|statement| ParameterChange::from_statement(statement.trim_ascii()));
        of.filter(is_lasting)
    };
    changes().next()?; // Few texts change a parameter; for the others, nothing is allocated.
    let mut is_reset = vec![false; startup.len()];
    for change in changes() {
        for (parameter, is_reset) in startup.iter().zip(&mut is_reset) {
            match change {
                ParameterChange::ResetAll => *is_reset = true,
                ParameterChange::Reset(name) if eq_name(name, &parameter.name) => *is_reset = true,
                ParameterChange::Set(name) if eq_name(name, &parameter.name) => *is_reset = false,
                _ => {}
            }
        }
    }
    let reset = startup.iter().zip(is_reset).filter(|(_, is_reset)| *is_reset);
    Some(reset.map(|(parameter, _)| parameter.clone()).collect())
}

/// Whether a query string contains a statement that sets or resets session parameters. SET LOCAL
/// counts only if it sets a parameter to its default.
#[inline]
pub(crate) fn changes_parameters(sql: &[u8]) -> bool {
    statements(sql)
        .any(|statement| ParameterChange::from_statement(statement.trim_ascii()).is_some())
}

/// A portal whose statement resets parameters, with the startup values to restore.
#[derive(Debug)]
pub(crate) struct ResettingPortal {
    pub(crate) portal: Box<[u8]>,
    pub(crate) parameters: Vec<SessionParameter>,
    /// Whether the reset ends with the transaction.
    pub(crate) is_local: bool,
}

/// Returns the startup parameters that a single statement resets, and whether the reset ends with
/// the transaction. Returns `None` if it resets none of them.
pub(crate) fn parameters_reset_by_statement(
    sql: &[u8],
    startup: &[SessionParameter],
) -> Option<(Vec<SessionParameter>, bool)> {
    let sql = sql.trim_ascii();
    let change =
        ParameterChange::from_statement(sql.strip_suffix(b";").unwrap_or(sql).trim_ascii_end())?;
    let reset: Vec<_> = startup.iter().filter(|it| change.resets(it)).cloned().collect();
    (!reset.is_empty()).then_some((reset, matches!(change, ParameterChange::ResetLocal(_))))
}

fn statements(sql: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = Some(sql);
    std::iter::from_fn(move || {
        let text = rest?;
        let end = memchr::memchr(b';', text);
        rest = end.map(|end| &text[end + 1..]);
        Some(&text[..end.unwrap_or(text.len())])
    })
}

/// A change that a statement makes to session parameters.
enum ParameterChange<'a> {
    ResetAll,
    Reset(&'a [u8]),
    /// SET LOCAL to the default, which lasts until the end of the transaction.
    ResetLocal(&'a [u8]),
    Set(&'a [u8]),
}

impl<'a> ParameterChange<'a> {
    fn resets(&self, parameter: &SessionParameter) -> bool {
        match self {
            Self::ResetAll => true,
            Self::Reset(name) | Self::ResetLocal(name) => eq_name(name, &parameter.name),
            Self::Set(_) => false,
        }
    }

    fn from_statement(statement: &'a [u8]) -> Option<Self> {
        let statement = match statement.first()? {
            b'-' | b'/' => skip_comments(statement),
            _ => statement,
        };
        match statement.first()? | 0x20 {
            b'r' => Some(match before_comment(strip_keyword(statement, b"reset")?) {
                name if name.eq_ignore_ascii_case(b"all") => Self::ResetAll,
                name if eq_keywords(name, &[b"time", b"zone"]) => Self::Reset(b"TimeZone"),
                name => Self::Reset(unquoted(name)),
            }),
            b'd' => eq_keywords(before_comment(statement), &[b"discard", b"all"])
                .then_some(Self::ResetAll),
            b's' => Self::from_set(strip_keyword(statement, b"set")?),
            _ => None,
        }
    }

    /// Parses the text after SET. Returns `None` for a SET LOCAL to a value other than the default,
    /// and for text that is not understood.
    fn from_set(rest: &'a [u8]) -> Option<Self> {
        if let Some(rest) = strip_keyword(rest, b"local") {
            // SET LOCAL ends with the transaction, and the previous value returns.
            return match Self::from_set(rest)? {
                Self::Reset(name) => Some(Self::ResetLocal(name)),
                _ => None,
            };
        }
        let rest = strip_keyword(rest, b"session").unwrap_or(rest);
        let (name, value) = if let Some(zone) = strip_keyword(rest, b"time") {
            (&b"TimeZone"[..], strip_keyword(zone, b"zone")?)
        } else if let Some(value) = strip_keyword(rest, b"names") {
            (&b"client_encoding"[..], value)
        } else {
            let is_end = |byte: &u8| byte.is_ascii_whitespace() || *byte == b'=';
            let (name, value) = rest.split_at(rest.iter().position(is_end)?);
            let value = value.trim_ascii_start();
            let value = value.strip_prefix(b"=").or_else(|| strip_keyword(value, b"to"))?;
            (unquoted(name), value.trim_ascii_start())
        };
        let value = before_comment(value);
        let is_local = value.eq_ignore_ascii_case(b"local") && eq_name(name, b"TimeZone");
        let is_default = value.eq_ignore_ascii_case(b"default") || is_local;
        Some(if is_default { Self::Reset(name) } else { Self::Set(name) })
    }
}

fn eq_keywords(text: &[u8], words: &[&[u8]]) -> bool {
    let found = text.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    found.map(<[u8]>::to_ascii_lowercase).eq(words.iter().map(|word| word.to_vec()))
}

/// Returns the text before the first comment, without white space and semicolons at its end. A
/// comment marker within quotes is not recognized as such, which only hides a name.
fn before_comment(text: &[u8]) -> &[u8] {
    let starts = |marker| memchr::memmem::find(text, marker).unwrap_or(text.len());
    let mut text = &text[..starts(b"--").min(starts(b"/*"))];
    while let [rest @ .., b';' | b' ' | b'\t' | b'\r' | b'\n'] = text {
        text = rest;
    }
    text
}

fn unquoted(name: &[u8]) -> &[u8] {
    name.strip_prefix(b"\"").and_then(|name| name.strip_suffix(b"\"")).unwrap_or(name)
}

#[test]
fn reset_parameters_are_found_in_text() {
    let startup =
        ["TimeZone", "application_name", "work_mem"].map(|name| SessionParameter::new(name, "x"));
    let names = |sql: &str| {
        let reset = parameters_reset_by(sql.as_bytes(), &startup)?;
        let name =
            |parameter: &SessionParameter| String::from_utf8_lossy(&parameter.name).into_owned();
        Some(reset.iter().map(name).collect::<Vec<_>>().join(","))
    };
    for (sql, reset) in [
        ("RESET ALL", Some("TimeZone,application_name,work_mem")),
        (" discard  All ; ", Some("TimeZone,application_name,work_mem")),
        ("select 1; close all; reset all;", Some("TimeZone,application_name,work_mem")),
        ("reset all; set work_mem = 5", Some("TimeZone,application_name")),
        ("reset TIMEZONE", Some("TimeZone")),
        ("reset time zone", Some("TimeZone")),
        ("set time zone local", Some("TimeZone")),
        ("set session work_mem to default", Some("work_mem")),
        ("set work_mem=DEFAULT", Some("work_mem")),
        ("set \"work_mem\" = 1", Some("")),
        ("set local work_mem to default", None),
        ("reset statement_timeout", Some("")),
        ("select 'reset all'", None),
        ("discard temp", None),
        ("RESET ALL -- at the end of a request", Some("TimeZone,application_name,work_mem")),
        ("/* app */ reset timezone /* x */", Some("TimeZone")),
        ("discard all/* x */", Some("TimeZone,application_name,work_mem")),
        ("-- x\nset work_mem = default -- y", Some("work_mem")),
        ("reset all; -- x", Some("TimeZone,application_name,work_mem")),
        ("settle", None),
    ] {
        assert_eq!(names(sql).as_deref(), reset, "{sql}");
    }
}
