//! The cache directory: fetched binaries and initdb templates. Everything in it can be made again.

use std::{
    env,
    fs::{self, DirBuilder, File},
    io,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
};

/// A directory tree shared by all processes of one user.
#[derive(Clone, Debug)]
pub(crate) struct Cache {
    root: PathBuf,
}

impl Cache {
    /// The user's cache: `$HOWDAH_CACHE_DIR`; for root `/var/cache/howdah`, which the servers'
    /// account can read; for others `$XDG_CACHE_HOME/howdah` or `~/.cache/howdah`.
    pub(crate) fn of_user() -> Self {
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

    /// A cache in a directory of the caller's choice.
    pub(crate) fn at(root: PathBuf) -> Self {
        Self { root }
    }

    /// Where fetched binaries lie, a directory per version. It may not exist.
    pub(crate) fn binaries(&self) -> PathBuf {
        self.root.join("postgresql")
    }

    /// Where initdb templates lie. It may not exist.
    pub(crate) fn templates(&self) -> PathBuf {
        self.root.join("templates")
    }
}

/// Makes a directory and its parents, readable by everybody.
pub(crate) fn make_dir(dir: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o755).create(dir)
}

/// Waits until no other process works on `name` in `dir`, and keeps them waiting until the value is
/// dropped or this process ends.
pub(crate) fn lock(dir: &Path, name: &str) -> io::Result<File> {
    let file =
        fs::OpenOptions::new().create(true).append(true).open(dir.join(format!(".{name}.lock")))?;
    file.lock()?;
    Ok(file)
}
