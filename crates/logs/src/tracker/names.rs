//! Splits `execute NAME/PORTAL: SQL` into names and statement.
//!
//! Names are not quoted and may contain any text, even `: `. Where possible, the session's earlier
//! records decide. Otherwise the text is split at the first `: ` before the beginning of a
//! statement, or else at the first `: `.

use howdah_traffic::Hashed;

/// The prepared statements of one session.
///
/// Only the most recent ones are remembered, as hashes of their texts, because some drivers prepare
/// statements without limit.
#[derive(Debug, Default)]
pub(crate) struct PreparedNames {
    statements: Vec<PreparedStatement>,
    /// Index at which the next statement is inserted when all slots are taken.
    next: usize,
    /// Index of the statement inserted last.
    last: usize,
    is_new: bool,
    /// Whether a name containing `: ` was inserted, so that the first `: ` in a text need not end
    /// the name.
    has_colons: bool,
}

/// A prepared statement, reduced to what comparisons need.
#[derive(Debug)]
struct PreparedStatement {
    /// The first bytes of the name, and its length.
    prefix: (u64, usize),
    name: Vec<u8>,
    /// Hash of the statement's text.
    hash: u64,
}

impl PreparedStatement {
    #[inline]
    fn is(&self, name_key: (u64, usize), name: &[u8]) -> bool {
        self.prefix == name_key && (name.len() <= PREFIX_BYTES || self.name == name)
    }
}

/// Returns the value of [`PreparedStatement::prefix`] for a name.
#[inline]
fn name_prefix(name: &[u8]) -> (u64, usize) {
    let keyword = match name.first_chunk::<PREFIX_BYTES>() {
        Some(chunk) => u64::from_le_bytes(*chunk),
        None => name.iter().rev().fold(0, |keyword, byte| keyword << 8 | u64::from(*byte)),
    };
    (keyword, name.len())
}

const PREFIX_BYTES: usize = 8;

impl PreparedNames {
    /// Stores `sql` as the text of the prepared statement `name`.
    pub(crate) fn insert(&mut self, name: &[u8], sql: Hashed<'_>) {
        let name_key = name_prefix(name);
        let is_last = self.statements.get(self.last).is_some_and(|known| known.is(name_key, name));
        let at = if is_last {
            Some(self.last)
        } else {
            self.statements.iter().position(|known| known.is(name_key, name))
        };
        self.is_new = at.is_none();
        if let Some(at) = at {
            self.statements[at].hash = sql.hash();
            self.last = at;
            return;
        }
        self.has_colons |= colon_positions(name).next().is_some();
        let entry = PreparedStatement { prefix: name_key, name: name.to_vec(), hash: sql.hash() };
        if self.statements.len() < STATEMENTS_MAX {
            self.last = self.statements.len();
            self.statements.push(entry);
        } else {
            self.last = self.next;
            self.statements[self.next] = entry;
            self.next = (self.next + 1) % STATEMENTS_MAX;
        }
    }

    /// Whether a name containing `: ` was inserted, so that texts need careful splitting.
    #[inline]
    pub(crate) fn has_colons(&self) -> bool {
        self.has_colons
    }

    /// Whether the name inserted last was new.
    pub(crate) fn is_new(&self) -> bool {
        self.is_new
    }

    /// Returns the name under which `sql` was prepared last, if it has a name.
    pub(crate) fn name_of(&self, sql: Hashed<'_>) -> Option<&[u8]> {
        let (older, newer) = self.statements.split_at(self.next);
        let mut latest_first = older.iter().rev().chain(newer.iter().rev());
        let found = latest_first.find(|it| it.hash == sql.hash() && !it.name.is_empty())?;
        Some(&found.name)
    }

    /// Whether `sql` is the text of the prepared statement `name`; `None` if the name is not known.
    fn has_text(&self, name: &[u8], sql: &[u8]) -> Option<bool> {
        let name_key = name_prefix(name);
        let known = self.statements.iter().find(|known| known.is(name_key, name))?;
        Some(known.hash == Hashed::new(sql).hash())
    }
}

/// Maximum number of statements remembered for one session.
const STATEMENTS_MAX: usize = 64;

/// The parts of a step's text. The names of the unnamed statement and portal are empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StepText<'a> {
    pub(crate) statement: &'a [u8],
    pub(crate) portal: &'a [u8],
    pub(crate) sql: &'a [u8],
}

/// Splits the text after `parse `, which has no portal.
pub(crate) fn split_parse<'a>(text: &'a [u8], known: &PreparedNames) -> Option<StepText<'a>> {
    let (name, sql) =
        split(text, known, |name, sql| known.has_text(normalize_name(name), sql) == Some(true))?;
    Some(StepText { statement: normalize_name(name), portal: b"", sql })
}

/// Splits the text after `bind `, `execute ` or `execute fetch from `.
pub(crate) fn split_bind<'a>(text: &'a [u8], known: &PreparedNames) -> Option<StepText<'a>> {
    let (name, sql) = split(text, known, |name, sql| {
        let (statement, _) = split_portal(name, sql, known);
        known.has_text(normalize_name(statement), sql) == Some(true)
    })?;
    let (statement, portal) = split_portal(name, sql, known);
    Some(StepText { statement: normalize_name(statement), portal, sql })
}

/// Replaces the placeholder of the unnamed statement by an empty name.
#[inline]
pub(crate) fn normalize_name(name: &[u8]) -> &[u8] {
    if name == b"<unnamed>" { b"" } else { name }
}

/// Splits the text at the `: ` that ends the names.
fn split<'a>(
    text: &'a [u8],
    known: &PreparedNames,
    is_known: impl Fn(&[u8], &[u8]) -> bool,
) -> Option<(&'a [u8], &'a [u8])> {
    let at = |colon: usize| (&text[..colon], &text[colon + 2..]);
    if !known.has_colons
        && let Some(plain) = unambiguous_name_len(text)
    {
        return Some(at(plain));
    }
    // A client may choose names of any length, but the search must be bounded.
    let window = &text[..text.len().min(NAME_BYTES_MAX)];
    let first = colon_positions(window).next().map(at)?;
    let all = || colon_positions(window).map(at);
    all()
        .find(|(name, sql)| is_known(name, sql))
        .or_else(|| all().find(|(_, sql)| starts_like_sql(sql)))
        .or(Some(first))
}

/// Returns the length of the name at the front of a text that has only one reading: the name has
/// ordinary characters, and the rest begins like SQL.
#[inline]
fn unambiguous_name_len(text: &[u8]) -> Option<usize> {
    let is_ordinary = |byte: &u8| byte.is_ascii_alphanumeric() || b"_-<>/".contains(byte);
    let window = &text[..text.len().min(NAME_BYTES_MAX)];
    let len = window.iter().position(|byte| !is_ordinary(byte))?;
    let sql = text[len..].strip_prefix(b": ")?;
    starts_like_sql(sql).then_some(len)
}

/// Returns the length of the statement's name at the front of an unambiguous text without a portal.
pub(crate) fn unambiguous_statement_len(text: &[u8]) -> Option<usize> {
    unambiguous_name_len(text).filter(|len| !text[..*len].contains(&b'/'))
}

/// Returns the offsets of `: ` in a text. Names are so short that building a substring searcher
/// would cost more than the search.
fn colon_positions(text: &[u8]) -> impl Iterator<Item = usize> + '_ {
    memchr::memchr_iter(b':', text).filter(|at| text.get(at + 1) == Some(&b' '))
}

/// Number of bytes at the front of a text that are searched for the end of a name.
const NAME_BYTES_MAX: usize = 4096;

/// Splits `NAME/PORTAL`, where both may contain slashes. Prefers a name under which this statement
/// is known, then any known name, then the part before the first slash.
fn split_portal<'a>(name: &'a [u8], sql: &[u8], known: &PreparedNames) -> (&'a [u8], &'a [u8]) {
    // Names are so short that the setup of a byte search would cost more than the search.
    let is_slash = |(_, byte): &(usize, &u8)| **byte == b'/';
    let mut slashes =
        name.iter().enumerate().filter(is_slash).map(|(at, _)| (&name[..at], &name[at + 1..]));
    let Some(first) = slashes.next() else { return (name, b"") };
    let mut second = None;
    for split in [(name, &b""[..]), first].into_iter().chain(slashes) {
        match known.has_text(normalize_name(split.0), sql) {
            Some(true) => return split,
            Some(false) => second = second.or(Some(split)),
            None => {}
        }
    }
    second.unwrap_or(first)
}

/// Whether a text is empty, or begins with a comment, a parenthesis, a semicolon or the first
/// keyword of a statement.
fn starts_like_sql(text: &[u8]) -> bool {
    let text = text.trim_ascii_start();
    let len = text.iter().take_while(|byte| byte.is_ascii_alphabetic()).count();
    if len == 0 {
        return text.is_empty() || b"(;-/".contains(&text[0]);
    }
    let keyword = &text[..len];
    match keyword_number(keyword) {
        Some(keyword) => COMMAND_NUMBERS.contains(&keyword),
        None => COMMANDS.iter().any(|verb| verb.as_bytes().eq_ignore_ascii_case(keyword)),
    }
}

/// Packs a keyword of up to eight characters into an integer, ignoring case.
#[inline]
const fn keyword_number(keyword: &[u8]) -> Option<u64> {
    if keyword.len() > 8 {
        return None;
    }
    let (mut number, mut at) = (0, 0);
    while at < keyword.len() {
        number = number << 8 | (keyword[at] | 0x20) as u64;
        at += 1;
    }
    Some(number)
}

/// [`COMMANDS`] packed into integers; 0 for those longer than eight characters.
const COMMAND_NUMBERS: [u64; COMMANDS.len()] = {
    let mut numbers = [0; COMMANDS.len()];
    let mut at = 0;
    while at < COMMANDS.len() {
        if let Some(number) = keyword_number(COMMANDS[at].as_bytes()) {
            numbers[at] = number;
        }
        at += 1;
    }
    numbers
};

/// First keywords of statements, most frequent first. Source: manual, SQL Commands.
const COMMANDS: &[&str] = &[
    "SELECT",
    "INSERT",
    "UPDATE",
    "DELETE",
    "BEGIN",
    "COMMIT",
    "WITH",
    "SET",
    "ROLLBACK",
    "END",
    "START",
    "ABORT",
    "ALTER",
    "ANALYZE",
    "CALL",
    "CHECKPOINT",
    "CLOSE",
    "CLUSTER",
    "COMMENT",
    "COPY",
    "CREATE",
    "DEALLOCATE",
    "DECLARE",
    "DISCARD",
    "DO",
    "DROP",
    "EXECUTE",
    "EXPLAIN",
    "FETCH",
    "GRANT",
    "IMPORT",
    "LISTEN",
    "LOAD",
    "LOCK",
    "MERGE",
    "MOVE",
    "NOTIFY",
    "PREPARE",
    "REASSIGN",
    "REFRESH",
    "REINDEX",
    "RELEASE",
    "RESET",
    "REVOKE",
    "SAVEPOINT",
    "SECURITY",
    "SHOW",
    "TABLE",
    "TRUNCATE",
    "UNLISTEN",
    "VACUUM",
    "VALUES",
];

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, known: &PreparedNames) -> (String, String, String) {
        let named = split_bind(text.as_bytes(), known).expect("a colon");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (text(named.statement), text(named.portal), text(named.sql))
    }

    fn triple(a: &str, b: &str, c: &str) -> (String, String, String) {
        (a.to_owned(), b.to_owned(), c.to_owned())
    }

    #[test]
    fn ordinary_names_are_split() {
        let known = PreparedNames::default();
        assert_eq!(read("<unnamed>: select 1", &known), triple("", "", "select 1"));
        assert_eq!(read("S_2/C_3: select 1", &known), triple("S_2", "C_3", "select 1"));
        assert_eq!(read("<unnamed>/C_3: x: y", &known), triple("", "C_3", "x: y"));
        assert_eq!(read("S_1: ", &known), triple("S_1", "", ""));
        assert_eq!(split_bind(b"no colon", &known), None);
    }

    #[test]
    fn colon_in_name_is_found_by_following_sql() {
        let known = PreparedNames::default();
        let odd = read("einf\"ug: x: select $1::text", &known);
        assert_eq!(odd, triple("einf\"ug: x", "", "select $1::text"));
        let sql = read("S: select ': select'", &known);
        assert_eq!(sql, triple("S", "", "select ': select'"));
    }

    #[test]
    fn known_names_take_precedence() {
        let mut known = PreparedNames::default();
        known.insert(b"a: select 1", Hashed::new(b"begin"));
        assert_eq!(read("a: select 1: begin", &known), triple("a: select 1", "", "begin"));
        known.insert(b"a/b", Hashed::new(b"select 2"));
        assert_eq!(read("a/b: select 2", &known), triple("a/b", "", "select 2"));
        assert_eq!(read("a/b/c: select 2", &known), triple("a/b", "c", "select 2"));
        known.insert(b"a", Hashed::new(b"select 3"));
        assert_eq!(read("a/b/c: select 2", &known), triple("a/b", "c", "select 2"));
        assert_eq!(read("a/b/c: select 3", &known), triple("a", "b/c", "select 3"));
    }

    #[test]
    fn text_has_name_of_its_latest_statement() {
        let mut known = PreparedNames::default();
        let sql = Hashed::new(b"select 1");
        for name in ["", "s1", "s2", ""] {
            known.insert(name.as_bytes(), sql);
        }
        known.insert(b"s3", Hashed::new(b"select 3"));
        assert_eq!(known.name_of(sql), Some(&b"s2"[..]));
        assert_eq!(known.name_of(Hashed::new(b"select 2")), None);
        for number in 4..70 {
            known.insert(format!("s{number}").as_bytes(), sql);
        }
        assert_eq!(known.name_of(sql), Some(&b"s69"[..]));
    }

    #[test]
    fn number_of_remembered_names_is_bounded() {
        let mut known = PreparedNames::default();
        for number in 0..1000 {
            known.insert(format!("S_{number}").as_bytes(), Hashed::new(b"select 1"));
        }
        assert_eq!(known.statements.len(), STATEMENTS_MAX);
        assert_eq!(known.has_text(b"S_999", b"select 1"), Some(true));
    }
}
