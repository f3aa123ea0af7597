//! Reads many words scattered over the memory of a process, with as few system calls as possible.
//!
//! ```text
//! addresses   a      b      c                      d
//! memory    ──█──────█──────█───────── … ──────────█──
//! ranges      └──────1──────┘                      └2┘     one call, up to 1024 ranges
//! ```
//!
//! The kernel's cost is per range looked up and per page pinned, and hardly per byte. So words that
//! are close together, such as one field in the entries of an array, are copied together with the
//! bytes in between.

use std::io::IoSliceMut;

use nix::{
    errno::Errno,
    sys::uio::{RemoteIoVec, process_vm_readv},
    unistd::Pid,
};

use crate::{error::MemoryError, memory::ProcessMemory};

/// 4-byte words at fixed addresses, and their values at the last reading.
#[derive(Debug, Default)]
pub struct WatchedWords {
    ranges: Vec<RemoteIoVec>,
    /// Offset in `bytes` of each word, in the order of the addresses passed in.
    offsets: Vec<usize>,
    bytes: Vec<u8>,
}

impl WatchedWords {
    /// Watches the words at `addresses`, in any order. They are 0 until the first reading.
    pub fn at(addresses: &[u64]) -> Self {
        let mut order: Vec<usize> = (0..addresses.len()).collect();
        order.sort_by_key(|&word| addresses[word]);
        let mut words = Self { offsets: vec![0; addresses.len()], ..Self::default() };
        let mut bytes = 0;
        for word in order {
            // On x86-64 an address fits in usize.
            let address = addresses[word] as usize;
            let joined =
                words.ranges.last_mut().filter(|last| address - last.base <= last.len + GAP_BYTES);
            let (range, begin) = match joined {
                Some(last) => (last, bytes),
                None => {
                    words.ranges.push(RemoteIoVec { base: address, len: 0 });
                    (words.ranges.last_mut().expect("one was pushed"), bytes)
                }
            };
            let longer = (address - range.base + WORD_BYTES).saturating_sub(range.len);
            bytes = begin + longer;
            words.offsets[word] = bytes - (range.len + longer) + (address - range.base);
            range.len += longer;
        }
        words.bytes = vec![0; bytes];
        words
    }

    /// Reads all words. They are from nearly the same moment: copying ten takes about a
    /// microsecond.
    ///
    /// # Errors
    ///
    /// The process is gone, cannot be read, or has nothing mapped at one of the addresses; then
    /// some values may be from this reading and others from the previous one.
    pub fn read(&mut self, memory: ProcessMemory) -> Result<(), MemoryError> {
        let mut rest = &mut self.bytes[..];
        for ranges in self.ranges.chunks(RANGES_PER_CALL) {
            let requested = ranges.iter().map(|range| range.len).sum();
            let (now, later) = rest.split_at_mut(requested);
            read_ranges(memory, ranges, now)?;
            rest = later;
        }
        Ok(())
    }

    /// Returns the values, in the order of the addresses passed in.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = u32> {
        self.offsets.iter().map(|&place| {
            let bytes = self.bytes[place..place + WORD_BYTES].try_into();
            u32::from_ne_bytes(bytes.expect("slice has the size of a word"))
        })
    }
}

const WORD_BYTES: usize = size_of::<u32>();

/// Maximum gap between words that are copied together with the bytes in between. Suffices for one
/// field of two `PGPROC` entries (some 900 bytes each) with an idle entry between them.
/// Less than a page, so only pages that hold a word are touched.
const GAP_BYTES: usize = 2048;

/// Maximum number of ranges per system call: the kernel's `IOV_MAX`.
const RANGES_PER_CALL: usize = 1024;

fn read_ranges(
    memory: ProcessMemory,
    ranges: &[RemoteIoVec],
    into: &mut [u8],
) -> Result<(), MemoryError> {
    let pid = memory.pid();
    let requested = into.len();
    // A process id is at most 2^22.
    let process = Pid::from_raw(i32::try_from(pid).unwrap_or(i32::MAX));
    let read = loop {
        match process_vm_readv(process, &mut [IoSliceMut::new(into)], ranges) {
            Err(Errno::EINTR) => {}
            // Not even the start of the first range could be read.
            Err(Errno::EFAULT) => break 0,
            Err(errno) => return Err(memory.error(errno, address_at(ranges, 0))),
            Ok(read) => break read,
        }
    };
    if read == requested {
        Ok(())
    } else {
        Err(MemoryError::Unmapped { pid, address: address_at(ranges, read) })
    }
}

/// Returns the address of byte `offset` of the concatenated ranges; 0 if they are shorter.
fn address_at(ranges: &[RemoteIoVec], mut offset: usize) -> u64 {
    for range in ranges {
        if offset < range.len {
            return (range.base + offset) as u64;
        }
        offset -= range.len;
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own_memory() -> ProcessMemory {
        ProcessMemory::for_pid(std::process::id())
    }

    #[test]
    fn words_are_returned_in_request_order() {
        let array: Vec<u32> = (0..100_000).collect();
        let requested = [99_999, 7, 8, 7, 50_000, 400, 900, 0];
        let addresses: Vec<u64> =
            requested.iter().map(|&index| &raw const array[index] as u64).collect();
        let mut words = WatchedWords::at(&addresses);
        assert!(words.ranges.len() < requested.len());
        words.read(own_memory()).expect("own memory is readable");
        assert_eq!(words.iter().map(|word| word as usize).collect::<Vec<_>>(), requested);
    }

    #[test]
    fn more_ranges_than_iov_max_are_read() {
        let array: Vec<u32> = (0..3000 * 1024).collect();
        let addresses: Vec<u64> =
            array.iter().step_by(1024).map(|word| word as *const u32 as u64).collect();
        let mut words = WatchedWords::at(&addresses);
        assert_eq!(words.ranges.len(), 3000);
        words.read(own_memory()).expect("own memory is readable");
        assert!(words.iter().eq((0..3000).map(|index| index * 1024)));
    }

    #[test]
    fn empty_word_list_reads_nothing() {
        let mut words = WatchedWords::at(&[]);
        words.read(own_memory()).expect("nothing to read");
        assert_eq!(words.iter().len(), 0);
    }

    #[test]
    fn unmapped_word_is_named_in_error() {
        let here = 7_u32;
        let mut words = WatchedWords::at(&[&raw const here as u64, 0x10]);
        let error = words.read(own_memory()).expect_err("page 0 is never mapped");
        assert!(matches!(error, MemoryError::Unmapped { address: 0x10, .. }), "{error}");
    }
}
