//! Authentication requests to a client, and the check of its responses.

use howdah_pool_config::StoredSecret;
use howdah_wire::{
    Secret,
    auth::{
        self,
        scram::{
            ClientKeys, SCRAM_SHA_256, SCRAM_SHA_256_PLUS, ScramError, ScramKeys, ScramVerifier,
            ServerFirst,
        },
    },
    frontend::{PasswordMessage, SaslInitialResponse},
};
use subtle::ConstantTimeEq;

use super::{ClientRules, Entropy, UserSecret, requirement::AuthRequirement};
use crate::auth::{
    KeyDerivation, MESSAGE_BYTES_MAX, PASSWORD_BYTES_MAX, Rejection, startup::StartupRequest,
};

/// The values of a client's connection that enter the SCRAM exchange: the hash of the pooler's
/// certificate for channel binding, if there is one, and the pooler's nonce.
pub(super) struct ScramContext {
    pub(super) end_point_hash: Option<Vec<u8>>,
    pub(super) nonce: [u8; 18],
}

/// An authentication request to a client, with the data to check the response.
#[derive(Debug)]
pub(super) enum AuthRequest {
    /// Requests a cleartext password, to be compared with this secret. `None` never matches.
    Plain(Option<StoredSecret>),
    /// Requests an md5 hash, to be compared with one computed from this stored hash. `None` never
    /// matches.
    Md5 { salt: [u8; 4], stored: Option<Secret> },
    /// Offers SASL mechanisms; the response is the first SCRAM message.
    Sasl { mechanisms: &'static [&'static [u8]], secret: Option<StoredSecret> },
    /// Sends the server-first SCRAM message; the response is the final one, with the proof.
    ScramFinal(Box<ServerFirst>),
    /// Requests a cleartext password, to be checked at the server.
    PassThrough,
}

/// A client's response that can be checked once keys are derived.
#[derive(Debug)]
pub(super) enum AuthResponse {
    /// A cleartext password, from which the keys are derived; they must match this verifier.
    Plain(Box<ScramVerifier>),
    /// The first SCRAM message. The keys are derived from the stored password.
    Sasl { plus: bool, client_first: Vec<u8> },
}

/// The outcome of an authentication step.
#[derive(Debug)]
pub(super) enum AuthOutcome {
    /// Send this request.
    Request(AuthRequest),
    /// Derive keys, then check the response.
    DeriveKeys(KeyDerivation, AuthResponse),
    /// Check this password at the server.
    CheckPassword(Secret),
    /// The client is authenticated.
    Authenticated { last_word: Option<Vec<u8>>, keys: Option<ScramKeys> },
}

const AUTHENTICATED: AuthOutcome = AuthOutcome::Authenticated { last_word: None, keys: None };

impl ClientRules {
    /// Returns the first request for `requirement`, or the outcome if no request is needed.
    pub(super) fn first_request(
        &self,
        request: &StartupRequest,
        requirement: AuthRequirement,
        user_secret: Option<UserSecret>,
        facts: &ScramContext,
        entropy: Entropy,
    ) -> Result<AuthOutcome, Rejection> {
        let is_known = user_secret.is_some();
        let secret = user_secret
            .and_then(|user_secret| user_secret.secret)
            .filter(|secret| !secret.is_empty());
        match requirement {
            AuthRequirement::None => Ok(AUTHENTICATED),
            AuthRequirement::KnownUser if is_known => Ok(AUTHENTICATED),
            AuthRequirement::KnownUser => Err(Rejection::UnknownUser(request.user.clone())),
            AuthRequirement::Plain => Ok(AuthOutcome::Request(AuthRequest::Plain(secret))),
            // Without a usable secret, `request_auth` has already asked for a password.
            AuthRequirement::Md5 | AuthRequirement::PassThrough => {
                Ok(AuthOutcome::Request(match secret {
                    Some(StoredSecret::Scram(_)) => AuthRequest::sasl(secret, facts),
                    None if self.mock_is_scram => AuthRequest::sasl(None, facts),
                    secret => AuthRequest::md5(&request.user, secret.as_ref(), entropy.salt),
                }))
            }
            AuthRequirement::Scram => Ok(AuthOutcome::Request(AuthRequest::sasl(secret, facts))),
        }
    }
}

impl AuthRequest {
    fn sasl(secret: Option<StoredSecret>, facts: &ScramContext) -> Self {
        let mechanisms: &'static [&'static [u8]] = match facts.end_point_hash {
            Some(_) => &[SCRAM_SHA_256_PLUS, SCRAM_SHA_256],
            None => &[SCRAM_SHA_256],
        };
        Self::Sasl { mechanisms, secret }
    }

    fn md5(user: &str, secret: Option<&StoredSecret>, salt: [u8; 4]) -> Self {
        let stored = match secret {
            Some(StoredSecret::Md5(stored)) => Some(stored.clone()),
            Some(StoredSecret::Plain(password)) => {
                let stored = auth::md5_stored(user.as_bytes(), password.expose());
                Some(Secret::from(&stored[..]))
            }
            Some(StoredSecret::Scram(_)) | None => None,
        };
        Self::Md5 { salt, stored }
    }

    /// Returns the maximum body length of the response to this request, in bytes.
    pub(super) fn response_bytes_max(&self) -> u32 {
        match self {
            Self::Plain(_) | Self::PassThrough => PASSWORD_BYTES_MAX,
            Self::Md5 { .. } | Self::Sasl { .. } | Self::ScramFinal(_) => MESSAGE_BYTES_MAX,
        }
    }

    /// Checks the response; `body` is the body of the client's message.
    pub(super) fn check_response(
        self,
        body: &[u8],
        request: &StartupRequest,
        rules: &ClientRules,
        facts: &ScramContext,
    ) -> Result<AuthOutcome, Rejection> {
        let wrong = || Rejection::Password(request.user.clone());
        match self {
            Self::Plain(secret) => check_cleartext(body, secret, request),
            Self::PassThrough => match parse_password(body)? {
                // An empty password is never valid, as in PostgreSQL.
                [] => Err(wrong()),
                password => Ok(AuthOutcome::CheckPassword(Secret::from(password))),
            },
            Self::Md5 { salt, stored } => {
                let response = parse_password(body)?;
                // An unknown user has no hash, so no response is correct.
                let stored = stored.as_ref().and_then(|stored| stored.expose().first_chunk());
                let expected = stored.map(|stored| auth::md5_from_stored(stored, salt));
                let is_right = expected.is_some_and(|expected| expected[..].ct_eq(response).into());
                if is_right { Ok(AUTHENTICATED) } else { Err(wrong()) }
            }
            Self::Sasl { mechanisms, secret } => {
                let response = SaslInitialResponse::parse(body).map_err(|_| Rejection::Scram)?;
                if !mechanisms.contains(&response.mechanism) {
                    return Err(Rejection::Mechanism);
                }
                let plus = response.mechanism == SCRAM_SHA_256_PLUS;
                let client_first = response.data.ok_or(Rejection::Scram)?;
                start_scram(secret, client_first, plus, request, rules, facts)
            }
            Self::ScramFinal(server) => match server.finish(body) {
                Ok(end) => Ok(AuthOutcome::Authenticated {
                    last_word: Some(end.message),
                    keys: Some(end.keys),
                }),
                Err(ScramError::ClientUnproven) => Err(wrong()),
                Err(error) => Err(scram_rejection(&error)),
            },
        }
    }
}

impl AuthResponse {
    /// Checks the response with the derived keys.
    pub(super) fn with_keys(
        self,
        keys: ScramKeys,
        request: &StartupRequest,
        facts: &ScramContext,
    ) -> Result<AuthOutcome, Rejection> {
        let verifier = ScramVerifier::from_keys(&keys);
        match self {
            Self::Plain(stored) if verifier == *stored => {
                Ok(AuthOutcome::Authenticated { last_word: None, keys: Some(keys) })
            }
            Self::Plain(_) => Err(Rejection::Password(request.user.clone())),
            Self::Sasl { plus, client_first } => {
                send_server_first(verifier, &client_first, plus, facts)
            }
        }
    }
}

fn parse_password(body: &[u8]) -> Result<&[u8], Rejection> {
    PasswordMessage::parse(body)
        .map(|message| message.password)
        .map_err(|error| Rejection::PasswordMessage(error.to_string()))
}

fn check_cleartext(
    body: &[u8],
    secret: Option<StoredSecret>,
    request: &StartupRequest,
) -> Result<AuthOutcome, Rejection> {
    let sent = parse_password(body)?;
    let is_right = match secret {
        // An empty password is never valid, as in PostgreSQL.
        _ if sent.is_empty() => false,
        None => false,
        Some(StoredSecret::Plain(password)) => password.expose().ct_eq(sent).into(),
        Some(StoredSecret::Md5(stored)) => {
            stored.expose().ct_eq(&auth::md5_stored(request.user.as_bytes(), sent)).into()
        }
        Some(StoredSecret::Scram(verifier)) => {
            let derivation = KeyDerivation {
                password: Secret::from(sent),
                salt: verifier.salt().to_vec(),
                iterations: verifier.iterations(),
                // A separate cache: unverified passwords must not evict keys from the shared one.
                keys: ClientKeys::default(),
            };
            return Ok(AuthOutcome::DeriveKeys(derivation, AuthResponse::Plain(verifier)));
        }
    };
    if is_right { Ok(AUTHENTICATED) } else { Err(Rejection::Password(request.user.clone())) }
}

/// Responds to the first SCRAM message. If the user is unknown or has no secret that SCRAM can use,
/// the exchange looks like any other and fails as if the password were wrong.
fn start_scram(
    secret: Option<StoredSecret>,
    client_first: &[u8],
    plus: bool,
    request: &StartupRequest,
    rules: &ClientRules,
    facts: &ScramContext,
) -> Result<AuthOutcome, Rejection> {
    let (user, iterations) = (request.user.as_bytes(), rules.config.auth.scram_iterations);
    let verifier = match secret {
        Some(StoredSecret::Scram(verifier)) => *verifier,
        Some(StoredSecret::Plain(password)) => {
            let salt = ScramVerifier::mock_salt(&rules.mock.0, user).to_vec();
            match rules.keys.get(&password, &salt, iterations) {
                Some(keys) => ScramVerifier::from_keys(&keys),
                None => {
                    let derivation =
                        KeyDerivation { password, salt, iterations, keys: rules.keys.clone() };
                    let response = AuthResponse::Sasl { plus, client_first: client_first.to_vec() };
                    return Ok(AuthOutcome::DeriveKeys(derivation, response));
                }
            }
        }
        Some(StoredSecret::Md5(_)) | None => ScramVerifier::mock(&rules.mock.0, user, iterations),
    };
    send_server_first(verifier, client_first, plus, facts)
}

fn send_server_first(
    verifier: ScramVerifier,
    client_first: &[u8],
    plus: bool,
    facts: &ScramContext,
) -> Result<AuthOutcome, Rejection> {
    let hash = facts.end_point_hash.as_deref();
    let server = ServerFirst::receive(verifier, client_first, hash, plus, facts.nonce);
    let server = server.map_err(|error| scram_rejection(&error))?;
    Ok(AuthOutcome::Request(AuthRequest::ScramFinal(Box::new(server))))
}

fn scram_rejection(error: &ScramError) -> Rejection {
    match error {
        ScramError::ChannelBinding => Rejection::ChannelBinding,
        _ => Rejection::Scram,
    }
}
