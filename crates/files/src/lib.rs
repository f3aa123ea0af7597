//! Files and folders that only their owner may read.
//!
//! Captures, runs, recordings, images and reports hold what clients sent: statements with their values,
//! names of tables, keys. They are as confidential as the database, so they are created with mode 0600 and
//! folders with 0700, whatever the umask allows. The mode is given when the file is opened: a `chmod` after
//! that would leave a moment in which others can open it.
//!
//! What exists keeps its mode: who made a folder for a group has decided that.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::Path,
};

/// Mode of a new file: its owner reads and writes it.
pub const FILE_MODE: u32 = 0o600;

/// Mode of a new folder: its owner lists and changes it.
pub const FOLDER_MODE: u32 = 0o700;

/// Options to open a file with; if that creates it, with [`FILE_MODE`].
pub fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.mode(FILE_MODE);
    options
}

/// Opens a file for writing, empty, and creates it if there is none.
///
/// # Errors
///
/// As for [`File::create`].
pub fn create(path: &Path) -> io::Result<File> {
    options().write(true).create(true).truncate(true).open(path)
}

/// Creates a file in place of one that an earlier attempt may have left, whose mode and content are not
/// taken over. For temporary files that are renamed when they are whole.
///
/// # Errors
///
/// The old file cannot be removed, or the new one not be created. A file that appears in between is an
/// error, too: somebody else uses the name.
pub fn create_anew(path: &Path) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => options().write(true).create_new(true).open(path),
    }
}

/// Writes a whole file, which is created if there is none.
///
/// # Errors
///
/// As for [`fs::write`].
pub fn write(path: &Path, bytes: impl AsRef<[u8]>) -> io::Result<()> {
    create(path)?.write_all(bytes.as_ref())
}

/// Creates a folder and those above it that are missing.
///
/// # Errors
///
/// As for [`fs::create_dir_all`].
pub fn create_dir_all(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).expect("it is there").permissions().mode() & 0o777
    }

    #[test]
    fn new_files_and_folders_are_for_their_owner_only() {
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
            fs::set_permissions(path, fs::Permissions::from_mode(0o750)).expect("it is ours");
        }
        create_dir_all(scratch.path()).expect("it is there");
        write(&file, "text").expect("it is there");
        assert_eq!([mode(scratch.path()), mode(&file)], [0o750, 0o750]);
        assert_eq!(fs::read(&file).expect("a file"), b"text");
    }

    #[test]
    fn leftover_of_an_earlier_attempt_is_replaced_with_its_mode() {
        let scratch = tempfile::tempdir().expect("a folder");
        let file = scratch.path().join(".x.tmp");
        fs::write(&file, "left").expect("a file");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).expect("it is ours");
        drop(create_anew(&file).expect("a new file"));
        assert_eq!((mode(&file), fs::read(&file).expect("a file")), (0o600, Vec::new()));
    }
}
