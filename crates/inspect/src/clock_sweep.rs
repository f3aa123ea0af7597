//! The clock sweep: the position of its hand, completed passes, buffer allocations, and whether
//! free buffers are left.
//!
//! `StrategyControl`, which holds this state, is a static variable without a symbol. The exported
//! `have_free_buffer()` only loads it and tests a field, so its code reveals the address:
//!
//! ```text
//! f3 0f 1e fa             endbr64 (in some builds)
//! 48 8b 05 d d d d        mov  StrategyControl(%rip), %rax
//! 8b 40 08                mov  8(%rax), %eax          firstFreeBuffer
//! ```
//!
//! The structure, identical in 14 to 18 (`BufferStrategyControl` in `freelist.c`): spinlock at 0,
//! `nextVictimBuffer` at 4, `firstFreeBuffer` at 8, `lastFreeBuffer` at 12, `completePasses` at 16,
//! `numBufferAllocs` at 20, `bgwprocno` at 24. Impossible values are rejected.

use crate::{
    error::{BinaryError, InspectError, LayoutError},
    memory::ProcessMemory,
    server::RunningServer,
};

/// The clock sweep of a running server.
#[derive(Clone, Copy, Debug)]
pub struct ClockSweep {
    memory: ProcessMemory,
    control: u64,
    buffers: u32,
}

/// The state of the clock sweep at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SweepState {
    /// Index of the next buffer that the hand examines, from 0.
    pub next_victim: u32,
    /// Completed passes since the server started. Wraps at 2³².
    pub complete_passes: u32,
    /// Buffers allocated since the background writer last read this counter, which resets it to 0.
    pub allocations: u32,
    /// Whether the free list is not empty. Its buffers never held a page or were invalidated; they
    /// are allocated before others.
    pub has_free_buffers: bool,
    /// Number of buffers of the server.
    pub buffers: u32,
}

impl RunningServer {
    /// Locates the state of the clock sweep of this server.
    ///
    /// # Errors
    ///
    /// The state cannot be located in this binary, cannot be read, or is impossible.
    pub fn clock_sweep(&self) -> Result<ClockSweep, InspectError> {
        ClockSweep::for_server(self)
    }
}

impl ClockSweep {
    pub(crate) fn for_server(server: &RunningServer) -> Result<Self, InspectError> {
        let memory = server.memory();
        let function = server.binary().address(FUNCTION)?;
        let code: [u8; 16] = memory.bytes(function)?;
        let slot = control_offset(&code).ok_or(BinaryError::UnknownCode { symbol: FUNCTION })?;
        let control = memory.pointer(function.wrapping_add_signed(slot))?;
        let sweep = Self { memory, control, buffers: server.buffer_count()? };
        sweep.read()?;
        Ok(sweep)
    }

    /// Reads the current state with one system call.
    ///
    /// # Errors
    ///
    /// The server stopped, or the values read are impossible.
    pub fn read(&self) -> Result<SweepState, InspectError> {
        let bytes: [u8; 28] = self.memory.bytes(self.control)?;
        Ok(parse_state(&bytes, self.buffers)?)
    }
}

impl SweepState {
    /// Returns the number of buffers that the hand has passed since the server started, as long as
    /// the passes have not wrapped.
    ///
    /// The difference between two readings divided by the difference in allocations is the number
    /// of buffers examined per allocation.
    pub fn hand(&self) -> u64 {
        u64::from(self.complete_passes) * u64::from(self.buffers) + u64::from(self.next_victim)
    }
}

const FUNCTION: &str = "have_free_buffer";

/// Returns the offset of the variable from the function's address, if the code is as expected.
fn control_offset(code: &[u8; 16]) -> Option<i64> {
    let (skipped, code) = match code.strip_prefix(&[0xf3, 0x0f, 0x1e, 0xfa]) {
        Some(rest) => (4, rest),
        None => (0, &code[..]),
    };
    let (displacement, rest) = code.strip_prefix(&[0x48, 0x8b, 0x05])?.split_first_chunk::<4>()?;
    // The displacement is relative to the next instruction.
    rest.starts_with(&[0x8b, 0x40, 0x08])
        .then(|| i64::from(i32::from_le_bytes(*displacement)) + skipped + 7)
}

fn parse_state(bytes: &[u8; 28], buffers: u32) -> Result<SweepState, LayoutError> {
    let word = |at: usize| {
        let bytes = bytes[at..at + 4].try_into().expect("slice has four bytes");
        u32::from_ne_bytes(bytes)
    };
    let impossible = |field, found| Err(LayoutError::ClockSweep { field, found, buffers });
    let next_victim = word(4);
    // The hand counts past the end until a backend wraps it, so it may be ahead by a few steps.
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

/// The mark of a buffer that is in no list; `FREENEXT_END_OF_LIST` is -1.
const FREENEXT_NOT_IN_LIST: i32 = -2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_variable_is_found_with_or_without_endbr64() {
        let plain =
            [0x48, 0x8b, 0x05, 0x10, 0, 0, 0, 0x8b, 0x40, 0x08, 0xf7, 0xd0, 0xc1, 0xe8, 0x1f, 0xc3];
        assert_eq!(control_offset(&plain), Some(0x17));
        let padded = [
            0xf3, 0x0f, 0x1e, 0xfa, 0x48, 0x8b, 0x05, 0xf0, 0xff, 0xff, 0xff, 0x8b, 0x40, 0x08,
            0xf7, 0xd0,
        ];
        assert_eq!(control_offset(&padded), Some(4 + 7 - 16));
    }

    #[test]
    fn unknown_code_yields_no_offset() {
        let mut code =
            [0x48, 0x8b, 0x05, 0x10, 0, 0, 0, 0x8b, 0x40, 0x08, 0xf7, 0xd0, 0xc1, 0xe8, 0x1f, 0xc3];
        code[9] = 0x0c;
        assert_eq!(control_offset(&code), None);
        assert_eq!(control_offset(&[0x90; 16]), None);
    }

    fn control(words: [u32; 7]) -> [u8; 28] {
        let mut bytes = [0; 28];
        for (place, word) in bytes.chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }

    #[test]
    fn hand_past_the_end_counts_as_another_pass() {
        let state = parse_state(&control([0, 105, u32::MAX, 0, 3, 17, 0]), 100).expect("possible");
        assert_eq!((state.next_victim, state.complete_passes, state.hand()), (5, 4, 405));
        assert!(!state.has_free_buffers);
    }

    #[test]
    fn impossible_state_is_rejected() {
        assert!(parse_state(&control([0, 200, 0, 0, 0, 0, 0]), 100).is_err());
        assert!(parse_state(&control([0, 0, 100, 0, 0, 0, 0]), 100).is_err());
    }
}
