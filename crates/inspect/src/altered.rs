//! Where a process's code is not what its binary holds: at breakpoints, which tracers put there.

use std::{fs::File, os::unix::fs::FileExt as _};

use crate::{
    error::{BinaryError, Error},
    memory::Memory,
    process::{Mapping, Process, mappings},
};

/// Bytes that are compared at once.
const PART: usize = 64 << 10;

/// The longest that a tracer writes in one place: a `call`.
const WRITTEN_MAX: u64 = 5;

/// A place where the code of a process is not what its binary holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PatchedCode {
    /// Where it is in the file.
    pub offset: u64,
    /// Where it is in the process.
    pub address: u64,
}

impl Process {
    /// Where the code that this process has mapped of its own binary differs from the file, one for each
    /// breakpoint, by address. Ten megabytes are read and compared, which takes some milliseconds.
    ///
    /// # Errors
    ///
    /// The process is gone, or is not ours to read; its binary cannot be read.
    pub fn altered_code(self) -> Result<Vec<PatchedCode>, Error> {
        let path = self.executable();
        let read = |source| BinaryError::Read { path: path.clone(), source };
        let file = File::open(&path).map_err(read)?;
        let maps = self.maps()?;
        // As it is written there, with what is behind the name of a file that was removed.
        let name = std::fs::read_link(&path).map_err(read)?;
        let name = name.to_string_lossy();
        let of_binary =
            |mapping: &Mapping<'_>| mapping.is_executable && mapping.path == name.as_ref();
        let memory = Memory::of(self.pid());
        let mut altered = Vec::new();
        let (mut mapped, mut filed) = (vec![0; PART], vec![0; PART]);
        for mapping in mappings(&maps).filter(of_binary) {
            let mut at = mapping.start;
            while at < mapping.end {
                let bytes = PART.min((mapping.end - at) as usize);
                let offset = mapping.offset + (at - mapping.start);
                // Behind the file's end is nothing to compare with.
                let bytes = read_up_to(&file, offset, &mut filed[..bytes]).map_err(read)?;
                if bytes == 0 {
                    break;
                }
                memory.read(at, &mut mapped[..bytes])?;
                if mapped[..bytes] != filed[..bytes] {
                    let (mapped, filed) = (&mapped[..bytes], &filed[..bytes]);
                    add_places(&mut altered, PatchedCode { offset, address: at }, mapped, filed);
                }
                at += bytes as u64;
            }
        }
        Ok(altered)
    }
}

/// Adds the places where two parts differ that begin at `start`.
fn add_places(places: &mut Vec<PatchedCode>, start: PatchedCode, mapped: &[u8], filed: &[u8]) {
    let pairs = (0..).zip(mapped.iter().zip(filed));
    for (index, _) in pairs.filter(|(_, (mapped, filed))| mapped != filed) {
        let place = PatchedCode { offset: start.offset + index, address: start.address + index };
        if places.last().is_none_or(|last| place.address - last.address >= WRITTEN_MAX) {
            places.push(place);
        }
    }
}

/// Fills `into` as far as the file goes.
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
    fn a_place_is_where_a_run_of_other_bytes_begins() {
        let mut places = Vec::new();
        let start = PatchedCode { offset: 0x1000, address: 0x5000 };
        add_places(&mut places, start, b"aXcdefghXXXXXn", b"abcdefghijklmn");
        let offsets: Vec<_> = places.iter().map(|place| place.offset).collect();
        assert_eq!(offsets, [0x1001, 0x1008]);
    }

    #[test]
    fn our_own_code_is_as_in_the_file() {
        let here = Process::of(std::process::id()).expect("we run");
        assert_eq!(here.altered_code().expect("our own memory"), []);
    }
}
