//! Finds the first suitable connection among endpoints, addresses and encryption methods.
//!
//! Source: PostgreSQL manual, "Specifying Multiple Hosts" and "SSL Mode Descriptions".

use std::{
    cell::OnceCell,
    io,
    net::{SocketAddr, ToSocketAddrs},
    sync::Arc,
    time::{Duration, Instant},
};

use howdah_session as session;
use ring::rand::{SecureRandom, SystemRandom};

use super::{
    AttemptFailure, CancelHandle, Client, ConnectError, ConnectFailure, login,
    socket::{ResolvedAddress, Socket, TlsSetup},
};
use crate::{
    ConnectTarget, Endpoint, LoadBalance, SessionAttributes,
    tls::{self, Encryption},
};

pub(super) fn connect(target: &ConnectTarget) -> Result<Client, ConnectError> {
    let dialer = Connector { target, config: OnceCell::new() };
    let mut endpoints = target.endpoints().to_vec();
    if target.load_balance() == LoadBalance::Random {
        shuffle(&mut endpoints)?;
    }
    let mut failures = Vec::new();
    for required in passes(target.session_attributes()) {
        for endpoint in &endpoints {
            match dialer.try_endpoint(endpoint, required, &mut failures)? {
                AttemptOutcome::Connected(client) => return Ok(*client),
                AttemptOutcome::Next => {}
                AttemptOutcome::Stop => return Err(ConnectError::Failed { failures }),
            }
        }
    }
    Err(ConnectError::Failed { failures })
}

/// Returns the kinds of session to look for, in successive passes over the endpoints.
fn passes(required: SessionAttributes) -> Vec<SessionAttributes> {
    match required {
        SessionAttributes::PreferStandby => {
            vec![SessionAttributes::Standby, SessionAttributes::Any]
        }
        required => vec![required],
    }
}

enum AttemptOutcome {
    Connected(Box<Client>),
    Next,
    Stop,
}

struct Connector<'t> {
    target: &'t ConnectTarget,
    /// The TLS configuration. Created on first use, because it reads files.
    config: OnceCell<Arc<rustls::ClientConfig>>,
}

/// One of the addresses of an endpoint, after name resolution.
struct EndpointAddress<'p> {
    endpoint: &'p Endpoint,
    address: ResolvedAddress,
}

impl Connector<'_> {
    fn try_endpoint(
        &self,
        endpoint: &Endpoint,
        required: SessionAttributes,
        failures: &mut Vec<AttemptFailure>,
    ) -> Result<AttemptOutcome, ConnectError> {
        let mut addresses = match resolve_addresses(endpoint) {
            Ok(addresses) => addresses,
            Err(reason) => {
                let cause = ConnectFailure::Lookup { reason };
                let endpoint = endpoint.clone();
                failures.push(AttemptFailure { endpoint, address: None, encrypted: None, cause });
                return Ok(AttemptOutcome::Next);
            }
        };
        if self.target.load_balance() == LoadBalance::Random {
            shuffle(&mut addresses)?;
        }
        for address in addresses {
            let address = EndpointAddress { endpoint, address };
            match self.try_address(&address, required, failures)? {
                AttemptOutcome::Next => {}
                verdict => return Ok(verdict),
            }
        }
        Ok(AttemptOutcome::Next)
    }

    /// Tries the encryption methods of the TLS mode in order.
    fn try_address(
        &self,
        address: &EndpointAddress<'_>,
        required: SessionAttributes,
        failures: &mut Vec<AttemptFailure>,
    ) -> Result<AttemptOutcome, ConnectError> {
        let attempts = self.target.tls().attempts(address.endpoint);
        let mut last = AttemptOutcome::Next;
        for (index, encryption) in attempts.iter().enumerate() {
            let secure = self.secure(address.endpoint, *encryption)?;
            let mut encrypted = None;
            let result = self
                .attempt(address, *encryption, secure, &mut encrypted)
                .and_then(|client| check_session(client, required));
            let cause = match result {
                Ok(client) => return Ok(AttemptOutcome::Connected(Box::new(client))),
                Err(cause) => cause,
            };
            let may_retry = allows_fallback(&cause, *encryption, encrypted);
            last = if is_final(&cause) { AttemptOutcome::Stop } else { AttemptOutcome::Next };
            let endpoint = address.endpoint.clone();
            let address = address.address.socket_address();
            let failure = AttemptFailure { endpoint, address, encrypted, cause };
            tracing::debug!("{failure}");
            failures.push(failure);
            if !may_retry || index + 1 == attempts.len() {
                break;
            }
        }
        Ok(last)
    }

    fn secure(
        &self,
        endpoint: &Endpoint,
        encryption: Encryption,
    ) -> Result<Option<TlsSetup>, ConnectError> {
        if encryption == Encryption::Plain {
            return Ok(None);
        }
        let config = match self.config.get() {
            Some(config) => config.clone(),
            None => {
                let config = tls::client_config(self.target.tls())?;
                self.config.get_or_init(|| config).clone()
            }
        };
        Ok(Some(TlsSetup { config, server_name: tls::server_name(endpoint)? }))
    }

    /// Connects and logs in with one encryption method. Once connected, sets `encrypted` to whether
    /// the connection uses TLS or, if it fails before that is known, was to use it.
    fn attempt(
        &self,
        address: &EndpointAddress<'_>,
        encryption: Encryption,
        secure: Option<TlsSetup>,
        encrypted: &mut Option<bool>,
    ) -> Result<Client, ConnectFailure> {
        let timeout = self.target.connect_timeout();
        // Connecting, TLS and login share one deadline, as with libpq's `connect_timeout`.
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        let late = |cause| name_timeout(cause, timeout);
        let keepalive = self.target.keepalive();
        let mut socket = Socket::connect(&address.address, keepalive, deadline)
            .map_err(ConnectFailure::Unreachable)
            .map_err(late)?;
        // The caller may retry with another method (`sslmode=prefer`, `allow`), which depends on
        // whether the failed connection was encrypted.
        *encrypted = match encryption {
            Encryption::Plain => Some(false),
            Encryption::Optional => None,
            Encryption::Requested | Encryption::Direct => Some(true),
        };
        socket.open(encryption, secure.as_ref()).map_err(|cause| {
            encrypted.get_or_insert(true);
            late(cause)
        })?;
        *encrypted = Some(socket.is_encrypted());
        // The login data is created after the handshake, because channel binding needs the hash of
        // the server's certificate.
        let login = self.login(address.endpoint, &socket);
        let policy = self.target.auth_policy(&login);
        let mut nonce = [0; 18];
        SystemRandom::new().fill(&mut nonce).map_err(|_| ConnectFailure::Random)?;
        let mut session = session::ClientSession::new(login, nonce);
        login::log_in(&mut socket, &mut session, policy).map_err(late)?;
        // The handle stores how this connection was encrypted: a CancelRequest uses the same
        // encryption.
        socket.set_deadline(None);
        let encryption = if socket.is_encrypted() { encryption } else { Encryption::Plain };
        let cancel = session.cancel_key().cloned().map(|key| CancelHandle {
            address: address.address.clone(),
            encryption,
            secure,
            keepalive,
            timeout,
            key,
        });
        let endpoint = address.endpoint.clone();
        Ok(Client { session, socket, endpoint, timeout: None, cancel, closed: false })
    }

    /// Returns the login data, with channel binding to the certificate of the connected server.
    fn login(&self, endpoint: &Endpoint, socket: &Socket) -> session::Login {
        let mut login = self.target.login(endpoint);
        // Values are Rust strings, so the client encoding is UTF-8.
        login.parameters.retain(|(name, _)| name != "client_encoding");
        login.parameters.push(("client_encoding".to_owned(), "UTF8".to_owned()));
        login.channel_binding = self.target.tls().binding(socket.peer_certificate());
        login
    }
}

impl ResolvedAddress {
    fn socket_address(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(address) => Some(*address),
            Self::Unix(_) => None,
        }
    }
}

/// Resolves an endpoint to its addresses, at least one.
fn resolve_addresses(endpoint: &Endpoint) -> Result<Vec<ResolvedAddress>, Option<io::Error>> {
    let addresses: Vec<_> = match endpoint {
        Endpoint::Unix { path } => vec![ResolvedAddress::Unix(path.clone())],
        Endpoint::Tcp { hostaddr: Some(address), port, .. } => {
            vec![ResolvedAddress::Tcp((*address, *port).into())]
        }
        Endpoint::Tcp { host, hostaddr: None, port } => (host.as_str(), *port)
            .to_socket_addrs()
            .map_err(Some)?
            .map(ResolvedAddress::Tcp)
            .collect(),
    };
    if addresses.is_empty() { Err(None) } else { Ok(addresses) }
}

/// Checks that the session is of the requested kind.
fn check_session(
    mut client: Client,
    required: SessionAttributes,
) -> Result<Client, ConnectFailure> {
    const READ_ONLY: &str = "show transaction_read_only";
    const IN_RECOVERY: &str = "select case when pg_catalog.pg_is_in_recovery() then 'on' end";
    let (sql, on) = match required {
        SessionAttributes::Any | SessionAttributes::PreferStandby => return Ok(client),
        SessionAttributes::ReadWrite => (READ_ONLY, false),
        SessionAttributes::ReadOnly => (READ_ONLY, true),
        SessionAttributes::Primary => (IN_RECOVERY, false),
        SessionAttributes::Standby => (IN_RECOVERY, true),
    };
    let value =
        client.one_value(sql).map_err(|error| ConnectFailure::UnknownSession(Box::new(error)))?;
    if (value.as_deref() == Some("on")) == on {
        Ok(client)
    } else {
        Err(ConnectFailure::WrongSession { required })
    }
}

/// Whether another encryption method may succeed.
fn allows_fallback(
    cause: &ConnectFailure,
    encryption: Encryption,
    encrypted: Option<bool>,
) -> bool {
    // The attempt already continued without TLS.
    if encryption == Encryption::Optional && encrypted == Some(false) {
        return false;
    }
    match cause {
        ConnectFailure::Handshake(_) => true,
        ConnectFailure::Sql(error) => Encryption::allows_fallback(error.sqlstate.as_bytes()),
        _ => false,
    }
}

/// Whether the search ends with this failure, because the next endpoint would most likely fail in
/// the same way or the failure must not be hidden. libpq continues only after an endpoint that
/// cannot be reached, is starting up or has the wrong kind of session; this client also continues
/// after an endpoint that disconnects during the login.
fn is_final(cause: &ConnectFailure) -> bool {
    match cause {
        ConnectFailure::Lookup { .. }
        | ConnectFailure::Unreachable(_)
        | ConnectFailure::TimedOut { .. }
        | ConnectFailure::Lost(_)
        | ConnectFailure::Closed
        | ConnectFailure::WrongSession { .. } => false,
        // 57P03 is cannot_connect_now: the server is starting up or shutting down.
        ConnectFailure::Sql(error) => error.sqlstate != "57P03",
        _ => true,
    }
}

fn name_timeout(cause: ConnectFailure, timeout: Option<Duration>) -> ConnectFailure {
    match (&cause, timeout) {
        (ConnectFailure::Unreachable(error) | ConnectFailure::Lost(error), Some(after))
            if error.kind() == io::ErrorKind::TimedOut =>
        {
            ConnectFailure::TimedOut { after }
        }
        _ => cause,
    }
}

/// Shuffles a list with random numbers from the operating system.
fn shuffle<T>(list: &mut [T]) -> Result<(), ConnectError> {
    for last in (1..list.len()).rev() {
        let mut bytes = [0; 8];
        SystemRandom::new().fill(&mut bytes).map_err(|_| ConnectError::Random)?;
        // A list of hosts is so short that the modulo bias does not matter.
        let chosen = u64::from_le_bytes(bytes) % (last as u64 + 1);
        list.swap(last, chosen as usize);
    }
    Ok(())
}
