//! The server's side of SCRAM.

use std::num::NonZeroU32;

use base64::Engine;
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

use super::{
    BASE64, BINDING_TYPE, ScramError, ScramKeys, attribute, base64_attribute, hmac_sha256,
    salted_password, sha256, text, xor,
};

/// The secret that a server stores for a password: sufficient to check a client's proof, but not to
/// create one.
///
/// Its text form is that of `pg_authid.rolpassword` and of poolers' user lists:
/// `SCRAM-SHA-256$<iterations>:<salt>$<StoredKey>:<ServerKey>`, the last three in base64.
#[derive(Clone, PartialEq, Eq)]
pub struct ScramVerifier {
    iterations: NonZeroU32,
    salt: Vec<u8>,
    stored_key: [u8; 32],
    server_key: [u8; 32],
}

/// The error for a text that is not a server's SCRAM secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the secret is not of the form SCRAM-SHA-256$<iterations>:<salt>$<stored key>:<server key>"
)]
pub struct ScramVerifierError;

impl ScramVerifier {
    /// Derives the server's secret from a password. `salt` must be random; PostgreSQL uses 16 bytes
    /// and, by default, 4,096 iterations.
    pub fn from_password(password: &[u8], salt: &[u8], iterations: NonZeroU32) -> Self {
        let salted = salted_password(password, salt, iterations);
        Self {
            iterations,
            salt: salt.to_vec(),
            stored_key: sha256(&hmac_sha256(&*salted, b"Client Key")),
            server_key: hmac_sha256(&*salted, b"Server Key"),
        }
    }

    /// Returns the server's secret for known client keys.
    pub fn from_keys(keys: &ScramKeys) -> Self {
        Self {
            iterations: keys.iterations,
            salt: keys.salt.to_vec(),
            stored_key: sha256(&*keys.client_key),
            server_key: *keys.server_key,
        }
    }

    /// Returns a salt for a user without a stored one: the same at each login, and
    /// indistinguishable from a random one without `secret`.
    pub fn mock_salt(secret: &[u8; 32], user: &[u8]) -> [u8; 16] {
        let hash = hmac_sha256(secret, &[b"salt ", user].concat());
        *hash.first_chunk().expect("a hash is longer")
    }

    /// Returns a secret for a user that does not exist. No password matches it, and a client cannot
    /// distinguish it from a real one with an unknown password. `secret` must be random and the
    /// same for all logins. Source: `mock_scram_secret` in `auth-scram.c`.
    pub fn mock(secret: &[u8; 32], user: &[u8], iterations: NonZeroU32) -> Self {
        Self {
            iterations,
            salt: Self::mock_salt(secret, user).to_vec(),
            // To match this value, a client would have to present its preimage.
            stored_key: hmac_sha256(secret, &[b"stored ", user].concat()),
            server_key: hmac_sha256(secret, &[b"server ", user].concat()),
        }
    }

    /// Returns the salt to send to clients.
    pub fn salt(&self) -> &[u8] {
        &self.salt
    }

    /// Returns the number of hash iterations.
    pub fn iterations(&self) -> NonZeroU32 {
        self.iterations
    }

    /// Returns the text form, as stored in `pg_authid`.
    pub fn to_text(&self) -> String {
        format!(
            "SCRAM-SHA-256${}:{}${}:{}",
            self.iterations,
            BASE64.encode(&self.salt),
            BASE64.encode(self.stored_key),
            BASE64.encode(self.server_key),
        )
    }
}

impl std::str::FromStr for ScramVerifier {
    type Err = ScramVerifierError;

    fn from_str(text: &str) -> Result<Self, ScramVerifierError> {
        let parse = || {
            let (cost, keys) = text.strip_prefix("SCRAM-SHA-256$")?.split_once('$')?;
            let (iterations, salt) = cost.split_once(':')?;
            let (stored_key, server_key) = keys.split_once(':')?;
            let key = |text| BASE64.decode(text).ok()?.try_into().ok();
            Some(Self {
                iterations: iterations.parse().ok()?,
                salt: BASE64.decode(salt).ok()?,
                stored_key: key(stored_key)?,
                server_key: key(server_key)?,
            })
        };
        parse().ok_or(ScramVerifierError)
    }
}

impl std::fmt::Debug for ScramVerifier {
    /// Hides the keys: the server key allows impersonating the server.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Verifier").field("iterations", &self.iterations).finish_non_exhaustive()
    }
}

/// The first state of a server's exchange: the reply to the client's first message is ready to be
/// sent, and the client's proof is expected.
#[derive(Debug)]
pub struct ServerFirst {
    verifier: ScramVerifier,
    /// The decoded value that the client's `c=` must have.
    binding: Vec<u8>,
    nonce: String,
    message: String,
    client_first_bare: String,
}

impl ServerFirst {
    /// Handles `client-first-message`. `channel_binding` is the hash of the server's certificate if
    /// SCRAM-SHA-256-PLUS was offered; `plus` is whether the client chose it; `nonce` must be
    /// random and never used before.
    ///
    /// # Errors
    ///
    /// The message is malformed, or its channel binding flag contradicts what was offered or
    /// chosen.
    pub fn receive(
        verifier: ScramVerifier,
        client_first: &[u8],
        channel_binding: Option<&[u8]>,
        plus: bool,
        nonce: [u8; 18],
    ) -> Result<Self, ScramError> {
        let client_first = text(client_first, b'n')?;
        let (flag, rest) = client_first.split_once(',').ok_or(ScramError::ChannelBinding)?;
        let hash = match (flag.strip_prefix("p="), flag, channel_binding) {
            (Some(BINDING_TYPE), _, Some(hash)) if plus => hash,
            (None, "n", _) if !plus => &[],
            (None, "y", None) if !plus => &[],
            _ => return Err(ScramError::ChannelBinding),
        };
        // An authorization identity, `a=`, would be at this position: PostgreSQL does not support
        // it.
        let bare = rest.strip_prefix(',').ok_or(ScramError::Malformed { attribute: b'a' })?;
        let mut rest = bare;
        attribute(&mut rest, b'n')?;
        let client_nonce = attribute(&mut rest, b'r')?;
        if client_nonce.is_empty() {
            return Err(ScramError::Malformed { attribute: b'r' });
        }

        let nonce = format!("{client_nonce}{}", BASE64.encode(nonce));
        let salt = BASE64.encode(&verifier.salt);
        let message = format!("r={nonce},s={salt},i={}", verifier.iterations);
        let binding = [flag.as_bytes(), b",,", hash].concat();
        Ok(Self { verifier, binding, nonce, message, client_first_bare: bare.to_owned() })
    }

    /// Returns `server-first-message`, to be sent next.
    pub fn message(&self) -> &[u8] {
        self.message.as_bytes()
    }

    /// Handles `client-final-message`, checks the proof and returns `server-final-message`.
    ///
    /// # Errors
    ///
    /// The errors of [`ServerFirst::finish`].
    pub fn verify(self, client_final: &[u8]) -> Result<Vec<u8>, ScramError> {
        self.finish(client_final).map(|end| end.message)
    }

    /// Handles `client-final-message` and checks the proof.
    ///
    /// # Errors
    ///
    /// The message is malformed or belongs to another exchange, the channel binding differs, or the
    /// client does not know the password.
    pub fn finish(self, client_final: &[u8]) -> Result<ServerFinal, ScramError> {
        let client_final = text(client_final, b'c')?;
        let mut rest = client_final;
        let binding = base64_attribute(&mut rest, b'c')?;
        let nonce = attribute(&mut rest, b'r')?;
        let (without_proof, mut rest) = client_final
            .rsplit_once(",p=")
            .ok_or(ScramError::Malformed { attribute: b'p' })
            .map(|(before, _)| (before, &client_final[before.len() + 1..]))?;
        let proof = base64_attribute(&mut rest, b'p')?;
        let proof = proof.try_into().map_err(|_| ScramError::Malformed { attribute: b'p' })?;
        if nonce != self.nonce {
            return Err(ScramError::Nonce);
        }
        if binding != self.binding {
            return Err(ScramError::ChannelBinding);
        }

        let Self { verifier, message, client_first_bare, .. } = self;
        let auth_message = format!("{client_first_bare},{message},{without_proof}");
        let client_signature = hmac_sha256(&verifier.stored_key, auth_message.as_bytes());
        let client_key = xor(client_signature, &proof);
        if !bool::from(sha256(&client_key)[..].ct_eq(&verifier.stored_key)) {
            return Err(ScramError::ClientUnproven);
        }
        let signature = hmac_sha256(&verifier.server_key, auth_message.as_bytes());
        let ScramVerifier { iterations, salt, server_key, .. } = verifier;
        Ok(ServerFinal {
            message: format!("v={}", BASE64.encode(signature)).into_bytes(),
            keys: ScramKeys {
                salt: salt.into(),
                iterations,
                client_key: Zeroizing::new(client_key),
                server_key: Zeroizing::new(server_key),
            },
        })
    }
}

/// The last state of a server's exchange: the client is authenticated.
#[derive(Debug)]
pub struct ServerFinal {
    /// The `server-final-message`, to be sent next.
    pub message: Vec<u8>,
    /// The client's keys, recovered from its proof: a proxy can log in with them to a server that
    /// stores the same secret.
    pub keys: ScramKeys,
}
