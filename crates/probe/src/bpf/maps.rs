//! BPF maps: hash tables, counters and stacks.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use super::{
    assembler::{Assembler, Helper, Register, Size},
    sys::{self, MapType},
};
use crate::error::BpfError;

/// A hash map with eight-byte keys. The least recently used entry is evicted when it is full.
#[derive(Debug)]
pub(crate) struct LruHashMap(OwnedFd);

impl LruHashMap {
    pub(crate) fn new(value_bytes: u32, entries_max: u32) -> Result<Self, BpfError> {
        let map = sys::create_map(MapType::LruHash, 8, value_bytes, entries_max);
        map.map(Self).map_err(|source| BpfError::map("hash map", source))
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Emits a lookup of the key at offset `key` on the stack. `R0` is the address of the value, or
    /// 0 if there is none.
    pub(crate) fn lookup(&self, program: &mut Assembler, key: i16) {
        self.load_key(program, key).call(Helper::MapLookup);
    }

    /// Emits an insertion of the key and the value at the offsets `key` and `value` on the stack.
    /// `R0` is 0 on success.
    pub(crate) fn update(&self, program: &mut Assembler, key: i16, value: i16) {
        self.load_key(program, key)
            .stack_address(Register::R3, value)
            .set(Register::R4, 0)
            .call(Helper::MapUpdate);
    }

    /// Emits a deletion of the entry whose key is at offset `key` on the stack.
    pub(crate) fn delete(&self, program: &mut Assembler, key: i16) {
        self.load_key(program, key).call(Helper::MapDelete);
    }

    fn load_key<'p>(&self, program: &'p mut Assembler, key: i16) -> &'p mut Assembler {
        program.set_map(Register::R1, self.fd()).stack_address(Register::R2, key)
    }
}

/// A BPF array of 64-bit counters, indexed from 0.
#[derive(Debug)]
pub(crate) struct CounterMap(OwnedFd);

impl CounterMap {
    pub(crate) fn new(count: u32) -> Result<Self, BpfError> {
        let map = sys::create_map(MapType::Array, 4, 8, count);
        map.map(Self).map_err(|source| BpfError::map("counter map", source))
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Emits an increment of a counter. Overwrites four bytes of the stack at `scratch`.
    pub(crate) fn increment(&self, program: &mut Assembler, index: u32, scratch: i16) {
        let none = program.label();
        program
            .store_value(Size::Word, Register::R10, scratch, index.cast_signed())
            .set_map(Register::R1, self.fd())
            .stack_address(Register::R2, scratch)
            .call(Helper::MapLookup)
            .jump_if(Register::R0, 0, none)
            .set(Register::R1, 1)
            .add_atomically(Register::R0, 0, Register::R1)
            .bind(none);
    }

    pub(crate) fn value(&self, index: u32) -> Result<u64, BpfError> {
        let mut value = [0];
        sys::lookup_value(self.fd(), index, &mut value)
            .map_err(|source| BpfError::map("counter map", source))?;
        Ok(value[0])
    }
}

/// A BPF map of stacks. The kernel assigns their ids: equal stacks have equal ids.
///
/// The kernel walks a stack by frame pointers and stores at most [`StackMap::DEPTH`] addresses.
#[derive(Debug)]
pub(crate) struct StackMap(OwnedFd);

impl StackMap {
    /// Maximum number of addresses per stack; the innermost are kept.
    pub(crate) const DEPTH: usize = 64;

    pub(crate) fn new() -> Result<Self, BpfError> {
        let map = sys::create_map(MapType::Stacks, 4, 8 * Self::DEPTH as u32, STACKS_MAX);
        map.map(Self).map_err(|source| BpfError::map("stack map", source))
    }

    /// Emits code that stores the process's user stack in the map. The stack's id is stored on the
    /// program's stack at `into`, negative if it could not be stored. The register `context` holds
    /// the program's context.
    pub(crate) fn capture(&self, program: &mut Assembler, context: Register, into: i16) {
        program
            .copy(Register::R1, context)
            .set_map(Register::R2, self.0.as_fd())
            .set(Register::R3, USER_STACK)
            .call(Helper::StackId)
            .store(Size::Double, Register::R10, into, Register::R0);
    }

    /// Returns the addresses of a stack, innermost first.
    pub(crate) fn addresses(&self, number: u32) -> Result<Vec<u64>, BpfError> {
        let mut addresses = [0; Self::DEPTH];
        sys::lookup_value(self.0.as_fd(), number, &mut addresses)
            .map_err(|source| BpfError::map("stack map", source))?;
        Ok(addresses.into_iter().take_while(|address| *address != 0).collect())
    }
}

/// `BPF_F_USER_STACK`. Without `BPF_F_REUSE_STACKID`, a stack whose bucket has another one gets no
/// id.
const USER_STACK: i32 = 1 << 8;
/// Maximum number of distinct stacks, a power of two. Long waits occur in few places.
const STACKS_MAX: u32 = 1 << 13;
