//! The server's binary: its build id, its exported symbols, and their addresses in a running
//! process.
//!
//! Distributions strip their servers, which removes `.symtab` and debug information. `.dynsym`
//! stays, because extensions are linked against it; it names every function and variable an
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
    error::{BinaryError, InspectError},
    process::OsProcess,
    usdt::{UsdtProbe, parse_usdt_probes},
};

/// The binary of a process: its build id, exported symbols and USDT probes, and the difference
/// between addresses in the file and in the process.
#[derive(Clone, Debug)]
pub struct Binary {
    build_id: Option<BuildId>,
    /// Virtual addresses of the exported symbols, as in the file.
    symbols: HashMap<Box<str>, u64>,
    /// Difference between an address in the process and in the file.
    bias: u64,
    segments: Box<[LoadSegment]>,
    markers: Box<[UsdtProbe]>,
}

/// A part of the file that is mapped into memory.
#[derive(Clone, Copy, Debug)]
struct LoadSegment {
    address: u64,
    offset: u64,
    bytes: u64,
}

/// A hash of the binary's contents, computed by the linker. Equal ids mean the same code and data.
/// Displayed in hexadecimal.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct BuildId(Box<[u8]>);

impl Binary {
    /// Reads the binary that `process` runs, through `/proc/PID/exe`.
    ///
    /// # Errors
    ///
    /// The binary cannot be read, is not ELF for x86-64, or is not mapped because the process is
    /// exiting.
    pub fn for_process(process: OsProcess) -> Result<Self, InspectError> {
        let path = process.executable();
        let read = |source| BinaryError::Read { path: path.clone(), source };
        // Only about 1 MB of 10 MB is needed: names, notes and the headers that lead to them.
        let file = ReadCache::new(File::open(&path).map_err(read)?);
        let not_elf = |source| BinaryError::NotElf { path: path.clone(), source };
        let elf = parse_elf(&file, &path)?;
        let base =
            process.executable_base()?.ok_or(BinaryError::NotMapped { pid: process.pid() })?;
        let first = elf.segments().find(|segment| segment.file_range().0 == 0);
        let bias = match elf.kind() {
            ObjectKind::Executable => 0,
            _ => base.wrapping_sub(
                first.map_or(0, |segment| segment.address() & !(segment.align().max(1) - 1)),
            ),
        };
        let symbols = exported_symbols(&elf).map_err(not_elf)?;
        let build_id = elf.build_id().ok().flatten().map(|id| BuildId(id.into()));
        let segments = elf.segments().map(|segment| {
            let (offset, bytes) = segment.file_range();
            LoadSegment { address: segment.address(), offset, bytes }
        });
        let segments = segments.collect();
        let markers = parse_usdt_probes(&elf, "postgresql").into();
        Ok(Self { build_id, symbols, bias, segments, markers })
    }

    /// Returns the binary's build id, if the linker wrote one.
    pub fn build_id(&self) -> Option<&BuildId> {
        self.build_id.as_ref()
    }

    /// Whether the binary exports `symbol`.
    pub fn exports(&self, symbol: &str) -> bool {
        self.symbols.contains_key(symbol)
    }

    /// Returns the address of `symbol` in the process.
    ///
    /// # Errors
    ///
    /// The binary does not export the symbol.
    pub fn address(&self, symbol: &'static str) -> Result<u64, BinaryError> {
        let address = self.symbols.get(symbol).ok_or(BinaryError::NoSymbol { symbol })?;
        Ok(address.wrapping_add(self.bias))
    }

    /// Converts a virtual address, as in the file, to a file offset. `None` for addresses whose
    /// contents the file does not hold, such as zero-initialised variables.
    pub fn file_offset(&self, address: u64) -> Option<u64> {
        self.segments.iter().find_map(|segment| {
            let inside = address.checked_sub(segment.address)?;
            (inside < segment.bytes).then(|| segment.offset + inside)
        })
    }

    /// Returns the address of `symbol`, as in the file.
    ///
    /// # Errors
    ///
    /// The binary does not export the symbol.
    pub fn file_address(&self, symbol: &'static str) -> Result<u64, BinaryError> {
        self.symbols.get(symbol).copied().ok_or(BinaryError::NoSymbol { symbol })
    }

    /// Converts a virtual address, as in the file, to an address in the process.
    pub fn mapped_address(&self, address: u64) -> u64 {
        address.wrapping_add(self.bias)
    }

    /// Returns the address of `symbol` in the process, if the binary exports it.
    pub fn find_address(&self, symbol: &str) -> Option<u64> {
        self.symbols.get(symbol).map(|address| self.mapped_address(*address))
    }

    /// Returns the sites of the USDT probes that the binary was built with.
    pub fn usdt_probes(&self) -> &[UsdtProbe] {
        &self.markers
    }
}

/// Returns the exported symbols and their addresses. All names are read at once, because the
/// `object` crate would read them one by one.
fn exported_symbols<'data>(
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

/// Parses the file, if it is ELF for x86-64.
fn parse_elf<'data, R: ReadRef<'data>>(
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

    /// An ELF header: class (1: 32 bits, 2: 64), byte order (1: little) and machine.
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

    fn parse_error(data: &[u8]) -> String {
        match parse_elf(data, Path::new("/proc/7/exe")) {
            Ok(_) => "parsed".to_owned(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn binaries_of_other_architectures_are_rejected() {
        const I386: u16 = 3;
        const POWER: u16 = 21;
        const X86_64: u16 = 62;
        const ARM_64: u16 = 183;
        let only = "only x86-64 is supported";
        for (data, found) in [
            (header(1, 1, I386), "32 bits"),
            (header(2, 1, ARM_64), "Aarch64"),
            (header(2, 2, POWER), "PowerPc64"),
        ] {
            let expected = format!("the server's binary is built for {found}; {only}");
            assert_eq!(parse_error(&data), expected);
        }
        assert!(parse_elf(&*header(2, 1, X86_64), Path::new("/proc/7/exe")).is_ok());
    }

    #[test]
    fn non_elf_and_truncated_files_are_rejected() {
        let whole = header(2, 1, 62);
        for data in [
            &b"#!/bin/sh\n# a script that is long enough to pass as another file type"[..],
            b"",
            b"\x7fELF",
        ] {
            assert!(
                parse_error(data).contains("is not a readable ELF file"),
                "{}",
                parse_error(data)
            );
        }
        for end in 0..whole.len() {
            assert!(parse_elf(&whole[..end], Path::new("/proc/7/exe")).is_err());
        }
    }
}
