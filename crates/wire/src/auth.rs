//! Password proofs: md5 and SCRAM-SHA-256. Randomness comes from the caller.

pub mod scram;

mod saslprep;

use md5::{Digest, Md5};

/// Returns the response to an md5 request: `md5` and 32 hexadecimal digits.
///
/// It is `"md5" + hex(md5(hex(md5(password + user)) + salt))`. The value in `pg_authid`, `"md5" +
/// hex(md5(password + user))`, is sufficient to compute it, and md5 is broken: PostgreSQL 18 warns
/// about it. Source: PostgreSQL manual, "AuthenticationMD5Password".
pub fn md5(user: &[u8], password: &[u8], salt: [u8; 4]) -> [u8; 35] {
    md5_from_stored(&md5_stored(user, password), salt)
}

/// Returns the value stored in `pg_authid` for a password: `md5` and 32 hexadecimal digits.
pub fn md5_stored(user: &[u8], password: &[u8]) -> [u8; 35] {
    with_prefix(hex(Md5::new().chain_update(password).chain_update(user).finalize().into()))
}

/// Returns the response to an md5 request, computed from the value in `pg_authid`.
pub fn md5_from_stored(stored: &[u8; 35], salt: [u8; 4]) -> [u8; 35] {
    with_prefix(hex(Md5::new().chain_update(&stored[3..]).chain_update(salt).finalize().into()))
}

fn with_prefix(digits: [u8; 32]) -> [u8; 35] {
    let mut answer = *b"md5................................";
    answer[3..].copy_from_slice(&digits);
    answer
}

fn hex(digest: [u8; 16]) -> [u8; 32] {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = [0; 32];
    for (pair, byte) in text.chunks_exact_mut(2).zip(digest) {
        pair[0] = DIGITS[usize::from(byte >> 4)];
        pair[1] = DIGITS[usize::from(byte & 15)];
    }
    text
}

#[test]
fn md5_matches_known_login() {
    // Computed with coreutils: printf secretalice | md5sum; then that text and the salt again.
    assert_eq!(&md5(b"alice", b"secret", *b"salt"), b"md5986e2194384c07f4fd1df4b1351b3e68");
    let stored = md5_stored(b"alice", b"secret");
    assert_eq!(md5_from_stored(&stored, *b"salt"), md5(b"alice", b"secret", *b"salt"));
}
