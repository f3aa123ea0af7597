//! [`ServerHandshake`]: the pooler's login to a server.

mod error;
mod exchange;

use std::mem;

use howdah_pool_config::{ServerIdentity, StoredSecret};
use howdah_pool_core::SessionParameter;
use howdah_wire::{
    Backend, Frame,
    auth::scram::{ClientKeys, ScramKeys},
    backend::{Authentication, BackendMessage, TransactionStatus},
    frontend::encode,
    startup::{self, CancelKey, ProtocolVersion},
};

use self::exchange::{AuthProgress, ServerAuthState};
use super::{DerivedKeys, KeyDerivation};

pub use error::ServerLoginError;

/// Maximum body length of a server's message during the login, in bytes. libpq accepts 30,000 bytes
/// for an error and 2,000 for other messages; a parameter value may be long.
const MESSAGE_BYTES_MAX: u32 = 64 * 1024;

/// Maximum number of parameters accepted from a server. PostgreSQL 18 reports about 15; extensions
/// may add more.
const PARAMETERS_MAX: usize = 256;

/// A login to a server: from the startup packet, after TLS is negotiated, to ReadyForQuery. With a
/// `connect-query`, that is the ReadyForQuery after this query.
///
/// # Contract
///
/// The driver writes the bytes of [`ServerHandshake::take_output`] at the start and after each
/// step, passes received bytes to [`ServerHandshake::receive`], and does the returned step. An
/// error ends the connection.
///
/// # States
///
/// ```text
///  new ─► initial ─┬ Ok ────────────────────────────────────────────► accepted ─► ready
///                  ├ plain, md5 ───────────────────────────► proven ─► Ok ─▲
///                  └ SASL ─► first ─(derive)─► final ─► signature checked ─┘
/// ```
///
/// A `connect-query` runs between accepted and ready.
#[derive(Debug)]
pub struct ServerHandshake {
    intent: ServerIntent,
    state: ServerAuthState,
    input: Vec<u8>,
    output: Vec<u8>,
    version: ProtocolVersion,
    parameters: Vec<SessionParameter>,
    cancel_key: Option<CancelKey>,
    /// Whether the connect query was sent.
    is_running_query: bool,
    was_password_checked: bool,
}

/// The input of a login to a server: identity, credentials and protection of the connection.
#[derive(Clone, Debug)]
pub struct ServerIntent {
    /// The user, database, secret and configured parameters.
    pub identity: ServerIdentity,
    /// Further startup parameters: an `application_name`, for the pooler's own connections.
    pub parameters: Vec<SessionParameter>,
    /// The protocol version to request: 3.2, or 3.0 after [`ServerLoginError::may_retry_as_3_0`].
    pub newest: ProtocolVersion,
    /// The keys from a client's SCRAM login. Without a password, they allow logins to servers that
    /// store the same verifier.
    pub client_keys: Option<ScramKeys>,
    /// The protection of the connection against eavesdropping.
    pub protection: ServerProtection,
}

/// The protection of a connection to a server against eavesdropping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerProtection {
    /// No encryption: the connection can be eavesdropped on.
    None,
    /// No encryption, but the settings allow cleartext passwords anyway.
    CleartextAllowed,
    /// A unix socket or a loopback address: only the machine's administrator can eavesdrop.
    Local,
    /// TLS, with or without verification of the certificate.
    Tls {
        /// The hash of the server's certificate for `tls-server-end-point`; `None` if no hash is
        /// defined for the certificate's signature algorithm.
        end_point_hash: Option<Vec<u8>>,
    },
}

/// The next action for the driver, once the output is written.
#[derive(Debug)]
pub enum ServerStep {
    /// Read more bytes.
    Read,
    /// Run this key derivation, then [`ServerHandshake::keys_derived`].
    DeriveKeys(KeyDerivation),
    /// The login is complete.
    Ready(Box<ServerReady>),
}

/// The result of a complete login to a server.
#[derive(Debug)]
pub struct ServerReady {
    /// The server's parameters and cancel key.
    pub login: howdah_pool_core::ServerLogin,
    /// The negotiated protocol version.
    pub version: ProtocolVersion,
    /// Whether the server has requested a password. If not, it would have accepted any.
    pub was_password_checked: bool,
    /// Bytes that the server has sent after the ReadyForQuery that ended the login.
    pub received: Vec<u8>,
}

impl ServerHandshake {
    /// Starts a login; the output then contains the startup packet. `nonce` must be random and must
    /// not be reused; `keys` is the cache of derived keys, shared by all logins.
    ///
    /// # Errors
    ///
    /// A name or value contains a zero byte, or is too long for a message.
    pub fn new(
        intent: ServerIntent,
        keys: ClientKeys,
        nonce: [u8; 18],
    ) -> Result<Self, ServerLoginError> {
        let mut output = Vec::new();
        let identity = &intent.identity;
        let own = [("user", identity.user.as_str()), ("database", identity.database.as_str())];
        let configured = identity.parameters.iter().map(|(name, value)| (&**name, &**value));
        let texts = own.into_iter().chain(configured);
        let texts = texts.map(|(name, value)| (name.as_bytes(), value.as_bytes()));
        let settings = intent.parameters.iter().map(|it| (&*it.name, &*it.value));
        startup::startup(&mut output, intent.newest, texts.chain(settings))?;
        Ok(Self {
            state: ServerAuthState::Initial { keys, nonce },
            input: Vec::new(),
            output,
            version: intent.newest,
            parameters: Vec::new(),
            cancel_key: None,
            is_running_query: false,
            was_password_checked: false,
            intent,
        })
    }

    /// Takes the bytes to write before the next step.
    pub fn take_output(&mut self) -> Vec<u8> {
        mem::take(&mut self.output)
    }

    /// Handles bytes from the server.
    ///
    /// # Errors
    ///
    /// The server refused the login or the connect query, requested a password that is not known
    /// or must not be sent, requested an unsupported method, failed to authenticate itself, or
    /// violated the protocol.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<ServerStep, ServerLoginError> {
        self.input.extend_from_slice(bytes);
        self.advance()
    }

    /// Handles the result of [`ServerStep::DeriveKeys`].
    ///
    /// # Errors
    ///
    /// The same errors as [`ServerHandshake::receive`].
    pub fn keys_derived(&mut self, derived: DerivedKeys) -> Result<ServerStep, ServerLoginError> {
        let state = mem::replace(&mut self.state, ServerAuthState::Broken);
        self.state = state.with_keys(derived.0, &mut self.output)?;
        self.advance()
    }

    fn advance(&mut self) -> Result<ServerStep, ServerLoginError> {
        // During a key derivation input is only buffered: a server waits for the proof anyway.
        if let ServerAuthState::DerivingKeys { .. } = self.state {
            let is_full = self.input.len() > MESSAGE_BYTES_MAX as usize;
            return if is_full {
                Err(ServerLoginError::LimitExceeded)
            } else {
                Ok(ServerStep::Read)
            };
        }
        let input = mem::take(&mut self.input);
        let mut rest = input.as_slice();
        while let Some((frame, tail)) = Frame::split(rest, MESSAGE_BYTES_MAX)? {
            rest = tail;
            let is_ready = frame.tag == Backend::ReadyForQuery.tag();
            let step = self.handle_message(frame)?;
            if is_ready && !self.start_connect_query()? {
                return Ok(ServerStep::Ready(Box::new(self.ready(rest))));
            }
            if let Some(derivation) = step {
                self.input = rest.to_vec();
                return Ok(ServerStep::DeriveKeys(derivation));
            }
        }
        self.input = rest.to_vec();
        Ok(ServerStep::Read)
    }

    fn handle_message(
        &mut self,
        frame: Frame<'_>,
    ) -> Result<Option<KeyDerivation>, ServerLoginError> {
        match BackendMessage::parse(frame)? {
            BackendMessage::ErrorResponse(error) => {
                let has_begun = !matches!(self.state, ServerAuthState::Initial { .. });
                Err(ServerLoginError::refused(&error, self.intent.newest, has_begun))
            }
            // Notices during the login have no recipient.
            BackendMessage::NoticeResponse(_) => Ok(None),
            BackendMessage::NegotiateProtocolVersion(negotiation) => {
                let newest = negotiation.newest;
                if newest > self.version || newest < ProtocolVersion::V3_0 {
                    return Err(ServerLoginError::Version { newest });
                }
                // Version 3.1 does not exist.
                let is_new = newest >= ProtocolVersion::V3_2;
                self.version = if is_new { ProtocolVersion::V3_2 } else { ProtocolVersion::V3_0 };
                Ok(None)
            }
            BackendMessage::Authentication(request) => self.authentication(&request),
            BackendMessage::ParameterStatus { name, value } if self.state.is_accepted() => {
                if self.parameters.len() >= PARAMETERS_MAX {
                    return Err(ServerLoginError::LimitExceeded);
                }
                self.parameters.retain(|setting| !setting.name.eq_ignore_ascii_case(name));
                self.parameters.push(SessionParameter::new(name, value));
                Ok(None)
            }
            BackendMessage::BackendKeyData(key) if self.state.is_accepted() => {
                self.cancel_key = Some(key);
                Ok(None)
            }
            BackendMessage::ReadyForQuery(TransactionStatus::Idle) if self.state.is_accepted() => {
                Ok(None)
            }
            // The connect query's result is discarded; only its success matters.
            BackendMessage::RowDescription(_)
            | BackendMessage::DataRow(_)
            | BackendMessage::CommandComplete(_)
            | BackendMessage::EmptyQueryResponse
                if self.is_running_query =>
            {
                Ok(None)
            }
            other => Err(ServerLoginError::Unexpected { message: other.kind() }),
        }
    }

    fn authentication(
        &mut self,
        request: &Authentication<'_>,
    ) -> Result<Option<KeyDerivation>, ServerLoginError> {
        self.was_password_checked |= !matches!(request, Authentication::Ok);
        let state = mem::replace(&mut self.state, ServerAuthState::Broken);
        let AuthProgress { state, key_derivation: derivation } =
            state.respond(request, &self.intent, &mut self.output)?;
        self.state = state;
        Ok(derivation)
    }

    /// Sends the connect query, if one is configured and was not sent yet. Returns whether it was
    /// sent.
    fn start_connect_query(&mut self) -> Result<bool, ServerLoginError> {
        let Some(query) = self.intent.identity.connect_query.take() else { return Ok(false) };
        encode::query(&mut self.output, query.as_bytes())?;
        self.is_running_query = true;
        Ok(true)
    }

    fn ready(&mut self, rest: &[u8]) -> ServerReady {
        ServerReady {
            login: howdah_pool_core::ServerLogin {
                parameters: mem::take(&mut self.parameters),
                cancel_key: self.cancel_key.take(),
            },
            version: self.version,
            was_password_checked: self.was_password_checked,
            received: rest.to_vec(),
        }
    }
}

impl ServerIntent {
    /// Returns the configured or cached secret, unless it is empty.
    fn secret(&self) -> Option<&StoredSecret> {
        self.identity.secret.as_ref().filter(|secret| !secret.is_empty())
    }
}

#[cfg(test)]
mod tests;
