//! [`ConnectTarget`]: the resolved parameters of a connection: endpoints, user, database and all
//! other settings.

use std::{fmt, path::PathBuf, time::Duration};

use howdah_session::Login;
use howdah_wire::Secret;

use crate::{
    AuthPolicy, ConnParams, Endpoint, Environment, TlsSettings,
    choice::choice,
    endpoint,
    keyword::{self, KeywordEffect},
    passfile::Passwords,
    resolve_error::ResolveError,
    service,
    setting_origin::SettingOrigin,
    settings::KeywordValues,
    tls,
    warning::Warning,
};

mod uri;

/// The resolved parameters of a connection: its endpoints, user, database and all other settings.
///
/// Created once by [`ConnectTarget::resolve`]. Later, only the files of [`TlsSettings`] are read.
///
/// # Passwords
///
/// [`ConnectTarget::login`] uses the first of these passwords that exists:
///
/// 1. the password in the connection string, for any user;
/// 2. the password of the environment or the service file, for the user it was resolved with;
/// 3. the password file's entry for the user, database and endpoint;
/// 4. the password of the environment or the service file, for any other user.
///
/// `Display` writes a URI without the password. `Debug` and errors do not contain a password
/// either.
#[derive(Clone, Debug)]
pub struct ConnectTarget {
    endpoints: Vec<Endpoint>,
    user: String,
    database: String,
    application_name: String,
    options: Option<String>,
    client_encoding: Option<String>,
    session_parameters: Vec<(String, String)>,
    tls: TlsSettings,
    connect_timeout: Option<Duration>,
    session_attributes: SessionAttributes,
    balance: LoadBalance,
    keepalive: Keepalive,
    auth_policy: AuthPolicy,
    password: Option<ResolvedPassword>,
    passwords: Passwords,
    warnings: Vec<Warning>,
}

#[derive(Clone, Debug)]
struct ResolvedPassword {
    password: Secret,
    is_from_arguments: bool,
    /// The user that the parameters were resolved for; passwords may depend on it.
    user: String,
}

choice! {
    /// The required kind of session (`target_session_attrs`); hosts with another kind are skipped.
    pub enum SessionAttributes {
        /// Any session.
        Any = "any",
        /// Transactions may write by default.
        ReadWrite = "read-write",
        /// Transactions are read-only by default.
        ReadOnly = "read-only",
        /// The server is not in recovery.
        Primary = "primary",
        /// The server is in recovery.
        Standby = "standby",
        /// The server is in recovery, or any session if no server is.
        PreferStandby = "prefer-standby",
    }
}

choice! {
    /// The order in which hosts are tried (`load_balance_hosts`).
    pub enum LoadBalance {
        /// Tries the hosts in the order given.
        Disable = "disable",
        /// Tries the hosts in random order.
        Random = "random",
    }
}

/// TCP keepalive settings; `None` means the system's default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keepalive {
    /// Whether keepalive is on (`keepalives`).
    pub enabled: bool,
    /// Idle time before the first probe (`keepalives_idle`).
    pub idle: Option<Duration>,
    /// Time between probes (`keepalives_interval`).
    pub interval: Option<Duration>,
    /// Number of lost probes after which the connection is dropped (`keepalives_count`).
    pub count: Option<u32>,
    /// Maximum time that sent data may stay unacknowledged (`tcp_user_timeout`).
    pub user_timeout: Option<Duration>,
}

/// The `application_name` if none is given.
const APPLICATION_NAME: &str = "howdah";

impl ConnectTarget {
    /// Resolves parameters as libpq does. The order of precedence is arguments, service file,
    /// environment, defaults.
    ///
    /// Among the arguments, a connection string takes precedence over the other fields of
    /// [`ConnParams`], such as `host`, as in PostgreSQL's own programs. Without `host` and
    /// `hostaddr` the target is the local machine: the first of the sockets in
    /// `/var/run/postgresql` and `/tmp` that exists, else `localhost` by TCP.
    ///
    /// # Errors
    ///
    /// The parameters are invalid or incomplete, or request something that is not supported, or the
    /// service file cannot be read.
    pub fn resolve(params: &ConnParams, environment: &Environment) -> Result<Self, ResolveError> {
        let mut settings = params.settings()?;
        let variables = environment.settings()?;
        let given = |name| settings.value(name).or(variables.value(name));
        if let Some(name) = given("service") {
            let service = service::find(name, given("servicefile"), environment)?;
            settings.underlay(service);
        }
        settings.underlay(variables);
        Self::from_settings(&settings, environment)
    }

    fn from_settings(
        settings: &KeywordValues,
        environment: &Environment,
    ) -> Result<Self, ResolveError> {
        let text = |name| settings.value(name).map(str::to_owned);
        let os_user = || environment.os_user().map(str::to_owned);
        let user = text("user").or_else(os_user).ok_or(ResolveError::NoUser)?;
        let endpoints = endpoint::resolve(settings, environment)?;
        refuse_unsupported(settings, &endpoints)?;
        let tls = TlsSettings::resolve(settings, environment)?;
        let mut warnings = ignored(settings);
        let passfile = text("passfile").map(PathBuf::from);
        let (passwords, warning) = match passfile.or_else(|| environment.home_file(".pgpass")) {
            Some(path) => Passwords::read(&path),
            None => (Passwords::default(), None),
        };
        warnings.extend(warning);
        Ok(Self {
            database: text("dbname").unwrap_or_else(|| user.clone()),
            application_name: text("application_name")
                .or_else(|| text("fallback_application_name"))
                .unwrap_or_else(|| APPLICATION_NAME.to_owned()),
            options: text("options"),
            // "auto" stands for the terminal's encoding; this program always prints UTF-8.
            client_encoding: text("client_encoding").filter(|encoding| encoding != "auto"),
            session_parameters: environment.session_parameters()?,
            connect_timeout: seconds(settings, "connect_timeout")?,
            session_attributes: settings.parsed(
                "target_session_attrs",
                SessionAttributes::Any,
                SessionAttributes::EXPECTED,
                SessionAttributes::parse,
            )?,
            balance: settings.parsed(
                "load_balance_hosts",
                LoadBalance::Disable,
                LoadBalance::EXPECTED,
                LoadBalance::parse,
            )?,
            keepalive: Keepalive::resolve(settings)?,
            auth_policy: AuthPolicy::resolve(settings, &tls)?,
            password: settings.value("password").map(|password| ResolvedPassword {
                password: Secret::from(password),
                is_from_arguments: settings.origin("password") == SettingOrigin::Argument,
                user: user.clone(),
            }),
            passwords,
            warnings,
            endpoints,
            user,
            tls,
        })
    }

    /// Returns the endpoints to try, in this order; at least one.
    pub fn endpoints(&self) -> &[Endpoint] {
        &self.endpoints
    }

    /// Returns the role to log in as.
    pub fn user(&self) -> &str {
        &self.user
    }

    /// Returns the database to connect to.
    pub fn database(&self) -> &str {
        &self.database
    }

    /// Returns the `application_name` that the server will show.
    pub fn application_name(&self) -> &str {
        &self.application_name
    }

    /// Returns server settings for the session, as command-line options (`-c work_mem=1MB`).
    pub fn options(&self) -> Option<&str> {
        self.options.as_deref()
    }

    /// Returns the encryption settings.
    pub fn tls(&self) -> &TlsSettings {
        &self.tls
    }

    /// Returns the timeout for each attempt to connect, which tries one address with one encryption
    /// method; `None` means that only the system's timeout for TCP connections applies.
    pub fn connect_timeout(&self) -> Option<Duration> {
        self.connect_timeout
    }

    /// Returns the required kind of session.
    pub fn session_attributes(&self) -> SessionAttributes {
        self.session_attributes
    }

    /// Returns the order in which endpoints, and the addresses of each, are tried.
    pub fn load_balance(&self) -> LoadBalance {
        self.balance
    }

    /// Returns the TCP keepalive settings.
    pub fn keepalive(&self) -> Keepalive {
        self.keepalive
    }

    /// Returns problems that the user should know about.
    pub fn warnings(&self) -> &[Warning] {
        &self.warnings
    }

    /// Returns the same target for another user.
    #[must_use]
    pub fn with_user(&self, user: &str) -> Self {
        Self { user: user.to_owned(), ..self.clone() }
    }

    /// Returns the same target with another database.
    #[must_use]
    pub fn with_database(&self, database: &str) -> Self {
        Self { database: database.to_owned(), ..self.clone() }
    }

    /// Returns the same target with another `application_name`.
    #[must_use]
    pub fn with_application_name(&self, name: &str) -> Self {
        Self { application_name: name.to_owned(), ..self.clone() }
    }

    /// Returns the same target with `endpoint` as its only endpoint.
    #[must_use]
    pub fn with_endpoint(&self, endpoint: &Endpoint) -> Self {
        Self { endpoints: vec![endpoint.clone()], ..self.clone() }
    }

    /// Returns the same target with another timeout per attempt; see
    /// [`ConnectTarget::connect_timeout`].
    #[must_use]
    pub fn with_connect_timeout(&self, timeout: Option<Duration>) -> Self {
        Self { connect_timeout: timeout, ..self.clone() }
    }

    /// Returns the login data for `endpoint`, without channel binding, which is known only after
    /// the TLS handshake.
    pub fn login(&self, endpoint: &Endpoint) -> Login {
        let mut parameters = vec![("application_name".to_owned(), self.application_name.clone())];
        let mut add = |name: &str, value: &Option<String>| {
            parameters.extend(value.iter().map(|value| (name.to_owned(), value.clone())));
        };
        add("client_encoding", &self.client_encoding);
        add("options", &self.options);
        parameters.extend(self.session_parameters.iter().cloned());
        Login {
            user: self.user.clone(),
            database: self.database.clone(),
            password: self.password(endpoint).cloned(),
            parameters,
            channel_binding: None,
        }
    }

    /// Returns the policy for `login`, which must already contain its channel binding. Check each
    /// authentication request with it before the request is answered.
    pub fn auth_policy(&self, login: &Login) -> AuthPolicy {
        self.auth_policy.for_login(login.channel_binding.is_some())
    }

    fn password(&self, endpoint: &Endpoint) -> Option<&Secret> {
        let given = self.password.as_ref();
        let ours = given.filter(|given| given.is_from_arguments || given.user == self.user);
        ours.map(|given| &given.password)
            .or_else(|| self.passwords.find(endpoint, &self.database, &self.user))
            .or_else(|| given.map(|given| &given.password))
    }
}

impl Keepalive {
    fn resolve(settings: &KeywordValues) -> Result<Self, ResolveError> {
        let milliseconds = |number| Duration::from_millis(number);
        Ok(Self {
            enabled: settings.parsed("keepalives", true, "0 or 1", |value| {
                value.trim_ascii().parse().ok().map(|number: i64| number != 0)
            })?,
            idle: seconds(settings, "keepalives_idle")?,
            interval: seconds(settings, "keepalives_interval")?,
            count: positive(settings, "keepalives_count")?
                .map(|count| u32::try_from(count).unwrap_or(u32::MAX)),
            user_timeout: positive(settings, "tcp_user_timeout")?.map(milliseconds),
        })
    }
}

/// Returns a [`Warning::Ignored`] for each keyword that is set but has no effect.
fn ignored(settings: &KeywordValues) -> Vec<Warning> {
    let ignored = |name: &&'static str| {
        keyword::find(name).is_some_and(|row| row.effect == KeywordEffect::Ignored)
            && settings.value(name).is_some()
    };
    let warning = |keyword| Warning::Ignored { keyword, origin: settings.origin(keyword) };
    settings.names().filter(ignored).map(warning).collect()
}

/// Rejects settings for protection that this client does not support: if they were ignored, the
/// protection would silently be missing.
fn refuse_unsupported(
    settings: &KeywordValues,
    endpoints: &[Endpoint],
) -> Result<(), ResolveError> {
    let local = endpoints.iter().any(|endpoint| matches!(endpoint, Endpoint::Unix { .. }));
    if settings.value("requirepeer").is_some() && local {
        return Err(tls::unsupported(settings, "requirepeer"));
    }
    match settings.value("gssencmode") {
        None | Some("disable" | "prefer") => Ok(()),
        Some("require") => Err(tls::unsupported(settings, "gssencmode")),
        Some(other) => Err(settings.invalid("gssencmode", other, "one of: disable prefer require")),
    }
}

fn seconds(settings: &KeywordValues, name: &'static str) -> Result<Option<Duration>, ResolveError> {
    Ok(positive(settings, name)?.map(Duration::from_secs))
}

/// Parses a whole number; zero and negative values count as not set, as in libpq.
fn positive(settings: &KeywordValues, name: &'static str) -> Result<Option<u64>, ResolveError> {
    settings.parsed(name, None, "a whole number", |value| {
        let number: i32 = value.trim_ascii().parse().ok()?;
        Some(u64::try_from(number).ok().filter(|number| *number > 0))
    })
}

impl fmt::Display for ConnectTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.to_uri())
    }
}

#[cfg(test)]
mod tests;
