//! Measures the cost of a uprobe hit on this machine, in functions of this process.
//!
//! The kernel emulates some probed instructions (`push`, `nop`, `call`, `jmp`). All others are
//! executed out of line under single-stepping, which costs several times as much, and ten times as
//! much or more in a nested virtual machine. So the cost of tracing a function depends on its first
//! instruction.

use std::{arch::naked_asm, fs, path::Path, time::Duration};

use crate::{
    bpf::{Assembler, BpfLink, FilePoints, Point, Program, UprobeKind},
    error::BpfError,
    sampling::thread_cpu_time,
};

/// The time that one hit of an empty BPF program costs the traced process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HitCost {
    /// Cost of a hit at an instruction that the kernel emulates.
    pub emulated: Duration,
    /// Cost of a hit at any other instruction, which is single-stepped.
    pub stepped: Duration,
}

/// Number of calls in one round. At 10 µs each, a round takes a millisecond, which is well within a
/// time slice, so that few rounds are disturbed by interrupts or by cold caches after a context
/// switch.
const CALLS_PER_ROUND: u32 = 100;
/// Number of rounds. Only the cheapest one counts.
const ROUNDS: u32 = 50;

impl HitCost {
    /// Measures the cost of both kinds of hits in functions of this process.
    ///
    /// # Errors
    ///
    /// BPF programs cannot be run or attached.
    pub fn measure() -> Result<Self, BpfError> {
        let program = {
            let mut empty = Assembler::default();
            empty.exit();
            Program::load("empty", empty)?
        };
        Ok(Self {
            emulated: measure_hit(&program, begins_with_push)?,
            stepped: measure_hit(&program, begins_with_xor)?,
        })
    }

    /// Returns the cost of a hit at the first instruction of `code`.
    pub fn for_code(self, code: &[u8]) -> Duration {
        if is_emulated(code) { self.emulated } else { self.stepped }
    }
}

/// Whether the first instruction of `code` is a `push`, `nop`, `call` or `jmp`, which the kernel
/// emulates; see `arch/x86/kernel/uprobes.c`.
pub(crate) fn is_emulated(code: &[u8]) -> bool {
    matches!(
        code,
        // push of any register, nop, call, jmp.
        [0x50..=0x57 | 0x90 | 0xe8 | 0xe9 | 0xeb, ..] | [0x41, 0x50..=0x57, ..]
    )
}

fn measure_hit(program: &Program, function: extern "C" fn()) -> Result<Duration, BpfError> {
    let bare = cpu_time_per_call(function);
    let offset = own_file_offset(function as usize as u64)
        .ok_or_else(|| BpfError::attach("empty", std::io::ErrorKind::NotFound.into()))?;
    let points = [Point { offset, semaphore: None }];
    let points = FilePoints { binary: Path::new("/proc/self/exe"), points: &points };
    let link = BpfLink::attach(program, points, UprobeKind::Entry)?;
    let watched = cpu_time_per_call(function);
    drop(link);
    Ok(watched.saturating_sub(bare))
}

/// Returns the processor time of one call, in the cheapest round. Elapsed time would include time
/// given to other processes on a busy machine, and make every probe look too expensive to use.
fn cpu_time_per_call(function: extern "C" fn()) -> Duration {
    let round = || {
        let begin = thread_cpu_time();
        for _ in 0..CALLS_PER_ROUND {
            std::hint::black_box(function)();
        }
        thread_cpu_time().saturating_sub(begin) / CALLS_PER_ROUND
    };
    (0..ROUNDS).map(|_| round()).min().unwrap_or_default()
}

/// Returns the file offset of a function of this process, given its address. A line of
/// `/proc/self/maps` is `start-end permissions offset device inode path`.
pub(crate) fn own_file_offset(address: u64) -> Option<u64> {
    let maps = fs::read_to_string("/proc/self/maps").ok()?;
    maps.lines().find_map(|line| {
        let (range, rest) = line.split_once(' ')?;
        let (start, end) = range.split_once('-')?;
        let hexadecimal = |text: &str| u64::from_str_radix(text, 16).ok();
        let (start, end) = (hexadecimal(start)?, hexadecimal(end)?);
        let offset = hexadecimal(rest.split_ascii_whitespace().nth(1)?)?;
        (start..end).contains(&address).then(|| address - start + offset)
    })
}

#[unsafe(naked)]
extern "C" fn begins_with_push() {
    naked_asm!("push rbp", "pop rbp", "ret")
}

#[unsafe(naked)]
extern "C" fn begins_with_xor() {
    naked_asm!("xor eax, eax", "ret")
}

/// Competing threads do not make a call look expensive: a call without a probe costs a few
/// nanoseconds of processor time, however long it waits for a processor.
#[test]
fn call_cost_ignores_load_on_busy_machine() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let busy = std::thread::available_parallelism().map_or(4, |count| count.get() * 4);
        for _ in 0..busy {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let cost = cpu_time_per_call(begins_with_push);
        stop.store(true, Ordering::Relaxed);
        assert!(cost < Duration::from_micros(5), "{cost:?}");
    });
}

#[test]
fn emulated_first_instructions_are_recognised() {
    for emulated in [&[0x55][..], &[0x41, 0x57], &[0x90], &[0xe8, 0, 0, 0, 0]] {
        assert!(is_emulated(emulated));
    }
    for stepped in [&[0x48, 0x83, 0xec, 0x28][..], &[0x31, 0xc0], &[0xf3, 0x0f, 0x1e, 0xfa], &[]] {
        assert!(!is_emulated(stepped));
    }
}
