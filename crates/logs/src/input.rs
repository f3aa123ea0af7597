//! Where logs come from: files, pipes, archives, and what services wrap around the lines of a log.
//!
//! ```text
//! paths ─► plan ─► file | pipe ─► unpack ─► layers ─► bytes of a plain log
//!          globs,                 gzip,     container, cloud,
//!          order,                 zstd,     operator, syslog,
//!          twins                  bzip2     journal, pgreplay
//! ```
//!
//! All of it is told from the data, never from names. Every stage takes bytes and gives bytes, so
//! whatever reads plain logs reads wrapped ones. This is not for records and their meaning.

mod assembly;
mod compressed;
mod container;
mod envelopes;
mod glob;
mod journal;
mod json;
mod jsonlog;
mod layer;
mod lines;
mod pgreplay;
mod pgreplay_go;
mod plan;
mod stamp;
mod syslog;
mod turn;
mod unwrapper;
mod wrapping;

use std::{
    fs::File,
    io::{self, Read},
    os::{fd::AsFd, unix::fs::FileExt},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

pub use self::{
    compressed::Compression,
    plan::{Inputs, LeftOut, LogFile, Order, PlanError},
    unwrapper::EnvelopeReader,
    wrapping::Envelope,
};
use self::{
    compressed::{Piece, Unpacking},
    layer::Found,
    stamp::Calendar,
    wrapping::{Chain, Settings},
};
pub(crate) use self::{
    layer::Issue,
    plan::{Plan, is_stdin},
};
use crate::{reader::Closing, summary::Reason};

/// One file or pipe, being read.
#[derive(Debug)]
pub(crate) struct Input {
    stage: Stage,
    compression: Option<Compression>,
    chain: Chain,
    settings: Settings,
    found: Found,
    buffer: Vec<u8>,
    /// Bytes of the buffer that are a log as they are.
    plain_bytes: usize,
    /// Bytes read from the file, packed as they are.
    read_bytes: Arc<AtomicU64>,
    is_pipe: bool,
    /// Bytes that a file had when it was opened; 0 for what is not read from its beginning.
    size: u64,
}

/// A part of a file that others may read.
#[derive(Debug)]
pub(crate) struct FileRange {
    file: Arc<File>,
    start: u64,
}

impl FileRange {
    /// The part of a file that begins at `start`.
    pub(crate) fn of(file: impl Into<Arc<File>>, start: u64) -> Self {
        Self { file: file.into(), start }
    }

    /// Puts its bytes in place of what is in `piece`; those that there are, where reading fails or the file
    /// has become shorter.
    pub(crate) fn read(&self, piece: &mut Vec<u8>) -> io::Result<()> {
        piece.resize(PIECE_BYTES, 0);
        let mut len = 0;
        let result = loop {
            match read_at(&self.file, &mut piece[len..], self.start + len as u64) {
                Err(error) => break Err(error),
                Ok(0) => break Ok(()),
                Ok(more) => len += more,
            }
        };
        piece.truncate(len);
        result
    }
}

/// How far the outermost layer is known.
#[derive(Debug)]
enum Stage {
    /// The first bytes, which tell whether it is an archive.
    Sniffing(File, Vec<u8>),
    Plain(Arc<File>),
    Packed(Unpacking),
    Ended,
}

/// What a read brought.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Got {
    /// [`Input::bytes`] of the log inside.
    Bytes,
    /// A pipe has nothing for now.
    Silence,
    End,
}

/// Bytes that are read at once.
const PIECE_BYTES: usize = 256 << 10;

/// How long a pipe may be silent before a complete last record is taken as such.
const IDLE: Duration = Duration::from_millis(100);

impl Input {
    /// Opens a file; `-` is standard input.
    pub(crate) fn open(path: &Path, record_bytes_max: usize) -> io::Result<Self> {
        let file = match is_stdin(path) {
            // Nothing else reads standard input, so nothing is held back in a buffer of another.
            true => File::from(io::stdin().as_fd().try_clone_to_owned()?),
            false => File::open(path)?,
        };
        let metadata = file.metadata()?;
        let written = match metadata.is_file() {
            true => metadata.modified()?,
            false => SystemTime::now(),
        };
        Ok(Self {
            stage: Stage::Sniffing(file, Vec::new()),
            compression: None,
            chain: Chain::new(),
            settings: Settings { record_bytes_max, calendar: Calendar::at(written) },
            found: Found::default(),
            buffer: vec![0; PIECE_BYTES],
            plain_bytes: 0,
            read_bytes: Arc::default(),
            is_pipe: !metadata.is_file(),
            size: if is_stdin(path) { 0 } else { metadata.len() },
        })
    }

    /// The next part of a log that lies plainly in a file, so that whoever gets it can read it; then the next
    /// [`read`](Self::read) goes on behind it.
    pub(crate) fn stretch(&mut self) -> Option<FileRange> {
        let Stage::Plain(file) = &self.stage else { return None };
        let (start, len) = (self.read_bytes(), PIECE_BYTES as u64);
        if self.is_pipe || !self.chain.is_plain() || start + len > self.size {
            return None;
        }
        self.read_bytes.store(start + len, Ordering::Relaxed);
        Some(FileRange::of(file.clone(), start))
    }

    /// Reads on, or notices that a pipe has nothing for now.
    pub(crate) fn read(&mut self) -> io::Result<Got> {
        self.found.inside.clear();
        self.plain_bytes = 0;
        loop {
            let (len, closing) = match self.read_outside()? {
                Outside::Bytes(len) => (len, Closing::Open),
                Outside::Silence => (0, Closing::Idle),
                Outside::End => (0, Closing::End),
            };
            if closing == Closing::Open && self.chain.is_plain() {
                self.plain_bytes = len;
                return Ok(Got::Bytes);
            }
            self.chain.feed(&self.buffer[..len], closing, &self.settings, &mut self.found);
            match closing {
                _ if !self.found.inside.is_empty() => return Ok(Got::Bytes),
                Closing::Open => {}
                Closing::Idle => return Ok(Got::Silence),
                Closing::End => return Ok(Got::End),
            }
        }
    }

    /// What the last read brought.
    pub(crate) fn bytes(&self) -> &[u8] {
        match self.plain_bytes {
            0 => &self.found.inside,
            len => &self.buffer[..len],
        }
    }

    /// The same in a buffer of its own, which may be exchanged for another; `None` if there is none.
    pub(crate) fn buffer(&mut self) -> Option<&mut Vec<u8>> {
        if self.plain_bytes == 0 {
            return None;
        }
        self.buffer.truncate(self.plain_bytes);
        Some(&mut self.buffer)
    }

    /// Bytes read from the file so far.
    pub(crate) fn read_bytes(&self) -> u64 {
        self.read_bytes.load(Ordering::Relaxed)
    }

    /// What it is packed with; known once the first bytes have come.
    pub(crate) fn compression(&self) -> Option<Compression> {
        self.compression
    }

    /// What was taken off around the log so far.
    pub(crate) fn wrappings(&self) -> &[Envelope] {
        self.chain.wrappings()
    }

    /// What was put in front of the server's own prefix.
    pub(crate) fn added_prefix(&self) -> Option<&'static str> {
        self.chain.added_prefix()
    }

    /// Problems of the outside that were met since the last call.
    pub(crate) fn take_problems(&mut self) -> Vec<Issue> {
        std::mem::take(&mut self.found.problems)
    }

    /// Brings the next unpacked bytes to the front of the buffer.
    fn read_outside(&mut self) -> io::Result<Outside> {
        if let Stage::Sniffing(file, head) = &mut self.stage {
            let is_silent = !sniff(file, head, self.is_pipe)?;
            self.read_bytes.store(head.len() as u64, Ordering::Relaxed);
            if is_silent {
                return Ok(Outside::Silence);
            }
            return self.begin();
        }
        match &mut self.stage {
            Stage::Sniffing(..) | Stage::Ended => Ok(Outside::End),
            Stage::Plain(file) => {
                if self.is_pipe && !is_readable(file)? {
                    return Ok(Outside::Silence);
                }
                self.buffer.resize(PIECE_BYTES, 0);
                // Others may have read before this, so the file's own position says nothing.
                let len = match self.size {
                    0 => read(file, &mut self.buffer)?,
                    _ => read_at(file, &mut self.buffer, self.read_bytes.load(Ordering::Relaxed))?,
                };
                self.read_bytes.fetch_add(len as u64, Ordering::Relaxed);
                Ok(self.came(len))
            }
            Stage::Packed(unpacking) => match unpacking.next(self.is_pipe.then_some(IDLE)) {
                Piece::Bytes(bytes) => {
                    self.buffer = bytes;
                    Ok(Outside::Bytes(self.buffer.len()))
                }
                Piece::Silence => Ok(Outside::Silence),
                Piece::Failed(error) => Err(error),
                Piece::Damaged(why) => {
                    self.found.problem(Reason::Damaged, 0, why.as_bytes());
                    Ok(self.came(0))
                }
                Piece::End => Ok(self.came(0)),
            },
        }
    }

    fn came(&mut self, len: usize) -> Outside {
        if len > 0 {
            return Outside::Bytes(len);
        }
        self.stage = Stage::Ended;
        Outside::End
    }

    /// The first bytes are known: unpacks, or hands them over.
    fn begin(&mut self) -> io::Result<Outside> {
        let Stage::Sniffing(file, head) = std::mem::replace(&mut self.stage, Stage::Ended) else {
            return Ok(Outside::End);
        };
        self.compression = Compression::of(&head);
        if let Some(compression) = self.compression {
            let unpacking = Unpacking::begin(compression, head, file, self.read_bytes.clone())?;
            self.stage = Stage::Packed(unpacking);
            return self.read_outside();
        }
        self.stage = Stage::Plain(Arc::new(file));
        self.buffer.resize(PIECE_BYTES, 0);
        self.buffer[..head.len()].copy_from_slice(&head);
        Ok(self.came(head.len()))
    }
}

/// What the file brought, in the buffer.
enum Outside {
    Bytes(usize),
    Silence,
    End,
}

/// Reads as many bytes as tell an archive; false while a pipe has not given them.
fn sniff(file: &mut File, head: &mut Vec<u8>, is_pipe: bool) -> io::Result<bool> {
    while head.len() < Compression::HEAD_BYTES {
        if is_pipe && !is_readable(file)? {
            return Ok(false);
        }
        let mut bytes = [0; Compression::HEAD_BYTES];
        let wanted = Compression::HEAD_BYTES - head.len();
        match read(file, &mut bytes[..wanted])? {
            0 => return Ok(true),
            len => head.extend_from_slice(&bytes[..len]),
        }
    }
    Ok(true)
}

fn read(mut file: &File, buffer: &mut [u8]) -> io::Result<usize> {
    uninterrupted(|| file.read(buffer))
}

fn read_at(file: &File, buffer: &mut [u8], at: u64) -> io::Result<usize> {
    uninterrupted(|| file.read_at(buffer, at))
}

/// Asks again when a signal came in between.
fn uninterrupted(mut ask: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    loop {
        match ask() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

/// Waits a while for input.
fn is_readable(file: &File) -> io::Result<bool> {
    let mut fds = [PollFd::new(file, PollFlags::IN)];
    let timeout = Timespec::try_from(IDLE).map_err(|_| io::ErrorKind::InvalidInput)?;
    match poll(&mut fds, Some(&timeout)) {
        Ok(ready) => Ok(ready > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
