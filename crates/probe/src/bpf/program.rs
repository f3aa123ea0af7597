//! Programs that the kernel has checked.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use super::{
    assembler::Assembler,
    sys::{self, UPROBE_MULTI},
};
use crate::error::BpfError;

/// A loaded program.
#[derive(Debug)]
pub(crate) struct Program {
    fd: OwnedFd,
    name: &'static str,
    /// Made for a link of many places.
    is_multi: bool,
}

impl Program {
    /// Has it checked and loaded: for links of many places where the kernel has them (6.6 on).
    pub(crate) fn load(name: &'static str, assembler: Assembler) -> Result<Self, BpfError> {
        Self::load_as(name, assembler, has_multi())
    }

    /// The same, for links of one kind.
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
            return Err(BpfError::denied("load programs into the kernel"));
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

    /// Hits that it missed because another program was running on the processor.
    pub(crate) fn misses(&self) -> Result<u64, BpfError> {
        sys::recursion_misses(self.fd()).map_err(|source| BpfError::map("program", source))
    }
}

/// Enough for what is said of a program of some hundred instructions.
const LOG_BYTES: usize = 64 << 10;

/// Whether one link can attach a program to many places: asked once, of a program that does nothing. Not if
/// `HOWDAH_PROBE_PERF_LINKS` is set: so tests have an older kernel.
pub(crate) fn has_multi() -> bool {
    static ANSWER: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    *ANSWER.get_or_init(|| {
        if std::env::var_os("HOWDAH_PROBE_PERF_LINKS").is_some() {
            return false;
        }
        let mut nothing = Assembler::default();
        nothing.exit();
        // A kernel before 6.6 refuses the type of attachment, but only when attaching; so ask for that.
        let Ok(program) = sys::load_program("asks", &nothing.finish(), UPROBE_MULTI, &mut [])
        else {
            return false;
        };
        // No file has this name: a kernel that knows the kind of link looks for it and says so.
        let link = sys::attach_many(program.as_fd(), c"/proc/self/no", &[0], &[], false);
        link.is_err_and(|error| error.raw_os_error() == Some(libc::ENOENT))
    })
}
