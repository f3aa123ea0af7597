//! The server's binary: its build id, its exported names, and where they lie in a running process.
//!
//! Distributions strip their servers, which takes `.symtab` and debug information away; `.dynsym`
//! stays, because extensions are linked against it, and names every function and variable that an
//! extension may use.

use std::{collections::HashMap, fmt, fs};

use object::{
    Architecture, Object as _, ObjectKind, ObjectSegment as _, ObjectSymbol, read::elf::ElfFile64,
};

use crate::{
    error::{BinaryError, Error},
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
        let not_elf = |source| BinaryError::NotElf { path: path.clone(), source };
        let data = fs::read(&path).map_err(read)?;
        let kind = object::FileKind::parse(&*data).map_err(not_elf)?;
        if kind != object::FileKind::Elf64 {
            return Err(BinaryError::Architecture { found: format!("{kind:?}") }.into());
        }
        let elf = ElfFile64::<object::Endianness>::parse(&*data).map_err(not_elf)?;
        if elf.architecture() != Architecture::X86_64 {
            return Err(
                BinaryError::Architecture { found: format!("{:?}", elf.architecture()) }.into()
            );
        }
        let base =
            process.executable_base()?.ok_or(BinaryError::NotMapped { pid: process.pid() })?;
        let first = elf.segments().find(|segment| segment.file_range().0 == 0);
        let bias = match elf.kind() {
            ObjectKind::Executable => 0,
            _ => base.wrapping_sub(
                first.map_or(0, |segment| segment.address() & !(segment.align().max(1) - 1)),
            ),
        };
        let symbols = elf
            .dynamic_symbols()
            .filter(ObjectSymbol::is_definition)
            .filter_map(|symbol| Some((symbol.name().ok()?.into(), symbol.address())))
            .collect();
        let build_id = elf.build_id().ok().flatten().map(|id| BuildId(id.into()));
        Ok(Self { build_id, symbols, bias })
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
