//! Reads a `howdah.toml` or `pgbouncer.ini` into [`Config`], and reports its errors.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use howdah_connect::SslMode;
use howdah_settings::{
    Diagnostic, KeyLocations, SettingsErrors, SettingsSection, SettingsText, is_same_or_child,
};

use super::{
    AuthMethod, CONSOLE_DATABASES, Config, exposed_files::exposed_files,
    ignored_settings::ignored_settings, keys::KEYS, pgbouncer, userlist,
};

/// Maximum size of a configuration file, user list or HBA file, in bytes: enough for a million
/// users.
pub(super) const FILE_BYTES_MAX: u64 = 256 << 20;

/// A configuration file that was read without errors.
#[derive(Clone, Debug)]
pub struct ParsedConfig {
    /// The validated settings, including the users of the user list.
    pub config: Config,
    /// The detected format of the file.
    pub format: FileFormat,
    /// Warnings, such as those about settings that are recognized but have no effect.
    pub warnings: Vec<Diagnostic>,
    /// Keys of a `pgbouncer.ini` that have an effect which differs from PgBouncer's.
    pub differences: Vec<Diagnostic>,
    locations: KeyLocations,
}

impl ParsedConfig {
    /// Creates a diagnostic for a key, with the file and line of the key or of its nearest parent
    /// that is set.
    pub fn diagnostic(&self, key: &str, text: impl Into<String>) -> Diagnostic {
        self.locations.diagnostic(key, text)
    }
}

/// Whether a violated rule about `key` may merely follow from the invalid key `invalid`: `key` is
/// in the section of `invalid`, or contains that section.
fn may_be_caused_by(key: &str, invalid: &str) -> bool {
    let section = invalid.rsplit_once('.').map_or(invalid, |(section, _)| section);
    is_same_or_child(key, section) || is_same_or_child(section, key)
}

/// The format of a configuration file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileFormat {
    /// TOML with a `[pool]` section.
    Howdah,
    /// A `pgbouncer.ini`.
    PgBouncer,
}

impl FileFormat {
    /// Detects the format by the first line that is neither empty nor a `#` comment. In a
    /// `pgbouncer.ini` this is one of its four sections, `%include` or a `;` comment; none of them
    /// is valid in a `howdah.toml`.
    pub fn detect(text: &str) -> Self {
        for line in text.lines().map(str::trim) {
            match line.as_bytes().first() {
                None | Some(b'#') => {}
                Some(b';') => return Self::PgBouncer,
                Some(_) => {
                    let section = line.strip_prefix('[').and_then(|line| line.split_once(']'));
                    let is_ini = section.is_some_and(|(name, _)| pgbouncer::is_section(name));
                    return if is_ini || line.starts_with("%include") {
                        Self::PgBouncer
                    } else {
                        Self::Howdah
                    };
                }
            }
        }
        Self::Howdah
    }
}

/// The reason why a configuration file could not be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigReadError {
    /// The file cannot be read.
    #[error("cannot read {}", path.display())]
    Unreadable {
        /// Path of the file.
        path: PathBuf,
        /// The error of opening or reading the file.
        source: io::Error,
    },
    /// The file was read, but it has errors such as unknown keys or invalid values, or a file that
    /// it names has errors or cannot be read.
    #[error(transparent)]
    Invalid(#[from] SettingsErrors),
}

impl Config {
    /// Reads a configuration file of either format, its included files and its user list. All
    /// errors are reported at once, except those that may be consequences of another error.
    ///
    /// Relative file names in a `howdah.toml` are resolved against the folder of the file that
    /// contains them; those in a `pgbouncer.ini` against the working directory, as by PgBouncer.
    ///
    /// # Errors
    ///
    /// A file cannot be read or has unknown keys or invalid values, or the settings violate a rule.
    pub fn read(path: &Path) -> Result<ParsedConfig, ConfigReadError> {
        let text = read_text(path)
            .map_err(|source| ConfigReadError::Unreadable { path: path.to_owned(), source })?;
        Ok(Self::read_str(&text, path)?)
    }

    /// Does the same as [`Config::read`] for a text that has already been read from `path`.
    ///
    /// # Errors
    ///
    /// The text has unknown keys or invalid values, the settings violate a rule, or a file that the
    /// text names has errors or cannot be read.
    pub fn read_str(text: &str, path: &Path) -> Result<ParsedConfig, SettingsErrors> {
        let format = FileFormat::detect(text);
        let FileContents {
            mut config,
            mut warnings,
            differences,
            mut errors,
            invalid_keys,
            locations,
        } = match format {
            FileFormat::Howdah => FileContents::from_toml(text, path)?,
            FileFormat::PgBouncer => pgbouncer::read(text, path)?,
        };
        if format == FileFormat::Howdah {
            config.resolve_paths(path.parent().unwrap_or(Path::new("")));
        }
        if let Err(error) = config.load_user_list() {
            errors.push(match error {
                LoadUsersError::Unreadable(text) => locations.diagnostic("auth.file", text),
                LoadUsersError::Line(diagnostic) => diagnostic,
            });
        }
        errors.extend(config.auth.load_rules());
        let ignored = ignored_settings(&config).into_iter();
        warnings.extend(ignored.map(|(key, text)| locations.diagnostic(&key, text)));
        warnings.extend(exposed_files(&config, path));
        let violations = config
            .rule_violations()
            .filter(|(key, _)| !invalid_keys.iter().any(|invalid| may_be_caused_by(key, invalid)));
        errors.extend(violations.map(|(key, text)| locations.diagnostic(&key, text)));
        if errors.is_empty() {
            Ok(ParsedConfig { config, format, warnings, differences, locations })
        } else {
            Err(SettingsErrors(errors))
        }
    }

    /// Resolves relative file names against the folder of the configuration file.
    pub(super) fn resolve_paths(&mut self, folder: &Path) {
        for key in KEYS {
            if let Some(file) = key.file_mut(self) {
                *file = folder.join(&*file);
            }
        }
        for file in self.users.values_mut().filter_map(|user| user.secret_file.as_mut()) {
            *file = folder.join(&*file);
        }
    }

    /// Loads the secrets of the user list into `users`, replacing those that were loaded earlier. A
    /// secret in the configuration file takes precedence.
    ///
    /// # Errors
    ///
    /// The list cannot be read or has an invalid line.
    pub(super) fn load_user_list(&mut self) -> Result<(), LoadUsersError> {
        for user in self.users.values_mut().filter(|user| user.secret_is_listed) {
            (user.secret, user.secret_is_listed) = (None, false);
        }
        let Some(file) = self.auth.file.clone() else { return Ok(()) };
        let text = read_text(&file).map_err(|error| {
            LoadUsersError::Unreadable(format!(
                "cannot read the user list {}: {error}",
                file.display()
            ))
        })?;
        let listed = userlist::read(&text).map_err(|error| {
            LoadUsersError::Line(Diagnostic::new(&file, error.line, "", error.kind.to_string()))
        })?;
        for (name, secret) in listed {
            let user = self.users.entry(name).or_default();
            if user.secret.is_none() {
                (user.secret, user.secret_is_listed) = (Some(secret), true);
            }
        }
        Ok(())
    }

    /// Returns the key and the reason of each rule that the settings violate. The rules are the
    /// same for both file formats.
    pub(super) fn rule_violations(&self) -> impl Iterator<Item = (String, String)> {
        let mut violations = Vec::new();
        let mut rule = |is_violated: bool, key: &str, why: &str| {
            if is_violated {
                violations.push((key.to_owned(), why.to_owned()));
            }
        };
        let listen = &self.listen;
        let no_socket = listen.addresses.is_empty() && listen.unix_directories.is_empty();
        rule(no_socket, "listen", "at least one address or unix socket is needed");
        rule(listen.unix_mode > 0o777, "listen.unix-mode", "must be from 0 to 0o777");
        let too_short = self.log.stats_period < std::time::Duration::from_secs(1);
        rule(too_short, "log.stats-period", "must be at least a second");
        let unknown = self.log.facility().is_none();
        rule(
            unknown,
            "log.syslog-facility",
            "no such facility: daemon and local0 to local7 are some",
        );
        if let Some(why) = self.peers.error(listen.port) {
            rule(true, "peers", &why);
        }
        self.capture.check(&mut rule);
        rule(self.limits.clients == 0, "limits.clients", "must be at least 1");
        rule(self.databases.is_empty(), "databases", "at least one database is needed");
        for (name, side) in [("client", &self.tls.client), ("server", &self.tls.server)] {
            let key = format!("tls.{name}");
            let only_one = side.certificate.is_some() != side.key.is_some();
            rule(only_one, &key, "certificate and key belong together: give both");
            let is_empty_range = side.min_version > side.max_version;
            rule(is_empty_range, &key, "min-version is newer than max-version");
        }
        self.check_client_tls(&mut rule);
        self.check_auth_queries(&mut rule);
        for (name, user) in &self.users {
            for (below, why) in user.errors() {
                rule(true, &format!("users.{name}.{below}"), why);
            }
        }
        for (name, database) in &self.databases {
            let key = format!("databases.{name}");
            let is_reserved = CONSOLE_DATABASES.contains(&name.as_str());
            rule(is_reserved, &key, "the name is reserved for the admin console");
            rule(name.is_empty() || name.contains('\0'), &key, "not a valid database name");
            for (below, why) in database.cluster_errors() {
                rule(true, &format!("{key}.{below}"), &why);
            }
            for (below, why) in database.routing_errors() {
                rule(true, &format!("{key}.{below}"), &why);
            }
            for (below, why) in database.mirror_errors(name, self) {
                rule(true, &format!("{key}.{below}"), &why);
            }
            if !database.is_routed()
                && let Err(why) = database.endpoints(self)
            {
                rule(true, &format!("{key}.hosts"), &why);
            }
            let directory = database.local_socket.as_deref();
            rule(
                directory.is_some_and(|it| !it.starts_with(['/', '@'])),
                &format!("{key}.local-socket"),
                "must be a directory that starts with / (or an abstract name that starts with @)",
            );
            let checker = database.cluster.check_user.as_deref();
            rule(
                checker.is_some_and(|user| user.is_empty() || database.user.is_some()),
                &format!("{key}.cluster.check-user"),
                "must be a user name, and is only valid for databases without `user`",
            );
            let no_user = self.auth.method == AuthMethod::Any && database.user.is_none();
            rule(no_user, &key, "auth type any needs `user`, the role at the server");
            let lone_secret = database.secret.is_some() && database.user.is_none();
            rule(lone_secret, &key, "a secret needs a user");
            rule(database.user.as_deref() == Some(""), &key, "the user name is empty");
            let reserved = ["user", "database", "options", "replication"];
            let key = format!("{key}.parameters");
            for name in database.parameters.keys() {
                rule(name.is_empty(), &key, "a name is empty");
                let is_reserved = reserved.contains(&name.as_str());
                rule(is_reserved, &key, &format!("the name {name:?} is reserved"));
            }
        }
        violations.into_iter()
    }

    /// Checks that each `auth-dbname` and `auth.dbname` exists in the configuration, and that
    /// neither `auth.query` nor `auth.user` is empty.
    fn check_auth_queries(&self, rule: &mut impl FnMut(bool, &str, &str)) {
        let entries = self.databases.iter();
        let own = entries.map(|(name, entry)| {
            (format!("databases.{name}.auth-dbname"), entry.auth_dbname.as_deref())
        });
        let all = ("auth.dbname".to_owned(), self.auth.dbname.as_deref());
        for (key, name) in own.chain([all]) {
            let unknown = name.is_some_and(|name| self.database(name).is_none());
            rule(unknown, &key, "there is no such database in the configuration");
            let is_console = name.is_some_and(|name| CONSOLE_DATABASES.contains(&name));
            let why = "is the admin console, which has no server to query";
            rule(is_console && !unknown, &key, why);
        }
        rule(self.auth.query.is_empty(), "auth.query", "must not be empty");
        rule(self.auth.user.as_deref() == Some(""), "auth.user", "the user name is empty");
    }

    fn check_client_tls(&self, rule: &mut impl FnMut(bool, &str, &str)) {
        let (mode, client) = (self.tls.client_mode(), &self.tls.client);
        let no_certificate = mode != SslMode::Disable && client.certificate.is_none();
        rule(no_certificate, "tls.client", "TLS needs a certificate and a key: give both");
        let no_ca = mode >= SslMode::VerifyCa && client.ca_file.is_none();
        rule(no_ca, "tls.client.ca-file", "is needed to verify certificates of clients");
        let cert = self.auth.method == AuthMethod::Cert && mode < SslMode::VerifyCa;
        rule(cert, "auth.type", "cert needs tls.client.mode to be verify-ca or verify-full");
        let hba = self.auth.hba.as_ref();
        let no_ca = hba.is_some_and(|hba| hba.needs_certificates()) && client.ca_file.is_none();
        rule(no_ca, "auth.hba-file", "requires certificates, which need tls.client.ca-file");
        let missing = self.auth.method == AuthMethod::Hba && self.auth.hba_file.is_none();
        rule(missing, "auth.type", "hba needs auth.hba-file");
        let no_ca =
            self.tls.server_mode() >= SslMode::VerifyCa && self.tls.server.ca_file.is_none();
        rule(no_ca, "tls.server.ca-file", "is needed to verify certificates of servers");
    }
}

/// The reason why the user list could not be loaded.
#[derive(Debug)]
pub(super) enum LoadUsersError {
    /// The file cannot be read.
    Unreadable(String),
    /// A line is invalid.
    Line(Diagnostic),
}

/// A configuration file of either format as parsed, before the user list is loaded and the rules
/// are checked. The settings lack keys that could not be read.
#[derive(Debug)]
pub(super) struct FileContents {
    pub(super) config: Config,
    pub(super) warnings: Vec<Diagnostic>,
    pub(super) differences: Vec<Diagnostic>,
    pub(super) errors: Vec<Diagnostic>,
    /// Keys below `[pool]` that could not be read.
    pub(super) invalid_keys: Vec<String>,
    pub(super) locations: KeyLocations,
}

impl FileContents {
    fn from_toml(text: &str, path: &Path) -> Result<Self, SettingsErrors> {
        let text = SettingsText::new(text, path);
        let SettingsSection { settings, errors, locations } =
            text.section("pool", Some("`howdah pool --example` has all of them"))?;
        let invalid_keys = errors.iter().map(|error| error.key.clone()).collect();
        Ok(Self {
            config: settings,
            warnings: Vec::new(),
            differences: Vec::new(),
            errors,
            invalid_keys,
            locations,
        })
    }
}

/// Reads a file of at most [`FILE_BYTES_MAX`] as text.
pub(super) fn read_text(path: &Path) -> io::Result<String> {
    howdah_settings::read_text(fs::File::open(path)?, FILE_BYTES_MAX)
}
