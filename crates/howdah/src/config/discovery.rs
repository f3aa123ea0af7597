//! Finds a configuration file that the user did not name, and decides whether it may be used.
//!
//! A command that runs in another user's directory must not obey a `howdah.toml` planted there. So
//! a file that was found rather than named is used only if the effective user or root owns it and
//! others cannot write to it. Owner and mode are read from the open descriptor, so the file cannot
//! be exchanged between the check and the read.

use std::{
    fmt,
    fs::{File, Metadata, OpenOptions},
    io,
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use rustix::{fs::OFlags, process::geteuid};

use super::ConfigFile;
use crate::errors;

/// The way in which a configuration file was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConfigSource {
    /// Named by `--config`, `HOWDAH_CONFIG`, or the argument of a command.
    Named,
    /// Found as `howdah.toml` in the current working directory.
    WorkingFolder,
    /// Found in the user's configuration directory or `/etc/howdah`.
    WellKnown,
}

/// Result of the search for a configuration file.
#[derive(Debug)]
pub(crate) struct Discovery {
    /// The file to use, if any.
    pub(crate) file: Option<ConfigFile>,
    /// Files that exist but must not be used or cannot be opened.
    pub(crate) skipped: Vec<SkippedFile>,
}

impl Discovery {
    /// Returns the file from which a server reads its section.
    ///
    /// # Errors
    ///
    /// The file was found in the working directory and has the section. Most keys of servers name
    /// programs, files to write or receivers of data, so such a file must be named; see
    /// [`super::privileged`].
    pub(crate) fn for_server(self, section: &str) -> anyhow::Result<Option<ConfigFile>> {
        match self.file {
            Some(file)
                if file.source == ConfigSource::WorkingFolder && file.has_section(section) =>
            {
                let path = file.path.display();
                let error = anyhow::anyhow!(
                    "{path} was found in the working directory; its [{section}] section is used only if \
                     the file is named"
                );
                Err(errors::with_hint(error, format_args!("howdah {section} -c {path}")))
            }
            file => Ok(file),
        }
    }
}

/// A configuration file that exists but is not used.
#[derive(Debug)]
pub(crate) struct SkippedFile {
    pub(super) path: PathBuf,
    pub(super) reason: SkipReason,
}

impl fmt::Display for SkippedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, reason } = self;
        write!(f, "not using {}: {reason}", path.display())
    }
}

/// The reason why a file is not used.
#[derive(Debug, thiserror::Error)]
pub(super) enum SkipReason {
    #[error(
        "it is owned by user {owner}, neither root nor you ({user}); name it with --config to use it anyway"
    )]
    ForeignOwner { owner: u32, user: u32 },
    #[error(
        "others can write to it (mode {mode:04o}); run `chmod go-w` on it, or name it with --config"
    )]
    WritableByOthers { mode: u32 },
    #[error("it is not a regular file")]
    NotAFile,
    #[error("it cannot be opened: {0}")]
    Open(io::Error),
}

/// Returns howdah's folder in the user's configuration directory (XDG Base Directory
/// Specification), which may not exist.
pub(crate) fn user_folder() -> Option<PathBuf> {
    std::env::var_os("XDG_CONFIG_HOME")
        .filter(|path| !path.is_empty())
        .map(PathBuf::from)
        .or_else(|| std::env::home_dir().map(|home| home.join(".config")))
        .map(|folder| folder.join("howdah"))
}

/// Returns the default locations, in the order in which they are tried.
pub(super) fn default_locations() -> Vec<(PathBuf, ConfigSource)> {
    let user_file = user_folder().map(|folder| folder.join("howdah.toml"));
    let mut locations = vec![(PathBuf::from("howdah.toml"), ConfigSource::WorkingFolder)];
    locations.extend(user_file.map(|file| (file, ConfigSource::WellKnown)));
    locations.push(("/etc/howdah/howdah.toml".into(), ConfigSource::WellKnown));
    locations
}

/// Opens a file of the default locations if it may be used; returns `None` if it does not exist.
pub(super) fn open_trusted(path: &Path) -> Result<Option<File>, SkipReason> {
    // Without O_NONBLOCK, opening a planted FIFO would block every command.
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    match OpenOptions::new().read(true).custom_flags(flags).open(path) {
        Ok(file) => {
            let metadata = file.metadata().map_err(SkipReason::Open)?;
            check(&metadata, geteuid().as_raw()).map(|()| Some(file))
        }
        Err(error) => match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Ok(None),
            _ => Err(SkipReason::Open(error)),
        },
    }
}

fn check(metadata: &Metadata, user: u32) -> Result<(), SkipReason> {
    const WRITABLE_BY_OTHERS: u32 = 0o022;
    let (owner, mode) = (metadata.uid(), metadata.mode() & 0o7777);
    if !metadata.is_file() {
        return Err(SkipReason::NotAFile);
    }
    if owner != user && owner != 0 {
        return Err(SkipReason::ForeignOwner { owner, user });
    }
    if mode & WRITABLE_BY_OTHERS != 0 {
        return Err(SkipReason::WritableByOthers { mode });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _};

    use super::*;

    fn file_with_mode(folder: &Path, mode: u32) -> PathBuf {
        let path = folder.join("howdah.toml");
        fs::write(&path, "").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    #[test]
    fn own_file_is_used_unless_others_can_write_it() {
        let folder = tempfile::tempdir().unwrap();
        for mode in [0o600, 0o644, 0o755] {
            let path = file_with_mode(folder.path(), mode);
            assert!(open_trusted(&path).unwrap().is_some(), "{mode:o}");
        }
        for mode in [0o620, 0o602, 0o666] {
            let path = file_with_mode(folder.path(), mode);
            let reason = open_trusted(&path).expect_err("others can write to it");
            assert!(matches!(reason, SkipReason::WritableByOthers { .. }), "{mode:o}: {reason}");
        }
    }

    #[test]
    fn file_of_another_user_is_used_only_if_owned_by_root() {
        let folder = tempfile::tempdir().unwrap();
        let metadata = fs::metadata(file_with_mode(folder.path(), 0o644)).unwrap();
        let owner = metadata.uid();
        let reason = check(&metadata, owner + 1);
        assert_eq!(reason.is_ok(), owner == 0, "{reason:?}");
        assert!(check(&metadata, owner).is_ok());
    }

    #[test]
    fn directory_and_fifo_are_skipped_and_missing_file_is_none() {
        let folder = tempfile::tempdir().unwrap();
        assert!(matches!(open_trusted(folder.path()), Err(SkipReason::NotAFile)));
        let fifo = folder.path().join("fifo");
        rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::from_raw_mode(0o600))
            .unwrap();
        assert!(matches!(open_trusted(&fifo), Err(SkipReason::NotAFile)));
        assert!(open_trusted(&folder.path().join("missing")).unwrap().is_none());
    }
}
