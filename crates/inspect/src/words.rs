//! Many words scattered over the memory of a process, copied by as few system calls as can be.
//!
//! ```text
//! addresses   a      b      c                      d
//! memory    ──█──────█──────█───────── … ──────────█──
//! ranges      └──────1──────┘                      └2┘     one call, up to 1024 ranges
//! ```
//!
//! The kernel's work is for each range it looks up and each page it pins, hardly for bytes. So words that
//! lie close together, as one field of an array's entries does, are copied with what lies between them.

use std::io::IoSliceMut;

use nix::{
    errno::Errno,
    sys::uio::{RemoteIoVec, process_vm_readv},
    unistd::Pid,
};

use crate::{error::MemoryError, memory::Memory};

/// Words of 4 bytes at given addresses, and what they held when they were last read.
#[derive(Debug, Default)]
pub struct Words {
    ranges: Vec<RemoteIoVec>,
    /// Where in `bytes` each word is, in the order the addresses were given in.
    places: Vec<usize>,
    bytes: Vec<u8>,
}

impl Words {
    /// The words at `addresses`, in any order. Until they are read they are 0.
    #[must_use]
    pub fn at(addresses: &[u64]) -> Self {
        let mut order: Vec<usize> = (0..addresses.len()).collect();
        order.sort_by_key(|&word| addresses[word]);
        let mut words = Self { places: vec![0; addresses.len()], ..Self::default() };
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
            words.places[word] = bytes - (range.len + longer) + (address - range.base);
            range.len += longer;
        }
        words.bytes = vec![0; bytes];
        words
    }

    /// Reads them all. They are of nearly one moment: the call takes about a microsecond for ten.
    ///
    /// # Errors
    ///
    /// The process is gone, is not ours to read, or lacks one of the addresses; then some words are of
    /// this reading and some of the last.
    pub fn read(&mut self, memory: Memory) -> Result<(), MemoryError> {
        let mut rest = &mut self.bytes[..];
        for ranges in self.ranges.chunks(RANGES_PER_CALL) {
            let wanted = ranges.iter().map(|range| range.len).sum();
            let (now, later) = rest.split_at_mut(wanted);
            read_ranges(memory, ranges, now)?;
            rest = later;
        }
        Ok(())
    }

    /// What they held, in the order the addresses were given in.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = u32> {
        self.places.iter().map(|&place| {
            let bytes = self.bytes[place..place + WORD_BYTES].try_into();
            u32::from_ne_bytes(bytes.expect("a word is as long as it is"))
        })
    }
}

const WORD_BYTES: usize = size_of::<u32>();

/// Words that lie no further apart are copied with what is between them: a field of neighbours in the
/// array of processes (`PGPROC` has some 900 bytes) with one idle neighbour between. Less than a page, so
/// nothing is touched but pages that hold a word.
const GAP_BYTES: usize = 2048;

/// `IOV_MAX`, which the kernel holds to.
const RANGES_PER_CALL: usize = 1024;

fn read_ranges(memory: Memory, ranges: &[RemoteIoVec], into: &mut [u8]) -> Result<(), MemoryError> {
    let pid = memory.pid();
    let wanted = into.len();
    // A process id is at most 2^22.
    let process = Pid::from_raw(i32::try_from(pid).unwrap_or(i32::MAX));
    let read = loop {
        match process_vm_readv(process, &mut [IoSliceMut::new(into)], ranges) {
            Err(Errno::EINTR) => {}
            // Nothing at all of the first range.
            Err(Errno::EFAULT) => break 0,
            Err(errno) => return Err(memory.error(errno, address_at(ranges, 0))),
            Ok(read) => break read,
        }
    };
    match read == wanted {
        true => Ok(()),
        false => Err(MemoryError::Unmapped { pid, address: address_at(ranges, read) }),
    }
}

/// The address that the byte `offset` of all ranges together comes from.
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

    fn own() -> Memory {
        Memory::of(std::process::id())
    }

    #[test]
    fn words_come_in_the_order_they_were_asked_for() {
        let array: Vec<u32> = (0..100_000).collect();
        let wanted = [99_999, 7, 8, 7, 50_000, 400, 900, 0];
        let addresses: Vec<u64> =
            wanted.iter().map(|&index| &raw const array[index] as u64).collect();
        let mut words = Words::at(&addresses);
        assert!(words.ranges.len() < wanted.len());
        words.read(own()).expect("our own memory can be read");
        assert_eq!(words.iter().map(|word| word as usize).collect::<Vec<_>>(), wanted);
    }

    #[test]
    fn more_ranges_than_one_call_takes() {
        let array: Vec<u32> = (0..3000 * 1024).collect();
        let addresses: Vec<u64> =
            array.iter().step_by(1024).map(|word| word as *const u32 as u64).collect();
        let mut words = Words::at(&addresses);
        assert_eq!(words.ranges.len(), 3000);
        words.read(own()).expect("our own memory can be read");
        assert!(words.iter().eq((0..3000).map(|index| index * 1024)));
    }

    #[test]
    fn no_words_are_read_at_once() {
        let mut words = Words::at(&[]);
        words.read(own()).expect("nothing to read");
        assert_eq!(words.iter().len(), 0);
    }

    #[test]
    fn an_address_without_memory_is_named() {
        let here = 7_u32;
        let mut words = Words::at(&[&raw const here as u64, 0x10]);
        let error = words.read(own()).expect_err("page 0 is never mapped");
        assert!(matches!(error, MemoryError::Unmapped { address: 0x10, .. }), "{error}");
    }
}
