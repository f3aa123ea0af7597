//! The statements by which a session says where its requests go, and what they answer.
//!
//! The syntax is PgCat's: any case, spaces at the ends, one semicolon. Other than there, keys may be of every
//! type that a map has, words may stand without quotes throughout, and any number of spaces is as good as one.

use crate::{Refusal, role::RolePreference};

/// One of the statements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// `SET SHARD TO 'n'`; none is `ANY`.
    SetShard(Option<u32>),
    /// `SHOW SHARD`.
    ShowShard,
    /// `SET SHARDING KEY TO 'k'`, or `'k', 'l'` where a key has two columns.
    SetShardingKey(Vec<String>),
    /// `SET SERVER ROLE TO 'role'`; none is `DEFAULT`.
    SetServerRole(Option<RolePreference>),
    /// `SHOW SERVER ROLE`.
    ShowServerRole,
    /// `SET PRIMARY READS TO 'on'`; none is `DEFAULT`.
    SetPrimaryReads(Option<bool>),
    /// `SHOW PRIMARY READS`.
    ShowPrimaryReads,
    /// `SET READ YOUR WRITES TO 'on'`; none is `DEFAULT`.
    SetReadYourWrites(Option<bool>),
    /// `SHOW READ YOUR WRITES`.
    ShowReadYourWrites,
}

/// What a command answers: a row, if it is a `SHOW`, and the tag of CommandComplete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The only column's name and value, of type `text`.
    pub row: Option<(&'static str, String)>,
    /// The tag: `SET SHARD`, `SELECT 1`.
    pub tag: &'static str,
}

/// Columns that a sharding key may have, at most.
const COLUMNS_MAX: usize = 32;

impl Command {
    /// Reads a query that is one of the commands; `None` if it is something else.
    ///
    /// What is no command is known by its first bytes: by the third of a SELECT, by the fifth of a SET.
    ///
    /// # Errors
    ///
    /// It is a command, but not with this value.
    ///
    /// ```
    /// use howdah_route::{Command, RolePreference};
    ///
    /// let role = Command::read(b"set server role to 'Replica';").expect("a command");
    /// assert_eq!(role, Ok(Command::SetServerRole(Some(RolePreference::Replica))));
    /// assert_eq!(Command::read(b"set search_path to 'app'"), None);
    /// ```
    #[inline]
    pub fn read(query: &[u8]) -> Option<Result<Self, Refusal>> {
        let [first, second, third, ..] = query else { return None };
        match (first | 0x20, second | 0x20, third | 0x20) {
            (b's', b'e', b't') | (b's', b'h', b'o') => Self::read_on(query),
            // Spaces, and control characters with that bit set.
            (b' '..=b'-', ..) => Self::read_on(query),
            _ => None,
        }
    }

    #[inline(never)]
    fn read_on(query: &[u8]) -> Option<Result<Self, Refusal>> {
        let start = query.iter().position(|byte| !byte.is_ascii_whitespace())?;
        let [s, second, third, rest @ ..] = &query[start..] else { return None };
        match (s | 0x20, second | 0x20, third | 0x20) {
            (b's', b'e', b't') => set(rest),
            (b's', b'h', b'o') => match rest {
                [w, rest @ ..] if w | 0x20 == b'w' => show(rest).map(Ok),
                _ => None,
            },
            _ => None,
        }
    }

    /// The only column of its answer, if it has one.
    pub fn column(&self) -> Option<&'static str> {
        match self {
            Self::ShowShard => Some("shard"),
            Self::ShowServerRole => Some("server role"),
            Self::ShowPrimaryReads => Some("primary reads"),
            Self::ShowReadYourWrites => Some("read your writes"),
            _ => None,
        }
    }

    /// The tag it is answered with.
    pub(crate) fn tag(&self) -> &'static str {
        match self {
            Self::SetShard(_) => "SET SHARD",
            Self::SetShardingKey(_) => "SET SHARDING KEY",
            Self::SetServerRole(_) => "SET SERVER ROLE",
            Self::SetPrimaryReads(_) => "SET PRIMARY READS",
            Self::SetReadYourWrites(_) => "SET READ YOUR WRITES",
            Self::ShowShard
            | Self::ShowServerRole
            | Self::ShowPrimaryReads
            | Self::ShowReadYourWrites => "SELECT 1",
        }
    }
}

/// Behind `SET`.
fn set(rest: &[u8]) -> Option<Result<Command, Refusal>> {
    // Before anything else is looked at: nearly every SET is of another thing.
    let rest = spaces(rest)?;
    if !matches!(rest.first().map(|byte| byte | 0x20), Some(b's' | b'p' | b'r')) {
        return None;
    }
    let value = |rest| values(words(rest, &["to"])?);
    if let Some(rest) = words(rest, &["shard"]) {
        return Some(shard(single(value(rest)?)?));
    }
    if let Some(rest) = words(rest, &["sharding", "key"]) {
        return Some(Ok(Command::SetShardingKey(value(rest)?)));
    }
    if let Some(rest) = words(rest, &["server", "role"]) {
        return Some(role(single(value(rest)?)?).map(Command::SetServerRole));
    }
    if let Some(rest) = words(rest, &["read", "your", "writes"]) {
        let is_on = switch("READ YOUR WRITES", single(value(rest)?)?);
        return Some(is_on.map(Command::SetReadYourWrites));
    }
    let rest = words(rest, &["primary", "reads"])?;
    Some(switch("PRIMARY READS", single(value(rest)?)?).map(Command::SetPrimaryReads))
}

/// Behind `SHOW`.
fn show(rest: &[u8]) -> Option<Command> {
    let rest = spaces(rest)?;
    let is = |names: &[&str]| words(rest, names).is_some_and(is_end);
    match rest.first()? | 0x20 {
        b's' if is(&["shard"]) => Some(Command::ShowShard),
        b's' if is(&["server", "role"]) => Some(Command::ShowServerRole),
        b'p' if is(&["primary", "reads"]) => Some(Command::ShowPrimaryReads),
        b'r' if is(&["read", "your", "writes"]) => Some(Command::ShowReadYourWrites),
        _ => None,
    }
}

fn shard(value: String) -> Result<Command, Refusal> {
    if value.eq_ignore_ascii_case("any") {
        return Ok(Command::SetShard(None));
    }
    match value.parse() {
        Ok(shard) => Ok(Command::SetShard(Some(shard))),
        Err(_) => Err(Refusal::Value { what: "SHARD", value, wanted: "a number, or ANY" }),
    }
}

fn role(value: String) -> Result<Option<RolePreference>, Refusal> {
    if value.eq_ignore_ascii_case("default") {
        return Ok(None);
    }
    let wish = RolePreference::parse(&value);
    let wanted = "primary, replica, any, auto or default";
    wish.map(Some).ok_or(Refusal::Value { what: "SERVER ROLE", value, wanted })
}

fn switch(what: &'static str, value: String) -> Result<Option<bool>, Refusal> {
    let is = |word: &str| value.eq_ignore_ascii_case(word);
    match () {
        () if is("on") => Ok(Some(true)),
        () if is("off") => Ok(Some(false)),
        () if is("default") => Ok(None),
        () => Err(Refusal::Value { what, value, wanted: "on, off or default" }),
    }
}

/// Behind one space or more.
fn spaces(text: &[u8]) -> Option<&[u8]> {
    let rest = text.trim_ascii_start();
    (rest.len() < text.len()).then_some(rest)
}

/// Behind words, the first of which is at the front, and the spaces between them. Behind the last a space,
/// a semicolon or the end follows.
fn words<'a>(mut text: &'a [u8], names: &[&str]) -> Option<&'a [u8]> {
    for name in names {
        let (word, rest) = text.trim_ascii_start().split_at_checked(name.len())?;
        let is_over = rest.first().is_none_or(|byte| byte.is_ascii_whitespace() || *byte == b';');
        if !(word.eq_ignore_ascii_case(name.as_bytes()) && is_over) {
            return None;
        }
        text = rest;
    }
    Some(text)
}

/// Nothing but spaces and one semicolon.
fn is_end(text: &[u8]) -> bool {
    matches!(text.trim_ascii(), b"" | b";")
}

/// Values behind `TO`, up to the end, between commas; or something that is not of this syntax.
fn values(text: &[u8]) -> Option<Vec<String>> {
    let mut values = Vec::new();
    let mut rest = spaces(text)?;
    while values.len() < COLUMNS_MAX {
        let (value, behind) = value(rest)?;
        values.push(value);
        let behind = behind.trim_ascii_start();
        match behind.strip_prefix(b",") {
            Some(next) => rest = next.trim_ascii_start(),
            None => return is_end(behind).then_some(values),
        }
    }
    None
}

fn single(mut values: Vec<String>) -> Option<String> {
    if values.len() > 1 { None } else { values.pop() }
}

/// In quotes, which are doubled within, or a bare word or number.
fn value(text: &[u8]) -> Option<(String, &[u8])> {
    let Some(mut rest) = text.strip_prefix(b"'") else {
        let is_bare = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
        let end = text.iter().position(|byte| !is_bare(byte)).unwrap_or(text.len());
        let (bare, rest) = text.split_at(end);
        return (end > 0).then(|| (String::from_utf8_lossy(bare).into_owned(), rest));
    };
    let mut value = Vec::new();
    loop {
        let end = memchr::memchr(b'\'', rest)?;
        value.extend_from_slice(&rest[..end]);
        rest = &rest[end + 1..];
        match rest.strip_prefix(b"'") {
            Some(behind) => {
                value.push(b'\'');
                rest = behind;
            }
            // A key in another encoding than UTF-8 would be another key on a server.
            None => return Some((String::from_utf8(value).ok()?, rest)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_read_in_any_case_with_spaces_and_a_semicolon() {
        let key = |keys: &[&str]| {
            Command::SetShardingKey(keys.iter().map(|key| (*key).to_owned()).collect())
        };
        let cases = [
            ("SET SHARD TO '1'", Command::SetShard(Some(1))),
            (" set shard to 3 ; ", Command::SetShard(Some(3))),
            ("SET SHARD TO 'ANY'", Command::SetShard(None)),
            ("set shard to any;", Command::SetShard(None)),
            ("SHOW SHARD", Command::ShowShard),
            ("show  shard;", Command::ShowShard),
            ("SET SHARDING KEY TO '1234'", key(&["1234"])),
            ("SET SHARDING KEY TO 1234;", key(&["1234"])),
            ("set sharding key to '-5'", key(&["-5"])),
            ("set sharding key to 'it''s', 'ü'", key(&["it's", "ü"])),
            ("SET SERVER ROLE TO 'primary'", Command::SetServerRole(Some(RolePreference::Primary))),
            ("set server role to 'AUTO' ;", Command::SetServerRole(Some(RolePreference::Auto))),
            ("set server role to 'default'", Command::SetServerRole(None)),
            ("SHOW SERVER ROLE", Command::ShowServerRole),
            ("SET PRIMARY READS TO 'on'", Command::SetPrimaryReads(Some(true))),
            ("set primary reads to OFF", Command::SetPrimaryReads(Some(false))),
            ("set primary reads to default", Command::SetPrimaryReads(None)),
            ("show primary reads", Command::ShowPrimaryReads),
            ("SET READ YOUR WRITES TO 'on'", Command::SetReadYourWrites(Some(true))),
            ("set read your writes to default;", Command::SetReadYourWrites(None)),
            ("show read  your writes;", Command::ShowReadYourWrites),
        ];
        for (query, command) in cases {
            assert_eq!(Command::read(query.as_bytes()), Some(Ok(command)), "{query}");
        }
    }

    #[test]
    fn what_is_something_else_is_left_to_the_server() {
        for query in [
            "",
            " ",
            "s",
            "set",
            "select 1",
            "set shard",
            "set shard to",
            "set shard to '1",
            "set shard to '1' 2",
            "set shard to '1';;",
            "set shard to '1'; select 1",
            "set shard = '1'",
            "set sharding_key to '1'",
            "set shards to '1'",
            "set session role to 'primary'",
            "set shard to '1', '2'",
            "set search_path to 'a'",
            "setshard to '1'",
            "set read your own writes to 'on'",
            "set role to 'primary'",
            "show shards",
            "show shard 1",
            "show server_version",
            "show",
            "/* a */ set shard to '1'",
        ] {
            assert_eq!(Command::read(query.as_bytes()), None, "{query}");
        }
        assert_eq!(Command::read(b"set sharding key to '\xff'"), None);
    }

    #[test]
    fn commands_with_other_values_are_refused() {
        for query in [
            "set shard to '-1'",
            "set shard to '99999999999'",
            "set shard to x",
            "set server role to 'leader'",
            "set primary reads to 'maybe'",
            "set read your writes to 'always'",
        ] {
            assert!(matches!(Command::read(query.as_bytes()), Some(Err(_))), "{query}");
        }
    }

    proptest::proptest! {
        #[test]
        fn keys_come_back_as_they_were_quoted(key in ".{0,20}") {
            let query = format!("SET SHARDING KEY TO '{}'", key.replace('\'', "''"));
            let read = Command::read(query.as_bytes());
            assert_eq!(read, Some(Ok(Command::SetShardingKey(vec![key]))));
        }

        #[test]
        fn any_bytes_are_a_command_or_not(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..60)) {
            let query = [b"set shard to ", &bytes[..]].concat();
            drop(Command::read(&query));
            drop(Command::read(&bytes));
        }
    }
}
