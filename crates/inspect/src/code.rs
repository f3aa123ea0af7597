//! Resolves code addresses of a process to function names.
//!
//! Names come from `.symtab` and `.dynsym`. A stripped file has only `.dynsym`, so its functions
//! that are not exported have no name; an address in one is resolved to the preceding exported
//! function, with [`Symbol::is_inside`] false.

use std::{
    fs::File,
    io::Read as _,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::OnceLock,
};

use object::{
    Endianness, Object as _, ObjectSegment as _, ObjectSymbol as _, SymbolKind,
    read::elf::ElfFile64,
};

use crate::{
    error::ProcessError,
    process::{OsProcess, mappings},
};

/// The executable mappings of a process at the time of creation. A file is read when an address in
/// it is first resolved.
#[derive(Debug)]
pub struct CodeMap {
    mappings: Vec<CodeMapping>,
}

#[derive(Debug)]
struct CodeMapping {
    start: u64,
    end: u64,
    /// Offset of the mapping in the file.
    offset: u64,
    /// Path under `/proc/PID` by which howdah can open the file, even if the inspected process has
    /// another root directory.
    file: PathBuf,
    inode: u64,
    name: Box<str>,
    names: OnceLock<Option<FunctionTable>>,
}

/// The functions of a file, by address.
#[derive(Debug)]
struct FunctionTable {
    /// Address, file offset and size of each mapped segment.
    segments: Vec<[u64; 3]>,
    /// Functions in ascending order of address.
    functions: Vec<FunctionSymbol>,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct FunctionSymbol {
    address: u64,
    bytes: u64,
    name: Box<str>,
}

/// A code address, resolved to file and function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Symbol {
    /// The name of the file, without its directory.
    pub file: Box<str>,
    /// The last named function that begins at or before the address. `None` if there is none, or if
    /// the file's symbols cannot be read.
    pub function: Option<Box<str>>,
    /// Offset of the address from the beginning of the function, or of the file if `function` is
    /// `None`.
    pub offset: u64,
    /// Whether the address lies before the function's end. If not, it probably belongs to a
    /// function without a name.
    pub is_inside: bool,
}

impl CodeMap {
    /// Reads the executable mappings of a process.
    ///
    /// # Errors
    ///
    /// The process is gone or cannot be inspected.
    pub fn for_process(process: OsProcess) -> Result<Self, ProcessError> {
        let executable = process.executable_path()?;
        let maps = process.maps()?;
        let mappings = mappings(&maps)
            .filter(|mapping| mapping.is_executable && mapping.path.starts_with('/'))
            .map(|mapping| {
                let path = Path::new(mapping.path.trim_end_matches(" (deleted)"));
                // The binary is opened through `/proc/PID/exe`, in case its path now names another
                // file.
                let file = if path == executable {
                    process.executable()
                } else {
                    process.file("root").join(path.strip_prefix("/").unwrap_or(path))
                };
                let name = path.file_name().unwrap_or_default().to_string_lossy().into();
                let (start, end) = (mapping.start, mapping.end);
                let names = OnceLock::new();
                let (offset, inode) = (mapping.offset, mapping.inode);
                CodeMapping { start, end, offset, file, inode, name, names }
            });
        Ok(Self { mappings: mappings.collect() })
    }

    /// Whether `address` lies in code that is mapped from a file.
    pub fn contains(&self, address: u64) -> bool {
        self.mapping(address).is_some()
    }

    /// Resolves an address; `None` if no file's code is mapped there.
    pub fn symbol_at(&self, address: u64) -> Option<Symbol> {
        let mapping = self.mapping(address)?;
        let none = Symbol {
            file: mapping.name.clone(),
            function: None,
            offset: address - mapping.start + mapping.offset,
            is_inside: false,
        };
        let names =
            mapping.names.get_or_init(|| FunctionTable::read_file(&mapping.file, mapping.inode));
        let found = names.as_ref().and_then(|names| names.function(none.offset));
        Some(match found {
            Some((function, offset)) => Symbol {
                function: Some(function.name.clone()),
                offset,
                is_inside: offset < function.bytes,
                ..none
            },
            None => none,
        })
    }

    fn mapping(&self, address: u64) -> Option<&CodeMapping> {
        self.mappings.iter().find(|mapping| (mapping.start..mapping.end).contains(&address))
    }
}

/// Maximum size in bytes of a file that is read, far above that of a server or its libraries.
const FILE_BYTES_MAX: u64 = 1 << 30;

impl FunctionTable {
    /// Reads the functions of a file, if it is still the mapped one.
    fn read_file(path: &Path, inode: u64) -> Option<Self> {
        let file = File::open(path).ok()?;
        let metadata = file.metadata().ok()?;
        if metadata.ino() != inode || metadata.len() > FILE_BYTES_MAX {
            return None;
        }
        let mut data = Vec::new();
        file.take(FILE_BYTES_MAX).read_to_end(&mut data).ok()?;
        Self::from_elf(&data)
    }

    fn from_elf(data: &[u8]) -> Option<Self> {
        let elf = ElfFile64::<Endianness>::parse(data).ok()?;
        let segments = elf.segments().map(|segment| {
            let (offset, bytes) = segment.file_range();
            [segment.address(), offset, bytes]
        });
        let mut functions: Vec<_> = elf
            .symbols()
            .chain(elf.dynamic_symbols())
            .filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.is_definition())
            .filter_map(|symbol| {
                let (address, bytes) = (symbol.address(), symbol.size());
                Some(FunctionSymbol { address, bytes, name: symbol.name().ok()?.into() })
            })
            .collect();
        functions.sort();
        functions.dedup();
        Some(Self { segments: segments.collect(), functions })
    }

    /// Returns the last function that begins at or before a file offset, and the distance from its
    /// beginning.
    fn function(&self, offset: u64) -> Option<(&FunctionSymbol, u64)> {
        let address = self.segments.iter().find_map(|&[address, start, bytes]| {
            let inside = offset.checked_sub(start).filter(|inside| *inside < bytes)?;
            Some(address + inside)
        })?;
        let index = self.functions.partition_point(|function| function.address <= address);
        let function = self.functions[..index].last()?;
        Some((function, address - function.address))
    }
}

/// Formats as `ProcSleep+0x1c`, as `~ProcSleep+0x400` past the function's end, or as
/// `libc.so.6+0x2724a` if the function is unknown.
impl std::fmt::Display for Symbol {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { file, function, offset, is_inside } = self;
        match function {
            Some(function) if *is_inside => write!(f, "{function}+{offset:#x}"),
            Some(function) => write!(f, "~{function}+{offset:#x}"),
            None => write!(f, "{file}+{offset:#x}"),
        }
    }
}

/// Whether the eight bytes before an address can end with a call: `call` with a displacement, or
/// through a register or memory. If they cannot, the address is not a return address.
///
/// Source: Intel's Software Developer's Manual, `E8 cd` and `FF /2`.
pub fn ends_with_call(code: &[u8; 8]) -> bool {
    if code[3] == 0xe8 {
        return true;
    }
    (2..=7).any(|bytes: usize| {
        let call = &code[8 - bytes..];
        is_indirect_call(call) || (call[0] & 0xf0 == 0x40 && is_indirect_call(&call[1..]))
    })
}

/// Whether the bytes are exactly one `FF /2`, an indirect call.
fn is_indirect_call(code: &[u8]) -> bool {
    let [0xff, how, rest @ ..] = code else { return false };
    let (mode, operation, base) = (how >> 6, how >> 3 & 7, how & 7);
    let has_index = mode != 3 && base == 4;
    let distance = match mode {
        0 if base == 5 || has_index && rest.first().is_some_and(|index| index & 7 == 5) => 4,
        1 => 1,
        2 => 4,
        _ => 0,
    };
    operation == 2 && rest.len() == usize::from(has_index) + distance
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn own_function_is_resolved_by_name() {
        let here = OsProcess::from_pid(std::process::id()).expect("this process exists");
        let code = CodeMap::for_process(here).expect("own maps are readable");
        let place =
            code.symbol_at(ends_with_call as *const () as u64).expect("address is in mapped code");
        assert!(place.function.is_some_and(|name| name.contains("ends_with_call")));
        assert!(place.is_inside && place.offset == 0);
        assert_eq!(code.symbol_at(0x10), None);
        let local = 7;
        assert!(!code.contains(&raw const local as u64), "the stack is not code");
    }

    #[test]
    fn symbol_display_marks_uncertainty() {
        let place = Symbol {
            file: "postgres".into(),
            function: Some("ProcSleep".into()),
            offset: 0x1c,
            is_inside: true,
        };
        assert_eq!(place.to_string(), "ProcSleep+0x1c");
        assert_eq!(Symbol { is_inside: false, ..place.clone() }.to_string(), "~ProcSleep+0x1c");
        assert_eq!(Symbol { function: None, ..place }.to_string(), "postgres+0x1c");
    }

    #[test]
    fn call_instructions_are_recognised() {
        for call in [
            [0x90, 0x90, 0x90, 0xe8, 1, 2, 3, 4],
            [0, 0, 0, 0, 0, 0, 0xff, 0xd0],
            [0, 0, 0, 0, 0, 0x41, 0xff, 0xd4],
            [0, 0, 0, 0, 0, 0xff, 0x50, 0x18],
            [0, 0, 0xff, 0x15, 1, 2, 3, 4],
            [0, 0xff, 0x94, 0xc8, 1, 2, 3, 4],
        ] {
            assert!(ends_with_call(&call), "{call:x?}");
        }
        for other in [[0x90; 8], [0; 8], [0, 0, 0, 0, 0, 0, 0xff, 0xe0], [0xff; 8]] {
            assert!(!ends_with_call(&other), "{other:x?}");
        }
    }

    #[test]
    fn damaged_elf_does_not_panic() {
        let data = fs::read("/proc/self/exe").expect("own binary is readable");
        for end in [0, 1, 16, 63, 64, 100, 4096] {
            if let Some(names) = FunctionTable::from_elf(&data[..end]) {
                assert!(names.function(0).is_none() || !names.functions.is_empty());
            }
        }
        // A small file, with damage everywhere in its header and tables.
        let data = fs::read("/bin/true").expect("/bin/true exists");
        for at in (0..data.len()).step_by(97).chain(0..64) {
            let mut damaged = data.clone();
            let end = (at + 8).min(data.len());
            damaged[at..end].fill(0xff);
            let names = FunctionTable::from_elf(&damaged);
            let found = names.as_ref().and_then(|names| names.function(data.len() as u64 / 2));
            assert!(found.is_none_or(|(function, _)| function.name.len() <= data.len()));
        }
    }
}
