//! The folder of a dataset: which names it uses, and how a file appears in it whole or not at all.
//!
//! Folders and files that are created here are for their owner only: they hold what clients sent.
//!
//! Every file is written as `.NAME.tmp`, flushed to the disk, renamed to `NAME`, and the folder is
//! flushed too. After a crash at any point each name is absent, old, or new, never half.

use std::{
    collections::BTreeSet,
    fmt, fs,
    io::{self, Write},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::error::{Damage, ReadError, WriteError};

/// What sort of dataset a folder holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatasetKind {
    /// Events: what clients did.
    Capture,
    /// Outcomes: what came of replaying them.
    Run,
}

impl DatasetKind {
    const ALL: [Self; 2] = [Self::Capture, Self::Run];

    /// Name of the manifest in the folder.
    pub const fn manifest_name(self) -> &'static str {
        match self {
            Self::Capture => "capture.json",
            Self::Run => "run.json",
        }
    }

    /// The manifest's `format` and the files' `howdah.format`.
    pub const fn format(self) -> &'static str {
        match self {
            Self::Capture => "howdah-capture",
            Self::Run => "howdah-run",
        }
    }

    /// The version that this build writes. It reads this one and all before it.
    pub const fn version(self) -> u32 {
        match self {
            Self::Capture => 4,
            Self::Run => 2,
        }
    }

    /// Whether this build reads a version.
    pub(crate) const fn reads(self, version: u32) -> bool {
        1 <= version && version <= self.version()
    }

    /// First parts of the names of its files: `events` for `events-000001.parquet`.
    pub(crate) const fn stems(self) -> &'static [&'static str] {
        match self {
            Self::Capture => &["events"],
            Self::Run => &["outcomes", "statements"],
        }
    }

    /// The other one.
    fn other(self) -> Self {
        match self {
            Self::Capture => Self::Run,
            Self::Run => Self::Capture,
        }
    }
}

impl fmt::Display for DatasetKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Capture => "capture",
            Self::Run => "run",
        })
    }
}

/// A folder that holds, or is about to hold, a dataset of one kind.
#[derive(Clone, Debug)]
pub(crate) struct Folder {
    dir: PathBuf,
    kind: DatasetKind,
}

/// The part of a manifest that every version has.
#[derive(Deserialize)]
struct ManifestHead {
    format: String,
    version: u32,
}

impl Folder {
    /// Makes the folder ready for a new dataset: new, empty, or emptied of an old one of the same
    /// kind when `overwrite` says so. The caller writes the manifest next.
    ///
    /// An old dataset loses its rows before its manifest is replaced, so that a crash in between
    /// leaves a folder that says what is missing and that may be overwritten again.
    pub(crate) fn create(
        dir: &Path,
        kind: DatasetKind,
        overwrite: bool,
    ) -> Result<Self, WriteError> {
        let folder = Self { dir: dir.to_owned(), kind };
        let failed = |source| WriteError::from_io(dir.to_owned(), 0, source);
        match fs::metadata(dir) {
            Ok(found) if !found.is_dir() => {
                return Err(WriteError::NotADirectory { path: dir.to_owned() });
            }
            Ok(_) => folder.clear(overwrite)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                howdah_files::create_dir_all(dir).map_err(failed)?;
            }
            Err(error) => return Err(failed(error)),
        }
        Ok(folder)
    }

    fn clear(&self, overwrite: bool) -> Result<(), WriteError> {
        let (dir, kind) = (self.dir.clone(), self.kind);
        let failed = |source| WriteError::from_io(self.dir.clone(), 0, source);
        if self.dir.join(kind.other().manifest_name()).exists() {
            return Err(WriteError::OtherKind { dir, wanted: kind, found: kind.other() });
        }
        let names = self.names().map_err(failed)?;
        if !self.manifest_path().exists() {
            return if names.is_empty() { Ok(()) } else { Err(WriteError::NotEmpty { dir, kind }) };
        }
        if !overwrite {
            return Err(WriteError::Exists { dir, kind });
        }
        for name in names.iter().filter(|name| self.is_ours(name)) {
            fs::remove_file(self.dir.join(name)).map_err(failed)?;
        }
        Ok(())
    }

    /// Opens a folder that holds a dataset of `kind` in the version this build reads.
    pub(crate) fn open<M: DeserializeOwned>(
        dir: &Path,
        kind: DatasetKind,
    ) -> Result<(Self, M), ReadError> {
        let folder = Self { dir: dir.to_owned(), kind };
        let path = folder.manifest_path();
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(source) => return Err(folder.why_no_manifest(source)),
        };
        let damaged =
            |source| ReadError::Damaged { path: path.clone(), source: Damage::Manifest(source) };
        let head: ManifestHead = serde_json::from_slice(&text).map_err(damaged)?;
        if let Some(found) = DatasetKind::ALL
            .into_iter()
            .find(|other| *other != kind && head.format == other.format())
        {
            return Err(ReadError::OtherKind { dir: folder.dir, wanted: kind, found });
        }
        if !kind.reads(head.version) {
            let (found, supported) = (head.version, kind.version());
            return Err(ReadError::Version { path, found, supported });
        }
        let manifest = serde_json::from_slice(&text).map_err(damaged)?;
        Ok((folder, manifest))
    }

    fn why_no_manifest(self, source: io::Error) -> ReadError {
        let Self { dir, kind } = self;
        match source.kind() {
            io::ErrorKind::NotFound if !dir.exists() => ReadError::Missing { dir },
            io::ErrorKind::NotFound if dir.join(kind.other().manifest_name()).exists() => {
                ReadError::OtherKind { dir, wanted: kind, found: kind.other() }
            }
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
                ReadError::NotADataset { dir, kind }
            }
            _ => ReadError::Io { path: dir.join(kind.manifest_name()), source },
        }
    }

    /// Where the manifest is.
    pub(crate) fn manifest_path(&self) -> PathBuf {
        self.dir.join(self.kind.manifest_name())
    }

    /// Where file `number` of `stem` is.
    pub(crate) fn file_path(&self, stem: &str, number: u32) -> PathBuf {
        self.dir.join(format!("{stem}-{number:06}.parquet"))
    }

    /// The files of `stem`, first to last. The manifest counts `counted` of them, which is all if it
    /// is `finished`; otherwise a crash may have come between a file and its manifest.
    ///
    /// # Errors
    ///
    /// The folder cannot be listed, or its files are not those that the manifest counts.
    pub(crate) fn files(
        &self,
        stem: &str,
        counted: u32,
        finished: bool,
    ) -> Result<Vec<PathBuf>, ReadError> {
        let names =
            self.names().map_err(|source| ReadError::Io { path: self.dir.clone(), source })?;
        let numbers: BTreeSet<u32> =
            names.iter().filter_map(|name| file_number(name, stem)).collect();
        let last = numbers.last().copied().unwrap_or(0);
        let damaged =
            |number, source| Err(ReadError::Damaged { path: self.file_path(stem, number), source });
        if let Some(missing) = (1..=last.max(counted)).find(|number| !numbers.contains(number)) {
            return damaged(missing, Damage::MissingFile);
        }
        if finished && last > counted {
            return damaged(counted + 1, Damage::UncountedFile);
        }
        Ok(numbers.into_iter().map(|number| self.file_path(stem, number)).collect())
    }

    /// Puts the manifest in place of the one before.
    pub(crate) fn write_manifest<M: Serialize>(
        &self,
        manifest: &M,
        files_kept: u32,
    ) -> Result<(), WriteError> {
        let path = self.manifest_path();
        let mut text = serde_json::to_vec_pretty(manifest)
            .map_err(|source| WriteError::Manifest { path: path.clone(), source })?;
        text.push(b'\n');
        self.publish(&path, files_kept, |mut file| {
            file.write_all(&text)
                .map_err(|source| WriteError::from_io(path.clone(), files_kept, source))
        })
    }

    /// Makes `path` appear with what `fill` writes, or leaves it as it was.
    ///
    /// `files_kept` is for the error.
    pub(crate) fn publish(
        &self,
        path: &Path,
        files_kept: u32,
        fill: impl FnOnce(&fs::File) -> Result<(), WriteError>,
    ) -> Result<(), WriteError> {
        let failed = |source| WriteError::from_io(path.to_owned(), files_kept, source);
        let temporary = temporary_path(path);
        let write = || {
            let file = howdah_files::create_anew(&temporary).map_err(failed)?;
            fill(&file)?;
            file.sync_all().map_err(failed)?;
            fs::rename(&temporary, path).map_err(failed)
        };
        if let Err(error) = write() {
            // A partial file is of no use, and its space may be what the next attempt needs. That
            // it cannot be removed is not news beside the failure itself.
            let _ = fs::remove_file(&temporary);
            return Err(error);
        }
        fs::File::open(&self.dir).and_then(|dir| dir.sync_all()).map_err(failed)
    }

    fn names(&self) -> io::Result<Vec<String>> {
        fs::read_dir(&self.dir)?
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
            .collect()
    }

    /// Whether a name is one that a dataset of this kind makes, its manifest aside.
    fn is_ours(&self, name: &str) -> bool {
        let whole =
            |name: &str| self.kind.stems().iter().any(|stem| file_number(name, stem).is_some());
        let temporary = name.strip_prefix('.').and_then(|name| name.strip_suffix(".tmp"));
        whole(name)
            || temporary.is_some_and(|name| whole(name) || name == self.kind.manifest_name())
    }
}

/// The number in `STEM-NUMBER.parquet`.
fn file_number(name: &str, stem: &str) -> Option<u32> {
    let digits = name.strip_prefix(stem)?.strip_prefix('-')?.strip_suffix(".parquet")?;
    let number = digits.parse().ok()?;
    // `+1`, `1` and `0000001` also parse; they are not names that we give.
    (format!("{number:06}") == digits && number > 0).then_some(number)
}

/// Begins with a dot, so that `*.parquet` does not match it.
fn temporary_path(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.tmp"))
}

#[test]
fn only_names_that_we_give_are_ours() {
    assert_eq!(file_number("events-000017.parquet", "events"), Some(17));
    assert_eq!(file_number("events-1234567.parquet", "events"), Some(1_234_567));
    for name in ["events-17.parquet", "events-000000.parquet", "events-+00017.parquet", "events"] {
        assert_eq!(file_number(name, "events"), None, "{name}");
    }
    let folder = Folder { dir: PathBuf::new(), kind: DatasetKind::Run };
    assert!(folder.is_ours("outcomes-000001.parquet"));
    assert!(folder.is_ours(".statements-000001.parquet.tmp"));
    assert!(folder.is_ours(".run.json.tmp"));
    assert!(!folder.is_ours("notes.txt"));
    assert!(!folder.is_ours("events-000001.parquet"));
}
