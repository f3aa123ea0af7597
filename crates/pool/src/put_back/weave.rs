//! [`weave`]: a query string of several statements, with what sets settings again behind those that put
//! them back: what follows in the same string must find what the client began with.
//!
//! Only texts are touched in which a statement's end is beyond doubt, whatever the server takes for
//! strings and letters. In others what follows finds the server's value, and only what is sent later
//! the client's.

use super::put_back_by;
use crate::settings::Setting;

/// A query string with statements of the pooler's in it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SplicedQuery {
    pub(crate) sql: Vec<u8>,
    /// Which of its statements are the pooler's, counted from 0; where they begin and how long they
    /// are, in characters.
    ours: Vec<(usize, usize, usize)>,
    /// How many statements have ended.
    done: usize,
}

impl SplicedQuery {
    /// A single statement with one of the pooler's behind it.
    pub(crate) fn behind(statement: &[u8], added: &str) -> Self {
        let mut woven = Self { sql: Vec::new(), ours: Vec::new(), done: 0 };
        woven.add(statement, 1, added);
        woven
    }

    fn add(&mut self, before: &[u8], ordinal: usize, added: &str) {
        self.sql.extend_from_slice(before);
        let start = self.sql.len();
        self.sql.push(b';');
        self.sql.extend_from_slice(added.as_bytes());
        self.ours.push((ordinal, start, added.len() + 1));
    }

    /// Whether the statement that is being answered is the pooler's.
    pub(crate) fn is_ours(&self) -> bool {
        self.ours.iter().any(|(ordinal, ..)| *ordinal == self.done)
    }

    /// A statement has ended.
    pub(crate) fn statement_done(&mut self) {
        self.done += 1;
    }

    /// Where in the client's text a character of this one is, counted from 1.
    pub(crate) fn position(&self, position: usize) -> usize {
        let before = self.ours.iter().filter(|(_, start, _)| *start < position);
        position - before.map(|(.., length)| length).sum::<usize>()
    }
}

/// A query string that does what the client means, if it does not by itself. `in_block` tells whether
/// it runs in a transaction block: there alone a SET LOCAL without company does something.
///
/// What `also` gives for a statement is put behind it, too.
pub(crate) fn weave(
    sql: &[u8],
    startup: &[Setting],
    in_block: bool,
    mut also: impl FnMut(&[u8]) -> Option<String>,
) -> Option<SplicedQuery> {
    let mut woven = SplicedQuery { sql: Vec::new(), ours: Vec::new(), done: 0 };
    let (mut at, mut copied, mut ordinal) = (0, 0, 0);
    while let Some(length) = statement_bytes(&sql[at..]) {
        let end = at + length;
        let statement = &sql[at..end];
        at = sql.len().min(end + 1);
        if statement.trim_ascii().is_empty() {
            if at == sql.len() {
                break;
            }
            continue;
        }
        ordinal += 1;
        let is_last = sql[at..].iter().all(|byte| byte.is_ascii_whitespace() || *byte == b';');
        if let Some(added) = also(statement) {
            woven.add(&sql[copied..end], ordinal, &added);
            copied = end;
            ordinal += 1;
        } else if let Some((back, is_local)) = put_back_by(statement, startup)
            && (!is_last || is_local && in_block)
        {
            woven.sql.extend_from_slice(&sql[copied..end]);
            copied = end;
            let start = woven.sql.len();
            set(&mut woven.sql, &back, is_local)?;
            woven.ours.push((ordinal, start, woven.sql.len() - start));
            ordinal += 1;
        }
        if is_last {
            break;
        }
    }
    woven.sql.extend_from_slice(&sql[copied..]);
    (!woven.ours.is_empty()).then_some(woven)
}

/// The statements of a query string, as far as their ends are beyond doubt.
pub(crate) fn plain_statements(sql: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let rest = sql.get(at..).filter(|rest| !rest.is_empty())?;
        let length = statement_bytes(rest)?;
        at += length + 1;
        Some(&rest[..length])
    })
}

/// How long the statement in front is, without its semicolon. `None` where bytes could mean something
/// else to the server, or to another setting of it, than to us.
fn statement_bytes(sql: &[u8]) -> Option<usize> {
    let (mut at, mut depth) = (0, 0_usize);
    while let Some(byte) = sql.get(at) {
        let rest = &sql[at + 1..];
        match byte {
            b';' if depth == 0 => break,
            b'(' => depth += 1,
            b')' => depth = depth.checked_sub(1)?,
            b'\'' | b'"' => {
                let closing = memchr::memchr(*byte, rest)?;
                let is_plain = |byte: &u8| byte.is_ascii() && *byte != b'\\';
                if !rest[..closing].iter().all(is_plain) {
                    return None;
                }
                at += closing + 1;
            }
            b'-' if rest.first() == Some(&b'-') => return None,
            b'/' if rest.first() == Some(&b'*') => return None,
            b'$' | b'\\' | 0 | 0x80.. => return None,
            _ => {}
        }
        at += 1;
    }
    // A function's body that is written as statements has semicolons, too.
    let is_body = sql[..at].windows(6).any(|word| word.eq_ignore_ascii_case(b"atomic"));
    (depth == 0 && !is_body).then_some(at)
}

/// Appends a statement that sets what is to be back; `None` for values that are not plain text.
fn set(sql: &mut Vec<u8>, back: &[Setting], is_local: bool) -> Option<()> {
    for (number, Setting { name, value }) in back.iter().enumerate() {
        sql.extend_from_slice(if number == 0 { b";SELECT " } else { b"," });
        sql.extend_from_slice(b"pg_catalog.set_config(");
        quote(sql, name)?;
        sql.push(b',');
        quote(sql, value)?;
        sql.extend_from_slice(if is_local { b",true)" } else { b",false)" });
    }
    Some(())
}

/// Appends a literal that means the same whatever `standard_conforming_strings` says.
fn quote(sql: &mut Vec<u8>, text: &[u8]) -> Option<()> {
    sql.extend_from_slice(b"E'");
    for byte in text {
        if matches!(byte, b'\'' | b'\\') {
            sql.push(*byte);
        }
        let is_text = byte.is_ascii() && !byte.is_ascii_control();
        sql.push(is_text.then_some(*byte)?);
    }
    sql.push(b'\'');
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn woven(sql: &str, in_block: bool) -> Option<String> {
        let startup = [Setting::new("TimeZone", "CET"), Setting::new("my.own", r"it's\")];
        let woven = weave(sql.as_bytes(), &startup, in_block, |_| None)?;
        let ours = woven.ours.iter().map(|(ordinal, ..)| ordinal.to_string());
        Some(format!("{} {}", ours.collect::<String>(), String::from_utf8(woven.sql).unwrap()))
    }

    #[test]
    fn what_follows_a_reset_finds_the_clients_value() {
        const ZONE: &str = "pg_catalog.set_config(E'TimeZone',E'CET',false)";
        const OWN: &str = r"pg_catalog.set_config(E'my.own',E'it''s\\',false)";
        let expected = format!("1 reset timezone;SELECT {ZONE}; show timezone");
        assert_eq!(woven("reset timezone; show timezone", false), Some(expected));
        let expected = format!("3 select ';'; ; select 2;reset all;SELECT {ZONE},{OWN};select 3;");
        assert_eq!(woven("select ';'; ; select 2;reset all;select 3;", false), Some(expected));
        let expected =
            format!("13 reset timezone;SELECT {ZONE};reset my.own;SELECT {OWN};select E'\\''");
        assert_eq!(woven("reset timezone;reset my.own;select E'\\''", false), Some(expected));
    }

    #[test]
    fn what_lasts_for_a_transaction_is_set_for_it() {
        let set =
            "1 set local timezone to default;SELECT pg_catalog.set_config(E'TimeZone',E'CET',true)";
        assert_eq!(woven("set local timezone to default", true).as_deref(), Some(set));
        assert_eq!(woven("set local timezone to default", false), None);
        assert_eq!(woven("set local timezone to 'UTC'; select 1", true), None);
    }

    #[test]
    fn a_text_that_may_mean_something_else_stays_as_it_is() {
        for sql in [
            "reset timezone",
            "reset timezone;",
            "reset timezone; ; ",
            "reset work_mem; select 1",
            "select '; reset all; '",
            r"select 'a\'; reset all; select 1",
            "select $$; reset all; $$; select 1",
            "select 1 -- ; reset all; \n; select 1",
            "select 1 /* ; reset all; */; select 1",
            "create function f() returns int begin atomic reset all; select 1; end; select 1",
            "create rule r as on insert to t do (reset all; select 1)",
            "select 'ä'; reset all; select 1",
            "",
        ] {
            assert_eq!(woven(sql, false), None, "{sql}");
        }
    }

    #[test]
    fn positions_are_those_of_the_clients_text() {
        let sql = b"reset timezone; select boom";
        let woven = weave(sql, &[Setting::new("TimeZone", "CET")], false, |_| None).unwrap();
        let at = memchr::memmem::find(&woven.sql, b"boom").unwrap() + 1;
        assert_eq!(woven.position(at), memchr::memmem::find(sql, b"boom").unwrap() + 1);
        assert_eq!(woven.position(1), 1);
    }
}
