//! The ring buffer by which BPF programs send events to this process.
//!
//! A record is an eight-byte header, whose first four bytes are the length with two state bits,
//! followed by the payload, padded to a multiple of eight. Source: `kernel/bpf/ringbuf.c`.

use std::{
    os::fd::{AsFd as _, OwnedFd},
    sync::atomic::Ordering,
};

use super::{
    assembler::{Assembler, Helper, Register},
    sys::{self, MapType, RingMemory},
};
use crate::error::BpfError;

/// A BPF ring buffer, mapped into this process.
#[derive(Debug)]
pub(crate) struct RingBuffer {
    fd: OwnedFd,
    memory: RingMemory,
}

/// `BPF_RB_NO_WAKEUP`: no wake-up is needed, because the ring is polled.
const NO_WAKEUP: i32 = 1;
/// State bit of a record that is still being written.
const IS_BUSY: u32 = 1 << 31;
/// State bit of a record that was discarded.
const IS_DISCARDED: u32 = 1 << 30;

impl RingBuffer {
    /// Creates a ring of `bytes`, which must be a power of two and a multiple of the page size.
    pub(crate) fn new(bytes: u32) -> Result<Self, BpfError> {
        debug_assert!(bytes.is_power_of_two() && bytes >= 4096);
        let fd = sys::create_map(MapType::Ring, 0, 0, bytes)
            .map_err(|source| BpfError::map("ring", source))?;
        let memory = RingMemory::map(fd.as_fd(), bytes as usize)
            .map_err(|source| BpfError::map("ring", source))?;
        Ok(Self { fd, memory })
    }

    /// Emits code that sends the `bytes` at `event` on the stack. `R0` is 0 if there was room.
    pub(crate) fn send(&self, program: &mut Assembler, event: i16, bytes: i32) {
        program
            .set_map(Register::R1, self.fd.as_fd())
            .stack_address(Register::R2, event)
            .set(Register::R3, bytes)
            .set(Register::R4, NO_WAKEUP)
            .call(Helper::RingOutput);
    }

    /// Passes all available records to `visit`.
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
            // From here on the kernel may overwrite the record.
            self.memory.consumed().store(position, Ordering::Release);
        }
    }
}
