//! The server's binary: its build id, its exported names, and where they lie in a running process.
//!
//! Distributions strip their servers, which takes `.symtab` and debug information away; `.dynsym`
//! stays, because extensions are linked against it, and names every function and variable that an
//! extension may use.

use std::{collections::HashMap, fmt, fs::File, path::Path};

use object::{
    Architecture, Endianness, FileKind, Object as _, ObjectKind, ObjectSection as _,
    ObjectSegment as _,
    read::{
        ReadCache, ReadRef,
        elf::{ElfFile64, Sym as _},
    },
};

use crate::{
    error::{BinaryError, Error},
    markers::{UsdtProbe, markers},
    process::Process,
};

/// The binary that a process runs, and where it is mapped there.
#[derive(Clone, Debug)]
pub struct Binary {
    build_id: Option<BuildId>,
    /// Virtual addresses as the file has them.
    symbols: HashMap<Box<str>, u64>,
    /// What to add to an address of the file.
    bias: u64,
    segments: Box<[Segment]>,
    markers: Box<[UsdtProbe]>,
}

/// A part of the file that is mapped.
#[derive(Clone, Copy, Debug)]
struct Segment {
    address: u64,
    offset: u64,
    bytes: u64,
}

/// What the linker computed from the binary's contents: equal ids are equal binaries. Printed as hex.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct BuildId(Box<[u8]>);

impl Binary {
    /// Reads the binary that `process` runs, through `/proc/PID/exe`.
    ///
    /// # Errors
    ///
    /// It cannot be read, is not ELF for x86-64, or is not mapped (a process that is ending).
    pub fn of(process: Process) -> Result<Self, Error> {
        let path = process.executable();
        let read = |source| BinaryError::Read { path: path.clone(), source };
        // Of ten megabytes one is needed: names, notes and the headers that lead there.
        let file = ReadCache::new(File::open(&path).map_err(read)?);
        let not_elf = |source| BinaryError::NotElf { path: path.clone(), source };
        let elf = understood(&file, &path)?;
        let base =
            process.executable_base()?.ok_or(BinaryError::NotMapped { pid: process.pid() })?;
        let first = elf.segments().find(|segment| segment.file_range().0 == 0);
        let bias = match elf.kind() {
            ObjectKind::Executable => 0,
            _ => base.wrapping_sub(
                first.map_or(0, |segment| segment.address() & !(segment.align().max(1) - 1)),
            ),
        };
        let symbols = exported(&elf).map_err(not_elf)?;
        let build_id = elf.build_id().ok().flatten().map(|id| BuildId(id.into()));
        let segments = elf.segments().map(|segment| {
            let (offset, bytes) = segment.file_range();
            Segment { address: segment.address(), offset, bytes }
        });
        let segments = segments.collect();
        let markers = markers(&elf, "postgresql").into();
        Ok(Self { build_id, symbols, bias, segments, markers })
    }

    /// Its build id, where the linker wrote one.
    #[must_use]
    pub fn build_id(&self) -> Option<&BuildId> {
        self.build_id.as_ref()
    }

    /// Whether it exports `symbol`.
    #[must_use]
    pub fn exports(&self, symbol: &str) -> bool {
        self.symbols.contains_key(symbol)
    }

    /// Where `symbol` lies in the process.
    ///
    /// # Errors
    ///
    /// The binary does not export it.
    pub fn address(&self, symbol: &'static str) -> Result<u64, BinaryError> {
        let address = self.symbols.get(symbol).ok_or(BinaryError::NoSymbol { symbol })?;
        Ok(address.wrapping_add(self.bias))
    }

    /// Where a variable or an instruction lies in the file, given its address as the file numbers them.
    /// What the file does not hold, because it begins as zeros, is nowhere.
    #[must_use]
    pub fn file_offset(&self, address: u64) -> Option<u64> {
        self.segments.iter().find_map(|segment| {
            let inside = address.checked_sub(segment.address)?;
            (inside < segment.bytes).then(|| segment.offset + inside)
        })
    }

    /// The address of `symbol` as the file numbers them.
    ///
    /// # Errors
    ///
    /// The binary does not export it.
    pub fn file_address(&self, symbol: &'static str) -> Result<u64, BinaryError> {
        self.symbols.get(symbol).copied().ok_or(BinaryError::NoSymbol { symbol })
    }

    /// Where the address that the file numbers so lies in the process.
    #[must_use]
    pub fn mapped(&self, address: u64) -> u64 {
        address.wrapping_add(self.bias)
    }

    /// Where a variable of any name lies in the process, if the binary exports it.
    #[must_use]
    pub fn find(&self, symbol: &str) -> Option<u64> {
        self.symbols.get(symbol).map(|address| self.mapped(*address))
    }

    /// The markers it was built with, place by place.
    #[must_use]
    pub fn markers(&self) -> &[UsdtProbe] {
        &self.markers
    }
}

/// The names that the file defines for others, and their addresses. All names are read at once, which the
/// library would do one by one.
fn exported<'data>(
    elf: &ElfFile64<'data, Endianness, impl ReadRef<'data>>,
) -> object::Result<HashMap<Box<str>, u64>> {
    let table = elf.elf_dynamic_symbol_table();
    if table.is_empty() {
        return Ok(HashMap::new());
    }
    let (names, endian) = (elf.section_by_index(table.string_section())?.data()?, elf.endian());
    let named = table.iter().filter(|symbol| symbol.is_definition(endian)).filter_map(|symbol| {
        let name = names.get(symbol.st_name(endian) as usize..)?.split(|byte| *byte == 0).next()?;
        Some((str::from_utf8(name).ok()?.into(), symbol.st_value(endian)))
    });
    Ok(named.collect())
}

/// The file, if it is one of this machine's kind.
fn understood<'data, R: ReadRef<'data>>(
    data: R,
    path: &Path,
) -> Result<ElfFile64<'data, Endianness, R>, BinaryError> {
    let not_elf = |source| BinaryError::NotElf { path: path.to_path_buf(), source };
    match FileKind::parse(data).map_err(not_elf)? {
        FileKind::Elf64 => {}
        FileKind::Elf32 => {
            return Err(BinaryError::Architecture { found: "32 bits".to_owned() });
        }
        kind => return Err(BinaryError::Architecture { found: format!("{kind:?}") }),
    }
    let elf = ElfFile64::parse(data).map_err(not_elf)?;
    match elf.architecture() {
        Architecture::X86_64 => Ok(elf),
        other => Err(BinaryError::Architecture { found: format!("{other:?}") }),
    }
}

impl fmt::Display for BuildId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for BuildId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BuildId({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The header of an executable: class (1: 32 bits, 2: 64), byte order (1: little) and machine.
    fn header(class: u8, order: u8, machine: u16) -> Vec<u8> {
        let mut bytes = vec![0x7f, b'E', b'L', b'F', class, order, 1, 0];
        bytes.resize(16, 0);
        let number = |number: u16| match order {
            1 => number.to_le_bytes(),
            _ => number.to_be_bytes(),
        };
        for half in [3, machine] {
            bytes.extend(number(half));
        }
        bytes.resize(if class == 1 { 52 } else { 64 }, 0);
        bytes
    }

    fn refusal(data: &[u8]) -> String {
        match understood(data, Path::new("/proc/7/exe")) {
            Ok(_) => "understood".to_owned(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn binaries_of_other_machines_are_refused_by_name() {
        const I386: u16 = 3;
        const POWER: u16 = 21;
        const X86_64: u16 = 62;
        const ARM_64: u16 = 183;
        let only = "only x86-64 can be looked at from outside";
        for (data, found) in [
            (header(1, 1, I386), "32 bits"),
            (header(2, 1, ARM_64), "Aarch64"),
            (header(2, 2, POWER), "PowerPc64"),
        ] {
            let expected = format!("the server's binary is built for {found}; {only}");
            assert_eq!(refusal(&data), expected);
        }
        assert!(understood(&*header(2, 1, X86_64), Path::new("/proc/7/exe")).is_ok());
    }

    #[test]
    fn what_is_no_binary_or_cut_off_is_refused() {
        let whole = header(2, 1, 62);
        for data in [
            &b"#!/bin/sh\n# a script, and long enough to be looked at as something else"[..],
            b"",
            b"\x7fELF",
        ] {
            assert!(refusal(data).contains("is not an ELF file"), "{}", refusal(data));
        }
        for end in 0..whole.len() {
            assert!(understood(&whole[..end], Path::new("/proc/7/exe")).is_err());
        }
    }
}
