//! Errors of writing and reading datasets.

use std::{io, path::PathBuf};

use parquet::errors::ParquetError;

use crate::{ROW_BYTES_MAX, kind::DatasetKind};

/// The reason why a dataset could not be written. Files that the writer has finished are kept.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The folder already contains a dataset of this kind, and overwriting was not requested.
    #[error("{} already contains a {kind}", dir.display())]
    Exists {
        /// Path of the folder.
        dir: PathBuf,
        /// The kind of the existing dataset.
        kind: DatasetKind,
    },
    /// The folder contains a dataset of the other kind, which is never overwritten.
    #[error("{} contains a {found}, not a {expected}; it was left unchanged", dir.display())]
    OtherKind {
        /// Path of the folder.
        dir: PathBuf,
        /// The kind of the dataset to be written.
        expected: DatasetKind,
        /// The kind of the existing dataset.
        found: DatasetKind,
    },
    /// The folder is not empty, but has no manifest. Its content is never overwritten.
    #[error("{} is not empty and contains no {kind}; it was left unchanged", dir.display())]
    NotEmpty {
        /// Path of the folder.
        dir: PathBuf,
        /// The kind of the dataset to be written.
        kind: DatasetKind,
    },
    /// The folder contains a dataset that consists of parts, which is not replaced as a whole.
    #[error("{} contains a {kind} that consists of parts; it was left unchanged", dir.display())]
    HasParts {
        /// Path of the folder.
        dir: PathBuf,
        /// The kind of the dataset to be written.
        kind: DatasetKind,
    },
    /// The folder contains a dataset that does not consist of parts, so no part can be added.
    #[error("{} already contains a {kind} that does not consist of parts", dir.display())]
    NoParts {
        /// Path of the folder.
        dir: PathBuf,
        /// The kind of the existing dataset.
        kind: DatasetKind,
    },
    /// The path is not a folder.
    #[error("{} is not a folder", path.display())]
    NotADirectory {
        /// The path as given.
        path: PathBuf,
    },
    /// The file system lacks space or quota, or the file would exceed a size limit.
    #[error("no room to write {}; finished files are kept ({files_kept} so far)", path.display())]
    NoRoom {
        /// Path of the file or folder that did not fit. A partial file is removed if possible.
        path: PathBuf,
        /// Number of files of events or outcomes that were finished earlier and can be read.
        files_kept: u32,
        /// The error of the operating system.
        source: io::Error,
    },
    /// Another failure of the file system.
    #[error("cannot write {}", path.display())]
    Io {
        /// Path of the file or folder.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The rows could not be encoded as Parquet.
    #[error("cannot encode {} as Parquet", path.display())]
    Encode {
        /// Path of the file.
        path: PathBuf,
        /// The reason that the encoder gives.
        source: ParquetError,
    },
    /// The manifest or another document could not be expressed as JSON.
    #[error("cannot encode {} as JSON", path.display())]
    Manifest {
        /// Path of the document.
        path: PathBuf,
        /// The reason that the encoder gives.
        source: serde_json::Error,
    },
    /// A row is larger than [`ROW_BYTES_MAX`]. It was not stored; later rows may be written.
    #[error("a row of {bytes} bytes exceeds the limit of {ROW_BYTES_MAX} bytes")]
    RowTooLarge {
        /// Size of the row's texts in bytes.
        bytes: usize,
    },
}

/// The reason why a dataset could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The path does not exist.
    #[error("{} does not exist", dir.display())]
    Missing {
        /// The path as given.
        dir: PathBuf,
    },
    /// The path is not a folder, or a folder without a manifest of this kind.
    #[error("{} is not a {kind}: there is no valid {}", dir.display(), kind.manifest_name())]
    NotADataset {
        /// The path as given.
        dir: PathBuf,
        /// The kind of dataset that was requested.
        kind: DatasetKind,
    },
    /// The folder holds a dataset of the other kind.
    #[error("{} is a {found}, not a {expected}", dir.display())]
    OtherKind {
        /// Path of the folder.
        dir: PathBuf,
        /// The kind of dataset that was requested.
        expected: DatasetKind,
        /// The kind of dataset in the folder.
        found: DatasetKind,
    },
    /// The format version of a manifest or file is not supported by this build.
    #[error("{} has format version {found}; this howdah reads up to version {supported}", path.display())]
    Version {
        /// Path of the manifest or file.
        path: PathBuf,
        /// Format version of the manifest or file.
        found: u32,
        /// The latest version that this build supports.
        supported: u32,
    },
    /// The parts of a dataset do not belong together.
    #[error("the parts of {} do not belong together: {reason}", dir.display())]
    Parts {
        /// Path of the folder.
        dir: PathBuf,
        /// Why they cannot be read as one dataset.
        reason: String,
    },
    /// A failure of the file system.
    #[error("cannot read {}", path.display())]
    Io {
        /// Path of the file or folder.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A file is invalid, or the files are not those that the manifest counts.
    #[error("{} is damaged", path.display())]
    Damaged {
        /// Path of the file.
        path: PathBuf,
        /// Description of the damage.
        source: Corruption,
    },
}

/// The way in which a dataset is damaged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Corruption {
    /// The file is not valid JSON of the expected form.
    #[error(transparent)]
    Manifest(#[from] serde_json::Error),
    /// The `format` of a JSON document is not the one that its file name implies.
    #[error("its format is {found}, not {expected}")]
    Format {
        /// The format that the file name implies.
        expected: &'static str,
        /// The format in the document.
        found: String,
    },
    /// The value of a key in a JSON document is not of the expected form.
    #[error("key {key} is invalid")]
    Key {
        /// The path of the key.
        key: String,
        /// The error of the decoder.
        source: serde_json::Error,
    },
    /// A key is missing in a JSON document.
    #[error("key {key} is missing")]
    MissingKey {
        /// The path of the key.
        key: String,
    },
    /// An array in a JSON document has more entries than its format allows.
    #[error("key {key} has more than {limit} entries")]
    TooLong {
        /// The path of the key.
        key: String,
        /// Maximum number of entries.
        limit: usize,
    },
    /// A JSON document is larger than its format allows.
    #[error("it is larger than {limit} bytes")]
    TooLarge {
        /// Maximum number of bytes.
        limit: u64,
    },
    /// The file is truncated, the Parquet decoder rejected it, or its columns are not those of the
    /// format.
    #[error(transparent)]
    Parquet(#[from] ParquetError),
    /// The Parquet decoder panicked because of unexpected bytes.
    #[error("the Parquet decoder failed: {message}")]
    Decoder {
        /// Message of the panic.
        message: String,
    },
    /// The file does not exist, although the manifest counts it or a later file exists.
    #[error("the file is missing")]
    MissingFile,
    /// A part does not exist, although other parts of its importer do.
    #[error("the part is missing")]
    MissingPart,
    /// The dataset is finished, and its manifest does not include this file.
    #[error("the dataset is finished, and its manifest does not include this file")]
    UncountedFile,
    /// The file's metadata has no version, or not the format of the dataset: it was not written by
    /// howdah, or belongs to another kind of dataset.
    #[error("its metadata howdah.format or howdah.version is missing or wrong")]
    NoVersion,
    /// A column contains a text that its format does not allow, such as an unknown code.
    #[error("column {column} contains {code:?}, which is not allowed there")]
    UnknownCode {
        /// Name of the column.
        column: &'static str,
        /// The text as read.
        code: String,
    },
    /// A number is out of range.
    #[error("column {column} contains {value}, which is out of range")]
    OutOfRange {
        /// Name of the column.
        column: &'static str,
        /// The number as read.
        value: i64,
    },
    /// A value is null in a row that requires one.
    #[error("column {column} is null in a row that requires it")]
    Null {
        /// Name of the column.
        column: &'static str,
    },
    /// A list does not have the expected length, such as that of a related list.
    #[error("column {column} has {found} entries, but {expected} are expected")]
    ListLength {
        /// Name of the column.
        column: &'static str,
        /// Number of entries found.
        found: usize,
        /// Number of entries expected.
        expected: usize,
    },
}

impl WriteError {
    /// Converts an error of the operating system to [`Self::NoRoom`] or [`Self::Io`].
    pub(crate) fn from_io(path: PathBuf, files_kept: u32, source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::StorageFull
            | io::ErrorKind::QuotaExceeded
            | io::ErrorKind::FileTooLarge => Self::NoRoom { path, files_kept, source },
            _ => Self::Io { path, source },
        }
    }
}

impl ReadError {
    /// Converts a decoder's error to [`Self::Io`] if the system caused it, otherwise to
    /// [`Self::Damaged`].
    pub(crate) fn from_parquet(path: PathBuf, source: ParquetError) -> Self {
        match source {
            ParquetError::External(inner) => match inner.downcast::<io::Error>() {
                Ok(io) => Self::from_io(path, *io),
                Err(inner) => Self::Damaged { path, source: ParquetError::External(inner).into() },
            },
            source => Self::Damaged { path, source: source.into() },
        }
    }

    /// Converts a read error to [`Self::Io`] or [`Self::Damaged`]. A read that ends early or seeks
    /// beyond the end means that the file is truncated, not that the disk is failing.
    pub(crate) fn from_io(path: PathBuf, source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::UnexpectedEof
            | io::ErrorKind::InvalidData
            | io::ErrorKind::InvalidInput => {
                Self::Damaged { path, source: ParquetError::EOF(source.to_string()).into() }
            }
            _ => Self::Io { path, source },
        }
    }
}
