//! The buffer map: which page of which relation is in each of the server's buffers, how much it was
//! used, and whether it is dirty.
//!
//! One descriptor has 64 bytes, in an array that the exported `BufferDescriptors` points to:
//!
//! | bytes | field |
//! |---|---|
//! | 0–19 | tag: tablespace, database, relation file number, fork, block, each 4 bytes |
//! | 20–23 | the buffer's own number, by which the layout is checked |
//! | 24–27 | state: 18 bits of pins, 4 of usage count, flags from bit 22 on |
//!
//! Source: `BufferDesc` and `BM_*` in `buf_internals.h`, the same in 14 to 18 (padded to a cache line by
//! `BUFFERDESC_PAD_TO_SIZE`).
//!
//! Cost: one copy of 64 bytes a buffer, in pieces of 1 MiB, a large array by two threads; no lock is taken
//! and the server does not notice. A buffer that changes hands while it is copied may show the old page
//! with the new state, as any reader without the header's lock sees it; what is left of it then is a page
//! that was there a moment ago.

use std::{ops::Range, panic::resume_unwind, thread, vec};

use crate::{
    error::{Error, LayoutError},
    memory::Memory,
    server::Server,
};

/// The array of buffer descriptors of a running server.
#[derive(Clone, Copy, Debug)]
pub struct BufferMap {
    memory: Memory,
    descriptors: u64,
    count: u32,
}

/// A buffer that holds a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Buffer {
    /// `pg_tablespace.oid`.
    pub tablespace: u32,
    /// `pg_database.oid`, 0 for the shared catalogs.
    pub database: u32,
    /// `pg_relation_filenode()` of the relation.
    pub filenode: u32,
    /// Which of its forks.
    pub fork: Fork,
    /// Which page of the fork, from 0 on.
    pub block: u32,
    /// How often the clock sweep has to pass before it takes the buffer: 0 to 5.
    pub usage: u8,
    /// Changed since it was read or written.
    pub is_dirty: bool,
    /// Belongs to a logged relation: it survives a crash.
    pub is_permanent: bool,
    /// In use by some backend.
    pub is_pinned: bool,
}

/// The forks of a relation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fork {
    /// The relation itself.
    Main,
    /// Its free space map.
    FreeSpaceMap,
    /// Its visibility map.
    VisibilityMap,
    /// What an unlogged relation is reset to.
    Init,
}

/// The buffers that hold pages, in the order of the array.
#[derive(Debug)]
pub struct Buffers {
    first: vec::IntoIter<Buffer>,
    second: vec::IntoIter<Buffer>,
    unfinished: u32,
}

impl BufferMap {
    pub(crate) fn of(server: &Server) -> Result<Self, Error> {
        let memory = server.memory();
        let descriptors = memory.pointer(server.binary().address("BufferDescriptors")?)?;
        let count = server.buffer_count()?;
        let map = Self { memory, descriptors, count };
        // The first and the last one tell at once whether size and place are right.
        for index in [0, count - 1] {
            let bytes: [u8; DESCRIPTOR_BYTES] = memory.bytes(map.address(index))?;
            Descriptor(&bytes).check(index)?;
        }
        Ok(map)
    }

    /// How many buffers there are: `shared_buffers` in pages.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Copies the array and gives the buffers that hold pages.
    ///
    /// # Errors
    ///
    /// The server ended, or a descriptor does not carry its own number.
    pub fn read(&self) -> Result<Buffers, Error> {
        if self.count < PARALLEL_BUFFERS {
            return self.read_range(0..self.count);
        }
        let middle = self.count / 2;
        let (first, second) = thread::scope(|scope| {
            let second = scope.spawn(|| self.read_range(middle..self.count));
            let first = self.read_range(0..middle);
            (first, second.join().unwrap_or_else(|panic| resume_unwind(panic)))
        });
        Ok(first?.followed_by(second?))
    }

    fn read_range(&self, range: Range<u32>) -> Result<Buffers, Error> {
        let length = range.len();
        let mut piece = vec![0; DESCRIPTOR_BYTES * length.min(PIECE_BUFFERS as usize)];
        let mut buffers = Vec::with_capacity(length);
        let mut unfinished = 0;
        let mut first = range.start;
        while first < range.end {
            let count = PIECE_BUFFERS.min(range.end - first);
            let bytes = &mut piece[..DESCRIPTOR_BYTES * count as usize];
            self.memory.read(self.address(first), bytes)?;
            for (descriptor, index) in bytes.chunks_exact(DESCRIPTOR_BYTES).zip(first..) {
                let descriptor = Descriptor(descriptor);
                descriptor.check(index)?;
                match descriptor.buffer() {
                    Page::Held(buffer) => buffers.push(buffer),
                    Page::None => {}
                    Page::Unfinished => unfinished += 1,
                }
            }
            first += count;
        }
        Ok(Buffers { first: buffers.into_iter(), second: Vec::new().into_iter(), unfinished })
    }

    fn address(&self, index: u32) -> u64 {
        self.descriptors + u64::from(index) * DESCRIPTOR_BYTES as u64
    }
}

impl Buffers {
    /// Buffers left out because they were just being filled, or changed while they were copied.
    #[must_use]
    pub fn unfinished(&self) -> u32 {
        self.unfinished
    }

    /// These, which are all in their first part, and then those.
    fn followed_by(self, those: Self) -> Self {
        Self { second: those.first, unfinished: self.unfinished + those.unfinished, ..self }
    }
}

impl Iterator for Buffers {
    type Item = Buffer;

    fn next(&mut self) -> Option<Buffer> {
        self.first.next().or_else(|| self.second.next())
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.first.len() + self.second.len();
        (left, Some(left))
    }
}

impl ExactSizeIterator for Buffers {}

impl Fork {
    /// All forks, by PostgreSQL's number.
    pub const ALL: [Self; 4] = [Self::Main, Self::FreeSpaceMap, Self::VisibilityMap, Self::Init];

    /// The fork of PostgreSQL's number `number`.
    #[must_use]
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.get(usize::try_from(number).ok()?).copied()
    }

    /// PostgreSQL's number for it.
    #[must_use]
    pub fn number(self) -> u32 {
        match self {
            Self::Main => 0,
            Self::FreeSpaceMap => 1,
            Self::VisibilityMap => 2,
            Self::Init => 3,
        }
    }

    /// PostgreSQL's name for it, as `pg_relation_size()` takes it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Main => "main",
            Self::FreeSpaceMap => "fsm",
            Self::VisibilityMap => "vm",
            Self::Init => "init",
        }
    }

    /// The fork of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|fork| fork.name() == name)
    }
}

/// What a descriptor stands for.
enum Page {
    Held(Buffer),
    None,
    Unfinished,
}

/// The bytes of one descriptor.
struct Descriptor<'a>(&'a [u8]);

impl Descriptor<'_> {
    fn check(&self, index: u32) -> Result<(), LayoutError> {
        match self.word(20) {
            found if found == index => Ok(()),
            found => Err(LayoutError::BufferNumber { index, found: found.cast_signed() }),
        }
    }

    fn buffer(&self) -> Page {
        let state = self.word(24);
        let has = |flag: u32| state & flag != 0;
        if !has(BM_TAG_VALID) {
            return Page::None;
        }
        let usage = ((state >> USAGE_SHIFT) & 0xf) as u8;
        match Fork::from_number(self.word(12)) {
            Some(fork) if has(BM_VALID) && usage <= BM_MAX_USAGE_COUNT => Page::Held(Buffer {
                tablespace: self.word(0),
                database: self.word(4),
                filenode: self.word(8),
                fork,
                block: self.word(16),
                usage,
                is_dirty: has(BM_DIRTY),
                is_permanent: has(BM_PERMANENT),
                is_pinned: state & PINS != 0,
            }),
            _ => Page::Unfinished,
        }
    }

    fn word(&self, at: usize) -> u32 {
        let bytes = self.0.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
        u32::from_ne_bytes(bytes.expect("a descriptor has 64 bytes"))
    }
}

const DESCRIPTOR_BYTES: usize = 64;
/// Descriptors copied by one system call: 1 MiB, which stays in the second-level cache.
const PIECE_BUFFERS: u32 = 16_384;

/// From here on (512 MB of pages) two threads are worth their start.
const PARALLEL_BUFFERS: u32 = 65_536;
const PINS: u32 = (1 << 18) - 1;
const USAGE_SHIFT: u32 = 18;
const BM_DIRTY: u32 = 1 << 23;
const BM_VALID: u32 = 1 << 24;
const BM_TAG_VALID: u32 = 1 << 25;
const BM_PERMANENT: u32 = 1 << 31;
const BM_MAX_USAGE_COUNT: u8 = 5;

#[cfg(test)]
mod tests {
    use super::*;

    fn descriptor(words: [u32; 7]) -> [u8; DESCRIPTOR_BYTES] {
        let mut bytes = [0; DESCRIPTOR_BYTES];
        for (place, word) in bytes.chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }

    #[test]
    fn a_descriptor_is_read_field_by_field() {
        let state = BM_TAG_VALID | BM_VALID | BM_DIRTY | BM_PERMANENT | (3 << USAGE_SHIFT) | 2;
        let bytes = descriptor([1663, 5, 16_384, 2, 77, 9, state]);
        assert!(Descriptor(&bytes).check(9).is_ok());
        let Page::Held(buffer) = Descriptor(&bytes).buffer() else { panic!("it holds a page") };
        let expected = Buffer {
            tablespace: 1663,
            database: 5,
            filenode: 16_384,
            fork: Fork::VisibilityMap,
            block: 77,
            usage: 3,
            is_dirty: true,
            is_permanent: true,
            is_pinned: true,
        };
        assert_eq!(buffer, expected);
    }

    #[test]
    fn a_page_that_is_not_there_yet_is_not_counted_as_there() {
        let reading = descriptor([1663, 5, 16_384, 0, 77, 9, BM_TAG_VALID]);
        assert!(matches!(Descriptor(&reading).buffer(), Page::Unfinished));
        let odd_fork = descriptor([1663, 5, 16_384, 4, 77, 9, BM_TAG_VALID | BM_VALID]);
        assert!(matches!(Descriptor(&odd_fork).buffer(), Page::Unfinished));
        assert!(matches!(Descriptor(&descriptor([0; 7])).buffer(), Page::None));
    }

    #[test]
    fn another_number_than_its_place_is_refused() {
        let bytes = descriptor([0, 0, 0, 0, 0, 12, 0]);
        let error = Descriptor(&bytes).check(11).expect_err("12 is not 11");
        assert!(matches!(error, LayoutError::BufferNumber { index: 11, found: 12 }));
    }
}
