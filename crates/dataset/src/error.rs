//! What can go wrong when a dataset is written or read.

use std::{io, path::PathBuf};

use parquet::errors::ParquetError;

use crate::{ROW_BYTES_MAX, folder::DatasetKind};

/// Why a dataset could not be written. What earlier files hold is kept in every case.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The folder already holds a dataset of this kind, and overwriting was not asked for.
    #[error("{} already holds a {kind}", dir.display())]
    Exists {
        /// The folder.
        dir: PathBuf,
        /// What it holds.
        kind: DatasetKind,
    },
    /// The folder holds a dataset of the other kind, which is never overwritten.
    #[error("{} holds a {found}, not a {wanted}; it was left alone", dir.display())]
    OtherKind {
        /// The folder.
        dir: PathBuf,
        /// What was to be written.
        wanted: DatasetKind,
        /// What it holds.
        found: DatasetKind,
    },
    /// The folder holds files that are not a dataset, which are never overwritten.
    #[error("{} is not empty and holds no {kind}; it was left alone", dir.display())]
    NotEmpty {
        /// The folder.
        dir: PathBuf,
        /// What was to be written.
        kind: DatasetKind,
    },
    /// The path names something that is not a folder.
    #[error("{} is not a folder", path.display())]
    NotADirectory {
        /// The path as given.
        path: PathBuf,
    },
    /// The file system has no room: full, over quota, or the file would exceed a size limit.
    #[error("no room to write {}; {files_kept} finished files are kept", path.display())]
    NoRoom {
        /// The file that did not fit. Its partial copy has been removed.
        path: PathBuf,
        /// Files of rows that were finished before it and can be read.
        files_kept: u32,
        /// What the system said.
        source: io::Error,
    },
    /// Another failure of the file system.
    #[error("cannot write {}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The Parquet encoder refused the rows.
    #[error("cannot encode {}", path.display())]
    Encode {
        /// The file.
        path: PathBuf,
        /// What the encoder said.
        source: ParquetError,
    },
    /// The manifest could not be expressed as JSON.
    #[error("cannot encode {}", path.display())]
    Manifest {
        /// The manifest.
        path: PathBuf,
        /// What the encoder said.
        source: serde_json::Error,
    },
    /// One row is larger than [`ROW_BYTES_MAX`]. Nothing was stored of it; others may follow.
    #[error("a row of {bytes} bytes is larger than a dataset takes ({ROW_BYTES_MAX})")]
    RowTooLarge {
        /// Its size.
        bytes: usize,
    },
}

/// Why a dataset could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// There is nothing at the path.
    #[error("{} does not exist", dir.display())]
    Missing {
        /// The path as given.
        dir: PathBuf,
    },
    /// The path is not a folder, or a folder without a manifest.
    #[error("{} is not a {kind}: there is no {}", dir.display(), kind.manifest_name())]
    NotADataset {
        /// The path as given.
        dir: PathBuf,
        /// What was wanted.
        kind: DatasetKind,
    },
    /// The folder holds a dataset of the other kind.
    #[error("{} is a {found}, not a {wanted}", dir.display())]
    OtherKind {
        /// The folder.
        dir: PathBuf,
        /// What was wanted.
        wanted: DatasetKind,
        /// What it holds.
        found: DatasetKind,
    },
    /// A manifest or file of a format version that this build does not know.
    #[error("{} has format version {found}; this howdah reads up to version {supported}", path.display())]
    Version {
        /// The manifest or file.
        path: PathBuf,
        /// Its version.
        found: u32,
        /// The latest version this build reads.
        supported: u32,
    },
    /// A failure of the file system.
    #[error("cannot read {}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file is not what its name says.
    #[error("{} is damaged", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: Damage,
    },
}

/// What is wrong with a file of a dataset.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Damage {
    /// The manifest is not the JSON it should be.
    #[error(transparent)]
    Manifest(#[from] serde_json::Error),
    /// The Parquet decoder refused the file, or its columns are not those of the format.
    #[error(transparent)]
    Parquet(#[from] ParquetError),
    /// The Parquet decoder met bytes that it did not expect at all.
    #[error("the decoder gave up: {message}")]
    Decoder {
        /// What it gave up with.
        message: String,
    },
    /// The file is not there, although the manifest counts it or a later file exists.
    #[error("the file is missing")]
    MissingFile,
    /// The dataset is finished and its manifest does not count this file.
    #[error("the manifest does not count this file")]
    UncountedFile,
    /// The file carries no format version, so it was not written by howdah.
    #[error("it has no howdah.version")]
    NoVersion,
    /// A column holds a word that the format does not have.
    #[error("column {column} holds {word:?}")]
    Word {
        /// The column.
        column: &'static str,
        /// What it holds.
        word: String,
    },
    /// A number is outside the range of its column.
    #[error("column {column} holds {value}")]
    Number {
        /// The column.
        column: &'static str,
        /// What it holds.
        value: i64,
    },
    /// A column is null where the row's kind needs a value.
    #[error("column {column} is null in a row that needs it")]
    Null {
        /// The column.
        column: &'static str,
    },
    /// A list has not as many entries as the list it goes with.
    #[error("column {column} has {found} entries where {wanted} are needed")]
    Length {
        /// The column.
        column: &'static str,
        /// Entries it has.
        found: usize,
        /// Entries it needs.
        wanted: usize,
    },
}

impl WriteError {
    /// Sorts a system error by whether there is room.
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
    /// Sorts a decoder's error by whether the system or the file is to blame.
    pub(crate) fn from_parquet(path: PathBuf, source: ParquetError) -> Self {
        match source {
            ParquetError::External(inner) => match inner.downcast::<io::Error>() {
                Ok(io) => Self::from_io(path, *io),
                Err(inner) => Self::Damaged { path, source: ParquetError::External(inner).into() },
            },
            source => Self::Damaged { path, source: source.into() },
        }
    }

    /// A read that ends early or seeks beyond the end means a cut file, not a failing disk.
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
