//! A directory of PostgreSQL programs.

use std::{
    env, fs, io,
    path::{Path, PathBuf},
    process::Stdio,
};

use crate::{account::Account, search::Unfit, version::Version};

/// PostgreSQL server programs of one version: at least `postgres` and `initdb`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binaries {
    dir: PathBuf,
    version: Version,
    origin: Origin,
}

/// How binaries were come by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Origin {
    /// The caller named the directory.
    Given,
    /// `postgres` is on the PATH.
    Path,
    /// A directory where distributions put PostgreSQL.
    System,
    /// Fetched now or earlier, and kept in the cache.
    Cache,
}

impl Binaries {
    /// Looks at a directory and asks its `postgres` for the version, as the account that is going
    /// to run it.
    ///
    /// # Errors
    ///
    /// [`Unfit`] says what is wrong with the directory.
    pub fn at(dir: &Path, origin: Origin, account: &Account) -> Result<Self, Unfit> {
        // PostgreSQL finds its other files from where its program really is, so we do too.
        let postgres = match dir.join("postgres").canonicalize() {
            Ok(postgres) => postgres,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(Unfit::Lacks { program: "postgres" });
            }
            Err(error) => return Err(Unfit::NotRun { reason: error.to_string() }),
        };
        let dir = postgres.parent().unwrap_or(dir).to_owned();
        if !dir.join("initdb").exists() {
            return Err(Unfit::Lacks { program: "initdb" });
        }
        let version = ask_version(&postgres, account)?;
        if version.major() < *crate::MAJORS.start() {
            return Err(Unfit::TooOld { version });
        }
        Ok(Self { dir, version, origin })
    }

    /// The directory that holds the programs.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// What `postgres --version` says.
    pub fn version(&self) -> &Version {
        &self.version
    }

    /// How they were come by.
    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// The path of one of the programs. Fetched archives hold only `initdb`, `pg_ctl` and
    /// `postgres`; for clients see [`client_tool`].
    pub fn program(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }
}

fn ask_version(postgres: &Path, account: &Account) -> Result<Version, Unfit> {
    let output = account.command(postgres).arg("--version").stdin(Stdio::null()).output().map_err(
        |error| match (error.kind(), account.name()) {
            (io::ErrorKind::PermissionDenied, Some(account)) => {
                Unfit::Unreachable { account: account.to_owned() }
            }
            _ => Unfit::NotRun { reason: error.to_string() },
        },
    )?;
    let line = String::from_utf8_lossy(&output.stdout);
    Version::parse(&line).ok_or_else(|| {
        let said = String::from_utf8_lossy(&output.stderr);
        let said = said.lines().next().or_else(|| line.lines().next()).unwrap_or("nothing");
        Unfit::NotRun { reason: format!("--version says {said:?} ({})", output.status) }
    })
}

/// A client program such as `psql` or `pgbench`: from the PATH, else from the newest PostgreSQL
/// where distributions put it. `None` when there is none; fetched archives have no client programs.
pub fn client_tool(name: &str) -> Option<PathBuf> {
    path_dirs()
        .chain(system_dirs().into_iter().map(|(_, dir)| dir))
        .map(|dir| dir.join(name))
        .find(|program| program.is_file())
}

/// The directories of the PATH, absolute ones only: servers do not run in our working directory.
pub(crate) fn path_dirs() -> impl Iterator<Item = PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let dirs: Vec<_> = env::split_paths(&path).filter(|dir| dir.is_absolute()).collect();
    dirs.into_iter()
}

/// Where distributions put PostgreSQL, newest major first.
pub(crate) fn system_dirs() -> Vec<(u32, PathBuf)> {
    // Debian and its kin; Red Hat and its kin, by the packages of postgresql.org.
    let debian = majors_in(Path::new("/usr/lib/postgresql"), "");
    let red_hat = majors_in(Path::new("/usr"), "pgsql-");
    let mut found: Vec<_> = debian.chain(red_hat).collect();
    found.sort_by_key(|(major, _)| std::cmp::Reverse(*major));
    found
}

/// What [`system_dirs`] looks at, for messages.
pub(crate) const SYSTEM_DIRS: [&str; 2] = ["/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin"];

fn majors_in(parent: &Path, prefix: &str) -> impl Iterator<Item = (u32, PathBuf)> {
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    entries.filter_map(move |entry| {
        let major = entry.file_name().to_str()?.strip_prefix(prefix)?.parse().ok()?;
        Some((major, entry.path().join("bin")))
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn program(dir: &Path, name: &str, says: &str) {
        let path = dir.join(name);
        fs::write(&path, format!("#!/bin/sh\necho '{says}'\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn open_tempdir() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        dir
    }

    fn look(dir: &Path) -> Result<Binaries, Unfit> {
        Binaries::at(dir, Origin::Given, &Account::for_servers().unwrap())
    }

    #[test]
    fn what_is_wrong_with_a_directory() {
        let dir = open_tempdir();
        assert_eq!(look(dir.path()), Err(Unfit::Lacks { program: "postgres" }));
        program(dir.path(), "postgres", "postgres (PostgreSQL) 9.6.1");
        assert_eq!(look(dir.path()), Err(Unfit::Lacks { program: "initdb" }));
        program(dir.path(), "initdb", "");
        assert!(matches!(look(dir.path()), Err(Unfit::TooOld { .. })));
        program(dir.path(), "postgres", "hello");
        assert!(matches!(look(dir.path()), Err(Unfit::NotRun { .. })));
        program(dir.path(), "postgres", "postgres (PostgreSQL) 17.1");
        assert_eq!(look(dir.path()).unwrap().version().major(), 17);
    }

    #[test]
    fn a_link_to_postgres_leads_to_its_own_directory() {
        let (dir, links) = (open_tempdir(), open_tempdir());
        program(dir.path(), "postgres", "postgres (PostgreSQL) 16.2");
        program(dir.path(), "initdb", "");
        std::os::unix::fs::symlink(dir.path().join("postgres"), links.path().join("postgres"))
            .unwrap();
        assert_eq!(look(links.path()).unwrap().dir(), dir.path().canonicalize().unwrap());
    }

    #[test]
    fn majors_of_a_distribution() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["9", "17", "common", "pgsql-16"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        let mut plain: Vec<_> = majors_in(dir.path(), "").map(|(major, _)| major).collect();
        plain.sort_unstable();
        assert_eq!(plain, [9, 17]);
        let prefixed: Vec<_> = majors_in(dir.path(), "pgsql-").collect();
        assert_eq!(prefixed, [(16, dir.path().join("pgsql-16/bin"))]);
    }
}
