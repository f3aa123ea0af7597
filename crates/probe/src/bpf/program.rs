//! BPF programs that the kernel has verified.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use super::{
    assembler::Assembler,
    sys::{self, UPROBE_MULTI},
};
use crate::error::BpfError;

/// A BPF program that is loaded into the kernel.
#[derive(Debug)]
pub(crate) struct Program {
    fd: OwnedFd,
    name: &'static str,
    /// Whether the program is loaded for uprobe-multi links, which attach to many points at once.
    is_multi: bool,
}

impl Program {
    /// Verifies and loads a program, for uprobe-multi links if the kernel supports them (6.6 and
    /// later).
    pub(crate) fn load(name: &'static str, assembler: Assembler) -> Result<Self, BpfError> {
        Self::load_as(name, assembler, supports_uprobe_multi())
    }

    /// Like [`Program::load`], but for the given kind of link.
    pub(super) fn load_as(
        name: &'static str,
        assembler: Assembler,
        is_multi: bool,
    ) -> Result<Self, BpfError> {
        let code = assembler.finish();
        let kind = if is_multi { UPROBE_MULTI } else { 0 };
        let source = match sys::load_program(name, &code, kind, &mut []) {
            Ok(fd) => return Ok(Self { fd, name, is_multi }),
            Err(source) => source,
        };
        if source.raw_os_error() == Some(libc::EPERM) {
            return Err(BpfError::denied("load BPF programs"));
        }
        let mut log = vec![0; LOG_BYTES];
        let _ = sys::load_program(name, &code, kind, &mut log);
        let end = log.iter().position(|byte| *byte == 0).unwrap_or(log.len());
        let log = String::from_utf8_lossy(&log[..end]).trim().to_owned();
        Err(BpfError::Refused { name, source, log })
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    pub(super) fn is_multi(&self) -> bool {
        self.is_multi
    }

    /// Returns the number of hits missed because another program was running on the processor.
    pub(crate) fn misses(&self) -> Result<u64, BpfError> {
        sys::recursion_misses(self.fd())
            .map_err(|source| BpfError::map("program statistics", source))
    }
}

/// Size of the buffer for the verifier's log, enough for a few hundred instructions.
const LOG_BYTES: usize = 64 << 10;

/// Whether one link can attach a program to many points. Checked once with an empty program. False
/// if `HOWDAH_PROBE_PERF_LINKS` is set, which lets tests simulate an older kernel.
pub(crate) fn supports_uprobe_multi() -> bool {
    static SUPPORTED: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    *SUPPORTED.get_or_init(|| {
        if std::env::var_os("HOWDAH_PROBE_PERF_LINKS").is_some() {
            return false;
        }
        let mut empty = Assembler::default();
        empty.exit();
        // A kernel before 6.6 accepts this attach type when loading and rejects it only when
        // attaching, so try to attach.
        let Ok(program) = sys::load_program("empty", &empty.finish(), UPROBE_MULTI, &mut []) else {
            return false;
        };
        // The path does not exist. A kernel that supports the link type looks it up and reports
        // ENOENT.
        let link = sys::attach_multi(program.as_fd(), c"/proc/self/no", &[0], &[], false);
        link.is_err_and(|error| error.raw_os_error() == Some(libc::ENOENT))
    })
}
