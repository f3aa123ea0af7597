//! Prepares a password for SCRAM as PostgreSQL does.

use std::borrow::Cow;

/// Returns `password` after SASLprep. A password that is not UTF-8, contains characters that
/// SASLprep forbids, or would become empty is returned unchanged, as in PostgreSQL's server and
/// libpq.
///
/// Source: RFC 4013; `pg_saslprep` and its callers in `saslprep.c`, `fe-auth-scram.c`.
pub(super) fn saslprep(password: &[u8]) -> Cow<'_, [u8]> {
    match std::str::from_utf8(password).map(stringprep::saslprep) {
        Ok(Ok(Cow::Owned(prepared))) if !prepared.is_empty() => Cow::Owned(prepared.into_bytes()),
        _ => Cow::Borrowed(password),
    }
}

#[test]
fn preparation_matches_rfc_examples() {
    assert_eq!(*saslprep("I\u{ad}X".as_bytes()), *b"IX", "soft hyphen maps to nothing");
    assert_eq!(*saslprep(b"user"), *b"user");
    assert_eq!(*saslprep(b"USER"), *b"USER", "case is kept");
    assert_eq!(*saslprep("\u{aa}".as_bytes()), *b"a", "NFKC");
    assert_eq!(*saslprep("\u{2168}".as_bytes()), *b"IX", "NFKC");
    assert_eq!(*saslprep(b"\x07"), *b"\x07", "forbidden, so unprepared");
    assert_eq!(*saslprep(b"caf\xe9"), *b"caf\xe9", "not UTF-8, so unprepared");
    assert_eq!(*saslprep("\u{ad}".as_bytes()), *"\u{ad}".as_bytes(), "nothing left, so unprepared");
}
