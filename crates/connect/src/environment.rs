//! [`Environment`]: the `PG*` variables, the home directory and the name of the operating system
//! user, which provide values that the command line does not give.
//!
//! Only this file reads the process environment. All other code takes an [`Environment`], so that
//! tests can construct one.

use std::{
    collections::BTreeMap,
    env,
    ffi::OsString,
    fmt, fs,
    path::{Path, PathBuf},
};

use crate::{
    keyword::KEYWORDS, resolve_error::ResolveError, setting_origin::SettingOrigin,
    settings::KeywordValues,
};

/// The environment of a process, as far as it affects connections.
///
/// ```
/// use howdah_connect::{Environment, ConnectTarget, ConnParams};
///
/// let environment = Environment::empty().with_os_user("anna").with_variable("PGHOST", "db1");
/// let target = ConnectTarget::resolve(&ConnParams::default(), &environment)?;
/// assert_eq!(target.to_string(), "postgresql://anna@db1:5432/anna");
/// # Ok::<(), howdah_connect::ResolveError>(())
/// ```
#[derive(Clone)]
pub struct Environment {
    variables: BTreeMap<String, OsString>,
    home: Option<PathBuf>,
    os_user: Option<String>,
    socket_directories: Vec<PathBuf>,
    system_configuration: PathBuf,
}

/// Directories in which servers create their sockets: for Debian, Red Hat and their derivatives,
/// then PostgreSQL's own default.
const SOCKET_DIRECTORIES: [&str; 2] = ["/var/run/postgresql", "/tmp"];

/// Debian's directory for `pg_service.conf`, which is used unless `PGSYSCONFDIR` is set.
const SYSTEM_CONFIGURATION: &str = "/etc/postgresql-common";

/// Variables that set a session parameter rather than a connection option, each with its parameter.
/// Source: PostgreSQL manual, "Environment Variables", last part.
const SESSION_VARIABLES: [(&str, &str); 3] =
    [("PGDATESTYLE", "datestyle"), ("PGTZ", "timezone"), ("PGGEQO", "geqo")];

impl Environment {
    /// Reads the environment of the current process.
    ///
    /// The user name is that of the effective user id in `/etc/passwd`; for users defined elsewhere
    /// it is `LOGNAME` or `USER`.
    pub fn from_process() -> Self {
        let variables = env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value)))
            .filter(|(name, _)| name.starts_with("PG"))
            .collect();
        let variable = |name| env::var(name).ok().filter(|value| !value.is_empty());
        let os_user = os_user().or_else(|| variable("LOGNAME")).or_else(|| variable("USER"));
        let socket_directories = SOCKET_DIRECTORIES.map(PathBuf::from).to_vec();
        Self { variables, home: env::home_dir(), os_user, socket_directories, ..Self::empty() }
    }

    /// Creates an environment without variables, home or user, for tests. It has no socket
    /// directories.
    pub fn empty() -> Self {
        Self {
            variables: BTreeMap::new(),
            home: None,
            os_user: None,
            socket_directories: Vec::new(),
            system_configuration: SYSTEM_CONFIGURATION.into(),
        }
    }

    /// Sets a variable.
    #[must_use]
    pub fn with_variable(mut self, name: impl Into<String>, value: impl Into<OsString>) -> Self {
        self.variables.insert(name.into(), value.into());
        self
    }

    /// Sets the home directory.
    #[must_use]
    pub fn with_home(mut self, home: impl Into<PathBuf>) -> Self {
        self.home = Some(home.into());
        self
    }

    /// Sets the operating system user.
    #[must_use]
    pub fn with_os_user(mut self, name: impl Into<String>) -> Self {
        self.os_user = Some(name.into());
        self
    }

    /// Sets the directories that are searched for a server's socket if no host is given.
    #[must_use]
    pub fn with_socket_directories(mut self, directories: Vec<PathBuf>) -> Self {
        self.socket_directories = directories;
        self
    }

    /// Returns the name of the operating system account, if it is known.
    pub fn os_user(&self) -> Option<&str> {
        self.os_user.as_deref()
    }

    pub(crate) fn socket_directories(&self) -> &[PathBuf] {
        &self.socket_directories
    }

    /// Returns the path of a file in the home directory; `None` if the home directory is not known.
    pub(crate) fn home_file(&self, name: &str) -> Option<PathBuf> {
        Some(self.home.as_ref()?.join(name))
    }

    /// Returns the path of the system-wide `pg_service.conf`.
    pub(crate) fn system_service_file(&self) -> PathBuf {
        let directory = self.variables.get("PGSYSCONFDIR").map(Path::new);
        directory.unwrap_or(&self.system_configuration).join("pg_service.conf")
    }

    /// Returns the keyword values given by variables.
    pub(crate) fn settings(&self) -> Result<KeywordValues, ResolveError> {
        let mut settings = KeywordValues::default();
        for row in KEYWORDS {
            let Some(variable) = row.variable else { continue };
            if let Some(value) = self.text(variable)? {
                settings.set(row.name, value, SettingOrigin::Variable(variable))?;
            }
        }
        Ok(settings)
    }

    /// Returns the session parameters given by variables, in the order of the manual.
    pub(crate) fn session_parameters(&self) -> Result<Vec<(String, String)>, ResolveError> {
        let mut parameters = Vec::new();
        for (variable, parameter) in SESSION_VARIABLES {
            // The value "default", in any case, means that the server's value applies.
            match self.text(variable)? {
                Some(value) if !value.eq_ignore_ascii_case("default") => {
                    parameters.push((parameter.to_owned(), value.to_owned()));
                }
                _ => {}
            }
        }
        Ok(parameters)
    }

    fn text(&self, variable: &'static str) -> Result<Option<&str>, ResolveError> {
        self.variables
            .get(variable)
            .map(|value| value.to_str().ok_or(ResolveError::NotUtf8 { variable }))
            .transpose()
    }
}

/// Shows the names of the variables, but not their values, which may be secret.
impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Environment")
            .field("variables", &self.variables.keys())
            .field("home", &self.home)
            .field("os_user", &self.os_user)
            .finish_non_exhaustive()
    }
}

/// Returns the name of the effective user in `/etc/passwd`.
fn os_user() -> Option<String> {
    let passwd = fs::read(Path::new("/etc/passwd")).ok()?;
    let uid = rustix::process::geteuid().as_raw().to_string();
    let line = passwd.split(|byte| *byte == b'\n').find(|line| {
        line.split(|byte| *byte == b':').nth(2).is_some_and(|field| field == uid.as_bytes())
    })?;
    let name = line.split(|byte| *byte == b':').next()?;
    let name = std::str::from_utf8(name).ok()?;
    (!name.is_empty()).then(|| name.to_owned())
}
