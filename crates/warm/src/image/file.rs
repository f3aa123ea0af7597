//! Image files: written whole or not at all, told from damaged ones, older ones kept.
//!
//! | bytes | what |
//! |---|---|
//! | 0–7 | `HOWDAHCI` |
//! | 8–11 | version of the format, little-endian; this is 1 |
//! | 12–19 | bytes of the body before compression, little-endian |
//! | 20–27 | XXH3-64 of the body before compression, little-endian |
//! | 28– | the body, one zstd frame |

use std::{
    ffi::OsString,
    fs::{self, File},
    io::{self, Read as _, Write as _},
    path::{Path, PathBuf},
};

use xxhash_rust::xxh3::xxh3_64;

use super::{BodyError, CacheImage, ImageError};

/// Why a file could not be read or written.
#[derive(Debug, thiserror::Error)]
#[error("{} could not be {action}", path.display())]
pub struct FileError {
    /// Which.
    pub path: PathBuf,
    /// What was tried: `read`, `written`, …
    pub action: &'static str,
    /// Why not.
    #[source]
    pub source: io::Error,
}

/// How many older images of the same name are kept: `NAME.1` is the one before, `NAME.2` the one
/// before that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Generations(pub u32);

impl CacheImage {
    /// Reads an image.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or is no image, cut, changed, or of a later version.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, ImageError> {
        let path = path.as_ref();
        let failed = |source| FileError { path: path.to_path_buf(), action: "read", source };
        let file = File::open(path).map_err(failed)?;
        let mut bytes = Vec::new();
        file.take(MAX_FILE_BYTES).read_to_end(&mut bytes).map_err(failed)?;
        Self::parse(&bytes).map_err(|source| ImageError::Body { path: path.to_path_buf(), source })
    }

    /// Writes the image at `path`: to a file beside it first, flushed to the disk, then renamed. So
    /// there is a whole image at `path` at any moment, the old one or the new one.
    ///
    /// # Errors
    ///
    /// A file cannot be written, for instance because the disk is full; what was there stays.
    pub fn save(&self, path: impl AsRef<Path>, keep: Generations) -> Result<(), ImageError> {
        let path = path.as_ref();
        let bytes = self.pack(path)?;
        let written = beside(path, ".tmp");
        let saved = write_through(&written, &bytes)
            .map_err(|source| FileError { path: written.clone(), action: "written", source })
            .and_then(|()| shift(path, keep))
            .and_then(|()| {
                let renamed = fs::rename(&written, path).and_then(|()| sync_folder_of(path));
                renamed.map_err(|source| FileError {
                    path: path.to_path_buf(),
                    action: "renamed into place",
                    source,
                })
            });
        if saved.is_err() {
            // What was written helps nobody now; that it cannot be removed does not matter beside the
            // error that is told.
            let _ = fs::remove_file(&written);
        }
        Ok(saved?)
    }

    /// Reads an image from the bytes of its file.
    ///
    /// # Errors
    ///
    /// They are none, or damaged.
    pub fn parse(bytes: &[u8]) -> Result<Self, BodyError> {
        let (head, packed) =
            bytes.split_first_chunk::<HEAD_BYTES>().ok_or(BodyError::NotAnImage)?;
        if !head.starts_with(MARK) {
            return Err(BodyError::NotAnImage);
        }
        let number = |at: usize| {
            u64::from_le_bytes(head[at..at + 8].try_into().expect("eight bytes are taken"))
        };
        let found = (number(8) & 0xffff_ffff) as u32;
        if found != VERSION {
            return Err(BodyError::Version { found, known: VERSION });
        }
        let (length, expected) = (number(12), number(20));
        let body = unpack(packed, length)?;
        match xxh3_64(&body) {
            checksum if checksum == expected => Self::from_bytes(&body),
            checksum => Err(BodyError::Checksum { found: checksum, expected }),
        }
    }

    fn pack(&self, path: &Path) -> Result<Vec<u8>, FileError> {
        let body = self.to_bytes();
        let mut bytes = Vec::from(*MARK);
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend((body.len() as u64).to_le_bytes());
        bytes.extend(xxh3_64(&body).to_le_bytes());
        let packed = zstd::encode_all(&*body, LEVEL).map_err(|source| FileError {
            path: path.to_path_buf(),
            action: "compressed",
            source,
        })?;
        bytes.extend(packed);
        Ok(bytes)
    }
}

fn unpack(packed: &[u8], length: u64) -> Result<Vec<u8>, BodyError> {
    if length > MAX_BODY_BYTES {
        return Err(BodyError::TooLarge { bytes: length, limit: MAX_BODY_BYTES });
    }
    let mut body = Vec::new();
    let decoder = zstd::Decoder::new(packed).map_err(BodyError::Packing)?;
    // One byte more than there should be shows that there is more; memory grows with what comes, not
    // with what the head claims.
    let read = decoder.take(length + 1).read_to_end(&mut body);
    match read {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(BodyError::Cut),
        Err(error) => Err(BodyError::Packing(error)),
        Ok(read) if (read as u64) < length => Err(BodyError::Cut),
        Ok(read) if read as u64 > length => Err(BodyError::Counts),
        Ok(_) => Ok(body),
    }
}

fn write_through(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = howdah_files::create_anew(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Moves the image at `path` to `path.1`, that one to `path.2`, and so on; the last one goes.
fn shift(path: &Path, keep: Generations) -> Result<(), FileError> {
    let name = |generation: u32| match generation {
        0 => path.to_path_buf(),
        generation => beside(path, &format!(".{generation}")),
    };
    for generation in (0..keep.0).rev() {
        let (from, to) = (name(generation), name(generation + 1));
        // The newest is linked, not moved, so that there is an image at `path` all the time.
        let moved = if generation == 0 {
            remove_if_there(&to).and_then(|()| fs::hard_link(&from, &to))
        } else {
            fs::rename(&from, &to)
        };
        match moved {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(source) => {
                return Err(FileError { path: from, action: "kept as an older image", source });
            }
            Ok(()) => {}
        }
    }
    Ok(())
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

fn sync_folder_of(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(ending);
    PathBuf::from(name)
}

const MARK: &[u8; 8] = b"HOWDAHCI";
const VERSION: u32 = 1;
const HEAD_BYTES: usize = 28;
/// A body of this size stands for more than 512 million pages, 4 TiB of buffers.
const MAX_BODY_BYTES: u64 = 1 << 30;
const MAX_FILE_BYTES: u64 = MAX_BODY_BYTES;
/// Fast enough to be no part of a dump's time; more compression gains a few percent.
const LEVEL: i32 = 3;

#[cfg(test)]
mod tests;
