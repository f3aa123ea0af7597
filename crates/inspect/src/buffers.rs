//! The buffer map: the page in each of the server's buffers, its usage count, and whether it is
//! dirty.
//!
//! A descriptor has 64 bytes, in the array that the exported `BufferDescriptors` points to:
//!
//! | bytes | field |
//! |---|---|
//! | 0–19 | tag: tablespace, database, relation file number, fork, block, each 4 bytes |
//! | 20–23 | the buffer's own number, used to check the layout |
//! | 24–27 | state: 18 bits of pins, 4 of usage count, flags from bit 22 |
//!
//! Source: `BufferDesc` and `BM_*` in `buf_internals.h`, identical in 14 to 18 (padded to a cache
//! line by `BUFFERDESC_PAD_TO_SIZE`).
//!
//! Cost: one copy of 64 bytes per buffer, in chunks of 1 MiB, by two threads for a large array. No
//! lock is taken, and the server is not slowed down. A buffer that is replaced during the copy may
//! show the old page with the new state, as for any reader that does not hold the header lock; the
//! page was in the buffer a moment ago.

use std::{ops::Range, panic::resume_unwind, thread, vec};

use crate::{
    error::{InspectError, LayoutError},
    memory::ProcessMemory,
    server::RunningServer,
};

/// The array of buffer descriptors of a running server.
#[derive(Clone, Copy, Debug)]
pub struct BufferMap {
    memory: ProcessMemory,
    descriptors: u64,
    /// Address of the first buffer's page; `None` if the binary does not export it.
    pages: Option<u64>,
    count: u32,
}

/// The descriptor of a buffer that holds a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BufferDesc {
    /// The buffer's number, from 0.
    pub number: u32,
    /// OID of the tablespace.
    pub tablespace: u32,
    /// OID of the database; 0 for the shared catalogs.
    pub database: u32,
    /// File number of the relation, as returned by `pg_relation_filenode()`.
    pub filenode: u32,
    /// The fork that the page belongs to.
    pub fork: Fork,
    /// Block number in the fork, from 0.
    pub block: u32,
    /// Usage count, 0 to 5: how often the clock sweep passes the buffer before evicting it.
    pub usage: u8,
    /// Whether the page was modified since it was read or last written.
    pub is_dirty: bool,
    /// Whether the page survives a crash, as those of WAL-logged relations and of init forks do.
    pub is_permanent: bool,
    /// Whether a backend has pinned the buffer.
    pub is_pinned: bool,
}

/// A fork of a relation: its contents, or data about them in a separate file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fork {
    /// The relation's contents.
    Main,
    /// Records the free space in each page of the main fork.
    FreeSpaceMap,
    /// Records which pages of the main fork are all-visible or all-frozen.
    VisibilityMap,
    /// The initial contents of an unlogged relation, restored after a crash.
    Init,
}

/// An iterator over the buffers that hold pages, in array order.
#[derive(Debug)]
pub struct BufferDescIter {
    first: vec::IntoIter<BufferDesc>,
    second: vec::IntoIter<BufferDesc>,
    in_transition: u32,
}

impl RunningServer {
    /// Locates the buffer descriptors of this server.
    ///
    /// # Errors
    ///
    /// The binary does not export the array, or memory cannot be read or does not hold buffer
    /// descriptors.
    pub fn buffers(&self) -> Result<BufferMap, InspectError> {
        BufferMap::for_server(self)
    }
}

impl BufferMap {
    pub(crate) fn for_server(server: &RunningServer) -> Result<Self, InspectError> {
        let memory = server.memory();
        let descriptors = memory.pointer(server.binary().address("BufferDescriptors")?)?;
        let count = server.buffer_count()?;
        let pages = server.binary().find_address("BufferBlocks");
        let pages = pages.map(|address| memory.pointer(address)).transpose()?;
        let map = Self { memory, descriptors, pages, count };
        // The first and the last descriptor show whether size and address are right.
        for index in [0, count - 1] {
            let bytes: [u8; DESCRIPTOR_BYTES] = memory.bytes(map.address(index))?;
            RawBufferDesc(&bytes).check_number(index)?;
        }
        Ok(map)
    }

    /// Returns the number of buffers: `shared_buffers` in pages.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Copies the array and returns the buffers that hold pages.
    ///
    /// # Errors
    ///
    /// The server stopped, or a descriptor does not contain its own number.
    pub fn read(&self) -> Result<BufferDescIter, InspectError> {
        if self.count < PARALLEL_BUFFERS {
            return self.read_range(0..self.count);
        }
        let middle = self.count / 2;
        let (first, second) = thread::scope(|scope| {
            let second = scope.spawn(|| self.read_range(middle..self.count));
            let first = self.read_range(0..middle);
            (first, second.join().unwrap_or_else(|panic| resume_unwind(panic)))
        });
        Ok(first?.append(second?))
    }

    /// Copies the page in a buffer to `page`, which is as long as the server's pages. Returns false
    /// if another page is in the buffer meanwhile, or if pages cannot be located.
    ///
    /// No lock is taken: a page that is being changed may be copied in the middle of the change.
    ///
    /// # Errors
    ///
    /// The server stopped.
    pub fn copy_page(&self, buffer: &BufferDesc, page: &mut [u8]) -> Result<bool, InspectError> {
        let Some(first) = self.pages.filter(|_| buffer.number < self.count) else {
            return Ok(false);
        };
        self.memory.read(first + u64::from(buffer.number) * page.len() as u64, page)?;
        let bytes: [u8; DESCRIPTOR_BYTES] = self.memory.bytes(self.address(buffer.number))?;
        Ok(match RawBufferDesc(&bytes).content() {
            BufferContent::Page(now) => now.has_same_page(buffer),
            BufferContent::Empty | BufferContent::InTransition => false,
        })
    }

    fn read_range(&self, range: Range<u32>) -> Result<BufferDescIter, InspectError> {
        let length = range.len();
        let mut piece = vec![0; DESCRIPTOR_BYTES * length.min(CHUNK_BUFFERS as usize)];
        let mut buffers = Vec::with_capacity(length);
        let mut unfinished = 0;
        let mut first = range.start;
        while first < range.end {
            let count = CHUNK_BUFFERS.min(range.end - first);
            let bytes = &mut piece[..DESCRIPTOR_BYTES * count as usize];
            self.memory.read(self.address(first), bytes)?;
            for (descriptor, index) in bytes.chunks_exact(DESCRIPTOR_BYTES).zip(first..) {
                let descriptor = RawBufferDesc(descriptor);
                descriptor.check_number(index)?;
                match descriptor.content() {
                    BufferContent::Page(buffer) => buffers.push(buffer),
                    BufferContent::Empty => {}
                    BufferContent::InTransition => unfinished += 1,
                }
            }
            first += count;
        }
        Ok(BufferDescIter {
            first: buffers.into_iter(),
            second: Vec::new().into_iter(),
            in_transition: unfinished,
        })
    }

    fn address(&self, index: u32) -> u64 {
        self.descriptors + u64::from(index) * DESCRIPTOR_BYTES as u64
    }
}

impl BufferDesc {
    fn has_same_page(&self, other: &Self) -> bool {
        let page = |of: &Self| (of.tablespace, of.database, of.filenode, of.fork, of.block);
        page(self) == page(other)
    }
}

impl BufferDescIter {
    /// Returns the number of omitted buffers that had a tag but no valid page, usually because the
    /// page was just being read.
    pub fn unfinished(&self) -> u32 {
        self.in_transition
    }

    /// Appends the buffers of the next range. Both iterators must cover a single range, with
    /// nothing in `second`.
    fn append(self, those: Self) -> Self {
        Self {
            second: those.first,
            in_transition: self.in_transition + those.in_transition,
            ..self
        }
    }
}

impl Iterator for BufferDescIter {
    type Item = BufferDesc;

    fn next(&mut self) -> Option<BufferDesc> {
        self.first.next().or_else(|| self.second.next())
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.first.len() + self.second.len();
        (left, Some(left))
    }
}

impl ExactSizeIterator for BufferDescIter {}

impl Fork {
    /// All forks, in the order of PostgreSQL's fork numbers.
    pub const ALL: [Self; 4] = [Self::Main, Self::FreeSpaceMap, Self::VisibilityMap, Self::Init];

    /// Returns the fork with PostgreSQL's fork number `number`.
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.get(usize::try_from(number).ok()?).copied()
    }

    /// Returns PostgreSQL's fork number.
    pub fn number(self) -> u32 {
        match self {
            Self::Main => 0,
            Self::FreeSpaceMap => 1,
            Self::VisibilityMap => 2,
            Self::Init => 3,
        }
    }

    /// Returns PostgreSQL's fork name, as accepted by `pg_relation_size()`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Main => "main",
            Self::FreeSpaceMap => "fsm",
            Self::VisibilityMap => "vm",
            Self::Init => "init",
        }
    }

    /// Returns the fork that PostgreSQL calls `name`.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|fork| fork.name() == name)
    }
}

/// The contents of a buffer, according to its descriptor.
enum BufferContent {
    Page(BufferDesc),
    Empty,
    InTransition,
}

/// The raw bytes of one descriptor.
struct RawBufferDesc<'a>(&'a [u8]);

impl RawBufferDesc<'_> {
    fn check_number(&self, index: u32) -> Result<(), LayoutError> {
        match self.word(20) {
            found if found == index => Ok(()),
            found => Err(LayoutError::BufferNumber { index, found: found.cast_signed() }),
        }
    }

    fn content(&self) -> BufferContent {
        let state = self.word(24);
        let has = |flag: u32| state & flag != 0;
        if !has(BM_TAG_VALID) {
            return BufferContent::Empty;
        }
        let usage = ((state >> USAGE_SHIFT) & 0xf) as u8;
        match Fork::from_number(self.word(12)) {
            Some(fork) if has(BM_VALID) && usage <= BM_MAX_USAGE_COUNT => {
                BufferContent::Page(BufferDesc {
                    number: self.word(20),
                    tablespace: self.word(0),
                    database: self.word(4),
                    filenode: self.word(8),
                    fork,
                    block: self.word(16),
                    usage,
                    is_dirty: has(BM_DIRTY),
                    is_permanent: has(BM_PERMANENT),
                    is_pinned: state & PINS != 0,
                })
            }
            _ => BufferContent::InTransition,
        }
    }

    fn word(&self, at: usize) -> u32 {
        let bytes = self.0.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
        u32::from_ne_bytes(bytes.expect("a descriptor has 64 bytes"))
    }
}

const DESCRIPTOR_BYTES: usize = 64;
/// Descriptors copied by one system call: 1 MiB, which stays in the second-level cache.
const CHUNK_BUFFERS: u32 = 16_384;

/// Number of buffers (512 MB of pages) from which a second thread is worth its start-up cost.
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
    fn descriptor_fields_are_decoded() {
        let state = BM_TAG_VALID | BM_VALID | BM_DIRTY | BM_PERMANENT | (3 << USAGE_SHIFT) | 2;
        let bytes = descriptor([1663, 5, 16_384, 2, 77, 9, state]);
        assert!(RawBufferDesc(&bytes).check_number(9).is_ok());
        let BufferContent::Page(buffer) = RawBufferDesc(&bytes).content() else {
            panic!("expected a page")
        };
        let expected = BufferDesc {
            number: 9,
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
    fn buffer_being_filled_is_not_a_page() {
        let reading = descriptor([1663, 5, 16_384, 0, 77, 9, BM_TAG_VALID]);
        assert!(matches!(RawBufferDesc(&reading).content(), BufferContent::InTransition));
        let odd_fork = descriptor([1663, 5, 16_384, 4, 77, 9, BM_TAG_VALID | BM_VALID]);
        assert!(matches!(RawBufferDesc(&odd_fork).content(), BufferContent::InTransition));
        assert!(matches!(RawBufferDesc(&descriptor([0; 7])).content(), BufferContent::Empty));
    }

    #[test]
    fn descriptor_with_wrong_number_is_rejected() {
        let bytes = descriptor([0, 0, 0, 0, 0, 12, 0]);
        let error = RawBufferDesc(&bytes).check_number(11).expect_err("12 is not 11");
        assert!(matches!(error, LayoutError::BufferNumber { index: 11, found: 12 }));
    }
}
