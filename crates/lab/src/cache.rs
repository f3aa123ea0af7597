//! The cache directory: fetched binaries and initdb templates. It can be removed at any time.

use std::{
    env,
    fs::{self, DirBuilder, File},
    io,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
};

/// The cache directory, shared by all processes of one user.
#[derive(Clone, Debug)]
pub(crate) struct LabCache {
    root: PathBuf,
}

impl LabCache {
    /// Returns the user's cache: `$HOWDAH_CACHE_DIR`, else for root `/var/cache/howdah`, which the
    /// servers' account can read, and for others `$XDG_CACHE_HOME/howdah` or `~/.cache/howdah`.
    /// Variables with relative paths are ignored; without a home directory, the cache is in the
    /// temporary directory.
    pub(crate) fn for_current_user() -> Self {
        let given = |name| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let root = given("HOWDAH_CACHE_DIR").unwrap_or_else(|| {
            if rustix::process::geteuid().is_root() {
                return PathBuf::from("/var/cache/howdah");
            }
            given("XDG_CACHE_HOME")
                .or_else(|| given("HOME").map(|home| home.join(".cache")))
                .unwrap_or_else(env::temp_dir)
                .join("howdah")
        });
        Self { root }
    }

    /// Creates a cache in a directory of the caller's choice.
    pub(crate) fn at(root: PathBuf) -> Self {
        Self { root }
    }

    /// Returns the directory of fetched binaries, with one directory per version. It may be
    /// missing.
    pub(crate) fn binaries(&self) -> PathBuf {
        self.root.join("postgresql")
    }

    /// Returns the directory of initdb templates. It may be missing.
    pub(crate) fn templates(&self) -> PathBuf {
        self.root.join("templates")
    }
}

/// Creates a directory and its parents, readable by all users.
pub(crate) fn make_dir(dir: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o755).create(dir)
}

/// Acquires the lock `name` in `dir`, and holds it until the returned file is dropped or the
/// process ends. Blocks while another process or thread holds the lock.
pub(crate) fn lock(dir: &Path, name: &str) -> io::Result<File> {
    let file =
        fs::OpenOptions::new().create(true).append(true).open(dir.join(format!(".{name}.lock")))?;
    file.lock()?;
    Ok(file)
}
