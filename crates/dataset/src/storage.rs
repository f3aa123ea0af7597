//! Where the files of datasets are: on the local disk, or in an object store.
//!
//! The functions resemble those of [`std::fs`]. A path that starts with `s3://`, `gs://` or `az://`
//! is the URL of an object; all other paths are local.

mod data_file;
#[cfg(feature = "stores")]
mod store;
#[cfg(not(feature = "stores"))]
mod unsupported;
mod uploads;

use std::{
    fs,
    io::{self, Read as _},
    path::Path,
};

use bytes::Bytes;

pub(crate) use data_file::DataFile;
pub(crate) use uploads::Uploads;

#[cfg(feature = "stores")]
use store::Store;
#[cfg(not(feature = "stores"))]
use unsupported::UnsupportedStore as Store;

/// The schemes of object stores.
const SCHEMES: [&str; 3] = ["s3://", "gs://", "az://"];

/// Whether a path is the URL of an object store, `s3://…`, `gs://…` or `az://…`, and not a local
/// path.
pub fn is_store_url(path: &Path) -> bool {
    path.to_str().is_some_and(|text| SCHEMES.iter().any(|scheme| text.starts_with(scheme)))
}

/// The files and folders in a folder.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    /// Names of the files.
    pub(crate) files: Vec<String>,
    /// Names of the folders.
    pub(crate) folders: Vec<String>,
}

impl Listing {
    /// Returns the names of the files and folders.
    pub(crate) fn names(&self) -> impl Iterator<Item = &String> {
        self.files.iter().chain(&self.folders)
    }

    fn contains_file(&self, name: &str) -> bool {
        self.files.iter().any(|file| file == name)
    }
}

/// Lists a folder. A folder of a store that has no objects is not found.
pub(crate) fn list(dir: &Path) -> io::Result<Listing> {
    if is_store_url(dir) {
        return Store::of(dir)?.list(dir);
    }
    let mut listing = Listing::default();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        // Like `is_dir`, follows symbolic links.
        if entry.path().is_dir() { &mut listing.folders } else { &mut listing.files }.push(name);
    }
    Ok(listing)
}

/// Whether a folder exists, and contains a file of this name.
pub(crate) fn has_file(dir: &Path, name: &str) -> bool {
    if is_store_url(dir) {
        list(dir).is_ok_and(|listing| listing.contains_file(name))
    } else {
        dir.join(name).exists()
    }
}

/// Reads a file of at most `limit` bytes; returns one byte more if it is larger.
pub(crate) fn read(path: &Path, limit: u64) -> io::Result<Bytes> {
    if is_store_url(path) {
        return Store::of(path)?.read(path, limit + 1);
    }
    let mut bytes = Vec::new();
    fs::File::open(path)?.take(limit + 1).read_to_end(&mut bytes)?;
    Ok(bytes.into())
}

/// Removes a file.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    if is_store_url(path) { Store::of(path)?.remove(path) } else { fs::remove_file(path) }
}

/// Creates or replaces an object.
fn upload(path: &Path, bytes: Bytes) -> io::Result<()> {
    Store::of(path)?.upload(path, bytes)
}

#[test]
fn urls_of_stores_are_recognized() {
    for url in ["s3://bucket/monday", "gs://bucket", "az://container/a/b"] {
        assert!(is_store_url(Path::new(url)), "{url}");
        assert_eq!(Path::new(url).join("run.json").to_str(), Some(&*format!("{url}/run.json")));
    }
    for path in ["monday", "/s3/monday", "s3:/monday", "http://host/monday"] {
        assert!(!is_store_url(Path::new(path)), "{path}");
    }
}
