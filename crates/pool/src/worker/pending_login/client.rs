//! A client's login: the socket I/O around [`ClientHandshake`].

use std::{io, sync::Arc};

use howdah_net::{Received, Stream};
use howdah_pool_config::{AuthQuery, CONSOLE_DATABASES};
use howdah_pool_core::{ClientLogin, SessionParameter};
use howdah_wire::backend::{Severity, encode};

use super::{LoggedIn, LoginProgress, READ_BYTES, origin};
use crate::{
    auth::{
        AuthenticatedClient, ClientHandshake, ClientStep, Entropy, KeyDerivation, PasswordCheck,
        PasswordCheckResult, Rejection, Replication, UserSecret, proxy_protocol as proxy,
    },
    worker::{
        admin_console::AdminClient,
        cancel_peers,
        directory::PoolKey,
        refusals::{self, RefusedLogin},
        shared_state::{AcceptSettings, SharedState},
    },
};

/// A client's login in progress.
#[derive(Debug)]
pub(in crate::worker) struct PendingClient {
    handshake: Box<ClientHandshake>,
    accept_settings: Arc<AcceptSettings>,
    next: PendingStep,
    /// The bytes of the PROXY header so far; `None` if none is expected.
    header: Option<Vec<u8>>,
}

/// The next step of a handshake.
#[derive(Debug)]
enum PendingStep {
    Bytes,
    Tls,
    DeriveKeys(KeyDerivation),
    AuthQuery(AuthQuery),
    AuthQueryDone(Result<Option<UserSecret>, Rejection>),
    CheckPassword(PasswordCheck),
    PasswordChecked(PasswordCheckResult),
    /// The handshake has ended.
    Nothing,
}

impl PendingClient {
    pub(super) fn new(shared: &SharedState, stream: &Stream, entropy: Entropy) -> Self {
        let accept_settings = shared.accept_settings();
        let rules = Arc::clone(&accept_settings.rules);
        let handshake = ClientHandshake::new(rules, origin(stream), entropy);
        let known = &accept_settings.rules.config().listen.proxy_from;
        // Without configured proxies, the system call for the peer's address is skipped.
        let is_proxy = !known.is_empty() && {
            let from = stream.peer_address().map(|address| address.ip());
            (from.is_some() || stream.is_unix()) && known.iter().any(|source| source.matches(from))
        };
        let header = is_proxy.then(Vec::new);
        Self { handshake: Box::new(handshake), accept_settings, next: PendingStep::Bytes, header }
    }

    /// Whether the client's startup packet has arrived.
    pub(super) fn has_startup_packet(&self) -> bool {
        self.handshake.names().is_some()
    }

    /// Advances the login. `drained` is whether the socket is known to be empty; after a hang-up
    /// the socket is read to the end, because no further event will be reported.
    pub(super) fn advance(
        &mut self,
        stream: &mut Stream,
        hung_up: bool,
        drained: &mut bool,
        shared: &SharedState,
        heavy: bool,
    ) -> LoginProgress {
        loop {
            *drained &= !hung_up;
            if !heavy && matches!(self.next, PendingStep::Tls | PendingStep::DeriveKeys(_)) {
                return LoginProgress::Heavy;
            }
            let step = match std::mem::replace(&mut self.next, PendingStep::Nothing) {
                PendingStep::Bytes => match self.read(stream, drained) {
                    Ok(Some(step)) => step,
                    Ok(None) => {
                        self.next = PendingStep::Bytes;
                        return LoginProgress::Waiting;
                    }
                    Err(_) => return LoginProgress::Close,
                },
                PendingStep::Tls => match stream.open() {
                    Ok(true) => {
                        // Bytes that follow the handshake may already have been read together with
                        // its end.
                        *drained = false;
                        self.handshake.tls_started(self.accept_settings.client_tls_info(stream))
                    }
                    Ok(false) => {
                        self.next = PendingStep::Tls;
                        return LoginProgress::Waiting;
                    }
                    Err(error) => {
                        shared
                            .refusals
                            .record_tls_failure(&refusals::client_address(stream), &error);
                        return LoginProgress::Close;
                    }
                },
                PendingStep::DeriveKeys(derivation) => {
                    self.handshake.keys_derived(derivation.run())
                }
                PendingStep::AuthQuery(query) => {
                    self.next = PendingStep::AuthQuery(query);
                    return LoginProgress::AuthQuery;
                }
                PendingStep::AuthQueryDone(Ok(known)) => self.handshake.auth_query_done(known),
                PendingStep::AuthQueryDone(Err(why)) => self.handshake.refuse(why),
                PendingStep::CheckPassword(check) => {
                    let recheck = shared.directory.config().auth.pass_through_recheck;
                    if !shared.password_checks.recall(&check, recheck) {
                        self.next = PendingStep::CheckPassword(check);
                        return LoginProgress::CheckPassword;
                    }
                    let accepted = PasswordCheckResult::Accepted(check.password);
                    self.handshake.password_checked(accepted)
                }
                PendingStep::PasswordChecked(result) => self.handshake.password_checked(result),
                PendingStep::Nothing => return LoginProgress::Close,
            };
            // The output is short and fits into the empty buffer of a new socket. If it does not,
            // the client is not reading and is disconnected.
            let output = self.handshake.take_output();
            if let ClientStep::Authenticated(client) = step {
                return finish_login(*client, output, stream, shared);
            }
            if !output.is_empty() && stream.send(&output).ok() != Some(output.len()) {
                return LoginProgress::Close;
            }
            if let Some(progress) = self.apply_step(step, stream, shared) {
                return progress;
            }
        }
    }

    /// Reads once and passes the bytes to the handshake. Returns `None` if no bytes are available.
    fn read(&mut self, stream: &mut Stream, drained: &mut bool) -> io::Result<Option<ClientStep>> {
        if *drained {
            return Ok(None);
        }
        let mut buffer = [0; READ_BYTES];
        let received = stream.receive(&mut buffer)?;
        *drained = matches!(received, Received::Drained(_));
        match received {
            Received::Closed => Err(io::ErrorKind::UnexpectedEof.into()),
            Received::Drained(0) => Ok(None),
            Received::Bytes(some) | Received::Drained(some) => {
                Ok(Some(self.receive(&buffer[..some], stream)))
            }
        }
    }

    /// Passes received bytes to the handshake, without the PROXY header if one is expected.
    fn receive(&mut self, bytes: &[u8], stream: &mut Stream) -> ClientStep {
        let Some(header) = &mut self.header else { return self.handshake.receive(bytes) };
        header.extend_from_slice(bytes);
        match proxy::parse(header) {
            Ok(None) => ClientStep::Read,
            Ok(Some(found)) => {
                let tail = header.split_off(found.bytes);
                self.header = None;
                if let Some(source) = found.source {
                    stream.set_peer_address(source);
                    self.handshake.set_origin(origin(stream));
                }
                self.handshake.receive(&tail)
            }
            // The networks of proxies may include peers, which send no header. Whether this is a
            // peer is checked later.
            Err(_) if cancel_peers::is_forwarded(header) => {
                let packet = self.header.take().unwrap_or_default();
                self.handshake.receive(&packet)
            }
            Err(error) => self.handshake.refuse(error.into()),
        }
    }

    fn apply_step(
        &mut self,
        step: ClientStep,
        stream: &mut Stream,
        shared: &SharedState,
    ) -> Option<LoginProgress> {
        match step {
            ClientStep::Read => self.next = PendingStep::Bytes,
            ClientStep::DeriveKeys(derivation) => self.next = PendingStep::DeriveKeys(derivation),
            ClientStep::AuthQuery(query) => self.next = PendingStep::AuthQuery(query),
            ClientStep::CheckPassword(check) => self.next = PendingStep::CheckPassword(check),
            ClientStep::StartTls { received } => {
                let config = &self.accept_settings.tls.as_ref()?.config;
                if stream.start_tls(Arc::clone(config), &received).is_err() {
                    return Some(LoginProgress::Close);
                }
                self.next = PendingStep::Tls;
            }
            ClientStep::Cancel(key) => return Some(LoginProgress::CancelRequest(key)),
            ClientStep::Authenticated(_) => return None,
            ClientStep::Close(rejection) => {
                record_refusal(self.handshake.names(), &rejection, stream, shared);
                return Some(LoginProgress::Close);
            }
        }
        None
    }

    /// Runs the auth query that the handshake waits for.
    pub(super) fn run_auth_query(
        &mut self,
        ask: impl FnOnce(AuthQuery) -> Result<Option<UserSecret>, Rejection>,
    ) {
        match std::mem::replace(&mut self.next, PendingStep::Nothing) {
            PendingStep::AuthQuery(query) => self.next = PendingStep::AuthQueryDone(ask(query)),
            next => self.next = next,
        }
    }

    /// Returns the user and database of the password that the handshake wants to have checked.
    pub(super) fn password_check(&self) -> Option<(String, String)> {
        match &self.next {
            PendingStep::CheckPassword(check) => Some((check.database.clone(), check.user.clone())),
            _ => None,
        }
    }

    /// Checks the password that the handshake wants to have checked.
    pub(super) fn check_password(
        &mut self,
        run: impl FnOnce(PasswordCheck) -> PasswordCheckResult,
    ) {
        match std::mem::replace(&mut self.next, PendingStep::Nothing) {
            PendingStep::CheckPassword(check) => {
                self.next = PendingStep::PasswordChecked(run(check));
            }
            next => self.next = next,
        }
    }

    /// Refuses the client for a reason that only the worker knows.
    pub(super) fn refuse(&mut self, why: Rejection, stream: &mut Stream, shared: &SharedState) {
        record_refusal(self.handshake.names(), &why, stream, shared);
        let _ = self.handshake.refuse(why);
        let _ = stream.send(&self.handshake.take_output());
    }
}

fn finish_login(
    client: AuthenticatedClient,
    mut output: Vec<u8>,
    stream: &mut Stream,
    shared: &SharedState,
) -> LoginProgress {
    let AuthenticatedClient {
        user, database, version, replication, mut settings, received, ..
    } = client;
    if let Some(template) = &shared.directory.config().application_name {
        let is_name = |it: &SessionParameter| it.name.eq_ignore_ascii_case(b"application_name");
        let own = settings.iter().rfind(|it| is_name(it));
        let own = own.map(|it| String::from_utf8_lossy(&it.value).into_owned());
        let name = template.for_client(own.as_deref(), stream.peer_address(), &user, &database);
        settings.retain(|it| !is_name(it));
        settings.push(SessionParameter::new(b"application_name", name.as_bytes()));
    }
    let replication = match replication {
        Replication::None => None,
        Replication::Physical => Some(("true", settings.clone())),
        Replication::Logical => Some(("database", settings.clone())),
    };
    let refuse = |stream: &mut Stream, why: Rejection| {
        record_refusal(Some((&user, &database)), &why, stream, shared);
        let mut bytes = Vec::new();
        why.write(&mut bytes);
        let _ = stream.send(&bytes);
        LoginProgress::Close
    };
    if CONSOLE_DATABASES.contains(&database.as_str()) {
        let name = settings.iter().find(|it| &*it.name == b"application_name");
        let name = name.map(|it| String::from_utf8_lossy(&it.value).into_owned());
        let identity = (user.as_str(), name.as_deref().unwrap_or_default());
        return match admit_admin(identity, client.is_owner, output, received, shared) {
            Ok(admin) => LoginProgress::Admin(Box::new(admin)),
            Err(why) => refuse(stream, why),
        };
    }
    if let Some(text) = &shared.directory.config().auth.login_notice {
        let text = text.replace('\0', " ");
        let fields = encode::essentials(Severity::Notice, b"00000", text.as_bytes());
        encode::notice_response(&mut output, fields).expect("the text has no zero byte");
    }
    if shared.is_shutting_down() {
        return refuse(stream, Rejection::ShuttingDown);
    }
    let Some(secret) = shared.cancel_secret() else {
        return refuse(stream, Rejection::NoRandomness);
    };
    let key = PoolKey { database: database.clone(), user: user.clone(), replication, part: None };
    let pool = shared.directory.admit(&key, |pool, limits| {
        if pool.spec.admin_state.is_disabled() {
            Err(Rejection::Disabled(key.database.clone()))
        } else {
            limits.try_acquire().map_err(Rejection::TooMany)
        }
    });
    let (pool, permits) = match pool {
        Ok(Ok(pool)) => pool,
        Ok(Err(why)) => return refuse(stream, why),
        Err(why) => return refuse(stream, why.rejection(key.database)),
    };
    // A client's credentials can be used only for server logins as the same user.
    let is_login = pool.settings.login.user == key.user;
    if let Some(keys) = client.scram_keys.filter(|_| is_login) {
        // All members with the same stored secret accept the same keys.
        for part in pool.parts().filter_map(|part| shared.directory.by_id(part)) {
            part.cache_keys(keys.clone());
        }
        pool.cache_keys(keys);
    }
    let mut has_new_secret = false;
    if let Some(secret) = client.secret.filter(|_| is_login) {
        for part in pool.parts().filter_map(|part| shared.directory.by_id(part)) {
            part.cache_secret(secret.clone());
        }
        has_new_secret = pool.cache_secret(secret);
    }
    let login = ClientLogin {
        pool: pool.id,
        user: pool.differing_user(&key.user),
        version,
        secret,
        parameters: settings,
        role: client.role,
    };
    let is_logged = true;
    let logged_in = LoggedIn { login, permits, output, received, is_logged, has_new_secret };
    LoginProgress::Client(Box::new(logged_in))
}

/// Counts and logs a refused login.
pub(super) fn record_refusal(
    names: Option<(&str, &str)>,
    why: &Rejection,
    stream: &Stream,
    shared: &SharedState,
) {
    let as_warning = shared.directory.config().log.pooler_errors;
    let named = |name: &'_ str| !name.is_empty();
    let (user, database) = names.unzip();
    let (user, database) = (user.filter(|it| named(it)), database.filter(|it| named(it)));
    let from = refusals::client_address(stream);
    shared.refusals.record_login(RefusedLogin { user, database, from: &from }, why, as_warning);
}

/// Admits a user to the console if permitted.
fn admit_admin(
    (user, application_name): (&str, &str),
    is_owner: bool,
    output: Vec<u8>,
    received: Vec<u8>,
    shared: &SharedState,
) -> Result<AdminClient, Rejection> {
    let config = shared.directory.config();
    let is_in = |users: &[String]| users.iter().any(|known| known == user);
    let is_admin = is_owner || is_in(&config.admin_users);
    if !is_admin && !is_in(&config.stats_users) {
        return Err(Rejection::NotAdmin(user.to_owned()));
    }
    let permits = shared.console.try_acquire().ok_or(Rejection::TooMany("console connections"))?;
    let (user, application_name) = (user.to_owned(), application_name.to_owned());
    Ok(AdminClient { user, application_name, is_admin, output, received, permits })
}
