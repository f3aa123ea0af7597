//! PgBouncer's `userlist.txt`: who has which secret.
//!
//! ```text
//! "user" "secret" whatever else is on the line
//! ; comment
//! ```
//!
//! A quote within quotes is doubled; what stands behind the secret is passed over. The order
//! matters where a name comes twice: the last one counts, as in PgBouncer.

use std::collections::BTreeMap;

use super::{StoredSecret, secret::SECRET_BYTES_MAX};

/// A file that is no user list. It never shows what it is about: that may be a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {kind}")]
pub struct UserlistError {
    /// The line, from 1.
    pub line: usize,
    /// What is wrong there.
    pub kind: UserlistErrorKind,
}

/// What can be wrong with a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UserlistErrorKind {
    /// It does not begin with a quote.
    #[error("a user must stand between double quotes: \"user\" \"secret\"")]
    NoUser,
    /// There is no second quoted text.
    #[error("a secret must follow between double quotes: \"user\" \"secret\"")]
    NoSecret,
    /// A quote is not closed on its line.
    #[error("the closing double quote is missing")]
    Unclosed,
    /// The name is longer than a server's names.
    #[error("the user's name is longer than 127 bytes")]
    LongName,
    /// The secret is longer than any.
    #[error("the secret is longer than 65,530 bytes")]
    LongSecret,
}

/// Longest name: PgBouncer's limit, twice PostgreSQL's.
const NAME_BYTES_MAX: usize = 127;

/// Reads a user list.
///
/// # Errors
///
/// The first line that is none, by number.
pub fn read(text: &str) -> Result<BTreeMap<String, StoredSecret>, UserlistError> {
    let mut users = BTreeMap::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with(';') {
            continue;
        }
        let (name, secret) = entry(line).map_err(|kind| UserlistError { line: index + 1, kind })?;
        users.insert(name, StoredSecret::parse(&secret));
    }
    Ok(users)
}

fn entry(line: &str) -> Result<(String, String), UserlistErrorKind> {
    let line = line.strip_prefix('"').ok_or(UserlistErrorKind::NoUser)?;
    let (name, rest) = quoted(line)?;
    let rest = rest.trim_start().strip_prefix('"').ok_or(UserlistErrorKind::NoSecret)?;
    let (secret, _) = quoted(rest)?;
    match (name.len(), secret.len()) {
        (0, _) => Err(UserlistErrorKind::NoUser),
        (name, _) if name > NAME_BYTES_MAX => Err(UserlistErrorKind::LongName),
        (_, secret) if secret > SECRET_BYTES_MAX => Err(UserlistErrorKind::LongSecret),
        _ => Ok((name, secret)),
    }
}

/// Takes a text up to its closing quote.
fn quoted(mut rest: &str) -> Result<(String, &str), UserlistErrorKind> {
    let mut text = String::new();
    loop {
        let (part, behind) = rest.split_once('"').ok_or(UserlistErrorKind::Unclosed)?;
        text.push_str(part);
        match behind.strip_prefix('"') {
            Some(behind) => {
                text.push('"');
                rest = behind;
            }
            None => return Ok((text, behind)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_have_secrets_of_three_forms() {
        let text = "; people\n\n\"alice\" \"sesame\"\n  \"o\"\"b\" \"a\"\"b\" more\n\
                    \"bob\"\t\"md5d41d8cd98f00b204e9800998ecf8427e\"\n\"nobody\" \"\"\n";
        let users = read(text).unwrap();
        assert_eq!(users["alice"], StoredSecret::parse("sesame"));
        assert_eq!(users["o\"b"], StoredSecret::parse("a\"b"));
        assert!(matches!(users["bob"], StoredSecret::Md5(_)));
        assert!(users["nobody"].is_empty());
        assert_eq!(users.len(), 4);
    }

    #[test]
    fn secret_of_65530_bytes_is_read() {
        let token = "t".repeat(SECRET_BYTES_MAX);
        let users = read(&format!("\"a\" \"{token}\"\n")).unwrap();
        assert_eq!(users["a"], StoredSecret::parse(&token));
    }

    #[test]
    fn the_last_one_of_a_name_counts() {
        let users = read("\"a\" \"1\"\n\"a\" \"2\"\n").unwrap();
        assert_eq!(users["a"], StoredSecret::parse("2"));
    }

    #[test]
    fn broken_lines_have_their_number_and_show_nothing() {
        use UserlistErrorKind::{LongName, LongSecret, NoSecret, NoUser, Unclosed};
        let long = format!("\"{}\" \"x\"", "n".repeat(128));
        let secret = format!("\"n\" \"{}\"", "s".repeat(SECRET_BYTES_MAX + 1));
        for (line, kind) in [
            ("alice sesame", NoUser),
            ("\"\" \"x\"", NoUser),
            ("\"alice\"", NoSecret),
            ("\"alice\" sesame", NoSecret),
            ("\"alice", Unclosed),
            ("\"alice\" \"sesame", Unclosed),
            (&long, LongName),
            (&secret, LongSecret),
        ] {
            let error = read(&format!(";\n{line}\n")).unwrap_err();
            assert_eq!(error, UserlistError { line: 2, kind });
            assert!(!error.to_string().contains("sesame"), "{error}");
        }
    }
}
