//! Reads entries of the systemd journal: `journalctl -o json` and its variants, and `-o export`.
//!
//! Source: systemd, Journal Export Formats; journalctl(1).

use super::{
    assembly::{Assembly, SyslogFragment},
    json::{self, ObjectSplitter, members},
    layer::{Layer, LayerOutput},
    stamp,
};
use crate::problem::InputProblem;

/// The relevant fields of an entry.
#[derive(Debug, Default)]
struct JournalFields {
    message: Option<Vec<u8>>,
    host: Vec<u8>,
    program: Vec<u8>,
    command: Vec<u8>,
    /// Process id according to the process itself, and according to the journal.
    pids: [Vec<u8>; 2],
    micros: Vec<u8>,
}

impl JournalFields {
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

    /// Passes the entry to the assembly, or reports that it has no message or no valid time.
    fn forward(self, line: u64, assembly: &mut Assembly, output: &mut LayerOutput) {
        let micros = std::str::from_utf8(&self.micros).ok().and_then(|text| text.parse().ok());
        let (Some(text), Some(time)) = (self.message, micros.and_then(stamp::from_micros)) else {
            return output.add_problem(InputProblem::BadEnvelope, line, &self.program);
        };
        let [own, trusted] = &self.pids;
        let pid = if own.is_empty() { trusted } else { own };
        let program = if self.program.is_empty() { &self.command } else { &self.program };
        let entry = SyslogFragment {
            time: &time,
            host: &self.host,
            program,
            pid,
            text: &text,
            may_be_server: true,
            line,
        };
        assembly.push_fragment(&entry, output);
    }
}

/// A layer that unwraps journal entries written as JSON objects, each on one line or spread over
/// several.
#[derive(Debug)]
pub(super) struct JournalJson {
    objects: ObjectSplitter,
    assembly: Assembly,
}

impl JournalJson {
    pub(super) fn new(bytes_max: usize) -> Self {
        Self { objects: ObjectSplitter::new(bytes_max), assembly: Assembly::new(bytes_max) }
    }
}

impl Layer for JournalJson {
    fn feed(&mut self, bytes: &[u8], output: &mut LayerOutput) {
        let Self { objects, assembly } = self;
        objects.feed(bytes, |object, line| match object {
            Err(reason) => output.add_problem(reason, line, b""),
            Ok(object) => {
                let mut fields = JournalFields::default();
                for (name, value) in members(object) {
                    if let Some(value) =
                        json::parse_string(value).or_else(|| parse_byte_array(value))
                    {
                        fields.set(name, value);
                    }
                }
                fields.forward(line, assembly, output);
            }
        });
    }

    fn idle(&mut self, output: &mut LayerOutput) {
        self.assembly.flush(output);
    }

    fn added_prefix(&self) -> Option<&'static str> {
        self.assembly.added_prefix()
    }

    fn finish(&mut self, output: &mut LayerOutput) {
        let rest = self.objects.rest().to_vec();
        self.objects.finish(|reason, line| {
            if let Err(reason) = reason {
                output.add_problem(reason, line, &rest);
            }
        });
        self.assembly.flush(output);
    }
}

/// Parses an array of bytes, as the journal writes a text that is not UTF-8 or has control
/// characters.
fn parse_byte_array(value: &[u8]) -> Option<Vec<u8>> {
    let inner = value.strip_prefix(b"[")?.strip_suffix(b"]")?;
    let number = |text: &[u8]| std::str::from_utf8(text.trim_ascii()).ok()?.parse().ok();
    inner.split(|byte| *byte == b',').map(number).collect()
}

/// A layer that unwraps journal entries written in the export format. A field is either a line
/// `NAME=value`, or `NAME`, a newline, the length in eight bytes (little-endian), the value and a
/// newline. An empty line ends an entry.
#[derive(Debug)]
pub(super) struct JournalExport {
    bytes_max: usize,
    pending: Vec<u8>,
    fields: JournalFields,
    /// Number of fields of the entry so far.
    count: usize,
    /// Number of bytes left to skip in a field that is too long.
    skip: u64,
    line: u64,
    assembly: Assembly,
}

impl JournalExport {
    pub(super) fn new(bytes_max: usize) -> Self {
        Self {
            bytes_max,
            pending: Vec::new(),
            fields: JournalFields::default(),
            count: 0,
            skip: 0,
            line: 1,
            assembly: Assembly::new(bytes_max),
        }
    }

    /// Reads one field, the end of an entry, or more of a field that is skipped, at the front of
    /// `bytes`. Returns its length, or `None` while it is incomplete.
    fn parse_next(&mut self, bytes: &[u8], output: &mut LayerOutput) -> Option<usize> {
        if self.skip > 0 {
            let len = usize::try_from(self.skip).unwrap_or(usize::MAX).min(bytes.len());
            self.skip -= len as u64;
            return (len > 0).then_some(len);
        }
        let newline = memchr::memchr(b'\n', bytes)?;
        let line = &bytes[..newline];
        if line.is_empty() {
            self.line += 1;
            self.finish_entry(output);
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
            output.add_problem(InputProblem::TooLong, self.line, line);
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

    fn finish_entry(&mut self, output: &mut LayerOutput) {
        let fields = std::mem::take(&mut self.fields);
        if std::mem::take(&mut self.count) > 0 {
            fields.forward(self.line, &mut self.assembly, output);
        }
    }
}

impl Layer for JournalExport {
    fn feed(&mut self, bytes: &[u8], output: &mut LayerOutput) {
        let mut pending = std::mem::take(&mut self.pending);
        pending.extend_from_slice(bytes);
        let mut at = 0;
        while let Some(len) = self.parse_next(&pending[at..], output) {
            at += len;
        }
        pending.drain(..at);
        if pending.len() > self.bytes_max.saturating_add(FRAME_BYTES) {
            output.add_problem(InputProblem::TooLong, self.line, &pending);
            pending = Vec::new();
        }
        self.pending = pending;
    }

    fn idle(&mut self, output: &mut LayerOutput) {
        self.assembly.flush(output);
    }

    fn added_prefix(&self) -> Option<&'static str> {
        self.assembly.added_prefix()
    }

    fn finish(&mut self, output: &mut LayerOutput) {
        if !self.pending.is_empty() {
            output.add_problem(InputProblem::CutShort, self.line, &self.pending);
        }
        self.finish_entry(output);
        self.assembly.flush(output);
    }
}

/// Maximum overhead of a value: a name of at most 64 bytes, newlines and the length.
const FRAME_BYTES: usize = 128;

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "2026-11-20 12:43:19.577123 UTC [7] LOG:  statement: select '\u{1}'\n\t, 2\n";

    fn unwrap(mut layer: impl Layer, text: &[u8], chunk: usize) -> String {
        let mut output = LayerOutput::default();
        text.chunks(chunk).for_each(|bytes| layer.feed(bytes, &mut output));
        layer.finish(&mut output);
        assert_eq!(output.problems, []);
        String::from_utf8_lossy(&output.log).into_owned()
    }

    #[test]
    fn json_entries_are_read() {
        let message = b"[3-1] LOG:  statement: select '\x01'";
        let numbers = message.map(|byte| byte.to_string()).join(",");
        let text = format!(
            "{{\"__REALTIME_TIMESTAMP\":\"1795178599577123\",\"SYSLOG_IDENTIFIER\":\"postgres\",\
             \"SYSLOG_PID\":\"7\",\"_PID\":\"1\",\"MESSAGE\":[{numbers}]}}\n\
             {{\"__REALTIME_TIMESTAMP\":\"1795178599577124\",\"_COMM\":\"postgres\",\"_PID\":\"7\",\
             \"MESSAGE\":\"[3-2] \\t, 2\",\"OTHER\":null}}\n"
        );
        for chunk in 1..text.len() {
            assert_eq!(unwrap(JournalJson::new(1000), text.as_bytes(), chunk), LOG);
        }
    }

    #[test]
    fn export_entries_are_read() {
        let mut text = b"__CURSOR=x=y\n__REALTIME_TIMESTAMP=1795178599577123\nSYSLOG_IDENTIFIER=postgres\nSYSLOG_PID=7\nMESSAGE\n".to_vec();
        let message = b"[3] LOG:  statement: select '\x01'\n\t, 2";
        text.extend_from_slice(&(message.len() as u64).to_le_bytes());
        text.extend_from_slice(message);
        text.extend_from_slice(b"\n_PID=1\n\n");
        for chunk in 1..text.len() {
            assert_eq!(unwrap(JournalExport::new(1000), &text, chunk), LOG);
        }
    }

    #[test]
    fn impossible_length_is_skipped() {
        let mut text = b"MESSAGE\n".to_vec();
        text.extend_from_slice(&u64::MAX.to_le_bytes());
        text.extend_from_slice(&[b'x'; 5000]);
        let mut layer = JournalExport::new(1000);
        let mut output = LayerOutput::default();
        text.chunks(7).for_each(|bytes| layer.feed(bytes, &mut output));
        layer.finish(&mut output);
        assert_eq!(output.problems[0].reason, InputProblem::TooLong);
        assert!(layer.pending.capacity() < 2000);
    }
}
