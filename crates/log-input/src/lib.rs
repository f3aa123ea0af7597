//! Sources of logs: files, pipes, archives, and the envelopes that services put around log lines.
//!
//! ```text
//! paths ─► read plan ─► file | pipe ─► unpack ─► layers ─► bytes of a plain log
//!          globs,                      gzip,     container, cloud,
//!          order,                      zstd,     operator, syslog,
//!          duplicates                  bzip2     journal, pgreplay
//! ```
//!
//! The `logs` crate makes the read plan. The other stages detect everything from the data, never
//! from file names. They take and return bytes, so a reader of plain logs can also read logs in
//! envelopes. This crate does not interpret records.

mod assembly;
mod compressed;
mod container;
mod csv_export;
mod entry_order;
mod envelope;
mod envelope_reader;
mod excerpt;
mod heroku;
mod journal;
mod json;
mod json_envelopes;
mod jsonlog;
mod label;
mod layer;
mod lines;
mod pgreplay;
mod pgreplay_go;
mod problem;
mod stamp;
mod stamp_shape;
mod syslog;

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
    csv_export::{CsvObstacle, csv_obstacle},
    envelope::Envelope,
    envelope_reader::EnvelopeReader,
    excerpt::shorten,
    json::unescape_json,
    label::{LineLabel, LogSeverity, MessageField},
    layer::Issue,
    problem::InputProblem,
    stamp::epoch_len,
    stamp_shape::{SECONDS_LEN, is_stamp_shaped, stamp_len},
};
use self::{
    compressed::{UnpackThread, UnpackedChunk},
    envelope::{EnvelopeOptions, LayerChain},
    layer::LayerOutput,
    stamp::Calendar,
};

/// An open file or pipe, from which a plain log is read: unpacked, and without its envelopes.
#[derive(Debug)]
pub struct LogInput {
    source: InputSource,
    compression: Option<Compression>,
    chain: LayerChain,
    settings: EnvelopeOptions,
    output: LayerOutput,
    buffer: Vec<u8>,
    /// Length of the plain log data at the front of the buffer.
    plain_bytes: usize,
    /// Number of bytes read from the file, before unpacking.
    read_bytes: Arc<AtomicU64>,
    is_pipe: bool,
    /// Size of the file when it was opened; 0 for standard input and pipes, which are not read by
    /// offset.
    size: u64,
}

/// A part of a file, to be read by another thread.
#[derive(Debug)]
pub struct FileRange {
    file: Arc<File>,
    start: u64,
}

impl FileRange {
    /// Creates the range of at most one chunk that starts at offset `start`.
    pub fn new(file: impl Into<Arc<File>>, start: u64) -> Self {
        Self { file: file.into(), start }
    }

    /// Replaces the contents of `chunk` with the bytes of the range. If reading fails, or the file
    /// has been truncated, `chunk` holds the bytes read until then.
    pub fn read(&self, chunk: &mut Vec<u8>) -> io::Result<()> {
        chunk.resize(CHUNK_BYTES, 0);
        let mut len = 0;
        let result = loop {
            match read_at(&self.file, &mut chunk[len..], self.start + len as u64) {
                Err(error) => break Err(error),
                Ok(0) => break Ok(()),
                Ok(more) => len += more,
            }
        };
        chunk.truncate(len);
        result
    }
}

/// The source of the bytes, chosen by the first bytes of the file.
#[derive(Debug)]
enum InputSource {
    /// Reading the first bytes, which show whether the file is an archive.
    Sniffing(File, Vec<u8>),
    Plain(Arc<File>),
    Packed(UnpackThread),
    Ended,
}

/// The state of the input after [`LogInput::read`].
#[derive(Debug, PartialEq, Eq)]
pub enum ReadResult {
    /// [`LogInput::bytes`] contains new bytes of the log.
    Bytes,
    /// The pipe has no data at the moment.
    Idle,
    /// The input has ended.
    End,
}

/// Number of bytes requested by one read.
const CHUNK_BYTES: usize = 256 << 10;

/// Time without data from a pipe after which a record that looks complete is taken to be complete.
const IDLE_TIMEOUT: Duration = Duration::from_millis(100);

impl LogInput {
    /// Opens a file; `-` is standard input.
    pub fn open(path: &Path, record_bytes_max: usize) -> io::Result<Self> {
        let file = if is_stdin(path) {
            File::from(io::stdin().as_fd().try_clone_to_owned()?)
        } else {
            File::open(path)?
        };
        let metadata = file.metadata()?;
        let written = if metadata.is_file() { metadata.modified()? } else { SystemTime::now() };
        Ok(Self {
            source: InputSource::Sniffing(file, Vec::new()),
            compression: None,
            chain: LayerChain::new(),
            settings: EnvelopeOptions {
                record_bytes_max,
                calendar: Calendar::from_system_time(written),
            },
            output: LayerOutput::default(),
            buffer: vec![0; CHUNK_BYTES],
            plain_bytes: 0,
            read_bytes: Arc::default(),
            is_pipe: !metadata.is_file(),
            size: if is_stdin(path) { 0 } else { metadata.len() },
        })
    }

    /// Reserves the next part of a plain log file for another thread to read; the next
    /// [`read`](Self::read) continues after it. Returns `None` for a pipe and standard input, for a
    /// file that is or may be compressed or in an envelope, and once less than a whole chunk is
    /// left of the size that the file had when it was opened.
    pub fn next_range(&mut self) -> Option<FileRange> {
        let InputSource::Plain(file) = &self.source else { return None };
        let (start, len) = (self.read_bytes(), CHUNK_BYTES as u64);
        if self.is_pipe || !self.chain.is_passthrough() || start + len > self.size {
            return None;
        }
        self.read_bytes.store(start + len, Ordering::Relaxed);
        Some(FileRange::new(file.clone(), start))
    }

    /// Reads more data, or reports that a pipe has none for now.
    pub fn read(&mut self) -> io::Result<ReadResult> {
        self.output.log.clear();
        self.plain_bytes = 0;
        loop {
            let (len, state) = match self.read_file()? {
                FileRead::Bytes(len) => (len, InputState::Open),
                FileRead::Idle => (0, InputState::Idle),
                FileRead::End => (0, InputState::End),
            };
            if state == InputState::Open && self.chain.is_passthrough() {
                self.plain_bytes = len;
                return Ok(ReadResult::Bytes);
            }
            self.chain.feed(&self.buffer[..len], state, &self.settings, &mut self.output);
            match state {
                _ if !self.output.log.is_empty() => return Ok(ReadResult::Bytes),
                InputState::Open => {}
                InputState::Idle => return Ok(ReadResult::Idle),
                InputState::End => return Ok(ReadResult::End),
            }
        }
    }

    /// Returns the log data of the last [`read`](Self::read); empty unless it returned
    /// [`ReadResult::Bytes`].
    pub fn bytes(&self) -> &[u8] {
        match self.plain_bytes {
            0 => &self.output.log,
            len => &self.buffer[..len],
        }
    }

    /// Like [`bytes`](Self::bytes), as a buffer that the caller may swap for another one; `None` if
    /// the data came through the layers that detect and remove envelopes.
    pub fn buffer(&mut self) -> Option<&mut Vec<u8>> {
        if self.plain_bytes == 0 {
            return None;
        }
        self.buffer.truncate(self.plain_bytes);
        Some(&mut self.buffer)
    }

    /// Returns the number of bytes read from the file so far, before unpacking, with those reserved
    /// by [`next_range`](Self::next_range).
    pub fn read_bytes(&self) -> u64 {
        self.read_bytes.load(Ordering::Relaxed)
    }

    /// Returns the compression of the file; `None` if it has none, or its first bytes have not been
    /// read yet.
    pub fn compression(&self) -> Option<Compression> {
        self.compression
    }

    /// Returns the envelopes removed so far, outermost first.
    pub fn envelopes(&self) -> &[Envelope] {
        self.chain.envelopes()
    }

    /// Returns the prefix added in front of the server's own prefix, if an envelope required one.
    pub fn added_prefix(&self) -> Option<&'static str> {
        self.chain.added_prefix()
    }

    /// Returns and clears the problems with the archive and the envelopes since the last call.
    pub fn take_problems(&mut self) -> Vec<Issue> {
        std::mem::take(&mut self.output.problems)
    }

    /// Fills the buffer with the next unpacked bytes.
    fn read_file(&mut self) -> io::Result<FileRead> {
        if let InputSource::Sniffing(file, head) = &mut self.source {
            let is_silent = !sniff(file, head, self.is_pipe)?;
            self.read_bytes.store(head.len() as u64, Ordering::Relaxed);
            if is_silent {
                return Ok(FileRead::Idle);
            }
            return self.detect_compression();
        }
        match &mut self.source {
            InputSource::Sniffing(..) | InputSource::Ended => Ok(FileRead::End),
            InputSource::Plain(file) => {
                if self.is_pipe && !is_readable(file)? {
                    return Ok(FileRead::Idle);
                }
                self.buffer.resize(CHUNK_BYTES, 0);
                // Other threads may have read ranges before this, so the file's own position is
                // meaningless.
                let len = match self.size {
                    0 => read(file, &mut self.buffer)?,
                    _ => read_at(file, &mut self.buffer, self.read_bytes.load(Ordering::Relaxed))?,
                };
                self.read_bytes.fetch_add(len as u64, Ordering::Relaxed);
                Ok(self.file_read(len))
            }
            InputSource::Packed(unpacking) => {
                match unpacking.next(self.is_pipe.then_some(IDLE_TIMEOUT)) {
                    UnpackedChunk::Bytes(bytes) => {
                        self.buffer = bytes;
                        Ok(FileRead::Bytes(self.buffer.len()))
                    }
                    UnpackedChunk::Idle => Ok(FileRead::Idle),
                    UnpackedChunk::Failed(error) => Err(error),
                    UnpackedChunk::Damaged(why) => {
                        self.output.add_problem(InputProblem::Damaged, 0, why.as_bytes());
                        Ok(self.file_read(0))
                    }
                    UnpackedChunk::End => Ok(self.file_read(0)),
                }
            }
        }
    }

    fn file_read(&mut self, len: usize) -> FileRead {
        if len > 0 {
            return FileRead::Bytes(len);
        }
        self.source = InputSource::Ended;
        FileRead::End
    }

    /// Chooses the source by the first bytes: unpacks an archive, or passes plain data on.
    fn detect_compression(&mut self) -> io::Result<FileRead> {
        let InputSource::Sniffing(file, head) =
            std::mem::replace(&mut self.source, InputSource::Ended)
        else {
            return Ok(FileRead::End);
        };
        self.compression = Compression::detect(&head);
        if let Some(compression) = self.compression {
            let unpacking = UnpackThread::spawn(compression, head, file, self.read_bytes.clone())?;
            self.source = InputSource::Packed(unpacking);
            return self.read_file();
        }
        self.source = InputSource::Plain(Arc::new(file));
        self.buffer.resize(CHUNK_BYTES, 0);
        self.buffer[..head.len()].copy_from_slice(&head);
        Ok(self.file_read(head.len()))
    }
}

/// The result of one read from the file, with the number of bytes in the buffer.
enum FileRead {
    Bytes(usize),
    Idle,
    /// The input has ended.
    End,
}

/// Reads enough bytes to recognize an archive, or the whole of a shorter file; returns false while
/// a pipe has not delivered them.
fn sniff(file: &mut File, head: &mut Vec<u8>, is_pipe: bool) -> io::Result<bool> {
    while head.len() < Compression::HEAD_BYTES {
        if is_pipe && !is_readable(file)? {
            return Ok(false);
        }
        let mut bytes = [0; Compression::HEAD_BYTES];
        let missing = Compression::HEAD_BYTES - head.len();
        match read(file, &mut bytes[..missing])? {
            0 => return Ok(true),
            len => head.extend_from_slice(&bytes[..len]),
        }
    }
    Ok(true)
}

fn read(mut file: &File, buffer: &mut [u8]) -> io::Result<usize> {
    retry_interrupted(|| file.read(buffer))
}

fn read_at(file: &File, buffer: &mut [u8], at: u64) -> io::Result<usize> {
    retry_interrupted(|| file.read_at(buffer, at))
}

/// Retries a read that a signal interrupted.
fn retry_interrupted(mut read: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    loop {
        match read() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

/// Waits for input for at most [`IDLE_TIMEOUT`], or until a signal arrives; returns whether there
/// is any.
fn is_readable(file: &File) -> io::Result<bool> {
    let mut fds = [PollFd::new(file, PollFlags::IN)];
    let timeout = Timespec::try_from(IDLE_TIMEOUT).map_err(|_| io::ErrorKind::InvalidInput)?;
    match poll(&mut fds, Some(&timeout)) {
        Ok(ready) => Ok(ready > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// The state of an input: whether more of it is expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputState {
    /// More input may follow immediately.
    Open,
    /// Nothing arrived for a while, so records that look complete are taken to be complete.
    Idle,
    /// The input has ended.
    End,
}

/// Whether a path is `-`, which means standard input.
pub fn is_stdin(path: &Path) -> bool {
    path.as_os_str() == "-"
}
