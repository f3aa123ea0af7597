//! The five programs, the tables they share, and the event they send.
//!
//! A lock that is open is an entry of a table, by thread:
//!
//! | bytes | of a lock | of the event |
//! |---|---|---|
//! | 0–7 | asked for, ns | asked for, ns |
//! | 8–15 | got, ns; 0 until then | got, ns |
//! | 16–19 | relation | relation |
//! | 20–23 | database | database |
//! | 24–31 | 1 if conditional | 1 if conditional |
//! | 32–39 | the number of the waiter's stack, or -1 | the same |
//! | 40–47 | | let go, ns |
//! | 48–55 | | process id (high half), thread id |

use std::time::Duration;

use super::{ExtensionLock, layout::RelationId};
use crate::{
    bpf::{Assembler, Counters, Hash, Helper, Label, Program, Register, Ring, Size},
    clock::Clock,
    error::{BpfError, Error},
    stacks::{LongStacks, NO_STACK, StackId, take_if_long},
    traced::{Traced, argument},
};

/// What the programs share.
#[derive(Debug)]
pub(super) struct Tables {
    open: Hash,
    counters: Counters,
    pub(super) ring: Ring,
    pub(super) stacks: Option<LongStacks>,
}

/// A backend has one lock open at a time.
const OPEN_MAX: u32 = 1 << 14;
const OPEN_BYTES: u32 = 40;
/// Holds some 65,000 events: what a busy server lets go in a second.
const RING_BYTES: u32 = 4 << 20;

const LOST: u32 = 0;
const UNPAIRED: u32 = 1;

impl Tables {
    /// With stacks of those who waited at least so long.
    pub(super) fn new(stacks_from: Option<Duration>) -> Result<Self, BpfError> {
        Ok(Self {
            open: Hash::new(OPEN_BYTES, OPEN_MAX)?,
            counters: Counters::new(2)?,
            ring: Ring::new(RING_BYTES)?,
            stacks: stacks_from.map(LongStacks::of_at_least).transpose()?,
        })
    }

    /// What was lost, and what had no beginning.
    pub(super) fn losses(&self) -> Result<[u64; 2], BpfError> {
        Ok([self.counters.value(LOST)?, self.counters.value(UNPAIRED)?])
    }
}

pub(super) const EVENT_BYTES: usize = 56;

/// An event, as it was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Event {
    asked_ns: u64,
    got_ns: u64,
    relation: u32,
    database: u32,
    is_conditional: bool,
    stack: Option<StackId>,
    released_ns: u64,
    pid: u32,
}

impl Event {
    pub(super) fn read(bytes: &[u8; EVENT_BYTES]) -> Self {
        let double = |at: usize| {
            u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight bytes are taken"))
        };
        let (low, high) = (|of: u64| of as u32, |of: u64| (of >> 32) as u32);
        Self {
            asked_ns: double(0),
            got_ns: double(8),
            relation: low(double(16)),
            database: high(double(16)),
            is_conditional: double(24) != 0,
            stack: StackId::of_event(double(32)),
            released_ns: double(40),
            pid: high(double(48)),
        }
    }

    pub(super) fn into_lock(self, clock: Clock) -> ExtensionLock {
        let wait_ns = match self.is_conditional {
            true => 0,
            false => self.got_ns.saturating_sub(self.asked_ns),
        };
        ExtensionLock {
            pid: self.pid,
            database: self.database,
            relation: self.relation,
            released_at: clock.wall(self.released_ns),
            wait: Duration::from_nanos(wait_ns),
            hold: Duration::from_nanos(self.released_ns.saturating_sub(self.got_ns)),
            is_conditional: self.is_conditional,
            stack: self.stack,
        }
    }
}

/// Loads the programs: asking, asking conditionally, getting, getting conditionally, letting go.
pub(super) fn load(
    tables: &Tables,
    traced: &Traced<'_>,
    (relation_id, has_tag): (RelationId, bool),
) -> Result<[Program; 5], Error> {
    let relation = |program: &mut Assembler, lost| read_relation(program, relation_id, lost);
    let asked = match has_tag {
        true => ask(tables, traced, 0, read_tag),
        false => ask(tables, traced, 0, relation),
    };
    Ok([
        Program::load("ask", asked)?,
        Program::load("ask_cond", ask(tables, traced, 1, relation))?,
        Program::load("got", got(tables, false))?,
        Program::load("got_cond", got(tables, true))?,
        Program::load("release", release(tables, traced))?,
    ])
}

// Places on the stack, from its end.
const SCRATCH: i16 = -8;
const KEY: i16 = -16;
const ENTRY: i16 = -72;
const GOT: i16 = 8;
const RELATION: i16 = 16;
const HOW: i16 = 24;
const STACK: i16 = 32;
const RELEASED: i16 = 40;
const THREAD: i16 = 48;
/// Two times and the number of a stack, of a lock that was got.
const TIMES: [i16; 2] = [ENTRY, ENTRY + GOT];

/// Puts the thread into the key, and into `R0`.
fn take_key(program: &mut Assembler) {
    program.call(Helper::CurrentPidTgid).store(Size::Double, Register::R10, KEY, Register::R0);
}

/// Reads which relation it is from the relation itself, which the first argument points to.
fn read_relation(program: &mut Assembler, relation_id: RelationId, lost: Label) {
    program
        .load(Register::R3, Size::Double, Register::R6, argument("rdi"))
        .add(Register::R3, relation_id.offset.into())
        .stack_address(Register::R1, ENTRY + RELATION)
        .set(Register::R2, Size::Double.bytes())
        .call(Helper::ReadUser)
        .jump_unless(Register::R0, 0, lost);
}

/// Reads it from the lock's tag, which the first argument points to: database and relation, in this order, and
/// in the 15th byte the kind, which has to be that of extensions. Source: `LOCKTAG` in `lock.h`.
fn read_tag(program: &mut Assembler, lost: Label) {
    const KIND_WORD: i32 = 12;
    /// `LOCKTAG_RELATION_EXTEND` and `DEFAULT_LOCKMETHOD`, the upper half of that word.
    const KIND: i32 = 0x0101;
    for (from, to) in [(0, RELATION + 4), (4, RELATION), (KIND_WORD, RELEASED)] {
        program
            .load(Register::R3, Size::Double, Register::R6, argument("rdi"))
            .add(Register::R3, from)
            .stack_address(Register::R1, ENTRY + to)
            .set(Register::R2, Size::Word.bytes())
            .call(Helper::ReadUser)
            .jump_unless(Register::R0, 0, lost);
    }
    program
        .load(Register::R1, Size::Word, Register::R10, ENTRY + RELEASED)
        .shift_right(Register::R1, 16)
        .jump_unless(Register::R1, KIND, lost);
}

/// Where a lock is asked for.
fn ask(
    tables: &Tables,
    traced: &Traced<'_>,
    how: i32,
    read: impl Fn(&mut Assembler, Label),
) -> Assembler {
    let mut program = Assembler::default();
    let (lost, end) = (program.label(), program.label());
    program.copy(Register::R6, Register::R1);
    traced.filter(&mut program, SCRATCH, end);
    take_key(&mut program);
    program
        .call(Helper::MonotonicNs)
        .store(Size::Double, Register::R10, ENTRY, Register::R0)
        .store_value(Size::Double, Register::R10, ENTRY + GOT, 0)
        .store_value(Size::Double, Register::R10, ENTRY + HOW, how)
        .store_value(Size::Double, Register::R10, ENTRY + STACK, NO_STACK);
    read(&mut program, lost);
    tables.open.update(&mut program, KEY, ENTRY);
    program.jump_if(Register::R0, 0, end).place(lost);
    tables.counters.count(&mut program, LOST, SCRATCH);
    program.place(end).exit();
    program
}

/// Where it was got. If it was asked for conditionally, the lock was had only if it says so.
fn got(tables: &Tables, is_conditional: bool) -> Assembler {
    let mut program = Assembler::default();
    let (not_got, end) = (program.label(), program.label());
    program.copy(Register::R6, Register::R1);
    take_key(&mut program);
    tables.open.look_up(&mut program, KEY);
    program.jump_if(Register::R0, 0, end).copy(Register::R7, Register::R0);
    if is_conditional {
        // A C bool: the lowest byte of the result.
        program
            .load(Register::R1, Size::Double, Register::R6, argument("rax"))
            .shift_left(Register::R1, 56)
            .jump_if(Register::R1, 0, not_got);
    }
    program.call(Helper::MonotonicNs).store(Size::Double, Register::R7, GOT, Register::R0);
    if tables.stacks.is_some() && !is_conditional {
        program
            .store(Size::Double, Register::R10, ENTRY + GOT, Register::R0)
            .load(Register::R1, Size::Double, Register::R7, 0)
            .store(Size::Double, Register::R10, ENTRY, Register::R1);
        take_if_long(tables.stacks.as_ref(), &mut program, Register::R6, TIMES, ENTRY + STACK);
        program.load(Register::R1, Size::Double, Register::R10, ENTRY + STACK).store(
            Size::Double,
            Register::R7,
            STACK,
            Register::R1,
        );
    }
    if is_conditional {
        program.jump(end).place(not_got);
        tables.open.delete(&mut program, KEY);
    }
    program.place(end).exit();
    program
}

/// Where it is let go.
fn release(tables: &Tables, traced: &Traced<'_>) -> Assembler {
    let mut program = Assembler::default();
    let (unpaired, lost, sent, end) =
        (program.label(), program.label(), program.label(), program.label());
    take_key(&mut program);
    tables.open.look_up(&mut program, KEY);
    program.jump_if(Register::R0, 0, unpaired).copy(Register::R7, Register::R0);
    for place in [0, GOT, RELATION, HOW, STACK] {
        program.load(Register::R1, Size::Double, Register::R7, place).store(
            Size::Double,
            Register::R10,
            ENTRY + place,
            Register::R1,
        );
    }
    program
        .load(Register::R1, Size::Double, Register::R10, ENTRY + GOT)
        .jump_if(Register::R1, 0, sent)
        .call(Helper::MonotonicNs)
        .store(Size::Double, Register::R10, ENTRY + RELEASED, Register::R0)
        .load(Register::R1, Size::Double, Register::R10, KEY)
        .store(Size::Double, Register::R10, ENTRY + THREAD, Register::R1);
    tables.ring.send(&mut program, ENTRY, i32::from(THREAD) + Size::Double.bytes());
    program.jump_unless(Register::R0, 0, lost).place(sent);
    tables.open.delete(&mut program, KEY);
    program.jump(end).place(lost);
    tables.counters.count(&mut program, LOST, SCRATCH);
    program.jump(sent).place(unpaired);
    traced.filter(&mut program, SCRATCH, end);
    tables.counters.count(&mut program, UNPAIRED, SCRATCH);
    program.place(end).exit();
    program
}

#[test]
fn an_event_is_read_as_it_was_sent() {
    let mut bytes = Vec::new();
    for number in [1_000_u64, 4_000, 7 | 5 << 32, 0, u64::MAX, 9_000, 77 << 32 | 78] {
        bytes.extend(number.to_ne_bytes());
    }
    let event = Event::read(bytes.first_chunk().expect("all are there"));
    let lock = event.into_lock(Clock::now());
    assert_eq!((lock.relation, lock.database, lock.pid, lock.stack), (7, 5, 77, None));
    assert_eq!((lock.wait.as_nanos(), lock.hold.as_nanos()), (3_000, 5_000));
    let at_once = Event { is_conditional: true, ..event }.into_lock(Clock::now());
    assert_eq!((at_once.wait.as_nanos(), at_once.hold.as_nanos()), (0, 5_000));
}
