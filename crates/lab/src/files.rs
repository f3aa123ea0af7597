//! Copies of data directories, and the ends of logs.

use std::{
    fs::{self, DirBuilder, File},
    io::{self, Read as _, Seek as _, SeekFrom, Write as _},
    os::unix::fs::{
        DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, symlink,
    },
    path::{Path, PathBuf},
};

use crate::{
    account::Account,
    error::{Error, FileContext as _},
};

/// Opening fails on a symbolic link. Root opens files in directories of the server's account, which
/// could lead it elsewhere by a link.
pub(crate) const NO_FOLLOW: i32 = rustix::fs::OFlags::NOFOLLOW.bits().cast_signed();

/// What to do with an entry of a directory that is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Take {
    /// Copy it, and all below it.
    All,
    /// Copy the directory but nothing that is in it.
    Empty,
    /// Leave it out.
    Nothing,
}

/// Copies a directory with all below it, modes kept, owned by `account`. `take` is asked about each
/// entry by its path below the top. Files that vanish meanwhile are left out: a running server
/// removes some at any time.
///
/// The copy is as cheap as the file system makes it: `fs::copy` shares blocks where that is
/// possible.
pub(crate) fn copy_tree(
    from: &Path,
    to: &Path,
    account: &Account,
    take: &dyn Fn(&Path) -> Take,
) -> Result<(), Error> {
    copy_below(from, to, Path::new(""), account, take)
}

fn copy_below(
    from: &Path,
    to: &Path,
    below: &Path,
    account: &Account,
    take: &dyn Fn(&Path) -> Take,
) -> Result<(), Error> {
    let (source, target) = (from.join(below), to.join(below));
    copy_dir_itself(&source, &target, account).context("create", &target)?;
    for entry in fs::read_dir(&source).context("read", &source)? {
        let entry = entry.context("read", &source)?;
        let below = below.join(entry.file_name());
        let Some(kind) = present(entry.file_type()).context("read", &entry.path())? else {
            continue;
        };
        let (source, target) = (from.join(&below), to.join(&below));
        match take(&below) {
            Take::All if kind.is_dir() => copy_below(from, to, &below, account, take)?,
            Take::All if kind.is_symlink() => fs::read_link(&source)
                .and_then(|link| symlink(link, &target))
                .and_then(|()| account.own(&target))
                .context("copy", &source)?,
            Take::All if kind.is_file() => {
                if present(fs::copy(&source, &target)).context("copy", &source)?.is_some() {
                    account.own(&target).context("copy", &source)?;
                }
            }
            Take::Empty => copy_dir_itself(&source, &target, account).context("create", &target)?,
            // Sockets and the like belong to the running server.
            Take::All | Take::Nothing => {}
        }
    }
    Ok(())
}

fn copy_dir_itself(source: &Path, target: &Path, account: &Account) -> io::Result<()> {
    let mode = fs::metadata(source)?.permissions().mode() & 0o7777;
    make_dir(target, mode, account)
}

/// Makes a directory that does not exist yet.
pub(crate) fn make_dir(dir: &Path, mode: u32, account: &Account) -> io::Result<()> {
    DirBuilder::new().mode(mode).create(dir)?;
    account.own(dir)
}

/// Gives `account` a directory and all below it. Symbolic links are not followed.
pub(crate) fn own_tree(dir: &Path, account: &Account) -> Result<(), Error> {
    account.own(dir).context("change the owner of", dir)?;
    for entry in fs::read_dir(dir).context("read", dir)? {
        let path = entry.context("read", dir)?.path();
        let kind = fs::symlink_metadata(&path).context("read", &path)?.file_type();
        match kind.is_dir() {
            true => own_tree(&path, account)?,
            false => account.own(&path).context("change the owner of", &path)?,
        }
    }
    Ok(())
}

/// Makes a directory that exists already as private as a new one.
pub(crate) fn make_private(dir: &Path, account: &Account) -> io::Result<()> {
    if !fs::symlink_metadata(dir)?.is_dir() {
        return Err(io::ErrorKind::NotADirectory.into());
    }
    account.own(dir)?;
    fs::set_permissions(dir, fs::Permissions::from_mode(0o700))
}

/// Whether a file or directory belongs to the account.
pub(crate) fn belongs_to(path: &Path, account: &Account) -> io::Result<bool> {
    Ok(fs::symlink_metadata(path)?.uid() == account.uid())
}

/// Writes a file of the account so that others see the old content or the new one, complete.
pub(crate) fn replace(path: &Path, content: &[u8], account: &Account) -> io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let new = path.with_file_name(name);
    present(fs::remove_file(&new))?;
    let mut options = fs::OpenOptions::new();
    let mut file = options.create_new(true).write(true).mode(0o600).open(&new)?;
    file.write_all(content)?;
    account.own(&new)?;
    fs::rename(&new, path)
}

/// `None` for what is not there.
pub(crate) fn present<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// The files of a directory whose names end like this, in the order of their names.
pub(crate) fn with_extension(dir: &Path, extension: &str) -> Result<Vec<PathBuf>, Error> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).context("read", dir)? {
        let path = entry.context("read", dir)?.path();
        if path.extension().is_some_and(|its| its == extension) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// The last lines of a text file, at most 2 kB of them; nothing when it cannot be read.
pub(crate) fn last_lines(path: &Path) -> String {
    File::open(path).map(|mut file| last_lines_of(&mut file)).unwrap_or_default()
}

/// [`last_lines`] of an open file.
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
    fn a_tree_is_copied_as_far_as_asked() {
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

        let account = Account::for_servers().unwrap();
        let take = |path: &Path| match path.to_str() {
            Some("pg_wal") => Take::Empty,
            Some("log" | "postmaster.pid") => Take::Nothing,
            _ => Take::All,
        };
        copy_tree(&from, &to, &account, &take).unwrap();

        assert_eq!(fs::read_to_string(to.join("base/1/1259")).unwrap(), "base/1/1259");
        assert_eq!(fs::read_link(to.join("link")).unwrap(), Path::new("base/1/1259"));
        assert_eq!(fs::read_dir(to.join("pg_wal")).unwrap().count(), 0);
        assert!(!to.join("log").exists() && !to.join("postmaster.pid").exists());
        let mode = fs::metadata(to.join("base")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
    }

    #[test]
    fn last_lines_of_a_long_log() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        assert_eq!(last_lines(&log), "");
        fs::write(&log, format!("{}\nthe end\n", "x".repeat(5000))).unwrap();
        let tail = last_lines(&log);
        assert!(tail.ends_with("\nthe end") && tail.len() < 2048);
    }
}
