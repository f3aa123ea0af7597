//! Creates files and folders that only their owner may read.
//!
//! Captures, runs, recordings, images and reports contain clients' data: statements with their
//! values, names of tables, keys. They are as confidential as the database, so they are created
//! with mode 0600 and folders with 0700, whatever the umask allows. The mode is passed when the
//! file is opened: with a later `chmod`, others could open the file before it.
//!
//! The mode of existing files and folders is not changed, because it may have been set on purpose,
//! for example for a group.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::Path,
};

/// Mode of a new file: read and write for its owner.
pub const FILE_MODE: u32 = 0o600;

/// Mode of a new folder: only its owner may list, change or enter it.
pub const FOLDER_MODE: u32 = 0o700;

/// Returns options for opening a file. A file that they create gets [`FILE_MODE`].
pub fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.mode(FILE_MODE);
    options
}

/// Opens a file for writing and truncates it; creates it with [`FILE_MODE`] if missing.
///
/// # Errors
///
/// Those of [`File::create`].
pub fn create(path: &Path) -> io::Result<File> {
    options().write(true).create(true).truncate(true).open(path)
}

/// Creates a file with [`FILE_MODE`], after removing one that an earlier attempt may have left. For
/// temporary files that are renamed once they are complete.
///
/// # Errors
///
/// The old file cannot be removed, or the new one cannot be created. A file that appears after the
/// removal is also an error, because another process uses the name.
pub fn create_new(path: &Path) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => options().write(true).create_new(true).open(path),
    }
}

/// Replaces the content of a file, which is created with [`FILE_MODE`] if missing.
///
/// # Errors
///
/// Those of [`fs::write`].
pub fn write(path: &Path, bytes: impl AsRef<[u8]>) -> io::Result<()> {
    create(path)?.write_all(bytes.as_ref())
}

/// Creates a folder and its missing parents, with [`FOLDER_MODE`].
///
/// # Errors
///
/// Those of [`fs::create_dir_all`].
pub fn create_dir_all(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).expect("it exists").permissions().mode() & 0o777
    }

    #[test]
    fn new_files_and_folders_are_private() {
        let scratch = tempfile::tempdir().expect("a folder");
        let folder = scratch.path().join("a/b");
        create_dir_all(&folder).expect("a folder");
        assert_eq!([mode(&folder), mode(&scratch.path().join("a"))], [0o700, 0o700]);
        let file = folder.join("file");
        write(&file, "text").expect("a file");
        assert_eq!(mode(&file), 0o600);
        assert_eq!(fs::read(&file).expect("a file"), b"text");
        let appended = folder.join("appended");
        options().append(true).create(true).open(&appended).expect("a file");
        assert_eq!(mode(&appended), 0o600);
    }

    #[test]
    fn existing_files_and_folders_keep_their_mode() {
        let scratch = tempfile::tempdir().expect("a folder");
        let file = scratch.path().join("file");
        fs::write(&file, "a longer text").expect("a file");
        for path in [scratch.path(), &file] {
            fs::set_permissions(path, fs::Permissions::from_mode(0o750))
                .expect("it is owned by this user");
        }
        create_dir_all(scratch.path()).expect("it exists");
        write(&file, "text").expect("it exists");
        assert_eq!([mode(scratch.path()), mode(&file)], [0o750, 0o750]);
        assert_eq!(fs::read(&file).expect("a file"), b"text");
    }

    #[test]
    fn leftover_file_is_replaced_with_new_mode() {
        let scratch = tempfile::tempdir().expect("a folder");
        let file = scratch.path().join(".x.tmp");
        fs::write(&file, "left").expect("a file");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644))
            .expect("it is owned by this user");
        drop(create_new(&file).expect("a new file"));
        assert_eq!((mode(&file), fs::read(&file).expect("a file")), (0o600, Vec::new()));
    }
}
