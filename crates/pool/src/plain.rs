//! Query strings of which nothing has to be found out: nearly all that clients send.

/// Whether a text is one statement that is none of those by which a session is changed and whose words would
/// have to be understood: SET, RESET, DISCARD, DEALLOCATE, LISTEN, UNLISTEN. It is one of the few that begin
/// with a word in [`WORDS`], and has no semicolon but at its end; of others this says no, whatever they are.
#[inline]
pub(crate) fn is_plain(sql: &[u8]) -> bool {
    let Some(word) = sql.first_chunk::<4>() else { return false };
    let word = u32::from_le_bytes(*word) | 0x2020_2020; // Lower case, and no letter becomes another.
    if !WORDS.contains(&word) {
        return false;
    }
    let Some(end) = memchr::memchr(b';', sql) else { return true };
    sql[end + 1..].iter().all(|byte| *byte == b';' || byte.is_ascii_whitespace())
}

/// Whether a text is a plain statement that neither begins nor ends a transaction.
pub(crate) fn is_query(sql: &[u8]) -> bool {
    let is_control = |word: &[u8; 4]| {
        [b"begi", b"comm", b"roll"].iter().any(|control| word.eq_ignore_ascii_case(*control))
    };
    is_plain(sql) && !sql.first_chunk().is_some_and(is_control)
}

/// How such statements begin. None of the others begins like that.
const WORDS: [u32; 8] = [
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
fn what_changes_a_session_is_not_plain() {
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
        assert!(is_plain(sql.as_bytes()), "{sql}");
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
        assert!(!is_plain(sql.as_bytes()), "{sql}");
    }
}
