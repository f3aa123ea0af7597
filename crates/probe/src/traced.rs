//! The server that programs in the kernel look at: where its code is, and how they know its processes.

use std::{fs::File, os::unix::fs::FileExt as _};

use howdah_inspect::{BinaryError, Server, UsdtProbe};

use crate::{
    bpf::{Assembler, Helper, Label, Point, Register, Size},
    error::Error,
    straight,
};

/// A server's binary and the mark by which its processes are told from those of other servers that run the
/// same file.
///
/// Every process of a server has inherited the variable `PostmasterPid` at the same address with the same
/// value. A process of another server has another value there, or nothing at all.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Traced<'a> {
    server: &'a Server,
    mark: u64,
    /// As the server's own namespace numbers processes.
    postmaster: i32,
}

impl<'a> Traced<'a> {
    pub(crate) fn new(server: &'a Server) -> Result<Self, Error> {
        let mark = server.binary().address("PostmasterPid")?;
        let postmaster = server.memory().int(mark)?;
        Ok(Self { server, mark, postmaster })
    }

    /// Where a function begins, or a little behind, where a hit is cheap and all is as it was at the entry; see
    /// [`straight::entry`].
    pub(crate) fn function(&self, symbol: &'static str) -> Result<Point, Error> {
        self.within(symbol, self.skipped(symbol)?)
    }

    /// A place so far behind a function's entry.
    pub(crate) fn within(&self, symbol: &'static str, behind: u64) -> Result<Point, Error> {
        let binary = self.server.binary();
        let offset = binary.file_offset(binary.file_address(symbol)?);
        let offset = offset.ok_or(Error::UnknownCode { symbol })? + behind;
        Ok(Point { offset, semaphore: None })
    }

    /// The front of a function's code, and how far behind its entry another function begins.
    pub(crate) fn code_and_distance(
        &self,
        symbol: &'static str,
        other: &'static str,
    ) -> Result<([u8; CODE_BYTES], i64), Error> {
        let binary = self.server.binary();
        let (here, there) = (binary.file_address(symbol)?, binary.file_address(other)?);
        Ok((self.file_code(symbol, 0)?, there.wrapping_sub(here).cast_signed()))
    }

    /// Code as the file has it, so far behind a function's entry: in memory there may be breakpoints of
    /// others.
    fn file_code<const N: usize>(
        &self,
        symbol: &'static str,
        behind: u64,
    ) -> Result<[u8; N], Error> {
        let path = self.server.postmaster().executable();
        let offset = self.within(symbol, behind)?.offset;
        let mut code = [0; N];
        let read = File::open(&path).and_then(|file| file.read_exact_at(&mut code, offset));
        read.map_err(|source| BinaryError::Read { path, source })?;
        Ok(code)
    }

    /// The code where [`function`](Self::function) is.
    pub(crate) fn code_of(&self, symbol: &'static str) -> Result<[u8; 8], Error> {
        self.file_code(symbol, self.skipped(symbol)?)
    }

    /// How far behind the entry a program is attached.
    fn skipped(&self, symbol: &'static str) -> Result<u64, Error> {
        let code: [u8; 24] = self.file_code(symbol, 0)?;
        Ok(straight::entry(&code) as u64)
    }

    /// Where the places of a marker are in the file.
    ///
    /// # Errors
    ///
    /// The server has none.
    pub(crate) fn markers(&self, name: &'static str) -> Result<Vec<Point>, Error> {
        let all = self.server.binary().markers().iter();
        let points: Vec<_> =
            all.filter(|marker| marker.name == name).filter_map(|one| self.marker(one)).collect();
        match points.is_empty() {
            true => Err(Error::NoMarker { marker: name }),
            false => Ok(points),
        }
    }

    /// Where a place of a marker is in the file.
    pub(crate) fn marker(&self, marker: &UsdtProbe) -> Option<Point> {
        let binary = self.server.binary();
        let semaphore = match marker.semaphore {
            Some(address) => Some(binary.file_offset(address)?),
            None => None,
        };
        Some(Point { offset: binary.file_offset(marker.address)?, semaphore })
    }

    /// Jumps to `other` if the process is not of this server. Overwrites `R0` to `R5` and eight bytes of the
    /// stack at `scratch`.
    pub(crate) fn filter(&self, program: &mut Assembler, scratch: i16, other: Label) {
        program
            .stack_address(Register::R1, scratch)
            .set(Register::R2, Size::Word.bytes())
            .set_wide(Register::R3, self.mark)
            .call(Helper::ReadUser)
            .jump_unless(Register::R0, 0, other)
            .load(Register::R1, Size::Word, Register::R10, scratch)
            .jump_unless_word(Register::R1, self.postmaster, other);
    }
}

/// How much of a function is looked at: small ones are within.
pub(crate) const CODE_BYTES: usize = 96;

/// Where a register of the traced process is in the context of a program: `struct pt_regs`, x86-64.
pub(crate) fn register_offset(name: &str) -> Option<i16> {
    const ORDER: [&str; 21] = [
        "r15", "r14", "r13", "r12", "rbp", "rbx", "r11", "r10", "r9", "r8", "rax", "rcx", "rdx",
        "rsi", "rdi", "orig_rax", "rip", "cs", "flags", "rsp", "ss",
    ];
    let index = ORDER.iter().position(|register| *register == name)?;
    i16::try_from(8 * index).ok()
}

/// The same for a register that is there.
pub(crate) fn argument(name: &str) -> i16 {
    register_offset(name).expect("it is a register of the machine")
}

#[test]
fn registers_are_where_the_kernel_has_them() {
    assert_eq!(register_offset("rdi"), Some(112));
    assert_eq!(register_offset("rax"), Some(80));
    assert_eq!(register_offset("rsp"), Some(152));
    assert_eq!(register_offset("xmm0"), None);
}
