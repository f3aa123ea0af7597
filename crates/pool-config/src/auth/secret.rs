//! [`StoredSecret`]: a user's password, md5 hash or SCRAM secret.

use std::fmt;

use howdah_wire::{Secret, auth::scram::ScramVerifier};
use serde::{
    Deserialize, Deserializer, Serialize as _, Serializer,
    de::{Error as _, IgnoredAny},
};
use subtle::ConstantTimeEq;

/// Maximum length of a secret in bytes: PgBouncer's limit, enough for tokens of cloud identity
/// services. A PasswordMessage with a secret of this length is the longest that PostgreSQL accepts
/// (`PG_MAX_AUTH_TOKEN_LENGTH` in `auth.c`).
pub const SECRET_BYTES_MAX: usize = 65_530;

/// A stored secret: a password, or a value of PostgreSQL's `pg_authid.rolpassword`.
///
/// The kind is recognized by its format, as in PostgreSQL: a valid `SCRAM-SHA-256$…`, or `md5` and
/// 32 hexadecimal digits; everything else is a password.
#[derive(Clone)]
pub enum StoredSecret {
    /// The password in cleartext.
    Plain(Secret),
    /// `md5` and 32 hexadecimal digits, a hash of password and user name: equivalent to the
    /// password wherever md5 is accepted.
    Md5(Secret),
    /// A SCRAM verifier: sufficient to authenticate a client, but not to log in to a server.
    Scram(Box<ScramVerifier>),
}

impl StoredSecret {
    /// Parses a secret and recognizes its kind. An empty password is accepted here, but no login
    /// matches it.
    pub fn parse(text: &str) -> Self {
        if let Ok(verifier) = text.parse() {
            return Self::Scram(Box::new(verifier));
        }
        let is_hash = text.strip_prefix("md5").is_some_and(|digits| {
            digits.len() == 32 && digits.bytes().all(|digit| digit.is_ascii_hexdigit())
        });
        if is_hash { Self::Md5(text.to_ascii_lowercase().into()) } else { Self::Plain(text.into()) }
    }

    /// Whether the secret is an empty password, which no login matches.
    pub fn is_empty(&self) -> bool {
        matches!(self, Self::Plain(password) if password.expose().is_empty())
    }
}

impl fmt::Debug for StoredSecret {
    /// Writes only the kind, never the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Plain(_) => "StoredSecret(plain)",
            Self::Md5(_) => "StoredSecret(md5)",
            Self::Scram(_) => "StoredSecret(scram)",
        })
    }
}

/// Serializes a secret. `StoredSecret` does not implement `Serialize`, so secrets are written only
/// where a field names this function.
pub(crate) fn serialize<S: Serializer>(
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
        // serde's own error would quote a number, which may be a password.
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum SecretValue {
            Text(String),
            Other(IgnoredAny),
        }
        match SecretValue::deserialize(from)? {
            SecretValue::Text(text) if text.len() > SECRET_BYTES_MAX => {
                Err(D::Error::custom("the secret is longer than 65,530 bytes"))
            }
            SecretValue::Text(text) => Ok(Self::parse(&text)),
            SecretValue::Other(_) => Err(D::Error::custom("a secret must be a quoted string")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secret_kind_is_recognized_by_prefix() {
        let cases = [
            ("sesame", "plain"),
            ("md5d41d8cd98f00b204e9800998ecf8427e", "md5"),
            ("md5D41D8CD98F00B204E9800998ECF8427E", "md5"),
            ("md5d41d8cd98f00b204e9800998ecf8427", "plain"),
            ("md5x41d8cd98f00b204e9800998ecf8427e", "plain"),
            ("SCRAM-SHA-256$4096:broken", "plain"),
        ];
        for (text, kind) in cases {
            let shown = format!("{:?}", StoredSecret::parse(text));
            assert_eq!(shown, format!("StoredSecret({kind})"), "{text}");
        }
        let keys = "A".repeat(43);
        let scram = format!("SCRAM-SHA-256$4096:c2FsdA==${keys}=:{keys}=");
        assert!(matches!(StoredSecret::parse(&scram), StoredSecret::Scram(_)));
        assert!(StoredSecret::parse("").is_empty());
        assert_ne!(StoredSecret::parse("a"), StoredSecret::parse("b"));
        assert_eq!(StoredSecret::parse(&scram), StoredSecret::parse(&scram));
    }
}
