//! The records of a recording, and their encoding.
//!
//! All times are microseconds since 1970, from the kernel's `CLOCK_MONOTONIC` and an offset to the
//! wall clock that is measured when the recorder starts (for checkpoint phases: when their probes
//! are attached). Only the times of checkpoint phases polled from the server's memory are those
//! that the server itself read from the wall clock.

use howdah_codec::{ByteReader, ByteWriter as _};

use super::{
    bytes::{Packed, RecordDecodeError, packed, packed_words},
    log_histogram::LogHistogram,
    session_records::{
        HostPressure, NamedFile, RecordedCircles, RecordedCounters, RecordedSessions, StatementText,
    },
};
use crate::{
    checkpoints::{CheckpointPhase, ProbeSource},
    waits::TimeCategory,
};

/// One entry of a recording.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum FlightRecord {
    /// Recording started, or resumed with a restarted server. Repeated regularly, so that the file
    /// contains it although old records are overwritten.
    Started(RecordingStarted),
    /// Observations of one second.
    Second(RecordedSecond),
    /// A phase of a checkpoint started.
    PhaseStarted(PhaseStarted),
    /// A phase of a checkpoint ended.
    PhaseEnded(PhaseEnded),
    /// A trigger fired.
    ThresholdCrossed(ThresholdCrossed),
    /// Calls of one operation, measured exactly in one second of an episode.
    TracedCalls(TracedCalls),
    /// A message about the recording or the server.
    Note(RecordingNote),
    /// The name of a relation, which other records identify by its oids.
    NamedRelation(NamedRelation),
    /// Recording ended in an orderly way.
    Ended(RecordingEnded),
    /// Sessions at one moment.
    Sessions(RecordedSessions),
    /// Growth of the server's counters since the previous sample.
    Counters(RecordedCounters),
    /// The text of a statement, which sessions identify by its id. Repeated if it is used again and
    /// much was recorded since.
    StatementText(StatementText),
    /// Shares of time in which processes of the host waited for its resources.
    Pressure(HostPressure),
    /// The relation of a file, which traced calls identify by numbers.
    NamedFile(NamedFile),
    /// Sessions that wait for each other in circles, confirmed by two lists. Recorded when they
    /// change, and every few seconds.
    WaitCircle(RecordedCircles),
}

/// The start of a recording, or its resumption with a restarted server: the server and the options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordingStarted {
    /// Time of the event, in microseconds since 1970.
    pub at_us: i64,
    /// The server's major version.
    pub major: u32,
    /// Process id of the postmaster, in the recorder's namespace.
    pub postmaster: u32,
    /// Path of the server's data directory.
    pub data_dir: String,
    /// Requested number of samples per second.
    pub rate: u32,
    /// The source of each metric.
    pub sources: Vec<RecordedSource>,
    /// The triggers that are set, e.g. `sweep=50`.
    pub triggers: Vec<String>,
}

/// The source of a metric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedSource {
    /// The metric: `checkpoints`, `extend`, `sessions`, `sweep` or `waits`.
    pub metric: String,
    /// The source; `None` if the metric is not available.
    pub source: Option<ProbeSource>,
    /// Data that the source cannot provide, or why a better source or any source is missing, as
    /// text; empty if the data is complete.
    pub limitation: String,
}

/// Observations of one second, or of about that time: see [`elapsed_us`](Self::elapsed_us).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordedSecond {
    /// Start of the second, in microseconds since 1970.
    pub at_us: i64,
    /// Actual length, in microseconds.
    pub elapsed_us: u64,
    /// Extension locks released in this second; `None` if they were not traced.
    pub extension: Option<ExtensionTotals>,
    /// The clock sweep; `None` if it was not sampled.
    pub sweep: Option<SweepTotals>,
    /// Wait events of all processes, sampled in this second.
    pub waits: WaitSamples,
    /// Losses found in this second.
    pub lost: LostCounts,
    /// Processor time used by the whole recorder process, in microseconds.
    pub cpu_us: u64,
}

/// Extension locks released in one second.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExtensionTotals {
    /// Time from request to acquisition, of the locks that were requested unconditionally.
    pub waits: LogHistogram,
    /// Time from acquisition to release, of all locks.
    pub holds: LogHistogram,
    /// Number of locks that were requested only if free.
    pub conditional: u64,
    /// The relations with the longest total wait, longest first.
    pub relations: Vec<RelationWaits>,
}

/// Waits to extend one relation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RelationWaits {
    /// Oid of the relation's database (`pg_database.oid`).
    pub database: u32,
    /// Oid of the relation (`pg_class.oid`).
    pub relation: u32,
    /// Number of unconditional requests for the relation's extension lock.
    pub waits: u64,
    /// Total wait time, in microseconds.
    pub total_us: u64,
    /// The longest wait, in microseconds.
    pub max_us: u64,
}

/// The clock sweep in one second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SweepTotals {
    /// Total number of buffers of the server.
    pub buffers: u32,
    /// Buffers examined by the sweep.
    pub examined: u64,
    /// Buffers allocated by the server.
    pub allocations: u64,
    /// Buffers examined per allocation, in thousandths: minimum and maximum, as in
    /// [`PerAllocation`](crate::sweep::PerAllocation). `None` if there were no allocations.
    pub slices_milli: Option<(u64, u64)>,
    /// Whether free buffers are left.
    pub has_free_buffers: bool,
}

/// Wait samples of one second.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WaitSamples {
    /// Number of sampling rounds.
    pub rounds: u32,
    /// The observations, by kind of process and event.
    pub rows: Vec<WaitRow>,
}

/// Samples of processes of one kind in one event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitRow {
    /// Whether the time is database time, background work or idle time.
    pub group: TimeCategory,
    /// The kind of processes: [`ProcessKind::name`](crate::waits::ProcessKind::name).
    pub kind: String,
    /// Class of the event: [`Class::name`](crate::waits::Class::name).
    pub class: String,
    /// The event, usually as `Class:event`; `CPU*` for no wait.
    pub event: String,
    /// Number of observations.
    pub samples: u64,
}

/// Events, samples and records lost in one second or in a whole recording, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LostCounts {
    /// Samples skipped because they were too late.
    pub missed_samples: u64,
    /// Extension locks lost on the way from the kernel.
    pub locks: u64,
    /// Extension locks whose start was not observed.
    pub no_start: u64,
    /// Hits at which the kernel did not run a BPF program that traces extension locks.
    pub skipped: u64,
    /// Lost checkpoint events.
    pub phases: u64,
    /// Lost calls of exact probes.
    pub calls: u64,
    /// Observations dropped because the second, or the recorder's table of events, already had the
    /// maximum number of rows.
    pub uncounted_samples: u64,
    /// Records that could not be written to the file.
    pub records: u64,
}

/// The start of a phase of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PhaseStarted {
    /// Time of the event, in microseconds since 1970.
    pub at_us: i64,
    /// Kind of the phase.
    pub phase: CheckpointPhase,
    /// Id of the process that performs the checkpoint, as in
    /// [`PhaseUpdate`](crate::checkpoints::PhaseUpdate).
    pub pid: u32,
    /// Number of enclosing phases; 0 for the outermost.
    pub depth: u32,
}

/// The end of a phase of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PhaseEnded {
    /// Start of the phase, in microseconds since 1970.
    pub at_us: i64,
    /// Time from start to end, in microseconds.
    pub duration_us: u64,
    /// Kind of the phase.
    pub phase: CheckpointPhase,
    /// Id of the process that performs the checkpoint, as in
    /// [`PhaseUpdate`](crate::checkpoints::PhaseUpdate).
    pub pid: u32,
    /// Number of enclosing phases; 0 for the outermost.
    pub depth: u32,
    /// Buffers written, if known.
    pub buffers: Option<u64>,
    /// Files synced, if known; only for a sync phase.
    pub files: Option<u64>,
}

/// The metric that a trigger compares with its threshold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TriggerKind {
    /// The 99th percentile of waits for extension locks in a second, in milliseconds.
    ExtendP99,
    /// Buffers examined per allocation, over a second.
    Sweep,
    /// Time that a checkpoint has spent in its sync phase, in milliseconds.
    CheckpointSync,
    /// Average number of sessions that wait for heavyweight locks, over a second.
    Locks,
    /// Average number of sessions that wait for the WAL to be written or synced, over a second.
    WalSync,
    /// Average number of sessions that execute statements, over a second.
    Active,
    /// Time for which no transaction has committed although sessions wait, in milliseconds.
    CommitsStopped,
    /// Replay lag of the slowest standby, in milliseconds.
    StandbyLag,
    /// Pressure on a resource of the host, in percent: the highest of CPU, I/O and memory.
    Pressure,
}

/// A trigger that fired, with the value that reached the threshold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThresholdCrossed {
    /// Time of the event, in microseconds since 1970.
    pub at_us: i64,
    /// The metric that reached its threshold.
    pub kind: TriggerKind,
    /// The measured value, in thousandths of its unit.
    pub value_milli: u64,
    /// The threshold, in thousandths of its unit.
    pub threshold_milli: u64,
    /// Number of seconds since the previous trigger in which a threshold was reached, but an
    /// episode was running or the cool-down had not passed.
    pub suppressed: u64,
}

/// Calls of one operation in one second, measured exactly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TracedCalls {
    /// Approximate start of the second, in microseconds since 1970.
    pub at_us: i64,
    /// The traced metric: `io`, `wal` or `locks`.
    pub metric: String,
    /// The operation: `read`, `write`, `fsync`, …
    pub operation: String,
    /// Durations of the calls.
    pub calls: LogHistogram,
    /// Subjects with the longest total time: subject, calls, microseconds.
    pub subjects: Vec<(String, (u64, u64))>,
}

/// A message about the recording or the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordingNote {
    /// Time of the event, in microseconds since 1970.
    pub at_us: i64,
    /// The topic of the message.
    pub kind: NoteKind,
    /// The message, for the user.
    pub text: String,
}

/// The topic of a note.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NoteKind {
    /// The server can no longer be sampled, usually because it stopped; recording pauses.
    ServerEnded,
    /// The server is running again.
    ServerBack,
    /// Probes were detached or attached again, or could not be attached.
    Probes,
    /// The file could not be written, or can be again.
    File,
}

/// The name of a relation, with its oids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedRelation {
    /// Oid of the relation's database (`pg_database.oid`).
    pub database: u32,
    /// Oid of the relation (`pg_class.oid`).
    pub relation: u32,
    /// Qualified name, such as `shop.public.orders`.
    pub name: String,
}

/// The orderly end of a recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordingEnded {
    /// Time of the event, in microseconds since 1970.
    pub at_us: i64,
    /// The reason, as given by the caller of `finish`.
    pub reason: String,
}

packed! {
    RecordingStarted { at_us, major, postmaster, data_dir, rate, sources, triggers }
    RecordedSource { metric, source, limitation }
    RecordedSecond { at_us, elapsed_us, extension, sweep, waits, lost, cpu_us }
    ExtensionTotals { waits, holds, conditional, relations }
    RelationWaits { database, relation, waits, total_us, max_us }
    SweepTotals { buffers, examined, allocations, slices_milli, has_free_buffers }
    WaitSamples { rounds, rows }
    WaitRow { group, kind, class, event, samples }
    LostCounts { missed_samples, locks, no_start, skipped, phases, calls, uncounted_samples, records }
    PhaseStarted { at_us, phase, pid, depth }
    PhaseEnded { at_us, duration_us, phase, pid, depth, buffers, files }
    ThresholdCrossed { at_us, kind, value_milli, threshold_milli, suppressed }
    TracedCalls { at_us, metric, operation, calls, subjects }
    RecordingNote { at_us, kind, text }
    NamedRelation { database, relation, name }
    RecordingEnded { at_us, reason }
}

packed_words! { CheckpointPhase ProbeSource TimeCategory TriggerKind NoteKind }

impl TriggerKind {
    /// All variants, in the order of their numbers in a file.
    pub const ALL: [Self; 9] = [
        Self::ExtendP99,
        Self::Sweep,
        Self::CheckpointSync,
        Self::Locks,
        Self::WalSync,
        Self::Active,
        Self::CommitsStopped,
        Self::StandbyLag,
        Self::Pressure,
    ];
}

impl NoteKind {
    /// All variants, in the order of their numbers in a file.
    const ALL: [Self; 4] = [Self::ServerEnded, Self::ServerBack, Self::Probes, Self::File];
}

impl ProbeSource {
    /// All sources of a recording, in the order of their numbers in a file.
    const ALL: [Self; 4] = [Self::Bpf, Self::Memory, Self::Sql, Self::Perf];
}

impl TimeCategory {
    /// All variants, in the order of their numbers in a file.
    const ALL: [Self; 3] = [Self::Database, Self::Background, Self::Idle];
}

/// Maps each kind of record to its number in a file, which never changes.
macro_rules! kinds {
    ($($number:literal $kind:ident)*) => {
        impl FlightRecord {
            /// Encodes the record: its number in the recording, its kind, its fields.
            pub(super) fn to_bytes(&self, number: u64) -> Vec<u8> {
                let mut out = Vec::new();
                out.write_varint(number);
                match self {
                    $( Self::$kind(record) => { out.push($number); record.pack(&mut out); } )*
                }
                out
            }

            /// Decodes a record and its number. Fields appended by a later version are ignored.
            pub(super) fn from_bytes(bytes: &[u8]) -> Result<(u64, Self), RecordDecodeError> {
                let input = &mut ByteReader::new(bytes);
                let number = input.varint()?;
                Ok((number, match input.byte()? {
                    $( $number => Self::$kind(Packed::unpack(input)?), )*
                    _ => return Err(RecordDecodeError::UnknownKind),
                }))
            }
        }
    };
}

kinds! {
    1 Started
    2 Second
    3 PhaseStarted
    4 PhaseEnded
    5 ThresholdCrossed
    6 TracedCalls
    7 Note
    8 NamedRelation
    9 Ended
    10 Sessions
    11 Counters
    12 StatementText
    13 Pressure
    14 NamedFile
    15 WaitCircle
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn records_round_trip_and_trailing_bytes_are_ignored() {
        let mut waits = LogHistogram::default();
        waits.add(Duration::from_millis(3));
        let relations = vec![RelationWaits {
            database: 5,
            relation: 7,
            waits: 1,
            total_us: 3000,
            max_us: 3000,
        }];
        let record = FlightRecord::Second(RecordedSecond {
            at_us: -5,
            elapsed_us: 1_000_000,
            extension: Some(ExtensionTotals { waits, relations, ..ExtensionTotals::default() }),
            sweep: Some(SweepTotals { slices_milli: Some((1000, 2500)), ..SweepTotals::default() }),
            waits: WaitSamples {
                rounds: 100,
                rows: vec![WaitRow {
                    group: TimeCategory::Background,
                    kind: "checkpointer".to_owned(),
                    class: "IO".to_owned(),
                    event: "IO:DataFileSync".to_owned(),
                    samples: 40,
                }],
            },
            lost: LostCounts { missed_samples: 3, ..LostCounts::default() },
            cpu_us: 9000,
        });
        let mut bytes = record.to_bytes(77);
        assert_eq!(FlightRecord::from_bytes(&bytes), Ok((77, record.clone())));
        bytes.extend(b"more");
        assert_eq!(FlightRecord::from_bytes(&bytes), Ok((77, record)));
        for end in 0..bytes.len() - 4 {
            assert!(FlightRecord::from_bytes(&bytes[..end]).is_err(), "cut at {end}");
        }
        assert_eq!(FlightRecord::from_bytes(&[1, 99]), Err(RecordDecodeError::UnknownKind));
    }
}
