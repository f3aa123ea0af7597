//! Properties of the output streams, and their writers: data to stdout, messages to stderr.

use std::io::{self, BufWriter, IsTerminal as _, Write};

use clap::ValueEnum;
use parking_lot::{Mutex, MutexGuard};

/// Width of tables that are not printed to a terminal, in characters: wide, because a file can be
/// scrolled.
const WIDTH_WITHOUT_TERMINAL: u16 = 160;

/// Value of `--color`: whether output is coloured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Color {
    /// On a terminal, unless NO_COLOR is set or TERM is dumb.
    #[default]
    Auto,
    /// Always, even in files and pipes.
    Always,
    /// Never, even on a terminal.
    Never,
}

/// Properties of the two output streams.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terminal {
    /// Whether stdout is a terminal.
    pub(crate) stdout: bool,
    /// Whether stderr is a terminal, so that progress bars may be drawn there.
    pub(crate) stderr: bool,
    /// Whether data on stdout may be coloured.
    pub(crate) color_stdout: bool,
    /// Whether messages on stderr may be coloured.
    pub(crate) color_stderr: bool,
}

impl Terminal {
    /// Detects the properties from the streams and the environment.
    pub(crate) fn detect(color: Color) -> Self {
        let stdout = io::stdout().is_terminal();
        let stderr = io::stderr().is_terminal();
        let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
            || std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let paint = |is_terminal: bool| match color {
            Color::Auto => is_terminal && !plain,
            Color::Always => true,
            Color::Never => false,
        };
        Self { stdout, stderr, color_stdout: paint(stdout), color_stderr: paint(stderr) }
    }

    /// Returns the width of stdout in characters, for tables.
    pub(crate) fn stdout_width(self) -> usize {
        let terminal = terminal_size::terminal_size().filter(|_| self.stdout);
        terminal.map_or(WIDTH_WITHOUT_TERMINAL, |(columns, _)| columns.0).into()
    }
}

/// Buffered stdout: flushed after each line on a terminal, in blocks to a file or a pipe.
#[derive(Debug)]
pub(crate) struct Stdout {
    buffer: Mutex<BufWriter<io::Stdout>>,
    flush_lines: bool,
}

impl Stdout {
    /// Wraps the process's stdout with a buffer.
    pub(crate) fn new(terminal: Terminal) -> Self {
        let buffer = Mutex::new(BufWriter::with_capacity(64 * 1024, io::stdout()));
        Self { buffer, flush_lines: terminal.stdout }
    }

    /// Locks stdout for writing.
    pub(crate) fn lock(&self) -> StdoutLock<'_> {
        let buffer = self.buffer.lock();
        StdoutLock { buffer, flush_lines: self.flush_lines }
    }

    /// Returns a writer that locks stdout for each write.
    pub(crate) fn output(&self) -> StdoutWriter<'_> {
        StdoutWriter(self)
    }
}

/// A writer for data that locks stdout for each write; see [`StdoutLock`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct StdoutWriter<'a>(&'a Stdout);

impl Write for StdoutWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.lock().flush()
    }
}

/// A locked writer for data on stdout.
///
/// Writing after the reader has closed the pipe is an error that the command returns with `?`. It
/// ends the command and counts as success.
#[derive(Debug)]
pub(crate) struct StdoutLock<'a> {
    buffer: MutexGuard<'a, BufWriter<io::Stdout>>,
    flush_lines: bool,
}

impl StdoutLock<'_> {
    /// Flushes the buffer, so that write errors such as a full disk are noticed.
    pub(crate) fn finish(mut self) -> io::Result<()> {
        self.flush()
    }
}

impl Write for StdoutLock<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.buffer.write(bytes).map_err(attribute_error)?;
        if self.flush_lines && bytes[..written].contains(&b'\n') {
            self.flush()?;
        }
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.buffer.flush().map_err(attribute_error)
    }
}

/// The error for standard output that was closed by its reader, as in `howdah … | head`. The
/// command then counts as successful.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("standard output was closed")]
pub(crate) struct StdoutClosed;

/// Marks a broken pipe of stdout, to distinguish it from one of a database connection, and adds to
/// any other error that it is about stdout.
#[expect(clippy::needless_pass_by_value, reason = "the signature `map_err` requires")]
fn attribute_error(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::BrokenPipe => io::Error::new(io::ErrorKind::BrokenPipe, StdoutClosed),
        kind => io::Error::new(kind, format!("cannot write to standard output: {error}")),
    }
}

/// Writes a message to stderr. Errors are ignored: they could not be reported anywhere.
pub(crate) fn write_stderr(text: &str) {
    let _ = io::stderr().write_all(text.as_bytes());
}
