//! Finds, among endpoints, addresses and ways to begin, the first connection that will do.
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
    CancelHandle, Client, ConnectError, ConnectFailure, Failure, login,
    socket::{Address, Secure, Socket},
};
use crate::{
    Endpoint, LoadBalance, SessionAttributes, Target,
    tls::{self, Encryption},
};

pub(super) fn connect(target: &Target) -> Result<Client, ConnectError> {
    let dialer = Dialer { target, config: OnceCell::new() };
    let mut endpoints = target.endpoints().to_vec();
    if target.load_balance() == LoadBalance::Random {
        shuffle(&mut endpoints)?;
    }
    let mut failures = Vec::new();
    for wanted in passes(target.session_attributes()) {
        for endpoint in &endpoints {
            match dialer.try_endpoint(endpoint, wanted, &mut failures)? {
                Verdict::Connected(client) => return Ok(*client),
                Verdict::Next => {}
                Verdict::Stop => return Err(ConnectError::Failed { failures }),
            }
        }
    }
    Err(ConnectError::Failed { failures })
}

/// What to look for, in one pass over the endpoints after the other.
fn passes(wanted: SessionAttributes) -> Vec<SessionAttributes> {
    match wanted {
        SessionAttributes::PreferStandby => {
            vec![SessionAttributes::Standby, SessionAttributes::Any]
        }
        wanted => vec![wanted],
    }
}

enum Verdict {
    Connected(Box<Client>),
    Next,
    Stop,
}

struct Dialer<'t> {
    target: &'t Target,
    /// Made when it is needed first: it reads files.
    config: OnceCell<Arc<rustls::ClientConfig>>,
}

/// One address of one endpoint.
struct Place<'p> {
    endpoint: &'p Endpoint,
    address: Address,
}

impl Dialer<'_> {
    fn try_endpoint(
        &self,
        endpoint: &Endpoint,
        wanted: SessionAttributes,
        failures: &mut Vec<Failure>,
    ) -> Result<Verdict, ConnectError> {
        let mut addresses = match look_up(endpoint) {
            Ok(addresses) => addresses,
            Err(said) => {
                let cause = ConnectFailure::Lookup { said };
                let endpoint = endpoint.clone();
                failures.push(Failure { endpoint, address: None, encrypted: None, cause });
                return Ok(Verdict::Next);
            }
        };
        if self.target.load_balance() == LoadBalance::Random {
            shuffle(&mut addresses)?;
        }
        for address in addresses {
            let place = Place { endpoint, address };
            match self.try_address(&place, wanted, failures)? {
                Verdict::Next => {}
                verdict => return Ok(verdict),
            }
        }
        Ok(Verdict::Next)
    }

    /// Tries the ways to begin that the TLS mode has, one after the other.
    fn try_address(
        &self,
        place: &Place<'_>,
        wanted: SessionAttributes,
        failures: &mut Vec<Failure>,
    ) -> Result<Verdict, ConnectError> {
        let attempts = self.target.tls().attempts(place.endpoint);
        let mut last = Verdict::Next;
        for (index, encryption) in attempts.iter().enumerate() {
            let secure = self.secure(place.endpoint, *encryption)?;
            let mut encrypted = None;
            let result = self
                .attempt(place, *encryption, secure, &mut encrypted)
                .and_then(|client| check_session(client, wanted));
            let cause = match result {
                Ok(client) => return Ok(Verdict::Connected(Box::new(client))),
                Err(cause) => cause,
            };
            let may_fall_back = may_fall_back(&cause, *encryption, encrypted);
            last = if ends_search(&cause) { Verdict::Stop } else { Verdict::Next };
            let endpoint = place.endpoint.clone();
            let address = place.address.socket_address();
            let failure = Failure { endpoint, address, encrypted, cause };
            tracing::debug!("{failure}");
            failures.push(failure);
            if !may_fall_back || index + 1 == attempts.len() {
                break;
            }
        }
        Ok(last)
    }

    fn secure(
        &self,
        endpoint: &Endpoint,
        encryption: Encryption,
    ) -> Result<Option<Secure>, ConnectError> {
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
        Ok(Some(Secure { config, server_name: tls::server_name(endpoint)? }))
    }

    /// Connects and logs in, in one way. `encrypted` is set as soon as that is known.
    fn attempt(
        &self,
        place: &Place<'_>,
        encryption: Encryption,
        secure: Option<Secure>,
        encrypted: &mut Option<bool>,
    ) -> Result<Client, ConnectFailure> {
        let timeout = self.target.connect_timeout();
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        let late = |cause| name_timeout(cause, timeout);
        let keepalive = self.target.keepalive();
        let mut socket = Socket::connect(&place.address, keepalive, deadline)
            .map_err(ConnectFailure::Unreachable)
            .map_err(late)?;
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
        let login = self.login(place.endpoint, &socket);
        let guard = self.target.login_guard(&login);
        let mut nonce = [0; 18];
        SystemRandom::new().fill(&mut nonce).map_err(|_| ConnectFailure::Random)?;
        let mut session = session::Client::new(login, nonce);
        login::log_in(&mut socket, &mut session, guard).map_err(late)?;
        socket.set_deadline(None);
        let encryption = if socket.is_encrypted() { encryption } else { Encryption::Plain };
        let cancel = session.cancel_key().cloned().map(|key| CancelHandle {
            address: place.address.clone(),
            encryption,
            secure,
            keepalive,
            timeout,
            key,
        });
        let endpoint = place.endpoint.clone();
        Ok(Client { session, socket, endpoint, timeout: None, cancel, closed: false })
    }

    /// What to log in with, now that the server's certificate is known.
    fn login(&self, endpoint: &Endpoint, socket: &Socket) -> session::Login {
        let mut login = self.target.login(endpoint);
        // What is read here is Rust text.
        login.parameters.retain(|(name, _)| name != "client_encoding");
        login.parameters.push(("client_encoding".to_owned(), "UTF8".to_owned()));
        login.channel_binding = self.target.tls().binding(socket.peer_certificate());
        login
    }
}

impl Address {
    fn socket_address(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(address) => Some(*address),
            Self::Unix(_) => None,
        }
    }
}

/// The addresses of an endpoint, at least one.
fn look_up(endpoint: &Endpoint) -> Result<Vec<Address>, Option<io::Error>> {
    let addresses: Vec<_> = match endpoint {
        Endpoint::Unix { path } => vec![Address::Unix(path.clone())],
        Endpoint::Tcp { hostaddr: Some(address), port, .. } => {
            vec![Address::Tcp((*address, *port).into())]
        }
        Endpoint::Tcp { host, hostaddr: None, port } => {
            (host.as_str(), *port).to_socket_addrs().map_err(Some)?.map(Address::Tcp).collect()
        }
    };
    if addresses.is_empty() { Err(None) } else { Ok(addresses) }
}

/// Checks that the session is of the kind wanted.
fn check_session(mut client: Client, wanted: SessionAttributes) -> Result<Client, ConnectFailure> {
    const READ_ONLY: &str = "show transaction_read_only";
    const IN_RECOVERY: &str = "select case when pg_catalog.pg_is_in_recovery() then 'on' end";
    let (sql, on) = match wanted {
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
        Err(ConnectFailure::WrongSession { wanted })
    }
}

/// Whether beginning in another way may help.
fn may_fall_back(cause: &ConnectFailure, encryption: Encryption, encrypted: Option<bool>) -> bool {
    // A server without TLS was already gone on with.
    if encryption == Encryption::Optional && encrypted == Some(false) {
        return false;
    }
    match cause {
        ConnectFailure::Handshake(_) => true,
        ConnectFailure::Sql(error) => Encryption::may_fall_back(error.sqlstate.as_bytes()),
        _ => false,
    }
}

/// Whether the failure is one that the next endpoint would most probably repeat, or that must not be
/// passed over. libpq goes on only after an endpoint that cannot be reached, is starting up or has
/// the wrong kind of session; one that hangs up in the middle is passed over here as well.
fn ends_search(cause: &ConnectFailure) -> bool {
    match cause {
        ConnectFailure::Lookup { .. }
        | ConnectFailure::Unreachable(_)
        | ConnectFailure::TimedOut { .. }
        | ConnectFailure::Lost(_)
        | ConnectFailure::Closed
        | ConnectFailure::WrongSession { .. } => false,
        // cannot_connect_now
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

/// Puts a list in random order.
fn shuffle<T>(list: &mut [T]) -> Result<(), ConnectError> {
    for last in (1..list.len()).rev() {
        let mut bytes = [0; 8];
        SystemRandom::new().fill(&mut bytes).map_err(|_| ConnectError::Random)?;
        // A list of hosts is so short that the remainder is fair enough.
        let chosen = u64::from_le_bytes(bytes) % (last as u64 + 1);
        list.swap(last, chosen as usize);
    }
    Ok(())
}
