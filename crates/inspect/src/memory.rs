//! Reads the memory of another process with `process_vm_readv(2)`: one system call, without
//! stopping the process and without a lock.
//!
//! A copy is not a snapshot: the process keeps running while it is made, so two words of one copy
//! may be from different moments. Callers that need consistent words must check them.

use std::io::{self, IoSliceMut};

use nix::{
    errno::Errno,
    sys::uio::{RemoteIoVec, process_vm_readv},
    unistd::Pid,
};

use crate::error::MemoryError;

/// Read access to the memory of a process.
#[derive(Clone, Copy, Debug)]
pub struct ProcessMemory {
    pid: u32,
}

impl ProcessMemory {
    /// Creates access to the memory of process `pid`. Nothing is read yet.
    pub fn for_pid(pid: u32) -> Self {
        Self { pid }
    }

    /// Fills `into` with the bytes at `address`.
    ///
    /// # Errors
    ///
    /// The process is gone, cannot be read, or has nothing mapped there.
    pub fn read(&self, address: u64, into: &mut [u8]) -> Result<(), MemoryError> {
        let mut done = 0;
        while done < into.len() {
            let at = address.wrapping_add(done as u64);
            let rest = &mut into[done..];
            // On x86-64 an address fits in usize.
            let remote = [RemoteIoVec { base: at as usize, len: rest.len() }];
            match process_vm_readv(self.nix_pid(), &mut [IoSliceMut::new(rest)], &remote) {
                Ok(0) => return Err(MemoryError::Unmapped { pid: self.pid, address: at }),
                Ok(read) => done += read,
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(self.error(errno, at)),
            }
        }
        Ok(())
    }

    /// Reads the `N` bytes at `address`.
    ///
    /// # Errors
    ///
    /// The same as for [`ProcessMemory::read`].
    pub fn bytes<const N: usize>(&self, address: u64) -> Result<[u8; N], MemoryError> {
        let mut bytes = [0; N];
        self.read(address, &mut bytes)?;
        Ok(bytes)
    }

    /// Reads the pointer at `address`.
    ///
    /// # Errors
    ///
    /// The same as for [`ProcessMemory::read`].
    pub fn pointer(&self, address: u64) -> Result<u64, MemoryError> {
        self.bytes(address).map(u64::from_ne_bytes)
    }

    /// Reads the C `int` at `address`.
    ///
    /// # Errors
    ///
    /// The same as for [`ProcessMemory::read`].
    pub fn int(&self, address: u64) -> Result<i32, MemoryError> {
        self.bytes(address).map(i32::from_ne_bytes)
    }

    /// Reads the text at `address` up to its NUL, but at most `limit` bytes, and not beyond the end
    /// of the mapping.
    ///
    /// # Errors
    ///
    /// The process is gone, cannot be read, or has nothing mapped at `address`.
    pub fn text(&self, address: u64, limit: usize) -> Result<Vec<u8>, MemoryError> {
        let mut text = Vec::new();
        while text.len() < limit {
            let at = address.wrapping_add(text.len() as u64);
            // Do not cross a page boundary: the next page may be unmapped.
            let piece = (PAGE_BYTES - at % PAGE_BYTES).min((limit - text.len()) as u64);
            let begin = text.len();
            text.resize(begin + piece as usize, 0);
            match self.read(at, &mut text[begin..]) {
                Ok(()) => {}
                Err(MemoryError::Unmapped { .. }) if begin > 0 => text.truncate(begin),
                Err(error) => return Err(error),
            }
            if let Some(end) = text.iter().position(|&byte| byte == 0) {
                text.truncate(end);
                break;
            }
            if text.len() == begin {
                break;
            }
        }
        Ok(text)
    }

    pub(crate) fn pid(self) -> u32 {
        self.pid
    }

    fn nix_pid(self) -> Pid {
        // A process id is at most 2^22.
        Pid::from_raw(i32::try_from(self.pid).unwrap_or(i32::MAX))
    }

    pub(crate) fn error(self, errno: Errno, address: u64) -> MemoryError {
        let pid = self.pid;
        match errno {
            Errno::ESRCH => MemoryError::Gone { pid },
            Errno::EPERM | Errno::EACCES => MemoryError::Denied { pid },
            Errno::EFAULT => MemoryError::Unmapped { pid, address },
            errno => MemoryError::Other { pid, address, source: io::Error::from(errno) },
        }
    }
}

const PAGE_BYTES: u64 = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ints_are_read_from_own_memory() {
        let here = [7_i32, -9];
        let memory = ProcessMemory::for_pid(std::process::id());
        let address = here.as_ptr() as u64;
        assert_eq!(memory.int(address).expect("own memory is readable"), 7);
        assert_eq!(memory.int(address + 4).expect("own memory is readable"), -9);
    }

    #[test]
    fn unmapped_address_is_named_in_error() {
        let error = ProcessMemory::for_pid(std::process::id())
            .int(0x10)
            .expect_err("page 0 is never mapped");
        assert!(matches!(error, MemoryError::Unmapped { address: 0x10, .. }), "{error}");
    }

    #[test]
    fn text_ends_at_nul_or_limit() {
        let long = [&[b'x'; 10_000][..], b"\0after"].concat();
        let memory = ProcessMemory::for_pid(std::process::id());
        let address = long.as_ptr() as u64;
        let text = |address, limit| memory.text(address, limit).expect("own memory is readable");
        assert_eq!(text(address, 20_000).len(), 10_000);
        assert_eq!(text(address, 9_000).len(), 9_000);
        assert_eq!(text(address + 10_000, 20), b"");
        assert!(matches!(memory.text(0x10, 20), Err(MemoryError::Unmapped { .. })));
    }

    #[test]
    fn reading_an_ended_process_reports_gone() {
        let mut child = std::process::Command::new("true").spawn().expect("`true` is installed");
        let pid = child.id();
        child.wait().expect("child exits");
        let error =
            ProcessMemory::for_pid(pid).int(0x1000).expect_err("exited process has no memory");
        assert!(matches!(error, MemoryError::Gone { .. }), "{error}");
    }
}
