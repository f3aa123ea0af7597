//! Unpacks gzip, zstd and bzip2 on a separate thread.
//!
//! The compression is detected from the first bytes, never from the file name. Concatenated members
//! are read one after another. Regardless of an archive's size, only a few of its chunks are in
//! memory at a time. A truncated or damaged archive is read up to the damage.

use std::{
    fs::File,
    io::{self, BufReader, Cursor, Read},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{self, Receiver, RecvTimeoutError, SyncSender},
    },
    thread,
    time::Duration,
};

use serde::Serialize;

/// A compression format in which logs are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Compression {
    /// gzip, with one or more members.
    Gzip,
    /// Zstandard, with one or more frames.
    Zstd,
    /// bzip2, with one or more streams.
    Bzip2,
}

impl Compression {
    /// Detects the compression of a file that begins with `head`; `None` if it is none of these.
    ///
    /// A `head` of [`HEAD_BYTES`](Self::HEAD_BYTES) bytes is sufficient.
    pub(super) fn detect(head: &[u8]) -> Option<Self> {
        match head {
            [0x1f, 0x8b, 8, ..] => Some(Self::Gzip),
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Some(Self::Zstd),
            // Parallel compressors begin with a skippable frame.
            [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Some(Self::Zstd),
            [b'B', b'Z', b'h', b'1'..=b'9', 0x31 | 0x17, ..] => Some(Self::Bzip2),
            _ => None,
        }
    }

    /// Number of bytes that identify a compression.
    pub(super) const HEAD_BYTES: usize = 5;

    /// Returns the compression's name, which is also that of its command.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Zstd => "zstd",
            Self::Bzip2 => "bzip2",
        }
    }

    fn reader(self, packed: impl Read + 'static) -> io::Result<Box<dyn Read>> {
        let packed = BufReader::with_capacity(CHUNK_BYTES, packed);
        Ok(match self {
            Self::Gzip => Box::new(flate2::bufread::MultiGzDecoder::new(packed)),
            Self::Bzip2 => Box::new(bzip2::bufread::MultiBzDecoder::new(packed)),
            Self::Zstd => {
                let mut decoder = zstd::stream::read::Decoder::with_buffer(packed)?;
                decoder.window_log_max(WINDOW_LOG_MAX)?;
                Box::new(decoder)
            }
        })
    }
}

/// Maximum window of a zstd frame, as a power of two: 128 MiB, as for the `zstd` command.
const WINDOW_LOG_MAX: u32 = 27;

/// Size of an unpacked chunk in bytes, and the maximum number of queued chunks.
const CHUNK_BYTES: usize = 256 << 10;
const QUEUE_DEPTH: usize = 4;

/// A thread that unpacks a file.
#[derive(Debug)]
pub(super) struct UnpackThread {
    chunks: Receiver<UnpackedChunk>,
}

/// A chunk of unpacked bytes, or the reason why there is none.
#[derive(Debug)]
pub(super) enum UnpackedChunk {
    Bytes(Vec<u8>),
    /// The archive is truncated or damaged, or followed by other data; with the decoder's message.
    Damaged(String),
    /// Reading the file failed.
    Failed(io::Error),
    /// The timeout passed without data.
    Idle,
    End,
}

impl UnpackThread {
    /// Starts a thread that unpacks `file`, whose first bytes have already been read into `head`.
    /// Adds the number of bytes read from `file` to `read_bytes`.
    ///
    /// The thread ends at the end of the archive, at an error, or when the receiver is dropped. If
    /// it is waiting for data from a pipe at that moment, it ends only once more data arrives.
    ///
    /// # Errors
    ///
    /// The system cannot start a thread.
    pub(super) fn spawn(
        compression: Compression,
        head: Vec<u8>,
        file: File,
        read_bytes: Arc<AtomicU64>,
    ) -> io::Result<Self> {
        let (sender, chunks) = mpsc::sync_channel(QUEUE_DEPTH);
        let packed = Cursor::new(head).chain(CountingReader { file, read_bytes });
        thread::Builder::new().name("log-unpacker".to_owned()).spawn(move || {
            match compression.reader(packed) {
                Ok(reader) => unpack(reader, &sender),
                // If the receiver is gone, the error is not needed.
                Err(error) => drop(sender.send(UnpackedChunk::Damaged(error.to_string()))),
            }
        })?;
        Ok(Self { chunks })
    }

    /// Waits for the next chunk; returns [`UnpackedChunk::Idle`] if none arrives within `timeout`,
    /// if one is given.
    pub(super) fn next(&self, timeout: Option<Duration>) -> UnpackedChunk {
        let next = match timeout {
            Some(timeout) => self.chunks.recv_timeout(timeout),
            None => self.chunks.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match next {
            Ok(chunk) => chunk,
            Err(RecvTimeoutError::Timeout) => UnpackedChunk::Idle,
            Err(RecvTimeoutError::Disconnected) => UnpackedChunk::End,
        }
    }
}

fn unpack(mut reader: Box<dyn Read>, sender: &SyncSender<UnpackedChunk>) {
    loop {
        let mut bytes = vec![0; CHUNK_BYTES];
        let chunk = match reader.read(&mut bytes) {
            Ok(0) => return,
            Ok(len) => {
                bytes.truncate(len);
                UnpackedChunk::Bytes(bytes)
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            // Errors of the system have a number, those of the decoders have none.
            Err(error) if error.raw_os_error().is_some() => UnpackedChunk::Failed(error),
            Err(error) => UnpackedChunk::Damaged(error.to_string()),
        };
        let is_last = !matches!(chunk, UnpackedChunk::Bytes(_));
        if sender.send(chunk).is_err() || is_last {
            return;
        }
    }
}

/// A file that counts the bytes read from it.
struct CountingReader {
    file: File,
    read_bytes: Arc<AtomicU64>,
}

impl Read for CountingReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = self.file.read(buffer)?;
        self.read_bytes.fetch_add(len as u64, Ordering::Relaxed);
        Ok(len)
    }
}

#[test]
fn archives_are_detected_by_their_first_bytes() {
    let zstd = zstd::encode_all(&b"x"[..], 1).expect("memory");
    assert_eq!(Compression::detect(&zstd[..Compression::HEAD_BYTES]), Some(Compression::Zstd));
    assert_eq!(Compression::detect(b"\x1f\x8b\x08\x00\x00"), Some(Compression::Gzip));
    for (head, expected) in
        [(b"BZh91", Some(Compression::Bzip2)), (b"BZh9 ", None), (b"2026-", None)]
    {
        assert_eq!(Compression::detect(head), expected);
    }
    assert_eq!(Compression::detect(b""), None);
}
