//! The options of a new cluster.

use std::path::{Path, PathBuf};

use crate::{
    access::Access,
    cluster::{Cluster, ClusterParts},
    error::{ClusterError, FileContext as _},
    files::{CopyRule, copy_tree},
    labs::Lab,
    os_user::OsUser,
    paths::{self, ClusterPaths, DirContent},
    reaper::Reaper,
    search::BinariesSearch,
    settings::ServerSettings,
    standby::{self, PrimaryInfo},
    template::{self, Password},
};

/// The options of a new cluster. Each has a default.
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `start` is called"]
pub struct Builder {
    name: String,
    search: BinariesSearch,
    settings: ServerSettings,
    dir: Option<PathBuf>,
    keep: bool,
    port: Option<u16>,
    access: Access,
    password: Option<String>,
    unique_system_identifier: bool,
    upstream: Option<PrimaryInfo>,
    also_remove: Vec<PathBuf>,
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            name: "lab".to_owned(),
            search: BinariesSearch::new(),
            settings: ServerSettings::default(),
            dir: None,
            keep: false,
            port: None,
            access: Access::default(),
            password: None,
            unique_system_identifier: false,
            upstream: None,
            also_remove: Vec::new(),
        }
    }
}

impl Builder {
    /// Creates a builder for a cluster of the newest PostgreSQL found. The cluster listens only on
    /// its unix socket, without a password, in a directory that only the caller, root and the
    /// server's account can enter. See [`Builder::tcp`] and, for tests, [`Cluster::builder`].
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the name, `lab` by default: 1 to 40 characters from `a-z`, `0-9`, `-` and `_`, the
    /// first one from `a-z`. The name is also used as `cluster_name`, and as `application_name` of
    /// a standby.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Sets the major version of PostgreSQL: one of [`crate::MAJORS`].
    pub fn major(mut self, major: u32) -> Self {
        self.search = self.search.major(major);
        self
    }

    /// Sets the directory of the server's programs, instead of searching for them.
    pub fn bin_dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.search = self.search.dir(dir);
        self
    }

    /// Sets how binaries are found; replaces [`Builder::major`] and [`Builder::bin_dir`].
    pub fn search(mut self, search: BinariesSearch) -> Self {
        self.search = search;
        self
    }

    /// Adds a setting to the server's configuration. If a name is set repeatedly, the last value
    /// applies. Settings that decide where the server listens and keeps its files, such as `port`,
    /// are refused.
    ///
    /// These defaults differ from PostgreSQL's: `fsync = off`, `full_page_writes = off`,
    /// `shared_buffers = 32MB`, `wal_keep_size = 512MB`, `lc_messages = C`,
    /// `unix_socket_permissions = 0700`. `listen_addresses` needs [`Builder::tcp`] or
    /// [`Builder::trusted_tcp`].
    pub fn setting(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.settings.push(name, value);
        self
    }

    /// Sets the directory for the cluster's files, created if missing. The default is a new one in
    /// the system's temporary directory.
    ///
    /// If the directory contains a kept lab, that lab is started with the [`Builder::setting`]s
    /// added, and its files are kept. A directory that contains anything else is refused, and for a
    /// standby or a copy also one with a kept lab.
    pub fn dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.dir = Some(dir.into());
        self
    }

    /// Sets whether the files in [`Builder::dir`] are kept when the cluster ends. Has no effect
    /// without [`Builder::dir`].
    pub fn keep(mut self, keep: bool) -> Self {
        self.keep = keep;
        self
    }

    /// Makes the server listen on 127.0.0.1, too. Unless [`Builder::password`] is set, TCP
    /// connections require a random password (SCRAM), stored in a file that only the caller can
    /// read, which the URI names as `passfile`; the unix socket requires none.
    pub fn tcp(mut self) -> Self {
        self.access = Access::TcpWithPassword;
        self
    }

    /// Makes the server listen on 127.0.0.1, too, and admit every user of the host as superuser
    /// without a password, unless [`Builder::password`] is set.
    ///
    /// **For tests only.** While the server runs, every user of the host can run programs as the
    /// server's account, which is [`crate::ACCOUNT_NAME`] if root started the server, and otherwise
    /// the caller's own account. [`Cluster::builder`] enables it.
    pub fn trusted_tcp(mut self) -> Self {
        self.access = Access::TcpTrusted;
        self
    }

    /// Sets the port, which is used on 127.0.0.1 and in the socket's name. By default, a free port
    /// is chosen.
    pub fn port(mut self, port: u16) -> Self {
        self.port = Some(port);
        self
    }

    /// Sets the superuser's password for a new cluster. All connections then require it (SCRAM),
    /// even through the unix socket. Creating the cluster takes about a second longer.
    pub fn password(mut self, password: impl Into<String>) -> Self {
        self.password = Some(password.into());
        self
    }

    /// Sets whether the cluster gets a unique system identifier, which makes its creation about a
    /// second slower. By default, a cluster without a password is a copy of an initdb template, and
    /// shares its system identifier with other clusters on the machine.
    pub fn unique_system_identifier(mut self, unique_system_identifier: bool) -> Self {
        self.unique_system_identifier = unique_system_identifier;
        self
    }

    /// Makes the cluster a physical standby of a running primary: it uses the same binaries, starts
    /// with a copy of the data and settings, and then streams WAL.
    pub fn standby_of(mut self, primary: &Cluster) -> Self {
        self.upstream = Some(PrimaryInfo::from_cluster(primary));
        self
    }

    /// Makes the cluster a physical standby of a running lab; see [`Builder::standby_of`].
    pub fn standby_of_lab(mut self, primary: &Lab) -> Self {
        self.upstream = Some(PrimaryInfo::from_lab(primary));
        self
    }

    /// Adds a file to be removed with the cluster.
    pub(crate) fn also_remove(mut self, path: PathBuf) -> Self {
        self.also_remove.push(path);
        self
    }

    /// Returns the name of the primary, if this is a standby.
    pub(crate) fn upstream_name(&self) -> Option<&str> {
        self.upstream.as_ref().map(PrimaryInfo::name)
    }

    /// Returns the name of a lab if the user chose none: `standby`, `pg17` for a requested major
    /// version, or `lab`.
    pub(crate) fn default_name(&self) -> String {
        match (&self.upstream, self.search.requested_major()) {
            (Some(_), _) => "standby".to_owned(),
            (None, Some(major)) => format!("pg{major}"),
            (None, None) => "lab".to_owned(),
        }
    }

    /// Checks the name and the settings, before anything is created.
    pub(crate) fn check(&self) -> Result<(), ClusterError> {
        if !is_name(&self.name) {
            return Err(ClusterError::BadName { name: self.name.clone() });
        }
        self.settings.check(self.access.is_tcp())
    }

    /// Returns the directory set by [`Builder::dir`].
    pub(crate) fn explicit_dir(&self) -> Option<&Path> {
        self.dir.as_deref()
    }

    /// Creates the cluster, starts its server, and waits until it accepts connections.
    ///
    /// # Errors
    ///
    /// See [`ClusterError`]. On an error, the created files are removed, except those to be kept;
    /// see [`Builder::keep`].
    pub fn start(mut self) -> Result<Cluster, ClusterError> {
        self.check()?;
        let os_user = OsUser::for_servers()?;
        if let Some(upstream) = self.upstream.take() {
            return self.start_standby(&upstream, os_user);
        }
        if let Some(dir) = &self.dir
            && let DirContent::Cluster { major } = paths::inspect_dir(dir)?
        {
            self.search = with_cluster_major(self.search, dir, major)?;
        }
        let binaries = self.search.find()?;
        let (paths, holds, mut reaper) = self.make_paths(&os_user)?;
        if let DirContent::Cluster { .. } = holds {
            self.all_settings().append(&paths.data)?;
            self.access.tighten_rules(&paths.data, &os_user)?;
        } else {
            let data = &paths.data;
            if let Some(secret) = &self.password {
                let file = &paths.socket.join("password");
                let password = Some(Password { secret, file });
                template::initdb(data, &binaries, &os_user, password, &mut reaper)?;
            } else if self.unique_system_identifier {
                template::initdb(data, &binaries, &os_user, None, &mut reaper)?;
            } else {
                let cache = self.search.cache();
                template::make_data_dir(data, &binaries, &os_user, cache, &mut reaper)?;
            }
            self.all_settings().install(data, &os_user)?;
            self.access.write_rules(data, &os_user, self.password.is_some())?;
        }
        let name = self.name.clone();
        let (access, password, passfile) = (self.access, None, None);
        let parts =
            ClusterParts { name, binaries, os_user, paths, reaper, access, password, passfile };
        self.start_in(parts)
    }

    /// Copies a stopped cluster's data directory, and starts a server on it.
    pub(crate) fn start_copy(self, original: &Cluster) -> Result<Cluster, ClusterError> {
        self.check()?;
        let os_user = original.os_user().clone();
        let (paths, reaper) = self.make_new_paths(&os_user)?;
        standby::reject_tablespaces(original.data_dir())?;
        copy_tree(original.data_dir(), &paths.data, &os_user, &|below| match below.to_str() {
            Some("log") => CopyRule::EmptyDir,
            Some("postmaster.pid" | "postmaster.opts") => CopyRule::Skip,
            _ => CopyRule::Copy,
        })?;
        self.all_settings().append(&paths.data)?;
        self.access.tighten_rules(&paths.data, &os_user)?;
        let binaries = original.binaries().clone();
        let password = original.password().map(str::to_owned);
        let (name, access) = (self.name.clone(), self.access);
        let passfile = None;
        let parts =
            ClusterParts { name, binaries, os_user, paths, reaper, access, password, passfile };
        self.start_in(parts)
    }

    fn start_standby(
        self,
        upstream: &PrimaryInfo,
        os_user: OsUser,
    ) -> Result<Cluster, ClusterError> {
        let binaries = upstream.binaries(&os_user)?;
        if self.access == Access::TcpWithPassword && self.password.is_none() {
            // A standby is read-only and has its primary's password, so the primary needs one.
            upstream.ensure_password()?;
        }
        let (paths, reaper) = self.make_new_paths(&os_user)?;
        let backup = standby::back_up(upstream, &paths.data, &os_user)?;
        let mut settings = self.all_settings();
        settings.push("primary_conninfo", upstream.conninfo(&self.name));
        settings.push("wal_receiver_create_temp_slot", "on");
        settings.append(&paths.data)?;
        self.access.tighten_rules(&paths.data, &os_user)?;
        let password = upstream.password().map(str::to_owned);
        let (name, access) = (self.name.clone(), self.access);
        let passfile = Some(upstream.passfile());
        let parts =
            ClusterParts { name, binaries, os_user, paths, reaper, access, password, passfile };
        let cluster = self.start_in(parts)?;
        // The standby streams now; the backup's slot has kept the WAL it needed until here.
        drop(backup);
        Ok(cluster)
    }

    fn start_in(self, parts: ClusterParts) -> Result<Cluster, ClusterError> {
        let password = self.password.or(parts.password);
        let parts = ClusterParts { password, ..parts };
        Cluster::start_from(parts, self.port)
    }

    /// Returns all settings: those that follow from other options, then those given by
    /// [`Builder::setting`].
    fn all_settings(&self) -> ServerSettings {
        let mut settings = ServerSettings::default();
        settings.push("cluster_name", &self.name);
        self.access.push_settings(&mut settings);
        settings.extend(&self.settings);
        settings
    }

    fn make_paths(
        &self,
        os_user: &OsUser,
    ) -> Result<(ClusterPaths, DirContent, Reaper), ClusterError> {
        match &self.dir {
            Some(dir) => ClusterPaths::in_dir(dir, self.keep, os_user, &self.also_remove),
            None => {
                let (paths, reaper) = ClusterPaths::temporary(os_user, &self.also_remove)?;
                Ok((paths, DirContent::Empty, reaper))
            }
        }
    }

    /// Does the same as [`Builder::make_paths`], but refuses a directory with a cluster.
    fn make_new_paths(&self, os_user: &OsUser) -> Result<(ClusterPaths, Reaper), ClusterError> {
        if let Some(dir) = &self.dir
            && let DirContent::Cluster { .. } = paths::inspect_dir(dir)?
        {
            return Err(ClusterError::DirectoryNotEmpty { dir: dir.clone() });
        }
        let (paths, _, reaper) = self.make_paths(os_user)?;
        Ok((paths, reaper))
    }
}

/// Restricts the search to the major version of the cluster in `dir`.
fn with_cluster_major(
    search: BinariesSearch,
    dir: &Path,
    found: u32,
) -> Result<BinariesSearch, ClusterError> {
    match search.requested_major() {
        Some(wanted) if wanted != found => {
            let dir = std::path::absolute(dir).context("find", dir)?;
            Err(ClusterError::OtherMajor { dir, found, wanted })
        }
        _ => Ok(search.major(found)),
    }
}

/// Whether a name follows the rules of [`Builder::name`], so that it is valid as a file name and as
/// `cluster_name`.
pub(crate) fn is_name(name: &str) -> bool {
    name.len() <= 40
        && name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_name_is_refused() {
        for name in ["a", "lab-17", "pg_17", &"x".repeat(40)] {
            assert!(is_name(name), "{name}");
        }
        for name in ["", "1", "-a", "../x", "a/b", "A", "ä", "a b", ".a", &"x".repeat(41)] {
            assert!(!is_name(name), "{name}");
            let error = Builder::new().name(name).start().unwrap_err();
            assert!(matches!(error, ClusterError::BadName { .. }), "{error}");
        }
    }
}
