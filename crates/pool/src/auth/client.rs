//! [`ClientHandshake`]: a client's login.

mod exchange;
mod requirement;
mod rules;

use std::{mem, sync::Arc};

use howdah_connect::SslMode;
use howdah_pool_config::{
    AuthQuery, CONSOLE_DATABASES, PassThrough, StoredSecret, hba::ClientOrigin,
};
use howdah_pool_core::{SessionParameter, TargetRole};
use howdah_wire::{
    Frame, HeaderError, Secret, Tag,
    auth::scram::ScramKeys,
    backend::encode::{self, AuthenticationRequest},
    startup::{
        CancelKey, EncryptionReply, PACKET_BYTES_MAX, Packet, ProtocolVersion, Startup,
        StartupPacketError,
    },
};

use self::{
    exchange::{AuthRequest, AuthResponse},
    requirement::AuthRequirement,
};
use super::{DerivedKeys, KeyDerivation, MESSAGE_BYTES_MAX, Rejection, startup::StartupRequest};

pub use rules::{ClientRules, UserSecret};

/// A client's login, from its first byte to AuthenticationOk.
///
/// # Contract
///
/// The driver passes received bytes to [`ClientHandshake::receive`]. It first writes the bytes of
/// [`ClientHandshake::take_output`], then does the returned step:
///
/// * [`ClientStep::Read`]: read more bytes and receive them;
/// * [`ClientStep::StartTls`]: do the TLS handshake, then [`ClientHandshake::tls_started`];
/// * [`ClientStep::DeriveKeys`]: run it on another thread, then [`ClientHandshake::keys_derived`];
/// * [`ClientStep::AuthQuery`]: query a server, then [`ClientHandshake::auth_query_done`];
/// * [`ClientStep::CheckPassword`]: log in to a server, then [`ClientHandshake::password_checked`];
/// * the others end the handshake: drop it.
///
/// After its deadline the driver calls [`ClientHandshake::refuse`].
///
/// # States
///
/// ```text
///           ┌── GSSENCRequest: 'N' ──┐
///  new ──► startup ◄─────────────────┘
///           │  │ SSLRequest: 'N', or 'S' ─► TLS ─► startup       0x16: direct TLS
///           │  └ CancelRequest ─► closed
///           └ startup packet ─┬ any, trust, cert ──────────────────────────────► authenticated
///                             └─(auth query)─┬ trust ──────────────────────────►
///                                            ├ no secret ─► password ─(server)─►
///                                            ├ plain, md5 ─► password ─────────►
///                                            └ scram ─► first ─(derive)─► final ►
/// ```
///
/// # Cost
///
/// Buffers at most one incomplete packet or message, and the bytes that arrived with it in one
/// read; during a key derivation or auth query, at most 16 kB and the bytes of one read. A SCRAM
/// login with a stored verifier computes only a few hashes.
#[derive(Debug)]
pub struct ClientHandshake {
    rules: Arc<ClientRules>,
    entropy: Entropy,
    origin: ClientOrigin,
    /// The peer of the connection: the proxy if `origin` is from a PROXY header.
    peer: ClientOrigin,
    input: Vec<u8>,
    output: Vec<u8>,
    state: ClientAuthState,
    has_requested_tls: bool,
    has_requested_gss: bool,
    tls: Option<ClientTlsInfo>,
    /// User and database from the startup packet.
    names: Option<(String, String)>,
}

#[derive(Debug)]
enum ClientAuthState {
    /// Waits for a startup packet, an encryption request or a CancelRequest.
    Startup,
    /// Waits for the TLS handshake; `is_direct` is whether the client started it without an
    /// SSLRequest.
    Tls { is_direct: bool },
    /// Waits for the result of an auth query.
    AuthQuery(Box<StartupRequest>, AuthRequirement),
    /// Waits for the response to an authentication request.
    AwaitingResponse(Box<StartupRequest>, AuthRequest),
    /// Waits for a key derivation.
    DerivingKeys(Box<StartupRequest>, AuthResponse),
    /// Waits for the check of a password at a server.
    CheckingPassword(Box<StartupRequest>),
    /// The handshake has ended.
    Closed,
}

/// The next action for the driver, once the output is written.
#[derive(Debug)]
pub enum ClientStep {
    /// Read more bytes.
    Read,
    /// Do the TLS handshake.
    StartTls {
        /// The first bytes of a direct TLS handshake; otherwise empty.
        received: Vec<u8>,
    },
    /// Run this key derivation.
    DeriveKeys(KeyDerivation),
    /// Run this auth query on a server.
    AuthQuery(AuthQuery),
    /// Check this password at a server of the database.
    CheckPassword(PasswordCheck),
    /// Route this CancelRequest, then close.
    Cancel(CancelKey),
    /// The client is authenticated. The pool is responsible for everything that follows.
    Authenticated(Box<AuthenticatedClient>),
    /// Close the connection. The reason is for the log; the output contains it if the client may
    /// see it.
    Close(Rejection),
}

/// An authenticated client. AuthenticationOk is the last message of the handshake's output, which
/// may not have been sent yet.
#[derive(Debug)]
pub struct AuthenticatedClient {
    /// The user name from the startup packet. Not all methods require that the user is known: `any`
    /// and `cert`, for example, do not.
    pub user: String,
    /// The requested database, by default that of the user's name; it is configured or is the
    /// console.
    pub database: String,
    /// The negotiated protocol version, 3.0 or 3.2.
    pub version: ProtocolVersion,
    /// Whether the client runs as the OS user of the pooler, and uses the console as user `howdah`,
    /// `pgbouncer` or `pgcat`.
    pub is_owner: bool,
    /// The kind of replication that the connection is for, if any.
    pub replication: Replication,
    /// The server role that the client requests with `target_session_attrs`, if any.
    pub role: Option<TargetRole>,
    /// The session parameters from the client's startup packet and its `options`, without ignored
    /// ones. A replication connection keeps `options` as one parameter, unparsed.
    pub settings: Vec<SessionParameter>,
    /// The SCRAM keys computed during the login, for logins to servers with the same verifier.
    pub scram_keys: Option<ScramKeys>,
    /// The user's secret from an auth query, or the password that a server has accepted, for logins
    /// to servers.
    pub secret: Option<StoredSecret>,
    /// Bytes that the client has sent after its login.
    pub received: Vec<u8>,
}

/// A password to check by a login to a server.
#[derive(Debug)]
pub struct PasswordCheck {
    /// The user from the startup packet.
    pub user: String,
    /// The requested database, which is configured.
    pub database: String,
    /// The kind of replication that the connection is for: servers have separate rules for it.
    pub replication: Replication,
    /// The password from the client.
    pub password: Secret,
}

/// The result of a [`PasswordCheck`].
#[derive(Debug)]
pub enum PasswordCheckResult {
    /// The server accepts the password, or has accepted it a short time ago.
    Accepted(Secret),
    /// The server refuses the password or the user.
    Refused,
    /// Too many passwords of this user were refused a short time ago, so this one was not checked.
    TooMany,
    /// The password could not be checked, or something other than the password is wrong.
    Failed {
        /// SQLSTATE of the server's error, or of the reason why there was no answer.
        sqlstate: [u8; 5],
        /// The error message.
        message: String,
    },
}

/// The replication mode of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replication {
    /// Not a replication connection.
    None,
    /// Physical replication, of the whole server.
    Physical,
    /// Logical replication, of one database.
    Logical,
}

/// Random bytes for one login. Must not be reused.
#[derive(Clone, Copy)]
pub struct Entropy {
    /// The pooler's part of the SCRAM nonce, for logins of clients and for logins to servers.
    pub nonce: [u8; 18],
    /// The salt of an md5 request.
    pub salt: [u8; 4],
}

impl std::fmt::Debug for Entropy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Entropy(…)")
    }
}

/// The result of a TLS handshake with a client.
#[derive(Clone, Debug, Default)]
pub struct ClientTlsInfo {
    /// The protocol negotiated by ALPN.
    pub alpn: Option<Vec<u8>>,
    /// The hash of the pooler's certificate for `tls-server-end-point`; `None` if no hash is
    /// defined for the certificate's signature algorithm.
    pub end_point_hash: Option<Vec<u8>>,
    /// Whether the client has presented a certificate that was verified.
    pub has_certificate: bool,
    /// The common name of the certificate's subject, if it has one.
    pub common_name: Option<String>,
}

/// First byte of a TLS handshake.
const TLS_HANDSHAKE: u8 = 0x16;

impl ClientHandshake {
    /// Creates the handshake of a client that has connected from `origin`.
    pub fn new(rules: Arc<ClientRules>, origin: ClientOrigin, entropy: Entropy) -> Self {
        Self {
            rules,
            entropy,
            origin,
            peer: origin,
            input: Vec::new(),
            output: Vec::new(),
            state: ClientAuthState::Startup,
            has_requested_tls: false,
            has_requested_gss: false,
            tls: None,
            names: None,
        }
    }

    /// Returns the user and database from the startup packet, once it has arrived. A name that was
    /// not given is empty.
    pub fn names(&self) -> Option<(&str, &str)> {
        self.names.as_ref().map(|(user, database)| (user.as_str(), database.as_str()))
    }

    /// Sets the client's origin from a PROXY header; call it before the first byte.
    pub fn set_origin(&mut self, origin: ClientOrigin) {
        self.origin = origin;
    }

    /// Handles bytes from the client; decrypted ones once TLS has started.
    pub fn receive(&mut self, bytes: &[u8]) -> ClientStep {
        if let ClientAuthState::Tls { .. } = self.state {
            return self.reject(Rejection::UnencryptedData("SSL"));
        }
        self.input.extend_from_slice(bytes);
        self.advance()
    }

    /// Handles the completion of the TLS handshake.
    pub fn tls_started(&mut self, facts: ClientTlsInfo) -> ClientStep {
        let ClientAuthState::Tls { is_direct } = self.state else {
            return self.reject(Rejection::NotStartupPacket);
        };
        let is_postgresql = facts.alpn.as_deref() == Some(b"postgresql");
        if is_direct && !is_postgresql {
            return self.reject(Rejection::NoAlpn);
        }
        self.tls = Some(facts);
        self.state = ClientAuthState::Startup;
        self.advance()
    }

    /// Handles the result of [`ClientStep::DeriveKeys`].
    pub fn keys_derived(&mut self, derived: DerivedKeys) -> ClientStep {
        match mem::replace(&mut self.state, ClientAuthState::Closed) {
            ClientAuthState::DerivingKeys(request, response) => {
                match self.write_request(response.with_keys(
                    derived.0,
                    &request,
                    &self.scram_context(),
                )) {
                    Ok(outcome) => self.apply_outcome(request, outcome),
                    Err(rejection) => self.reject(rejection),
                }
            }
            _ => self.reject(Rejection::NotStartupPacket),
        }
    }

    /// Handles the result of [`ClientStep::AuthQuery`]: the user's secret, or `None` if the user
    /// does not exist or the query failed. The client cannot distinguish these cases.
    pub fn auth_query_done(&mut self, secret: Option<UserSecret>) -> ClientStep {
        match mem::replace(&mut self.state, ClientAuthState::Closed) {
            ClientAuthState::AuthQuery(mut request, requirement) => {
                request.secret = secret.as_ref().and_then(|secret| secret.secret.clone());
                match self.request_auth(request, requirement, secret) {
                    Ok(step) => step,
                    Err(rejection) => self.reject(rejection),
                }
            }
            _ => self.reject(Rejection::NotStartupPacket),
        }
    }

    /// Handles the result of [`ClientStep::CheckPassword`].
    pub fn password_checked(&mut self, result: PasswordCheckResult) -> ClientStep {
        let ClientAuthState::CheckingPassword(mut request) =
            mem::replace(&mut self.state, ClientAuthState::Closed)
        else {
            return self.reject(Rejection::NotStartupPacket);
        };
        let user = || request.user.clone();
        match result {
            PasswordCheckResult::Accepted(password) => {
                request.secret = Some(StoredSecret::Plain(password));
                self.finish(*request, None)
            }
            PasswordCheckResult::Refused => self.reject(Rejection::Password(user())),
            PasswordCheckResult::TooMany => self.reject(Rejection::TooManyPasswords(user())),
            PasswordCheckResult::Failed { sqlstate, message } => {
                self.reject(Rejection::PasswordCheck { sqlstate, message })
            }
        }
    }

    /// Ends the handshake for a reason that only the driver can know, such as
    /// [`Rejection::Timeout`] or [`Rejection::TooMany`].
    pub fn refuse(&mut self, why: Rejection) -> ClientStep {
        self.reject(why)
    }

    /// Takes the bytes to write before the step.
    pub fn take_output(&mut self) -> Vec<u8> {
        mem::take(&mut self.output)
    }

    fn advance(&mut self) -> ClientStep {
        loop {
            let step = match mem::replace(&mut self.state, ClientAuthState::Closed) {
                ClientAuthState::Startup => self.handle_packet(),
                ClientAuthState::AwaitingResponse(request, auth_request) => {
                    self.handle_response(request, auth_request)
                }
                waiting @ (ClientAuthState::DerivingKeys(..)
                | ClientAuthState::AuthQuery(..)
                | ClientAuthState::CheckingPassword(_)
                | ClientAuthState::Tls { .. }
                | ClientAuthState::Closed) => {
                    // The client may send ahead while it waits, up to a limit.
                    self.state = waiting;
                    let is_full = self.input.len() > 2 * MESSAGE_BYTES_MAX as usize;
                    return if is_full {
                        self.reject(Rejection::TooLong)
                    } else {
                        ClientStep::Read
                    };
                }
            };
            match step {
                Ok(Some(step)) => return step,
                Ok(None) => {}
                Err(rejection) => return self.reject(rejection),
            }
        }
    }

    fn reject(&mut self, why: Rejection) -> ClientStep {
        // During the TLS handshake, the client would read an unencrypted error message as part of
        // the handshake.
        if !matches!(self.state, ClientAuthState::Tls { .. }) {
            why.write(&mut self.output);
        }
        self.state = ClientAuthState::Closed;
        self.input = Vec::new();
        ClientStep::Close(why)
    }

    /// Handles one startup packet or request, which has no tag. `Ok(None)` means that another
    /// packet is expected.
    fn handle_packet(&mut self) -> Result<Option<ClientStep>, Rejection> {
        let may_begin_tls = !self.has_requested_tls && self.tls.is_none() && self.offers_tls();
        if self.input.first() == Some(&TLS_HANDSHAKE) && may_begin_tls {
            self.has_requested_tls = true;
            self.state = ClientAuthState::Tls { is_direct: true };
            return Ok(Some(ClientStep::StartTls { received: mem::take(&mut self.input) }));
        }
        let input = mem::take(&mut self.input);
        let Some((packet, rest)) =
            Packet::split(&input, PACKET_BYTES_MAX).map_err(packet_rejection)?
        else {
            self.input = input;
            self.state = ClientAuthState::Startup;
            return Ok(Some(ClientStep::Read));
        };
        match packet {
            Packet::SslRequest => self.handle_ssl_request(rest),
            Packet::GssEncRequest => {
                if mem::replace(&mut self.has_requested_gss, true) {
                    return Err(Rejection::DuplicateEncryptionRequest(5680));
                }
                if !rest.is_empty() {
                    return Err(Rejection::UnencryptedData("GSSAPI encryption"));
                }
                self.output.push(EncryptionReply::Refused.byte());
                self.state = ClientAuthState::Startup;
                Ok(None)
            }
            Packet::CancelRequest(key) => Ok(Some(ClientStep::Cancel(key))),
            Packet::Startup(startup) => {
                self.names = Some(user_and_database(&startup));
                let needs_tls = self.rules.config.tls.client_mode() >= SslMode::Require;
                if needs_tls && self.tls.is_none() && !self.is_unix() {
                    return Err(Rejection::TlsRequired);
                }
                let request = StartupRequest::read(&startup, &self.rules.config)?;
                request.negotiate(&mut self.output);
                self.input = rest.to_vec();
                self.start_auth(Box::new(request)).map(Some)
            }
        }
    }

    fn handle_ssl_request(&mut self, rest: &[u8]) -> Result<Option<ClientStep>, Rejection> {
        if mem::replace(&mut self.has_requested_tls, true) || self.tls.is_some() {
            return Err(Rejection::DuplicateEncryptionRequest(5679));
        }
        if !rest.is_empty() {
            return Err(Rejection::UnencryptedData("SSL"));
        }
        if self.offers_tls() {
            self.output.push(EncryptionReply::Tls.byte());
            self.state = ClientAuthState::Tls { is_direct: false };
            return Ok(Some(ClientStep::StartTls { received: Vec::new() }));
        }
        self.output.push(EncryptionReply::Refused.byte());
        self.state = ClientAuthState::Startup;
        Ok(None)
    }

    fn is_unix(&self) -> bool {
        matches!(self.origin, ClientOrigin::Unix { .. })
    }

    fn offers_tls(&self) -> bool {
        !self.is_unix() && self.rules.config.tls.client_mode() != SslMode::Disable
    }

    /// Starts the required authentication. If there is an auth query for the user, it runs first,
    /// unless the user has a configured secret, which may be empty, or is the owner.
    fn start_auth(&mut self, mut request: Box<StartupRequest>) -> Result<ClientStep, Rejection> {
        request.is_owner = self.rules.is_owner(&request, self.origin);
        let requirement = self.rules.auth_requirement(&request, self.origin, self.tls.as_ref())?;
        let listed = self.rules.configured_secret(&request.user);
        if !request.is_owner
            && listed.is_none()
            && let Some(query) = self.rules.auth_query(&request)
        {
            self.state = ClientAuthState::AuthQuery(request, requirement);
            return Ok(ClientStep::AuthQuery(query));
        }
        self.request_auth(request, requirement, listed)
    }

    fn request_auth(
        &mut self,
        request: Box<StartupRequest>,
        requirement: AuthRequirement,
        secret: Option<UserSecret>,
    ) -> Result<ClientStep, Rejection> {
        let known = secret.as_ref().and_then(|secret| secret.secret.as_ref());
        // A user with an empty secret in the settings has none on purpose.
        let is_known = known.is_some_and(|secret| !secret.is_empty())
            || self.rules.configured_secret(&request.user).is_some();
        let outcome = if !is_known && self.rules.passes_through(requirement) {
            self.request_pass_through(&request)
        } else {
            self.rules.first_request(
                &request,
                requirement,
                secret,
                &self.scram_context(),
                self.entropy,
            )
        };
        match self.write_request(outcome) {
            Ok(outcome) => Ok(self.apply_outcome(request, outcome)),
            Err(rejection) => Err(rejection),
        }
    }

    /// Requests the password for pass-through authentication.
    fn request_pass_through(
        &self,
        request: &StartupRequest,
    ) -> Result<exchange::AuthOutcome, Rejection> {
        // A proxy's address may be local while the client's is not, and the reverse.
        let is_local = |origin| match origin {
            ClientOrigin::Unix { .. } => true,
            ClientOrigin::Tcp(address) => {
                self.rules.config.auth.pass_through == PassThrough::Loopback
                    && address.is_some_and(|it| it.to_canonical().is_loopback())
            }
        };
        if self.tls.is_none() && !(is_local(self.origin) && is_local(self.peer)) {
            return Err(Rejection::UnprotectedPassword(request.user.clone()));
        }
        // The console, and a database that does not exist, have no server: no password is right.
        let database = &request.database;
        let has_server = !CONSOLE_DATABASES.contains(&database.as_str())
            && self.rules.config.database(database).is_some();
        Ok(exchange::AuthOutcome::Request(if has_server {
            AuthRequest::PassThrough
        } else {
            AuthRequest::Plain(None)
        }))
    }

    fn scram_context(&self) -> exchange::ScramContext {
        let facts = self.tls.clone().unwrap_or_default();
        exchange::ScramContext { end_point_hash: facts.end_point_hash, nonce: self.entropy.nonce }
    }

    /// Handles the client's response to an authentication request.
    fn handle_response(
        &mut self,
        request: Box<StartupRequest>,
        auth_request: AuthRequest,
    ) -> Result<Option<ClientStep>, Rejection> {
        let input = mem::take(&mut self.input);
        let split =
            Frame::split(&input, auth_request.response_bytes_max()).map_err(|error| match error {
                HeaderError::TooLong { .. } => Rejection::TooLong,
                _ => Rejection::PasswordMessage(
                    "its length is less than its own four bytes".to_owned(),
                ),
            });
        // A message of another type is refused by its tag, before its length is checked.
        if let Some(tag) = input.first().filter(|tag| **tag != b'p') {
            return Err(Rejection::UnexpectedMessage(*tag));
        }
        let Some((frame, rest)) = split? else {
            self.input = input;
            self.state = ClientAuthState::AwaitingResponse(request, auth_request);
            return Ok(Some(ClientStep::Read));
        };
        debug_assert_eq!(frame.tag, Tag(b'p'));
        let outcome =
            auth_request.check_response(frame.body, &request, &self.rules, &self.scram_context());
        let outcome = self.write_request(outcome)?;
        self.input = rest.to_vec();
        Ok(Some(self.apply_outcome(request, outcome)))
    }

    /// Writes the message of an authentication step, if it has one, and returns the step's outcome.
    fn write_request(
        &mut self,
        outcome: Result<exchange::AuthOutcome, Rejection>,
    ) -> Result<exchange::AuthOutcome, Rejection> {
        let outcome = outcome?;
        let mut say = |request| {
            encode::authentication(&mut self.output, request).expect("names have no zero byte");
        };
        match &outcome {
            exchange::AuthOutcome::Request(AuthRequest::Plain(_) | AuthRequest::PassThrough) => {
                say(AuthenticationRequest::CleartextPassword);
            }
            exchange::AuthOutcome::Request(AuthRequest::Md5 { salt, .. }) => {
                say(AuthenticationRequest::Md5Password { salt: *salt });
            }
            exchange::AuthOutcome::Request(AuthRequest::Sasl { mechanisms, .. }) => {
                say(AuthenticationRequest::Sasl(mechanisms));
            }
            exchange::AuthOutcome::Request(AuthRequest::ScramFinal(server)) => {
                say(AuthenticationRequest::SaslContinue(server.message()));
            }
            exchange::AuthOutcome::Authenticated { last_word: Some(message), .. } => {
                say(AuthenticationRequest::SaslFinal(message));
            }
            exchange::AuthOutcome::Authenticated { .. }
            | exchange::AuthOutcome::CheckPassword(_)
            | exchange::AuthOutcome::DeriveKeys(..) => {}
        }
        Ok(outcome)
    }

    fn apply_outcome(
        &mut self,
        request: Box<StartupRequest>,
        outcome: exchange::AuthOutcome,
    ) -> ClientStep {
        match outcome {
            exchange::AuthOutcome::Request(auth_request) => {
                self.state = ClientAuthState::AwaitingResponse(request, auth_request);
                self.advance()
            }
            exchange::AuthOutcome::DeriveKeys(derivation, response) => {
                self.state = ClientAuthState::DerivingKeys(request, response);
                ClientStep::DeriveKeys(derivation)
            }
            exchange::AuthOutcome::CheckPassword(password) => {
                let (user, database) = (request.user.clone(), request.database.clone());
                let replication = request.replication;
                self.state = ClientAuthState::CheckingPassword(request);
                ClientStep::CheckPassword(PasswordCheck { user, database, replication, password })
            }
            exchange::AuthOutcome::Authenticated { keys, .. } => self.finish(*request, keys),
        }
    }

    fn finish(&mut self, request: StartupRequest, scram_keys: Option<ScramKeys>) -> ClientStep {
        // Access to the console is checked later, by the worker.
        let is_console = CONSOLE_DATABASES.contains(&request.database.as_str());
        if !is_console && self.rules.config.database(&request.database).is_none() {
            return self.reject(Rejection::UnknownDatabase(request.database));
        }
        encode::authentication(&mut self.output, AuthenticationRequest::Ok)
            .expect("it has no text");
        ClientStep::Authenticated(Box::new(AuthenticatedClient {
            user: request.user,
            database: request.database,
            version: request.version,
            is_owner: request.is_owner,
            replication: request.replication,
            role: request.role,
            settings: request.settings,
            scram_keys,
            secret: request.secret,
            received: mem::take(&mut self.input),
        }))
    }
}

/// Returns the user and the database of a startup packet, even if it is otherwise invalid.
fn user_and_database(startup: &Startup<'_>) -> (String, String) {
    let find = |wanted_name: &[u8]| {
        let mut parameters = startup.parameters.clone();
        let found = parameters.find(|(name, _)| *name == wanted_name).map(|(_, value)| value);
        String::from_utf8_lossy(found.unwrap_or_default()).into_owned()
    };
    (find(b"user"), find(b"database"))
}

fn packet_rejection(error: StartupPacketError) -> Rejection {
    match error {
        StartupPacketError::Malformed(error) => Rejection::Layout(error.to_string()),
        _ => Rejection::NotStartupPacket,
    }
}

#[cfg(test)]
mod tests;
