//! Writes converted settings, which may contain passwords, to a file.

use std::{
    fs::{self, File},
    io::{self, Read as _, Seek as _, Write as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::Path,
};

use anyhow::Context as _;
use rustix::fs::OFlags;

use crate::errors::WithHint as _;

/// Writes a new file, or replaces the contents of one that has no settings, such as the one of a
/// package. Such a file keeps its owner and its mode.
///
/// # Errors
///
/// The file cannot be written, or has settings.
pub(super) fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    let cannot_write = || format!("cannot write {}", path.display());
    // The output contains passwords of databases.
    let created = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let mut file = match created {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let empty = open_without_settings(path).with_context(cannot_write)?;
            empty.ok_or(error).with_context(cannot_write).hint(
                "a file with settings is not overwritten, nor one that everybody may read: \
                 move it away, or name another file",
            )?
        }
        created => created.with_context(cannot_write)?,
    };
    file.write_all(text.as_bytes()).with_context(cannot_write)
}

/// Opens a file that has only comments, without its contents. `None` if it has more, or is
/// accessible to every user.
fn open_without_settings(path: &Path) -> io::Result<Option<File>> {
    let nofollow = OFlags::NOFOLLOW.bits().cast_signed();
    let mut file = File::options().read(true).write(true).custom_flags(nofollow).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() || metadata.mode() & 0o007 != 0 || metadata.len() > TEMPLATE_BYTES_MAX {
        return Ok(None);
    }
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    let mut lines = text.lines().map(str::trim_start);
    if !lines.all(|line| line.is_empty() || line.starts_with('#')) {
        return Ok(None);
    }
    file.set_len(0)?;
    file.rewind()?;
    Ok(Some(file))
}

/// Maximum size of a file whose contents are examined: 64 kB.
const TEMPLATE_BYTES_MAX: u64 = 64 * 1024;
