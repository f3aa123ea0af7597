//! Finds places where a process's code differs from its binary: breakpoints written by tracers.

use std::{fs::File, os::unix::fs::FileExt as _};

use crate::{
    error::{BinaryError, InspectError},
    memory::ProcessMemory,
    process::{MemoryMapping, OsProcess, mappings},
};

/// Number of bytes that are copied and compared at a time.
const CHUNK_BYTES: usize = 64 << 10;

/// Length of the longest patch that a tracer writes: a `call` instruction.
const PATCH_BYTES_MAX: u64 = 5;

/// A place where a process's code differs from its binary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PatchedCode {
    /// Offset in the binary file.
    pub offset: u64,
    /// Address in the process's memory.
    pub address: u64,
}

impl OsProcess {
    /// Finds where this process's mapped code differs from its binary: one entry per breakpoint,
    /// ordered by address. Reads and compares some ten megabytes, which takes a few milliseconds.
    ///
    /// # Errors
    ///
    /// The process is gone or cannot be read, or its binary cannot be read.
    pub fn patched_code(self) -> Result<Vec<PatchedCode>, InspectError> {
        let path = self.executable();
        let read = |source| BinaryError::Read { path: path.clone(), source };
        let file = File::open(&path).map_err(read)?;
        let maps = self.maps()?;
        // The path as `/proc/PID/maps` spells it, including the ` (deleted)` of a removed file.
        let name = std::fs::read_link(&path).map_err(read)?;
        let name = name.to_string_lossy();
        let of_binary =
            |mapping: &MemoryMapping<'_>| mapping.is_executable && mapping.path == name.as_ref();
        let memory = ProcessMemory::for_pid(self.pid());
        let mut altered = Vec::new();
        let (mut mapped, mut filed) = (vec![0; CHUNK_BYTES], vec![0; CHUNK_BYTES]);
        for mapping in mappings(&maps).filter(of_binary) {
            let mut at = mapping.start;
            while at < mapping.end {
                let bytes = CHUNK_BYTES.min((mapping.end - at) as usize);
                let offset = mapping.offset + (at - mapping.start);
                // There is nothing to compare with past the end of the file.
                let bytes = read_up_to(&file, offset, &mut filed[..bytes]).map_err(read)?;
                if bytes == 0 {
                    break;
                }
                memory.read(at, &mut mapped[..bytes])?;
                if mapped[..bytes] != filed[..bytes] {
                    let (mapped, filed) = (&mapped[..bytes], &filed[..bytes]);
                    add_patches(&mut altered, PatchedCode { offset, address: at }, mapped, filed);
                }
                at += bytes as u64;
            }
        }
        Ok(altered)
    }
}

/// Adds the places where two chunks that begin at `start` differ. Differing bytes that can belong
/// to one patch are one place.
fn add_patches(places: &mut Vec<PatchedCode>, start: PatchedCode, mapped: &[u8], filed: &[u8]) {
    let pairs = (0..).zip(mapped.iter().zip(filed));
    for (index, _) in pairs.filter(|(_, (mapped, filed))| mapped != filed) {
        let place = PatchedCode { offset: start.offset + index, address: start.address + index };
        if places.last().is_none_or(|last| place.address - last.address >= PATCH_BYTES_MAX) {
            places.push(place);
        }
    }
}

/// Fills `into` up to the end of the file and returns the number of bytes read.
fn read_up_to(file: &File, offset: u64, into: &mut [u8]) -> std::io::Result<usize> {
    let mut done = 0;
    while done < into.len() {
        match file.read_at(&mut into[done..], offset + done as u64)? {
            0 => break,
            read => done += read,
        }
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adjacent_differing_bytes_are_one_patch() {
        let mut places = Vec::new();
        let start = PatchedCode { offset: 0x1000, address: 0x5000 };
        add_patches(&mut places, start, b"aXcdefghXXXXXn", b"abcdefghijklmn");
        let offsets: Vec<_> = places.iter().map(|place| place.offset).collect();
        assert_eq!(offsets, [0x1001, 0x1008]);
    }

    #[test]
    fn unpatched_process_has_no_patches() {
        let here = OsProcess::from_pid(std::process::id()).expect("we run");
        assert_eq!(here.patched_code().expect("our own memory"), []);
    }
}
