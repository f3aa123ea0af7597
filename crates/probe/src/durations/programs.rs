//! The two BPF programs of a function, the maps they share, and the event they send.
//!
//! | bytes | open call | event |
//! |---|---|---|
//! | 0–7 | start, ns | start, ns |
//! | 8–15 | stack pointer at the entry | end, ns |
//! | 16–39 | what the argument points to, the wait event, or three arguments | the same |
//! | 40–47 | | process id (high half), thread id |
//! | 48–55 | | index of the function |
//! | 56–63 | | stack id, or -1 |

use std::{iter, time::Duration};

use super::{
    Call, CallSubject, LockTag,
    callers::{CallerArgs, Callers},
    functions::{SubjectSource, TracedFunction, TracedSpan},
};
use crate::{
    bpf::{Assembler, CounterMap, Helper, JumpLabel, LruHashMap, Register, RingBuffer, Size},
    clock::ClockOffset,
    error::BpfError,
    stacks::{SlowCallStacks, StackId, capture_if_slow},
    traced_server::{TracedServer, pt_regs_offset},
    waits::WaitEventNames,
};

/// The maps shared by the programs of all functions.
#[derive(Debug)]
pub(super) struct CallMaps {
    open: LruHashMap,
    lost: CounterMap,
    pub(super) ring: RingBuffer,
    pub(super) stacks: Option<SlowCallStacks>,
}

const OPEN_BYTES: u32 = 40;
/// Maximum number of open calls. There is at most one per backend and function.
const OPEN_MAX: u32 = 1 << 16;
/// Size of the ring, enough for some 110,000 events.
const RING_BYTES: u32 = 8 << 20;

impl CallMaps {
    /// Creates the maps. Calls that take at least `stacks_from` have their stacks collected.
    pub(super) fn new(stacks_from: Option<Duration>) -> Result<Self, BpfError> {
        Ok(Self {
            open: LruHashMap::new(OPEN_BYTES, OPEN_MAX)?,
            lost: CounterMap::new(1)?,
            ring: RingBuffer::new(RING_BYTES)?,
            stacks: stacks_from.map(SlowCallStacks::with_threshold).transpose()?,
        })
    }

    pub(super) fn lost_events(&self) -> Result<u64, BpfError> {
        self.lost.value(0)
    }
}

pub(super) const EVENT_BYTES: usize = 64;

/// An event as decoded from the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CallEvent {
    started_ns: u64,
    ended_ns: u64,
    subject: [u64; 3],
    pid: u32,
    pub(super) function: usize,
    stack: Option<StackId>,
}

impl CallEvent {
    pub(super) fn read(bytes: &[u8; EVENT_BYTES]) -> Self {
        let double = |at: usize| {
            u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("slice has eight bytes"))
        };
        Self {
            started_ns: double(0),
            ended_ns: double(8),
            subject: [double(16), double(24), double(32)],
            pid: (double(40) >> 32) as u32,
            function: usize::try_from(double(48)).unwrap_or(usize::MAX),
            stack: StackId::from_event(double(56)),
        }
    }

    pub(super) fn into_call(
        self,
        function: &TracedFunction,
        names: &WaitEventNames,
        callers: &mut Callers,
        clock: ClockOffset,
    ) -> Call {
        let [one, two, three] = self.subject;
        let words = [one, one >> 32, two, two >> 32].map(|both| both as u32);
        let [first, second, third, _] = words;
        Call {
            pid: self.pid,
            operation: function.operation,
            subject: match function.subject {
                SubjectSource::Nothing => CallSubject::None,
                SubjectSource::Lock => CallSubject::Lock(LockTag::read(words)),
                SubjectSource::Wait => CallSubject::Wait(names.decode(first)),
                // The line is an `int` in a 64-bit register, whose upper half is undefined.
                SubjectSource::Caller => callers
                    .resolve(self.pid, CallerArgs { file: one, line: two as u32, function: three })
                    .map_or(CallSubject::None, CallSubject::Caller),
                SubjectSource::File | SubjectSource::FileInSecondArgument => {
                    CallSubject::File { tablespace: first, database: second, filenode: third }
                }
            },
            ended_at: clock.to_wall_clock(self.ended_ns),
            duration: Duration::from_nanos(self.ended_ns.saturating_sub(self.started_ns)),
            stack: self.stack,
        }
    }
}

// Offsets on the stack, from its top.
const SCRATCH: i16 = -8;
/// The key: thread id in the high half, index of the function in the low half.
const KEY: i16 = -16;
const ENTRY: i16 = -80;
const STACK: i16 = 8;
const ENDED: i16 = 8;
const SUBJECT: [i16; 3] = [16, 24, 32];
const THREAD: i16 = 40;
const FUNCTION: i16 = 48;
const STACK_NUMBER: i16 = 56;

/// Emits code that stores the key; process and thread id are then in `R8`.
fn store_key(program: &mut Assembler, function: usize) {
    program
        .call(Helper::CurrentPidTgid)
        .copy(Register::R8, Register::R0)
        .shift_left(Register::R0, 32)
        // There are fewer than ten functions.
        .add(Register::R0, i32::try_from(function).unwrap_or(i32::MAX))
        .store(Size::Double, Register::R10, KEY, Register::R0);
}

/// Emits code that copies `bytes` bytes of user memory, at the address in `R3`, to offset `at` on
/// the stack, and jumps to `lost` if that fails.
fn read_user(program: &mut Assembler, at: i16, bytes: i32, lost: JumpLabel) {
    program
        .stack_address(Register::R1, at)
        .set(Register::R2, bytes)
        .call(Helper::ReadUser)
        .jump_unless(Register::R0, 0, lost);
}

/// `PG_WAIT_LWLOCK`, the highest of the four bytes.
const LWLOCK_CLASS: i32 = 1;

/// Builds the program at the start of a call. `wait_variable` is the address of the process's
/// pointer to its wait event, if that is the subject of the call: then only waits for lightweight
/// locks count.
pub(super) fn start_program(
    tables: &CallMaps,
    traced: &TracedServer<'_>,
    number: usize,
    function: &TracedFunction,
    wait_variable: Option<u64>,
) -> Assembler {
    let mut program = Assembler::default();
    let (fresh, lost, end) = (program.label(), program.label(), program.label());
    program.copy(Register::R6, Register::R1);
    if let Some(register) = function.unless {
        // A C bool: the lowest byte.
        program
            .load(Register::R1, Size::Double, Register::R6, pt_regs_offset(register))
            .shift_left(Register::R1, 56)
            .jump_unless(Register::R1, 0, end);
    }
    traced.filter(&mut program, SCRATCH, end);
    store_key(&mut program, number);
    program.load(Register::R7, Size::Double, Register::R6, pt_regs_offset("rsp"));
    tables.open.lookup(&mut program, KEY);
    program
        .jump_if(Register::R0, 0, fresh)
        // A deeper stack means that this call is a part of the open one.
        .load(Register::R1, Size::Double, Register::R0, STACK)
        .jump_if_below(Register::R7, Register::R1, end)
        .bind(fresh)
        .store(Size::Double, Register::R10, ENTRY + STACK, Register::R7);
    for offset in SUBJECT {
        program.store_value(Size::Double, Register::R10, ENTRY + offset, 0);
    }
    let pointer = match function.subject {
        SubjectSource::Nothing | SubjectSource::Wait | SubjectSource::Caller => None,
        SubjectSource::Lock | SubjectSource::File => Some("rdi"),
        SubjectSource::FileInSecondArgument => Some("rsi"),
    };
    if let Some(pointer) = pointer {
        program.load(Register::R3, Size::Double, Register::R6, pt_regs_offset(pointer));
        read_user(&mut program, ENTRY + SUBJECT[0], 2 * Size::Double.bytes(), lost);
    }
    if function.subject == SubjectSource::Caller {
        for (offset, register) in SUBJECT.into_iter().zip(["rsi", "rdx", "rcx"]) {
            program.load(Register::R1, Size::Double, Register::R6, pt_regs_offset(register)).store(
                Size::Double,
                Register::R10,
                ENTRY + offset,
                Register::R1,
            );
        }
    }
    if let Some(variable) = wait_variable {
        program.set_wide(Register::R3, variable);
        read_user(&mut program, ENTRY + SUBJECT[0], Size::Double.bytes(), lost);
        program.load(Register::R3, Size::Double, Register::R10, ENTRY + SUBJECT[0]);
        program.store_value(Size::Double, Register::R10, ENTRY + SUBJECT[0], 0);
        read_user(&mut program, ENTRY + SUBJECT[0], Size::Word.bytes(), lost);
        program
            .load(Register::R1, Size::Word, Register::R10, ENTRY + SUBJECT[0])
            .shift_right(Register::R1, 24)
            .jump_unless(Register::R1, LWLOCK_CLASS, end);
    }
    program.call(Helper::MonotonicNs).store(Size::Double, Register::R10, ENTRY, Register::R0);
    tables.open.update(&mut program, KEY, ENTRY);
    program.jump_if(Register::R0, 0, end).bind(lost);
    tables.lost.increment(&mut program, 0, SCRATCH);
    program.bind(end).exit();
    program
}

/// Builds the program at the end of a call. A return has popped the return address that was on the
/// stack at the entry; between two USDT probes of a function the stack pointer is the same.
pub(super) fn end_program(tables: &CallMaps, number: usize, span: TracedSpan) -> Assembler {
    let popped_bytes = match span {
        TracedSpan::Call(_) => Size::Double.bytes(),
        TracedSpan::Between(..) => 0,
    };
    let mut program = Assembler::default();
    let end = program.label();
    program.copy(Register::R6, Register::R1);
    store_key(&mut program, number);
    tables.open.lookup(&mut program, KEY);
    program
        .jump_if(Register::R0, 0, end)
        .copy(Register::R9, Register::R0)
        .load(Register::R1, Size::Double, Register::R9, STACK)
        .add(Register::R1, popped_bytes)
        .load(Register::R7, Size::Double, Register::R6, pt_regs_offset("rsp"))
        .jump_unless_equal(Register::R7, Register::R1, end);
    for offset in iter::once(0).chain(SUBJECT) {
        program.load(Register::R1, Size::Double, Register::R9, offset).store(
            Size::Double,
            Register::R10,
            ENTRY + offset,
            Register::R1,
        );
    }
    program
        .call(Helper::MonotonicNs)
        .store(Size::Double, Register::R10, ENTRY + ENDED, Register::R0)
        .store(Size::Double, Register::R10, ENTRY + THREAD, Register::R8)
        .set_wide(Register::R1, number as u64)
        .store(Size::Double, Register::R10, ENTRY + FUNCTION, Register::R1);
    tables.open.delete(&mut program, KEY);
    let times = [ENTRY, ENTRY + ENDED];
    capture_if_slow(
        tables.stacks.as_ref(),
        &mut program,
        Register::R6,
        times,
        ENTRY + STACK_NUMBER,
    );
    tables.ring.send(&mut program, ENTRY, i32::from(STACK_NUMBER) + Size::Double.bytes());
    program.jump_if(Register::R0, 0, end);
    tables.lost.increment(&mut program, 0, SCRATCH);
    program.bind(end).exit();
    program
}

#[test]
fn call_event_is_decoded_as_sent() {
    use howdah_inspect::ProcessMemory;

    use super::functions::traced_call;

    let mut bytes = Vec::new();
    for number in [1_000_u64, 9_000, 1663 | 5 << 32, 7, 0, 77 << 32 | 78, 2, u64::MAX] {
        bytes.extend(number.to_ne_bytes());
    }
    let event = CallEvent::read(bytes.first_chunk().expect("all fields are present"));
    assert_eq!(event.function, 2);
    let names = WaitEventNames::for_major(15).expect("15 is supported");
    let mut callers = Callers::new(ProcessMemory::for_pid(std::process::id()));
    let mut call = |event: CallEvent, operation, subject| {
        let function = traced_call("", operation, subject);
        event.into_call(&function, &names, &mut callers, ClockOffset::measure())
    };
    let read = call(event, "read", SubjectSource::File);
    assert_eq!((read.pid, read.operation, read.duration.as_nanos()), (77, "read", 8_000));
    let file = CallSubject::File { tablespace: 1663, database: 5, filenode: 7 };
    assert_eq!((read.subject, read.stack), (file, None));
    let wait = CallEvent { subject: [0x0100_0008, 0, 0], ..event };
    let wait = call(wait, "lwlock", SubjectSource::Wait);
    assert_eq!(wait.subject, CallSubject::Wait(names.decode(0x0100_0008)));
    let [file, function] = [c"src/a.c", c"f"].map(|text| text.as_ptr() as u64);
    let spin = CallEvent { subject: [file, 3, function], ..event };
    let spin = call(spin, "spin", SubjectSource::Caller);
    assert!(matches!(spin.subject, CallSubject::Caller(_)), "{spin:?}");
}
