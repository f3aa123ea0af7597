//! A settings file of either form into [`Config`], and what is wrong with it.

use std::{
    fmt, fs,
    io::{self, Read as _},
    path::{Path, PathBuf},
};

use howdah_connect::SslMode;

use super::{
    AuthMethod, CONSOLE_DATABASES, Config, pgbouncer, toml::Document, unused::unused, userlist,
};

/// Longest settings file or user list: a million users.
pub(super) const FILE_BYTES_MAX: u64 = 256 << 20;

/// What a file says.
#[derive(Clone, Debug)]
pub struct Read {
    /// The settings, checked, with the users of the user list.
    pub config: Config,
    /// Which form the file has.
    pub form: Form,
    /// What is understood and not acted upon.
    pub warnings: Vec<Remark>,
    places: Places,
}

impl Read {
    /// A remark about a key of the settings, with the line it stands on.
    pub fn remark(&self, key: &str, text: impl Into<String>) -> Remark {
        self.places.remark(key, text.into())
    }
}

/// Where keys stand.
#[derive(Clone, Debug)]
pub(super) struct Places {
    /// The file that the settings were read from.
    file: PathBuf,
    /// Paths below `[pool]`, with file and line.
    keys: Vec<(String, PathBuf, usize)>,
}

impl Places {
    pub(super) fn new(file: &Path, keys: Vec<(String, PathBuf, usize)>) -> Self {
        Self { file: file.to_owned(), keys }
    }

    /// A remark about a key; on the line of what it is in if it does not stand there itself.
    fn remark(&self, key: &str, text: String) -> Remark {
        let around = self.keys.iter().filter(|(path, ..)| is_within(key, path));
        let nearest = around.max_by_key(|(path, ..)| path.len());
        let (file, line) = match nearest {
            Some((_, file, line)) => (file, *line),
            None => (&self.file, 0),
        };
        Remark::new(file, line, key, text)
    }
}

/// Whether a key is another, or stands below it.
fn is_within(key: &str, other: &str) -> bool {
    key.strip_prefix(other).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

/// Whether a rule about `key` may be broken only because `mistaken` could not be read: one is within the
/// section of the other.
fn may_follow(key: &str, mistaken: &str) -> bool {
    let section = mistaken.rsplit_once('.').map_or(mistaken, |(section, _)| section);
    is_within(key, section) || is_within(section, key)
}

/// The form of a settings file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// TOML with a `[pool]` section.
    Howdah,
    /// A `pgbouncer.ini`.
    PgBouncer,
}

impl Form {
    /// Tells the form by the first line that says something: a `pgbouncer.ini` begins with one of
    /// its four sections, or with `%include`. A `;` begins a comment there and nothing in TOML.
    pub fn of(text: &str) -> Self {
        for line in text.lines().map(str::trim) {
            match line.as_bytes().first() {
                None | Some(b'#') => {}
                Some(b';') => return Self::PgBouncer,
                Some(_) => {
                    let section = line.strip_prefix('[').and_then(|line| line.split_once(']'));
                    let is_ini = section.is_some_and(|(name, _)| pgbouncer::is_section(name));
                    return match is_ini || line.starts_with("%include") {
                        true => Self::PgBouncer,
                        false => Self::Howdah,
                    };
                }
            }
        }
        Self::Howdah
    }
}

/// Something about one place of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remark {
    /// The file.
    pub file: PathBuf,
    /// The line, from 1; 0 if it is about no line.
    pub line: usize,
    /// The key with its path; empty if it is about no key.
    pub key: String,
    /// What is wrong with it, or not done.
    pub text: String,
}

impl Remark {
    pub(super) fn new(file: &Path, line: usize, key: &str, text: impl Into<String>) -> Self {
        Self { file: file.to_owned(), line, key: key.to_owned(), text: text.into() }
    }
}

impl fmt::Display for Remark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.file.display())?;
        if self.line > 0 {
            write!(f, "{}:", self.line)?;
        }
        if !self.key.is_empty() {
            write!(f, " {}:", self.key)?;
        }
        write!(f, " {}", self.text)
    }
}

/// Everything that is wrong with a file. Never empty.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Wrong(pub Vec<Remark>);

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, remark) in self.0.iter().enumerate() {
            write!(f, "{}{remark}", if at == 0 { "" } else { "\n" })?;
        }
        Ok(())
    }
}

/// Settings that cannot be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The file cannot be read.
    #[error("cannot read {}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file says what cannot be.
    #[error(transparent)]
    Wrong(#[from] Wrong),
}

impl Config {
    /// Reads a settings file of either form, what it includes, and its user list. Everything that is wrong
    /// is found at once, but for what may only follow from something else that is.
    ///
    /// Relative names of files are looked for beside the file that names them.
    ///
    /// # Errors
    ///
    /// A file cannot be read, has keys that nobody knows, or values that cannot be.
    pub fn read(path: &Path) -> Result<Read, ReadError> {
        let text = read_text(path)
            .map_err(|source| ReadError::Unreadable { path: path.to_owned(), source })?;
        Ok(Self::read_str(&text, path)?)
    }

    /// The same for a text that was read already, as if it stood in `path`.
    ///
    /// # Errors
    ///
    /// It has keys that nobody knows, or values that cannot be, or a file it names cannot be read.
    pub fn read_str(text: &str, path: &Path) -> Result<Read, Wrong> {
        let form = Form::of(text);
        let FileContents { mut config, mut warnings, mut wrong, mistaken, places } = match form {
            Form::Howdah => FileContents::of_toml(text, path)?,
            Form::PgBouncer => pgbouncer::read(text, path)?,
        };
        config.find_files(path.parent().unwrap_or(Path::new("")));
        if let Err(mistake) = config.read_users() {
            wrong.push(match mistake {
                UsersError::Unreadable(text) => places.remark("auth.file", text),
                UsersError::Line(remark) => remark,
            });
        }
        wrong.extend(config.auth.read_rules());
        let told = unused(&config).into_iter();
        warnings.extend(told.map(|(key, text)| places.remark(&key, text.to_owned())));
        let broken = config
            .wrong()
            .filter(|(key, _)| !mistaken.iter().any(|mistaken| may_follow(key, mistaken)));
        wrong.extend(broken.map(|(key, text)| places.remark(&key, text)));
        match wrong.is_empty() {
            true => Ok(Read { config, form, warnings, places }),
            false => Err(Wrong(wrong)),
        }
    }

    /// Makes relative names of files stand beside the settings.
    pub(super) fn find_files(&mut self, folder: &Path) {
        let (client, server) = (&mut self.tls.client, &mut self.tls.server);
        let auth = &mut self.auth;
        let files = [&mut auth.file, &mut auth.hba_file, &mut auth.ident_file].into_iter();
        let files = files.chain([&mut client.certificate, &mut client.key]);
        let files = files.chain([&mut client.ca_file, &mut server.certificate]);
        let files = files.chain([&mut self.capture.path, &mut self.capture.redact_key]);
        for file in files.chain([&mut server.key, &mut server.ca_file]).flatten() {
            *file = folder.join(&*file);
        }
    }

    /// Has the secrets of the user list, and of no list read before, among those of the users; one that is
    /// written in the settings wins.
    ///
    /// # Errors
    ///
    /// What is wrong with the list.
    pub(super) fn read_users(&mut self) -> Result<(), UsersError> {
        for user in self.users.values_mut().filter(|user| user.secret_is_listed) {
            (user.secret, user.secret_is_listed) = (None, false);
        }
        let Some(file) = self.auth.file.clone() else { return Ok(()) };
        let text = read_text(&file).map_err(|error| {
            UsersError::Unreadable(format!("cannot read the user list {}: {error}", file.display()))
        })?;
        let listed = userlist::read(&text).map_err(|error| {
            UsersError::Line(Remark::new(&file, error.line, "", error.kind.to_string()))
        })?;
        for (name, secret) in listed {
            let user = self.users.entry(name).or_default();
            if user.secret.is_none() {
                (user.secret, user.secret_is_listed) = (Some(secret), true);
            }
        }
        Ok(())
    }

    /// What cannot be, whichever form it was written in: key and reason.
    pub(super) fn wrong(&self) -> impl Iterator<Item = (String, String)> {
        let mut wrong = Vec::new();
        let mut rule = |is_wrong: bool, key: &str, why: &str| {
            if is_wrong {
                wrong.push((key.to_owned(), why.to_owned()));
            }
        };
        let listen = &self.listen;
        let nowhere = listen.addresses.is_empty() && listen.unix_directories.is_empty();
        rule(nowhere, "listen", "at least one address or unix socket is needed");
        rule(listen.unix_mode > 0o777, "listen.unix-mode", "must be from 0 to 0o777");
        let instant = self.log.stats_period < std::time::Duration::from_secs(1);
        rule(instant, "log.stats-period", "must be at least a second");
        self.capture.check(&mut rule);
        rule(self.limits.clients == 0, "limits.clients", "must be at least 1");
        rule(self.databases.is_empty(), "databases", "at least one database is needed");
        for (name, leg) in [("client", &self.tls.client), ("server", &self.tls.server)] {
            let key = format!("tls.{name}");
            let halves = leg.certificate.is_some() != leg.key.is_some();
            rule(halves, &key, "certificate and key belong together: give both");
            let crossed = leg.min_version > leg.max_version;
            rule(crossed, &key, "the oldest version is newer than the newest");
        }
        self.check_client_tls(&mut rule);
        self.check_lookups(&mut rule);
        for (name, database) in &self.databases {
            let key = format!("databases.{name}");
            let taken = CONSOLE_DATABASES.contains(&name.as_str());
            rule(taken, &key, "the name is the console's");
            rule(name.is_empty() || name.contains('\0'), &key, "no database can have this name");
            for (below, why) in database.wrong_cluster() {
                rule(true, &format!("{key}.{below}"), &why);
            }
            for (below, why) in database.wrong_routing() {
                rule(true, &format!("{key}.{below}"), &why);
            }
            for (below, why) in database.wrong_mirrors(name, self) {
                rule(true, &format!("{key}.{below}"), &why);
            }
            if !database.is_routed()
                && let Err(why) = database.endpoints(self)
            {
                rule(true, &format!("{key}.hosts"), &why);
            }
            let checker = database.cluster.check_user.as_deref();
            rule(
                checker.is_some_and(|user| user.is_empty() || database.user.is_some()),
                &format!("{key}.cluster.check-user"),
                "must be a name, and only where the database has no user of its own",
            );
            let any = self.auth.method == AuthMethod::Any && database.user.is_none();
            rule(any, &key, "auth type any needs a user to be at the server");
            let forced = database.secret.is_some() && database.user.is_none();
            rule(forced, &key, "a secret without a user: whose is it?");
            rule(database.user.as_deref() == Some(""), &key, "the user has no name");
            let fixed = ["user", "database", "options", "replication"];
            let mut names = database.parameters.keys();
            let fixed = names.any(|name| fixed.contains(&name.as_str()) || name.is_empty());
            rule(fixed, &format!("{key}.parameters"), "not a setting of the server");
        }
        wrong.into_iter()
    }

    /// A database to look secrets up in has to be one.
    fn check_lookups(&self, rule: &mut impl FnMut(bool, &str, &str)) {
        let entries = self.databases.iter();
        let own = entries.map(|(name, entry)| {
            (format!("databases.{name}.auth-dbname"), entry.auth_dbname.as_deref())
        });
        let all = ("auth.dbname".to_owned(), self.auth.dbname.as_deref());
        for (key, name) in own.chain([all]) {
            let unknown = name.is_some_and(|name| self.database(name).is_none());
            rule(unknown, &key, "there is no such database in these settings");
        }
        rule(self.auth.query.is_empty(), "auth.query", "there is nothing to ask");
        rule(self.auth.user.as_deref() == Some(""), "auth.user", "the user has no name");
    }

    fn check_client_tls(&self, rule: &mut impl FnMut(bool, &str, &str)) {
        let (mode, leg) = (self.tls.client_mode(), &self.tls.client);
        let bare = mode != SslMode::Disable && leg.certificate.is_none();
        rule(bare, "tls.client", "without certificate and key there is no TLS: give both");
        let unknown = mode >= SslMode::VerifyCa && leg.ca_file.is_none();
        rule(unknown, "tls.client.ca-file", "must name whose certificates clients must have");
        let cert = self.auth.method == AuthMethod::Cert && mode < SslMode::VerifyCa;
        rule(cert, "auth.type", "cert needs tls.client.mode to be verify-ca or verify-full");
        let hba = self.auth.hba.as_ref();
        let asked = hba.is_some_and(|hba| hba.wants_certificates()) && leg.ca_file.is_none();
        rule(asked, "auth.hba-file", "asks for certificates: tls.client.ca-file says whose");
        let missing = self.auth.method == AuthMethod::Hba && self.auth.hba_file.is_none();
        rule(missing, "auth.type", "hba needs auth.hba-file");
        let unknown =
            self.tls.server_mode() >= SslMode::VerifyCa && self.tls.server.ca_file.is_none();
        rule(unknown, "tls.server.ca-file", "must name whose certificates servers must have");
    }
}

/// What is wrong with a user list.
#[derive(Debug)]
pub(super) enum UsersError {
    /// There is none to be read.
    Unreadable(String),
    /// One of its lines.
    Line(Remark),
}

/// A settings file of either form, as far as it could be read.
#[derive(Debug)]
pub(super) struct FileContents {
    pub(super) config: Config,
    pub(super) warnings: Vec<Remark>,
    pub(super) wrong: Vec<Remark>,
    /// Keys below `[pool]` that could not be read.
    pub(super) mistaken: Vec<String>,
    pub(super) places: Places,
}

impl FileContents {
    fn of_toml(text: &str, path: &Path) -> Result<Self, Wrong> {
        let Document { config, wrong, keys } = Document::read(text, path)?;
        let keys = keys.into_iter().map(|(key, line)| (key, path.to_owned(), line)).collect();
        let mistaken = wrong.iter().map(|remark| remark.key.clone()).collect();
        Ok(Self { config, warnings: Vec::new(), wrong, mistaken, places: Places::new(path, keys) })
    }
}

/// A file's text, up to [`FILE_BYTES_MAX`].
pub(super) fn read_text(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    fs::File::open(path)?.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(io::Error::other("it is longer than 256 MiB"));
    }
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        let line = 1 + error.as_bytes()[..at].iter().filter(|byte| **byte == b'\n').count();
        io::Error::other(format!("line {line} is not UTF-8"))
    })
}
