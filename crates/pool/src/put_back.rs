//! Which settings a text puts back to what the session began with.
//!
//! For a client, RESET leads to what it asked for at its start. A server knows nothing of that: its
//! session began with the pooler's login. So the pooler sets what the client asked for, after a
//! statement that reset it.

mod weave;

pub(crate) use weave::{SplicedQuery, plain_statements, weave};

use crate::{
    dirt::strip_word,
    settings::{Setting, same_name},
};

/// Of the settings that a client began with, those that a query string puts back; `None` if it does
/// nothing to settings. A statement that sets one of them again after that leaves it out. Statements
/// are told apart by semicolons, wherever those stand.
pub(crate) fn put_back(sql: &[u8], startup: &[Setting]) -> Option<Vec<Setting>> {
    let lasts = |change: &Change<'_>| !matches!(change, Change::BackHere(_));
    let changes = || {
        let of = statements(sql).filter_map(|statement| Change::of(statement.trim_ascii()));
        of.filter(lasts)
    };
    changes().next()?; // Nearly no text does anything, and that costs no memory.
    let mut is_back = vec![false; startup.len()];
    for change in changes() {
        for (setting, is_back) in startup.iter().zip(&mut is_back) {
            match change {
                Change::AllBack => *is_back = true,
                Change::Back(name) if same_name(name, &setting.name) => *is_back = true,
                Change::Set(name) if same_name(name, &setting.name) => *is_back = false,
                _ => {}
            }
        }
    }
    let back = startup.iter().zip(is_back).filter(|(_, is_back)| *is_back);
    Some(back.map(|(setting, _)| setting.clone()).collect())
}

/// Whether a query string does anything to settings.
#[inline]
pub(crate) fn touches_settings(sql: &[u8]) -> bool {
    statements(sql).any(|statement| Change::of(statement.trim_ascii()).is_some())
}

/// A portal whose statement puts settings back.
#[derive(Debug)]
pub(crate) struct ResettingPortal {
    pub(crate) portal: Box<[u8]>,
    pub(crate) back: Vec<Setting>,
    /// Whether that ends with the transaction.
    pub(crate) is_local: bool,
}

/// What a single statement puts back of what a client began with, and whether that ends with the
/// transaction.
pub(crate) fn put_back_by(sql: &[u8], startup: &[Setting]) -> Option<(Vec<Setting>, bool)> {
    let sql = sql.trim_ascii();
    let change = Change::of(sql.strip_suffix(b";").unwrap_or(sql).trim_ascii_end())?;
    let back: Vec<_> = startup.iter().filter(|it| change.puts_back(it)).cloned().collect();
    (!back.is_empty()).then_some((back, matches!(change, Change::BackHere(_))))
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

/// What a statement does to settings.
enum Change<'a> {
    AllBack,
    Back(&'a [u8]),
    /// Until the transaction ends.
    BackHere(&'a [u8]),
    Set(&'a [u8]),
}

impl<'a> Change<'a> {
    fn puts_back(&self, setting: &Setting) -> bool {
        match self {
            Self::AllBack => true,
            Self::Back(name) | Self::BackHere(name) => same_name(name, &setting.name),
            Self::Set(_) => false,
        }
    }

    fn of(statement: &'a [u8]) -> Option<Self> {
        match statement.first()? | 0x20 {
            b'r' => Some(match strip_word(statement, b"reset")? {
                name if name.eq_ignore_ascii_case(b"all") => Self::AllBack,
                name if is_words(name, &[b"time", b"zone"]) => Self::Back(b"TimeZone"),
                name => Self::Back(unquoted(name)),
            }),
            b'd' => is_words(statement, &[b"discard", b"all"]).then_some(Self::AllBack),
            b's' => Self::of_set(strip_word(statement, b"set")?),
            _ => None,
        }
    }

    /// What follows SET.
    fn of_set(rest: &'a [u8]) -> Option<Self> {
        if let Some(rest) = strip_word(rest, b"local") {
            // It ends with the transaction, and what was before comes back.
            return match Self::of_set(rest)? {
                Self::Back(name) => Some(Self::BackHere(name)),
                _ => None,
            };
        }
        let rest = strip_word(rest, b"session").unwrap_or(rest);
        let (name, value) = if let Some(zone) = strip_word(rest, b"time") {
            (&b"TimeZone"[..], strip_word(zone, b"zone")?)
        } else if let Some(value) = strip_word(rest, b"names") {
            (&b"client_encoding"[..], value)
        } else {
            let is_end = |byte: &u8| byte.is_ascii_whitespace() || *byte == b'=';
            let (name, value) = rest.split_at(rest.iter().position(is_end)?);
            let value = value.trim_ascii_start();
            let value = value.strip_prefix(b"=").or_else(|| strip_word(value, b"to"))?;
            (unquoted(name), value.trim_ascii_start())
        };
        let is_local = value.eq_ignore_ascii_case(b"local") && same_name(name, b"TimeZone");
        let is_default = value.eq_ignore_ascii_case(b"default") || is_local;
        Some(if is_default { Self::Back(name) } else { Self::Set(name) })
    }
}

fn is_words(text: &[u8], words: &[&[u8]]) -> bool {
    let found = text.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    found.map(<[u8]>::to_ascii_lowercase).eq(words.iter().map(|word| word.to_vec()))
}

fn unquoted(name: &[u8]) -> &[u8] {
    name.strip_prefix(b"\"").and_then(|name| name.strip_suffix(b"\"")).unwrap_or(name)
}

#[test]
fn what_goes_back_is_told_by_the_text() {
    let startup = ["TimeZone", "application_name", "work_mem"].map(|name| Setting::new(name, "x"));
    let names = |sql: &str| {
        let back = put_back(sql.as_bytes(), &startup)?;
        let name = |setting: &Setting| String::from_utf8_lossy(&setting.name).into_owned();
        Some(back.iter().map(name).collect::<Vec<_>>().join(","))
    };
    for (sql, back) in [
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
        ("settle", None),
    ] {
        assert_eq!(names(sql).as_deref(), back, "{sql}");
    }
}
