//! The memory of another process, copied by `process_vm_readv(2)`: one system call, no stop, no lock.
//!
//! A copy is not a snapshot. The process runs on while it is made, so two words of one copy may be of
//! different moments; who needs them to agree checks that they do.

use std::io::{self, IoSliceMut};

use nix::{
    errno::Errno,
    sys::uio::{RemoteIoVec, process_vm_readv},
    unistd::Pid,
};

use crate::error::MemoryError;

/// The memory of one process.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    pid: u32,
}

impl Memory {
    /// The memory of the process `pid`. Nothing is read yet.
    #[must_use]
    pub fn of(pid: u32) -> Self {
        Self { pid }
    }

    /// Fills `into` from `address` on.
    ///
    /// # Errors
    ///
    /// The process is gone, is not ours to read, or has nothing mapped there.
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

    /// The `N` bytes at `address`.
    ///
    /// # Errors
    ///
    /// As [`Memory::read`].
    pub fn bytes<const N: usize>(&self, address: u64) -> Result<[u8; N], MemoryError> {
        let mut bytes = [0; N];
        self.read(address, &mut bytes)?;
        Ok(bytes)
    }

    /// The pointer at `address`.
    ///
    /// # Errors
    ///
    /// As [`Memory::read`].
    pub fn pointer(&self, address: u64) -> Result<u64, MemoryError> {
        self.bytes(address).map(u64::from_ne_bytes)
    }

    /// The C `int` at `address`.
    ///
    /// # Errors
    ///
    /// As [`Memory::read`].
    pub fn int(&self, address: u64) -> Result<i32, MemoryError> {
        self.bytes(address).map(i32::from_ne_bytes)
    }

    /// The text at `address`, up to its NUL, `limit` bytes or the end of what is mapped.
    ///
    /// # Errors
    ///
    /// As [`Memory::read`], where not even its first byte can be read.
    pub fn text(&self, address: u64, limit: usize) -> Result<Vec<u8>, MemoryError> {
        let mut text = Vec::new();
        while text.len() < limit {
            let at = address.wrapping_add(text.len() as u64);
            // Not over the end of a page: the next one may not be there.
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
    fn reads_what_is_there() {
        let here = [7_i32, -9];
        let memory = Memory::of(std::process::id());
        let address = here.as_ptr() as u64;
        assert_eq!(memory.int(address).expect("our own memory can be read"), 7);
        assert_eq!(memory.int(address + 4).expect("our own memory can be read"), -9);
    }

    #[test]
    fn an_address_without_memory_is_an_error_that_says_where() {
        let error = Memory::of(std::process::id()).int(0x10).expect_err("page 0 is never mapped");
        assert!(matches!(error, MemoryError::Unmapped { address: 0x10, .. }), "{error}");
    }

    #[test]
    fn text_ends_at_its_nul_or_at_the_limit() {
        let long = [&[b'x'; 10_000][..], b"\0behind"].concat();
        let memory = Memory::of(std::process::id());
        let address = long.as_ptr() as u64;
        let text =
            |address, limit| memory.text(address, limit).expect("our own memory can be read");
        assert_eq!(text(address, 20_000).len(), 10_000);
        assert_eq!(text(address, 9_000).len(), 9_000);
        assert_eq!(text(address + 10_000, 20), b"");
        assert!(matches!(memory.text(0x10, 20), Err(MemoryError::Unmapped { .. })));
    }

    #[test]
    fn a_process_that_ended_is_gone() {
        let mut child = std::process::Command::new("true").spawn().expect("true can be run");
        let pid = child.id();
        child.wait().expect("it ends");
        let error = Memory::of(pid).int(0x1000).expect_err("it has no memory left");
        assert!(matches!(error, MemoryError::Gone { .. }), "{error}");
    }
}
