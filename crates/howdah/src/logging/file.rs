//! A log file: lines are appended, and the file is opened again after a rotation.

use std::{
    fs::{File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use super::syslog::without_colours;

/// A file that log lines are appended to.
#[derive(Debug)]
pub(super) struct AppendedLog {
    path: PathBuf,
    file: Mutex<File>,
}

/// Permissions of a new file: its owner writes it, the group reads it.
const MODE: u32 = 0o640;

impl AppendedLog {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), file: Mutex::new(append(path)?) })
    }

    /// Appends one line.
    pub(super) fn write_line(&self, bytes: &[u8]) -> io::Result<()> {
        let text = String::from_utf8_lossy(bytes);
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.write_all(without_colours(&text).as_bytes())
    }

    /// Opens the file again by its path.
    pub(super) fn reopen(&self) -> io::Result<()> {
        let file = append(&self.path)?;
        *self.file.lock().unwrap_or_else(PoisonError::into_inner) = file;
        Ok(())
    }
}

fn append(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(MODE).open(path)
}

#[test]
fn renamed_file_is_replaced_after_reopening() {
    let folder = tempfile::tempdir().unwrap();
    let (path, old) = (folder.path().join("log"), folder.path().join("log.1"));
    let log = AppendedLog::open(&path).unwrap();
    log.write_line(b"one\n").unwrap();
    std::fs::rename(&path, &old).unwrap();
    log.write_line(b"\x1b[2mtwo\x1b[0m\n").unwrap();
    log.reopen().unwrap();
    log.write_line(b"three\n").unwrap();
    assert_eq!(std::fs::read_to_string(&old).unwrap(), "one\ntwo\n");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "three\n");
}
