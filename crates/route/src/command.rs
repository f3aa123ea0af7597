//! Statements by which a client controls the routing of its session, and their replies.
//!
//! The syntax is PgCat's: case is ignored, and spaces at the ends and one semicolon are allowed. In
//! addition, keys may have any type that a shard map supports, values may be unquoted, and words
//! may be separated by several spaces.

use crate::{Refusal, role::RolePreference};

/// A statement that controls routing and is not sent to a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouteCommand {
    /// `SET SHARD TO 'n'`: selects this shard. `None` is `ANY`, which selects a random shard.
    SetShard(Option<u32>),
    /// `SHOW SHARD`: returns the number of the current shard, or `unset`.
    ShowShard,
    /// `SET SHARDING KEY TO 'k'`, or `'k', 'l'` for a key with two columns: selects the key's
    /// shard.
    SetShardingKey(Vec<String>),
    /// `SET SERVER ROLE TO 'role'`: sets the role of the servers that requests go to. `None` is
    /// `DEFAULT`.
    SetServerRole(Option<RolePreference>),
    /// `SHOW SERVER ROLE`: returns the role in effect.
    ShowServerRole,
    /// `SET PRIMARY READS TO 'on'`: sets whether reads may go to the primary. `None` is `DEFAULT`.
    SetPrimaryReads(Option<bool>),
    /// `SHOW PRIMARY READS`: returns `on` or `off`.
    ShowPrimaryReads,
    /// `SET READ YOUR WRITES TO 'on'`: sets whether reads must see the client's own writes. `None`
    /// is `DEFAULT`.
    SetReadYourWrites(Option<bool>),
    /// `SHOW READ YOUR WRITES`: returns `on` or `off`.
    ShowReadYourWrites,
}

/// The reply to a command: a row for a `SHOW`, and the CommandComplete tag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandAnswer {
    /// Name and value of the row's only column, which has type `text`; `None` for a `SET`.
    pub row: Option<(&'static str, String)>,
    /// The command tag, such as `SET SHARD` or `SELECT 1`.
    pub tag: &'static str,
}

/// Maximum number of columns of a sharding key: `PARTITION_MAX_KEYS` in PostgreSQL.
const COLUMNS_MAX: usize = 32;

impl RouteCommand {
    /// Parses a query that is a routing command; `None` if it is any other statement.
    ///
    /// Other statements are recognized by their first bytes: a SELECT by the third, most SETs by
    /// the fifth.
    ///
    /// # Errors
    ///
    /// The text is a command with an invalid value.
    ///
    /// ```
    /// use howdah_route::{RouteCommand, RolePreference};
    ///
    /// let role = RouteCommand::read(b"set server role to 'Replica';").expect("a command");
    /// assert_eq!(role, Ok(RouteCommand::SetServerRole(Some(RolePreference::Replica))));
    /// assert_eq!(RouteCommand::read(b"set search_path to 'app'"), None);
    /// ```
    #[inline]
    pub fn read(query: &[u8]) -> Option<Result<Self, Refusal>> {
        let [first, second, third, ..] = query else { return None };
        match (first | 0x20, second | 0x20, third | 0x20) {
            (b's', b'e', b't') | (b's', b'h', b'o') => Self::read_on(query),
            // A leading space or control character, after the case bit is set.
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

    /// Returns the name of the only column of the reply, if it has one.
    pub fn column(&self) -> Option<&'static str> {
        match self {
            Self::ShowShard => Some("shard"),
            Self::ShowServerRole => Some("server role"),
            Self::ShowPrimaryReads => Some("primary reads"),
            Self::ShowReadYourWrites => Some("read your writes"),
            _ => None,
        }
    }

    /// Returns the CommandComplete tag of the reply.
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

/// Parses the text after `SET`.
fn set(rest: &[u8]) -> Option<Result<RouteCommand, Refusal>> {
    // Check the first byte, because nearly every SET is for a session parameter.
    let rest = spaces(rest)?;
    if !matches!(rest.first().map(|byte| byte | 0x20), Some(b's' | b'p' | b'r')) {
        return None;
    }
    let value = |rest| values(keywords(rest, &["to"])?);
    if let Some(rest) = keywords(rest, &["shard"]) {
        return Some(shard(single(value(rest)?)?));
    }
    if let Some(rest) = keywords(rest, &["sharding", "key"]) {
        return Some(Ok(RouteCommand::SetShardingKey(value(rest)?)));
    }
    if let Some(rest) = keywords(rest, &["server", "role"]) {
        return Some(role(single(value(rest)?)?).map(RouteCommand::SetServerRole));
    }
    if let Some(rest) = keywords(rest, &["read", "your", "writes"]) {
        let is_on = switch("READ YOUR WRITES", single(value(rest)?)?);
        return Some(is_on.map(RouteCommand::SetReadYourWrites));
    }
    let rest = keywords(rest, &["primary", "reads"])?;
    Some(switch("PRIMARY READS", single(value(rest)?)?).map(RouteCommand::SetPrimaryReads))
}

/// Parses the text after `SHOW`.
fn show(rest: &[u8]) -> Option<RouteCommand> {
    let rest = spaces(rest)?;
    let is = |names: &[&str]| keywords(rest, names).is_some_and(is_only_semicolon);
    match rest.first()? | 0x20 {
        b's' if is(&["shard"]) => Some(RouteCommand::ShowShard),
        b's' if is(&["server", "role"]) => Some(RouteCommand::ShowServerRole),
        b'p' if is(&["primary", "reads"]) => Some(RouteCommand::ShowPrimaryReads),
        b'r' if is(&["read", "your", "writes"]) => Some(RouteCommand::ShowReadYourWrites),
        _ => None,
    }
}

fn shard(value: String) -> Result<RouteCommand, Refusal> {
    if value.eq_ignore_ascii_case("any") {
        return Ok(RouteCommand::SetShard(None));
    }
    match value.parse() {
        Ok(shard) => Ok(RouteCommand::SetShard(Some(shard))),
        Err(_) => Err(Refusal::Value { parameter: "SHARD", value, expected: "a number or ANY" }),
    }
}

fn role(value: String) -> Result<Option<RolePreference>, Refusal> {
    if value.eq_ignore_ascii_case("default") {
        return Ok(None);
    }
    let role = RolePreference::parse(&value);
    let expected = "primary, replica, prefer-replica, any, auto or default";
    role.map(Some).ok_or(Refusal::Value { parameter: "SERVER ROLE", value, expected })
}

fn switch(parameter: &'static str, value: String) -> Result<Option<bool>, Refusal> {
    let is = |word: &str| value.eq_ignore_ascii_case(word);
    match () {
        () if is("on") => Ok(Some(true)),
        () if is("off") => Ok(Some(false)),
        () if is("default") => Ok(None),
        () => Err(Refusal::Value { parameter, value, expected: "on, off or default" }),
    }
}

/// Returns the text after leading white space; `None` if it does not start with white space.
fn spaces(text: &[u8]) -> Option<&[u8]> {
    let rest = text.trim_ascii_start();
    (rest.len() < text.len()).then_some(rest)
}

/// Returns the text after these keywords, which spaces may precede; `None` if the text starts
/// differently. Each keyword must be followed by a space, a semicolon or the end.
fn keywords<'a>(mut text: &'a [u8], names: &[&str]) -> Option<&'a [u8]> {
    for name in names {
        let (word, rest) = text.trim_ascii_start().split_at_checked(name.len())?;
        let is_separated =
            rest.first().is_none_or(|byte| byte.is_ascii_whitespace() || *byte == b';');
        if !(word.eq_ignore_ascii_case(name.as_bytes()) && is_separated) {
            return None;
        }
        text = rest;
    }
    Some(text)
}

/// Whether the text contains only spaces and at most one semicolon.
fn is_only_semicolon(text: &[u8]) -> bool {
    matches!(text.trim_ascii(), b"" | b";")
}

/// Returns the comma-separated values after `TO` up to the end; `None` if the syntax does not
/// match, or there are more than [`COLUMNS_MAX`] values.
fn values(text: &[u8]) -> Option<Vec<String>> {
    let mut values = Vec::new();
    let mut rest = spaces(text)?;
    while values.len() < COLUMNS_MAX {
        let (value, behind) = value(rest)?;
        values.push(value);
        let behind = behind.trim_ascii_start();
        match behind.strip_prefix(b",") {
            Some(next) => rest = next.trim_ascii_start(),
            None => return is_only_semicolon(behind).then_some(values),
        }
    }
    None
}

fn single(mut values: Vec<String>) -> Option<String> {
    if values.len() > 1 { None } else { values.pop() }
}

/// Parses a quoted value, in which quotes are doubled, or an unquoted word or number. Also returns
/// the remaining text.
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
            // Text that is not UTF-8 is in an unknown encoding, so its key on the server is
            // unknown.
            None => return Some((String::from_utf8(value).ok()?, rest)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_allow_any_case_spaces_and_semicolon() {
        let key = |keys: &[&str]| {
            RouteCommand::SetShardingKey(keys.iter().map(|key| (*key).to_owned()).collect())
        };
        let cases = [
            ("SET SHARD TO '1'", RouteCommand::SetShard(Some(1))),
            (" set shard to 3 ; ", RouteCommand::SetShard(Some(3))),
            ("SET SHARD TO 'ANY'", RouteCommand::SetShard(None)),
            ("set shard to any;", RouteCommand::SetShard(None)),
            ("SHOW SHARD", RouteCommand::ShowShard),
            ("show  shard;", RouteCommand::ShowShard),
            ("SET SHARDING KEY TO '1234'", key(&["1234"])),
            ("SET SHARDING KEY TO 1234;", key(&["1234"])),
            ("set sharding key to '-5'", key(&["-5"])),
            ("set sharding key to 'it''s', 'ü'", key(&["it's", "ü"])),
            (
                "SET SERVER ROLE TO 'primary'",
                RouteCommand::SetServerRole(Some(RolePreference::Primary)),
            ),
            (
                "set server role to 'AUTO' ;",
                RouteCommand::SetServerRole(Some(RolePreference::Auto)),
            ),
            ("set server role to 'default'", RouteCommand::SetServerRole(None)),
            ("SHOW SERVER ROLE", RouteCommand::ShowServerRole),
            ("SET PRIMARY READS TO 'on'", RouteCommand::SetPrimaryReads(Some(true))),
            ("set primary reads to OFF", RouteCommand::SetPrimaryReads(Some(false))),
            ("set primary reads to default", RouteCommand::SetPrimaryReads(None)),
            ("show primary reads", RouteCommand::ShowPrimaryReads),
            ("SET READ YOUR WRITES TO 'on'", RouteCommand::SetReadYourWrites(Some(true))),
            ("set read your writes to default;", RouteCommand::SetReadYourWrites(None)),
            ("show read  your writes;", RouteCommand::ShowReadYourWrites),
        ];
        for (query, command) in cases {
            assert_eq!(RouteCommand::read(query.as_bytes()), Some(Ok(command)), "{query}");
        }
    }

    #[test]
    fn other_statements_are_not_commands() {
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
            assert_eq!(RouteCommand::read(query.as_bytes()), None, "{query}");
        }
        assert_eq!(RouteCommand::read(b"set sharding key to '\xff'"), None);
    }

    #[test]
    fn invalid_command_values_are_refused() {
        for query in [
            "set shard to '-1'",
            "set shard to '99999999999'",
            "set shard to x",
            "set server role to 'leader'",
            "set primary reads to 'maybe'",
            "set read your writes to 'always'",
        ] {
            assert!(matches!(RouteCommand::read(query.as_bytes()), Some(Err(_))), "{query}");
        }
    }

    proptest::proptest! {
        #[test]
        fn quoted_keys_round_trip(key in ".{0,20}") {
            let query = format!("SET SHARDING KEY TO '{}'", key.replace('\'', "''"));
            let read = RouteCommand::read(query.as_bytes());
            assert_eq!(read, Some(Ok(RouteCommand::SetShardingKey(vec![key]))));
        }

        #[test]
        fn arbitrary_bytes_do_not_panic(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..60)) {
            let query = [b"set shard to ", &bytes[..]].concat();
            drop(RouteCommand::read(&query));
            drop(RouteCommand::read(&bytes));
        }
    }
}
