//! Finds which pages of a file are in the operating system's page cache, by mincore(2).
#![allow(unsafe_code, reason = "mincore(2) and mmap(2) have no safe wrapper")]

use std::{
    fs::File,
    io,
    os::{fd::AsRawFd as _, unix::fs::MetadataExt as _},
    path::Path,
    ptr,
};

use rustix::fs::{Access, AtFlags, CWD, accessat};

/// Whether the kernel tells this process which pages of a file are cached. Since Linux 5.2 it does
/// so only for files that the process owns or may write, and otherwise claims that all are
/// (`can_do_mincore()` in `mm/mincore.c`).
pub(super) fn is_visible(path: &Path, file: &File) -> io::Result<bool> {
    let owner = file.metadata()?.uid();
    Ok(owner == rustix::process::geteuid().as_raw()
        || accessat(CWD, path, Access::WRITE_OK, AtFlags::EACCESS).is_ok())
}

/// Returns for each whole page of `page_bytes` of the file's first `bytes` whether it is cached. A
/// page is cached only if all of the operating system's pages in it are. Takes one byte per page of
/// the operating system meanwhile: 256 KiB for a segment of 1 GiB.
///
/// Reads no data, so it does not matter if the file is truncated meanwhile.
pub(super) fn resident_pages(file: &File, bytes: u64, page_bytes: u32) -> io::Result<Vec<bool>> {
    let length = usize::try_from(bytes).map_err(|_| io::ErrorKind::FileTooLarge)?;
    if length == 0 {
        return Ok(Vec::new());
    }
    let mapping = FileMapping::new(file, length)?;
    let os_page = rustix::param::page_size();
    let mut flags = vec![0_u8; length.div_ceil(os_page)];
    // SAFETY: the mapping has `length` bytes, and `flags` one byte for each page of it.
    let result = unsafe { libc::mincore(mapping.address, length, flags.as_mut_ptr()) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    let page_bytes = page_bytes.max(1) as usize;
    let is_resident = |page: usize| {
        let (first, end) =
            (page * page_bytes / os_page, ((page + 1) * page_bytes).div_ceil(os_page));
        // The other bits are reserved.
        flags[first..end].iter().all(|flag| flag & 1 == 1)
    };
    Ok((0..length / page_bytes).map(is_resident).collect())
}

/// A mapping of a file's start, through which nothing is read.
struct FileMapping {
    address: *mut libc::c_void,
    length: usize,
}

impl FileMapping {
    fn new(file: &File, length: usize) -> io::Result<Self> {
        let (protection, flags) = (libc::PROT_READ, libc::MAP_SHARED);
        // SAFETY: a new mapping at an address that the kernel chooses.
        let address =
            unsafe { libc::mmap(ptr::null_mut(), length, protection, flags, file.as_raw_fd(), 0) };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { address, length })
    }
}

impl Drop for FileMapping {
    fn drop(&mut self) {
        // SAFETY: the mapping was made with this address and length, and nothing refers to it.
        unsafe { libc::munmap(self.address, self.length) };
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{Advice, fadvise};

    use super::*;

    #[test]
    fn written_pages_are_resident_until_evicted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        // The last page is incomplete.
        std::fs::write(&path, vec![1; 8192 * 10 + 100]).unwrap();
        let file = File::open(&path).unwrap();
        let bytes = 8192 * 10 + 100;
        assert!(is_visible(&path, &file).unwrap());
        assert_eq!(resident_pages(&file, bytes, 8192).unwrap(), [true; 10]);
        file.sync_all().unwrap();
        fadvise(&file, 0, None, Advice::DontNeed).unwrap();
        let evicted = resident_pages(&file, bytes, 8192).unwrap();
        if evicted == [true; 10] {
            eprintln!("skipped: this file system does not evict pages");
            return;
        }
        assert_eq!(evicted, [false; 10]);
        assert!(resident_pages(&file, 0, 8192).unwrap().is_empty());
        assert!(resident_pages(&file, 8191, 8192).unwrap().is_empty());
    }
}
