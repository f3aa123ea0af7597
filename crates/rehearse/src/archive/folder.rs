//! [`ArchiveFolder`]: an open directory whose entries are opened relative to it, without following
//! symbolic links.

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io::{self, Read as _},
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::ffi::{OsStrExt as _, OsStringExt as _},
    },
    path::Path,
};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};

/// An open directory.
#[derive(Debug)]
pub(super) struct ArchiveFolder(OwnedFd);

/// The identity and state of a file. A file with an equal stamp is assumed not to have changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileStamp {
    device: u64,
    inode: u64,
    modified: (i64, i64),
    size: i64,
}

/// The subfolders of a folder, sorted by name, as far as the folder was read.
#[derive(Debug, Default)]
pub(super) struct FolderListing {
    pub(super) names: Vec<OsString>,
    /// Number of entries of any type that were read.
    pub(super) entries: usize,
    /// Whether there are further entries.
    pub(super) is_truncated: bool,
}

const FOLDER_FLAGS: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

impl ArchiveFolder {
    /// Opens a folder that the user named; its path may have symbolic links.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        Ok(Self(rustix::fs::open(path, FOLDER_FLAGS, Mode::empty())?))
    }

    /// Opens a subfolder by its name.
    pub(super) fn subfolder(&self, name: &OsStr) -> io::Result<Self> {
        let flags = FOLDER_FLAGS | OFlags::NOFOLLOW;
        Ok(Self(rustix::fs::openat(&self.0, name, flags, Mode::empty())?))
    }

    /// Lists the subfolders. Reads at most `entries_max` entries of any type. On file systems that
    /// do not report types, other entries are listed, too.
    pub(super) fn subfolders(&self, entries_max: usize) -> io::Result<FolderListing> {
        let mut listing = FolderListing::default();
        for entry in Dir::read_from(&self.0)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if [&b"."[..], b".."].contains(&name) {
                continue;
            }
            if listing.entries == entries_max {
                listing.is_truncated = true;
                break;
            }
            listing.entries += 1;
            // Some file systems do not report types; opening the entry then shows whether it is a
            // folder.
            if matches!(entry.file_type(), FileType::Directory | FileType::Unknown) {
                listing.names.push(OsString::from_vec(name.to_vec()));
            }
        }
        listing.names.sort();
        Ok(listing)
    }

    /// Returns the stamp of a regular file; `None` if there is none with this name.
    pub(super) fn stamp(&self, name: &str) -> Option<FileStamp> {
        let stat = rustix::fs::statat(self.0.as_fd(), name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        is_file.then_some(FileStamp {
            device: stat.st_dev,
            inode: stat.st_ino,
            modified: (stat.st_mtime, i64::try_from(stat.st_mtime_nsec).unwrap_or(0)),
            size: stat.st_size,
        })
    }

    /// Reads a regular file of at most `size_max` bytes.
    pub(super) fn read(&self, name: &str, size_max: u64) -> io::Result<Vec<u8>> {
        // Without NONBLOCK, opening a named pipe would wait for a writer.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let name = OsStr::from_bytes(name.as_bytes());
        let file = File::from(rustix::fs::openat(&self.0, name, flags, Mode::empty())?);
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(io::Error::other("not a regular file"));
        }
        let too_large = || io::Error::other(format!("larger than {} MiB", size_max >> 20));
        if metadata.len() > size_max {
            return Err(too_large());
        }
        let mut bytes = Vec::with_capacity(usize::try_from(metadata.len()).unwrap_or(0));
        // The file may grow while it is read.
        file.take(size_max + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > size_max { Err(too_large()) } else { Ok(bytes) }
    }
}
