//! Helpers for files: copying data directories, ownership, atomic replacement, tails of logs.

use std::{
    fs::{self, DirBuilder, File},
    io::{self, Read as _, Seek as _, SeekFrom, Write as _},
    os::unix::fs::{
        DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, symlink,
    },
    path::{Path, PathBuf},
};

use crate::{
    error::{ClusterError, FileContext as _},
    os_user::OsUser,
};

/// Open flag that makes opening a symbolic link fail. Root opens files in directories of the
/// server's account, which could place a link to another file there.
pub(crate) const NO_FOLLOW: i32 = rustix::fs::OFlags::NOFOLLOW.bits().cast_signed();

/// The treatment of a directory entry by [`copy_tree`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CopyRule {
    /// Copy the entry recursively.
    Copy,
    /// Create the directory, but copy none of its contents.
    EmptyDir,
    /// Omit the entry.
    Skip,
}

/// Copies a directory recursively with its modes, owned by `os_user`. `rule` is called with each
/// entry's path relative to `from`. Files that vanish during the copy are skipped, because a
/// running server removes some at any time.
///
/// `fs::copy` shares blocks where the file system supports it.
pub(crate) fn copy_tree(
    from: &Path,
    to: &Path,
    os_user: &OsUser,
    rule: &dyn Fn(&Path) -> CopyRule,
) -> Result<(), ClusterError> {
    copy_below(from, to, Path::new(""), os_user, rule)
}

fn copy_below(
    from: &Path,
    to: &Path,
    below: &Path,
    os_user: &OsUser,
    rule: &dyn Fn(&Path) -> CopyRule,
) -> Result<(), ClusterError> {
    let (source, target) = (from.join(below), to.join(below));
    copy_dir_itself(&source, &target, os_user).context("create", &target)?;
    for entry in fs::read_dir(&source).context("read", &source)? {
        let entry = entry.context("read", &source)?;
        let below = below.join(entry.file_name());
        let Some(kind) = ignore_not_found(entry.file_type()).context("read", &entry.path())? else {
            continue;
        };
        let (source, target) = (from.join(&below), to.join(&below));
        match rule(&below) {
            CopyRule::Copy if kind.is_dir() => copy_below(from, to, &below, os_user, rule)?,
            CopyRule::Copy if kind.is_symlink() => fs::read_link(&source)
                .and_then(|link| symlink(link, &target))
                .and_then(|()| os_user.chown(&target))
                .context("copy", &source)?,
            CopyRule::Copy if kind.is_file() => {
                if ignore_not_found(fs::copy(&source, &target)).context("copy", &source)?.is_some()
                {
                    os_user.chown(&target).context("copy", &source)?;
                }
            }
            CopyRule::EmptyDir => {
                copy_dir_itself(&source, &target, os_user).context("create", &target)?;
            }
            // Sockets and other special files belong to the running server.
            CopyRule::Copy | CopyRule::Skip => {}
        }
    }
    Ok(())
}

fn copy_dir_itself(source: &Path, target: &Path, os_user: &OsUser) -> io::Result<()> {
    let mode = fs::metadata(source)?.permissions().mode() & 0o7777;
    make_dir(target, mode, os_user)
}

/// Creates a directory; fails if it exists.
pub(crate) fn make_dir(dir: &Path, mode: u32, os_user: &OsUser) -> io::Result<()> {
    DirBuilder::new().mode(mode).create(dir)?;
    os_user.chown(dir)
}

/// Changes the owner of a directory recursively. Symbolic links are not followed.
pub(crate) fn chown_tree(dir: &Path, os_user: &OsUser) -> Result<(), ClusterError> {
    os_user.chown(dir).context("change the owner of", dir)?;
    for entry in fs::read_dir(dir).context("read", dir)? {
        let path = entry.context("read", dir)?.path();
        let kind = fs::symlink_metadata(&path).context("read", &path)?.file_type();
        if kind.is_dir() {
            chown_tree(&path, os_user)?;
        } else {
            os_user.chown(&path).context("change the owner of", &path)?;
        }
    }
    Ok(())
}

/// Makes an existing directory private: changes its owner to `os_user` and its mode to 0700.
pub(crate) fn make_private(dir: &Path, os_user: &OsUser) -> io::Result<()> {
    if !fs::symlink_metadata(dir)?.is_dir() {
        return Err(io::ErrorKind::NotADirectory.into());
    }
    os_user.chown(dir)?;
    fs::set_permissions(dir, fs::Permissions::from_mode(0o700))
}

/// Whether a file or directory belongs to the account.
pub(crate) fn belongs_to(path: &Path, os_user: &OsUser) -> io::Result<bool> {
    Ok(fs::symlink_metadata(path)?.uid() == os_user.uid())
}

/// Replaces a file atomically: readers see either the old or the new content.
pub(crate) fn replace(path: &Path, content: &[u8], os_user: &OsUser) -> io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let new = path.with_file_name(name);
    ignore_not_found(fs::remove_file(&new))?;
    let mut options = fs::OpenOptions::new();
    let mut file = options.create_new(true).write(true).mode(0o600).open(&new)?;
    file.write_all(content)?;
    os_user.chown(&new)?;
    fs::rename(&new, path)
}

/// Turns a "not found" error into `None`.
pub(crate) fn ignore_not_found<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns the files in a directory with an extension, sorted by name.
pub(crate) fn with_extension(dir: &Path, extension: &str) -> Result<Vec<PathBuf>, ClusterError> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).context("read", dir)? {
        let path = entry.context("read", dir)?.path();
        if path.extension().is_some_and(|found| found == extension) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// Returns the last lines of a text file, at most 2 kB; empty if it cannot be read.
pub(crate) fn last_lines(path: &Path) -> String {
    File::open(path).map(|mut file| last_lines_of(&mut file)).unwrap_or_default()
}

/// Returns the last lines of an open text file, at most 2 kB; empty if it cannot be read.
pub(crate) fn last_lines_of(file: &mut File) -> String {
    const BYTES_MAX: u64 = 2048;
    let mut read = || -> io::Result<Vec<u8>> {
        let start = file.metadata()?.len().saturating_sub(BYTES_MAX);
        file.seek(SeekFrom::Start(start))?;
        let mut bytes = Vec::new();
        file.take(BYTES_MAX).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    String::from_utf8_lossy(&read().unwrap_or_default()).trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copy_tree_applies_rules_and_modes() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        for path in ["base/1", "pg_wal/archive_status", "log"] {
            fs::create_dir_all(from.join(path)).unwrap();
        }
        for path in ["PG_VERSION", "base/1/1259", "pg_wal/0001", "log/a.log", "postmaster.pid"] {
            fs::write(from.join(path), path).unwrap();
        }
        fs::set_permissions(from.join("base"), fs::Permissions::from_mode(0o700)).unwrap();
        symlink("base/1/1259", from.join("link")).unwrap();

        let os_user = OsUser::for_servers().unwrap();
        let rule = |path: &Path| match path.to_str() {
            Some("pg_wal") => CopyRule::EmptyDir,
            Some("log" | "postmaster.pid") => CopyRule::Skip,
            _ => CopyRule::Copy,
        };
        copy_tree(&from, &to, &os_user, &rule).unwrap();

        assert_eq!(fs::read_to_string(to.join("base/1/1259")).unwrap(), "base/1/1259");
        assert_eq!(fs::read_link(to.join("link")).unwrap(), Path::new("base/1/1259"));
        assert_eq!(fs::read_dir(to.join("pg_wal")).unwrap().count(), 0);
        assert!(!to.join("log").exists() && !to.join("postmaster.pid").exists());
        let mode = fs::metadata(to.join("base")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
    }

    #[test]
    fn last_lines_are_limited_to_2_kb() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        assert_eq!(last_lines(&log), "");
        fs::write(&log, format!("{}\nthe end\n", "x".repeat(5000))).unwrap();
        let tail = last_lines(&log);
        assert!(tail.ends_with("\nthe end") && tail.len() < 2048);
    }
}
