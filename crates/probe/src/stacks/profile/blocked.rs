//! The stack of a process that sleeps in a system call, from `/proc` and its memory, for processes
//! that were asleep before recording started.
//!
//! The kernel shows position and stack pointer of a sleeping process, but not its frame pointer.
//! Frame pointers form a chain on the stack: each frame begins with the address of the next one,
//! and above it is a return address. The first address above the stack pointer from which such a
//! chain leads to the stack's end is the innermost frame. Without frame pointers there is none.

use std::fs;

use howdah_inspect::{ProcessMemory, ends_with_call};

use super::perf_event::STACK_MAX;

/// Number of bytes above the stack pointer that are searched for the innermost frame.
const SEARCHED_BYTES: usize = 4096;
/// Frames that a chain has at least: a shorter one may be accidental.
const FRAMES_MIN: usize = 3;
/// Largest distance between two frames, in bytes.
const FRAME_BYTES_MAX: u64 = 1 << 20;

/// Returns the code addresses of a process that sleeps in a system call, innermost first; `None` if
/// it does not sleep or cannot be inspected.
pub(super) fn stack_of_sleeping(pid: u32) -> Option<Vec<u64>> {
    // `running`, or the system call, its arguments, stack pointer and position.
    let text = fs::read_to_string(format!("/proc/{pid}/syscall")).ok()?;
    let mut fields = text.split_ascii_whitespace().rev();
    let mut number =
        || u64::from_str_radix(fields.next()?.strip_prefix("0x")?, 16).ok().filter(|n| *n != 0);
    let (position, stack_pointer) = (number()?, number()?);
    let memory = ProcessMemory::for_pid(pid);
    let mut addresses = vec![position];
    addresses.extend(frames_above(memory, stack_pointer));
    Some(addresses)
}

/// Returns the return addresses of the first complete chain of frames.
fn frames_above(memory: ProcessMemory, stack_pointer: u64) -> Vec<u64> {
    let mut words = vec![0; SEARCHED_BYTES];
    if memory.read(stack_pointer, &mut words).is_err() {
        return Vec::new();
    }
    let addresses = (stack_pointer..).step_by(8);
    let candidates = addresses.zip(words.as_chunks::<8>().0);
    let mut frames =
        candidates.filter(|(address, word)| is_next_frame(*address, u64::from_ne_bytes(**word)));
    frames
        .find_map(|(address, _)| {
            let chain = chain_from(memory, address);
            (chain.len() >= FRAMES_MIN).then_some(chain)
        })
        .unwrap_or_default()
}

fn is_next_frame(frame: u64, next: u64) -> bool {
    next.is_multiple_of(8) && next > frame && next - frame <= FRAME_BYTES_MAX
}

/// Returns the return addresses of the frames from `frame` on.
fn chain_from(memory: ProcessMemory, mut frame: u64) -> Vec<u64> {
    let mut chain = Vec::new();
    while chain.len() < usize::from(STACK_MAX) {
        let Ok(words) = memory.bytes::<16>(frame) else { return chain };
        let [next, back] = [0, 8].map(|at| {
            let word = words[at..].first_chunk().copied().unwrap_or_default();
            u64::from_ne_bytes(word)
        });
        let code = memory.bytes::<8>(back.wrapping_sub(8));
        if !code.is_ok_and(|code| ends_with_call(&code)) {
            return chain;
        }
        chain.push(back);
        if !is_next_frame(frame, next) {
            return chain;
        }
        frame = next;
    }
    chain
}

#[test]
fn missing_process_has_no_stack() {
    assert_eq!(stack_of_sleeping(1 << 22), None);
}
