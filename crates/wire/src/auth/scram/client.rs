//! The client's side of SCRAM.

use std::num::NonZeroU32;

use base64::Engine;
use subtle::ConstantTimeEq;

use super::{
    BASE64, BINDING_TYPE, ITERATIONS_MAX, SCRAM_SHA_256, SCRAM_SHA_256_PLUS, ScramError, attribute,
    base64_attribute, hmac_sha256,
    keys::{ClientKeys, ScramKeys},
    sha256, text, xor,
};
use crate::Secret;

/// The client's channel binding capability for its TLS connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChannelBinding {
    /// The client does not bind: for example, it does not use TLS.
    Unsupported,
    /// The client supports channel binding, but the server did not offer it. A server that did
    /// offer it fails the login, because a man in the middle must have removed the offer.
    NotOffered,
    /// The client binds to this hash of the server's certificate, as `tls-server-end-point`
    /// prescribes.
    TlsServerEndPoint(
        /// The hash, computed with the hash algorithm of the certificate's signature, but with
        /// SHA-256 in place of MD5 or SHA-1 (RFC 5929).
        Vec<u8>,
    ),
}

impl ChannelBinding {
    /// Returns the name of the mechanism to choose.
    pub fn mechanism(&self) -> &'static [u8] {
        match self {
            Self::Unsupported | Self::NotOffered => SCRAM_SHA_256,
            Self::TlsServerEndPoint(_) => SCRAM_SHA_256_PLUS,
        }
    }

    fn gs2_header(&self) -> String {
        match self {
            Self::Unsupported => "n,,".to_owned(),
            Self::NotOffered => "y,,".to_owned(),
            Self::TlsServerEndPoint(_) => format!("p={BINDING_TYPE},,"),
        }
    }

    fn hash(&self) -> &[u8] {
        match self {
            Self::Unsupported | Self::NotOffered => &[],
            Self::TlsServerEndPoint(hash) => hash,
        }
    }
}

/// The first state of a client's exchange: the client has chosen its nonce.
#[derive(Debug)]
pub struct ClientFirst {
    secret: ProofSecret,
    binding: ChannelBinding,
    /// The bare message `n=,r=<nonce>`, with the nonce in base64.
    bare: String,
    nonce: String,
}

/// The secret from which a client computes its proof.
#[derive(Debug)]
enum ProofSecret {
    Password(Secret, ClientKeys),
    Keys(ScramKeys),
}

impl ClientFirst {
    /// Starts an exchange. `nonce` must be random and never used before.
    pub fn new(password: Secret, binding: ChannelBinding, nonce: [u8; 18]) -> Self {
        Self::start(ProofSecret::Password(password, ClientKeys::default()), binding, nonce)
    }

    /// Starts an exchange with keys derived from the password.
    pub fn from_keys(keys: ScramKeys, binding: ChannelBinding, nonce: [u8; 18]) -> Self {
        Self::start(ProofSecret::Keys(keys), binding, nonce)
    }

    fn start(knowledge: ProofSecret, binding: ChannelBinding, nonce: [u8; 18]) -> Self {
        let nonce = BASE64.encode(nonce);
        Self { secret: knowledge, binding, bare: format!("n=,r={nonce}"), nonce }
    }

    /// Uses `shared` as the cache of keys: cached keys are reused, and computed ones are added. Has
    /// no effect on an exchange that was started with [`ClientFirst::from_keys`].
    #[must_use]
    pub fn with_keys(mut self, shared: ClientKeys) -> Self {
        if let ProofSecret::Password(_, keys) = &mut self.secret {
            *keys = shared;
        }
        self
    }

    /// Returns the name of the mechanism to request.
    pub fn mechanism(&self) -> &'static [u8] {
        self.binding.mechanism()
    }

    /// Returns `client-first-message`, to be sent with the name of the mechanism.
    pub fn message(&self) -> Vec<u8> {
        (self.binding.gs2_header() + &self.bare).into_bytes()
    }

    /// Parses and checks `server-first-message`, without replying to it.
    fn challenge<'m>(&self, server_first: &'m [u8]) -> Result<Challenge<'m>, ScramError> {
        let server_first = text(server_first, b'r')?;
        let mut rest = server_first;
        let nonce = attribute(&mut rest, b'r')?;
        let salt = base64_attribute(&mut rest, b's')?;
        let iterations = attribute(&mut rest, b'i')?;
        let iterations: u32 =
            iterations.parse().map_err(|_| ScramError::Malformed { attribute: b'i' })?;
        if nonce.len() <= self.nonce.len() || !nonce.starts_with(&self.nonce) {
            return Err(ScramError::Nonce);
        }
        let iterations = NonZeroU32::new(iterations)
            .filter(|iterations| iterations.get() <= ITERATIONS_MAX)
            .ok_or(ScramError::Iterations { iterations })?;
        Ok(Challenge { nonce, salt, iterations })
    }

    /// Returns the salt and the number of iterations that `server-first-message` requests. With
    /// them a caller can have [`ClientKeys::get_or_compute`] compute the keys elsewhere before it
    /// calls [`ClientFirst::receive`]. `None` if the keys are known: then `receive` is cheap.
    ///
    /// # Errors
    ///
    /// The errors of [`ClientFirst::receive`], except [`ScramError::KeyMismatch`].
    pub fn cost(&self, server_first: &[u8]) -> Result<Option<(Vec<u8>, NonZeroU32)>, ScramError> {
        let Challenge { salt, iterations, .. } = self.challenge(server_first)?;
        let is_known = match &self.secret {
            ProofSecret::Password(password, keys) => {
                keys.get(password, &salt, iterations).is_some()
            }
            ProofSecret::Keys(_) => true,
        };
        Ok((!is_known).then_some((salt, iterations)))
    }

    /// Handles `server-first-message`. Computes the requested iterations, unless the keys are
    /// known: 4,096 take about a millisecond.
    ///
    /// # Errors
    ///
    /// The message is malformed, belongs to another exchange, or requests no iterations or more
    /// than [`ITERATIONS_MAX`] (in all these cases the server is at fault), or the keys are not for
    /// this server.
    pub fn receive(self, server_first: &[u8]) -> Result<ClientFinal, ScramError> {
        let Challenge { nonce, salt, iterations } = self.challenge(server_first)?;
        let server_first = text(server_first, b'r')?;

        let mut binding = self.binding.gs2_header().into_bytes();
        binding.extend_from_slice(self.binding.hash());
        let without_proof = format!("c={},r={nonce}", BASE64.encode(binding));
        let auth_message = format!("{},{server_first},{without_proof}", self.bare);

        let keys = match self.secret {
            ProofSecret::Password(password, keys) => {
                keys.get_or_compute(&password, &salt, iterations)
            }
            ProofSecret::Keys(keys) if *keys.salt == *salt && keys.iterations == iterations => keys,
            ProofSecret::Keys(_) => return Err(ScramError::KeyMismatch),
        };
        let ScramKeys { client_key, server_key, .. } = keys;
        let client_signature = hmac_sha256(&sha256(&*client_key), auth_message.as_bytes());
        let proof = xor(*client_key, &client_signature);
        Ok(ClientFinal {
            message: format!("{without_proof},p={}", BASE64.encode(proof)).into_bytes(),
            server_signature: hmac_sha256(&*server_key, auth_message.as_bytes()),
        })
    }
}

/// The parts of `server-first-message`.
struct Challenge<'m> {
    nonce: &'m str,
    salt: Vec<u8>,
    iterations: NonZeroU32,
}

/// The last state of a client's exchange: the client has computed its proof, and knows the expected
/// proof of the server.
pub struct ClientFinal {
    message: Vec<u8>,
    server_signature: [u8; 32],
}

impl std::fmt::Debug for ClientFinal {
    /// Hides proof and signature: together with the exchange, they allow an offline attack on the
    /// password.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientFinal").finish_non_exhaustive()
    }
}

impl ClientFinal {
    /// Returns `client-final-message`, to be sent next.
    pub fn message(&self) -> &[u8] {
        &self.message
    }

    /// Handles `server-final-message`.
    ///
    /// # Errors
    ///
    /// The server refused, its message is malformed, or it does not know the password itself. In
    /// the last case nothing that it sent can be trusted.
    pub fn verify(self, server_final: &[u8]) -> Result<(), ScramError> {
        let mut rest = text(server_final, b'v')?;
        if rest.starts_with("e=") {
            return Err(ScramError::Refused(attribute(&mut rest, b'e')?.to_owned()));
        }
        let signature = base64_attribute(&mut rest, b'v')?;
        if bool::from(self.server_signature[..].ct_eq(&signature)) {
            Ok(())
        } else {
            Err(ScramError::ServerUnproven)
        }
    }
}
