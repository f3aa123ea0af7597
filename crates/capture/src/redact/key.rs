//! [`RedactionKey`]: the key that replacements depend on.

use ring::{
    hmac,
    rand::{SecureRandom, SystemRandom},
};
use zeroize::Zeroizing;

/// The secret key of a [`Redactor`](crate::Redactor). It must stay secret: with the key, a guessed
/// value can be checked against a replacement.
#[derive(Clone, Debug)]
pub struct RedactionKey(pub(super) hmac::Key);

/// The reason why a key cannot be created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The secret has fewer than 16 bytes.
    #[error("the redaction key is too short: {bytes} of at least {BYTES_MIN} bytes")]
    TooShort {
        /// Length of the secret in bytes, without a line break at the end.
        bytes: usize,
    },
    /// The operating system provides no random bytes.
    #[error("cannot get random numbers from the operating system")]
    NoRandomness,
}

const BYTES_MIN: usize = 16;

impl RedactionKey {
    /// Creates a key from secret bytes, such as the content of a file, ignoring a line break at the
    /// end.
    ///
    /// # Errors
    ///
    /// There are fewer than 16 bytes.
    pub fn from_secret(bytes: &[u8]) -> Result<Self, KeyError> {
        let bytes = bytes.strip_suffix(b"\n").unwrap_or(bytes);
        let bytes = bytes.strip_suffix(b"\r").unwrap_or(bytes);
        if bytes.len() < BYTES_MIN {
            return Err(KeyError::TooShort { bytes: bytes.len() });
        }
        Ok(Self(hmac::Key::new(hmac::HMAC_SHA256, bytes)))
    }

    /// Creates a random key that cannot be reproduced.
    ///
    /// # Errors
    ///
    /// The operating system provides no random bytes.
    pub fn random() -> Result<Self, KeyError> {
        let mut bytes = Zeroizing::new([0; 32]);
        SystemRandom::new().fill(&mut *bytes).map_err(|_| KeyError::NoRandomness)?;
        Ok(Self(hmac::Key::new(hmac::HMAC_SHA256, &*bytes)))
    }
}
