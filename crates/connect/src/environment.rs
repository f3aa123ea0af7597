//! What a process knows beside its arguments: the `PG*` variables, the home directory and the name
//! of the operating system user.
//!
//! This is the only file that reads them. Everything else takes an [`Environment`], so a test can
//! make up its own.

use std::{
    collections::BTreeMap,
    env,
    ffi::OsString,
    fmt, fs,
    path::{Path, PathBuf},
};

use crate::{
    keyword::KEYWORDS,
    resolve_error::ResolveError,
    settings::{Origin, Settings},
};

/// A captured environment.
///
/// ```
/// use howdah_connect::{Environment, Target, Words};
///
/// let environment = Environment::empty().with_os_user("anna").with_variable("PGHOST", "db1");
/// let target = Target::resolve(&Words::default(), &environment)?;
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

/// Where servers put their sockets: Debian, Red Hat and their kin, then PostgreSQL's own default.
const SOCKET_DIRECTORIES: [&str; 2] = ["/var/run/postgresql", "/tmp"];

/// Where Debian keeps `pg_service.conf`; `PGSYSCONFDIR` says otherwise.
const SYSTEM_CONFIGURATION: &str = "/etc/postgresql-common";

/// Variables that set a parameter of the session rather than of the connection, and the parameter.
/// Source: PostgreSQL manual, "Environment Variables", at its end.
const SESSION_VARIABLES: [(&str, &str); 3] =
    [("PGDATESTYLE", "datestyle"), ("PGTZ", "timezone"), ("PGGEQO", "geqo")];

impl Environment {
    /// The environment of this process.
    ///
    /// The user's name is that of the effective user id in `/etc/passwd`; for users who are kept
    /// elsewhere it is `LOGNAME` or `USER`.
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

    /// An environment without variables, home or user, for tests. Sockets are looked for nowhere.
    pub fn empty() -> Self {
        Self {
            variables: BTreeMap::new(),
            home: None,
            os_user: None,
            socket_directories: Vec::new(),
            system_configuration: SYSTEM_CONFIGURATION.into(),
        }
    }

    /// The same with a variable set.
    #[must_use]
    pub fn with_variable(mut self, name: impl Into<String>, value: impl Into<OsString>) -> Self {
        self.variables.insert(name.into(), value.into());
        self
    }

    /// The same with another home directory.
    #[must_use]
    pub fn with_home(mut self, home: impl Into<PathBuf>) -> Self {
        self.home = Some(home.into());
        self
    }

    /// The same with another operating system user.
    #[must_use]
    pub fn with_os_user(mut self, name: impl Into<String>) -> Self {
        self.os_user = Some(name.into());
        self
    }

    /// The same with other directories in which a server's socket is looked for when no host is
    /// given.
    #[must_use]
    pub fn with_socket_directories(mut self, directories: Vec<PathBuf>) -> Self {
        self.socket_directories = directories;
        self
    }

    pub(crate) fn os_user(&self) -> Option<&str> {
        self.os_user.as_deref()
    }

    pub(crate) fn socket_directories(&self) -> &[PathBuf] {
        &self.socket_directories
    }

    /// The file of that name in the home directory.
    pub(crate) fn home_file(&self, name: &str) -> Option<PathBuf> {
        Some(self.home.as_ref()?.join(name))
    }

    /// `pg_service.conf` for all users of this machine.
    pub(crate) fn system_service_file(&self) -> PathBuf {
        let directory = self.variables.get("PGSYSCONFDIR").map(Path::new);
        directory.unwrap_or(&self.system_configuration).join("pg_service.conf")
    }

    /// The keywords that variables give a value to.
    pub(crate) fn settings(&self) -> Result<Settings, ResolveError> {
        let mut settings = Settings::default();
        for row in KEYWORDS {
            let Some(variable) = row.variable else { continue };
            if let Some(value) = self.text(variable)? {
                settings.set(row.name, value, Origin::Variable(variable))?;
            }
        }
        Ok(settings)
    }

    /// Parameters of the session that variables ask for, in the order of the manual.
    pub(crate) fn session_parameters(&self) -> Result<Vec<(String, String)>, ResolveError> {
        let mut parameters = Vec::new();
        for (variable, parameter) in SESSION_VARIABLES {
            // "default" leaves it to the server, in any case of letters.
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

/// Shows which variables there are and only the harmless rest.
impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Environment")
            .field("variables", &self.variables.keys())
            .field("home", &self.home)
            .field("os_user", &self.os_user)
            .finish_non_exhaustive()
    }
}

/// The name of the effective user in `/etc/passwd`.
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
