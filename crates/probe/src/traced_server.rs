//! The server that BPF programs trace: the location of its code, and a filter for its processes.

use std::{fs::File, os::unix::fs::FileExt as _};

use howdah_inspect::{BinaryError, RunningServer, UsdtProbe};

use crate::{
    basic_block,
    bpf::{Assembler, Helper, JumpLabel, Point, Register, Size},
    error::ProbeError,
};

/// A server's binary, and the value that distinguishes its processes from those of other servers
/// that run the same file.
///
/// Every process of a server inherits the variable `PostmasterPid` at the same address with the
/// same value. A process of another server has another value there, or nothing mapped at all.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TracedServer<'a> {
    server: &'a RunningServer,
    postmaster_pid_address: u64,
    /// The process id in the server's own PID namespace.
    postmaster_pid: i32,
}

impl<'a> TracedServer<'a> {
    pub(crate) fn new(server: &'a RunningServer) -> Result<Self, ProbeError> {
        let mark = server.binary().address("PostmasterPid")?;
        let postmaster = server.memory().int(mark)?;
        Ok(Self { server, postmaster_pid_address: mark, postmaster_pid: postmaster })
    }

    /// Returns the entry of a function, or a point shortly after it where a hit is cheap and the
    /// arguments are still in their registers; see [`basic_block::entry_offset`].
    pub(crate) fn entry_point(&self, symbol: &'static str) -> Result<Point, ProbeError> {
        self.point_at(symbol, self.entry_offset(symbol)?)
    }

    /// Returns the point `offset` bytes after a function's entry.
    pub(crate) fn point_at(&self, symbol: &'static str, offset: u64) -> Result<Point, ProbeError> {
        let binary = self.server.binary();
        let entry = binary.file_offset(binary.file_address(symbol)?);
        let entry = entry.ok_or(ProbeError::UnknownCode { symbol })?;
        Ok(Point { offset: entry + offset, semaphore: None })
    }

    /// Returns the first bytes of a function's code, and the distance from its entry to that of
    /// another function.
    pub(crate) fn code_and_distance(
        &self,
        symbol: &'static str,
        other: &'static str,
    ) -> Result<([u8; CODE_BYTES], i64), ProbeError> {
        let binary = self.server.binary();
        let (here, there) = (binary.file_address(symbol)?, binary.file_address(other)?);
        Ok((self.file_code(symbol, 0)?, there.wrapping_sub(here).cast_signed()))
    }

    /// Reads code from the file, `offset` bytes after a function's entry. The code in memory may
    /// contain breakpoints of other tracers.
    fn file_code<const N: usize>(
        &self,
        symbol: &'static str,
        offset: u64,
    ) -> Result<[u8; N], ProbeError> {
        let path = self.server.postmaster().executable();
        let offset = self.point_at(symbol, offset)?.offset;
        let mut code = [0; N];
        let read = File::open(&path).and_then(|file| file.read_exact_at(&mut code, offset));
        read.map_err(|source| BinaryError::Read { path, source })?;
        Ok(code)
    }

    /// Reads the code at [`entry_point`](Self::entry_point).
    pub(crate) fn entry_code(&self, symbol: &'static str) -> Result<[u8; 8], ProbeError> {
        self.file_code(symbol, self.entry_offset(symbol)?)
    }

    /// Returns the offset from the entry at which a program is attached, in bytes.
    fn entry_offset(&self, symbol: &'static str) -> Result<u64, ProbeError> {
        let code: [u8; 24] = self.file_code(symbol, 0)?;
        Ok(basic_block::entry_offset(&code) as u64)
    }

    /// Returns the file offsets of all sites of a USDT probe.
    ///
    /// # Errors
    ///
    /// The server has no such probe.
    pub(crate) fn usdt_points(&self, name: &'static str) -> Result<Vec<Point>, ProbeError> {
        let all = self.server.binary().usdt_probes().iter();
        let points: Vec<_> =
            all.filter(|probe| probe.name == name).filter_map(|one| self.usdt_point(one)).collect();
        if points.is_empty() { Err(ProbeError::NoUsdtProbe { probe: name }) } else { Ok(points) }
    }

    /// Returns the file offset of a probe site; `None` if the file does not contain its addresses.
    pub(crate) fn usdt_point(&self, probe: &UsdtProbe) -> Option<Point> {
        let binary = self.server.binary();
        let semaphore = match probe.semaphore {
            Some(address) => Some(binary.file_offset(address)?),
            None => None,
        };
        Some(Point { offset: binary.file_offset(probe.address)?, semaphore })
    }

    /// Emits code that jumps to `other` if the process does not belong to this server. Overwrites
    /// `R0` to `R5` and eight bytes of the stack at `scratch`.
    pub(crate) fn filter(&self, program: &mut Assembler, scratch: i16, other: JumpLabel) {
        program
            .stack_address(Register::R1, scratch)
            .set(Register::R2, Size::Word.bytes())
            .set_wide(Register::R3, self.postmaster_pid_address)
            .call(Helper::ReadUser)
            .jump_unless(Register::R0, 0, other)
            .load(Register::R1, Size::Word, Register::R10, scratch)
            .jump_unless_word(Register::R1, self.postmaster_pid, other);
    }
}

/// Number of bytes of a function that are decoded: enough for small functions.
pub(crate) const CODE_BYTES: usize = 96;

/// Returns the offset of a register in the context of a BPF program: `struct pt_regs` on x86-64.
pub(crate) fn register_offset(name: &str) -> Option<i16> {
    const ORDER: [&str; 21] = [
        "r15", "r14", "r13", "r12", "rbp", "rbx", "r11", "r10", "r9", "r8", "rax", "rcx", "rdx",
        "rsi", "rdi", "orig_rax", "rip", "cs", "flags", "rsp", "ss",
    ];
    let index = ORDER.iter().position(|register| *register == name)?;
    i16::try_from(8 * index).ok()
}

/// Like [`register_offset`], but panics if no register has that name.
pub(crate) fn pt_regs_offset(name: &str) -> i16 {
    register_offset(name).expect("register is in pt_regs")
}

#[test]
fn register_offsets_match_pt_regs() {
    assert_eq!(register_offset("rdi"), Some(112));
    assert_eq!(register_offset("rax"), Some(80));
    assert_eq!(register_offset("rsp"), Some(152));
    assert_eq!(register_offset("xmm0"), None);
}
