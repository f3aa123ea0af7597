//! A BPF assembler: named instructions, jumps to labels, maps by file descriptor.

use std::os::fd::{AsRawFd as _, BorrowedFd};

/// A BPF instruction, eight bytes in the kernel's layout: opcode, registers, offset, immediate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct BpfInstruction {
    opcode: u8,
    /// Destination in the low half, source in the high one.
    registers: u8,
    offset: i16,
    immediate: i32,
}

/// A register. `R0` holds results, `R1` to `R5` the arguments of a call, which clobbers them; `R6`
/// to `R9` survive calls; `R10` is the top of the 512-byte stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(dead_code, reason = "the instruction set has them, used or not")]
pub(crate) enum Register {
    R0,
    R1,
    R2,
    R3,
    R4,
    R5,
    R6,
    R7,
    R8,
    R9,
    R10,
}

/// Size of a load or store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Size {
    Word,
    Double,
}

/// Helper functions of the kernel: `enum bpf_func_id`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(crate) enum Helper {
    MapLookup = 1,
    MapUpdate = 2,
    MapDelete = 3,
    /// Returns the nanoseconds of `CLOCK_MONOTONIC`.
    MonotonicNs = 5,
    /// Returns the process id in the high half, and the thread id in the low one.
    CurrentPidTgid = 14,
    /// Returns the id of the stack in a stack map, negative if it could not be stored.
    StackId = 27,
    ReadUser = 112,
    RingOutput = 130,
}

/// A jump target, which may be used before it is bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct JumpLabel(usize);

/// A program under construction.
#[derive(Debug, Default)]
pub(crate) struct Assembler {
    code: Vec<BpfInstruction>,
    /// Instruction index of each bound label.
    labels: Vec<Option<usize>>,
    /// Jumps to be resolved: instruction index and label.
    jumps: Vec<(usize, JumpLabel)>,
}

const MOVE: u8 = 0xb0;
const ADD: u8 = 0x00;
const SUBTRACT: u8 = 0x10;
const ALU64: u8 = 0x07;
const JUMP: u8 = 0x05;
const JUMP32: u8 = 0x06;
const FROM_REGISTER: u8 = 0x08;
const EQUAL: u8 = 0x10;
const UNEQUAL: u8 = 0x50;
const BELOW: u8 = 0xa0;
const LOAD_DOUBLE_IMMEDIATE: u8 = 0x18;
/// Value of the source register field which marks the immediate as a map's file descriptor
/// (`BPF_PSEUDO_MAP_FD`).
const IS_MAP: u8 = 1;

impl Assembler {
    /// Emits a 64-bit move, `to = from`.
    pub(crate) fn copy(&mut self, to: Register, from: Register) -> &mut Self {
        self.push(ALU64 | MOVE | FROM_REGISTER, to, from, 0, 0)
    }

    /// Emits `to = value`, sign-extended to 64 bits.
    pub(crate) fn set(&mut self, to: Register, value: i32) -> &mut Self {
        self.push(ALU64 | MOVE, to, Register::R0, 0, value)
    }

    /// Emits `to = value` for a value of 64 bits, which takes two instructions.
    pub(crate) fn set_wide(&mut self, to: Register, value: u64) -> &mut Self {
        self.wide(to, 0, value)
    }

    /// Emits `to = map`; the verifier replaces the descriptor with the map's address.
    pub(crate) fn set_map(&mut self, to: Register, map: BorrowedFd<'_>) -> &mut Self {
        self.wide(to, IS_MAP, u64::from(map.as_raw_fd().unsigned_abs()))
    }

    /// Emits a 64-bit addition, `to += value`; `value` is sign-extended.
    pub(crate) fn add(&mut self, to: Register, value: i32) -> &mut Self {
        self.push(ALU64 | ADD, to, Register::R0, 0, value)
    }

    /// Emits a 64-bit subtraction, `to -= from`.
    pub(crate) fn subtract(&mut self, to: Register, from: Register) -> &mut Self {
        self.push(ALU64 | SUBTRACT | FROM_REGISTER, to, from, 0, 0)
    }

    /// Emits `to >>= bits`, unsigned, on 64 bits.
    pub(crate) fn shift_right(&mut self, to: Register, bits: i32) -> &mut Self {
        self.push(ALU64 | 0x70, to, Register::R0, 0, bits)
    }

    /// Emits `to <<= bits` on 64 bits.
    pub(crate) fn shift_left(&mut self, to: Register, bits: i32) -> &mut Self {
        self.push(ALU64 | 0x60, to, Register::R0, 0, bits)
    }

    /// Emits `to = *(base + offset)`.
    pub(crate) fn load(
        &mut self,
        to: Register,
        size: Size,
        base: Register,
        offset: i16,
    ) -> &mut Self {
        self.push(0x61 | size.bits(), to, base, offset, 0)
    }

    /// Emits `*(base + offset) = from`.
    pub(crate) fn store(
        &mut self,
        size: Size,
        base: Register,
        offset: i16,
        from: Register,
    ) -> &mut Self {
        self.push(0x63 | size.bits(), base, from, offset, 0)
    }

    /// Emits `*(base + offset) = value`.
    pub(crate) fn store_value(
        &mut self,
        size: Size,
        base: Register,
        offset: i16,
        value: i32,
    ) -> &mut Self {
        self.push(0x62 | size.bits(), base, Register::R0, offset, value)
    }

    /// Emits an atomic `*(base + offset) += from` of eight bytes.
    pub(crate) fn add_atomically(
        &mut self,
        base: Register,
        offset: i16,
        from: Register,
    ) -> &mut Self {
        self.push(0xc3 | Size::Double.bits(), base, from, offset, 0)
    }

    /// Emits `to = R10 + offset`, an address on the stack.
    pub(crate) fn stack_address(&mut self, to: Register, offset: i16) -> &mut Self {
        self.copy(to, Register::R10).add(to, offset.into())
    }

    pub(crate) fn call(&mut self, helper: Helper) -> &mut Self {
        self.push(JUMP | 0x80, Register::R0, Register::R0, 0, helper as i32)
    }

    /// Emits a return of 0 from the program.
    pub(crate) fn exit(&mut self) -> &mut Self {
        self.set(Register::R0, 0).push(JUMP | 0x90, Register::R0, Register::R0, 0, 0)
    }

    /// Creates a label that is not bound yet.
    pub(crate) fn label(&mut self) -> JumpLabel {
        self.labels.push(None);
        JumpLabel(self.labels.len() - 1)
    }

    /// Binds a label to the next instruction.
    pub(crate) fn bind(&mut self, label: JumpLabel) -> &mut Self {
        self.labels[label.0] = Some(self.code.len());
        self
    }

    pub(crate) fn jump(&mut self, to: JumpLabel) -> &mut Self {
        self.jumps.push((self.code.len(), to));
        self.push(JUMP, Register::R0, Register::R0, 0, 0)
    }

    /// Emits a jump if the register equals `value`, sign-extended to 64 bits.
    pub(crate) fn jump_if(&mut self, register: Register, value: i32, to: JumpLabel) -> &mut Self {
        self.jumps.push((self.code.len(), to));
        self.push(JUMP | EQUAL, register, Register::R0, 0, value)
    }

    /// Emits a jump unless the register equals `value`, sign-extended to 64 bits.
    pub(crate) fn jump_unless(
        &mut self,
        register: Register,
        value: i32,
        to: JumpLabel,
    ) -> &mut Self {
        self.jumps.push((self.code.len(), to));
        self.push(JUMP | UNEQUAL, register, Register::R0, 0, value)
    }

    /// Emits a jump unless the register's low 32 bits equal `value`.
    pub(crate) fn jump_unless_word(
        &mut self,
        register: Register,
        value: i32,
        to: JumpLabel,
    ) -> &mut Self {
        self.jumps.push((self.code.len(), to));
        self.push(JUMP32 | UNEQUAL, register, Register::R0, 0, value)
    }

    /// Emits a jump unless all 64 bits equal those of `other`.
    pub(crate) fn jump_unless_equal(
        &mut self,
        register: Register,
        other: Register,
        to: JumpLabel,
    ) -> &mut Self {
        self.jumps.push((self.code.len(), to));
        self.push(JUMP | UNEQUAL | FROM_REGISTER, register, other, 0, 0)
    }

    /// Emits a jump if the register is less than `other`, compared as unsigned 64-bit numbers.
    pub(crate) fn jump_if_below(
        &mut self,
        register: Register,
        other: Register,
        to: JumpLabel,
    ) -> &mut Self {
        self.jumps.push((self.code.len(), to));
        self.push(JUMP | BELOW | FROM_REGISTER, register, other, 0, 0)
    }

    /// Resolves jumps and returns the program.
    ///
    /// # Panics
    ///
    /// A jump target was never bound, or is too far away for a 16-bit offset.
    pub(crate) fn finish(mut self) -> Vec<BpfInstruction> {
        for (at, label) in self.jumps {
            let target = self.labels[label.0].expect("every jump target is bound");
            let distance = i64::try_from(target).ok().zip(i64::try_from(at + 1).ok());
            let distance = distance.and_then(|(to, from)| i16::try_from(to - from).ok());
            self.code[at].offset = distance.expect("programs are short enough for 16-bit jumps");
        }
        self.code
    }

    fn wide(&mut self, to: Register, kind: u8, value: u64) -> &mut Self {
        let (low, high) = (value as u32, (value >> 32) as u32);
        self.push_raw(LOAD_DOUBLE_IMMEDIATE, to as u8 | kind << 4, 0, low.cast_signed());
        self.push_raw(0, 0, 0, high.cast_signed())
    }

    fn push(
        &mut self,
        opcode: u8,
        to: Register,
        from: Register,
        offset: i16,
        immediate: i32,
    ) -> &mut Self {
        self.push_raw(opcode, to as u8 | (from as u8) << 4, offset, immediate)
    }

    fn push_raw(&mut self, opcode: u8, registers: u8, offset: i16, immediate: i32) -> &mut Self {
        self.code.push(BpfInstruction { opcode, registers, offset, immediate });
        self
    }
}

impl Size {
    fn bits(self) -> u8 {
        match self {
            Self::Word => 0x00,
            Self::Double => 0x18,
        }
    }

    pub(crate) fn bytes(self) -> i32 {
        match self {
            Self::Word => 4,
            Self::Double => 8,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jumps_count_from_the_next_instruction() {
        let mut program = Assembler::default();
        let end = program.label();
        program.jump_if(Register::R0, 7, end).set_wide(Register::R3, 0x1_0000_0002).bind(end);
        program.exit();
        let code = program.finish();
        assert_eq!(code[0], BpfInstruction { opcode: 0x15, registers: 0, offset: 2, immediate: 7 });
        let wide = BpfInstruction { opcode: 0x18, registers: 3, offset: 0, immediate: 2 };
        assert_eq!(code[1], wide);
        assert_eq!(code[2], BpfInstruction { opcode: 0, registers: 0, offset: 0, immediate: 1 });
        assert_eq!(code[4].opcode, 0x95);
    }

    #[test]
    fn opcodes_are_those_of_the_instruction_set() {
        let mut program = Assembler::default();
        program
            .copy(Register::R6, Register::R1)
            .load(Register::R1, Size::Double, Register::R6, 112)
            .store(Size::Word, Register::R10, -4, Register::R0)
            .store_value(Size::Double, Register::R10, -16, 0)
            .add_atomically(Register::R0, 0, Register::R1)
            .subtract(Register::R2, Register::R1)
            .shift_right(Register::R2, 24)
            .call(Helper::RingOutput);
        let opcodes: Vec<_> = program.finish().iter().map(|one| one.opcode).collect();
        assert_eq!(opcodes, [0xbf, 0x79, 0x63, 0x7a, 0xdb, 0x1f, 0x77, 0x85]);
    }
}
