//! What a hit costs on this machine, measured on functions of our own.
//!
//! The kernel emulates some instructions when a program is attached to them (`push`, `nop`, `call`, `jmp`);
//! any other is executed out of line under single-stepping, which costs several times as much, in a
//! nested virtual machine ten times. So the first instruction of a function decides what watching it costs.

use std::{arch::naked_asm, fs, path::Path, time::Duration};

use crate::{
    bpf::{Assembler, Link, Point, Points, Program, Side},
    error::BpfError,
    sampling::own_cpu,
};

/// What one hit of a program that does nothing costs the process that makes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HitCost {
    /// At an instruction that the kernel emulates.
    pub emulated: Duration,
    /// At any other.
    pub stepped: Duration,
}

/// Calls in one turn: at 10 us each a millisecond, well within a time slice, so that interrupts and the
/// caches that other processes displaced reach few turns.
const CALLS: u32 = 100;
/// Turns, of which the cheapest counts.
const TURNS: u32 = 50;

impl HitCost {
    /// Measures it: some milliseconds.
    ///
    /// # Errors
    ///
    /// Programs may not be run.
    pub fn measure() -> Result<Self, BpfError> {
        let program = {
            let mut nothing = Assembler::default();
            nothing.exit();
            Program::load("nothing", nothing)?
        };
        Ok(Self {
            emulated: cost(&program, begins_with_push)?,
            stepped: cost(&program, begins_with_xor)?,
        })
    }

    /// What a hit costs at code that begins like this.
    #[must_use]
    pub fn at(self, code: &[u8]) -> Duration {
        if is_emulated(code) { self.emulated } else { self.stepped }
    }
}

/// Whether the kernel emulates the first instruction; see `arch/x86/kernel/uprobes.c`.
pub(crate) fn is_emulated(code: &[u8]) -> bool {
    matches!(
        code,
        // push of any register, nop, call, jmp.
        [0x50..=0x57 | 0x90 | 0xe8 | 0xe9 | 0xeb, ..] | [0x41, 0x50..=0x57, ..]
    )
}

fn cost(program: &Program, function: extern "C" fn()) -> Result<Duration, BpfError> {
    let bare = time_of(function);
    let offset = own_offset(function as usize as u64)
        .ok_or_else(|| BpfError::attach("nothing", std::io::ErrorKind::NotFound.into()))?;
    let points = [Point { offset, semaphore: None }];
    let points = Points { binary: Path::new("/proc/self/exe"), points: &points };
    let link = Link::attach(program, points, Side::Entry)?;
    let watched = time_of(function);
    drop(link);
    Ok(watched.saturating_sub(bare))
}

/// Processor time of one call, in the cheapest of some turns. Elapsed time would hold that of other processes on
/// a busy machine, and make every probe look too expensive to keep.
fn time_of(function: extern "C" fn()) -> Duration {
    let turn = || {
        let begin = own_cpu();
        for _ in 0..CALLS {
            std::hint::black_box(function)();
        }
        own_cpu().saturating_sub(begin) / CALLS
    };
    (0..TURNS).map(|_| turn()).min().unwrap_or_default()
}

/// Where one of our own functions lies in our binary. A line of the map of memory is `start-end
/// permissions offset device inode path`.
pub(crate) fn own_offset(address: u64) -> Option<u64> {
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

/// Threads that take the processors away do not make a call look expensive: a bare call costs some
/// nanoseconds of processor time, however long it is kept waiting for one.
#[test]
fn cost_of_a_call_is_processor_time_on_a_busy_machine() {
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
        let cost = time_of(begins_with_push);
        stop.store(true, Ordering::Relaxed);
        assert!(cost < Duration::from_micros(5), "{cost:?}");
    });
}

#[test]
fn first_instructions_are_told_apart() {
    for emulated in [&[0x55][..], &[0x41, 0x57], &[0x90], &[0xe8, 0, 0, 0, 0]] {
        assert!(is_emulated(emulated));
    }
    for stepped in [&[0x48, 0x83, 0xec, 0x28][..], &[0x31, 0xc0], &[0xf3, 0x0f, 0x1e, 0xfa], &[]] {
        assert!(!is_emulated(stepped));
    }
}
