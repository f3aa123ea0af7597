//! A directory of PostgreSQL programs, with the version of its server.

use std::{
    env, fs, io,
    path::{Path, PathBuf},
    process::Stdio,
};

use crate::{find_error::UnusableBinaries, os_user::OsUser, version::Version};

/// PostgreSQL server programs of one version: at least `postgres` and `initdb`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binaries {
    dir: PathBuf,
    version: Version,
    origin: BinariesOrigin,
}

/// The place where binaries were found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BinariesOrigin {
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
    /// Checks a directory and runs its `postgres --version`, as the account that will run the
    /// server.
    ///
    /// # Errors
    ///
    /// [`UnusableBinaries`] if the directory cannot be used.
    pub fn at(
        dir: &Path,
        origin: BinariesOrigin,
        os_user: &OsUser,
    ) -> Result<Self, UnusableBinaries> {
        // PostgreSQL locates its other files relative to the resolved path of its program.
        let postgres = match dir.join("postgres").canonicalize() {
            Ok(postgres) => postgres,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(UnusableBinaries::MissingProgram { program: "postgres" });
            }
            Err(error) => return Err(UnusableBinaries::DoesNotRun { reason: error.to_string() }),
        };
        let dir = postgres.parent().unwrap_or(dir).to_owned();
        if !dir.join("initdb").exists() {
            return Err(UnusableBinaries::MissingProgram { program: "initdb" });
        }
        let version = query_version(&postgres, os_user)?;
        if version.major() < *crate::MAJORS.start() {
            return Err(UnusableBinaries::TooOld { version });
        }
        Ok(Self { dir, version, origin })
    }

    /// Returns the directory that holds the programs.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the version reported by `postgres --version`.
    pub fn version(&self) -> &Version {
        &self.version
    }

    /// Returns the place where the binaries were found.
    pub fn origin(&self) -> BinariesOrigin {
        self.origin
    }

    /// Returns the path of one of the programs. Fetched archives contain only `initdb`, `pg_ctl`
    /// and `postgres`; for client programs see [`client_tool`].
    pub fn program(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }
}

fn query_version(postgres: &Path, os_user: &OsUser) -> Result<Version, UnusableBinaries> {
    let output = os_user.command(postgres).arg("--version").stdin(Stdio::null()).output().map_err(
        |error| match (error.kind(), os_user.name()) {
            (io::ErrorKind::PermissionDenied, Some(os_user)) => {
                UnusableBinaries::Unreachable { os_user: os_user.to_owned() }
            }
            _ => UnusableBinaries::DoesNotRun { reason: error.to_string() },
        },
    )?;
    let line = String::from_utf8_lossy(&output.stdout);
    Version::parse(&line).ok_or_else(|| {
        let stderr = String::from_utf8_lossy(&output.stderr);
        let text = stderr.lines().next().or_else(|| line.lines().next()).unwrap_or("nothing");
        UnusableBinaries::DoesNotRun {
            reason: format!("--version printed {text:?} ({})", output.status),
        }
    })
}

/// Finds a client program such as `psql` or `pgbench`: on the PATH, else in the distribution's
/// directory of the newest PostgreSQL that has it. Fetched archives contain no client programs.
pub fn client_tool(name: &str) -> Option<PathBuf> {
    path_dirs()
        .chain(system_dirs().into_iter().map(|(_, dir)| dir))
        .map(|dir| dir.join(name))
        .find(|program| program.is_file())
}

/// Returns the absolute directories in the PATH. Relative ones are omitted, because servers run in
/// another working directory.
pub(crate) fn path_dirs() -> impl Iterator<Item = PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let dirs: Vec<_> = env::split_paths(&path).filter(|dir| dir.is_absolute()).collect();
    dirs.into_iter()
}

/// Returns the directories in which distributions install PostgreSQL, newest major first.
pub(crate) fn system_dirs() -> Vec<(u32, PathBuf)> {
    // Debian and derivatives; packages of postgresql.org for Red Hat and derivatives.
    let debian = majors_in(Path::new("/usr/lib/postgresql"), "");
    let red_hat = majors_in(Path::new("/usr"), "pgsql-");
    let mut found: Vec<_> = debian.chain(red_hat).collect();
    found.sort_by_key(|(major, _)| std::cmp::Reverse(*major));
    found
}

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

    fn write_program(dir: &Path, name: &str, output: &str) {
        let path = dir.join(name);
        fs::write(&path, format!("#!/bin/sh\necho '{output}'\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn open_tempdir() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        dir
    }

    fn check(dir: &Path) -> Result<Binaries, UnusableBinaries> {
        Binaries::at(dir, BinariesOrigin::Given, &OsUser::for_servers().unwrap())
    }

    #[test]
    fn unusable_directory_is_reported_with_its_reason() {
        let dir = open_tempdir();
        assert_eq!(
            check(dir.path()),
            Err(UnusableBinaries::MissingProgram { program: "postgres" })
        );
        write_program(dir.path(), "postgres", "postgres (PostgreSQL) 9.6.1");
        assert_eq!(check(dir.path()), Err(UnusableBinaries::MissingProgram { program: "initdb" }));
        write_program(dir.path(), "initdb", "");
        assert!(matches!(check(dir.path()), Err(UnusableBinaries::TooOld { .. })));
        write_program(dir.path(), "postgres", "hello");
        assert!(matches!(check(dir.path()), Err(UnusableBinaries::DoesNotRun { .. })));
        write_program(dir.path(), "postgres", "postgres (PostgreSQL) 17.1");
        assert_eq!(check(dir.path()).unwrap().version().major(), 17);
    }

    #[test]
    fn symbolic_link_to_postgres_is_resolved() {
        let (dir, links) = (open_tempdir(), open_tempdir());
        write_program(dir.path(), "postgres", "postgres (PostgreSQL) 16.2");
        write_program(dir.path(), "initdb", "");
        std::os::unix::fs::symlink(dir.path().join("postgres"), links.path().join("postgres"))
            .unwrap();
        assert_eq!(check(links.path()).unwrap().dir(), dir.path().canonicalize().unwrap());
    }

    #[test]
    fn distribution_directories_are_matched_by_prefix() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["9", "17", "common", "pgsql-16"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        let mut unprefixed: Vec<_> = majors_in(dir.path(), "").map(|(major, _)| major).collect();
        unprefixed.sort_unstable();
        assert_eq!(unprefixed, [9, 17]);
        let prefixed: Vec<_> = majors_in(dir.path(), "pgsql-").collect();
        assert_eq!(prefixed, [(16, dir.path().join("pgsql-16/bin"))]);
    }
}
