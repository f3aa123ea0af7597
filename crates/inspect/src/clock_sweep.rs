//! The clock sweep: where its hand is, how often it went round, how many buffers were handed out, and
//! whether free ones are left.
//!
//! `StrategyControl`, which says so, is a static variable without a symbol. The exported
//! `have_free_buffer()` does nothing but load it and test a field, so its code tells where it lies:
//!
//! ```text
//! f3 0f 1e fa             endbr64 (in some builds)
//! 48 8b 05 d d d d        mov  StrategyControl(%rip), %rax
//! 8b 40 08                mov  8(%rax), %eax          firstFreeBuffer
//! ```
//!
//! The structure, the same in 14 to 18 (`BufferStrategyControl` in `freelist.c`): spinlock at 0,
//! `nextVictimBuffer` at 4, `firstFreeBuffer` at 8, `lastFreeBuffer` at 12, `completePasses` at 16,
//! `numBufferAllocs` at 20, `bgwprocno` at 24. What is read has to be possible, or it is refused.

use crate::{
    error::{BinaryError, Error, LayoutError},
    memory::Memory,
    server::Server,
};

/// The clock sweep of a running server.
#[derive(Clone, Copy, Debug)]
pub struct ClockSweep {
    memory: Memory,
    control: u64,
    buffers: u32,
}

/// One reading of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SweepState {
    /// The next buffer the hand looks at.
    pub next_victim: u32,
    /// How often the hand went round since the server started. It wraps at 2³².
    pub complete_passes: u32,
    /// Buffers handed out since the background writer last asked, which sets this to 0.
    pub allocations: u32,
    /// Whether buffers that never held a page, or no longer do, are left. They are handed out first.
    pub has_free_buffers: bool,
    /// Buffers of the server.
    pub buffers: u32,
}

impl ClockSweep {
    pub(crate) fn of(server: &Server) -> Result<Self, Error> {
        let memory = server.memory();
        let function = server.binary().address(FUNCTION)?;
        let code: [u8; 16] = memory.bytes(function)?;
        let slot = slot_of(&code).ok_or(BinaryError::UnknownCode { symbol: FUNCTION })?;
        let control = memory.pointer(function.wrapping_add_signed(slot))?;
        let sweep = Self { memory, control, buffers: server.buffer_count()? };
        sweep.read()?;
        Ok(sweep)
    }

    /// Reads it now: one system call.
    ///
    /// # Errors
    ///
    /// The server ended, or what was read cannot be.
    pub fn read(&self) -> Result<SweepState, Error> {
        let bytes: [u8; 28] = self.memory.bytes(self.control)?;
        Ok(state_of(&bytes, self.buffers)?)
    }
}

impl SweepState {
    /// The way of the hand since the server started, in buffers, as long as passes did not wrap.
    ///
    /// The difference of two readings over the difference of allocations is how many buffers are looked
    /// at to find one.
    #[must_use]
    pub fn hand(&self) -> u64 {
        u64::from(self.complete_passes) * u64::from(self.buffers) + u64::from(self.next_victim)
    }
}

const FUNCTION: &str = "have_free_buffer";

/// From the function's address to that of the variable, where the code is as expected.
fn slot_of(code: &[u8; 16]) -> Option<i64> {
    let (skipped, code) = match code.strip_prefix(&[0xf3, 0x0f, 0x1e, 0xfa]) {
        Some(rest) => (4, rest),
        None => (0, &code[..]),
    };
    let (displacement, rest) = code.strip_prefix(&[0x48, 0x8b, 0x05])?.split_first_chunk::<4>()?;
    // The displacement counts from the next instruction.
    rest.starts_with(&[0x8b, 0x40, 0x08])
        .then(|| i64::from(i32::from_le_bytes(*displacement)) + skipped + 7)
}

fn state_of(bytes: &[u8; 28], buffers: u32) -> Result<SweepState, LayoutError> {
    let word = |at: usize| {
        let bytes = bytes[at..at + 4].try_into().expect("four bytes are taken");
        u32::from_ne_bytes(bytes)
    };
    let impossible = |field, found| Err(LayoutError::ClockSweep { field, found, buffers });
    let next_victim = word(4);
    // The hand counts on past the end, and whoever finds it there sets it back, so it may be beyond by
    // as many steps as backends take meanwhile.
    if u64::from(next_victim) >= 2 * u64::from(buffers) {
        return impossible("nextVictimBuffer", i64::from(next_victim));
    }
    let first_free = word(8).cast_signed();
    if first_free < FREENEXT_NOT_IN_LIST || i64::from(first_free) >= i64::from(buffers) {
        return impossible("firstFreeBuffer", i64::from(first_free));
    }
    Ok(SweepState {
        next_victim: next_victim % buffers,
        complete_passes: word(16).wrapping_add(next_victim / buffers),
        allocations: word(20),
        has_free_buffers: first_free >= 0,
        buffers,
    })
}

/// `FREENEXT_END_OF_LIST` is -1; this one, -2, marks a buffer that is in no list.
const FREENEXT_NOT_IN_LIST: i32 = -2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_is_found_with_and_without_a_landing_pad() {
        let plain =
            [0x48, 0x8b, 0x05, 0x10, 0, 0, 0, 0x8b, 0x40, 0x08, 0xf7, 0xd0, 0xc1, 0xe8, 0x1f, 0xc3];
        assert_eq!(slot_of(&plain), Some(0x17));
        let padded = [
            0xf3, 0x0f, 0x1e, 0xfa, 0x48, 0x8b, 0x05, 0xf0, 0xff, 0xff, 0xff, 0x8b, 0x40, 0x08,
            0xf7, 0xd0,
        ];
        assert_eq!(slot_of(&padded), Some(4 + 7 - 16));
    }

    #[test]
    fn other_code_is_not_guessed_at() {
        let mut code =
            [0x48, 0x8b, 0x05, 0x10, 0, 0, 0, 0x8b, 0x40, 0x08, 0xf7, 0xd0, 0xc1, 0xe8, 0x1f, 0xc3];
        code[9] = 0x0c;
        assert_eq!(slot_of(&code), None);
        assert_eq!(slot_of(&[0x90; 16]), None);
    }

    fn control(words: [u32; 7]) -> [u8; 28] {
        let mut bytes = [0; 28];
        for (place, word) in bytes.chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }

    #[test]
    fn a_hand_past_the_end_is_a_pass_more() {
        let state = state_of(&control([0, 105, u32::MAX, 0, 3, 17, 0]), 100).expect("possible");
        assert_eq!((state.next_victim, state.complete_passes, state.hand()), (5, 4, 405));
        assert!(!state.has_free_buffers);
    }

    #[test]
    fn the_impossible_is_refused() {
        assert!(state_of(&control([0, 200, 0, 0, 0, 0, 0]), 100).is_err());
        assert!(state_of(&control([0, 0, 100, 0, 0, 0, 0]), 100).is_err());
    }
}
