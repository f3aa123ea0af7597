//! Authentication requests of a server, and the responses to them.

use howdah_pool_config::StoredSecret;
use howdah_wire::{
    Backend, Secret,
    auth::{
        self,
        scram::{
            ChannelBinding, ClientFinal, ClientFirst, ClientKeys, SCRAM_SHA_256_PLUS, ScramKeys,
            ScramVerifier,
        },
    },
    backend::{Authentication, Mechanisms},
    frontend::encode,
};

use super::{KeyDerivation, ServerIntent, ServerLoginError, ServerProtection};

/// The state of the authentication. Each state accepts only valid requests, so a server cannot send
/// a request twice, and cannot skip its own proof once SCRAM has started.
#[derive(Debug)]
pub(super) enum ServerAuthState {
    /// No authentication request has arrived yet.
    Initial { keys: ClientKeys, nonce: [u8; 18] },
    /// The first SCRAM message was sent. The password is present if keys may need to be derived.
    ScramFirst { scram: Box<ClientFirst>, password: Option<Secret>, keys: ClientKeys },
    /// Keys are being derived for the response to the server-first message.
    DerivingKeys { scram: Box<ClientFirst>, server_first: Vec<u8> },
    /// The client proof was sent; the server's signature is expected.
    ScramFinal(Box<ClientFinal>),
    /// The server has proven that it knows the password, or the method needs no such proof;
    /// AuthenticationOk is expected.
    Proven,
    /// The server has sent AuthenticationOk.
    Accepted,
    /// A step has failed; the connection must be closed.
    Broken,
}

/// The result of a step: the next state, and a key derivation to run first, if needed.
pub(super) struct AuthProgress {
    pub(super) state: ServerAuthState,
    pub(super) key_derivation: Option<KeyDerivation>,
}

impl From<ServerAuthState> for AuthProgress {
    fn from(state: ServerAuthState) -> Self {
        Self { state, key_derivation: None }
    }
}

impl ServerAuthState {
    pub(super) fn is_accepted(&self) -> bool {
        matches!(self, Self::Accepted)
    }

    pub(super) fn respond(
        self,
        request: &Authentication<'_>,
        intent: &ServerIntent,
        output: &mut Vec<u8>,
    ) -> Result<AuthProgress, ServerLoginError> {
        match (self, request) {
            (Self::Initial { .. } | Self::Proven, Authentication::Ok) => Ok(Self::Accepted.into()),
            (
                Self::ScramFirst { .. } | Self::DerivingKeys { .. } | Self::ScramFinal(_),
                Authentication::Ok,
            ) => Err(ServerLoginError::Unproven),
            (Self::Initial { .. }, Authentication::CleartextPassword) => {
                respond_cleartext(intent, output).map(AuthProgress::from)
            }
            (Self::Initial { .. }, Authentication::Md5Password { salt }) => {
                md5(intent, *salt, output).map(AuthProgress::from)
            }
            (Self::Initial { keys, nonce }, Authentication::Sasl(mechanisms)) => {
                start_scram(intent, mechanisms, keys, nonce, output).map(AuthProgress::from)
            }
            (
                Self::ScramFirst { scram, password, keys },
                Authentication::SaslContinue(server_first),
            ) => {
                let cost = scram.cost(server_first)?;
                let server_first = server_first.to_vec();
                match cost.zip(password) {
                    Some(((salt, iterations), password)) => Ok(AuthProgress {
                        state: Self::DerivingKeys { scram, server_first },
                        key_derivation: Some(KeyDerivation { password, salt, iterations, keys }),
                    }),
                    None => finish_scram(*scram, &server_first, output).map(AuthProgress::from),
                }
            }
            (Self::ScramFinal(end), Authentication::SaslFinal(signature)) => {
                end.verify(signature)?;
                Ok(Self::Proven.into())
            }
            (Self::Initial { .. }, other) => {
                Err(ServerLoginError::Method { method: other.method() })
            }
            _ => Err(ServerLoginError::Unexpected { message: Backend::Authentication }),
        }
    }

    /// Continues after a key derivation. The exchange reads the keys from the cache; if they have
    /// been evicted in the meantime, it derives them once more.
    pub(super) fn with_keys(
        self,
        _keys: ScramKeys,
        output: &mut Vec<u8>,
    ) -> Result<Self, ServerLoginError> {
        match self {
            Self::DerivingKeys { scram, server_first } => {
                finish_scram(*scram, &server_first, output)
            }
            _ => Err(ServerLoginError::Unexpected { message: Backend::Authentication }),
        }
    }
}

fn finish_scram(
    scram: ClientFirst,
    server_first: &[u8],
    output: &mut Vec<u8>,
) -> Result<ServerAuthState, ServerLoginError> {
    let end = scram.receive(server_first)?;
    encode::sasl_response(output, end.message())?;
    Ok(ServerAuthState::ScramFinal(Box::new(end)))
}

fn respond_cleartext(
    intent: &ServerIntent,
    output: &mut Vec<u8>,
) -> Result<ServerAuthState, ServerLoginError> {
    let Some(StoredSecret::Plain(password)) = intent.secret() else {
        return Err(ServerLoginError::NoSecret { method: "password" });
    };
    if intent.protection == ServerProtection::None {
        return Err(ServerLoginError::CleartextWithoutTls);
    }
    encode::password(output, password.expose())?;
    Ok(ServerAuthState::Proven)
}

fn md5(
    intent: &ServerIntent,
    salt: [u8; 4],
    output: &mut Vec<u8>,
) -> Result<ServerAuthState, ServerLoginError> {
    let user = intent.identity.user.as_bytes();
    let response = match intent.secret() {
        Some(StoredSecret::Plain(password)) => auth::md5(user, password.expose(), salt),
        Some(StoredSecret::Md5(stored)) => {
            let stored = stored.expose().first_chunk();
            let stored = stored.ok_or(ServerLoginError::NoSecret { method: "md5" })?;
            auth::md5_from_stored(stored, salt)
        }
        Some(StoredSecret::Scram(_)) | None => {
            return Err(ServerLoginError::NoSecret { method: "md5" });
        }
    };
    encode::password(output, &response)?;
    Ok(ServerAuthState::Proven)
}

/// Selects a mechanism and sends the first message, with channel binding where both sides support
/// it.
fn start_scram(
    intent: &ServerIntent,
    mechanisms: &Mechanisms<'_>,
    keys: ClientKeys,
    nonce: [u8; 18],
    output: &mut Vec<u8>,
) -> Result<ServerAuthState, ServerLoginError> {
    let offered = |name| mechanisms.clone().any(|mechanism| mechanism == name);
    let binding = match &intent.protection {
        ServerProtection::Tls { end_point_hash: Some(hash) } if offered(SCRAM_SHA_256_PLUS) => {
            ChannelBinding::TlsServerEndPoint(hash.clone())
        }
        ServerProtection::Tls { end_point_hash: Some(_) } => ChannelBinding::NotOffered,
        _ => ChannelBinding::Unsupported,
    };
    if !offered(binding.mechanism()) {
        return Err(ServerLoginError::Method { method: "a SASL mechanism other than SCRAM" });
    }
    let (scram, password) = match (intent.secret(), &intent.client_keys) {
        (Some(StoredSecret::Plain(password)), _) => {
            let scram = ClientFirst::new(password.clone(), binding, nonce).with_keys(keys.clone());
            (scram, Some(password.clone()))
        }
        // Keys of the client's login: valid only if the server's verifier is the same as the
        // configured one, which its salt will show.
        (Some(StoredSecret::Scram(stored)), Some(client_keys))
            if ScramVerifier::from_keys(client_keys) == **stored =>
        {
            (ClientFirst::from_keys(client_keys.clone(), binding, nonce), None)
        }
        (None, Some(client_keys)) => {
            (ClientFirst::from_keys(client_keys.clone(), binding, nonce), None)
        }
        _ => return Err(ServerLoginError::NoSecret { method: "scram-sha-256" }),
    };
    encode::sasl_initial_response(output, scram.mechanism(), Some(&scram.message()))?;
    Ok(ServerAuthState::ScramFirst { scram: Box::new(scram), password, keys })
}
