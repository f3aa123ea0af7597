//! The login to a server: the socket I/O around [`ServerHandshake`].

use std::{net::SocketAddr, sync::Arc};

use howdah_net::{Received, Stream};
use howdah_pool_config::{SecretSource, StoredSecret};
use howdah_pool_core::{ServerFailure, ServerId, SessionParameter};
use howdah_wire::{Secret, auth::scram::ClientKeys, startup::ProtocolVersion};

use super::{LoginProgress, READ_BYTES, cancel::dial};
use crate::{
    auth::{KeyDerivation, ServerHandshake, ServerLoginError, ServerReady, ServerStep},
    worker::{
        directory::{LocalSocket, PoolEntry, ServerRoute},
        shared_state::SharedState,
    },
};

/// The `application_name` of the pooler's own connections to servers.
const APPLICATION_NAME: &str = "howdah pool";

/// A login to a server in progress.
///
/// The login may need several attempts: at several hosts, with and without TLS, and with a newer
/// and an older protocol version. They are made in order, and the last failure is reported.
#[derive(Debug)]
pub(in crate::worker) struct PendingServer {
    id: ServerId,
    entry: Arc<PoolEntry>,
    /// The remaining attempts, the next one last.
    attempts: Vec<LoginAttempt>,
    attempt: Option<LoginAttempt>,
    handshake: Option<Box<ServerHandshake>>,
    /// Bytes that the socket has not accepted yet: a password may be longer than the socket's
    /// buffer.
    unsent: Vec<u8>,
    key_derivation: Option<KeyDerivation>,
    failure: ServerFailure,
    is_redialled: bool,
    /// The resolved address of the next attempt, if its route has a host name.
    address: Option<Result<SocketAddr, String>>,
    /// Startup parameters in addition to those of the pool.
    parameters: Vec<SessionParameter>,
    /// The password from the pool's [`SecretSource`], once it is known.
    secret: Option<Result<Secret, String>>,
    /// The cache of derived keys, if it is not the one that all logins share.
    keys: Option<ClientKeys>,
}

#[derive(Clone, Debug)]
struct LoginAttempt {
    route: ServerRoute,
    newest: ProtocolVersion,
}

/// The reason why an attempt failed.
#[derive(Debug)]
enum AttemptError {
    /// The connection failed; the next attempt may succeed.
    Connection(String),
    Login(ServerLoginError),
}

impl From<ServerLoginError> for AttemptError {
    fn from(error: ServerLoginError) -> Self {
        Self::Login(error)
    }
}

impl PendingServer {
    /// Starts a login over the pool's routes, including unix sockets in place of TCP ports, which
    /// may have to be checked first.
    pub(in crate::worker) fn for_clients(id: ServerId, entry: Arc<PoolEntry>) -> Self {
        let routes = entry.routes();
        Self::over(id, entry, routes)
    }

    /// Starts a login over the configured endpoints.
    pub(in crate::worker) fn new(id: ServerId, entry: Arc<PoolEntry>) -> Self {
        let mut routes = entry.routes();
        routes.retain(|route| route.local_socket().is_none());
        Self::over(id, entry, routes)
    }

    /// Starts a login over these routes, the first of which is tried first.
    pub(in crate::worker) fn over(
        id: ServerId,
        entry: Arc<PoolEntry>,
        routes: Vec<ServerRoute>,
    ) -> Self {
        let attempt = |route| LoginAttempt { route, newest: ProtocolVersion::V3_2 };
        let attempts = routes.into_iter().rev().map(attempt).collect();
        let failure = unreachable("no server is configured");
        let (attempt, handshake, unsent, key_derivation) = (None, None, Vec::new(), None);
        let (is_redialled, address) = (false, None);
        Self {
            id,
            entry,
            attempts,
            attempt,
            handshake,
            unsent,
            key_derivation,
            failure,
            is_redialled,
            address,
            parameters: Vec::new(),
            secret: None,
            keys: None,
        }
    }

    /// Sets an `application_name` that identifies the connection as one of the pooler itself, so
    /// that monitoring does not take it for a client's.
    pub(in crate::worker) fn for_pooler(mut self) -> Self {
        self.parameters = vec![SessionParameter::new("application_name", APPLICATION_NAME)];
        self
    }

    /// Keeps the keys that are derived during the login out of the shared cache, from which those
    /// of wrong passwords would evict others.
    pub(in crate::worker) fn with_own_keys(mut self) -> Self {
        self.keys = Some(ClientKeys::default());
        self
    }

    pub(super) fn host(&self) -> Option<(String, u16)> {
        self.attempts.last()?.route.host()
    }

    /// Returns the unix socket to check before the next attempt, and the pool.
    pub(super) fn unchecked_socket(&self) -> Option<(Arc<LocalSocket>, Arc<PoolEntry>)> {
        let local = self.attempts.last()?.route.local_socket()?;
        local.is_usable().is_none().then(|| (Arc::clone(local), Arc::clone(&self.entry)))
    }

    /// Returns the source of the password, if the login needs it now.
    pub(super) fn secret_source(&self) -> Option<&SecretSource> {
        self.entry.settings.secret_source.as_ref().filter(|_| self.secret.is_none())
    }

    /// Sets the password from the source, or the reason why there is none.
    pub(super) fn set_secret(&mut self, secret: Result<Secret, String>) {
        self.secret = Some(secret);
    }

    pub(super) fn set_address(&mut self, address: Result<SocketAddr, String>) {
        self.address = Some(address);
    }

    /// Whether the stream was replaced since the last call.
    pub(super) fn take_redialled(&mut self) -> bool {
        std::mem::take(&mut self.is_redialled)
    }

    pub(super) fn timed_out(&mut self) -> LoginProgress {
        let failure = unreachable(&format!("{}: the login timed out", self.endpoint_name()));
        LoginProgress::NoServer(self.id, failure)
    }

    pub(super) fn target(&self) -> (&PoolEntry, String) {
        (&self.entry, self.endpoint_name())
    }

    fn endpoint_name(&self) -> String {
        self.attempt.as_ref().map_or_else(String::new, |attempt| attempt.route.endpoint_name())
    }

    pub(super) fn advance(
        &mut self,
        stream: &mut Option<Stream>,
        shared: &SharedState,
        heavy: bool,
    ) -> LoginProgress {
        if self.secret_source().is_some() {
            return LoginProgress::FetchSecret;
        }
        if let Some(Err(why)) = &self.secret {
            let message = format!("no password for the server: {why}");
            return LoginProgress::NoServer(
                self.id,
                ServerFailure { sqlstate: *b"08006", message },
            );
        }
        loop {
            if stream.is_none() {
                let Some(attempt) = self.attempts.last() else {
                    return LoginProgress::NoServer(self.id, self.failure.clone());
                };
                match attempt.route.local_socket().map(|local| local.is_usable()) {
                    None | Some(Some(true)) => {}
                    Some(None) => return LoginProgress::CheckSocket,
                    Some(Some(false)) => {
                        self.attempts.pop();
                        continue;
                    }
                }
                if attempt.route.host().is_some() && self.address.is_none() {
                    return LoginProgress::Resolve;
                }
                let address = self.address.take().transpose();
                let dialled =
                    address.and_then(|address| dial(&self.entry, &attempt.route, address));
                (self.attempt, self.is_redialled) = (self.attempts.pop(), true);
                (self.handshake, self.key_derivation) = (None, None);
                self.unsent.clear();
                match dialled {
                    Ok(dialled) => *stream = Some(dialled),
                    Err(text) => {
                        self.reject_socket(&text);
                        self.failure = unreachable(&text);
                    }
                }
            }
            let (Some(open), Some(attempt)) = (stream.as_mut(), self.attempt.clone()) else {
                continue;
            };
            // The next step may include a TLS handshake or a key derivation.
            if !heavy && (self.key_derivation.is_some() || attempt.route.is_encrypted()) {
                return LoginProgress::Heavy;
            }
            match self.exchange(open, attempt.newest, shared, heavy) {
                Ok(HandshakeProgress::Waiting) => return LoginProgress::Waiting,
                Ok(HandshakeProgress::Heavy) => return LoginProgress::Heavy,
                Ok(HandshakeProgress::Ready(ready)) => {
                    return LoginProgress::Server(self.id, ready, attempt.route);
                }
                Err(error) => {
                    *stream = None;
                    if let Some(failure) = self.attempt_failed(error, attempt, shared) {
                        return LoginProgress::NoServer(self.id, failure);
                    }
                }
            }
        }
    }

    /// Records a failed attempt. Returns the failure if a further attempt would be useless.
    fn attempt_failed(
        &mut self,
        error: AttemptError,
        attempt: LoginAttempt,
        shared: &SharedState,
    ) -> Option<ServerFailure> {
        match error {
            AttemptError::Connection(text) => {
                self.reject_socket(&text);
                self.failure = unreachable(&format!("{}: {text}", self.endpoint_name()));
                None
            }
            AttemptError::Login(error) => {
                self.failure = error.failure();
                if let Some(source) = &self.entry.settings.secret_source
                    && self.failure.sqlstate.starts_with(b"28")
                {
                    shared.server_secrets.discard(source);
                }
                if error.may_retry_as_3_0() && attempt.newest != ProtocolVersion::V3_0 {
                    self.attempts.push(LoginAttempt { newest: ProtocolVersion::V3_0, ..attempt });
                    return None;
                }
                let message = self.failure.message.clone();
                let other = self.reject_socket(&message)
                    || howdah_connect::tls::Encryption::allows_fallback(&self.failure.sqlstate);
                (!other).then(|| self.failure.clone())
            }
        }
    }

    /// If the failed attempt used a unix socket in place of a TCP port, makes this and the next
    /// logins use the port. Returns whether it did.
    fn reject_socket(&self, why: &str) -> bool {
        let Some(local) = self.attempt.as_ref().and_then(|it| it.route.local_socket()) else {
            return false;
        };
        if local.set_result(Some(why.to_owned())) {
            local.report_refusal(&self.entry.key, why);
        }
        true
    }

    fn exchange(
        &mut self,
        stream: &mut Stream,
        newest: ProtocolVersion,
        shared: &SharedState,
        heavy: bool,
    ) -> Result<HandshakeProgress, AttemptError> {
        let connection_error = |error: std::io::Error| AttemptError::Connection(error.to_string());
        if !stream.open().map_err(connection_error)? {
            return Ok(HandshakeProgress::Waiting);
        }
        if self.handshake.is_none() {
            let mut intent = self.entry.server_intent(newest, stream);
            intent.parameters.extend(self.parameters.iter().cloned());
            if let Some(Ok(password)) = &self.secret {
                intent.identity.secret = Some(StoredSecret::Plain(password.clone()));
            }
            let entropy = shared.entropy().ok_or_else(|| {
                AttemptError::Connection(
                    "could not get random bytes from the operating system".to_owned(),
                )
            })?;
            let keys = self.keys.as_ref().unwrap_or(&shared.server_keys);
            let handshake = ServerHandshake::new(intent, keys.clone(), entropy.nonce)?;
            self.handshake = Some(Box::new(handshake));
        }
        loop {
            let Some(handshake) = &mut self.handshake else {
                return Ok(HandshakeProgress::Waiting);
            };
            self.unsent.append(&mut handshake.take_output());
            // TLS may hold buffered bytes: an empty send flushes them.
            if !self.unsent.is_empty() || stream.has_buffered_bytes() {
                let sent = stream.send(&self.unsent).map_err(connection_error)?;
                self.unsent.drain(..sent);
            }
            let step = match self.key_derivation.take() {
                Some(derivation) if heavy => handshake.keys_derived(derivation.run())?,
                Some(derivation) => {
                    self.key_derivation = Some(derivation);
                    return Ok(HandshakeProgress::Heavy);
                }
                None => {
                    let mut buffer = [0; READ_BYTES];
                    match stream.receive(&mut buffer).map_err(connection_error)? {
                        Received::Drained(0) => return Ok(HandshakeProgress::Waiting),
                        Received::Bytes(some) | Received::Drained(some) => {
                            handshake.receive(&buffer[..some])?
                        }
                        Received::Closed => {
                            let text = "the server closed the connection".to_owned();
                            return Err(AttemptError::Connection(text));
                        }
                    }
                }
            };
            match step {
                ServerStep::Read => {}
                ServerStep::DeriveKeys(derivation) => self.key_derivation = Some(derivation),
                ServerStep::Ready(ready) => return Ok(HandshakeProgress::Ready(ready)),
            }
        }
    }
}

/// The result of advancing a handshake.
enum HandshakeProgress {
    Waiting,
    Heavy,
    Ready(Box<ServerReady>),
}

fn unreachable(text: &str) -> ServerFailure {
    ServerFailure { sqlstate: *b"08006", message: format!("cannot reach the server: {text}") }
}
