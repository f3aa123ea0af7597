//! What programs remember: tables by key, and counters.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use super::{
    assembler::{Assembler, Helper, Register, Size},
    sys::{self, MapType},
};
use crate::error::BpfError;

/// A table of keys of eight bytes. The entry used longest ago goes when it is full.
#[derive(Debug)]
pub(crate) struct Hash(OwnedFd);

impl Hash {
    pub(crate) fn new(value_bytes: u32, entries_max: u32) -> Result<Self, BpfError> {
        let made = sys::create_map(MapType::LruHash, 8, value_bytes, entries_max);
        made.map(Self).map_err(|source| BpfError::map("table", source))
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Has a program put the address of the entry into `R0`, or 0. The key is on the stack.
    pub(crate) fn look_up(&self, program: &mut Assembler, key: i16) {
        self.at(program, key).call(Helper::MapLookup);
    }

    /// Has it make the entry, of what lies at `value` on the stack. `R0` is 0 if it could.
    pub(crate) fn update(&self, program: &mut Assembler, key: i16, value: i16) {
        self.at(program, key)
            .stack_address(Register::R3, value)
            .set(Register::R4, 0)
            .call(Helper::MapUpdate);
    }

    /// Has it forget the entry.
    pub(crate) fn delete(&self, program: &mut Assembler, key: i16) {
        self.at(program, key).call(Helper::MapDelete);
    }

    fn at<'p>(&self, program: &'p mut Assembler, key: i16) -> &'p mut Assembler {
        program.set_map(Register::R1, self.fd()).stack_address(Register::R2, key)
    }
}

/// Counters, by index from 0.
#[derive(Debug)]
pub(crate) struct Counters(OwnedFd);

impl Counters {
    pub(crate) fn new(count: u32) -> Result<Self, BpfError> {
        let made = sys::create_map(MapType::Array, 4, 8, count);
        made.map(Self).map_err(|source| BpfError::map("counters", source))
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Has a program add one to a counter. Overwrites four bytes of the stack at `scratch`.
    pub(crate) fn count(&self, program: &mut Assembler, index: u32, scratch: i16) {
        let none = program.label();
        program
            .store_value(Size::Word, Register::R10, scratch, index.cast_signed())
            .set_map(Register::R1, self.fd())
            .stack_address(Register::R2, scratch)
            .call(Helper::MapLookup)
            .jump_if(Register::R0, 0, none)
            .set(Register::R1, 1)
            .add_atomically(Register::R0, 0, Register::R1)
            .place(none);
    }

    pub(crate) fn value(&self, index: u32) -> Result<u64, BpfError> {
        let mut value = [0];
        sys::value_of(self.fd(), index, &mut value)
            .map_err(|source| BpfError::map("counters", source))?;
        Ok(value[0])
    }
}

/// Stacks of processes, by a number that the kernel gives out: the same for the same stack.
///
/// The kernel walks a stack by its frame pointers, and keeps [`Stacks::DEPTH`] addresses at most.
#[derive(Debug)]
pub(crate) struct Stacks(OwnedFd);

impl Stacks {
    /// Addresses of a stack that are kept, the innermost ones.
    pub(crate) const DEPTH: usize = 64;

    pub(crate) fn new() -> Result<Self, BpfError> {
        let made = sys::create_map(MapType::Stacks, 4, 8 * Self::DEPTH as u32, STACKS_MAX);
        made.map(Self).map_err(|source| BpfError::map("stacks", source))
    }

    /// Has a program put the number of the stack of the process into the stack's place `into`, negative if
    /// there was no room. `context` has what the program was called with.
    pub(crate) fn take(&self, program: &mut Assembler, context: Register, into: i16) {
        program
            .copy(Register::R1, context)
            .set_map(Register::R2, self.0.as_fd())
            .set(Register::R3, OF_USER)
            .call(Helper::StackId)
            .store(Size::Double, Register::R10, into, Register::R0);
    }

    /// The addresses of a stack, from the innermost on.
    pub(crate) fn of(&self, number: u32) -> Result<Vec<u64>, BpfError> {
        let mut addresses = [0; Self::DEPTH];
        sys::value_of(self.0.as_fd(), number, &mut addresses)
            .map_err(|source| BpfError::map("stacks", source))?;
        Ok(addresses.into_iter().take_while(|address| *address != 0).collect())
    }
}

/// `BPF_F_USER_STACK`. Nothing is written over: a stack that would take another one's place has no number.
const OF_USER: i32 = 1 << 8;
/// A power of two. Long waits are at few places.
const STACKS_MAX: u32 = 1 << 13;
