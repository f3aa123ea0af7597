//! Compares the logs in two files, regardless of their envelopes: whether the logs are equal, or
//! one is the beginning of the other.

use howdah_log_input::{LogInput, ReadResult};
use std::{io, path::Path};

/// The relation between the contents of two files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LogOverlap {
    /// The logs differ.
    Differ,
    Equal,
    /// The first log is the beginning of the second.
    FirstEndsEarlier,
    SecondEndsEarlier,
}

/// Compares the logs in two files up to the first difference, or to the end of one.
///
/// A truncated archive is compared as far as it can be unpacked.
pub(super) fn compare(
    first: &Path,
    second: &Path,
    record_bytes_max: usize,
) -> io::Result<LogOverlap> {
    let mut logs =
        [ComparedLog::open(first, record_bytes_max)?, ComparedLog::open(second, record_bytes_max)?];
    loop {
        for log in &mut logs {
            log.fill()?;
        }
        let [first, second] = &mut logs;
        let len = first.bytes.len().min(second.bytes.len());
        match (first.bytes.is_empty(), second.bytes.is_empty()) {
            (true, true) => return Ok(LogOverlap::Equal),
            (true, false) => return Ok(LogOverlap::FirstEndsEarlier),
            (false, true) => return Ok(LogOverlap::SecondEndsEarlier),
            (false, false) if first.bytes[..len] != second.bytes[..len] => {
                return Ok(LogOverlap::Differ);
            }
            (false, false) => {
                first.bytes.drain(..len);
                second.bytes.drain(..len);
            }
        }
    }
}

/// A log that is read chunk by chunk.
struct ComparedLog {
    input: LogInput,
    /// Bytes that were read but not compared yet.
    bytes: Vec<u8>,
    is_ended: bool,
}

impl ComparedLog {
    fn open(path: &Path, record_bytes_max: usize) -> io::Result<Self> {
        Ok(Self {
            input: LogInput::open(path, record_bytes_max)?,
            bytes: Vec::new(),
            is_ended: false,
        })
    }

    /// Reads more data once all bytes were compared, unless the log has ended.
    fn fill(&mut self) -> io::Result<()> {
        while self.bytes.is_empty() && !self.is_ended {
            match self.input.read()? {
                ReadResult::Bytes => self.bytes.extend_from_slice(self.input.bytes()),
                ReadResult::Idle => {}
                ReadResult::End => self.is_ended = true,
            }
        }
        Ok(())
    }
}
