//! The two programs of a function, the tables they share, and the event they send.
//!
//! | bytes | of a call that is open | of the event |
//! |---|---|---|
//! | 0–7 | begun, ns | begun, ns |
//! | 8–15 | the stack's end at the entry | ended, ns |
//! | 16–31 | what the first argument points to, or the wait | the same |
//! | 32–39 | | process id (high half), thread id |
//! | 40–47 | | which function |
//! | 48–55 | | the number of the stack, or -1 |

use std::time::Duration;

use super::{
    Call, LockTag, Subject,
    functions::{About, Function, Place},
};
use crate::{
    bpf::{Assembler, Counters, Hash, Helper, Label, Register, Ring, Size},
    clock::Clock,
    error::BpfError,
    stacks::{LongStacks, StackId, take_if_long},
    traced::{Traced, argument},
    waits::Names,
};

/// What the programs of all functions share.
#[derive(Debug)]
pub(super) struct Tables {
    open: Hash,
    lost: Counters,
    pub(super) ring: Ring,
    pub(super) stacks: Option<LongStacks>,
}

const OPEN_BYTES: u32 = 32;
/// Of each backend a call for each function.
const OPEN_MAX: u32 = 1 << 16;
/// Holds some 130,000 events.
const RING_BYTES: u32 = 8 << 20;

impl Tables {
    /// With stacks of what takes at least so long.
    pub(super) fn new(stacks_from: Option<Duration>) -> Result<Self, BpfError> {
        Ok(Self {
            open: Hash::new(OPEN_BYTES, OPEN_MAX)?,
            lost: Counters::new(1)?,
            ring: Ring::new(RING_BYTES)?,
            stacks: stacks_from.map(LongStacks::of_at_least).transpose()?,
        })
    }

    pub(super) fn lost(&self) -> Result<u64, BpfError> {
        self.lost.value(0)
    }
}

pub(super) const EVENT_BYTES: usize = 56;

/// An event, as it was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Event {
    begun_ns: u64,
    ended_ns: u64,
    words: [u32; 4],
    pid: u32,
    pub(super) function: usize,
    stack: Option<StackId>,
}

impl Event {
    pub(super) fn read(bytes: &[u8; EVENT_BYTES]) -> Self {
        let double = |at: usize| {
            u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight bytes are taken"))
        };
        let word = |at: usize| {
            u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("four bytes are taken"))
        };
        Self {
            begun_ns: double(0),
            ended_ns: double(8),
            words: [word(16), word(20), word(24), word(28)],
            pid: (double(32) >> 32) as u32,
            function: usize::try_from(double(40)).unwrap_or(usize::MAX),
            stack: StackId::of_event(double(48)),
        }
    }

    pub(super) fn into_call(self, function: &Function, names: &Names, clock: Clock) -> Call {
        let [first, second, third, _] = self.words;
        Call {
            pid: self.pid,
            operation: function.operation,
            subject: match function.about {
                About::Nothing => Subject::None,
                About::Lock => Subject::Lock(LockTag::read(self.words)),
                About::Wait => Subject::Wait(names.decode(first)),
                About::File | About::FileInSecond => {
                    Subject::File { tablespace: first, database: second, filenode: third }
                }
            },
            ended_at: clock.wall(self.ended_ns),
            duration: Duration::from_nanos(self.ended_ns.saturating_sub(self.begun_ns)),
            stack: self.stack,
        }
    }
}

// Places on the stack, from its end.
const SCRATCH: i16 = -8;
/// By thread and function: the thread's id in the high half.
const KEY: i16 = -16;
const ENTRY: i16 = -72;
const STACK: i16 = 8;
const ENDED: i16 = 8;
const WORDS: [i16; 2] = [16, 24];
const THREAD: i16 = 32;
const FUNCTION: i16 = 40;
const STACK_NUMBER: i16 = 48;

/// Makes the key; the thread and its process are in `R8` then.
fn take_key(program: &mut Assembler, function: usize) {
    program
        .call(Helper::CurrentPidTgid)
        .copy(Register::R8, Register::R0)
        .shift_left(Register::R0, 32)
        // There are less than ten places.
        .add(Register::R0, i32::try_from(function).unwrap_or(i32::MAX))
        .store(Size::Double, Register::R10, KEY, Register::R0);
}

/// Reads what `R3` points to.
fn read_into(program: &mut Assembler, at: i16, bytes: i32, lost: Label) {
    program
        .stack_address(Register::R1, at)
        .set(Register::R2, bytes)
        .call(Helper::ReadUser)
        .jump_unless(Register::R0, 0, lost);
}

/// `PG_WAIT_LWLOCK` in the highest of four bytes.
const LWLOCK_CLASS: i32 = 1;

/// At the beginning. `wait_variable` is where the process has the pointer to what it waits for, if that
/// is what the call is about: then only waits for lightweight locks count.
pub(super) fn begin(
    tables: &Tables,
    traced: &Traced<'_>,
    number: usize,
    function: &Function,
    wait_variable: Option<u64>,
) -> Assembler {
    let mut program = Assembler::default();
    let (fresh, lost, end) = (program.label(), program.label(), program.label());
    program.copy(Register::R6, Register::R1);
    if let Some(register) = function.unless {
        // A C bool: the lowest byte.
        program
            .load(Register::R1, Size::Double, Register::R6, argument(register))
            .shift_left(Register::R1, 56)
            .jump_unless(Register::R1, 0, end);
    }
    traced.filter(&mut program, SCRATCH, end);
    take_key(&mut program, number);
    program.load(Register::R7, Size::Double, Register::R6, argument("rsp"));
    tables.open.look_up(&mut program, KEY);
    program
        .jump_if(Register::R0, 0, fresh)
        // Deeper in the stack than the open one: a part of it.
        .load(Register::R1, Size::Double, Register::R0, STACK)
        .jump_if_below(Register::R7, Register::R1, end)
        .place(fresh)
        .store(Size::Double, Register::R10, ENTRY + STACK, Register::R7);
    for place in WORDS {
        program.store_value(Size::Double, Register::R10, ENTRY + place, 0);
    }
    let pointer = match function.about {
        About::Nothing | About::Wait => None,
        About::Lock | About::File => Some("rdi"),
        About::FileInSecond => Some("rsi"),
    };
    if let Some(pointer) = pointer {
        program.load(Register::R3, Size::Double, Register::R6, argument(pointer));
        read_into(&mut program, ENTRY + WORDS[0], 2 * Size::Double.bytes(), lost);
    }
    if let Some(variable) = wait_variable {
        program.set_wide(Register::R3, variable);
        read_into(&mut program, ENTRY + WORDS[0], Size::Double.bytes(), lost);
        program.load(Register::R3, Size::Double, Register::R10, ENTRY + WORDS[0]);
        program.store_value(Size::Double, Register::R10, ENTRY + WORDS[0], 0);
        read_into(&mut program, ENTRY + WORDS[0], Size::Word.bytes(), lost);
        program
            .load(Register::R1, Size::Word, Register::R10, ENTRY + WORDS[0])
            .shift_right(Register::R1, 24)
            .jump_unless(Register::R1, LWLOCK_CLASS, end);
    }
    program.call(Helper::MonotonicNs).store(Size::Double, Register::R10, ENTRY, Register::R0);
    tables.open.update(&mut program, KEY, ENTRY);
    program.jump_if(Register::R0, 0, end).place(lost);
    tables.lost.count(&mut program, 0, SCRATCH);
    program.place(end).exit();
    program
}

/// At the end. A return has taken the address off that was on the stack's end at the entry; from one marker
/// to the other the stack is the same.
pub(super) fn end(tables: &Tables, number: usize, place: Place) -> Assembler {
    let taken_off = match place {
        Place::Call(_) => Size::Double.bytes(),
        Place::Between(..) => 0,
    };
    let mut program = Assembler::default();
    let end = program.label();
    program.copy(Register::R6, Register::R1);
    take_key(&mut program, number);
    tables.open.look_up(&mut program, KEY);
    program
        .jump_if(Register::R0, 0, end)
        .copy(Register::R9, Register::R0)
        .load(Register::R1, Size::Double, Register::R9, STACK)
        .add(Register::R1, taken_off)
        .load(Register::R7, Size::Double, Register::R6, argument("rsp"))
        .jump_unless_equal(Register::R7, Register::R1, end);
    for place in [0, WORDS[0], WORDS[1]] {
        program.load(Register::R1, Size::Double, Register::R9, place).store(
            Size::Double,
            Register::R10,
            ENTRY + place,
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
    take_if_long(tables.stacks.as_ref(), &mut program, Register::R6, times, ENTRY + STACK_NUMBER);
    tables.ring.send(&mut program, ENTRY, i32::from(STACK_NUMBER) + Size::Double.bytes());
    program.jump_if(Register::R0, 0, end);
    tables.lost.count(&mut program, 0, SCRATCH);
    program.place(end).exit();
    program
}

#[test]
fn an_event_is_read_as_it_was_sent() {
    use super::functions::function;

    let read = function("", "read", About::File);
    let mut bytes = Vec::new();
    for number in [1_000_u64, 9_000, 1663 | 5 << 32, 7, 77 << 32 | 78, 2, u64::MAX] {
        bytes.extend(number.to_ne_bytes());
    }
    let event = Event::read(bytes.first_chunk().expect("all are there"));
    assert_eq!(event.function, 2);
    let names = Names::of(15).expect("a major that is known");
    let call = event.into_call(&read, &names, Clock::now());
    assert_eq!((call.pid, call.operation, call.duration.as_nanos()), (77, "read", 8_000));
    let file = Subject::File { tablespace: 1663, database: 5, filenode: 7 };
    assert_eq!((call.subject, call.stack), (file, None));
    let wait = Event { words: [0x0100_0008, 0, 0, 0], ..event };
    let lwlock = function("", "lwlock", About::Wait);
    let call = wait.into_call(&lwlock, &names, Clock::now());
    assert_eq!(call.subject, Subject::Wait(names.decode(0x0100_0008)));
}
