//! The search for binaries: a directory given, the PATH, the distribution's directories, the cache,
//! and at last the network.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use crate::{
    account::Account,
    binaries::{self, Binaries, Origin},
    cache::Cache,
    error::Error,
    version::Version,
};

/// Which binaries are wanted, and where they may come from.
#[derive(Clone, Debug)]
pub struct Search {
    major: Option<u32>,
    dir: Option<PathBuf>,
    cache: Cache,
    fetch: bool,
}

impl Default for Search {
    fn default() -> Self {
        Self { major: None, dir: None, cache: Cache::of_user(), fetch: true }
    }
}

impl Search {
    /// Any supported major, newest first; from anywhere.
    pub fn new() -> Self {
        Self::default()
    }

    /// Only this major.
    pub fn major(mut self, major: u32) -> Self {
        self.major = Some(major);
        self
    }

    /// Only this directory.
    pub fn dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.dir = Some(dir.into());
        self
    }

    /// Keeps fetched archives and initdb templates there instead of in the user's cache, which is
    /// `$HOWDAH_CACHE_DIR`, else `/var/cache/howdah` for root and `~/.cache/howdah` for others.
    pub fn cache_dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.cache = Cache::at(dir.into());
        self
    }

    /// Whether binaries may be fetched when the machine has none; they may by default. Archives
    /// that were fetched earlier are used in either case.
    pub fn fetch(mut self, allowed: bool) -> Self {
        self.fetch = allowed;
        self
    }

    pub(crate) fn wanted_major(&self) -> Option<u32> {
        self.major
    }

    pub(crate) fn cache(&self) -> &Cache {
        &self.cache
    }

    /// Finds binaries, or fetches them: then the first call for a major takes as long as the
    /// network does, later ones don't touch it.
    ///
    /// # Errors
    ///
    /// See [`FindError`]; and [`Error::NoAccount`].
    pub fn find(&self) -> Result<Binaries, Error> {
        let account = Account::for_servers()?;
        if let Some(dir) = &self.dir {
            return Ok(self.given(dir, &account)?);
        }
        if let Some(major) = self.major.filter(|major| !crate::MAJORS.contains(major)) {
            return Err(FindError::Unsupported { major }.into());
        }
        let mut looked = Vec::new();
        let mut best: Option<Binaries> = None;
        for (dir, origin) in installed() {
            match Binaries::at(&dir, origin, &account) {
                Ok(found) if self.wants(&found) => {
                    // The first of the newest major: what the PATH names goes before the rest.
                    if best.as_ref().is_none_or(|best| major(&found) > major(best)) {
                        best = Some(found);
                    }
                }
                Ok(found) => looked.push((dir, Unfit::Other { version: found.version().clone() })),
                Err(unfit) => looked.push((dir, unfit)),
            }
        }
        match best.or_else(|| self.cached(&account, &mut looked)) {
            Some(found) => Ok(found),
            None => Ok(self.fetched(&account, looked)?),
        }
    }

    fn given(&self, dir: &Path, account: &Account) -> Result<Binaries, FindError> {
        let unfit = |unfit| FindError::Given { dir: dir.to_owned(), unfit };
        let found = Binaries::at(dir, Origin::Given, account).map_err(unfit)?;
        match self.major {
            Some(wanted) if wanted != major(&found) => {
                Err(unfit(Unfit::Other { version: found.version().clone() }))
            }
            _ => Ok(found),
        }
    }

    fn wants(&self, found: &Binaries) -> bool {
        match self.major {
            Some(wanted) => wanted == major(found),
            None => crate::MAJORS.contains(&major(found)),
        }
    }

    /// The newest fitting version among those fetched earlier.
    fn cached(&self, account: &Account, looked: &mut Vec<(PathBuf, Unfit)>) -> Option<Binaries> {
        let mut dirs = cached_dirs(&self.cache);
        dirs.retain(|(version, _)| match self.major {
            Some(major) => version.first() == Some(&major),
            None => true,
        });
        dirs.sort_by(|(a, _), (b, _)| b.cmp(a));
        dirs.into_iter().find_map(|(_, dir)| {
            let dir = dir.join("bin");
            Binaries::at(&dir, Origin::Cache, account)
                .map_err(|unfit| looked.push((dir, unfit)))
                .ok()
                .filter(|found| self.wants(found))
        })
    }

    #[cfg(feature = "fetch")]
    fn fetched(
        &self,
        account: &Account,
        mut looked: Vec<(PathBuf, Unfit)>,
    ) -> Result<Binaries, FindError> {
        let major = self.major.unwrap_or(*crate::MAJORS.end());
        if !self.fetch {
            return Err(self.not_found(looked, None));
        }
        match crate::fetch::fetch(major, &self.cache) {
            Ok(()) => self.cached(account, &mut looked).ok_or_else(|| self.not_found(looked, None)),
            Err(error) => Err(self.not_found(looked, Some(Box::new(error)))),
        }
    }

    #[cfg(not(feature = "fetch"))]
    fn fetched(&self, _: &Account, looked: Vec<(PathBuf, Unfit)>) -> Result<Binaries, FindError> {
        Err(self.not_found(looked, None))
    }

    fn not_found(&self, looked: Vec<(PathBuf, Unfit)>, source: Option<Source>) -> FindError {
        let fetch = match (&source, self.fetch && cfg!(feature = "fetch")) {
            (Some(_), _) => "fetching it failed",
            (None, true) => "what was fetched cannot be used",
            (None, false) if cfg!(feature = "fetch") => "fetching it was not allowed",
            (None, false) => "this build cannot download it (build with --features fetch)",
        };
        let cache = self.cache.binaries();
        FindError::NotFound { major: self.major, looked: Looked(looked), cache, fetch, source }
    }
}

/// Every directory with an installed server, once, in the order of preference.
fn installed() -> Vec<(PathBuf, Origin)> {
    let path = binaries::path_dirs().map(|dir| (dir, Origin::Path));
    let system = binaries::system_dirs().into_iter().map(|(_, dir)| (dir, Origin::System));
    let mut found = Vec::new();
    for (dir, origin) in path.chain(system) {
        // Asking a server for its version takes as long as a small start; links to it are many.
        if let Ok(postgres) = dir.join("postgres").canonicalize()
            && let Some(dir) = postgres.parent().map(Path::to_owned)
            && !found.iter().any(|(known, _)| *known == dir)
        {
            found.push((dir, origin));
        }
    }
    found
}

/// The versions in the cache, as numbers and directories. See [`crate::fetch`] for their names.
fn cached_dirs(cache: &Cache) -> Vec<(Vec<u32>, PathBuf)> {
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

type Source = Box<dyn std::error::Error + Send + Sync>;

/// Why no binaries were found.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FindError {
    /// No directory had them, and they could not be fetched either.
    #[error(
        "no PostgreSQL{} was found: on the PATH, in {}, in {}{looked}; {fetch}",
        Major(*major),
        binaries::SYSTEM_DIRS.join(", "),
        cache.display()
    )]
    NotFound {
        /// The major asked for.
        major: Option<u32>,
        /// Directories that had something, and what was wrong with it.
        looked: Looked,
        /// The directory of fetched archives.
        cache: PathBuf,
        /// What became of fetching.
        fetch: &'static str,
        /// Why fetching failed, when it was tried.
        source: Option<Source>,
    },

    /// The directory that the caller named cannot be used.
    #[error("no PostgreSQL in {}: {unfit}", dir.display())]
    Given {
        /// The directory.
        dir: PathBuf,
        /// Why not.
        unfit: Unfit,
    },

    /// The major is none of [`crate::MAJORS`].
    #[error(
        "PostgreSQL {major} is not supported; {} to {} are",
        crate::MAJORS.start(),
        crate::MAJORS.end()
    )]
    Unsupported {
        /// The major asked for.
        major: u32,
    },
}

/// Why a directory's PostgreSQL is not used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unfit {
    /// A program is missing.
    #[error("there is no {program}")]
    Lacks {
        /// Which.
        program: &'static str,
    },
    /// `postgres` does not run, or is not PostgreSQL's.
    #[error("postgres does not run: {reason}")]
    NotRun {
        /// What the system or the program said.
        reason: String,
    },
    /// The account that servers run as may not execute it.
    #[error("the account {account}, which would run it, may not")]
    Unreachable {
        /// The account's name.
        account: String,
    },
    /// Older than anything supported.
    #[error("version {version} is too old")]
    TooOld {
        /// Its version.
        version: Version,
    },
    /// Not the major asked for, or none that is supported.
    #[error("it is version {version}")]
    Other {
        /// Its version.
        version: Version,
    },
}

/// Directories and what is wrong with them.
#[derive(Debug)]
pub struct Looked(Vec<(PathBuf, Unfit)>);

impl fmt::Display for Looked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|(dir, unfit)| write!(f, "; {}: {unfit}", dir.display()))
    }
}

/// `" 17"`, or nothing when any major would do.
struct Major(Option<u32>);

impl fmt::Display for Major {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|major| write!(f, " {major}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_major_that_is_not_supported() {
        let error = Search::new().major(13).find().unwrap_err();
        assert_eq!(error.to_string(), "PostgreSQL 13 is not supported; 14 to 18 are");
        assert!(!error.is_no_postgres());
    }

    #[test]
    fn a_given_directory_is_the_only_one_looked_at() {
        let dir = tempfile::tempdir().unwrap();
        let error = Search::new().dir(dir.path()).find().unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("no PostgreSQL in {}: there is no postgres", dir.path().display())
        );
    }

    #[test]
    fn versions_in_the_cache_are_ordered_by_number() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["17.9.0", "17.11.0", "18.1.0", ".17.lock", ".new-1", "x"] {
            std::fs::create_dir_all(dir.path().join("postgresql").join(name)).unwrap();
        }
        let mut found = cached_dirs(&Cache::at(dir.path().to_owned()));
        found.sort();
        let numbers: Vec<_> = found.into_iter().map(|(numbers, _)| numbers).collect();
        assert_eq!(numbers, [[17, 9, 0], [17, 11, 0], [18, 1, 0]]);
    }

    #[test]
    fn what_was_looked_at_is_told() {
        let version = Version::parse("postgres (PostgreSQL) 15.1").unwrap();
        let search = Search::new().major(17).cache_dir("/nowhere").fetch(false);
        let looked = vec![(PathBuf::from("/opt/pg/bin"), Unfit::Other { version })];
        let error = Error::from(search.not_found(looked, None));
        assert!(error.is_no_postgres());
        let text = error.to_string();
        assert!(text.starts_with("no PostgreSQL 17 was found: on the PATH, in "), "{text}");
        assert!(
            text.contains("in /nowhere/postgresql; /opt/pg/bin: it is version 15.1; "),
            "{text}"
        );
    }
}
