//! [`DataFile`]: a file that the Parquet decoder reads.

use std::{
    fs,
    io::{self, BufReader, Read, Seek as _, SeekFrom},
    ops::Range,
    path::{Path, PathBuf},
};

use bytes::{Buf as _, Bytes};
use parquet::{
    errors::{ParquetError, Result as ParquetResult},
    file::reader::{ChunkReader, Length},
};

use super::{Store, is_store_url};

/// A file that the Parquet decoder reads: local, or partly in memory.
#[derive(Debug)]
pub(crate) enum DataFile {
    /// An open local file.
    Local(fs::File),
    /// A range of a file, in memory. What is outside of it is read from the store if needed.
    Range {
        /// Path or URL of the file.
        path: PathBuf,
        /// Offset of the range in the file.
        offset: u64,
        /// The content of the range.
        bytes: Bytes,
        /// Size of the whole file.
        size: u64,
    },
}

impl DataFile {
    /// Opens a file to read its footer.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        if !is_store_url(path) {
            return fs::File::open(path).map(Self::Local);
        }
        let (bytes, size) = Store::of(path)?.read_end(path, FOOTER_BYTES)?;
        let offset = size.saturating_sub(bytes.len() as u64);
        Ok(Self::Range { path: path.to_owned(), offset, bytes, size })
    }

    /// Opens a file to read a range of it, which is read into memory if the file is in a store, or
    /// if local files must not stay open.
    pub(crate) fn open_range(path: &Path, range: Range<u64>, in_memory: bool) -> io::Result<Self> {
        let whole = range.end;
        if is_store_url(path) {
            let bytes = Store::of(path)?.read_range(path, range.clone())?;
            let path = path.to_owned();
            return Ok(Self::Range { path, offset: range.start, bytes, size: whole });
        }
        let mut file = fs::File::open(path)?;
        if !in_memory {
            return Ok(Self::Local(file));
        }
        let size = file.metadata()?.len();
        if range.end > size {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        file.seek(SeekFrom::Start(range.start))?;
        let mut bytes = Vec::new();
        file.take(range.end - range.start).read_to_end(&mut bytes)?;
        Ok(Self::Range { path: path.to_owned(), offset: range.start, bytes: bytes.into(), size })
    }

    /// Returns the size of the file, or of its part up to the end of the range.
    pub(crate) fn size(&self) -> io::Result<u64> {
        match self {
            Self::Local(file) => Ok(file.metadata()?.len()),
            Self::Range { size, .. } => Ok(*size),
        }
    }

    /// Returns `length` bytes from `start` on, or those up to the end of the range in memory if no
    /// length is given.
    fn bytes(&self, start: u64, length: Option<usize>) -> ParquetResult<Bytes> {
        let Self::Range { path, offset, bytes, .. } = self else {
            unreachable!("local files are read by the decoder's own reader")
        };
        let from = start.checked_sub(*offset).and_then(|from| usize::try_from(from).ok());
        let in_memory = from.filter(|from| *from <= bytes.len()).and_then(|from| match length {
            None => Some(bytes.slice(from..)),
            Some(length) => {
                let to = from.checked_add(length).filter(|to| *to <= bytes.len())?;
                Some(bytes.slice(from..to))
            }
        });
        match (in_memory, length) {
            (Some(bytes), _) => Ok(bytes),
            (None, Some(length)) if is_store_url(path) => {
                let range = start..start.saturating_add(length as u64);
                let read = Store::of(path).and_then(|store| store.read_range(path, range));
                read.map_err(|error| ParquetError::External(Box::new(error)))
            }
            _ => Err(ParquetError::EOF(format!("there are no bytes at offset {start}"))),
        }
    }
}

/// Bytes at the end of a file that are read at once: almost always the whole footer.
const FOOTER_BYTES: u64 = 64 << 10;

impl Length for DataFile {
    fn len(&self) -> u64 {
        self.size().unwrap_or(0)
    }
}

impl ChunkReader for DataFile {
    type T = Box<dyn Read + Send>;

    fn get_read(&self, start: u64) -> ParquetResult<Self::T> {
        match self {
            Self::Local(file) => {
                let mut file = file.try_clone()?;
                file.seek(SeekFrom::Start(start))?;
                Ok(Box::new(BufReader::new(file)))
            }
            Self::Range { .. } => Ok(Box::new(self.bytes(start, None)?.reader())),
        }
    }

    fn get_bytes(&self, start: u64, length: usize) -> ParquetResult<Bytes> {
        match self {
            Self::Local(file) => file.get_bytes(start, length),
            Self::Range { .. } => self.bytes(start, Some(length)),
        }
    }
}

#[test]
fn range_in_memory_serves_only_its_bytes() {
    let file = DataFile::Range {
        path: PathBuf::from("events-000001.parquet"),
        offset: 10,
        bytes: Bytes::from_static(b"0123456789"),
        size: 20,
    };
    assert_eq!(file.get_bytes(12, 3).unwrap(), "234");
    let mut rest = String::new();
    file.get_read(17).unwrap().read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "789");
    assert!(file.get_bytes(9, 1).is_err());
    assert!(file.get_bytes(19, 2).is_err());
}
