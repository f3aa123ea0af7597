//! [`splice`]: after each statement in a query string that resets parameters, inserts a statement
//! that restores the client's startup values, so that later statements of the same string see them.
//!
//! A query string is changed only as far as the ends of its statements are unambiguous, whatever
//! string and encoding rules the server applies. Beyond that point, later statements see the
//! server's values, and only later requests see the client's.

use crate::session::{parameter::SessionParameter, restore::parameters_reset_by_statement};

/// A query string with inserted statements, and the progress of its execution.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SplicedQuery {
    pub(crate) sql: Vec<u8>,
    /// The inserted statements: ordinal among all statements (from 0), and position and length in
    /// characters.
    spliced: Vec<(usize, usize, usize)>,
    /// Number of statements that the server has completed.
    finished: usize,
}

impl SplicedQuery {
    /// Creates a query string from a single statement and another to run after it.
    pub(crate) fn with_appended(statement: &[u8], added: &str) -> Self {
        let mut query = Self { sql: Vec::new(), spliced: Vec::new(), finished: 0 };
        query.add(statement, 1, added);
        query
    }

    fn add(&mut self, before: &[u8], ordinal: usize, added: &str) {
        self.sql.extend_from_slice(before);
        let start = self.sql.len();
        self.sql.push(b';');
        self.sql.extend_from_slice(added.as_bytes());
        self.spliced.push((ordinal, start, added.len() + 1));
    }

    /// Whether the pooler inserted the statement that the server is answering.
    pub(crate) fn is_spliced(&self) -> bool {
        self.spliced.iter().any(|(ordinal, ..)| *ordinal == self.finished)
    }

    /// Records that the server has completed a statement.
    pub(crate) fn finish_statement(&mut self) {
        self.finished += 1;
    }

    /// Converts a character position in the sent text (from 1), as in an error, to one in the
    /// client's text.
    pub(crate) fn client_position(&self, position: usize) -> usize {
        let before = self.spliced.iter().filter(|(_, start, _)| *start < position);
        position - before.map(|(.., length)| length).sum::<usize>()
    }
}

/// Returns the query string with inserted statements. Returns `None` if nothing is inserted, or if
/// a name or value to restore is not printable ASCII. `in_block` tells whether the query string
/// runs in a transaction block; only there does a SET LOCAL at its end have an effect.
///
/// If `also` returns a statement for one of the client's statements, that statement is inserted
/// after it instead.
pub(crate) fn splice(
    sql: &[u8],
    startup: &[SessionParameter],
    in_block: bool,
    mut also: impl FnMut(&[u8]) -> Option<String>,
) -> Option<SplicedQuery> {
    let mut query = SplicedQuery { sql: Vec::new(), spliced: Vec::new(), finished: 0 };
    let (mut at, mut copied, mut ordinal) = (0, 0, 0);
    while let Some(length) = statement_length(&sql[at..]) {
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
            query.add(&sql[copied..end], ordinal, &added);
            copied = end;
            ordinal += 1;
        } else if let Some((parameters, is_local)) =
            parameters_reset_by_statement(statement, startup)
            && (!is_last || is_local && in_block)
        {
            query.sql.extend_from_slice(&sql[copied..end]);
            copied = end;
            let start = query.sql.len();
            push_set_config(&mut query.sql, &parameters, is_local)?;
            query.spliced.push((ordinal, start, query.sql.len() - start));
            ordinal += 1;
        }
        if is_last {
            break;
        }
    }
    query.sql.extend_from_slice(&sql[copied..]);
    (!query.spliced.is_empty()).then_some(query)
}

/// Returns the statements of a query string, up to the first one whose end is ambiguous.
pub(crate) fn unambiguous_statements(sql: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let rest = sql.get(at..).filter(|rest| !rest.is_empty())?;
        let length = statement_length(rest)?;
        at += length + 1;
        Some(&rest[..length])
    })
}

/// Returns the length of the first statement, without its semicolon. Returns `None` if its end is
/// not certain, for example because it depends on the server's settings or on a comment.
fn statement_length(sql: &[u8]) -> Option<usize> {
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
    // A function body in BEGIN ATOMIC form contains semicolons, too.
    let is_body = sql[..at].windows(6).any(|word| word.eq_ignore_ascii_case(b"atomic"));
    (depth == 0 && !is_body).then_some(at)
}

/// Appends a statement that restores parameters. Returns `None` if a name or value is not printable
/// ASCII.
fn push_set_config(
    sql: &mut Vec<u8>,
    parameters: &[SessionParameter],
    is_local: bool,
) -> Option<()> {
    for (number, SessionParameter { name, value }) in parameters.iter().enumerate() {
        sql.extend_from_slice(if number == 0 { b";SELECT " } else { b"," });
        sql.extend_from_slice(b"pg_catalog.set_config(");
        push_literal(sql, name)?;
        sql.push(b',');
        push_literal(sql, value)?;
        sql.extend_from_slice(if is_local { b",true)" } else { b",false)" });
    }
    Some(())
}

/// Appends a string literal whose meaning does not depend on `standard_conforming_strings`. Returns
/// `None` if the text is not printable ASCII.
fn push_literal(sql: &mut Vec<u8>, text: &[u8]) -> Option<()> {
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

    fn spliced(sql: &str, in_block: bool) -> Option<String> {
        let startup =
            [SessionParameter::new("TimeZone", "CET"), SessionParameter::new("my.own", r"it's\")];
        let query = splice(sql.as_bytes(), &startup, in_block, |_| None)?;
        let ours = query.spliced.iter().map(|(ordinal, ..)| ordinal.to_string());
        Some(format!("{} {}", ours.collect::<String>(), String::from_utf8(query.sql).unwrap()))
    }

    #[test]
    fn statements_after_reset_see_client_value() {
        const ZONE: &str = "pg_catalog.set_config(E'TimeZone',E'CET',false)";
        const OWN: &str = r"pg_catalog.set_config(E'my.own',E'it''s\\',false)";
        let expected = format!("1 reset timezone;SELECT {ZONE}; show timezone");
        assert_eq!(spliced("reset timezone; show timezone", false), Some(expected));
        let expected = format!("3 select ';'; ; select 2;reset all;SELECT {ZONE},{OWN};select 3;");
        assert_eq!(spliced("select ';'; ; select 2;reset all;select 3;", false), Some(expected));
        let expected =
            format!("13 reset timezone;SELECT {ZONE};reset my.own;SELECT {OWN};select E'\\''");
        assert_eq!(spliced("reset timezone;reset my.own;select E'\\''", false), Some(expected));
    }

    #[test]
    fn local_reset_restores_for_transaction_only() {
        let set =
            "1 set local timezone to default;SELECT pg_catalog.set_config(E'TimeZone',E'CET',true)";
        assert_eq!(spliced("set local timezone to default", true).as_deref(), Some(set));
        assert_eq!(spliced("set local timezone to default", false), None);
        assert_eq!(spliced("set local timezone to 'UTC'; select 1", true), None);
    }

    #[test]
    fn ambiguous_text_is_left_unchanged() {
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
            assert_eq!(spliced(sql, false), None, "{sql}");
        }
    }

    #[test]
    fn error_positions_map_to_client_text() {
        let sql = b"reset timezone; select boom";
        let query =
            splice(sql, &[SessionParameter::new("TimeZone", "CET")], false, |_| None).unwrap();
        let at = memchr::memmem::find(&query.sql, b"boom").unwrap() + 1;
        assert_eq!(query.client_position(at), memchr::memmem::find(sql, b"boom").unwrap() + 1);
        assert_eq!(query.client_position(1), 1);
    }
}
