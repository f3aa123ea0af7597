//! Counts the values that a Bind of a statement must have.

use crate::lexer::{Lexer, TokenKind};

/// Returns the highest number `n` of the placeholders `$n` in `sql`; 0 if there are none.
///
/// Placeholders in literals, quoted names and comments do not count. A Bind must have this number
/// of values, because PostgreSQL numbers parameters from 1 without gaps. For a number above 65535,
/// the maximum of the protocol's 16-bit count, this returns 65535.
///
/// ```
/// assert_eq!(howdah_sql::placeholder_count(b"select $2, '$9' -- $7\n from t where a = $1"), 2);
/// ```
pub fn placeholder_count(sql: &[u8]) -> u16 {
    // Most statements of a simple-protocol log contain no dollar sign.
    if memchr::memchr(b'$', sql).is_none() {
        return 0;
    }
    Lexer::new(sql)
        .filter(|token| token.kind == TokenKind::Placeholder)
        .map(|token| ordinal(&token.text[1..]))
        .max()
        .unwrap_or(0)
}

fn ordinal(digits: &[u8]) -> u16 {
    digits.iter().fold(0_u16, |number, digit| {
        number.saturating_mul(10).saturating_add(u16::from(digit - b'0'))
    })
}

#[test]
fn placeholders_in_literals_and_comments_do_not_count() {
    let cases: [(&[u8], u16); 9] = [
        (b"select 1", 0),
        (b"select $1", 1),
        (b"select $1, $3, $2", 3),
        (b"select '$5', \"$6\", $$ $7 $$, $a$ $8 $a$ /* $9 */ -- $10", 0),
        (b"select a$1 from t", 0),
        (b"select E'\\' $4', $1", 1),
        (b"select $1::int+$2", 2),
        (b"select $99999999999999999999", u16::MAX),
        (b"$", 0),
    ];
    for (sql, count) in cases {
        assert_eq!(placeholder_count(sql), count, "{}", String::from_utf8_lossy(sql));
    }
}
