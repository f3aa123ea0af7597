//! Proofs of a password: md5 and SCRAM-SHA-256. Randomness comes from the caller.

pub mod scram;

mod saslprep;

use md5::{Digest, Md5};

/// The answer to an md5 request: `md5` and 32 hexadecimal digits.
///
/// It is `"md5" + hex(md5(hex(md5(password + user)) + salt))`. What `pg_authid` stores,
/// `"md5" + hex(md5(password + user))`, is enough to compute it, and md5 is broken: PostgreSQL 18
/// warns of it. Source: PostgreSQL manual, "AuthenticationMD5Password".
pub fn md5(user: &[u8], password: &[u8], salt: [u8; 4]) -> [u8; 35] {
    let inner = hex(Md5::new().chain_update(password).chain_update(user).finalize().into());
    let outer = hex(Md5::new().chain_update(inner).chain_update(salt).finalize().into());
    let mut answer = *b"md5................................";
    answer[3..].copy_from_slice(&outer);
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
fn md5_of_a_known_login() {
    // Computed with coreutils: printf secretalice | md5sum; then (that text, then the salt) again.
    assert_eq!(&md5(b"alice", b"secret", *b"salt"), b"md5986e2194384c07f4fd1df4b1351b3e68");
}
