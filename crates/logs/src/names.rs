//! Statement and portal names out of `execute NAME/PORTAL: SQL`.
//!
//! Names are not quoted and may hold anything, `: ` included. The session's own earlier records decide
//! where they can; then the first split whose rest begins like SQL; then the first split.

use howdah_traffic::Hashed;

/// The statements that one session is known to have prepared.
///
/// Holds the most recent ones only: a driver that prepares without end must not fill memory. Of their
/// texts it holds the hashes.
#[derive(Debug, Default)]
pub(crate) struct Known {
    statements: Vec<Statement>,
    /// Where the next one goes when all places are taken.
    next: usize,
    /// Where the one inserted last is.
    last: usize,
    is_new: bool,
    /// A name with `: ` in it was met, so that the first one in a text need not end the name.
    has_colons: bool,
}

/// A prepared statement.
#[derive(Debug)]
struct Statement {
    /// The first bytes of its name, and how many there are.
    front: (u64, usize),
    name: Vec<u8>,
    /// Of its text.
    hash: u64,
}

impl Statement {
    #[inline]
    fn is(&self, front: (u64, usize), name: &[u8]) -> bool {
        self.front == front && (name.len() <= FRONT_BYTES || self.name == name)
    }
}

/// What [`Statement::front`] holds of a name.
#[inline]
fn front(name: &[u8]) -> (u64, usize) {
    let word = match name.first_chunk::<FRONT_BYTES>() {
        Some(chunk) => u64::from_le_bytes(*chunk),
        None => name.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)),
    };
    (word, name.len())
}

const FRONT_BYTES: usize = 8;

impl Known {
    /// Remembers that `name` stands for `sql` from now on.
    pub(crate) fn insert(&mut self, name: &[u8], sql: Hashed<'_>) {
        let front = front(name);
        let is_last = self.statements.get(self.last).is_some_and(|known| known.is(front, name));
        let at = match is_last {
            true => Some(self.last),
            false => self.statements.iter().position(|known| known.is(front, name)),
        };
        self.is_new = at.is_none();
        if let Some(at) = at {
            self.statements[at].hash = sql.hash();
            self.last = at;
            return;
        }
        self.has_colons |= colons(name).next().is_some();
        let entry = Statement { front, name: name.to_vec(), hash: sql.hash() };
        if self.statements.len() < STATEMENTS_MAX {
            self.last = self.statements.len();
            self.statements.push(entry);
        } else {
            self.last = self.next;
            self.statements[self.next] = entry;
            self.next = (self.next + 1) % STATEMENTS_MAX;
        }
    }

    /// Whether a name with `: ` in it was met: then texts have to be read with care.
    #[inline]
    pub(crate) fn has_colons(&self) -> bool {
        self.has_colons
    }

    /// Whether the name inserted last had not been known.
    pub(crate) fn is_new(&self) -> bool {
        self.is_new
    }

    /// Whether a name is known, and if so, whether for this text.
    fn stands_for(&self, name: &[u8], sql: &[u8]) -> Option<bool> {
        let front = front(name);
        let known = self.statements.iter().find(|known| known.is(front, name))?;
        Some(known.hash == Hashed::new(sql).hash())
    }
}

/// Most statements remembered for one session.
const STATEMENTS_MAX: usize = 64;

/// A step's text, taken apart. The unnamed statement and the unnamed portal are empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Named<'a> {
    pub(crate) statement: &'a [u8],
    pub(crate) portal: &'a [u8],
    pub(crate) sql: &'a [u8],
}

/// Takes apart what follows `parse `: there is no portal.
pub(crate) fn parsed<'a>(text: &'a [u8], known: &Known) -> Option<Named<'a>> {
    let (name, sql) =
        split(text, known, |name, sql| known.stands_for(unnamed(name), sql) == Some(true))?;
    Some(Named { statement: unnamed(name), portal: b"", sql })
}

/// Takes apart what follows `bind `, `execute ` or `execute fetch from `.
pub(crate) fn bound<'a>(text: &'a [u8], known: &Known) -> Option<Named<'a>> {
    let (name, sql) = split(text, known, |name, sql| {
        let (statement, _) = portal(name, sql, known);
        known.stands_for(unnamed(statement), sql) == Some(true)
    })?;
    let (statement, portal) = portal(name, sql, known);
    Some(Named { statement: unnamed(statement), portal, sql })
}

/// The name of a statement, empty for what stands for none.
#[inline]
pub(crate) fn unnamed(name: &[u8]) -> &[u8] {
    if name == b"<unnamed>" { b"" } else { name }
}

/// Splits at the right `: `.
fn split<'a>(
    text: &'a [u8],
    known: &Known,
    is_known: impl Fn(&[u8], &[u8]) -> bool,
) -> Option<(&'a [u8], &'a [u8])> {
    let at = |colon: usize| (&text[..colon], &text[colon + 2..]);
    if !known.has_colons
        && let Some(plain) = plain_name(text)
    {
        return Some(at(plain));
    }
    // A name is at most as long as a client cares to make it; the search is bounded all the same.
    let window = &text[..text.len().min(NAME_BYTES_MAX)];
    let first = colons(window).next().map(at)?;
    let all = || colons(window).map(at);
    all()
        .find(|(name, sql)| is_known(name, sql))
        .or_else(|| all().find(|(_, sql)| begins_like_sql(sql)))
        .or(Some(first))
}

/// Length of the name in front of a text that can be read in one way only: its letters are plain, and
/// behind it stands what begins like SQL.
#[inline]
fn plain_name(text: &[u8]) -> Option<usize> {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"_-<>/".contains(byte);
    let window = &text[..text.len().min(NAME_BYTES_MAX)];
    let len = window.iter().position(|byte| !is_plain(byte))?;
    let sql = text[len..].strip_prefix(b": ")?;
    begins_like_sql(sql).then_some(len)
}

/// Length of the name in front of a text that can be read in one way only, if there is no portal.
pub(crate) fn simple_name(text: &[u8]) -> Option<usize> {
    plain_name(text).filter(|len| !text[..*len].contains(&b'/'))
}

/// Where `: ` stands in a text. Names are short, so that a searcher for it is dearer than the search.
fn colons(text: &[u8]) -> impl Iterator<Item = usize> + '_ {
    memchr::memchr_iter(b':', text).filter(|at| text.get(at + 1) == Some(&b' '))
}

/// Farthest that the end of a name is looked for.
const NAME_BYTES_MAX: usize = 4096;

/// Splits `NAME/PORTAL`, where both may hold slashes: a statement known by this text goes first, then one
/// that is known, then the first slash.
fn portal<'a>(name: &'a [u8], sql: &[u8], known: &Known) -> (&'a [u8], &'a [u8]) {
    // Names are short, so that a search costs more to begin than to do.
    let is_slash = |(_, byte): &(usize, &u8)| **byte == b'/';
    let mut slashes =
        name.iter().enumerate().filter(is_slash).map(|(at, _)| (&name[..at], &name[at + 1..]));
    let Some(first) = slashes.next() else { return (name, b"") };
    let mut second = None;
    for split in [(name, &b""[..]), first].into_iter().chain(slashes) {
        match known.stands_for(unnamed(split.0), sql) {
            Some(true) => return split,
            Some(false) => second = second.or(Some(split)),
            None => {}
        }
    }
    second.unwrap_or(first)
}

/// Whether a text begins with a word that begins a statement, or a comment, or holds nothing.
fn begins_like_sql(text: &[u8]) -> bool {
    let text = text.trim_ascii_start();
    let len = text.iter().take_while(|byte| byte.is_ascii_alphabetic()).count();
    if len == 0 {
        return text.is_empty() || b"(;-/".contains(&text[0]);
    }
    let word = &text[..len];
    match packed(word) {
        Some(word) => PACKED.contains(&word),
        None => VERBS.iter().any(|verb| verb.as_bytes().eq_ignore_ascii_case(word)),
    }
}

/// A word of up to eight letters as a number, whatever their case.
#[inline]
const fn packed(word: &[u8]) -> Option<u64> {
    if word.len() > 8 {
        return None;
    }
    let (mut number, mut at) = (0, 0);
    while at < word.len() {
        number = number << 8 | (word[at] | 0x20) as u64;
        at += 1;
    }
    Some(number)
}

/// The verbs as numbers; 0, which is no word, in place of the longer ones.
const PACKED: [u64; VERBS.len()] = {
    let mut numbers = [0; VERBS.len()];
    let mut at = 0;
    while at < VERBS.len() {
        if let Some(number) = packed(VERBS[at].as_bytes()) {
            numbers[at] = number;
        }
        at += 1;
    }
    numbers
};

/// Words that begin a statement, most frequent first. Source: manual, SQL Commands.
const VERBS: &[&str] = &[
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

    fn read(text: &str, known: &Known) -> (String, String, String) {
        let named = bound(text.as_bytes(), known).expect("a colon");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (text(named.statement), text(named.portal), text(named.sql))
    }

    fn triple(a: &str, b: &str, c: &str) -> (String, String, String) {
        (a.to_owned(), b.to_owned(), c.to_owned())
    }

    #[test]
    fn plain_names() {
        let known = Known::default();
        assert_eq!(read("<unnamed>: select 1", &known), triple("", "", "select 1"));
        assert_eq!(read("S_2/C_3: select 1", &known), triple("S_2", "C_3", "select 1"));
        assert_eq!(read("<unnamed>/C_3: x: y", &known), triple("", "C_3", "x: y"));
        assert_eq!(read("S_1: ", &known), triple("S_1", "", ""));
        assert_eq!(bound(b"no colon", &known), None);
    }

    #[test]
    fn a_colon_in_a_name_is_told_by_the_sql_after_it() {
        let known = Known::default();
        let odd = read("einf\"ug: x: select $1::text", &known);
        assert_eq!(odd, triple("einf\"ug: x", "", "select $1::text"));
        let sql = read("S: select ': select'", &known);
        assert_eq!(sql, triple("S", "", "select ': select'"));
    }

    #[test]
    fn the_sessions_own_names_win() {
        let mut known = Known::default();
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
    fn memory_of_names_is_bounded() {
        let mut known = Known::default();
        for number in 0..1000 {
            known.insert(format!("S_{number}").as_bytes(), Hashed::new(b"select 1"));
        }
        assert_eq!(known.statements.len(), STATEMENTS_MAX);
        assert_eq!(known.stands_for(b"S_999", b"select 1"), Some(true));
    }
}
