//! Recognizes `DEALLOCATE name`, which some drivers use to deallocate statements that they prepared
//! with Parse. The name is the client's; on the server, the statement has a different name.

use crate::session::state::strip_keyword;

/// Returns the name in a query string that consists of a single `DEALLOCATE [PREPARE] name`.
/// Unquoted names are folded to lower case. Returns `None` for other query strings, for DEALLOCATE
/// ALL, for quoted names that contain quotes, for unquoted names with special characters, and for
/// texts longer than [`SQL_BYTES_MAX`]; these are sent to the server.
pub(crate) fn name(sql: &[u8]) -> Option<Vec<u8>> {
    let sql = sql.trim_ascii_start();
    if sql.len() > SQL_BYTES_MAX || !matches!(sql.first(), Some(b'd' | b'D')) {
        return None;
    }
    let rest = strip_keyword(sql, b"deallocate")?;
    let rest = strip_keyword(rest, b"prepare").unwrap_or(rest).trim_ascii_end();
    let word = rest.strip_suffix(b";").unwrap_or(rest).trim_ascii_end();
    if let Some(quoted) = word.strip_prefix(b"\"").and_then(|word| word.strip_suffix(b"\"")) {
        let plain = !quoted.is_empty() && !quoted.contains(&b'"');
        return plain.then(|| quoted.to_vec());
    }
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$' | 0x80..);
    let plain = !word.is_empty() && word.iter().all(is_plain) && !word.eq_ignore_ascii_case(b"all");
    plain.then(|| word.to_ascii_lowercase())
}

/// Whether a query string may deallocate prepared statements: it contains DEALLOCATE or DISCARD.
pub(crate) fn may_deallocate(sql: &[u8]) -> bool {
    memchr::memchr2_iter(b'd', b'D', sql).any(|at| is_deallocation(&sql[at..]))
}

/// Whether a single statement starts with DEALLOCATE or DISCARD.
pub(crate) fn is_deallocation(sql: &[u8]) -> bool {
    let sql = sql.trim_ascii_start();
    matches!(sql.first(), Some(b'd' | b'D'))
        && (starts_with(sql, b"deallocate") || starts_with(sql, b"discard"))
}

fn starts_with(sql: &[u8], word: &[u8]) -> bool {
    sql.get(..word.len()).is_some_and(|found| found.eq_ignore_ascii_case(word))
}

/// Maximum length, in bytes, of a query string that [`name`] examines.
const SQL_BYTES_MAX: usize = 1024;

#[test]
fn deallocated_name_is_parsed_as_by_server() {
    for (sql, found) in [
        ("DEALLOCATE pdo_stmt_00000001", Some("pdo_stmt_00000001")),
        (" deallocate  prepare \"S 1\" ; ", Some("S 1")),
        ("Deallocate PREPARE Foo;", Some("foo")),
        ("deallocate all", None),
        ("deallocate", None),
        ("deallocate a; select 1", None),
        ("deallocate \"a\"\"b\"", None),
        ("select 1", None),
    ] {
        assert_eq!(name(sql.as_bytes()).as_deref(), found.map(str::as_bytes), "{sql}");
    }
}
