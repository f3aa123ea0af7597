//! The key that replacements depend on.

use ring::{
    hmac,
    rand::{SecureRandom, SystemRandom},
};
use zeroize::Zeroizing;

/// A secret. Who has it can test whether a replacement may be that of a value they guess.
#[derive(Clone, Debug)]
pub struct RedactionKey(pub(super) hmac::Key);

/// Why there is no key.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// So few bytes could be guessed.
    #[error("the key has {bytes} bytes; it must have at least {BYTES_MIN}")]
    TooShort {
        /// How many there are.
        bytes: usize,
    },
    /// The system gives no random bytes.
    #[error("the system gives no random numbers")]
    NoRandomness,
}

const BYTES_MIN: usize = 16;

impl RedactionKey {
    /// From bytes that somebody keeps, such as those of a file: as they are, a line break at the end
    /// aside.
    ///
    /// # Errors
    ///
    /// They are fewer than 16.
    pub fn from_secret(bytes: &[u8]) -> Result<Self, KeyError> {
        let bytes = bytes.strip_suffix(b"\n").unwrap_or(bytes);
        let bytes = bytes.strip_suffix(b"\r").unwrap_or(bytes);
        if bytes.len() < BYTES_MIN {
            return Err(KeyError::TooShort { bytes: bytes.len() });
        }
        Ok(Self(hmac::Key::new(hmac::HMAC_SHA256, bytes)))
    }

    /// One that nobody knows or will know again.
    ///
    /// # Errors
    ///
    /// The system gives no random bytes.
    pub fn random() -> Result<Self, KeyError> {
        let mut bytes = Zeroizing::new([0; 32]);
        SystemRandom::new().fill(&mut *bytes).map_err(|_| KeyError::NoRandomness)?;
        Ok(Self(hmac::Key::new(hmac::HMAC_SHA256, &*bytes)))
    }
}
