//! Events from the markers that a server was built with.
//!
//! Every place of a marker gets a program of its own, because its arguments are elsewhere at each. The
//! program reads them there and then and sends them with the time and the process:
//!
//! | bytes | |
//! |---|---|
//! | 0–7 | ns of the monotonic clock |
//! | 8–15 | process id (high half), thread id |
//! | 16–23 | which place |
//! | 24–31 | a bit for each argument that could not be read |
//! | 32–79 | six arguments |

use howdah_inspect::{Argument, Operand, Server, UsdtProbe};

use crate::{
    bpf::{Assembler, Counters, Helper, Link, Links, Points, Program, Register, Ring, Side, Size},
    error::{BpfError, Error},
    traced::{Traced, register_offset},
};

/// Markers that are listened to, until this is dropped.
#[derive(Debug)]
pub(crate) struct Marks {
    ring: Ring,
    counters: Counters,
    places: Vec<Place>,
    programs: Vec<Program>,
    _links: Links,
}

/// Where a marker is, and what its arguments are.
#[derive(Debug)]
struct Place {
    /// Its number in the list that was asked for.
    marker: usize,
    arguments: Vec<Argument>,
}

/// A marker was passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    /// Its number in the list that was asked for.
    pub(crate) marker: usize,
    pub(crate) monotonic_ns: u64,
    pub(crate) pid: u32,
    /// What could be read of the arguments.
    pub(crate) arguments: [Option<i64>; ARGUMENTS_MAX],
}

const ARGUMENTS_MAX: usize = 6;
const RING_BYTES: u32 = 1 << 20;

const TIME: i16 = 0;
const THREAD: i16 = 8;
const PLACE: i16 = 16;
const UNREAD: i16 = 24;
/// Where each argument is in the event.
const ARGUMENT: [i16; ARGUMENTS_MAX] = [32, 40, 48, 56, 64, 72];
const EVENT_BYTES: usize = 80;
const SCRATCH: i16 = -8;
/// The event on the stack.
const EVENT: i16 = -88;

impl Marks {
    /// Listens to markers by name. All of them have to be there.
    pub(crate) fn attach(server: &Server, names: &[&'static str]) -> Result<Self, Error> {
        let traced = Traced::new(server)?;
        let ring = Ring::new(RING_BYTES)?;
        let counters = Counters::new(1)?;
        let binary = server.postmaster().executable();
        let (mut places, mut programs) = (Vec::new(), Vec::new());
        let mut links = Links::default();
        for (number, name) in names.iter().enumerate() {
            let before = places.len();
            for marker in server.binary().markers().iter().filter(|marker| marker.name == *name) {
                let Some(point) = traced.marker(marker) else { continue };
                let code = code(server, &traced, marker, places.len(), &ring, &counters);
                let program = Program::load("marker", code)?;
                let points = Points { binary: &binary, points: &[point] };
                links.push(Link::attach(&program, points, Side::Entry)?);
                programs.push(program);
                places.push(Place { marker: number, arguments: marker.arguments.clone() });
            }
            if places.len() == before {
                return Err(Error::NoMarker { marker: name });
            }
        }
        Ok(Self { ring, counters, places, programs, _links: links })
    }

    /// Shows what was passed since the last time.
    pub(crate) fn drain(&mut self, mut visit: impl FnMut(Mark)) {
        let places = &self.places;
        self.ring.drain(|bytes| {
            if let Some(mark) = bytes.first_chunk().and_then(|event| Mark::read(event, places)) {
                visit(mark);
            }
        });
    }

    /// Events that were not told: the ring was full, or the kernel did not run a program.
    pub(crate) fn lost(&self) -> Result<u64, BpfError> {
        let mut lost = self.counters.value(0)?;
        for program in &self.programs {
            lost += program.misses()?;
        }
        Ok(lost)
    }
}

impl Mark {
    fn read(event: &[u8; EVENT_BYTES], places: &[Place]) -> Option<Self> {
        let number = |at: i16| {
            let bytes = event[at as usize..].first_chunk().expect("fields lie within the event");
            u64::from_ne_bytes(*bytes)
        };
        let place = places.get(usize::try_from(number(PLACE)).ok()?)?;
        let mut arguments = [None; ARGUMENTS_MAX];
        for (index, (argument, to)) in place.arguments.iter().zip(&mut arguments).enumerate() {
            if number(UNREAD) >> index & 1 == 0 {
                *to = Some(extended(argument, number(ARGUMENT[index])));
            }
        }
        let pid = (number(THREAD) >> 32) as u32;
        Some(Self { marker: place.marker, monotonic_ns: number(TIME), pid, arguments })
    }
}

/// The lowest bytes of what was read, as many as the argument has, with its sign.
fn extended(argument: &Argument, read: u64) -> i64 {
    let unused = 64 - 8 * u32::from(argument.bytes);
    let shifted = read << unused;
    match argument.is_signed {
        true => shifted.cast_signed() >> unused,
        false => (shifted >> unused).cast_signed(),
    }
}

/// The program of a place.
fn code(
    server: &Server,
    traced: &Traced<'_>,
    marker: &UsdtProbe,
    place: usize,
    ring: &Ring,
    counters: &Counters,
) -> Assembler {
    let mut program = Assembler::default();
    let end = program.label();
    program.copy(Register::R6, Register::R1);
    traced.filter(&mut program, SCRATCH, end);
    program
        .call(Helper::MonotonicNs)
        .store(Size::Double, Register::R10, EVENT + TIME, Register::R0)
        .call(Helper::CurrentPidTgid)
        .store(Size::Double, Register::R10, EVENT + THREAD, Register::R0)
        .set_wide(Register::R1, place as u64)
        .store(Size::Double, Register::R10, EVENT + PLACE, Register::R1)
        .store_value(Size::Double, Register::R10, EVENT + UNREAD, 0);
    for (index, at) in ARGUMENT.into_iter().enumerate() {
        let at = EVENT + at;
        program.store_value(Size::Double, Register::R10, at, 0);
        if let Some(argument) = marker.arguments.get(index)
            && !read_argument(&mut program, server, argument, at, index)
        {
            unread(&mut program, index);
        }
    }
    ring.send(&mut program, EVENT, i32::from(-SCRATCH - EVENT - 8));
    program.jump_if(Register::R0, 0, end);
    counters.count(&mut program, 0, SCRATCH);
    program.place(end).exit();
    program
}

/// Notes that an argument could not be read.
fn unread(program: &mut Assembler, index: usize) {
    program
        .load(Register::R1, Size::Double, Register::R10, EVENT + UNREAD)
        .add(Register::R1, 1 << index)
        .store(Size::Double, Register::R10, EVENT + UNREAD, Register::R1);
}

/// Puts an argument on the stack `at`; false if it is at no place that is understood.
fn read_argument(
    program: &mut Assembler,
    server: &Server,
    argument: &Argument,
    at: i16,
    index: usize,
) -> bool {
    match &argument.operand {
        Operand::Constant(value) => {
            program.set_wide(Register::R1, value.cast_unsigned());
            program.store(Size::Double, Register::R10, at, Register::R1);
            return true;
        }
        Operand::Register(name) => {
            let Some(offset) = register_offset(name) else { return false };
            program.load(Register::R1, Size::Double, Register::R6, offset);
            program.store(Size::Double, Register::R10, at, Register::R1);
            return true;
        }
        Operand::Based { base, offset } => {
            let (Some(base), Ok(offset)) = (register_offset(base), i32::try_from(*offset)) else {
                return false;
            };
            program.load(Register::R3, Size::Double, Register::R6, base).add(Register::R3, offset);
        }
        Operand::Variable { symbol, offset } => {
            let Some(address) = server.binary().find(symbol) else { return false };
            program.set_wide(Register::R3, address.wrapping_add_signed(*offset));
        }
        Operand::Other(_) => return false,
    }
    let read = program.label();
    program
        .stack_address(Register::R1, at)
        .set(Register::R2, argument.bytes.into())
        .call(Helper::ReadUser)
        .jump_if(Register::R0, 0, read);
    unread(program, index);
    program.place(read);
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn argument(bytes: u8, is_signed: bool) -> Argument {
        Argument { bytes, is_signed, operand: Operand::Constant(0) }
    }

    #[test]
    fn arguments_have_their_size_and_sign() {
        assert_eq!(extended(&argument(4, true), 0xdead_beef_ffff_ffff), -1);
        assert_eq!(extended(&argument(4, false), 0xdead_beef_ffff_ffff), 0xffff_ffff);
        assert_eq!(extended(&argument(1, true), 0x1ff), -1);
        assert_eq!(extended(&argument(8, true), u64::MAX), -1);
    }

    #[test]
    fn an_event_is_read_with_what_could_be_read_of_it() {
        let arguments = vec![argument(4, true), argument(4, true)];
        let places = [Place { marker: 3, arguments }];
        let mut event = Vec::new();
        for number in [5_u64, 77 << 32 | 78, 0, 0b10, 42, 99, 0, 0, 0, 0] {
            event.extend(number.to_ne_bytes());
        }
        let event = event.first_chunk().expect("all are there");
        let mark = Mark::read(event, &places).expect("the place is known");
        assert_eq!((mark.marker, mark.monotonic_ns, mark.pid), (3, 5, 77));
        assert_eq!(mark.arguments, [Some(42), None, None, None, None, None]);
        assert_eq!(Mark::read(event, &[]), None);
    }
}
