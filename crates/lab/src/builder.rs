//! How a cluster is asked for.

use std::path::{Path, PathBuf};

use crate::{
    access::Access,
    account::Account,
    cluster::{Cluster, Parts},
    error::{Error, FileContext as _},
    files::{Take, copy_tree},
    janitor::Reaper,
    labs::Lab,
    places::{self, Holds, Places},
    search::Search,
    settings::Settings,
    standby::{self, Upstream},
    template::{self, Password},
};

/// What a cluster is to be like. Everything has a default.
#[derive(Clone, Debug)]
#[must_use = "it does nothing until it is started"]
pub struct Builder {
    name: String,
    search: Search,
    settings: Settings,
    dir: Option<PathBuf>,
    keep: bool,
    port: Option<u16>,
    access: Access,
    password: Option<String>,
    own_system: bool,
    upstream: Option<Upstream>,
    also_remove: Vec<PathBuf>,
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            name: "lab".to_owned(),
            search: Search::new(),
            settings: Settings::default(),
            dir: None,
            keep: false,
            port: None,
            access: Access::default(),
            password: None,
            own_system: false,
            upstream: None,
            also_remove: Vec::new(),
        }
    }
}

impl Builder {
    /// A cluster of the newest PostgreSQL there is. It is reached by its unix socket only, without a
    /// password, by the caller, by root and by the server's own account: its directory is closed to
    /// all others. See [`Builder::tcp`] and, for tests, [`Cluster::builder`].
    pub fn new() -> Self {
        Self::default()
    }

    /// Its name, `lab` by default: 1 to 40 of `a-z`, `0-9`, `-` and `_`, a letter first. It becomes
    /// the setting `cluster_name`, and a standby's `application_name`.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// The major of PostgreSQL: one of [`crate::MAJORS`].
    pub fn major(mut self, major: u32) -> Self {
        self.search = self.search.major(major);
        self
    }

    /// The directory of the server's programs, instead of a search for them.
    pub fn bin_dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.search = self.search.dir(dir);
        self
    }

    /// How binaries are searched for; replaces what [`Builder::major`] and [`Builder::bin_dir`]
    /// have said.
    pub fn search(mut self, search: Search) -> Self {
        self.search = search;
        self
    }

    /// Adds a line to the server's configuration. A later one of the same name wins. Where the
    /// server listens is not a setting: `port` and its like are refused.
    ///
    /// Beside PostgreSQL's defaults stand `fsync = off`, `full_page_writes = off`,
    /// `shared_buffers = 32MB`, `wal_keep_size = 512MB`, `lc_messages = C`,
    /// `unix_socket_permissions = 0700`. `listen_addresses` needs [`Builder::tcp`].
    pub fn setting(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.settings.push(name, value);
        self
    }

    /// The directory for the cluster's files, made if it is missing. Without it: a new one below
    /// the system's temporary directory.
    ///
    /// A directory in which a lab was kept is started as it is, [`Builder::setting`]s added;
    /// its files stay. One that holds anything else is refused.
    pub fn dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.dir = Some(dir.into());
        self
    }

    /// Leaves the files of a [`Builder::dir`] when the cluster ends. Without a directory of your
    /// choice it has no effect.
    pub fn keep(mut self, keep: bool) -> Self {
        self.keep = keep;
        self
    }

    /// Listens on 127.0.0.1, too, where clients have to give a password (SCRAM). It is random, and in a file that only the caller can read: the URI names it by `passfile`.
    /// The unix socket asks for no password.
    pub fn tcp(mut self) -> Self {
        self.access = Access::TcpWithPassword;
        self
    }

    /// Listens on 127.0.0.1, too, and lets everybody in without a password, as superuser.
    ///
    /// **For tests only.** As long as the server runs, each user of the host can run programs as the
    /// server's account: that is [`crate::ACCOUNT_NAME`] for root, and the caller's own account for
    /// others. [`Cluster::builder`] begins with it.
    pub fn trusted_tcp(mut self) -> Self {
        self.access = Access::TcpTrusted;
        self
    }

    /// The port, instead of a free one: of 127.0.0.1, and the number in the socket's name.
    pub fn port(mut self, port: u16) -> Self {
        self.port = Some(port);
        self
    }

    /// The superuser's password: all connections have to give it (SCRAM), also those by the unix
    /// socket. Such a cluster takes a second longer to make.
    pub fn password(mut self, password: impl Into<String>) -> Self {
        self.password = Some(password.into());
        self
    }

    /// Whether it has a system identifier of its own. Without that (and without a password) it is a
    /// copy of what initdb made once, and shares that of other clusters of the machine. Such a
    /// cluster takes a second longer to make.
    pub fn own_system(mut self, own_system: bool) -> Self {
        self.own_system = own_system;
        self
    }

    /// Makes it a physical standby of a running cluster: same binaries, a copy of its data and
    /// settings, then a stream of its WAL.
    pub fn standby_of(mut self, primary: &Cluster) -> Self {
        self.upstream = Some(Upstream::of_cluster(primary));
        self
    }

    /// [`Builder::standby_of`] a lab.
    pub fn standby_of_lab(mut self, primary: &Lab) -> Self {
        self.upstream = Some(Upstream::of_lab(primary));
        self
    }

    /// A file that goes when the cluster does.
    pub(crate) fn also_remove(mut self, path: PathBuf) -> Self {
        self.also_remove.push(path);
        self
    }

    /// The name of the primary, for a standby.
    pub(crate) fn upstream_name(&self) -> Option<&str> {
        self.upstream.as_ref().map(Upstream::name)
    }

    /// A name that says what it is.
    pub(crate) fn default_name(&self) -> String {
        match (&self.upstream, self.search.wanted_major()) {
            (Some(_), _) => "standby".to_owned(),
            (None, Some(major)) => format!("pg{major}"),
            (None, None) => "lab".to_owned(),
        }
    }

    /// Checks what can be checked before anything is done.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if !is_name(&self.name) {
            return Err(Error::BadName { name: self.name.clone() });
        }
        self.settings.check(self.access.is_tcp())
    }

    /// The directory given for its files.
    pub(crate) fn given_dir(&self) -> Option<&Path> {
        self.dir.as_deref()
    }

    /// Makes the cluster, starts its server, and waits until it accepts connections.
    ///
    /// # Errors
    ///
    /// See [`Error`]. Nothing is left behind then.
    pub fn start(mut self) -> Result<Cluster, Error> {
        self.check()?;
        let account = Account::for_servers()?;
        if let Some(upstream) = self.upstream.take() {
            return self.start_standby(&upstream, account);
        }
        if let Some(dir) = &self.dir
            && let Holds::Cluster { major } = places::look(dir)?
        {
            self.search = within(self.search, dir, major)?;
        }
        let binaries = self.search.find()?;
        let (places, holds, mut janitor) = self.places(&account)?;
        if let Holds::Cluster { .. } = holds {
            self.own_settings().append(&places.data)?;
            self.access.tighten_rules(&places.data, &account)?;
        } else {
            let data = &places.data;
            if let Some(secret) = &self.password {
                let file = &places.socket.join("password");
                let password = Some(Password { secret, file });
                template::initdb(data, &binaries, &account, password, &mut janitor)?;
            } else if self.own_system {
                template::initdb(data, &binaries, &account, None, &mut janitor)?;
            } else {
                let cache = self.search.cache();
                template::make_data_dir(data, &binaries, &account, cache, &mut janitor)?;
            }
            self.own_settings().install(data, &account)?;
            self.access.write_rules(data, &account, self.password.is_some())?;
        }
        let name = self.name.clone();
        let (access, password, passfile) = (self.access, None, None);
        let parts = Parts { name, binaries, account, places, janitor, access, password, passfile };
        self.start_in(parts)
    }

    /// Makes a copy of a stopped cluster's data directory, and starts it.
    pub(crate) fn start_copy(self, original: &Cluster) -> Result<Cluster, Error> {
        self.check()?;
        let account = original.account().clone();
        let (places, janitor) = self.new_places(&account)?;
        standby::refuse_tablespaces(original.data_dir())?;
        copy_tree(original.data_dir(), &places.data, &account, &|below| match below.to_str() {
            Some("log") => Take::Empty,
            Some("postmaster.pid" | "postmaster.opts") => Take::Nothing,
            _ => Take::All,
        })?;
        self.own_settings().append(&places.data)?;
        self.access.tighten_rules(&places.data, &account)?;
        let binaries = original.binaries().clone();
        let password = original.password().map(str::to_owned);
        let (name, access) = (self.name.clone(), self.access);
        let passfile = None;
        let parts = Parts { name, binaries, account, places, janitor, access, password, passfile };
        self.start_in(parts)
    }

    fn start_standby(self, upstream: &Upstream, account: Account) -> Result<Cluster, Error> {
        let binaries = upstream.binaries(&account)?;
        if self.access == Access::TcpWithPassword && self.password.is_none() {
            // A standby cannot set a password: it has that of its primary.
            upstream.ensure_password()?;
        }
        let (places, janitor) = self.new_places(&account)?;
        let backup = standby::take(upstream, &places.data, &account)?;
        let mut settings = self.own_settings();
        settings.push("primary_conninfo", upstream.conninfo(&self.name));
        settings.push("wal_receiver_create_temp_slot", "on");
        settings.append(&places.data)?;
        self.access.tighten_rules(&places.data, &account)?;
        let password = upstream.password().map(str::to_owned);
        let (name, access) = (self.name.clone(), self.access);
        let passfile = Some(upstream.passfile());
        let parts = Parts { name, binaries, account, places, janitor, access, password, passfile };
        let cluster = self.start_in(parts)?;
        // Until here it has kept the primary's WAL for the standby.
        drop(backup);
        Ok(cluster)
    }

    fn start_in(self, parts: Parts) -> Result<Cluster, Error> {
        let password = self.password.or(parts.password);
        let parts = Parts { password, ..parts };
        Cluster::start_from(parts, self.port)
    }

    /// The settings given, and those that follow from the rest.
    fn own_settings(&self) -> Settings {
        let mut settings = Settings::default();
        settings.push("cluster_name", &self.name);
        self.access.push_settings(&mut settings);
        settings.extend(&self.settings);
        settings
    }

    fn places(&self, account: &Account) -> Result<(Places, Holds, Reaper), Error> {
        match &self.dir {
            Some(dir) => Places::given(dir, self.keep, account, &self.also_remove),
            None => {
                let (places, janitor) = Places::throw_away(account, &self.also_remove)?;
                Ok((places, Holds::Nothing, janitor))
            }
        }
    }

    /// [`Builder::places`] that hold no cluster yet.
    fn new_places(&self, account: &Account) -> Result<(Places, Reaper), Error> {
        if let Some(dir) = &self.dir
            && let Holds::Cluster { .. } = places::look(dir)?
        {
            return Err(Error::DirectoryInUse { dir: dir.clone() });
        }
        let (places, _, janitor) = self.places(account)?;
        Ok((places, janitor))
    }
}

/// The search, narrowed to the major of the cluster in `dir`.
fn within(search: Search, dir: &Path, found: u32) -> Result<Search, Error> {
    match search.wanted_major() {
        Some(wanted) if wanted != found => {
            let dir = std::path::absolute(dir).context("find", dir)?;
            Err(Error::OtherMajor { dir, found, wanted })
        }
        _ => Ok(search.major(found)),
    }
}

/// The rules of [`Builder::name`]: fit for a file name and for a `cluster_name`.
pub(crate) fn is_name(name: &str) -> bool {
    name.len() <= 40
        && name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for name in ["a", "lab-17", "pg_17", &"x".repeat(40)] {
            assert!(is_name(name), "{name}");
        }
        for name in ["", "1", "-a", "../x", "a/b", "A", "ä", "a b", ".a", &"x".repeat(41)] {
            assert!(!is_name(name), "{name}");
            let error = Builder::new().name(name).start().unwrap_err();
            assert!(matches!(error, Error::BadName { .. }), "{error}");
        }
    }
}
