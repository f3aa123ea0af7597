//! Searches for binaries: in an explicit directory, or on the PATH, in the distribution's
//! directories, in the cache, and finally on the network.

use std::path::{Path, PathBuf};

use crate::{
    binaries::{self, Binaries, BinariesOrigin},
    cache::LabCache,
    error::ClusterError,
    find_error::{FetchSource, FindError, RejectedDirs, UnusableBinaries},
    os_user::OsUser,
};

/// Options of a search for binaries: the required version, and the places to search.
#[derive(Clone, Debug)]
pub struct BinariesSearch {
    major: Option<u32>,
    dir: Option<PathBuf>,
    cache: LabCache,
    fetch: bool,
}

impl Default for BinariesSearch {
    fn default() -> Self {
        Self { major: None, dir: None, cache: LabCache::for_current_user(), fetch: true }
    }
}

impl BinariesSearch {
    /// Creates a search in all places, for the newest supported major version that is installed.
    pub fn new() -> Self {
        Self::default()
    }

    /// Restricts the search to this major version.
    #[must_use]
    pub fn major(mut self, major: u32) -> Self {
        self.major = Some(major);
        self
    }

    /// Restricts the search to this directory.
    #[must_use]
    pub fn dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.dir = Some(dir.into());
        self
    }

    /// Sets the directory of fetched archives and initdb templates, instead of the user's cache:
    /// `$HOWDAH_CACHE_DIR`, else `/var/cache/howdah` for root, and `$XDG_CACHE_HOME/howdah` or
    /// `~/.cache/howdah` for others.
    #[must_use]
    pub fn cache_dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.cache = LabCache::at(dir.into());
        self
    }

    /// Sets whether binaries may be fetched if none are installed; the default is true. Archives
    /// fetched earlier are used in either case.
    #[must_use]
    pub fn fetch(mut self, allowed: bool) -> Self {
        self.fetch = allowed;
        self
    }

    pub(crate) fn requested_major(&self) -> Option<u32> {
        self.major
    }

    pub(crate) fn cache(&self) -> &LabCache {
        &self.cache
    }

    /// Finds binaries, or fetches them. Only the first fetch of a major version uses the network.
    ///
    /// # Errors
    ///
    /// See [`FindError`]; also [`ClusterError::UnusableAccount`].
    pub fn find(&self) -> Result<Binaries, ClusterError> {
        let os_user = OsUser::for_servers()?;
        if let Some(dir) = &self.dir {
            return Ok(self.find_in(dir, &os_user)?);
        }
        if let Some(major) = self.major.filter(|major| !crate::MAJORS.contains(major)) {
            return Err(FindError::Unsupported { major }.into());
        }
        let mut rejected = Vec::new();
        let mut best: Option<Binaries> = None;
        for (dir, origin) in installed() {
            match Binaries::at(&dir, origin, &os_user) {
                Ok(found) if self.accepts(&found) => {
                    // The first one of the newest major: the PATH precedes other directories.
                    if best.as_ref().is_none_or(|best| major(&found) > major(best)) {
                        best = Some(found);
                    }
                }
                Ok(found) => rejected.push((
                    dir,
                    UnusableBinaries::OtherVersion { version: found.version().clone() },
                )),
                Err(reason) => rejected.push((dir, reason)),
            }
        }
        match best.or_else(|| self.find_cached(&os_user, &mut rejected)) {
            Some(found) => Ok(found),
            None => Ok(self.find_fetched(&os_user, rejected)?),
        }
    }

    fn find_in(&self, dir: &Path, os_user: &OsUser) -> Result<Binaries, FindError> {
        let reason = |reason| FindError::Given { dir: dir.to_owned(), reason };
        let found = Binaries::at(dir, BinariesOrigin::Given, os_user).map_err(reason)?;
        match self.major {
            Some(wanted) if wanted != major(&found) => {
                Err(reason(UnusableBinaries::OtherVersion { version: found.version().clone() }))
            }
            _ => Ok(found),
        }
    }

    fn accepts(&self, found: &Binaries) -> bool {
        match self.major {
            Some(wanted) => wanted == major(found),
            None => crate::MAJORS.contains(&major(found)),
        }
    }

    /// Returns the newest acceptable version among those fetched earlier.
    fn find_cached(
        &self,
        os_user: &OsUser,
        rejected: &mut Vec<(PathBuf, UnusableBinaries)>,
    ) -> Option<Binaries> {
        let mut dirs = cached_dirs(&self.cache);
        dirs.retain(|(version, _)| match self.major {
            Some(major) => version.first() == Some(&major),
            None => true,
        });
        dirs.sort_by(|(a, _), (b, _)| b.cmp(a));
        dirs.into_iter().find_map(|(_, dir)| {
            let dir = dir.join("bin");
            Binaries::at(&dir, BinariesOrigin::Cache, os_user)
                .map_err(|reason| rejected.push((dir, reason)))
                .ok()
                .filter(|found| self.accepts(found))
        })
    }

    #[cfg(feature = "fetch")]
    fn find_fetched(
        &self,
        os_user: &OsUser,
        mut rejected: Vec<(PathBuf, UnusableBinaries)>,
    ) -> Result<Binaries, FindError> {
        let major = self.major.unwrap_or(*crate::MAJORS.end());
        if !self.fetch {
            return Err(self.not_found(rejected, None));
        }
        match crate::fetch::fetch(major, &self.cache) {
            Ok(()) => self
                .find_cached(os_user, &mut rejected)
                .ok_or_else(|| self.not_found(rejected, None)),
            Err(error) => Err(self.not_found(rejected, Some(Box::new(error)))),
        }
    }

    #[cfg(not(feature = "fetch"))]
    fn find_fetched(
        &self,
        _: &OsUser,
        rejected: Vec<(PathBuf, UnusableBinaries)>,
    ) -> Result<Binaries, FindError> {
        Err(self.not_found(rejected, None))
    }

    fn not_found(
        &self,
        rejected: Vec<(PathBuf, UnusableBinaries)>,
        source: Option<FetchSource>,
    ) -> FindError {
        let fetch = match (&source, self.fetch && cfg!(feature = "fetch")) {
            (Some(_), _) => "fetching it failed",
            (None, true) => "the fetched archive cannot be used",
            (None, false) if cfg!(feature = "fetch") => "fetching is not allowed",
            (None, false) => "this build cannot fetch it (build with --features fetch)",
        };
        let cache = self.cache.binaries();
        FindError::NotFound {
            major: self.major,
            rejected: RejectedDirs::new(rejected),
            cache,
            fetch,
            source,
        }
    }
}

/// Returns all directories with an installed server, without duplicates, in order of preference.
fn installed() -> Vec<(PathBuf, BinariesOrigin)> {
    let path = binaries::path_dirs().map(|dir| (dir, BinariesOrigin::Path));
    let system = binaries::system_dirs().into_iter().map(|(_, dir)| (dir, BinariesOrigin::System));
    let mut found = Vec::new();
    for (dir, origin) in path.chain(system) {
        // Links to one server are common, and running it for its version is slow.
        if let Ok(postgres) = dir.join("postgres").canonicalize()
            && let Some(dir) = postgres.parent().map(Path::to_owned)
            && !found.iter().any(|(known, _)| *known == dir)
        {
            found.push((dir, origin));
        }
    }
    found
}

/// Returns the versions in the cache, with their directories. See [`crate::fetch`] for the names.
fn cached_dirs(cache: &LabCache) -> Vec<(Vec<u32>, PathBuf)> {
    let entries = std::fs::read_dir(cache.binaries()).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| {
            let name = entry.file_name();
            let numbers = name.to_str()?.split('.').map(|part| part.parse().ok());
            Some((numbers.collect::<Option<_>>()?, entry.path()))
        })
        .collect()
}

fn major(binaries: &Binaries) -> u32 {
    binaries.version().major()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::version::Version;

    #[test]
    fn unsupported_major_is_an_error() {
        let error = BinariesSearch::new().major(13).find().unwrap_err();
        assert_eq!(error.to_string(), "PostgreSQL 13 is not supported; 14 to 18 are");
        assert!(!error.is_postgres_missing());
    }

    #[test]
    fn explicit_directory_disables_search() {
        let dir = tempfile::tempdir().unwrap();
        let error = BinariesSearch::new().dir(dir.path()).find().unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("cannot use the PostgreSQL in {}: there is no postgres", dir.path().display())
        );
    }

    #[test]
    fn cached_versions_sort_numerically() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["17.9.0", "17.11.0", "18.1.0", ".17.lock", ".new-1", "x"] {
            std::fs::create_dir_all(dir.path().join("postgresql").join(name)).unwrap();
        }
        let mut found = cached_dirs(&LabCache::at(dir.path().to_owned()));
        found.sort();
        let numbers: Vec<_> = found.into_iter().map(|(numbers, _)| numbers).collect();
        assert_eq!(numbers, [[17, 9, 0], [17, 11, 0], [18, 1, 0]]);
    }

    #[test]
    fn not_found_error_lists_searched_directories() {
        let version = Version::parse("postgres (PostgreSQL) 15.1").unwrap();
        let search = BinariesSearch::new().major(17).cache_dir("/nowhere").fetch(false);
        let rejected =
            vec![(PathBuf::from("/opt/pg/bin"), UnusableBinaries::OtherVersion { version })];
        let error = ClusterError::from(search.not_found(rejected, None));
        assert!(error.is_postgres_missing());
        let text = error.to_string();
        assert!(text.starts_with("no PostgreSQL 17 was found on the PATH, in "), "{text}");
        assert!(
            text.contains("in /nowhere/postgresql; /opt/pg/bin: version 15.1 is not the requested one, or is not supported; "),
            "{text}"
        );
    }
}
