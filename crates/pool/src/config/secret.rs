//! What is kept of a user's password.

use std::fmt;

use howdah_wire::{Secret, auth::scram::Verifier};
use serde::{
    Deserialize, Deserializer, Serialize as _, Serializer,
    de::{Error as _, IgnoredAny},
};
use subtle::ConstantTimeEq;

/// Longest secret, in bytes: PgBouncer's limit, which holds tokens of cloud identity services. A
/// PasswordMessage of it is as long as PostgreSQL takes (`PG_MAX_AUTH_TOKEN_LENGTH` in `auth.c`).
pub const SECRET_BYTES_MAX: usize = 65_530;

/// What is kept of a user's password: the password itself, or what PostgreSQL keeps of it in
/// `pg_authid.rolpassword`.
///
/// Its form is told by its beginning, as PostgreSQL does it: `SCRAM-SHA-256$…` that parses, `md5`
/// and 32 hexadecimal digits, and everything else is a password.
#[derive(Clone)]
pub enum StoredSecret {
    /// The password.
    Plain(Secret),
    /// `md5` and 32 hexadecimal digits, of password and user name: as good as the password wherever
    /// md5 is accepted.
    Md5(Secret),
    /// What SCRAM needs to check a client. It does not let us in anywhere.
    Scram(Box<Verifier>),
}

impl StoredSecret {
    /// Tells the form of a text. It is empty for nobody: an empty password never logs in.
    pub fn parse(text: &str) -> Self {
        if let Ok(verifier) = text.parse() {
            return Self::Scram(Box::new(verifier));
        }
        let is_hash = text.strip_prefix("md5").is_some_and(|digits| {
            digits.len() == 32 && digits.bytes().all(|digit| digit.is_ascii_hexdigit())
        });
        match is_hash {
            true => Self::Md5(text.to_ascii_lowercase().into()),
            false => Self::Plain(text.into()),
        }
    }

    /// Whether there is nothing that anybody could log in with.
    pub fn is_empty(&self) -> bool {
        matches!(self, Self::Plain(password) if password.expose().is_empty())
    }
}

impl fmt::Debug for StoredSecret {
    /// Only the form.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Plain(_) => "StoredSecret(plain)",
            Self::Md5(_) => "StoredSecret(md5)",
            Self::Scram(_) => "StoredSecret(scram)",
        })
    }
}

/// Writes a secret into settings: nobody does so by accident, since it has to be named.
pub(super) fn written<S: Serializer>(
    secret: &Option<StoredSecret>,
    to: S,
) -> Result<S::Ok, S::Error> {
    let text = secret.as_ref().map(|secret| match secret {
        StoredSecret::Plain(text) | StoredSecret::Md5(text) => {
            String::from_utf8_lossy(text.expose()).into_owned()
        }
        StoredSecret::Scram(verifier) => verifier.to_text().to_string(),
    });
    text.serialize(to)
}

impl PartialEq for StoredSecret {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Plain(one), Self::Plain(other)) | (Self::Md5(one), Self::Md5(other)) => {
                one.expose().ct_eq(other.expose()).into()
            }
            (Self::Scram(one), Self::Scram(other)) => one == other,
            _ => false,
        }
    }
}

impl Eq for StoredSecret {}

impl<'de> Deserialize<'de> for StoredSecret {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        // serde's own complaint about a number would show it, and it may be somebody's password.
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Text(String),
            Other(IgnoredAny),
        }
        match Written::deserialize(from)? {
            Written::Text(text) if text.len() > SECRET_BYTES_MAX => {
                Err(D::Error::custom("the secret is longer than 65,530 bytes"))
            }
            Written::Text(text) => Ok(Self::parse(&text)),
            Written::Other(_) => Err(D::Error::custom("a secret must be a text in quotes")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_form_is_told_by_the_beginning() {
        let cases = [
            ("sesame", "plain"),
            ("md5d41d8cd98f00b204e9800998ecf8427e", "md5"),
            ("md5D41D8CD98F00B204E9800998ECF8427E", "md5"),
            ("md5d41d8cd98f00b204e9800998ecf8427", "plain"),
            ("md5x41d8cd98f00b204e9800998ecf8427e", "plain"),
            ("SCRAM-SHA-256$4096:broken", "plain"),
        ];
        for (text, form) in cases {
            let shown = format!("{:?}", StoredSecret::parse(text));
            assert_eq!(shown, format!("StoredSecret({form})"), "{text}");
        }
        let keys = "A".repeat(43);
        let scram = format!("SCRAM-SHA-256$4096:c2FsdA==${keys}=:{keys}=");
        assert!(matches!(StoredSecret::parse(&scram), StoredSecret::Scram(_)));
        assert!(StoredSecret::parse("").is_empty());
        assert_ne!(StoredSecret::parse("a"), StoredSecret::parse("b"));
        assert_eq!(StoredSecret::parse(&scram), StoredSecret::parse(&scram));
    }
}
