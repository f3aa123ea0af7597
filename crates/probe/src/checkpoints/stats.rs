//! Tracks the phases of checkpoints by the statistics that the checkpointer collects: the exported
//! variable `CheckpointStats`, zeroed at the start and filled in during the checkpoint.
//!
//! | bytes | field | in 18 |
//! |---|---|---|
//! | 0–39 | start, first write, first sync, end of syncs, end: each µs since 2000 | |
//! | 40–43 | buffers written | |
//! | 44–47 | | SLRU buffers written |
//! | 44–55 | WAL segments added, removed, recycled | 48–59 |
//! | 56–59 | files synced | 60–63 |
//! | 64–79 | longest sync, all syncs, µs | |
//!
//! Source: `CheckpointStatsData` in `xlog.h`.

use std::{
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use howdah_inspect::{ProcessMemory, RunningServer};

use super::{CheckpointPhase, PhaseCounts, PhaseUpdate, phase_tracker::PhaseTracker};
use crate::error::ProbeError;

/// Tracks phases by polling the checkpointer's statistics.
#[derive(Debug)]
pub(super) struct FromCheckpointStats {
    server: RunningServer,
    checkpointer: u32,
    memory: ProcessMemory,
    address: u64,
    last: CheckpointStats,
    phases: PhaseTracker,
}

/// The checkpointer's statistics at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct CheckpointStats {
    /// Start, first write, first sync, end of syncs, end. `None` for those that have not happened
    /// yet.
    times: [Option<SystemTime>; 5],
    counts: PhaseCounts,
}

const STATS_BYTES: usize = 80;
const START: usize = 0;
const WRITE: usize = 1;
const SYNC: usize = 2;
const SYNC_END: usize = 3;
const END: usize = 4;

impl FromCheckpointStats {
    pub(super) fn open(server: &RunningServer) -> Result<Self, ProbeError> {
        let checkpointer = find_checkpointer(server)?;
        let memory = ProcessMemory::for_pid(checkpointer);
        let address = server.binary().address("CheckpointStats")?;
        let mut watch = Self {
            server: server.clone(),
            checkpointer,
            memory,
            address,
            last: CheckpointStats::default(),
            phases: PhaseTracker::default(),
        };
        let found = watch.read()?;
        // A checkpoint that has already finished is ignored; a running one is reported from its
        // start.
        if found.times[END].is_some() {
            watch.last = found;
        }
        Ok(watch)
    }

    fn read(&self) -> Result<CheckpointStats, ProbeError> {
        let bytes: [u8; STATS_BYTES] = self.memory.bytes(self.address)?;
        CheckpointStats::parse(&bytes, self.server.major())
            .ok_or(ProbeError::UnknownCode { symbol: "CheckpointStats" })
    }

    pub(super) fn poll(&mut self, visit: &mut impl FnMut(PhaseUpdate)) -> Result<(), ProbeError> {
        let found = match self.read() {
            Ok(found) => found,
            // After a backend crash the server starts a new checkpointer.
            Err(error) => {
                let now = find_checkpointer(&self.server)?;
                if now == self.checkpointer {
                    return Err(error);
                }
                (self.checkpointer, self.memory) = (now, ProcessMemory::for_pid(now));
                self.phases.clear();
                self.last = CheckpointStats::default();
                self.read()?
            }
        };
        let pid = self.checkpointer;
        if found.times[START] != self.last.times[START] {
            // A new checkpoint has started. The previous one has ended, or was skipped because the
            // server was idle and had nothing to write.
            self.phases.clear();
            self.last = CheckpointStats::default();
        }
        let is_new = |moment: usize| match (self.last.times[moment], found.times[moment]) {
            (None, Some(at)) => Some(at),
            _ => None,
        };
        let timeline = &mut self.phases;
        if let (Some(begin), Some(at)) = (found.times[START], is_new(WRITE)) {
            visit(timeline.start(CheckpointPhase::Checkpoint, pid, begin));
            visit(timeline.start(CheckpointPhase::Write, pid, at));
        }
        let counts = found.counts;
        let written =
            PhaseCounts { buffers_written: counts.buffers_written, ..PhaseCounts::default() };
        let PhaseCounts { files_synced, longest_sync, .. } = counts;
        let synced = PhaseCounts { files_synced, longest_sync, ..PhaseCounts::default() };
        if let Some(at) = is_new(SYNC) {
            timeline
                .finish(CheckpointPhase::Write, pid, at, written)
                .into_iter()
                .for_each(&mut *visit);
            visit(timeline.start(CheckpointPhase::Sync, pid, at));
        }
        if let Some(at) = is_new(SYNC_END) {
            timeline
                .finish(CheckpointPhase::Sync, pid, at, synced)
                .into_iter()
                .for_each(&mut *visit);
        }
        if let Some(at) = is_new(END) {
            timeline
                .finish(CheckpointPhase::Checkpoint, pid, at, counts)
                .into_iter()
                .for_each(&mut *visit);
        }
        self.last = found;
        Ok(())
    }
}

/// Time allowed for a newly started server to set its process titles. Until then, each process has
/// the postmaster's title.
const PROCESS_TITLE_TIMEOUT: Duration = Duration::from_secs(2);

fn find_checkpointer(server: &RunningServer) -> Result<u32, ProbeError> {
    let end = Instant::now() + PROCESS_TITLE_TIMEOUT;
    loop {
        let children = server.postmaster().children()?;
        let found = children.into_iter().find(|child| {
            child.title().is_ok_and(|title| title.trim_end().ends_with(": checkpointer"))
        });
        match found {
            Some(process) => return Ok(process.pid()),
            None if Instant::now() >= end => {
                return Err(ProbeError::NoProcess { kind: "checkpointer" });
            }
            None => thread::sleep(Duration::from_millis(10)),
        }
    }
}

impl CheckpointStats {
    /// Parses the variable; `None` if the values are impossible.
    fn parse(bytes: &[u8; STATS_BYTES], major: u32) -> Option<Self> {
        let double = |at: usize| {
            let bytes = bytes[at..].first_chunk().expect("field lies within the variable");
            u64::from_ne_bytes(*bytes)
        };
        let word = |at: usize| {
            let bytes = bytes[at..].first_chunk().expect("field lies within the variable");
            u64::try_from(i32::from_ne_bytes(*bytes)).ok()
        };
        let mut moments = [None; 5];
        for (index, moment) in moments.iter_mut().enumerate() {
            *moment = match double(8 * index) {
                0 => None,
                us @ 1..US_MAX => Some(UNIX_EPOCH + POSTGRES_EPOCH + Duration::from_micros(us)),
                _ => return None,
            };
        }
        let known = moments.iter().map_while(|moment| *moment);
        // The server sets times in order; only their values may decrease if the clock is set back.
        if known.count() != moments.iter().flatten().count() {
            return None;
        }
        let later = if major >= 18 { 4 } else { 0 };
        let counts = PhaseCounts {
            buffers_written: Some(word(40)?),
            buffers_to_write: None,
            segments: Some([word(44 + later)?, word(48 + later)?, word(52 + later)?]),
            files_synced: Some(word(56 + later)?),
            longest_sync: Some(Duration::from_micros(double(64))),
        };
        Some(Self { times: moments, counts })
    }
}

/// 2000-01-01, PostgreSQL's epoch.
const POSTGRES_EPOCH: Duration = Duration::from_secs(946_684_800);

/// Microseconds from PostgreSQL's epoch to the year 2200; later times are not plausible.
const US_MAX: u64 = 6_311_433_600_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn stats_bytes(moments: [u64; 5], words: [i32; 6]) -> [u8; STATS_BYTES] {
        let mut bytes = Vec::new();
        moments.iter().for_each(|us| bytes.extend(us.to_ne_bytes()));
        words.iter().for_each(|word| bytes.extend(word.to_ne_bytes()));
        bytes.resize(64, 0);
        bytes.extend(1500_u64.to_ne_bytes());
        bytes.extend(9000_u64.to_ne_bytes());
        *bytes.first_chunk().expect("all fields are present")
    }

    #[test]
    fn stats_layout_follows_the_major_version() {
        let bytes = stats_bytes([10, 20, 30, 0, 0], [7, 1, 2, 3, 4, 0]);
        let read = CheckpointStats::parse(&bytes, 15).expect("plausible values");
        assert_eq!(read.times.iter().flatten().count(), 3);
        let PhaseCounts { buffers_written, segments, files_synced, longest_sync, .. } = read.counts;
        assert_eq!((buffers_written, segments), (Some(7), Some([1, 2, 3])));
        assert_eq!((files_synced, longest_sync), (Some(4), Some(Duration::from_micros(1500))));
        let later = CheckpointStats::parse(&stats_bytes([10, 0, 0, 0, 0], [7, 99, 1, 2, 3, 4]), 18)
            .expect("plausible values");
        assert_eq!((later.counts.segments, later.counts.files_synced), (Some([1, 2, 3]), Some(4)));
    }

    #[test]
    fn impossible_stats_are_rejected() {
        for bytes in [
            stats_bytes([u64::MAX, 0, 0, 0, 0], [0; 6]),
            stats_bytes([10, 0, 30, 0, 0], [0; 6]),
            stats_bytes([10, 20, 0, 0, 0], [-1, 0, 0, 0, 0, 0]),
        ] {
            assert_eq!(CheckpointStats::parse(&bytes, 15), None);
        }
    }
}
