//! The code that a process has mapped, by name: which function an address is in.
//!
//! Names come from `.symtab` where the file still has it, else from `.dynsym`, which a stripped file keeps.
//! There, functions that are not exported have no name, so an address behind the end of the last
//! exported one before it is told as such: [`Symbol::is_inside`].

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
    process::{Process, mappings},
};

/// The code of one process, as it was mapped when this was made. Files are read when an address in them is
/// asked for.
#[derive(Debug)]
pub struct CodeMap {
    mappings: Vec<Mapping>,
}

#[derive(Debug)]
struct Mapping {
    start: u64,
    end: u64,
    /// Where it begins in the file.
    offset: u64,
    /// How the file can be opened from here.
    file: PathBuf,
    inode: u64,
    name: Box<str>,
    names: OnceLock<Option<Names>>,
}

/// The functions of a file.
#[derive(Debug)]
struct Names {
    /// Address, file offset and bytes of what is mapped.
    segments: Vec<[u64; 3]>,
    /// By address.
    functions: Vec<Function>,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Function {
    address: u64,
    bytes: u64,
    name: Box<str>,
}

/// Where an address is in the code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Symbol {
    /// The name of the file, without its folders.
    pub file: Box<str>,
    /// The last function with a name that begins at the address or before it.
    pub function: Option<Box<str>>,
    /// How far behind the function's beginning the address is.
    pub offset: u64,
    /// Whether it is before the function's end. Else it is in a function without a name.
    pub is_inside: bool,
}

impl CodeMap {
    /// The code of a process.
    ///
    /// # Errors
    ///
    /// The process is gone, or not ours to look at.
    pub fn of(process: Process) -> Result<Self, ProcessError> {
        let executable = process.executable_path()?;
        let maps = process.maps()?;
        let mappings = mappings(&maps)
            .filter(|mapping| mapping.is_executable && mapping.path.starts_with('/'))
            .map(|mapping| {
                let path = Path::new(mapping.path.trim_end_matches(" (deleted)"));
                // The binary is opened as it runs, whatever became of its path.
                let file = match path == executable {
                    true => process.executable(),
                    false => process.file("root").join(path.strip_prefix("/").unwrap_or(path)),
                };
                let name = path.file_name().unwrap_or_default().to_string_lossy().into();
                let (start, end) = (mapping.start, mapping.end);
                let names = OnceLock::new();
                let (offset, inode) = (mapping.offset, mapping.inode);
                Mapping { start, end, offset, file, inode, name, names }
            });
        Ok(Self { mappings: mappings.collect() })
    }

    /// Whether there is code at an address.
    #[must_use]
    pub fn has(&self, address: u64) -> bool {
        self.mapping(address).is_some()
    }

    /// Where an address is; `None` where no code of a file is mapped.
    #[must_use]
    pub fn place(&self, address: u64) -> Option<Symbol> {
        let mapping = self.mapping(address)?;
        let none = Symbol {
            file: mapping.name.clone(),
            function: None,
            offset: address - mapping.start + mapping.offset,
            is_inside: false,
        };
        let names = mapping.names.get_or_init(|| Names::of(&mapping.file, mapping.inode));
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

    fn mapping(&self, address: u64) -> Option<&Mapping> {
        self.mappings.iter().find(|mapping| (mapping.start..mapping.end).contains(&address))
    }
}

/// No library is as large.
const FILE_BYTES_MAX: u64 = 1 << 30;

impl Names {
    /// Reads a file, if it is still the one that is mapped.
    fn of(path: &Path, inode: u64) -> Option<Self> {
        let file = File::open(path).ok()?;
        let metadata = file.metadata().ok()?;
        if metadata.ino() != inode || metadata.len() > FILE_BYTES_MAX {
            return None;
        }
        let mut data = Vec::new();
        file.take(FILE_BYTES_MAX).read_to_end(&mut data).ok()?;
        Self::of_elf(&data)
    }

    fn of_elf(data: &[u8]) -> Option<Self> {
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
                Some(Function { address, bytes, name: symbol.name().ok()?.into() })
            })
            .collect();
        functions.sort();
        functions.dedup();
        Some(Self { segments: segments.collect(), functions })
    }

    /// The last function that begins at a place of the file or before it, and how far before.
    fn function(&self, offset: u64) -> Option<(&Function, u64)> {
        let address = self.segments.iter().find_map(|&[address, start, bytes]| {
            let inside = offset.checked_sub(start).filter(|inside| *inside < bytes)?;
            Some(address + inside)
        })?;
        let behind = self.functions.partition_point(|function| function.address <= address);
        let function = self.functions[..behind].last()?;
        Some((function, address - function.address))
    }
}

/// `ProcSleep+0x1c`; `~ProcSleep+0x400` behind its end; `libc.so.6+0x2724a` of a file without names.
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

/// Whether the bytes before a return address can be a call: `call` with a distance, or by a register or memory.
/// Without this, a number on a stack is no return address.
///
/// Source: the processor's manual, `E8 cd` and `FF /2`.
#[must_use]
pub fn ends_with_call(code: &[u8; 8]) -> bool {
    if code[3] == 0xe8 {
        return true;
    }
    (2..=7).any(|bytes: usize| {
        let call = &code[8 - bytes..];
        is_indirect_call(call) || (call[0] & 0xf0 == 0x40 && is_indirect_call(&call[1..]))
    })
}

/// `FF /2`, whose length is that of the slice.
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
    fn our_own_functions_have_names() {
        let here = Process::of(std::process::id()).expect("we run");
        let code = CodeMap::of(here).expect("our own maps");
        let place = code.place(ends_with_call as *const () as u64).expect("it is code");
        assert!(place.function.is_some_and(|name| name.contains("ends_with_call")));
        assert!(place.is_inside && place.offset == 0);
        assert_eq!(code.place(0x10), None);
        let local = 7;
        assert!(!code.has(&raw const local as u64), "a stack holds no code");
    }

    #[test]
    fn a_place_says_how_sure_it_is() {
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
    fn calls_are_told_from_other_code() {
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
    fn a_damaged_file_has_no_names() {
        let data = fs::read("/proc/self/exe").expect("our own binary");
        for end in [0, 1, 16, 63, 64, 100, 4096] {
            if let Some(names) = Names::of_elf(&data[..end]) {
                assert!(names.function(0).is_none() || !names.functions.is_empty());
            }
        }
        // A small one, whose head and tables are damaged all over.
        let data = fs::read("/bin/true").expect("every system has it");
        for at in (0..data.len()).step_by(97).chain(0..64) {
            let mut damaged = data.clone();
            let end = (at + 8).min(data.len());
            damaged[at..end].fill(0xff);
            let names = Names::of_elf(&damaged);
            let found = names.as_ref().and_then(|names| names.function(data.len() as u64 / 2));
            assert!(found.is_none_or(|(function, _)| function.name.len() <= data.len()));
        }
    }
}
