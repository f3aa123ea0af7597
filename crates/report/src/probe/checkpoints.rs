//! Renders the phases of checkpoints.

use std::io::{self, Write};

use howdah_probe::{
    checkpoints::{FinishedPhase, PhaseCounts, PhaseUpdate, ProbeSource},
    live::ProbeOutput,
};
use serde_json::{Value, json};

use super::rows::{self, Cell, RowFormat, RowWriter};

pub(super) const COLUMNS: &[&str] = &[
    "source",
    "phase",
    "depth",
    "pid",
    "start",
    "end",
    "duration_ms",
    "buffers_written",
    "buffers_to_write",
    "files_synced",
    "longest_sync_ms",
    "segments_added",
    "segments_removed",
    "segments_recycled",
    "limitation",
];

/// Renders phases: for people when they start and finish, for programs only when they finish.
#[derive(Debug)]
pub struct PhasePrinter<W> {
    rows: RowWriter<W>,
    source: ProbeSource,
}

impl<W: Write> PhasePrinter<W> {
    /// Creates a printer that writes the phases of a source to `out` in `format`.
    pub fn new(out: W, format: RowFormat, source: ProbeSource) -> Self {
        Self { rows: RowWriter::new(out, format, COLUMNS), source }
    }
}

impl<W: Write> ProbeOutput<PhaseUpdate> for PhasePrinter<W> {
    fn write(&mut self, update: PhaseUpdate) -> io::Result<()> {
        if self.rows.is_table() {
            return writeln!(self.rows.out, "{}", line(&update));
        }
        match update {
            PhaseUpdate::Finished(span) => self.rows.write(&row(self.source.as_str(), &span)),
            PhaseUpdate::Started { .. } => Ok(()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.rows.out.flush()
    }
}

/// Formats a line: `2026-11-21T20:00:01.000000Z    write done in 12.3 ms: 372 of 372 buffers`.
fn line(update: &PhaseUpdate) -> String {
    match update {
        PhaseUpdate::Started { phase, pid, at, depth } => {
            let by = if *depth == 0 { format!(" by process {pid}") } else { String::new() };
            let indent = 2 * depth;
            format!("{}  {:indent$}{} started{by}", rows::time(*at), "", phase.as_str())
        }
        PhaseUpdate::Finished(span) => {
            let FinishedPhase { phase, started_at, duration, depth, counts, .. } = span;
            let (at, took) = (rows::time(*started_at + *duration), rows::duration(*duration));
            let indent = 2 * depth;
            let details = describe_counts(counts);
            format!("{at}  {:indent$}{} done in {took}{details}", "", phase.as_str())
        }
    }
}

fn describe_counts(counts: &PhaseCounts) -> String {
    let mut parts = Vec::new();
    match (counts.buffers_written, counts.buffers_to_write) {
        (Some(written), Some(all)) => parts.push(format!("{written} of {all} buffers")),
        (Some(written), None) => parts.push(format!("{written} buffers")),
        _ => {}
    }
    if let Some(files) = counts.files_synced {
        let longest = counts.longest_sync.map_or_else(String::new, |longest| {
            format!(", the longest {}", rows::duration(longest))
        });
        parts.push(format!("{files} files synced{longest}"));
    }
    if let Some([added, removed, recycled]) = counts.segments {
        parts.push(format!("WAL segments {added} added, {removed} removed, {recycled} recycled"));
    }
    if parts.is_empty() { String::new() } else { format!(": {}", parts.join("; ")) }
}

fn row(source: &str, span: &FinishedPhase) -> Vec<Cell> {
    let FinishedPhase { phase, pid, started_at, duration, depth, counts } = span;
    let [added, removed, recycled] = match counts.segments {
        Some(segments) => segments.map(Value::from),
        None => [const { Value::Null }; 3],
    };
    vec![
        ("source", json!(source)),
        ("phase", json!(phase.as_str())),
        ("depth", json!(depth)),
        ("pid", json!(pid)),
        ("start", json!(rows::time(*started_at))),
        ("end", json!(rows::time(*started_at + *duration))),
        ("duration_ms", rows::ms(*duration)),
        ("buffers_written", json!(counts.buffers_written)),
        ("buffers_to_write", json!(counts.buffers_to_write)),
        ("files_synced", json!(counts.files_synced)),
        ("longest_sync_ms", counts.longest_sync.map_or(Value::Null, rows::ms)),
        ("segments_added", added),
        ("segments_removed", removed),
        ("segments_recycled", recycled),
    ]
}
