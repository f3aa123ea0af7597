//! Parser for PgBouncer's `userlist.txt`: users and their secrets.
//!
//! ```text
//! "user" "secret" whatever else is on the line
//! ; comment
//! ```
//!
//! A quote inside quotes is doubled; text after the secret is ignored. If a name occurs twice, the
//! last line counts, as in PgBouncer.

use std::collections::BTreeMap;

use super::{StoredSecret, secret::SECRET_BYTES_MAX};

/// The error for an invalid line. It never contains the line itself, which may include a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {kind}")]
pub struct UserlistError {
    /// Line number, from 1.
    pub line: usize,
    /// The problem with the line.
    pub kind: UserlistErrorKind,
}

/// The kinds of errors in a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UserlistErrorKind {
    /// The line does not start with a quote, or the name in quotes is empty.
    #[error("expected a user in double quotes: \"user\" \"secret\"")]
    NoUser,
    /// The second quoted text is missing.
    #[error("expected a secret in double quotes: \"user\" \"secret\"")]
    NoSecret,
    /// A quote is not closed on its line.
    #[error("the closing double quote is missing")]
    Unclosed,
    /// The name is longer than 127 bytes, the limit of PgBouncer.
    #[error("the user's name is longer than 127 bytes")]
    LongName,
    /// The secret is longer than 65,530 bytes, the limit of PgBouncer.
    #[error("the secret is longer than 65,530 bytes")]
    LongSecret,
}

/// Maximum length of a user name in bytes: PgBouncer's limit. PostgreSQL allows 63.
const NAME_BYTES_MAX: usize = 127;

/// Parses a user list.
///
/// # Errors
///
/// The first invalid line, identified by its number.
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

/// Parses a quoted text up to its closing quote, and returns the text and the rest of the line.
fn quoted(mut rest: &str) -> Result<(String, &str), UserlistErrorKind> {
    let mut text = String::new();
    loop {
        let (part, after) = rest.split_once('"').ok_or(UserlistErrorKind::Unclosed)?;
        text.push_str(part);
        match after.strip_prefix('"') {
            Some(after) => {
                text.push('"');
                rest = after;
            }
            None => return Ok((text, after)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secret_is_password_md5_or_empty() {
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
    fn last_line_for_user_counts() {
        let users = read("\"a\" \"1\"\n\"a\" \"2\"\n").unwrap();
        assert_eq!(users["a"], StoredSecret::parse("2"));
    }

    #[test]
    fn invalid_line_is_reported_without_contents() {
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
