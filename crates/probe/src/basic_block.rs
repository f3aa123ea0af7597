//! Decodes the first instructions of a function, just far enough to choose where a BPF program is
//! attached.
//!
//! The kernel emulates probed `push`, `nop`, `call`, `jmp` and conditional jumps, and single-steps
//! everything else out of line, at several to thirty times the cost. Without frame pointers,
//! compilers begin functions with `sub`: then a hit at the entry is expensive, and one at the first
//! call inside is cheap.
//!
//! Only the basic block at the entry is decoded: every call of the function executes it once, in
//! this order. An unknown instruction ends the block, so no later instruction is chosen.
//!
//! Source: Intel's Software Developer's Manual, volume 2; `branch_setup_xol_ops` and
//! `push_setup_xol_ops` in `arch/x86/kernel/uprobes.c`.

/// An instruction of the basic block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct X86Instruction {
    /// Offset from the function's entry, in bytes.
    pub(crate) at: usize,
    pub(crate) kind: InstructionKind,
}

/// Classification of an instruction by its effect on a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InstructionKind {
    /// Calls the target at this offset from the entry.
    Call(i64),
    /// Jumps, perhaps conditionally; the block ends here.
    Jump,
    /// `push` or `nop`.
    Emulated,
    /// `mov` from memory into `rax`: changes neither arguments nor stack.
    LoadRax,
    /// `endbr64`, which marks a valid target of indirect jumps.
    LandingPad,
    Other,
}

impl InstructionKind {
    /// Whether the kernel emulates the instruction instead of single-stepping it.
    pub(crate) fn is_emulated(self) -> bool {
        matches!(self, Self::Call(_) | Self::Jump | Self::Emulated)
    }
}

/// Returns the instructions from the entry to the first jump or unknown instruction.
pub(crate) fn instructions(code: &[u8]) -> impl Iterator<Item = X86Instruction> + '_ {
    let mut at = Some(0);
    std::iter::from_fn(move || {
        let begin = at?;
        let (bytes, kind) = decode(code.get(begin..)?, begin)?;
        at = (kind != InstructionKind::Jump).then_some(begin + bytes);
        Some(X86Instruction { at: begin, kind })
    })
}

/// Returns the offset from the entry at which a program can be attached as if at the entry itself:
/// arguments are in their registers, and the return address is on top of the stack. This is the
/// first `push` or `nop` if only `endbr64` and loads into `rax` precede it, otherwise the
/// instruction after `endbr64`, or the entry if the function does not start with `endbr64`.
pub(crate) fn entry_offset(code: &[u8]) -> usize {
    let mut after_pad = 0;
    for X86Instruction { at, kind } in instructions(code) {
        match kind {
            InstructionKind::LandingPad => after_pad = at + 4,
            InstructionKind::LoadRax => {}
            // A jump may lead back to the entry; a call's return address would be mistaken for
            // ours.
            InstructionKind::Emulated => return at,
            _ => break,
        }
    }
    after_pad
}

/// Returns the length in bytes and the kind of the first instruction of `code`, which is at offset
/// `at`; `None` if it is unknown or incomplete.
fn decode(code: &[u8], at: usize) -> Option<(usize, InstructionKind)> {
    if code.starts_with(&[0xf3, 0x0f, 0x1e, 0xfa]) {
        return Some((4, InstructionKind::LandingPad));
    }
    let prefixes = code.iter().take_while(|byte| matches!(byte, 0x64 | 0x66 | 0xf2 | 0xf3)).count();
    let is_short = code[..prefixes].contains(&0x66);
    let wide = code.get(prefixes).filter(|byte| **byte & 0xf0 == 0x40);
    let is_wide = wide.is_some_and(|byte| byte & 8 != 0);
    let begin = prefixes + usize::from(wide.is_some());
    let rest = code.get(begin..)?;
    let number = if is_short { 2 } else { 4 };
    let plain = begin == 0;
    let (bytes, kind) = match *rest {
        [0x50..=0x57, ..] if prefixes == 0 => (1, InstructionKind::Emulated),
        [0x90, ..] if plain => (1, InstructionKind::Emulated),
        [0xe8, a, b, c, d, ..] if plain => {
            let distance = i64::from(i32::from_le_bytes([a, b, c, d]));
            (5, InstructionKind::Call(i64::try_from(at).ok()? + 5 + distance))
        }
        [0xe9, ..] if plain => (5, InstructionKind::Jump),
        [0xeb | 0x70..=0x7f, ..] if plain => (2, InstructionKind::Jump),
        [0x0f, 0x80..=0x8f, ..] if plain => (6, InstructionKind::Jump),
        // mov distance(%rip), %rax
        [0x8b, 0x05, ..] if code[0] == 0x48 && begin == 1 => (6, InstructionKind::LoadRax),
        [0xb8..=0xbf, ..] if is_wide => (9, InstructionKind::Other),
        [0xb8..=0xbf, ..] => (1 + number, InstructionKind::Other),
        // add, or, and, sub, xor, cmp, test, mov, lea, movslq.
        [
            0x01 | 0x03 | 0x09 | 0x0b | 0x21 | 0x23 | 0x29 | 0x2b | 0x31 | 0x33 | 0x39 | 0x3b
            | 0x63 | 0x85 | 0x89 | 0x8b | 0x8d,
            ..,
        ] => (1 + operand_bytes(&rest[1..])?, InstructionKind::Other),
        // These operations with an immediate of one byte or of four.
        [0x83 | 0xc6, ..] => (2 + operand_bytes(&rest[1..])?, InstructionKind::Other),
        [0x81 | 0xc7, ..] => (1 + operand_bytes(&rest[1..])? + number, InstructionKind::Other),
        // Moves of vector registers, setcc, movzx, movsx, long nop.
        [
            0x0f,
            0x10
            | 0x11
            | 0x1f
            | 0x28
            | 0x29
            | 0x57
            | 0x6c
            | 0x6e
            | 0x6f
            | 0x7e
            | 0x7f
            | 0x90..=0x9f
            | 0xb6
            | 0xb7
            | 0xbe
            | 0xbf
            | 0xd6
            | 0xef,
            ..,
        ] => (2 + operand_bytes(&rest[2..])?, InstructionKind::Other),
        _ => return None,
    };
    let bytes = begin + bytes;
    (bytes <= code.len()).then_some((bytes, kind))
}

/// Returns the length of an operand in bytes: ModRM, SIB and displacement.
fn operand_bytes(code: &[u8]) -> Option<usize> {
    let how = *code.first()?;
    let (mode, base) = (how >> 6, how & 7);
    if mode == 3 {
        return Some(1);
    }
    let has_index = base == 4;
    let index_base = if has_index { *code.get(1)? & 7 } else { 0 };
    let displacement = match mode {
        0 if base == 5 || has_index && index_base == 5 => 4,
        0 => 0,
        1 => 1,
        _ => 4,
    };
    Some(1 + usize::from(has_index) + displacement)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Code of `LockRelationForExtension` in a build without frame pointers, up to its end.
    const LOCK_RELATION: &[u8] = &[
        0x48, 0x83, 0xec, 0x28, // sub $0x28, %rsp
        0x31, 0xc9, 0x31, 0xd2, // xor %ecx, %ecx; xor %edx, %edx
        0x64, 0x48, 0x8b, 0x04, 0x25, 0x28, 0, 0, 0, // mov %fs:0x28, %rax
        0x48, 0x89, 0x44, 0x24, 0x18, // mov %rax, 0x18(%rsp)
        0x31, 0xc0, // xor %eax, %eax
        0x8b, 0x47, 0x50, 0x89, 0x44, 0x24, 0x08, // mov 0x50(%rdi), %eax; mov %eax, 0x8(%rsp)
        0x8b, 0x47, 0x4c, // mov 0x4c(%rdi), %eax
        0x48, 0x8d, 0x7c, 0x24, 0x08, // lea 0x8(%rsp), %rdi
        0x89, 0x44, 0x24, 0x0c, // mov %eax, 0xc(%rsp)
        0x48, 0xb8, 0, 0, 0, 0, 0, 0, 1, 1, // movabs $0x101000000000000, %rax
        0x48, 0x89, 0x44, 0x24, 0x10, // mov %rax, 0x10(%rsp)
        0xe8, 0x82, 0x28, 0, 0, // call 0x28c1 after the entry
        0x48, 0x8b, 0x44, 0x24, 0x18, // mov 0x18(%rsp), %rax
        0x64, 0x48, 0x33, 0x04, 0x25, 0x28, 0, 0, 0, // xor %fs:0x28, %rax
        0x74, 0x05, // je
        0xe8, 0, 0, 0, 0, 0x48, 0x83, 0xc4, 0x28, 0xc3,
    ];

    #[test]
    fn decoding_stops_at_the_first_jump() {
        let emulated: Vec<_> = instructions(LOCK_RELATION)
            .filter(|instruction| instruction.kind.is_emulated())
            .collect();
        assert_eq!(
            emulated,
            [
                X86Instruction { at: 0x3a, kind: InstructionKind::Call(0x28c1) },
                X86Instruction { at: 0x4d, kind: InstructionKind::Jump },
            ]
        );
    }

    #[test]
    fn entry_moves_only_past_harmless_instructions() {
        assert_eq!(entry_offset(LOCK_RELATION), 0);
        assert_eq!(entry_offset(&[0x55, 0x48, 0x89, 0xe5]), 0);
        assert_eq!(entry_offset(&[0xf3, 0x0f, 0x1e, 0xfa, 0x55, 0xc3]), 4);
        assert_eq!(entry_offset(&[0xf3, 0x0f, 0x1e, 0xfa, 0x48, 0x83, 0xec, 8]), 4);
        // mov distance(%rip), %rax; push %r14
        assert_eq!(entry_offset(&[0x48, 0x8b, 0x05, 1, 2, 3, 4, 0x41, 0x56]), 7);
        assert_eq!(entry_offset(&[0x48, 0x8b, 0x05, 1, 2, 3, 4, 0x48, 0x83, 0xec, 8]), 0);
        assert_eq!(entry_offset(&[0xe8, 0, 0, 0, 0]), 0);
        assert_eq!(entry_offset(&[]), 0);
    }

    #[test]
    fn truncated_or_unknown_code_ends_the_block() {
        for end in 0..LOCK_RELATION.len() {
            for X86Instruction { at, .. } in instructions(&LOCK_RELATION[..end]) {
                assert!(at < end);
            }
        }
        assert_eq!(instructions(&[0x0f, 0x05, 0x90]).count(), 0);
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_decode_with_increasing_offsets(
            code in proptest::collection::vec(proptest::num::u8::ANY, 0..64),
            prefix in proptest::sample::select(vec![&[][..], &[0x48], &[0x66], &[0x64, 0x48], &[0x0f]]),
        ) {
            let code = [prefix, &code].concat();
            let line: Vec<_> = instructions(&code).collect();
            assert!(line.windows(2).all(|two| two[0].at < two[1].at));
            assert!(line.iter().all(|instruction| instruction.at < code.len()));
            assert!(entry_offset(&code) <= code.len());
        }
    }
}
