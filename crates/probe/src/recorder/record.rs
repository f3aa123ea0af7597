//! What a recording is made of.
//!
//! All moments are microseconds since 1970 by one clock: that of the kernel (`CLOCK_MONOTONIC`) with a
//! difference to the time of day that is taken once when a recording is begun or continued.

use super::{
    bytes::{Damage, Packed, packed, packed_words},
    spread::Spread,
};
use crate::{
    checkpoints::{Phase, Source},
    waits::Group,
};

/// One thing that was recorded.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Record {
    /// Recording began, or went on with a server that was started again.
    Started(Started),
    /// What was seen in a second.
    Second(Second),
    /// A phase of a checkpoint began.
    PhaseBegan(PhaseBegan),
    /// A phase of a checkpoint ended.
    PhaseEnded(PhaseEnded),
    /// A trigger fired.
    Fired(ThresholdCrossed),
    /// What exact probes measured in a second of an episode.
    Exact(Exact),
    /// Something worth knowing happened to the recording or to the server.
    Note(Note),
    /// A relation's name.
    Named(Named),
    /// Recording ended well.
    Ended(Ended),
}

/// What is recorded, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Started {
    /// When.
    pub at_us: i64,
    /// The server's major version.
    pub major: u32,
    /// The postmaster, as the recorder's namespace numbers it.
    pub postmaster: u32,
    /// The data directory.
    pub data_dir: String,
    /// Looks a second.
    pub rate: u32,
    /// Where each figure comes from: its name, and `bpf`, `memory` or `none`; why, if it is not the best.
    pub sources: Vec<FigureSource>,
    /// Triggers that are set, in words.
    pub triggers: Vec<String>,
}

/// Where a figure comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FigureSource {
    /// Its name: `checkpoints`, `extend`, `sweep`, `waits`.
    pub figure: String,
    /// `None`: it cannot be had.
    pub source: Option<Source>,
    /// What it lacks, if anything.
    pub lacks: String,
}

/// What was seen in a second. Its length may be a little more or less.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Second {
    /// When it began.
    pub at_us: i64,
    /// How long it was.
    pub elapsed_us: u64,
    /// Extension locks that were let go in it. `None`: nobody looked.
    pub extension: Option<Extension>,
    /// The clock sweep. `None`: nobody looked.
    pub sweep: Option<Sweep>,
    /// Samples of waits.
    pub waits: Waits,
    /// What was missed.
    pub lost: Lost,
    /// Processor time that the recorder used, all of it.
    pub cpu_us: u64,
}

/// Extension locks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extension {
    /// From asking to having.
    pub waits: Spread,
    /// From having to letting go.
    pub holds: Spread,
    /// Taken only because they could be had at once.
    pub at_once: u64,
    /// Those that were waited for longest.
    pub relations: Vec<RelationWaits>,
}

/// Waits to extend one relation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RelationWaits {
    /// `pg_database.oid`
    pub database: u32,
    /// `pg_class.oid`
    pub relation: u32,
    /// How many.
    pub waits: u64,
    /// How long together, in microseconds.
    pub total_us: u64,
    /// The longest, in microseconds.
    pub max_us: u64,
}

/// The clock sweep in a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sweep {
    /// Buffers of the server.
    pub buffers: u32,
    /// Buffers looked at.
    pub examined: u64,
    /// Buffers handed out.
    pub allocations: u64,
    /// Looked at for one handed out, in the slices with the fewest and with the most, in thousandths.
    pub slices_milli: Option<(u64, u64)>,
    /// Whether free buffers are left.
    pub has_free_buffers: bool,
}

/// Samples of waits in a second.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    /// How often it was looked.
    pub rounds: u32,
    /// What was seen.
    pub rows: Vec<WaitRow>,
}

/// How often processes of one kind were seen at one event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitRow {
    /// Which sum it belongs to.
    pub group: Group,
    /// What the processes are for.
    pub kind: String,
    /// Class of the event.
    pub class: String,
    /// The event, `Class:event`.
    pub event: String,
    /// How often.
    pub samples: u64,
}

/// What was missed in a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    /// Looks that came too late and were left out.
    pub looks: u64,
    /// Extension locks of which nothing was told.
    pub locks: u64,
    /// Extension locks whose beginning was not seen.
    pub unpaired: u64,
    /// Hits at which the kernel did not run a program.
    pub skipped: u64,
    /// Events of checkpoints.
    pub phases: u64,
    /// Calls of exact probes.
    pub calls: u64,
    /// Samples for which there was no row.
    pub samples: u64,
    /// Records that the file did not take.
    pub records: u64,
}

/// A phase of a checkpoint began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PhaseBegan {
    /// When.
    pub at_us: i64,
    /// Which.
    pub phase: Phase,
    /// The process.
    pub pid: u32,
    /// In how many others it is.
    pub depth: u32,
}

/// A phase of a checkpoint ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PhaseEnded {
    /// When it began.
    pub at_us: i64,
    /// How long it took.
    pub duration_us: u64,
    /// Which.
    pub phase: Phase,
    /// The process.
    pub pid: u32,
    /// In how many others it was.
    pub depth: u32,
    /// Buffers that were written, if it is told.
    pub buffers: Option<u64>,
    /// Files that were synced, if it is told.
    pub files: Option<u64>,
}

/// What is watched by a trigger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TriggerKind {
    /// The 99th percentile of waits for extension locks in a second, in milliseconds.
    ExtendP99,
    /// Buffers looked at for one handed out, over a second.
    Sweep,
    /// How long a checkpoint syncs files, in milliseconds.
    CheckpointSync,
}

/// A trigger fired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThresholdCrossed {
    /// When.
    pub at_us: i64,
    /// Which.
    pub kind: TriggerKind,
    /// What was seen, in thousandths of its unit.
    pub value_milli: u64,
    /// From which value on it fires, in thousandths of its unit.
    pub threshold_milli: u64,
    /// Seconds since the one before that would have fired, had it not been too soon.
    pub held_back: u64,
}

/// Calls of one operation in a second, measured exactly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exact {
    /// When the second began.
    pub at_us: i64,
    /// `io`, `wal` or `locks`.
    pub figure: String,
    /// `read`, `write`, `fsync`, …
    pub operation: String,
    /// How long.
    pub calls: Spread,
    /// What took longest together: subject, calls, microseconds.
    pub subjects: Vec<(String, (u64, u64))>,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// When.
    pub at_us: i64,
    /// What it is about.
    pub kind: NoteKind,
    /// In words.
    pub text: String,
}

/// What a note is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NoteKind {
    /// The server ended.
    ServerEnded,
    /// It was there again.
    ServerBack,
    /// Probes were taken away, or could not be attached.
    Probes,
    /// The file took nothing, or did again.
    File,
}

/// A relation's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// `pg_database.oid`
    pub database: u32,
    /// `pg_class.oid`
    pub relation: u32,
    /// `shop.public.orders`
    pub name: String,
}

/// Recording ended well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// When.
    pub at_us: i64,
    /// Why.
    pub reason: String,
}

packed! {
    Started { at_us, major, postmaster, data_dir, rate, sources, triggers }
    FigureSource { figure, source, lacks }
    Second { at_us, elapsed_us, extension, sweep, waits, lost, cpu_us }
    Extension { waits, holds, at_once, relations }
    RelationWaits { database, relation, waits, total_us, max_us }
    Sweep { buffers, examined, allocations, slices_milli, has_free_buffers }
    Waits { rounds, rows }
    WaitRow { group, kind, class, event, samples }
    Lost { looks, locks, unpaired, skipped, phases, calls, samples, records }
    PhaseBegan { at_us, phase, pid, depth }
    PhaseEnded { at_us, duration_us, phase, pid, depth, buffers, files }
    ThresholdCrossed { at_us, kind, value_milli, threshold_milli, held_back }
    Exact { at_us, figure, operation, calls, subjects }
    Note { at_us, kind, text }
    Named { database, relation, name }
    Ended { at_us, reason }
}

packed_words! { Phase Source Group TriggerKind NoteKind }

impl TriggerKind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::ExtendP99, Self::Sweep, Self::CheckpointSync];
}

impl NoteKind {
    /// All of them.
    const ALL: [Self; 4] = [Self::ServerEnded, Self::ServerBack, Self::Probes, Self::File];
}

impl Source {
    /// Both.
    const ALL: [Self; 2] = [Self::Bpf, Self::Memory];
}

impl Group {
    /// All of them.
    const ALL: [Self; 3] = [Self::Database, Self::Background, Self::Idle];
}

/// Which number each kind of record has in a file; it never changes.
macro_rules! kinds {
    ($($number:literal $kind:ident)*) => {
        impl Record {
            /// The bytes of it: its number in the recording, its kind, itself.
            pub(super) fn to_bytes(&self, number: u64) -> Vec<u8> {
                let mut out = Vec::new();
                number.pack(&mut out);
                match self {
                    $( Self::$kind(record) => { out.push($number); record.pack(&mut out); } )*
                }
                out
            }

            /// Reads it, with its number. What a later version appended to it is passed over.
            pub(super) fn from_bytes(mut bytes: &[u8]) -> Result<(u64, Self), Damage> {
                let input = &mut bytes;
                let number = u64::unpack(input)?;
                let (kind, rest) = input.split_first().ok_or(Damage::Ended)?;
                *input = rest;
                Ok((number, match kind {
                    $( $number => Self::$kind(Packed::unpack(input)?), )*
                    _ => return Err(Damage::Kind),
                }))
            }
        }
    };
}

kinds! {
    1 Started
    2 Second
    3 PhaseBegan
    4 PhaseEnded
    5 Fired
    6 Exact
    7 Note
    8 Named
    9 Ended
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_record_comes_back_and_one_of_a_later_version_is_passed_over() {
        let mut waits = Spread::default();
        waits.add(Duration::from_millis(3));
        let relations = vec![RelationWaits {
            database: 5,
            relation: 7,
            waits: 1,
            total_us: 3000,
            max_us: 3000,
        }];
        let record = Record::Second(Second {
            at_us: -5,
            elapsed_us: 1_000_000,
            extension: Some(Extension { waits, relations, ..Extension::default() }),
            sweep: Some(Sweep { slices_milli: Some((1000, 2500)), ..Sweep::default() }),
            waits: Waits {
                rounds: 100,
                rows: vec![WaitRow {
                    group: Group::Background,
                    kind: "checkpointer".to_owned(),
                    class: "IO".to_owned(),
                    event: "IO:DataFileSync".to_owned(),
                    samples: 40,
                }],
            },
            lost: Lost { looks: 3, ..Lost::default() },
            cpu_us: 9000,
        });
        let mut bytes = record.to_bytes(77);
        assert_eq!(Record::from_bytes(&bytes), Ok((77, record.clone())));
        bytes.extend(b"more");
        assert_eq!(Record::from_bytes(&bytes), Ok((77, record)));
        for end in 0..bytes.len() - 4 {
            assert!(Record::from_bytes(&bytes[..end]).is_err(), "cut at {end}");
        }
        assert_eq!(Record::from_bytes(&[1, 99]), Err(Damage::Kind));
    }
}
