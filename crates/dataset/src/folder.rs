//! The folder of a dataset, local or in an object store: the names of its files, and how files are
//! created atomically.
//!
//! Folders and files are created with access for their owner only, because they contain clients'
//! data.
//!
//! Every file is written as `.NAME.tmp`, flushed to disk and renamed to `NAME`, and the folder is
//! flushed too. After a crash at any point, each file is absent, old or new, but never incomplete.
//! A store does the same with every object that is uploaded.

use std::{
    collections::BTreeSet,
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
};

use bytes::Bytes;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{
    error::{Corruption, ReadError, WriteError},
    kind::DatasetKind,
    part,
    storage::{self, Listing, Uploads},
};

/// A folder for a dataset of one kind.
#[derive(Clone, Debug)]
pub(crate) struct Folder {
    dir: PathBuf,
    kind: DatasetKind,
    /// The queue of files to upload, if the folder is in a store and is being written.
    uploads: Option<Uploads>,
}

/// Maximum size of a manifest in bytes.
const MANIFEST_BYTES_MAX: u64 = 64 << 20;

/// The fields that manifests of all versions have.
#[derive(Deserialize)]
struct ManifestHead {
    format: String,
    version: u32,
}

impl Folder {
    /// Prepares the folder for a new dataset. Creates it if missing; otherwise it must be empty,
    /// or, with `overwrite`, contain a dataset of the same kind. The rows and documents of that
    /// dataset are removed; other files stay. The caller must then write the manifest.
    ///
    /// The rows of an old dataset are removed before its manifest is replaced. After a crash in
    /// between, the manifest shows that files are missing, and the folder can be overwritten again.
    pub(crate) fn create(
        dir: &Path,
        kind: DatasetKind,
        overwrite: bool,
    ) -> Result<Self, WriteError> {
        Self::create_with_uploads(dir, kind, overwrite, None)
    }

    /// Like [`Self::create`], for a folder that shares the queue of files to upload with others.
    pub(crate) fn create_with_uploads(
        dir: &Path,
        kind: DatasetKind,
        overwrite: bool,
        uploads: Option<Uploads>,
    ) -> Result<Self, WriteError> {
        let mut folder = Self { dir: dir.to_owned(), kind, uploads: None };
        let failed = |source| WriteError::from_io(dir.to_owned(), 0, source);
        if storage::is_store_url(dir) {
            match storage::list(dir) {
                Ok(listing) => folder.clear(&listing, overwrite)?,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(failed(error)),
            }
            folder.uploads = Some(match uploads {
                Some(uploads) => uploads,
                None => Uploads::start().map_err(failed)?,
            });
            return Ok(folder);
        }
        match fs::metadata(dir) {
            Ok(found) if !found.is_dir() => {
                return Err(WriteError::NotADirectory { path: dir.to_owned() });
            }
            Ok(_) => folder.clear(&storage::list(dir).map_err(failed)?, overwrite)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                howdah_files::create_dir_all(dir).map_err(failed)?;
            }
            Err(error) => return Err(failed(error)),
        }
        Ok(folder)
    }

    fn clear(&self, listing: &Listing, overwrite: bool) -> Result<(), WriteError> {
        let (dir, kind) = (self.dir.clone(), self.kind);
        let failed = |source| WriteError::from_io(self.dir.clone(), 0, source);
        let has = |name: &str| listing.names().any(|found| found == name);
        if has(kind.other().manifest_name()) {
            return Err(WriteError::OtherKind { dir, expected: kind, found: kind.other() });
        }
        if listing.folders.iter().any(|name| part::is_part_name(name)) {
            return Err(WriteError::HasParts { dir, kind });
        }
        if !has(kind.manifest_name()) {
            // A writer that was killed at its start leaves an unfinished manifest.
            let unfinished = temporary_path(&self.manifest_path());
            if listing.names().any(|name| !unfinished.ends_with(name)) {
                return Err(WriteError::NotEmpty { dir, kind });
            }
            return match storage::remove(&unfinished) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(error)),
                _ => Ok(()),
            };
        }
        if !overwrite {
            return Err(WriteError::Exists { dir, kind });
        }
        for name in listing.files.iter().filter(|name| self.is_dataset_file(name)) {
            storage::remove(&self.dir.join(name)).map_err(failed)?;
        }
        Ok(())
    }

    /// Removes the dataset, if there is one: first the manifest, so that the rest is not a dataset.
    pub(crate) fn remove(dir: &Path, kind: DatasetKind) -> Result<(), WriteError> {
        let folder = Self { dir: dir.to_owned(), kind, uploads: None };
        let failed = |source| WriteError::from_io(dir.to_owned(), 0, source);
        let removed = |result: io::Result<()>| match result {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(error)),
            _ => Ok(()),
        };
        removed(storage::remove(&folder.manifest_path()))?;
        for name in storage::list(dir).unwrap_or_default().files {
            if folder.is_dataset_file(&name) {
                removed(storage::remove(&dir.join(name)))?;
            }
        }
        if !storage::is_store_url(dir) {
            removed(fs::remove_dir(dir))?;
        }
        Ok(())
    }

    /// Opens a folder with a dataset of `kind` in a supported version.
    pub(crate) fn open<M: DeserializeOwned>(
        dir: &Path,
        kind: DatasetKind,
    ) -> Result<(Self, M), ReadError> {
        let folder = Self { dir: dir.to_owned(), kind, uploads: None };
        let path = folder.manifest_path();
        let text = match storage::read(&path, MANIFEST_BYTES_MAX) {
            Ok(text) => text,
            Err(source) => return Err(folder.missing_manifest_error(source)),
        };
        let damaged = |source| ReadError::Damaged {
            path: path.clone(),
            source: Corruption::Manifest(source),
        };
        let head: ManifestHead = serde_json::from_slice(&text).map_err(damaged)?;
        if let Some(found) = DatasetKind::ALL
            .into_iter()
            .find(|other| *other != kind && head.format == other.format())
        {
            return Err(ReadError::OtherKind { dir: folder.dir, expected: kind, found });
        }
        if head.format != kind.format() {
            return Err(ReadError::NotADataset { dir: folder.dir, kind });
        }
        if !kind.supports(head.version) {
            let (found, supported) = (head.version, kind.version());
            return Err(ReadError::Version { path, found, supported });
        }
        let manifest = serde_json::from_slice(&text).map_err(damaged)?;
        Ok((folder, manifest))
    }

    fn missing_manifest_error(self, source: io::Error) -> ReadError {
        let Self { dir, kind, .. } = self;
        let is_missing =
            matches!(source.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory);
        if !is_missing {
            return ReadError::Io { path: dir.join(kind.manifest_name()), source };
        }
        match storage::list(&dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => ReadError::Missing { dir },
            Ok(listing) if listing.files.iter().any(|it| it == kind.other().manifest_name()) => {
                ReadError::OtherKind { dir, expected: kind, found: kind.other() }
            }
            Err(source) if source.kind() != io::ErrorKind::NotADirectory => {
                ReadError::Io { path: dir, source }
            }
            _ => ReadError::NotADataset { dir, kind },
        }
    }

    /// Returns the path of the folder's JSON file that describes the dataset.
    pub(crate) fn manifest_path(&self) -> PathBuf {
        self.dir.join(self.kind.manifest_name())
    }

    /// Returns the path of file `number` with a prefix.
    pub(crate) fn file_path(&self, prefix: &str, number: u32) -> PathBuf {
        self.dir.join(format!("{prefix}-{number:06}.parquet"))
    }

    /// Returns the files with a prefix, in the order of their numbers. The manifest counts
    /// `counted` of them. More are accepted if the dataset is not `finished`, because a crash may
    /// have occurred after a file was written and before the manifest was.
    ///
    /// # Errors
    ///
    /// The folder cannot be listed, or its files are not those counted in the manifest.
    pub(crate) fn files(
        &self,
        prefix: &str,
        counted: u32,
        finished: bool,
    ) -> Result<Vec<PathBuf>, ReadError> {
        let listing = storage::list(&self.dir)
            .map_err(|source| ReadError::Io { path: self.dir.clone(), source })?;
        let numbers: BTreeSet<u32> =
            listing.files.iter().filter_map(|name| file_number(name, prefix)).collect();
        let last = numbers.last().copied().unwrap_or(0);
        let damaged = |number, source| {
            Err(ReadError::Damaged { path: self.file_path(prefix, number), source })
        };
        if let Some(missing) = (1..=last.max(counted)).find(|number| !numbers.contains(number)) {
            return damaged(missing, Corruption::MissingFile);
        }
        if finished && last > counted {
            return damaged(counted + 1, Corruption::UncountedFile);
        }
        Ok(numbers.into_iter().map(|number| self.file_path(prefix, number)).collect())
    }

    /// Replaces the manifest.
    pub(crate) fn write_manifest<M: Serialize>(
        &self,
        manifest: &M,
        files_kept: u32,
    ) -> Result<(), WriteError> {
        let name = self.kind.manifest_name();
        self.write_document(name, serde_json::to_vec_pretty(manifest), files_kept)
    }

    /// Creates or replaces a JSON document.
    pub(crate) fn write_document(
        &self,
        name: &str,
        text: serde_json::Result<Vec<u8>>,
        files_kept: u32,
    ) -> Result<(), WriteError> {
        let path = self.dir.join(name);
        let mut text =
            text.map_err(|source| WriteError::Manifest { path: path.clone(), source })?;
        text.push(b'\n');
        self.publish(&path, files_kept, |file| {
            file.write_all(&text)
                .map_err(|source| WriteError::from_io(path.clone(), files_kept, source))
        })
    }

    /// Returns the path of a JSON document.
    pub(crate) fn document_path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Creates or replaces `path` with the content that `fill` writes. After an error, `path` is
    /// unchanged, unless only the folder could not be flushed.
    ///
    /// A file for a store is queued; an error may be that of an earlier file, which is then
    /// uploaded again by the next call. [`Self::finish_uploads`] waits until all are uploaded.
    ///
    /// `files_kept` is only used in errors.
    pub(crate) fn publish(
        &self,
        path: &Path,
        files_kept: u32,
        fill: impl FnOnce(&mut (dyn Write + Send)) -> Result<(), WriteError>,
    ) -> Result<(), WriteError> {
        let failed = |source| WriteError::from_io(path.to_owned(), files_kept, source);
        if let Some(uploads) = &self.uploads {
            let mut bytes = Vec::new();
            fill(&mut bytes)?;
            return uploads.add(path, Bytes::from(bytes)).map_err(failed);
        }
        let temporary = temporary_path(path);
        let write = || {
            let mut file = howdah_files::create_new(&temporary).map_err(failed)?;
            fill(&mut file)?;
            file.sync_all().map_err(failed)?;
            fs::rename(&temporary, path).map_err(failed)
        };
        if let Err(error) = write() {
            // A partial file is useless, and its space may be needed for the next attempt. If it
            // cannot be removed, the original error matters more.
            let _ = fs::remove_file(&temporary);
            return Err(error);
        }
        fs::File::open(&self.dir).and_then(|dir| dir.sync_all()).map_err(failed)
    }

    /// Waits until all files are in the store, if the folder is in one.
    pub(crate) fn finish_uploads(&self, files_kept: u32) -> Result<(), WriteError> {
        let Some(uploads) = &self.uploads else { return Ok(()) };
        uploads.wait().map_err(|source| WriteError::from_io(self.dir.clone(), files_kept, source))
    }

    /// Whether datasets of this kind use this name for a file other than the manifest.
    fn is_dataset_file(&self, name: &str) -> bool {
        let whole = |name: &str| {
            self.kind.file_prefixes().iter().any(|prefix| file_number(name, prefix).is_some())
                || self.kind.documents().contains(&name)
        };
        let temporary = name.strip_prefix('.').and_then(|name| name.strip_suffix(".tmp"));
        whole(name)
            || temporary.is_some_and(|name| whole(name) || name == self.kind.manifest_name())
    }
}

/// Returns the number in `PREFIX-NUMBER.parquet`.
fn file_number(name: &str, prefix: &str) -> Option<u32> {
    let digits = name.strip_prefix(prefix)?.strip_prefix('-')?.strip_suffix(".parquet")?;
    let number = digits.parse().ok()?;
    // `+1`, `1` and `0000001` can be parsed, too, but are never used as names.
    (format!("{number:06}") == digits && number > 0).then_some(number)
}

/// Returns the path under which a file is written. The name starts with a dot, so that `*.parquet`
/// does not match it.
fn temporary_path(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.tmp"))
}

#[test]
fn only_generated_names_are_dataset_files() {
    assert_eq!(file_number("events-000017.parquet", "events"), Some(17));
    assert_eq!(file_number("events-1234567.parquet", "events"), Some(1_234_567));
    for name in ["events-17.parquet", "events-000000.parquet", "events-+00017.parquet", "events"] {
        assert_eq!(file_number(name, "events"), None, "{name}");
    }
    let folder = Folder { dir: PathBuf::new(), kind: DatasetKind::Run, uploads: None };
    assert!(folder.is_dataset_file("outcomes-000001.parquet"));
    assert!(folder.is_dataset_file(".statements-000001.parquet.tmp"));
    assert!(folder.is_dataset_file(".run.json.tmp"));
    assert!(folder.is_dataset_file("machine.json"));
    assert!(!folder.is_dataset_file("notes.txt"));
    assert!(!folder.is_dataset_file("events-000001.parquet"));
}
