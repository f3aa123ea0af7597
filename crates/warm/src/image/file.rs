//! Reads and writes image files: written atomically, validated when read, with older generations.
//!
//! | bytes | contents |
//! |---|---|
//! | 0–7 | `HOWDAHCI` |
//! | 8–11 | format version, little-endian; currently 2 |
//! | 12–19 | size of the uncompressed body, little-endian |
//! | 20–27 | XXH3-64 of the uncompressed body, little-endian |
//! | 28– | the body, one zstd frame; padding in a skippable frame if it compresses too well |

use std::{
    ffi::OsString,
    fs::{self, File},
    io::{self, Read, Write as _},
    path::{Path, PathBuf},
};

use xxhash_rust::xxh3::xxh3_64;

use super::{
    BodyError, CacheImage, ImageError,
    body::{ORIGIN_BYTES_MAX, size_limit},
};

/// The reason why a file could not be read or written.
#[derive(Debug, thiserror::Error)]
#[error("{} could not be {action}", path.display())]
pub struct FileError {
    /// Path of the file.
    pub path: PathBuf,
    /// The attempted action: `read`, `written`, …
    pub action: &'static str,
    /// The system error.
    #[source]
    pub source: io::Error,
}

/// Number of older images to retain: `NAME.1` is the previous one, `NAME.2` the one before that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Generations(pub u32);

impl CacheImage {
    /// Reads an image file.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or is not an image, truncated, corrupted, or of another format
    /// version.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, ImageError> {
        let path = path.as_ref();
        let failed = |source| FileError { path: path.to_path_buf(), action: "read", source };
        let file = File::open(path).map_err(failed)?;
        let mut bytes = Vec::new();
        file.take(MAX_FILE_BYTES).read_to_end(&mut bytes).map_err(failed)?;
        Self::parse(&bytes).map_err(|source| ImageError::Body { path: path.to_path_buf(), source })
    }

    /// Writes the image to `path` atomically: to a temporary file next to it, flushed to disk, then
    /// renamed. So there is always a complete image at `path`, the old or the new one. Older images
    /// are retained as [`Generations`] says.
    ///
    /// # Errors
    ///
    /// A file cannot be written or renamed, e.g. because the disk is full; the old image stays. Or
    /// the folder cannot be flushed, after the new image has replaced the old one.
    pub fn save(&self, path: impl AsRef<Path>, generations: Generations) -> Result<(), ImageError> {
        let path = path.as_ref();
        let bytes = self.encode(path)?;
        let written = with_suffix(path, ".tmp");
        let saved = write_synced(&written, &bytes)
            .map_err(|source| FileError { path: written.clone(), action: "written", source })
            .and_then(|()| rotate_generations(path, generations))
            .and_then(|()| {
                let renamed = fs::rename(&written, path).and_then(|()| sync_parent_dir(path));
                renamed.map_err(|source| FileError {
                    path: path.to_path_buf(),
                    action: "renamed into place",
                    source,
                })
            });
        if saved.is_err() {
            // Failure to remove the temporary file is less important than the error that is
            // returned.
            let _ = fs::remove_file(&written);
        }
        Ok(saved?)
    }

    /// Parses the bytes of an image file.
    ///
    /// # Errors
    ///
    /// The bytes are not an image, are damaged, or have another format version.
    pub fn parse(bytes: &[u8]) -> Result<Self, BodyError> {
        let (head, packed) =
            bytes.split_first_chunk::<HEADER_BYTES>().ok_or(BodyError::NotAnImage)?;
        if !head.starts_with(MAGIC) {
            return Err(BodyError::NotAnImage);
        }
        let number = |at: usize| {
            u64::from_le_bytes(head[at..at + 8].try_into().expect("slice has eight bytes"))
        };
        let found = (number(8) & 0xffff_ffff) as u32;
        if !(1..=VERSION).contains(&found) {
            return Err(BodyError::Version { found, known: VERSION });
        }
        let (length, expected) = (number(12), number(20));
        let body = decompress(packed, length)?;
        match xxh3_64(&body) {
            checksum if checksum == expected => Self::from_bytes(&body, found),
            checksum => Err(BodyError::Checksum { found: checksum, expected }),
        }
    }

    fn encode(&self, path: &Path) -> Result<Vec<u8>, FileError> {
        let body = self.to_bytes();
        let mut bytes = Vec::from(*MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend((body.len() as u64).to_le_bytes());
        bytes.extend(xxh3_64(&body).to_le_bytes());
        let packed = zstd::encode_all(&*body, COMPRESSION_LEVEL).map_err(|source| FileError {
            path: path.to_path_buf(),
            action: "compressed",
            source,
        })?;
        bytes.extend(packed);
        pad(&mut bytes, body.len() as u64);
        Ok(bytes)
    }
}

/// Decompresses a body of the stated `length`. Refuses a length that the size of the file does not
/// justify, or the number of buffers at the body's start, before decompressing more than that
/// start. Memory grows with the data and not with the stated length, up to about twice of it.
fn decompress(packed: &[u8], length: u64) -> Result<Vec<u8>, BodyError> {
    let check = |limit: u64| match length {
        length if length > limit => Err(BodyError::TooLarge { bytes: length, limit }),
        _ => Ok(()),
    };
    check(MAX_BODY_BYTES)?;
    check(size_limit_of_file(packed.len() as u64))?;
    let mut body = Vec::new();
    let mut decoder = zstd::Decoder::new(packed).map_err(BodyError::Decompression)?;
    decoder.window_log_max(WINDOW_LOG_MAX).map_err(BodyError::Decompression)?;
    read_up_to(&mut decoder, ORIGIN_BYTES_MAX.min(length), &mut body)?;
    if let Some(limit) = size_limit(&body)? {
        check(limit)?;
    }
    // Read one byte more than expected, to detect excess data.
    let rest = (length + 1).saturating_sub(body.len() as u64);
    read_up_to(&mut decoder, rest, &mut body)?;
    match body.len() as u64 {
        read if read < length => Err(BodyError::Truncated),
        read if read > length => Err(BodyError::InconsistentCounts),
        _ => Ok(body),
    }
}

fn read_up_to(from: &mut impl Read, bytes: u64, body: &mut Vec<u8>) -> Result<(), BodyError> {
    match from.take(bytes).read_to_end(body) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(BodyError::Truncated),
        Err(error) => Err(BodyError::Decompression(error)),
        Ok(_) => Ok(()),
    }
}

/// Returns the maximum size of a body whose compressed form takes `packed` bytes.
fn size_limit_of_file(packed: u64) -> u64 {
    packed.saturating_mul(RATIO_MAX).saturating_add(SMALL_BODY_BYTES)
}

/// Pads an image of an extremely uniform cache with a frame that decompression skips (RFC 8878,
/// 3.1.2), so that its body is not larger than [`size_limit_of_file`] permits.
fn pad(bytes: &mut Vec<u8>, body: u64) {
    let packed = (bytes.len() - HEADER_BYTES) as u64;
    let padding = body.saturating_sub(SMALL_BODY_BYTES).div_ceil(RATIO_MAX).saturating_sub(packed);
    // At most 1 MiB, because a body is at most 1 GiB.
    if let Ok(padding @ 1..) = u32::try_from(padding) {
        bytes.extend(SKIPPABLE_MAGIC.to_le_bytes());
        bytes.extend(padding.to_le_bytes());
        bytes.resize(bytes.len() + padding as usize, 0);
    }
}

fn write_synced(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = howdah_files::create_new(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Renames `path.1` to `path.2` and so on, which drops the oldest, and links the image at `path` as
/// `path.1`.
fn rotate_generations(path: &Path, generations: Generations) -> Result<(), FileError> {
    let name = |generation: u32| match generation {
        0 => path.to_path_buf(),
        generation => with_suffix(path, &format!(".{generation}")),
    };
    for generation in (0..generations.0).rev() {
        let (from, to) = (name(generation), name(generation + 1));
        // The newest is hard-linked, not renamed, so that there is always an image at `path`.
        let moved = if generation == 0 {
            remove_if_exists(&to).and_then(|()| fs::hard_link(&from, &to))
        } else {
            fs::rename(&from, &to)
        };
        match moved {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(source) => {
                return Err(FileError { path: from, action: "retained as an older image", source });
            }
            Ok(()) => {}
        }
    }
    Ok(())
}

fn remove_if_exists(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

fn sync_parent_dir(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

fn with_suffix(path: &Path, ending: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(ending);
    PathBuf::from(name)
}

const MAGIC: &[u8; 8] = b"HOWDAHCI";
const VERSION: u32 = 2;
const HEADER_BYTES: usize = 28;
/// Maximum size of an uncompressed body: two bytes for each of 512 million pages, 4 TiB of buffers.
const MAX_BODY_BYTES: u64 = 1 << 30;
const MAX_FILE_BYTES: u64 = MAX_BODY_BYTES;
/// Maximum size of a body that may compress by any ratio: that of 13 million adjacent pages with
/// equal usage counts, 100 GB.
const SMALL_BODY_BYTES: u64 = 8 << 20;
/// Maximum ratio of the part of a body above [`SMALL_BODY_BYTES`] to the compressed size. The
/// largest that zstd reaches is about 30 000.
const RATIO_MAX: u64 = 1024;
/// Maximum base-2 logarithm of the window, which the decoder allocates: 8 MiB.
/// [`COMPRESSION_LEVEL`] uses 2 MiB.
const WINDOW_LOG_MAX: u32 = 23;
const SKIPPABLE_MAGIC: u32 = 0x184d_2a50;
/// zstd level, fast enough not to slow down a dump; higher levels save only a few percent.
const COMPRESSION_LEVEL: i32 = 3;

#[cfg(test)]
mod tests;
