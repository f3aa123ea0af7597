//! [`SessionStateFlags`]: the state that a client has left in a server session, as far as the
//! pooler can detect it.
//!
//! The pooler examines command tags and, for state that these do not show, keywords in the text of
//! statements. The effects of user-defined functions cannot be detected.

use std::ops::{BitOr, BitOrAssign};

/// Kinds of session state, as a bit set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SessionStateFlags(u8);

impl SessionStateFlags {
    pub(crate) const NONE: Self = Self(0);
    /// The role, and parameters that the pooler does not track for each client.
    pub(crate) const SETTINGS: Self = Self(1);
    /// Session-level advisory locks.
    pub(crate) const LOCKS: Self = Self(2);
    /// Temporary tables.
    pub(crate) const TEMP: Self = Self(4);
    /// Channels that the session listens to.
    pub(crate) const LISTEN: Self = Self(8);
    /// Cursors; one declared WITH HOLD outlives its transaction.
    pub(crate) const CURSORS: Self = Self(16);
    /// Statements prepared with the SQL command PREPARE.
    pub(crate) const PREPARED: Self = Self(32);
    /// All kinds, for example for a statement that was not examined completely.
    pub(crate) const UNKNOWN: Self = Self(63);

    pub(crate) fn is_none(self) -> bool {
        self == Self::NONE
    }

    pub(crate) fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Returns those of these flags that are in `other`.
    pub(crate) fn only(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Returns these flags without `other`.
    pub(crate) fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Returns the state that a command with this tag creates. For SET, see [`SetKind`].
    pub(crate) fn from_tag(tag: &[u8]) -> Self {
        match tag {
            b"LISTEN" => Self::LISTEN,
            b"PREPARE" => Self::PREPARED,
            b"DECLARE CURSOR" => Self::CURSORS,
            b"LOAD" => Self::SETTINGS,
            _ => Self::NONE,
        }
    }

    /// Returns the state that a command with this tag may have removed.
    pub(crate) fn cleared_by_tag(tag: &[u8]) -> Self {
        match tag {
            b"DISCARD TEMP" | b"DROP TABLE" => Self::TEMP,
            b"DEALLOCATE ALL" => Self::PREPARED,
            b"UNLISTEN" => Self::LISTEN,
            b"CLOSE CURSOR ALL" => Self::CURSORS,
            _ => Self::NONE,
        }
    }

    /// Returns the state that a text may create although command tags do not show it. Searches for
    /// the names of advisory lock functions, for `set_config`, and for TEMP, anywhere in the text.
    pub(crate) fn from_text(sql: &[u8]) -> Self {
        let mut flags = Self::NONE;
        // Eight bytes at a time are searched for one characteristic character of each keyword. A
        // `memchr` search would start anew after each hit, which would cost more.
        let mut find = |eight: [u8; 8], start: usize| {
            let mut found = keyword_letters(eight);
            while found != 0 {
                flags |= Self::from_keyword_at(sql, start + found.trailing_zeros() as usize / 8);
                found &= found - 1;
            }
        };
        let (eights, tail) = sql.as_chunks();
        for (number, eight) in eights.iter().enumerate() {
            find(*eight, number * 8);
        }
        match sql.last_chunk() {
            _ if tail.is_empty() => {}
            // Some bytes are searched twice.
            Some(eight) => find(*eight, sql.len() - 8),
            None => {
                let mut eight = [0; 8];
                eight[..tail.len()].copy_from_slice(tail);
                find(eight, 0);
            }
        }
        flags
    }

    /// Returns the state for the keyword whose characteristic character is at `at`, or `NONE` if
    /// there is none.
    #[inline]
    fn from_keyword_at(sql: &[u8], at: usize) -> Self {
        // One byte tells most hits from a keyword.
        let Some(previous) = at.checked_sub(1).map(|previous| sql[previous] | 0x20) else {
            return Self::NONE;
        };
        let (before, after) = (&sql[..at], &sql[at + 1..]);
        let locks = || starts_with(after, b"adv") || starts_with(after, b"try_adv");
        match (previous, sql[at]) {
            (b'g', b'_') if ends_with(before, b"pg") && locks() => Self::LOCKS,
            (b't', b'_') if ends_with(before, b"set") && starts_with(after, b"config") => {
                Self::SETTINGS
            }
            (b'e', b'm' | b'M') if ends_with(before, b"te") && starts_with(after, b"p") => {
                Self::TEMP
            }
            _ => Self::NONE,
        }
    }

    /// Returns the statements that reset this state, as one query string.
    pub(crate) fn reset(self) -> Vec<u8> {
        const STEPS: [(SessionStateFlags, &str); 6] = [
            (SessionStateFlags::CURSORS, "CLOSE ALL;"),
            // SET SESSION AUTHORIZATION also resets the role; RESET ALL resets neither of them.
            (SessionStateFlags::SETTINGS, "SET SESSION AUTHORIZATION DEFAULT;RESET ALL;"),
            (SessionStateFlags::PREPARED, "DEALLOCATE ALL;"),
            (SessionStateFlags::LISTEN, "UNLISTEN *;"),
            (SessionStateFlags::LOCKS, "SELECT pg_catalog.pg_advisory_unlock_all();"),
            (SessionStateFlags::TEMP, "DISCARD TEMP;"),
        ];
        let steps = STEPS.iter().filter(|(flags, _)| self.has(*flags));
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

/// The lasting effect of a statement with the command tag SET on the session. Ordered by severity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum SetKind {
    /// The text does not start with SET.
    #[default]
    NotSet,
    /// No reset is needed: the change ends with the transaction, or the server reports the
    /// parameter.
    NoReset,
    /// A reset is needed: the change lasts and is not reported, or the text is not understood.
    NeedsReset,
}

impl SetKind {
    /// Classifies a statement's text; `is_reported` tells whether the server reports a parameter.
    /// Several statements count as [`SetKind::NeedsReset`] if the first is a SET, because their
    /// tags cannot be told apart.
    pub(crate) fn from_text(sql: &[u8], is_reported: impl Fn(&[u8]) -> bool) -> Self {
        let sql = sql.trim_ascii();
        if matches!(sql.first(), Some(b'/' | b'-')) {
            return Self::NeedsReset; // The text after a comment is not examined.
        }
        if !sql.get(..3).is_some_and(|word| word.eq_ignore_ascii_case(b"set")) {
            return Self::NotSet;
        }
        let sql = sql.strip_suffix(b";").unwrap_or(sql);
        let Some(rest) = strip_keyword(sql, b"set").filter(|rest| !rest.contains(&b';')) else {
            return Self::NeedsReset;
        };
        let rest = strip_keyword(rest, b"session").unwrap_or(rest);
        let word = &rest[..rest.iter().position(|b| !is_name_byte(*b)).unwrap_or(rest.len())];
        let is = |name: &[u8]| word.eq_ignore_ascii_case(name);
        let reported = match () {
            () if is(b"local") || is(b"transaction") => return Self::NoReset,
            () if is(b"names") => is_reported(b"client_encoding"),
            () if is(b"time") => is_reported(b"TimeZone"),
            () => is_reported(word),
        };
        if reported { Self::NoReset } else { Self::NeedsReset }
    }
}

/// Returns a word in which the high bit of each byte that is `_`, `m` or `M` is set. False
/// positives after a true hit are possible and harmless.
#[inline]
fn keyword_letters(eight: [u8; 8]) -> u64 {
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

fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'$' | 0x80..)
}

/// Returns the text after a keyword and the white space that follows it; `None` if the text does
/// not start with these.
pub(crate) fn strip_keyword<'a>(sql: &'a [u8], word: &[u8]) -> Option<&'a [u8]> {
    let (front, rest) = sql.split_at_checked(word.len())?;
    let after = rest.trim_ascii_start();
    (front.eq_ignore_ascii_case(word) && after.len() < rest.len()).then_some(after)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keywords_are_found_anywhere_in_text() {
        for (sql, flags) in [
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
            for (before, after) in (0..17).flat_map(|before| [(before, 0), (before, 9)]) {
                let text = [&" ".repeat(before), sql, &" ".repeat(after)].concat();
                assert_eq!(SessionStateFlags::from_text(text.as_bytes()), flags, "{text:?}");
            }
        }
    }

    #[test]
    fn reset_covers_only_set_flags() {
        assert_eq!(SessionStateFlags::NONE.reset(), b"");
        assert_eq!(
            (SessionStateFlags::LISTEN | SessionStateFlags::TEMP).reset(),
            b"UNLISTEN *;DISCARD TEMP;"
        );
    }

    #[test]
    fn transient_or_reported_set_needs_no_reset() {
        let reported = |name: &[u8]| {
            [&b"TimeZone"[..], b"client_encoding"].iter().any(|r| r.eq_ignore_ascii_case(name))
        };
        for (sql, kind) in [
            ("set local work_mem = 1", SetKind::NoReset),
            (" SET  TRANSACTION READ ONLY ;", SetKind::NoReset),
            ("set timezone to 'UTC'", SetKind::NoReset),
            ("set session timezone = 'UTC'", SetKind::NoReset),
            ("set time zone 'UTC'", SetKind::NoReset),
            ("SET NAMES 'UTF8'", SetKind::NoReset),
            ("set work_mem = 1", SetKind::NeedsReset),
            ("set session characteristics as transaction read only", SetKind::NeedsReset),
            ("set role to admin", SetKind::NeedsReset),
            ("set local a = 1; set b = 2", SetKind::NeedsReset),
            ("set/**/local a = 1", SetKind::NeedsReset),
            ("/* why */ set local a = 1", SetKind::NeedsReset),
            ("select 1", SetKind::NotSet),
        ] {
            assert_eq!(SetKind::from_text(sql.as_bytes(), reported), kind, "{sql}");
        }
    }
}
