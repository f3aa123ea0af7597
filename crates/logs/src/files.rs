//! The loop that reads files and pipes into an [`Importer`].

use std::{
    fs::File,
    io::{self, Read},
    ops::ControlFlow,
    os::fd::{AsFd, BorrowedFd},
    path::{Path, PathBuf},
    time::Duration,
};

use howdah_traffic::Event;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::{
    error::ImportError,
    importer::Importer,
    options::{Options, OptionsError},
    summary::Summary,
};

/// How far [`read_files`] has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes read so far.
    pub bytes: u64,
    /// Bytes of all files together; `None` if one is a pipe.
    pub bytes_total: Option<u64>,
}

/// Why [`read_files`] stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadFilesError<E> {
    /// The options cannot be acted on.
    #[error(transparent)]
    Options(#[from] OptionsError),
    /// The input is no log.
    #[error(transparent)]
    Import(#[from] ImportError),
    /// A file cannot be opened: missing, say, or not permitted.
    #[error("cannot open {}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A directory was given. Its files have to be named, in the order of writing.
    #[error("{} is a directory: name the log files in it, oldest first", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
    },
    /// None of the files holds a byte.
    #[error("{} is empty", path.display())]
    Empty {
        /// The first of the files.
        path: PathBuf,
    },
    /// Reading failed on the way. Events up to here were handed on.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// `progress` wanted no more. Events up to here were handed on.
    #[error("stopped before the end")]
    Stopped,
    /// The taker of events refused one.
    #[error("cannot take an event")]
    Sink(#[source] E),
}

/// Reads log files one after another and hands their events to `sink`; `-` is standard input.
///
/// Files are read as given: name rotated files oldest first. From a pipe, events are handed on
/// as soon as nothing more comes, and end of file ends the input. `progress` is called after each piece
/// of up to 256 KiB, and ten times a second while a pipe is silent; it can end the reading.
///
/// # Errors
///
/// A file cannot be read or is no log, all are empty, or `sink` failed. Files are opened before any is
/// read, so that a mistyped name is found at once. Bad records are no errors: see the summary.
pub fn read_files<E>(
    paths: &[PathBuf],
    options: Options,
    mut progress: impl FnMut(Progress) -> ControlFlow<()>,
    mut sink: impl FnMut(Event) -> Result<(), E>,
) -> Result<Summary, ReadFilesError<E>> {
    let mut importer = Importer::new(options)?;
    let bytes_total = check(paths)?;
    let mut buffer = vec![0; PIECE_BYTES];
    for path in paths {
        let mut input = Input::open(path)?;
        importer.begin_file(&path.to_string_lossy());
        loop {
            let got = input
                .read(&mut buffer)
                .map_err(|source| ReadFilesError::Read { path: path.clone(), source })?;
            let result = match got {
                Got::End => break,
                Got::Silence => {
                    importer.idle();
                    Ok(())
                }
                Got::Bytes(bytes) => importer.feed(&buffer[..bytes]),
            };
            drain(&mut importer, &mut sink)?;
            result?;
            let reached = Progress { bytes: importer.summary().bytes, bytes_total };
            if progress(reached).is_break() {
                let ended = importer.end_file().and_then(|()| importer.finish());
                drain(&mut importer, &mut sink)?;
                ended?;
                return Err(ReadFilesError::Stopped);
            }
        }
        let result = importer.end_file();
        drain(&mut importer, &mut sink)?;
        result?;
    }
    if importer.summary().bytes == 0 {
        let path = paths.first().cloned().unwrap_or_default();
        return Err(ReadFilesError::Empty { path });
    }
    let result = importer.finish();
    drain(&mut importer, &mut sink)?;
    result?;
    Ok(importer.summary().clone())
}

/// Bytes that are read at once.
const PIECE_BYTES: usize = 256 << 10;

/// How long a pipe may be silent before a complete last record is taken as such.
const IDLE: Duration = Duration::from_millis(100);

fn drain<E>(
    importer: &mut Importer,
    sink: &mut impl FnMut(Event) -> Result<(), E>,
) -> Result<(), ReadFilesError<E>> {
    while let Some(event) = importer.poll_event() {
        sink(event).map_err(ReadFilesError::Sink)?;
    }
    Ok(())
}

/// Opens every file once; gives their size together, if all have one.
fn check<E>(paths: &[PathBuf]) -> Result<Option<u64>, ReadFilesError<E>> {
    let mut total = Some(0_u64);
    for path in paths.iter().filter(|path| !is_stdin(path)) {
        // A pipe is not opened twice: its writer would take the first close for the end.
        let open = |source| ReadFilesError::Open { path: path.clone(), source };
        let metadata = std::fs::metadata(path).map_err(open)?;
        if metadata.is_dir() {
            return Err(ReadFilesError::Directory { path: path.clone() });
        }
        if metadata.is_file() {
            File::open(path).map_err(open)?;
            total = total.map(|sum| sum + metadata.len());
        } else {
            total = None;
        }
    }
    Ok(total.filter(|_| !paths.iter().any(|path| is_stdin(path))))
}

fn is_stdin(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// A file, or a pipe that may be silent.
enum Input {
    File(File),
    Pipe(File),
    Stdin(io::Stdin),
}

impl Input {
    fn open<E>(path: &Path) -> Result<Self, ReadFilesError<E>> {
        if is_stdin(path) {
            return Ok(Self::Stdin(io::stdin()));
        }
        let open = |source| ReadFilesError::Open { path: path.to_owned(), source };
        let file = File::open(path).map_err(open)?;
        let is_file = file.metadata().map_err(open)?.is_file();
        Ok(if is_file { Self::File(file) } else { Self::Pipe(file) })
    }

    /// Reads a piece, or notices that a pipe has nothing for now.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<Got> {
        let silent = match self {
            Self::File(_) => false,
            Self::Pipe(file) => !is_readable(file.as_fd())?,
            Self::Stdin(stdin) => !is_readable(stdin.as_fd())?,
        };
        if silent {
            return Ok(Got::Silence);
        }
        loop {
            let result = match self {
                Self::File(file) | Self::Pipe(file) => file.read(buffer),
                // Nothing else reads standard input, so the lock's own buffer holds nothing back.
                Self::Stdin(stdin) => stdin.lock().read(buffer),
            };
            match result {
                Ok(0) => return Ok(Got::End),
                Ok(bytes) => return Ok(Got::Bytes(bytes)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// What a read brought.
enum Got {
    Bytes(usize),
    Silence,
    End,
}

/// Waits a while for input.
fn is_readable(fd: BorrowedFd<'_>) -> io::Result<bool> {
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    let timeout = Timespec::try_from(IDLE).map_err(|_| io::ErrorKind::InvalidInput)?;
    match poll(&mut fds, Some(&timeout)) {
        Ok(ready) => Ok(ready > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
