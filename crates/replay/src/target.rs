//! Logs sessions in to the target server.

use howdah_connect::{
    AuthFilter, ConnectTarget, Endpoint,
    tls::{self, SslNegotiation},
};
use howdah_net::Dialer;
use howdah_session::{ClientSession, Login, ScramKeys};
use howdah_traffic::Text;
use ring::rand::{SecureRandom, SystemRandom};

use crate::{
    encoding::EncodingMap, error::StartError, identity::IdentityMap, login_setting::LoginSetting,
    settings::ReplaySettings,
};

/// A server that sessions are replayed against.
#[derive(Clone, Debug)]
pub struct ReplayTarget {
    /// The connection settings of all sessions.
    pub target: ConnectTarget,
    /// The endpoint that accepted the first connection.
    pub endpoint: Endpoint,
    /// Whether the first connection uses TLS; all other connections then do the same.
    pub is_encrypted: bool,
}

/// A target as workers use it: how to open connections and log in.
#[derive(Debug)]
pub(crate) struct SessionTarget {
    pub(crate) dialer: Dialer,
    pub(crate) logins: Logins,
}

impl SessionTarget {
    pub(crate) fn new(
        target: &ReplayTarget,
        settings: &ReplaySettings,
    ) -> Result<Self, StartError> {
        let ReplayTarget { target, endpoint, is_encrypted } = target;
        Ok(Self {
            dialer: dialer(target, endpoint, *is_encrypted)?,
            logins: Logins::new(target.clone(), endpoint.clone(), settings),
        })
    }
}

/// Builds the login of each session.
#[derive(Debug)]
pub(crate) struct Logins {
    target: ConnectTarget,
    endpoint: Endpoint,
    identities: IdentityMap,
    encodings: EncodingMap,
    login_settings: Vec<LoginSetting>,
    is_read_only: bool,
    /// Whether the rows of results are read, not only counted.
    pub(crate) reads_results: bool,
    /// Derived SCRAM keys, cached because a role logs in once per session with the same keys.
    scram_keys: ScramKeys,
    random: SystemRandom,
}

impl Logins {
    pub(crate) fn new(
        target: ConnectTarget,
        endpoint: Endpoint,
        settings: &ReplaySettings,
    ) -> Self {
        Self {
            target,
            endpoint,
            identities: settings.identities.clone(),
            encodings: settings.encodings.clone(),
            login_settings: settings.login_settings.clone(),
            is_read_only: settings.is_read_only,
            reads_results: settings.checks_results || settings.maps_ids,
            scram_keys: ScramKeys::default(),
            random: SystemRandom::new(),
        }
    }

    /// Starts a login on a connection whose server presented `certificate`. `channel_binding` and
    /// `require_auth` apply as they did to the first connection.
    pub(crate) fn start_login(
        &self,
        mut login: Login,
        certificate: Option<&[u8]>,
    ) -> (ClientSession, AuthFilter) {
        login.channel_binding = self.target.tls().binding(certificate);
        let guard = self.target.auth_policy(&login);
        let mut nonce = [0; 18];
        // If the random source fails, a SCRAM login fails by itself.
        let _ = self.random.fill(&mut nonce);
        let mut client = ClientSession::new(login, nonce);
        client.share_scram_keys(self.scram_keys.clone());
        (client, AuthFilter::new(guard))
    }

    /// Builds the login of a session that was captured with these names. The client encoding is
    /// that of the captured text unless the target sets another. The parameters in `settings`
    /// (names and values) are added next, then those configured for the replay; later ones replace
    /// earlier ones of the same name.
    pub(crate) fn login(
        &self,
        [user, database, application]: [&str; 3],
        settings: &[(Text, Text)],
    ) -> Login {
        let mut target = self.target.clone();
        let captured_user = user;
        let user = self.identities.user(captured_user);
        if !user.is_empty() {
            target = target.with_user(user);
        }
        let captured_database = database;
        let database = self.identities.database(captured_database);
        if !database.is_empty() {
            target = target.with_database(database);
        }
        if !application.is_empty() {
            target = target.with_application_name(application);
        }
        let mut login = target.login(&self.endpoint);
        let is_chosen = login.parameters.iter().any(|(name, _)| name == CLIENT_ENCODING);
        if let Some(encoding) = self.encodings.for_database(captured_database, target.database())
            && !is_chosen
        {
            login.parameters.push((CLIENT_ENCODING.to_owned(), encoding.to_owned()));
        }
        for (name, value) in settings {
            // A captured name or value always fits into a login, so skip any other.
            let (Some(name), Some(value)) = (name.to_str(), value.to_str()) else { continue };
            if is_chosen && name.eq_ignore_ascii_case(CLIENT_ENCODING) {
                continue;
            }
            set_parameter(&mut login, name, value);
        }
        for setting in &self.login_settings {
            if setting.matches(captured_user, captured_database) {
                set_parameter(&mut login, &setting.name, &setting.value);
            }
        }
        if self.is_read_only {
            // Added last. A parameter takes precedence over the same setting within `options`.
            set_parameter(&mut login, READ_ONLY, "on");
        }
        login
    }
}

fn set_parameter(login: &mut Login, name: &str, value: &str) {
    login.parameters.retain(|(known, _)| !known.eq_ignore_ascii_case(name));
    login.parameters.push((name.to_owned(), value.to_owned()));
}

/// The setting that makes a server refuse writes. `RESET ALL` and `DISCARD ALL` return to the value
/// of a startup parameter.
const READ_ONLY: &str = "default_transaction_read_only";

/// The setting for the encoding that a client uses.
pub(crate) const CLIENT_ENCODING: &str = "client_encoding";

/// Creates a dialer for `endpoint`, with TLS if the first connection had it.
pub(crate) fn dialer(
    target: &ConnectTarget,
    endpoint: &Endpoint,
    encrypted: bool,
) -> Result<Dialer, StartError> {
    let dialer = match endpoint {
        Endpoint::Unix { path } => return Ok(Dialer::unix(path)),
        Endpoint::Tcp { host, hostaddr, port } => {
            let address = hostaddr.map_or_else(|| host.clone(), |address| address.to_string());
            Dialer::tcp(&address, *port)?
        }
    };
    if !encrypted {
        return Ok(dialer);
    }
    let config = tls::client_config(target.tls())?;
    let name = tls::server_name(endpoint)?;
    Ok(dialer.with_tls(config, name, target.tls().negotiation == SslNegotiation::Direct))
}
