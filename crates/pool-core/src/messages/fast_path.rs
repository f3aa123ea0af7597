//! A fast path for query strings that need no further inspection, which are nearly all that clients
//! send.

/// Whether a query string is a single statement, and not one whose changes to the session the
/// pooler must track, such as SET, RESET, DISCARD, DEALLOCATE, LISTEN and UNLISTEN. Functions that
/// it calls are not examined. Returns `true` only if it starts with one of [`STATEMENT_PREFIXES`]
/// and contains no semicolon except at its end; false negatives are possible.
#[inline]
pub(crate) fn is_simple(sql: &[u8]) -> bool {
    let Some(word) = sql.first_chunk::<4>() else { return false };
    let word = u32::from_le_bytes(*word) | 0x2020_2020; // Lower case; no prefixes collide.
    if !STATEMENT_PREFIXES.contains(&word) {
        return false;
    }
    let Some(end) = memchr::memchr(b';', sql) else { return true };
    sql[end + 1..].iter().all(|byte| *byte == b';' || byte.is_ascii_whitespace())
}

/// Whether a query string is simple ([`is_simple`]) and neither starts nor ends a transaction;
/// false negatives are possible.
pub(crate) fn is_non_transaction(sql: &[u8]) -> bool {
    let is_control = |word: &[u8; 4]| {
        [b"begi", b"comm", b"roll"].iter().any(|control| word.eq_ignore_ascii_case(*control))
    };
    is_simple(sql) && !sql.first_chunk().is_some_and(is_control)
}

/// First four bytes, in lower case, of the statements that [`is_simple`] accepts. No statement that
/// must be tracked starts with these bytes.
const STATEMENT_PREFIXES: [u32; 8] = [
    u32::from_le_bytes(*b"sele"),
    u32::from_le_bytes(*b"inse"),
    u32::from_le_bytes(*b"upda"),
    u32::from_le_bytes(*b"dele"),
    u32::from_le_bytes(*b"with"),
    u32::from_le_bytes(*b"begi"),
    u32::from_le_bytes(*b"comm"),
    u32::from_le_bytes(*b"roll"),
];

#[test]
fn statements_that_change_the_session_are_not_simple() {
    for sql in [
        "select 1",
        "SELECT 1;",
        "Insert into t values (1) ; ; \n",
        "with a as (select 1) select * from a",
        "begin",
        "COMMIT;",
        "rollback",
        "delete from t",
        "UPDATE t SET a = 1",
    ] {
        assert!(is_simple(sql.as_bytes()), "{sql}");
    }
    for sql in [
        "",
        "sel",
        "set a = 1",
        "reset all",
        "discard all",
        "deallocate a",
        "declare c cursor for select 1",
        "listen a",
        "unlisten *",
        " select 1",
        "-- a\nreset all",
        "select 1; reset all",
        "select ';'",
        "begin; set a = 1",
    ] {
        assert!(!is_simple(sql.as_bytes()), "{sql}");
    }
}
