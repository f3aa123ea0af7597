//! [`SessionStateFlags`]: what a client has left behind in a server's session, as far as it can be seen.
//!
//! Two things are seen: command tags, which say what was done, and words in the text of statements,
//! for what is done by functions and says `SELECT`. A function of the user that does such a thing
//! inside is not seen.

use std::ops::{BitOr, BitOrAssign};

/// Kinds of state, as a set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SessionStateFlags(u8);

impl SessionStateFlags {
    pub(crate) const NONE: Self = Self(0);
    /// Settings that are not carried with the client, and roles.
    pub(crate) const SETTINGS: Self = Self(1);
    /// Advisory locks of the session.
    pub(crate) const LOCKS: Self = Self(2);
    /// Temporary tables.
    pub(crate) const TEMP: Self = Self(4);
    /// Channels listened to.
    pub(crate) const LISTEN: Self = Self(8);
    /// Cursors, which may be WITH HOLD.
    pub(crate) const CURSORS: Self = Self(16);
    /// Statements prepared by SQL.
    pub(crate) const PREPARED: Self = Self(32);
    /// All of it: a statement that was not looked at to its end.
    pub(crate) const UNKNOWN: Self = Self(63);

    pub(crate) fn is_none(self) -> bool {
        self == Self::NONE
    }

    pub(crate) fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Without what was undone.
    pub(crate) fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// What a command tag tells. SET tells nothing here: see [`SetKind`].
    pub(crate) fn of_tag(tag: &[u8]) -> Self {
        match tag {
            b"LISTEN" => Self::LISTEN,
            b"PREPARE" => Self::PREPARED,
            b"DECLARE CURSOR" => Self::CURSORS,
            b"LOAD" => Self::SETTINGS,
            _ => Self::NONE,
        }
    }

    /// What a command tag says a client has ended that may have been made after the login.
    pub(crate) fn undone_by_tag(tag: &[u8]) -> Self {
        match tag {
            b"DISCARD TEMP" | b"DROP TABLE" => Self::TEMP,
            b"DEALLOCATE ALL" => Self::PREPARED,
            b"UNLISTEN" => Self::LISTEN,
            b"CLOSE CURSOR ALL" => Self::CURSORS,
            _ => Self::NONE,
        }
    }

    /// What the text of statements may do without its tag telling: words for advisory locks,
    /// `set_config` and temporary tables, wherever they stand.
    pub(crate) fn of_text(sql: &[u8]) -> Self {
        let mut dirt = Self::NONE;
        // Eight bytes at a time for a letter of each: most texts have few of these, and to begin a search anew
        // behind each costs more than that.
        let (eights, tail) = sql.as_chunks();
        for (number, eight) in eights.iter().enumerate() {
            let mut found = letters_of_words(*eight);
            while found != 0 {
                dirt |= Self::of_word(sql, number * 8 + found.trailing_zeros() as usize / 8);
                found &= found - 1;
            }
        }
        for at in sql.len() - tail.len()..sql.len() {
            dirt |= Self::of_word(sql, at);
        }
        dirt
    }

    /// The same of the word of which a letter stands at a place.
    #[inline]
    fn of_word(sql: &[u8], at: usize) -> Self {
        let (before, after) = (&sql[..at], &sql[at + 1..]);
        let locks = || starts_with(after, b"adv") || starts_with(after, b"try_adv");
        match sql[at] {
            b'_' if ends_with(before, b"pg") && locks() => Self::LOCKS,
            b'_' if ends_with(before, b"set") && starts_with(after, b"config") => Self::SETTINGS,
            b'm' | b'M' if ends_with(before, b"te") && starts_with(after, b"p") => Self::TEMP,
            _ => Self::NONE,
        }
    }

    /// Statements that undo it, as one query string.
    pub(crate) fn reset(self) -> Vec<u8> {
        const STEPS: [(SessionStateFlags, &str); 6] = [
            (SessionStateFlags::CURSORS, "CLOSE ALL;"),
            // Also sets the role back; RESET ALL touches neither.
            (SessionStateFlags::SETTINGS, "SET SESSION AUTHORIZATION DEFAULT;RESET ALL;"),
            (SessionStateFlags::PREPARED, "DEALLOCATE ALL;"),
            (SessionStateFlags::LISTEN, "UNLISTEN *;"),
            (SessionStateFlags::LOCKS, "SELECT pg_catalog.pg_advisory_unlock_all();"),
            (SessionStateFlags::TEMP, "DISCARD TEMP;"),
        ];
        let steps = STEPS.iter().filter(|(dirt, _)| self.has(*dirt));
        steps.flat_map(|(_, sql)| sql.bytes()).collect()
    }
}

impl BitOr for SessionStateFlags {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOrAssign for SessionStateFlags {
    fn bitor_assign(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

/// What it means for the session if a text's command tag is SET. In the order of how bad it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum SetKind {
    /// The text does not begin with SET.
    #[default]
    NotSet,
    /// It ends with the transaction, or is a setting that the server reports.
    Harmless,
    /// It lasts, and nobody reports it; also what could not be told.
    Lasting,
}

impl SetKind {
    /// Of the text of a query, where `is_reported` says whether a setting is reported. One statement
    /// only: of several, the tags cannot be told apart.
    pub(crate) fn of_text(sql: &[u8], is_reported: impl Fn(&[u8]) -> bool) -> Self {
        let sql = sql.trim_ascii();
        if matches!(sql.first(), Some(b'/' | b'-')) {
            return Self::Lasting; // What stands behind a comment is not looked for.
        }
        if !sql.get(..3).is_some_and(|word| word.eq_ignore_ascii_case(b"set")) {
            return Self::NotSet;
        }
        let sql = sql.strip_suffix(b";").unwrap_or(sql);
        let Some(rest) = strip_word(sql, b"set").filter(|rest| !rest.contains(&b';')) else {
            return Self::Lasting;
        };
        let rest = strip_word(rest, b"session").unwrap_or(rest);
        let word = &rest[..rest.iter().position(|b| !is_name(*b)).unwrap_or(rest.len())];
        let is = |name: &[u8]| word.eq_ignore_ascii_case(name);
        let reported = match () {
            () if is(b"local") || is(b"transaction") => return Self::Harmless,
            () if is(b"names") => is_reported(b"client_encoding"),
            () if is(b"time") => is_reported(b"TimeZone"),
            () => is_reported(word),
        };
        if reported { Self::Harmless } else { Self::Lasting }
    }
}

/// The high bit of each byte that is `_`, `m` or `M`; a byte too many does no harm, and may be behind one.
#[inline]
fn letters_of_words(eight: [u8; 8]) -> u64 {
    const ONES: u64 = u64::from_ne_bytes([1; 8]);
    let zeroes = |eight: u64| eight.wrapping_sub(ONES) & !eight & (ONES << 7);
    let eight = u64::from_le_bytes(eight);
    let m = (eight | ONES << 5) ^ (ONES * u64::from(b'm'));
    zeroes(eight ^ (ONES * u64::from(b'_'))) | zeroes(m)
}

fn starts_with(text: &[u8], word: &[u8]) -> bool {
    text.get(..word.len()).is_some_and(|found| found.eq_ignore_ascii_case(word))
}

fn ends_with(text: &[u8], word: &[u8]) -> bool {
    let start = text.len().checked_sub(word.len());
    start.is_some_and(|start| text[start..].eq_ignore_ascii_case(word))
}

fn is_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'$' | 0x80..)
}

/// What follows a word and its white space.
pub(crate) fn strip_word<'a>(sql: &'a [u8], word: &[u8]) -> Option<&'a [u8]> {
    let (front, rest) = sql.split_at_checked(word.len())?;
    let after = rest.trim_ascii_start();
    (front.eq_ignore_ascii_case(word) && after.len() < rest.len()).then_some(after)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_found_wherever_they_stand() {
        for (sql, dirt) in [
            ("select pg_advisory_lock(1)", SessionStateFlags::LOCKS),
            ("SELECT PG_TRY_ADVISORY_LOCK(1)", SessionStateFlags::LOCKS),
            ("select set_config('a','b',false)", SessionStateFlags::SETTINGS),
            ("create TEMPORARY table x ()", SessionStateFlags::TEMP),
            ("select 1 into temp y", SessionStateFlags::TEMP),
            (
                "select set_config('a', 'b', true), pg_advisory_xact_lock(1)",
                SessionStateFlags::SETTINGS | SessionStateFlags::LOCKS,
            ),
            ("teMP", SessionStateFlags::TEMP),
            ("_adv", SessionStateFlags::NONE),
            ("pg_", SessionStateFlags::NONE),
            ("m", SessionStateFlags::NONE),
            ("select abalance from pgbench_accounts where aid = 1", SessionStateFlags::NONE),
            ("", SessionStateFlags::NONE),
        ] {
            assert_eq!(SessionStateFlags::of_text(sql.as_bytes()), dirt, "{sql}");
        }
    }

    #[test]
    fn only_what_is_dirty_is_reset() {
        assert_eq!(SessionStateFlags::NONE.reset(), b"");
        assert_eq!(
            (SessionStateFlags::LISTEN | SessionStateFlags::TEMP).reset(),
            b"UNLISTEN *;DISCARD TEMP;"
        );
    }

    #[test]
    fn a_set_that_ends_or_is_reported_is_harmless() {
        let reported = |name: &[u8]| {
            [&b"TimeZone"[..], b"client_encoding"].iter().any(|r| r.eq_ignore_ascii_case(name))
        };
        for (sql, kind) in [
            ("set local work_mem = 1", SetKind::Harmless),
            (" SET  TRANSACTION READ ONLY ;", SetKind::Harmless),
            ("set timezone to 'UTC'", SetKind::Harmless),
            ("set session timezone = 'UTC'", SetKind::Harmless),
            ("set time zone 'UTC'", SetKind::Harmless),
            ("SET NAMES 'UTF8'", SetKind::Harmless),
            ("set work_mem = 1", SetKind::Lasting),
            ("set session characteristics as transaction read only", SetKind::Lasting),
            ("set role to admin", SetKind::Lasting),
            ("set local a = 1; set b = 2", SetKind::Lasting),
            ("set/**/local a = 1", SetKind::Lasting),
            ("/* why */ set local a = 1", SetKind::Lasting),
            ("select 1", SetKind::NotSet),
        ] {
            assert_eq!(SetKind::of_text(sql.as_bytes(), reported), kind, "{sql}");
        }
    }
}
