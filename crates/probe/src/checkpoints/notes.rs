//! Phases by the notes that the checkpointer takes of its checkpoint: the exported variable
//! `CheckpointStats`, set to zeros at the begin and filled as the checkpoint goes on.
//!
//! | bytes | field | in 18 |
//! |---|---|---|
//! | 0–39 | begin, first write, first sync, end of syncs, end: each µs since 2000 | |
//! | 40–43 | buffers written | |
//! | 44–47 | | pages of the commit log and its like |
//! | 44–55 | WAL segments added, removed, recycled | 48–59 |
//! | 56–59 | files synced | 60–63 |
//! | 64–79 | longest sync, all syncs, µs | |
//!
//! Source: `CheckpointStatsData` in `xlog.h`.

use std::{
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use howdah_inspect::{Memory, Server};

use super::{Counts, Phase, Update, timeline::Timeline};
use crate::error::Error;

/// Phases, told by the checkpointer's notes.
#[derive(Debug)]
pub(super) struct FromNotes {
    server: Server,
    checkpointer: u32,
    memory: Memory,
    address: u64,
    seen: Notes,
    timeline: Timeline,
}

/// The notes, as they were read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Notes {
    /// Begin, first write, first sync, end of syncs, end. `None` if it is still to come.
    moments: [Option<SystemTime>; 5],
    counts: Counts,
}

const NOTES_BYTES: usize = 80;
const BEGIN: usize = 0;
const WRITE: usize = 1;
const SYNC: usize = 2;
const SYNC_END: usize = 3;
const END: usize = 4;

impl FromNotes {
    pub(super) fn open(server: &Server) -> Result<Self, Error> {
        let checkpointer = checkpointer(server)?;
        let memory = Memory::of(checkpointer);
        let address = server.binary().address("CheckpointStats")?;
        let mut watch = Self {
            server: server.clone(),
            checkpointer,
            memory,
            address,
            seen: Notes::default(),
            timeline: Timeline::default(),
        };
        let found = watch.read()?;
        // What has ended is of no interest; what goes on is told from its begin.
        if found.moments[END].is_some() {
            watch.seen = found;
        }
        Ok(watch)
    }

    fn read(&self) -> Result<Notes, Error> {
        let bytes: [u8; NOTES_BYTES] = self.memory.bytes(self.address)?;
        Notes::of(&bytes, self.server.major())
            .ok_or(Error::UnknownCode { symbol: "CheckpointStats" })
    }

    pub(super) fn poll(&mut self, visit: &mut impl FnMut(Update)) -> Result<(), Error> {
        let found = match self.read() {
            Ok(found) => found,
            // After a crash of a backend the server starts another checkpointer.
            Err(error) => {
                let now = checkpointer(&self.server)?;
                if now == self.checkpointer {
                    return Err(error);
                }
                (self.checkpointer, self.memory) = (now, Memory::of(now));
                self.timeline.clear();
                self.seen = Notes::default();
                self.read()?
            }
        };
        let pid = self.checkpointer;
        if found.moments[BEGIN] != self.seen.moments[BEGIN] {
            // Of the one before, the end was seen, or it came to nothing: an idle server has none to make.
            self.timeline.clear();
            self.seen = Notes::default();
        }
        let is_new = |moment: usize| match (self.seen.moments[moment], found.moments[moment]) {
            (None, Some(at)) => Some(at),
            _ => None,
        };
        let timeline = &mut self.timeline;
        if let (Some(begin), Some(at)) = (found.moments[BEGIN], is_new(WRITE)) {
            visit(timeline.begin(Phase::Checkpoint, pid, begin));
            visit(timeline.begin(Phase::Write, pid, at));
        }
        let counts = found.counts;
        let written = Counts { buffers_written: counts.buffers_written, ..Counts::default() };
        let Counts { files_synced, longest_sync, .. } = counts;
        let synced = Counts { files_synced, longest_sync, ..Counts::default() };
        if let Some(at) = is_new(SYNC) {
            timeline.end(Phase::Write, pid, at, written).into_iter().for_each(&mut *visit);
            visit(timeline.begin(Phase::Sync, pid, at));
        }
        if let Some(at) = is_new(SYNC_END) {
            timeline.end(Phase::Sync, pid, at, synced).into_iter().for_each(&mut *visit);
        }
        if let Some(at) = is_new(END) {
            timeline.end(Phase::Checkpoint, pid, at, counts).into_iter().for_each(&mut *visit);
        }
        self.seen = found;
        Ok(())
    }
}

/// How long a server that has just started may take to name its processes: each bears the first one's title
/// until it runs.
const NAMING: Duration = Duration::from_secs(2);

fn checkpointer(server: &Server) -> Result<u32, Error> {
    let end = Instant::now() + NAMING;
    loop {
        let children = server.postmaster().children()?;
        let found = children.into_iter().find(|child| {
            child.title().is_ok_and(|title| title.trim_end().ends_with(": checkpointer"))
        });
        match found {
            Some(process) => return Ok(process.pid()),
            None if Instant::now() >= end => {
                return Err(Error::NoProcess { kind: "checkpointer" });
            }
            None => thread::sleep(Duration::from_millis(10)),
        }
    }
}

impl Notes {
    /// Reads them; `None` if they cannot be what they should be.
    fn of(bytes: &[u8; NOTES_BYTES], major: u32) -> Option<Self> {
        let double = |at: usize| {
            let bytes = bytes[at..].first_chunk().expect("all fields lie within the notes");
            u64::from_ne_bytes(*bytes)
        };
        let word = |at: usize| {
            let bytes = bytes[at..].first_chunk().expect("all fields lie within the notes");
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
        // What is filled is filled from the front; the clock may have been set back meanwhile.
        if known.count() != moments.iter().flatten().count() {
            return None;
        }
        let later = if major >= 18 { 4 } else { 0 };
        let counts = Counts {
            buffers_written: Some(word(40)?),
            buffers_to_write: None,
            segments: Some([word(44 + later)?, word(48 + later)?, word(52 + later)?]),
            files_synced: Some(word(56 + later)?),
            longest_sync: Some(Duration::from_micros(double(64))),
        };
        Some(Self { moments, counts })
    }
}

/// 2000-01-01, from which PostgreSQL counts.
const POSTGRES_EPOCH: Duration = Duration::from_secs(946_684_800);

/// Some time in the year 2200: times beyond are none.
const US_MAX: u64 = 6_311_433_600_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn notes(moments: [u64; 5], words: [i32; 6]) -> [u8; NOTES_BYTES] {
        let mut bytes = Vec::new();
        moments.iter().for_each(|us| bytes.extend(us.to_ne_bytes()));
        words.iter().for_each(|word| bytes.extend(word.to_ne_bytes()));
        bytes.resize(64, 0);
        bytes.extend(1500_u64.to_ne_bytes());
        bytes.extend(9000_u64.to_ne_bytes());
        *bytes.first_chunk().expect("all are there")
    }

    #[test]
    fn notes_are_read_as_the_version_has_them() {
        let bytes = notes([10, 20, 30, 0, 0], [7, 1, 2, 3, 4, 0]);
        let read = Notes::of(&bytes, 15).expect("possible");
        assert_eq!(read.moments.iter().flatten().count(), 3);
        let Counts { buffers_written, segments, files_synced, longest_sync, .. } = read.counts;
        assert_eq!((buffers_written, segments), (Some(7), Some([1, 2, 3])));
        assert_eq!((files_synced, longest_sync), (Some(4), Some(Duration::from_micros(1500))));
        let later = Notes::of(&notes([10, 0, 0, 0, 0], [7, 99, 1, 2, 3, 4]), 18).expect("possible");
        assert_eq!((later.counts.segments, later.counts.files_synced), (Some([1, 2, 3]), Some(4)));
    }

    #[test]
    fn the_impossible_is_refused() {
        for bytes in [
            notes([u64::MAX, 0, 0, 0, 0], [0; 6]),
            notes([10, 0, 30, 0, 0], [0; 6]),
            notes([10, 20, 0, 0, 0], [-1, 0, 0, 0, 0, 0]),
        ] {
            assert_eq!(Notes::of(&bytes, 15), None);
        }
    }
}
