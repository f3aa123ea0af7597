//! Reports of a recorder to its user: events as they happen, totals at the end, losses as text.

use std::{fmt, time::Duration};

use super::record::{LostCounts, RecordingNote, ThresholdCrossed};

/// An event to report immediately. Fired triggers and messages are also in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RecorderEvent {
    /// A trigger fired.
    ThresholdCrossed(ThresholdCrossed),
    /// A message about the recording or the server.
    Note(RecordingNote),
    /// A relation whose [name](super::FlightRecorder::set_relation_name) is not known yet.
    Unnamed {
        /// Oid of the relation's database (`pg_database.oid`).
        database: u32,
        /// Oid of the relation (`pg_class.oid`).
        relation: u32,
    },
    /// A file whose relation's [name](super::FlightRecorder::set_file_name) is not known yet.
    UnnamedFile {
        /// Oid of the tablespace (`pg_tablespace.oid`).
        tablespace: u32,
        /// Oid of the relation's database.
        database: u32,
        /// The relation's `pg_relation_filenode()`.
        filenode: u32,
    },
}

/// Totals since the recorder was started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordingTotals {
    /// Time from start to end.
    pub elapsed: Duration,
    /// Number of recorded seconds. Some may be short, such as the first and the last.
    pub seconds: u64,
    /// Total length of the recorded seconds.
    pub recorded: Duration,
    /// Number of samples taken of the server.
    pub samples: u64,
    /// Losses in all seconds.
    pub lost: LostCounts,
    /// Number of triggers that fired.
    pub triggered: u64,
    /// Number of seconds in which a running episode or the cool-down prevented a trigger.
    pub suppressed: u64,
    /// Processor time of the whole process.
    pub cpu: Duration,
    /// Number of records omitted when episodes were written because their slot was full.
    pub omitted: u64,
    /// The latest problem with writing the file, unless a later write succeeded.
    pub trouble: Option<String>,
    /// Maximum size of the file, in bytes.
    pub max_bytes: u64,
}

impl LostCounts {
    /// Adds the counts of `other`.
    pub fn add(&mut self, other: &Self) {
        let Self {
            missed_samples: looks,
            locks,
            no_start: unpaired,
            skipped,
            phases,
            calls,
            uncounted_samples: samples,
            records,
        } = other;
        self.missed_samples = self.missed_samples.saturating_add(*looks);
        self.locks = self.locks.saturating_add(*locks);
        self.no_start = self.no_start.saturating_add(*unpaired);
        self.skipped = self.skipped.saturating_add(*skipped);
        self.phases = self.phases.saturating_add(*phases);
        self.calls = self.calls.saturating_add(*calls);
        self.uncounted_samples = self.uncounted_samples.saturating_add(*samples);
        self.records = self.records.saturating_add(*records);
    }

    /// Describes each kind of loss that occurred, with its count. Empty without losses.
    pub fn descriptions(&self) -> Vec<(u64, &'static str)> {
        let all = [
            (self.missed_samples, "samples skipped because they were late"),
            (self.locks, "extension locks lost on the way from the kernel"),
            (self.no_start, "extension locks whose start was not seen"),
            (self.skipped, "hits at which the kernel skipped a program"),
            (self.phases, "checkpoint events lost"),
            (self.calls, "calls of exact probes lost"),
            (self.uncounted_samples, "wait samples without a row"),
            (self.records, "records that could not be written"),
        ];
        all.into_iter().filter(|(number, _)| *number > 0).collect()
    }
}

impl fmt::Display for ThresholdCrossed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let format = |milli: u64| self.kind.format_value(milli as f64 / 1000.0);
        let (value, threshold) = (format(self.value_milli), format(self.threshold_milli));
        write!(f, "{} fired: {value}, threshold {threshold}", self.kind)
    }
}
