//! Whether two files hold the same log, or one the beginning of the other, whatever is around it.

use std::{io, path::Path};

use crate::input::{Got, Input};

/// How what is in two files relates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Copies {
    /// They differ.
    No,
    Equal,
    /// All of the first is the beginning of the second.
    FirstEndsEarlier,
    SecondEndsEarlier,
}

/// Compares the logs in two files up to the first difference, or to the end of one.
///
/// An archive that is cut short counts as far as it can be unpacked.
pub(super) fn compare(first: &Path, second: &Path, record_bytes_max: usize) -> io::Result<Copies> {
    let mut logs = [Log::open(first, record_bytes_max)?, Log::open(second, record_bytes_max)?];
    loop {
        for log in &mut logs {
            log.fill()?;
        }
        let [first, second] = &mut logs;
        let len = first.bytes.len().min(second.bytes.len());
        match (first.bytes.is_empty(), second.bytes.is_empty()) {
            (true, true) => return Ok(Copies::Equal),
            (true, false) => return Ok(Copies::FirstEndsEarlier),
            (false, true) => return Ok(Copies::SecondEndsEarlier),
            (false, false) if first.bytes[..len] != second.bytes[..len] => return Ok(Copies::No),
            (false, false) => {
                first.bytes.drain(..len);
                second.bytes.drain(..len);
            }
        }
    }
}

/// A log that is read piece by piece.
struct Log {
    input: Input,
    /// What was read and not compared.
    bytes: Vec<u8>,
    is_ended: bool,
}

impl Log {
    fn open(path: &Path, record_bytes_max: usize) -> io::Result<Self> {
        Ok(Self { input: Input::open(path, record_bytes_max)?, bytes: Vec::new(), is_ended: false })
    }

    /// Reads on when nothing is left, unless there is no more.
    fn fill(&mut self) -> io::Result<()> {
        while self.bytes.is_empty() && !self.is_ended {
            match self.input.read()? {
                Got::Bytes => self.bytes.extend_from_slice(self.input.bytes()),
                Got::Silence => {}
                Got::End => self.is_ended = true,
            }
        }
        Ok(())
    }
}
