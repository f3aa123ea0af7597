//! The file backend: one line per value, in the format intended by the Perl server's file backend.
//!
//! ```text
//! c<TAB>api.hits<TAB>30                 counter: the sum of the interval
//! t<TAB>api.latency<TAB>12.000000       timer: one line for each sample, ascending
//! g<TAB>pool.size<TAB>-2.500000         gauge
//! s<TAB>users<TAB>anna;bob              set: its members
//! ```
//!
//! A timer with too many samples to store has a line for each of its statistics,
//! `t<TAB>api.latency.upper_90<TAB>…`, and a set with too many members one with its number,
//! `s<TAB>users.count<TAB>100000`. With `timestamps`, each line starts with the flush's
//! timestamp in seconds and a tab; values that were sent with a timestamp have theirs. In set
//! members, `\`, `;` and control characters are written `\\`, `\;`, `\t`, `\n`, `\xNN`.
//!
//! Each flush appends its lines. A file that was moved or removed is recreated, so that log
//! rotation works without a signal. If writing fails, the file is truncated to its length before
//! the flush, so that the next flush does not start in the middle of a line; the lines are lost and
//! counted.

use std::{
    fmt::Write as _,
    fs,
    io::{self, BufWriter, Write as _},
    os::unix::fs::MetadataExt as _,
    sync::Arc,
};

use super::{BackendError, BackendStatus, LOST_VALUES, MetricBackend};
use crate::{
    flush::{FlushSnapshot, TimedMetric, TimedType, TimerSamples},
    js::JsNumber,
    settings,
};

/// The backend that appends snapshots to a file.
#[derive(Debug)]
pub struct FileBackend {
    settings: settings::FileSettings,
    open: Option<fs::File>,
    status: BackendStatus,
}

impl FileBackend {
    /// Creates the backend. The first flush opens the file.
    pub fn new(settings: settings::FileSettings) -> Self {
        let status = BackendStatus::default();
        status.set(LOST_VALUES, 0.0);
        Self { settings, open: None, status }
    }

    /// Returns the file at the configured path. Opens it for the first flush, and again if the open
    /// file was moved or removed.
    fn file(&mut self) -> io::Result<&fs::File> {
        let path = &self.settings.path;
        let current = self.open.as_ref().and_then(|file| identity(file.metadata()));
        if current.is_none() || current != identity(fs::metadata(path)) {
            self.open = None;
        }
        match &mut self.open {
            Some(file) => Ok(file),
            none => {
                let file = fs::OpenOptions::new().create(true).append(true).open(path)?;
                Ok(none.insert(file))
            }
        }
    }

    fn append(&mut self, snapshot: &FlushSnapshot) -> Result<u64, WriteFailure> {
        let stamp = if self.settings.timestamps {
            format!("{}\t", snapshot.timestamp)
        } else {
            String::new()
        };
        let lines = || write_lines(&mut CountingWriter::new(io::sink()), snapshot, &stamp);
        let failed = |source| WriteFailure { lost: lines().unwrap_or_default(), source };
        let file = self.file().map_err(failed)?;
        let start = file.metadata().map_err(failed)?.len();
        let mut out = CountingWriter::new(BufWriter::with_capacity(1 << 16, file));
        let written = write_lines(&mut out, snapshot, &stamp).and_then(|_| out.flush());
        let CountingWriter { inner, bytes } = out;
        // Dropping a BufWriter with buffered bytes would try once more to write them.
        let (file, _) = inner.into_parts();
        written.map_err(|error| {
            // If this also fails, nothing more can be done.
            let _ = file.set_len(start);
            failed(error)
        })?;
        Ok(bytes)
    }
}

/// The error of a flush whose lines could not all be written, so that all are lost.
#[derive(Debug, thiserror::Error)]
#[error("lines lost: {lost}")]
struct WriteFailure {
    lost: u64,
    source: io::Error,
}

fn identity(metadata: io::Result<fs::Metadata>) -> Option<(u64, u64)> {
    metadata.ok().map(|metadata| (metadata.dev(), metadata.ino()))
}

impl MetricBackend for FileBackend {
    fn name(&self) -> &'static str {
        "file"
    }

    fn joins_intervals(&self) -> bool {
        !self.settings.timestamps
    }

    fn status(&self) -> BackendStatus {
        self.status.clone()
    }

    fn flush(&mut self, snapshot: &Arc<FlushSnapshot>) -> Result<(), BackendError> {
        match self.append(snapshot) {
            Ok(bytes) => {
                self.status.set("flush_length", bytes as f64);
                Ok(())
            }
            Err(error) => {
                let lost = self.status.get(LOST_VALUES).unwrap_or_default();
                self.status.set(LOST_VALUES, lost + error.lost as f64);
                Err(BackendError {
                    receiver: self.settings.path.display().to_string(),
                    action: "writing",
                    source: error.into(),
                })
            }
        }
    }
}

struct CountingWriter<W> {
    inner: W,
    bytes: u64,
}

impl<W> CountingWriter<W> {
    fn new(inner: W) -> Self {
        Self { inner, bytes: 0 }
    }
}

impl<W: io::Write> io::Write for CountingWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// Writes all lines and returns their number.
fn write_lines(out: &mut impl io::Write, snapshot: &FlushSnapshot, stamp: &str) -> io::Result<u64> {
    let mut lines = snapshot.counters.len() + snapshot.gauges.len() + snapshot.sets.len();
    for counter in &snapshot.counters {
        writeln!(out, "{stamp}c\t{}\t{}", counter.name, JsNumber(counter.value))?;
    }
    for timer in &snapshot.timers {
        match &timer.samples {
            TimerSamples::Exact(values) => {
                for value in values.iter() {
                    writeln!(out, "{stamp}t\t{}\t{value:.6}", timer.name)?;
                }
                lines += values.len();
            }
            TimerSamples::Sketched(_) => {
                for (field, value) in &timer.fields {
                    let (base, tags) = (timer.name.base(), timer.name.tag_text());
                    writeln!(out, "{stamp}t\t{base}.{field}{tags}\t{value:.6}")?;
                }
                lines += timer.fields.len();
            }
        }
    }
    for gauge in &snapshot.gauges {
        writeln!(out, "{stamp}g\t{}\t{:.6}", gauge.name, gauge.value)?;
    }
    let mut members = String::new();
    for set in &snapshot.sets {
        if set.estimate.is_some() {
            let (base, tags) = (set.name.base(), set.name.tag_text());
            writeln!(out, "{stamp}s\t{base}.count{tags}\t{}", set.count)?;
            continue;
        }
        members.clear();
        for (at, member) in set.members.iter().enumerate() {
            if at > 0 {
                members.push(';');
            }
            escape(member, &mut members);
        }
        writeln!(out, "{stamp}s\t{}\t{members}", set.name)?;
    }
    for TimedMetric { kind, name, time, value, .. } in snapshot.timed_by_key() {
        if !stamp.is_empty() {
            write!(out, "{time}\t")?;
        }
        match kind {
            TimedType::Counter => writeln!(out, "c\t{name}\t{}", JsNumber(value))?,
            TimedType::Gauge => writeln!(out, "g\t{name}\t{value:.6}")?,
        }
        lines += 1;
    }
    Ok(lines as u64)
}

fn escape(member: &str, out: &mut String) {
    for char in member.chars() {
        // Writing into a String cannot fail.
        let _ = match char {
            '\\' => out.write_str("\\\\"),
            ';' => out.write_str("\\;"),
            '\t' => out.write_str("\\t"),
            '\n' => out.write_str("\\n"),
            char if char.is_control() => write!(out, "\\x{:02x}", char as u32),
            char => out.write_char(char),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backends::{
        chain,
        testing::{snapshot, snapshot_with_timed},
    };

    #[test]
    fn values_with_timestamps_have_their_own_time() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("stats");
        for (timestamps, expected) in [
            (true, "1772355600\tc\tjobs;q=a-b\t25\n1772359140\tg\tload\t1.500000\n"),
            (false, "c\tjobs;q=a-b\t25\ng\tload\t1.500000\n"),
        ] {
            let settings = settings::FileSettings { path: path.clone(), timestamps };
            FileBackend::new(settings).flush(&Arc::new(snapshot_with_timed())).unwrap();
            let text = fs::read_to_string(&path).unwrap();
            assert!(text.ends_with(expected), "{text}");
        }
    }

    #[test]
    fn values_are_lines_and_moved_file_is_recreated() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("stats");
        let settings = settings::FileSettings { path: path.clone(), timestamps: false };
        let mut file = FileBackend::new(settings);
        file.flush(&snapshot()).unwrap();
        let lines = "c\tapi.hits\t30\nc\tapi.hits;code=500\t2\nc\tstatsd.packets_received\t12\n\
                     t\tapi.latency\t10.000000\nt\tapi.latency\t20.000000\nt\tapi.latency\t30.000000\n\
                     g\tpool.size\t-2.500000\ns\tusers\tanna;bob\n";
        assert_eq!(fs::read_to_string(&path).unwrap(), lines);
        assert_eq!(file.status.get("flush_length"), Some(lines.len() as f64));
        file.flush(&snapshot()).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), lines.repeat(2));

        fs::rename(&path, folder.path().join("stats.1")).unwrap();
        file.flush(&snapshot()).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), lines);
    }

    #[test]
    fn timestamps_prefix_lines() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("stats");
        let settings = settings::FileSettings { path: path.clone(), timestamps: true };
        FileBackend::new(settings).flush(&snapshot()).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.lines().all(|line| line.starts_with("1772359200\t")), "{text}");
    }

    #[test]
    fn unwritable_path_is_named_in_error() {
        let settings =
            settings::FileSettings { path: "/nonexistent/stats".into(), timestamps: false };
        let mut file = FileBackend::new(settings);
        let error = file.flush(&snapshot()).unwrap_err();
        let message = chain(&error);
        assert!(
            message.starts_with("/nonexistent/stats: writing failed: lines lost: 8: "),
            "{message}"
        );
        assert_eq!(file.status.get(LOST_VALUES), Some(8.0));
    }

    #[test]
    fn full_disk_counts_lost_lines() {
        // Every write to /dev/full fails with ENOSPC.
        if !std::path::Path::new("/dev/full").exists() {
            return;
        }
        let settings = settings::FileSettings { path: "/dev/full".into(), timestamps: false };
        let mut file = FileBackend::new(settings);
        for flush in 1..=2 {
            let message = chain(&file.flush(&snapshot()).unwrap_err());
            assert!(message.contains("lines lost: 8: No space left on device"), "{message}");
            assert_eq!(file.status.get(LOST_VALUES), Some(8.0 * f64::from(flush)));
        }
    }

    #[test]
    fn set_members_are_escaped() {
        let mut text = String::new();
        escape("a;b\\c\td\ne\x01é", &mut text);
        assert_eq!(text, "a\\;b\\\\c\\td\\ne\\x01é");
    }
}
