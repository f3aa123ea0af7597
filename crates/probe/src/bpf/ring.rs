//! Events on their way from the kernel: a ring that programs write and we read.
//!
//! A record is a header of eight bytes, of which the first four are its length with two bits of state, and
//! its bytes, filled up to a multiple of eight. Source: `kernel/bpf/ringbuf.c`.

use std::{
    os::fd::{AsFd as _, OwnedFd},
    sync::atomic::Ordering,
};

use super::{
    assembler::{Assembler, Helper, Register},
    sys::{self, MapType, RingMemory},
};
use crate::error::BpfError;

/// A ring of records.
#[derive(Debug)]
pub(crate) struct Ring {
    fd: OwnedFd,
    memory: RingMemory,
}

/// `BPF_RB_NO_WAKEUP`: a ring is looked at by the clock.
const NO_WAKEUP: i32 = 1;
/// The record is still being written.
const IS_BUSY: u32 = 1 << 31;
/// It was given up.
const IS_DISCARDED: u32 = 1 << 30;

impl Ring {
    /// A ring of `bytes`, which is a power of two and a multiple of a page.
    pub(crate) fn new(bytes: u32) -> Result<Self, BpfError> {
        debug_assert!(bytes.is_power_of_two() && bytes >= 4096);
        let fd = sys::create_map(MapType::Ring, 0, 0, bytes)
            .map_err(|source| BpfError::map("ring", source))?;
        let memory = RingMemory::map(fd.as_fd(), bytes as usize)
            .map_err(|source| BpfError::map("ring", source))?;
        Ok(Self { fd, memory })
    }

    /// Has a program send what lies at `event` on the stack. `R0` is 0 if there was room.
    pub(crate) fn send(&self, program: &mut Assembler, event: i16, bytes: i32) {
        program
            .set_map(Register::R1, self.fd.as_fd())
            .stack_address(Register::R2, event)
            .set(Register::R3, bytes)
            .set(Register::R4, NO_WAKEUP)
            .call(Helper::RingOutput);
    }

    /// Shows all records that are there.
    pub(crate) fn drain(&mut self, mut visit: impl FnMut(&[u8])) {
        let mut position = self.memory.consumed().load(Ordering::Relaxed);
        let end = self.memory.produced();
        while position < end {
            let header = self.memory.header(position);
            if header & IS_BUSY != 0 {
                break;
            }
            let bytes = header & !(IS_BUSY | IS_DISCARDED);
            if header & IS_DISCARDED == 0 {
                visit(self.memory.record(position, bytes as usize));
            }
            position += u64::from((bytes + 8).next_multiple_of(8));
            // From here on the kernel may write over it.
            self.memory.consumed().store(position, Ordering::Release);
        }
    }
}
