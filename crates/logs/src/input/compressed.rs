//! gzip, zstd and bzip2, unpacked on a thread of their own.
//!
//! What a file is packed with is told from its first bytes, never from its name. Members that were
//! written one after another are read one after another. Whatever an archive unpacks to, only a few
//! pieces of it are in memory at a time. One that is cut short or damaged gives what comes before.

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

/// How a file is packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Compression {
    /// gzip, of one or more members.
    Gzip,
    /// Zstandard, of one or more frames.
    Zstd,
    /// bzip2, of one or more streams.
    Bzip2,
}

impl Compression {
    /// What a file that begins with `head` is packed with; `None` if with nothing that we know.
    ///
    /// [`HEAD_BYTES`](Self::HEAD_BYTES) of it are enough.
    pub(super) fn of(head: &[u8]) -> Option<Self> {
        match head {
            [0x1f, 0x8b, 8, ..] => Some(Self::Gzip),
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Some(Self::Zstd),
            // A frame to be skipped, as parallel compressors begin with.
            [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Some(Self::Zstd),
            [b'B', b'Z', b'h', b'1'..=b'9', 0x31 | 0x17, ..] => Some(Self::Bzip2),
            _ => None,
        }
    }

    /// Bytes that tell it.
    pub(super) const HEAD_BYTES: usize = 5;

    /// The word for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Zstd => "zstd",
            Self::Bzip2 => "bzip2",
        }
    }

    fn reader(self, packed: impl Read + 'static) -> io::Result<Box<dyn Read>> {
        let packed = BufReader::with_capacity(PIECE_BYTES, packed);
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

/// The window that a zstd frame may ask for, as a power of two: 128 MiB, as the `zstd` command.
const WINDOW_LOG_MAX: u32 = 27;

/// Unpacked bytes that are handed over at once, and how many such pieces may wait.
const PIECE_BYTES: usize = 256 << 10;
const PIECES_AHEAD: usize = 4;

/// A file that is being unpacked.
#[derive(Debug)]
pub(super) struct Unpacking {
    pieces: Receiver<Piece>,
}

/// What comes out of an archive.
#[derive(Debug)]
pub(super) enum Piece {
    Bytes(Vec<u8>),
    /// It goes on with something that is no archive, or it is cut short: why.
    Damaged(String),
    /// Reading it failed.
    Failed(io::Error),
    /// Nothing for now.
    Silence,
    End,
}

impl Unpacking {
    /// Begins to unpack a file of which `head` was read already. Bytes read from `file` are added to
    /// `read_bytes`.
    ///
    /// The thread ends when the archive does, or when nobody takes its pieces any more. If it waits
    /// for a pipe at that time, then when something comes.
    ///
    /// # Errors
    ///
    /// The system gives no thread.
    pub(super) fn begin(
        compression: Compression,
        head: Vec<u8>,
        file: File,
        read_bytes: Arc<AtomicU64>,
    ) -> io::Result<Self> {
        let (sender, pieces) = mpsc::sync_channel(PIECES_AHEAD);
        let packed = Cursor::new(head).chain(Counted { file, read_bytes });
        thread::Builder::new().name("log-unpacker".to_owned()).spawn(move || {
            match compression.reader(packed) {
                Ok(reader) => unpack(reader, &sender),
                // If nobody takes it, nobody needs it.
                Err(error) => drop(sender.send(Piece::Damaged(error.to_string()))),
            }
        })?;
        Ok(Self { pieces })
    }

    /// The next piece; with a `patience`, none if nothing comes for so long.
    pub(super) fn next(&self, patience: Option<Duration>) -> Piece {
        let next = match patience {
            Some(patience) => self.pieces.recv_timeout(patience),
            None => self.pieces.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match next {
            Ok(piece) => piece,
            Err(RecvTimeoutError::Timeout) => Piece::Silence,
            Err(RecvTimeoutError::Disconnected) => Piece::End,
        }
    }
}

fn unpack(mut reader: Box<dyn Read>, sender: &SyncSender<Piece>) {
    loop {
        let mut bytes = vec![0; PIECE_BYTES];
        let piece = match reader.read(&mut bytes) {
            Ok(0) => return,
            Ok(len) => {
                bytes.truncate(len);
                Piece::Bytes(bytes)
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            // The system's errors have numbers, those of the decoders have none.
            Err(error) if error.raw_os_error().is_some() => Piece::Failed(error),
            Err(error) => Piece::Damaged(error.to_string()),
        };
        let is_last = !matches!(piece, Piece::Bytes(_));
        if sender.send(piece).is_err() || is_last {
            return;
        }
    }
}

/// A file whose reading is watched.
struct Counted {
    file: File,
    read_bytes: Arc<AtomicU64>,
}

impl Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = self.file.read(buffer)?;
        self.read_bytes.fetch_add(len as u64, Ordering::Relaxed);
        Ok(len)
    }
}

#[test]
fn archives_are_told_by_their_first_bytes() {
    let zstd = zstd::encode_all(&b"x"[..], 1).expect("memory");
    assert_eq!(Compression::of(&zstd[..Compression::HEAD_BYTES]), Some(Compression::Zstd));
    assert_eq!(Compression::of(b"\x1f\x8b\x08\x00\x00"), Some(Compression::Gzip));
    for (head, expected) in
        [(b"BZh91", Some(Compression::Bzip2)), (b"BZh9 ", None), (b"2026-", None)]
    {
        assert_eq!(Compression::of(head), expected);
    }
    assert_eq!(Compression::of(b""), None);
}
