//! The five BPF programs, the maps they share, and the event they send.
//!
//! A thread that has requested an extension lock and not yet released it has an entry in a map. An
//! entry has [`LEVELS`] levels, because a lock may be taken inside another: a free space map grows
//! while its table does. The last occupied level is the innermost lock. On its release, the
//! programs send an event and vacate the level. The layouts are:
//!
//! | bytes | level | event |
//! |---|---|---|
//! | 0–7 | requested, ns | requested, ns |
//! | 8–15 | acquired, ns; 0 until then | acquired, ns |
//! | 16–19 | relation | relation |
//! | 20–23 | database | database |
//! | 24–31 | 1 if conditional | 1 if conditional |
//! | 32–39 | stack id of the waiter, or -1 | the same |
//! | 40–47 | stack pointer at the request; 0 if vacant | released, ns |
//! | 48–55 | | process id (high half), thread id |
//!
//! No release is seen of a lock that an error releases. The stack pointer reveals its level: a lock
//! inside another is requested by a function that runs inside the function that holds the other, so
//! its stack pointer is lower. A level whose stack pointer is not above that of a new request is
//! therefore obsolete, and is replaced together with the levels inside it.

use std::time::Duration;

use super::{ExtensionLock, layout::RelationIdOffset};
use crate::{
    bpf::{
        Assembler, CounterMap, Helper, JumpLabel, LruHashMap, Program, Register, RingBuffer, Size,
    },
    clock::ClockOffset,
    error::{BpfError, ProbeError},
    stacks::{NO_STACK, SlowCallStacks, StackId, capture_if_slow},
    traced_server::{TracedServer, pt_regs_offset},
};

/// The maps shared by the programs.
#[derive(Debug)]
pub(super) struct ExtensionMaps {
    open: LruHashMap,
    counters: CounterMap,
    pub(super) ring: RingBuffer,
    pub(super) stacks: Option<SlowCallStacks>,
}

/// Maximum number of threads with open locks.
const OPEN_MAX: u32 = 1 << 14;
/// Maximum number of locks that a thread holds at once. PostgreSQL 14 to 18 need two.
const LEVELS: i16 = 4;
const LEVEL_BYTES: i16 = 48;
const OPEN_BYTES: i16 = LEVELS * LEVEL_BYTES;
/// Size of the ring, enough for some 65,000 events: the locks of a busy server in one second.
const RING_BYTES: u32 = 4 << 20;

const LOST: u32 = 0;
const NO_START: u32 = 1;

impl ExtensionMaps {
    /// Creates the maps. Backends that waited at least `stacks_from` have their stacks collected.
    pub(super) fn new(stacks_from: Option<Duration>) -> Result<Self, BpfError> {
        Ok(Self {
            open: LruHashMap::new(OPEN_BYTES.unsigned_abs().into(), OPEN_MAX)?,
            counters: CounterMap::new(2)?,
            ring: RingBuffer::new(RING_BYTES)?,
            stacks: stacks_from.map(SlowCallStacks::with_threshold).transpose()?,
        })
    }

    /// Returns the number of lost locks, and of locks without a start.
    pub(super) fn lost_events(&self) -> Result<[u64; 2], BpfError> {
        Ok([self.counters.value(LOST)?, self.counters.value(NO_START)?])
    }
}

pub(super) const EVENT_BYTES: usize = 56;

/// An event as decoded from the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ExtensionEvent {
    requested_ns: u64,
    acquired_ns: u64,
    relation: u32,
    database: u32,
    is_conditional: bool,
    stack: Option<StackId>,
    released_ns: u64,
    pid: u32,
}

impl ExtensionEvent {
    pub(super) fn read(bytes: &[u8; EVENT_BYTES]) -> Self {
        let double = |at: usize| {
            u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("slice has eight bytes"))
        };
        let (low, high) = (|of: u64| of as u32, |of: u64| (of >> 32) as u32);
        Self {
            requested_ns: double(0),
            acquired_ns: double(8),
            relation: low(double(16)),
            database: high(double(16)),
            is_conditional: double(24) != 0,
            stack: StackId::from_event(double(32)),
            released_ns: double(40),
            pid: high(double(48)),
        }
    }

    pub(super) fn into_lock(self, clock: ClockOffset) -> ExtensionLock {
        let wait_ns = if self.is_conditional {
            0
        } else {
            self.acquired_ns.saturating_sub(self.requested_ns)
        };
        ExtensionLock {
            pid: self.pid,
            database: self.database,
            relation: self.relation,
            released_at: clock.to_wall_clock(self.released_ns),
            wait: Duration::from_nanos(wait_ns),
            hold: Duration::from_nanos(self.released_ns.saturating_sub(self.acquired_ns)),
            is_conditional: self.is_conditional,
            stack: self.stack,
        }
    }
}

/// Loads the programs: request, conditional request, acquired, conditionally acquired, release.
pub(super) fn load(
    tables: &ExtensionMaps,
    traced: &TracedServer<'_>,
    (relation_id, has_tag): (RelationIdOffset, bool),
) -> Result<[Program; 5], ProbeError> {
    let relation = |program: &mut Assembler, lost| read_relation(program, relation_id, lost);
    let request = if has_tag {
        request_program(tables, traced, 0, read_tag)
    } else {
        request_program(tables, traced, 0, relation)
    };
    Ok([
        Program::load("request", request)?,
        Program::load("request_cond", request_program(tables, traced, 1, relation))?,
        Program::load("acquired", acquired_program(tables, false))?,
        Program::load("acquired_cond", acquired_program(tables, true))?,
        Program::load("release", release_program(tables, traced))?,
    ])
}

// Offsets on the stack, from its top.
const SCRATCH: i16 = -8;
const KEY: i16 = -16;
/// A new entry, or an event.
const ENTRY: i16 = KEY - OPEN_BYTES;
// Offsets in a level, and in an event.
const ACQUIRED: i16 = 8;
const RELATION: i16 = 16;
const CONDITIONAL: i16 = 24;
const STACK: i16 = 32;
const STACK_POINTER: i16 = 40;
const RELEASED: i16 = 40;
const THREAD: i16 = 48;
/// The request and acquisition times of a lock.
const TIMES: [i16; 2] = [ENTRY, ENTRY + ACQUIRED];

/// Emits code that stores process and thread id as the key, and leaves them in `R0`.
fn store_key(program: &mut Assembler) {
    program.call(Helper::CurrentPidTgid).store(Size::Double, Register::R10, KEY, Register::R0);
}

/// Emits code that reads the oids of relation and database from the relation, which the first
/// argument points to.
fn read_relation(program: &mut Assembler, relation_id: RelationIdOffset, lost: JumpLabel) {
    program
        .load(Register::R3, Size::Double, Register::R6, pt_regs_offset("rdi"))
        .add(Register::R3, relation_id.offset.into())
        .stack_address(Register::R1, ENTRY + RELATION)
        .set(Register::R2, Size::Double.bytes())
        .call(Helper::ReadUser)
        .jump_unless(Register::R0, 0, lost);
}

/// Emits code that reads the relation from the lock's tag, which the first argument points to. The
/// tag has the oids of database and relation, in this order, and its type in the 15th byte, which
/// must be that of extension locks. Source: `LOCKTAG` in `lock.h`.
fn read_tag(program: &mut Assembler, lost: JumpLabel) {
    const KIND_WORD: i32 = 12;
    /// `LOCKTAG_RELATION_EXTEND` and `DEFAULT_LOCKMETHOD`, the upper half of that word.
    const KIND: i32 = 0x0101;
    for (from, to) in [(0, RELATION + 4), (4, RELATION), (KIND_WORD, RELEASED)] {
        program
            .load(Register::R3, Size::Double, Register::R6, pt_regs_offset("rdi"))
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

/// Emits a copy of a level's fields before `end`, from register and offset to register and offset.
fn copy_fields(
    program: &mut Assembler,
    (from, from_offset): (Register, i16),
    (to, to_offset): (Register, i16),
    end: i16,
) {
    for field in (0..end).step_by(8) {
        program.load(Register::R1, Size::Double, from, from_offset + field).store(
            Size::Double,
            to,
            to_offset + field,
            Register::R1,
        );
    }
}

/// Emits code that looks up the thread's entry. Its address is in `R9`, that of the innermost
/// lock's level in `R7`. Jumps to `none` if the thread has no lock.
fn find_innermost(tables: &ExtensionMaps, program: &mut Assembler, none: JumpLabel) {
    let found = program.label();
    tables.open.lookup(program, KEY);
    program
        .jump_if(Register::R0, 0, none)
        .copy(Register::R9, Register::R0)
        .copy(Register::R7, Register::R0)
        .load(Register::R1, Size::Double, Register::R7, STACK_POINTER)
        .jump_if(Register::R1, 0, none);
    for _ in 1..LEVELS {
        program
            .load(Register::R1, Size::Double, Register::R7, LEVEL_BYTES + STACK_POINTER)
            .jump_if(Register::R1, 0, found)
            .add(Register::R7, LEVEL_BYTES.into());
    }
    program.bind(found);
}

/// Emits code that vacates the level at `R7`, and deletes the entry at `R9` if that was the
/// outermost one.
fn vacate(tables: &ExtensionMaps, program: &mut Assembler) {
    let is_inner = program.label();
    program
        .store_value(Size::Double, Register::R7, STACK_POINTER, 0)
        .load(Register::R1, Size::Double, Register::R9, STACK_POINTER)
        .jump_unless(Register::R1, 0, is_inner);
    tables.open.delete(program, KEY);
    program.bind(is_inner);
}

/// Builds the program for the point where a lock is requested: it stores time and relation.
fn request_program(
    tables: &ExtensionMaps,
    traced: &TracedServer<'_>,
    conditional: i32,
    read: impl Fn(&mut Assembler, JumpLabel),
) -> Assembler {
    let mut program = Assembler::default();
    let (lost, create, end) = (program.label(), program.label(), program.label());
    program.copy(Register::R6, Register::R1);
    traced.filter(&mut program, SCRATCH, end);
    store_key(&mut program);
    program
        .call(Helper::MonotonicNs)
        .store(Size::Double, Register::R10, ENTRY, Register::R0)
        .store_value(Size::Double, Register::R10, ENTRY + ACQUIRED, 0)
        .store_value(Size::Double, Register::R10, ENTRY + CONDITIONAL, conditional)
        .store_value(Size::Double, Register::R10, ENTRY + STACK, NO_STACK);
    read(&mut program, lost);
    program.load(Register::R8, Size::Double, Register::R6, pt_regs_offset("rsp")).store(
        Size::Double,
        Register::R10,
        ENTRY + STACK_POINTER,
        Register::R8,
    );
    tables.open.lookup(&mut program, KEY);
    program.jump_if(Register::R0, 0, create).copy(Register::R7, Register::R0);
    let levels: Vec<_> = (0..LEVELS).map(|level| (level, program.label())).collect();
    for &(level, replace) in &levels {
        let (pointer, is_inside) = (level * LEVEL_BYTES + STACK_POINTER, program.label());
        program
            .load(Register::R1, Size::Double, Register::R7, pointer)
            .jump_if(Register::R1, 0, replace)
            .jump_if_below(Register::R8, Register::R1, is_inside)
            .jump(replace)
            .bind(is_inside);
    }
    // Locks are not nested that deep: what is here was left by errors. Go on with the first level.
    for (level, replace) in levels {
        let offset = level * LEVEL_BYTES;
        program.bind(replace);
        copy_fields(&mut program, (Register::R10, ENTRY), (Register::R7, offset), LEVEL_BYTES);
        if level + 1 < LEVELS {
            let next = offset + LEVEL_BYTES + STACK_POINTER;
            program.store_value(Size::Double, Register::R7, next, 0);
        }
        program.jump(end);
    }
    program.bind(create);
    for vacant in (LEVEL_BYTES..OPEN_BYTES).step_by(8) {
        program.store_value(Size::Double, Register::R10, ENTRY + vacant, 0);
    }
    tables.open.update(&mut program, KEY, ENTRY);
    program.jump_if(Register::R0, 0, end).bind(lost);
    tables.counters.increment(&mut program, LOST, SCRATCH);
    program.bind(end).exit();
    program
}

/// Builds the program for the acquisition. A conditional request succeeded only if its result is
/// true.
fn acquired_program(tables: &ExtensionMaps, is_conditional: bool) -> Assembler {
    let mut program = Assembler::default();
    let (not_acquired, end) = (program.label(), program.label());
    program.copy(Register::R6, Register::R1);
    store_key(&mut program);
    find_innermost(tables, &mut program, end);
    if is_conditional {
        // A C bool: the lowest byte of the result.
        program
            .load(Register::R1, Size::Double, Register::R6, pt_regs_offset("rax"))
            .shift_left(Register::R1, 56)
            .jump_if(Register::R1, 0, not_acquired);
    }
    program.call(Helper::MonotonicNs).store(Size::Double, Register::R7, ACQUIRED, Register::R0);
    if tables.stacks.is_some() && !is_conditional {
        program
            .store(Size::Double, Register::R10, ENTRY + ACQUIRED, Register::R0)
            .load(Register::R1, Size::Double, Register::R7, 0)
            .store(Size::Double, Register::R10, ENTRY, Register::R1);
        capture_if_slow(tables.stacks.as_ref(), &mut program, Register::R6, TIMES, ENTRY + STACK);
        program.load(Register::R1, Size::Double, Register::R10, ENTRY + STACK).store(
            Size::Double,
            Register::R7,
            STACK,
            Register::R1,
        );
    }
    if is_conditional {
        program.jump(end).bind(not_acquired);
        vacate(tables, &mut program);
    }
    program.bind(end).exit();
    program
}

/// Builds the program for the release: it sends the innermost lock as an event.
fn release_program(tables: &ExtensionMaps, traced: &TracedServer<'_>) -> Assembler {
    let mut program = Assembler::default();
    let (unpaired, lost, sent, end) =
        (program.label(), program.label(), program.label(), program.label());
    store_key(&mut program);
    find_innermost(tables, &mut program, unpaired);
    copy_fields(&mut program, (Register::R7, 0), (Register::R10, ENTRY), RELEASED);
    program
        .load(Register::R1, Size::Double, Register::R10, ENTRY + ACQUIRED)
        .jump_if(Register::R1, 0, sent)
        .call(Helper::MonotonicNs)
        .store(Size::Double, Register::R10, ENTRY + RELEASED, Register::R0)
        .load(Register::R1, Size::Double, Register::R10, KEY)
        .store(Size::Double, Register::R10, ENTRY + THREAD, Register::R1);
    tables.ring.send(&mut program, ENTRY, i32::from(THREAD) + Size::Double.bytes());
    program.jump_unless(Register::R0, 0, lost).bind(sent);
    vacate(tables, &mut program);
    program.jump(end).bind(lost);
    tables.counters.increment(&mut program, LOST, SCRATCH);
    program.jump(sent).bind(unpaired);
    traced.filter(&mut program, SCRATCH, end);
    tables.counters.increment(&mut program, NO_START, SCRATCH);
    program.bind(end).exit();
    program
}

#[test]
fn extension_event_is_decoded_as_sent() {
    let mut bytes = Vec::new();
    for number in [1_000_u64, 4_000, 7 | 5 << 32, 0, u64::MAX, 9_000, 77 << 32 | 78] {
        bytes.extend(number.to_ne_bytes());
    }
    let event = ExtensionEvent::read(bytes.first_chunk().expect("all fields are present"));
    let lock = event.into_lock(ClockOffset::measure());
    assert_eq!((lock.relation, lock.database, lock.pid, lock.stack), (7, 5, 77, None));
    assert_eq!((lock.wait.as_nanos(), lock.hold.as_nanos()), (3_000, 5_000));
    let at_once =
        ExtensionEvent { is_conditional: true, ..event }.into_lock(ClockOffset::measure());
    assert_eq!((at_once.wait.as_nanos(), at_once.hold.as_nanos()), (0, 5_000));
}
