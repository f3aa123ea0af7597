//! [`Target`]: connection words that have been resolved to places, a user, a database and all the
//! rest that a connection needs.

use std::{fmt, path::PathBuf, time::Duration};

use howdah_session::Login;
use howdah_wire::Secret;

use crate::{
    AuthPolicy, Endpoint, Environment, TlsSettings, Words,
    choice::choice,
    endpoint,
    keyword::{self, Effect},
    passfile::Passwords,
    resolve_error::ResolveError,
    service,
    settings::{Origin, Settings},
    tls,
};

mod uri;

/// Where to connect, as whom and how.
///
/// It is made by [`Target::resolve`], once; nothing of it reads the environment or a file later,
/// except the files of [`TlsSettings`].
///
/// # Passwords
///
/// [`Target::login`] takes the first of these that there is:
///
/// 1. the password typed in the connection string, for whatever user;
/// 2. the password of the environment or the service file, for the user it was resolved with;
/// 3. the password file's, for the user, database and endpoint at hand;
/// 4. the password of the environment or the service file, for any other user.
///
/// `Display` is a URI without password; neither it nor `Debug` nor any error shows one.
#[derive(Clone, Debug)]
pub struct Target {
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
    guard: AuthPolicy,
    password: Option<GivenPassword>,
    passwords: Passwords,
    warnings: Vec<Warning>,
}

#[derive(Clone, Debug)]
struct GivenPassword {
    password: Secret,
    typed: bool,
    /// The user it was given with.
    user: String,
}

choice! {
    /// Which kind of session is wanted of several hosts (`target_session_attrs`).
    pub enum SessionAttributes {
        /// Any.
        Any = "any",
        /// One where transactions may write by default.
        ReadWrite = "read-write",
        /// One where they may not.
        ReadOnly = "read-only",
        /// One on a server that is not in recovery.
        Primary = "primary",
        /// One on a server in recovery.
        Standby = "standby",
        /// One on a server in recovery, or any if there is none.
        PreferStandby = "prefer-standby",
    }
}

choice! {
    /// In which order hosts are tried (`load_balance_hosts`).
    pub enum LoadBalance {
        /// As listed.
        Disable = "disable",
        /// In random order.
        Random = "random",
    }
}

/// How the kernel watches over a quiet TCP connection. `None` leaves it to the system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keepalive {
    /// Whether at all (`keepalives`).
    pub enabled: bool,
    /// Quiet time before the first probe (`keepalives_idle`).
    pub idle: Option<Duration>,
    /// Time between probes (`keepalives_interval`).
    pub interval: Option<Duration>,
    /// Lost probes that end a connection (`keepalives_count`).
    pub count: Option<u32>,
    /// How long sent data may stay unacknowledged (`tcp_user_timeout`).
    pub user_timeout: Option<Duration>,
}

/// Something about the connection words that is worth a line to the person who wrote them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Warning {
    /// libpq acts on this keyword, we do not.
    #[error("connection keyword {keyword} ({origin}) is ignored")]
    Ignored {
        /// The keyword.
        keyword: &'static str,
        /// Who gave it.
        origin: Origin,
    },
    /// Others than its owner may read the password file; it was not read.
    #[error(
        "password file {} was ignored: mode {mode:04o} lets others read it, it must be 0600",
        .path.display()
    )]
    PasswordFilePermissions {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// The password file is a directory or a device; it was not read.
    #[error("password file {} was ignored: it is not a plain file", .path.display())]
    PasswordFileNotPlain {
        /// The file.
        path: PathBuf,
    },
    /// The password file could not be read.
    #[error("password file {} was ignored: {reason}", .path.display())]
    PasswordFileUnreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        reason: String,
    },
}

/// `application_name` where none is given.
const APPLICATION_NAME: &str = "howdah";

impl Target {
    /// Resolves words as libpq does: what was typed wins over the service file, which wins over the
    /// environment, which wins over the defaults.
    ///
    /// Among the words typed, a connection string wins over [`Words::host`] and its siblings, as in
    /// PostgreSQL's own programs. Without a host the target is this machine: the socket in
    /// `/var/run/postgresql` or `/tmp`, whichever is there, else `localhost` by TCP.
    ///
    /// # Errors
    ///
    /// The words do not say where to connect, or ask for something that is not possible.
    pub fn resolve(words: &Words, environment: &Environment) -> Result<Self, ResolveError> {
        let mut settings = words.settings()?;
        let variables = environment.settings()?;
        let given = |name| settings.value(name).or(variables.value(name));
        if let Some(name) = given("service") {
            let service = service::find(name, given("servicefile"), environment)?;
            settings.underlay(service);
        }
        settings.underlay(variables);
        Self::from_settings(&settings, environment)
    }

    fn from_settings(settings: &Settings, environment: &Environment) -> Result<Self, ResolveError> {
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
            // "auto" is the encoding of the terminal; what we print is UTF-8 anyway.
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
            guard: AuthPolicy::resolve(settings, &tls)?,
            password: settings.value("password").map(|password| GivenPassword {
                password: Secret::from(password),
                typed: settings.origin("password") == Origin::Typed,
                user: user.clone(),
            }),
            passwords,
            warnings,
            endpoints,
            user,
            tls,
        })
    }

    /// The places to try, in this order; at least one.
    pub fn endpoints(&self) -> &[Endpoint] {
        &self.endpoints
    }

    /// The role to log in as.
    pub fn user(&self) -> &str {
        &self.user
    }

    /// The database to connect to.
    pub fn database(&self) -> &str {
        &self.database
    }

    /// What the server shows as `application_name`.
    pub fn application_name(&self) -> &str {
        &self.application_name
    }

    /// Server settings for the session, as a command line (`-c work_mem=1MB`).
    pub fn options(&self) -> Option<&str> {
        self.options.as_deref()
    }

    /// What was asked for about encryption.
    pub fn tls(&self) -> &TlsSettings {
        &self.tls
    }

    /// How long to try each address of each endpoint; `None` is for as long as the system does.
    pub fn connect_timeout(&self) -> Option<Duration> {
        self.connect_timeout
    }

    /// Which kind of session is wanted.
    pub fn session_attributes(&self) -> SessionAttributes {
        self.session_attributes
    }

    /// In which order endpoints, and the addresses of each, are to be tried.
    pub fn load_balance(&self) -> LoadBalance {
        self.balance
    }

    /// How the kernel is to watch over a quiet connection.
    pub fn keepalive(&self) -> Keepalive {
        self.keepalive
    }

    /// What is worth telling the person who wrote the words.
    pub fn warnings(&self) -> &[Warning] {
        &self.warnings
    }

    /// The same target for another user.
    #[must_use]
    pub fn with_user(&self, user: &str) -> Self {
        Self { user: user.to_owned(), ..self.clone() }
    }

    /// The same target with another database.
    #[must_use]
    pub fn with_database(&self, database: &str) -> Self {
        Self { database: database.to_owned(), ..self.clone() }
    }

    /// The same target with another `application_name`.
    #[must_use]
    pub fn with_application_name(&self, name: &str) -> Self {
        Self { application_name: name.to_owned(), ..self.clone() }
    }

    /// The same target with another limit on each attempt; `None` is for as long as the system does.
    #[must_use]
    pub fn with_connect_timeout(&self, timeout: Option<Duration>) -> Self {
        Self { connect_timeout: timeout, ..self.clone() }
    }

    /// What to log in with at `endpoint`, without channel binding: that is known only after the TLS
    /// handshake.
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

    /// A guard over `login`, complete with its channel binding, to be shown each authentication
    /// request before it is answered.
    pub fn login_guard(&self, login: &Login) -> AuthPolicy {
        self.guard.for_login(login.channel_binding.is_some())
    }

    fn password(&self, endpoint: &Endpoint) -> Option<&Secret> {
        let given = self.password.as_ref();
        let ours = given.filter(|given| given.typed || given.user == self.user);
        ours.map(|given| &given.password)
            .or_else(|| self.passwords.find(endpoint, &self.database, &self.user))
            .or_else(|| given.map(|given| &given.password))
    }
}

impl Keepalive {
    fn resolve(settings: &Settings) -> Result<Self, ResolveError> {
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

/// Shows [`Warning::Ignored`] for each keyword that was given and is not acted on.
fn ignored(settings: &Settings) -> Vec<Warning> {
    let ignored = |name: &&'static str| {
        keyword::find(name).is_some_and(|row| row.effect == Effect::Ignored)
            && settings.value(name).is_some()
    };
    let warning = |keyword| Warning::Ignored { keyword, origin: settings.origin(keyword) };
    settings.names().filter(ignored).map(warning).collect()
}

/// Refuses values that ask for a protection which would silently be missing.
fn refuse_unsupported(settings: &Settings, endpoints: &[Endpoint]) -> Result<(), ResolveError> {
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

fn seconds(settings: &Settings, name: &'static str) -> Result<Option<Duration>, ResolveError> {
    Ok(positive(settings, name)?.map(Duration::from_secs))
}

/// A whole number; zero and less stand for none, as in libpq.
fn positive(settings: &Settings, name: &'static str) -> Result<Option<u64>, ResolveError> {
    settings.parsed(name, None, "a whole number", |value| {
        let number: i32 = value.trim_ascii().parse().ok()?;
        Some(u64::try_from(number).ok().filter(|number| *number > 0))
    })
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.to_uri())
    }
}

#[cfg(test)]
mod tests;
