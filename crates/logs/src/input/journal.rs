//! Entries of the systemd journal: `journalctl -o json` and its kin, and `-o export`.
//!
//! Source: systemd, Journal Export Formats; journalctl(1).

use super::{
    assembly::{Assembly, Entry},
    json::{self, Objects, members},
    layer::{Found, Layer},
    stamp,
};
use crate::summary::Reason;

/// What of an entry is of use.
#[derive(Debug, Default)]
struct Fields {
    message: Option<Vec<u8>>,
    host: Vec<u8>,
    program: Vec<u8>,
    command: Vec<u8>,
    /// Of the process, as it says itself, or as the journal knows.
    pids: [Vec<u8>; 2],
    micros: Vec<u8>,
}

impl Fields {
    fn set(&mut self, name: &[u8], value: Vec<u8>) {
        match name {
            b"MESSAGE" => self.message = Some(value),
            b"_HOSTNAME" => self.host = value,
            b"SYSLOG_IDENTIFIER" => self.program = value,
            b"_COMM" => self.command = value,
            b"SYSLOG_PID" => self.pids[0] = value,
            b"_PID" => self.pids[1] = value,
            b"_SOURCE_REALTIME_TIMESTAMP" => self.micros = value,
            b"__REALTIME_TIMESTAMP" if self.micros.is_empty() => self.micros = value,
            _ => {}
        }
    }

    /// Hands the entry on.
    fn take(self, line: u64, assembly: &mut Assembly, found: &mut Found) {
        let micros = std::str::from_utf8(&self.micros).ok().and_then(|text| text.parse().ok());
        let (Some(text), Some(time)) = (self.message, micros.and_then(stamp::from_micros)) else {
            return found.problem(Reason::BadWrapping, line, &self.program);
        };
        let [told, known] = &self.pids;
        let pid = if told.is_empty() { known } else { told };
        let program = if self.program.is_empty() { &self.command } else { &self.program };
        let entry = Entry { time: &time, host: &self.host, program, pid, text: &text, line };
        assembly.take(&entry, found);
    }
}

/// Entries as JSON objects, in lines or not.
#[derive(Debug)]
pub(super) struct JournalJson {
    objects: Objects,
    assembly: Assembly,
}

impl JournalJson {
    pub(super) fn new(bytes_max: usize) -> Self {
        Self { objects: Objects::new(bytes_max), assembly: Assembly::new(bytes_max) }
    }
}

impl Layer for JournalJson {
    fn feed(&mut self, bytes: &[u8], found: &mut Found) {
        let Self { objects, assembly } = self;
        objects.feed(bytes, |object, line| match object {
            Err(reason) => found.problem(reason, line, b""),
            Ok(object) => {
                let mut fields = Fields::default();
                for (name, value) in members(object) {
                    if let Some(value) = json::string(value).or_else(|| bytes_of(value)) {
                        fields.set(name, value);
                    }
                }
                fields.take(line, assembly, found);
            }
        });
    }

    fn idle(&mut self, found: &mut Found) {
        self.assembly.flush(found);
    }

    fn added_prefix(&self) -> Option<&'static str> {
        self.assembly.added_prefix()
    }

    fn finish(&mut self, found: &mut Found) {
        let rest = self.objects.rest().to_vec();
        self.objects.finish(|reason, line| {
            if let Err(reason) = reason {
                found.problem(reason, line, &rest);
            }
        });
        self.assembly.flush(found);
    }
}

/// A text that is not UTF-8, or has control characters, comes as an array of its bytes.
fn bytes_of(value: &[u8]) -> Option<Vec<u8>> {
    let inner = value.strip_prefix(b"[")?.strip_suffix(b"]")?;
    let number = |text: &[u8]| std::str::from_utf8(text.trim_ascii()).ok()?.parse().ok();
    inner.split(|byte| *byte == b',').map(number).collect()
}

/// Entries of the export format: `NAME=value` in a line, or `NAME`, a newline, the length in eight
/// bytes, the bytes and a newline; an empty line ends an entry.
#[derive(Debug)]
pub(super) struct JournalExport {
    bytes_max: usize,
    pending: Vec<u8>,
    fields: Fields,
    /// Fields of the entry so far.
    count: usize,
    /// Bytes to pass over: of a field that is too long.
    skip: u64,
    line: u64,
    assembly: Assembly,
}

impl JournalExport {
    pub(super) fn new(bytes_max: usize) -> Self {
        Self {
            bytes_max,
            pending: Vec::new(),
            fields: Fields::default(),
            count: 0,
            skip: 0,
            line: 1,
            assembly: Assembly::new(bytes_max),
        }
    }

    /// Takes the field or the end of an entry at the front of `bytes`; gives its length, or `None`
    /// while it is not whole.
    fn step(&mut self, bytes: &[u8], found: &mut Found) -> Option<usize> {
        if self.skip > 0 {
            let len = usize::try_from(self.skip).unwrap_or(usize::MAX).min(bytes.len());
            self.skip -= len as u64;
            return (len > 0).then_some(len);
        }
        let newline = memchr::memchr(b'\n', bytes)?;
        let line = &bytes[..newline];
        if line.is_empty() {
            self.line += 1;
            self.end(found);
            return Some(1);
        }
        if let Some(equals) = memchr::memchr(b'=', line) {
            self.line += 1;
            self.count += 1;
            self.fields.set(&line[..equals], line[equals + 1..].to_vec());
            return Some(newline + 1);
        }
        let len = u64::from_le_bytes(*bytes.get(newline + 1..)?.first_chunk::<8>()?);
        let start = newline + 9;
        if len > self.bytes_max as u64 {
            found.problem(Reason::TooLong, self.line, line);
            self.skip = len.saturating_add(1);
            return Some(start);
        }
        let end = start + usize::try_from(len).ok()?;
        let value = bytes.get(start..end).filter(|_| bytes.len() > end)?;
        self.line += 2 + memchr::memchr_iter(b'\n', value).count() as u64;
        self.count += 1;
        self.fields.set(line, value.to_vec());
        Some(end + 1)
    }

    fn end(&mut self, found: &mut Found) {
        let fields = std::mem::take(&mut self.fields);
        if std::mem::take(&mut self.count) > 0 {
            fields.take(self.line, &mut self.assembly, found);
        }
    }
}

impl Layer for JournalExport {
    fn feed(&mut self, bytes: &[u8], found: &mut Found) {
        let mut pending = std::mem::take(&mut self.pending);
        pending.extend_from_slice(bytes);
        let mut at = 0;
        while let Some(len) = self.step(&pending[at..], found) {
            at += len;
        }
        pending.drain(..at);
        if pending.len() > self.bytes_max.saturating_add(FRAME_BYTES) {
            found.problem(Reason::TooLong, self.line, &pending);
            pending = Vec::new();
        }
        self.pending = pending;
    }

    fn idle(&mut self, found: &mut Found) {
        self.assembly.flush(found);
    }

    fn added_prefix(&self) -> Option<&'static str> {
        self.assembly.added_prefix()
    }

    fn finish(&mut self, found: &mut Found) {
        if !self.pending.is_empty() {
            found.problem(Reason::CutShort, self.line, &self.pending);
        }
        self.end(found);
        self.assembly.flush(found);
    }
}

/// What is around a value: a name of at most 64 bytes, newlines and the length.
const FRAME_BYTES: usize = 128;

#[cfg(test)]
mod tests {
    use super::*;

    const INSIDE: &str =
        "2026-11-20 12:43:19.577123 UTC [7] LOG:  statement: select '\u{1}'\n\t, 2\n";

    fn unwrap(mut layer: impl Layer, text: &[u8], piece: usize) -> String {
        let mut found = Found::default();
        text.chunks(piece).for_each(|bytes| layer.feed(bytes, &mut found));
        layer.finish(&mut found);
        assert_eq!(found.problems, []);
        String::from_utf8_lossy(&found.inside).into_owned()
    }

    #[test]
    fn entries_as_json() {
        let message = b"[3-1] LOG:  statement: select '\x01'";
        let numbers = message.map(|byte| byte.to_string()).join(",");
        let text = format!(
            "{{\"__REALTIME_TIMESTAMP\":\"1795178599577123\",\"SYSLOG_IDENTIFIER\":\"postgres\",\
             \"SYSLOG_PID\":\"7\",\"_PID\":\"1\",\"MESSAGE\":[{numbers}]}}\n\
             {{\"__REALTIME_TIMESTAMP\":\"1795178599577124\",\"_COMM\":\"postgres\",\"_PID\":\"7\",\
             \"MESSAGE\":\"[3-2] \\t, 2\",\"OTHER\":null}}\n"
        );
        for piece in 1..text.len() {
            assert_eq!(unwrap(JournalJson::new(1000), text.as_bytes(), piece), INSIDE);
        }
    }

    #[test]
    fn entries_as_export() {
        let mut text = b"__CURSOR=x=y\n__REALTIME_TIMESTAMP=1795178599577123\nSYSLOG_IDENTIFIER=postgres\nSYSLOG_PID=7\nMESSAGE\n".to_vec();
        let message = b"[3] LOG:  statement: select '\x01'\n\t, 2";
        text.extend_from_slice(&(message.len() as u64).to_le_bytes());
        text.extend_from_slice(message);
        text.extend_from_slice(b"\n_PID=1\n\n");
        for piece in 1..text.len() {
            assert_eq!(unwrap(JournalExport::new(1000), &text, piece), INSIDE);
        }
    }

    #[test]
    fn lengths_that_cannot_be_are_passed_over() {
        let mut text = b"MESSAGE\n".to_vec();
        text.extend_from_slice(&u64::MAX.to_le_bytes());
        text.extend_from_slice(&[b'x'; 5000]);
        let mut layer = JournalExport::new(1000);
        let mut found = Found::default();
        text.chunks(7).for_each(|bytes| layer.feed(bytes, &mut found));
        layer.finish(&mut found);
        assert_eq!(found.problems[0].reason, Reason::TooLong);
        assert!(layer.pending.capacity() < 2000);
    }
}
