//! Receives events from the USDT probes that a server was built with.
//!
//! Every probe site gets its own BPF program, because the arguments are in different locations at
//! each site. The program reads the arguments at the site, and sends them with the time and the
//! process:
//!
//! | bytes | |
//! |---|---|
//! | 0–7 | monotonic time, ns |
//! | 8–15 | process id (high half), thread id |
//! | 16–23 | index of the site |
//! | 24–31 | bit mask of arguments that could not be read |
//! | 32–79 | six arguments |

use howdah_inspect::{Operand, RunningServer, UsdtArgument, UsdtProbe};

use crate::{
    bpf::{
        Assembler, BpfLink, BpfLinks, CounterMap, FilePoints, Helper, Program, Register,
        RingBuffer, Size, UprobeKind,
    },
    error::{BpfError, ProbeError},
    traced_server::{TracedServer, register_offset},
};

/// Receives events of USDT probes until it is dropped.
#[derive(Debug)]
pub(crate) struct UsdtListener {
    ring: RingBuffer,
    counters: CounterMap,
    sites: Vec<UsdtSite>,
    programs: Vec<Program>,
    _links: BpfLinks,
}

/// A probe site and its arguments.
#[derive(Debug)]
struct UsdtSite {
    /// Index in the list of names passed to [`UsdtListener::attach`].
    probe: usize,
    arguments: Vec<UsdtArgument>,
}

/// A hit of a USDT probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UsdtEvent {
    /// Index in the list of names passed to [`UsdtListener::attach`].
    pub(crate) probe: usize,
    pub(crate) monotonic_ns: u64,
    pub(crate) pid: u32,
    /// The values of the arguments; `None` for those that are missing or could not be read.
    pub(crate) arguments: [Option<i64>; ARGUMENTS_MAX],
}

const ARGUMENTS_MAX: usize = 6;
const RING_BYTES: u32 = 1 << 20;

const TIME: i16 = 0;
const THREAD: i16 = 8;
const SITE: i16 = 16;
const UNREADABLE: i16 = 24;
/// Offsets of the arguments in the event.
const ARGUMENT: [i16; ARGUMENTS_MAX] = [32, 40, 48, 56, 64, 72];
const EVENT_BYTES: usize = 80;
const SCRATCH: i16 = -8;
/// Offset of the event on the stack.
const EVENT: i16 = -88;

impl UsdtListener {
    /// Attaches to probes by name. All of them must exist.
    pub(crate) fn attach(
        server: &RunningServer,
        names: &[&'static str],
    ) -> Result<Self, ProbeError> {
        let traced = TracedServer::new(server)?;
        let ring = RingBuffer::new(RING_BYTES)?;
        let counters = CounterMap::new(1)?;
        let binary = server.postmaster().executable();
        let (mut sites, mut programs) = (Vec::new(), Vec::new());
        let mut links = BpfLinks::default();
        for (number, name) in names.iter().enumerate() {
            let before = sites.len();
            for probe in server.binary().usdt_probes().iter().filter(|probe| probe.name == *name) {
                let Some(point) = traced.usdt_point(probe) else { continue };
                let code = assemble(server, &traced, probe, sites.len(), &ring, &counters);
                let program = Program::load("usdt", code)?;
                let points = FilePoints { binary: &binary, points: &[point] };
                links.push(BpfLink::attach(&program, points, UprobeKind::Entry)?);
                programs.push(program);
                sites.push(UsdtSite { probe: number, arguments: probe.arguments.clone() });
            }
            if sites.len() == before {
                return Err(ProbeError::NoUsdtProbe { probe: name });
            }
        }
        Ok(Self { ring, counters, sites, programs, _links: links })
    }

    /// Calls `visit` with each event since the previous drain.
    pub(crate) fn drain(&mut self, mut visit: impl FnMut(UsdtEvent)) {
        let sites = &self.sites;
        self.ring.drain(|bytes| {
            if let Some(mark) = bytes.first_chunk().and_then(|event| UsdtEvent::read(event, sites))
            {
                visit(mark);
            }
        });
    }

    /// Returns the number of events lost because the ring was full or the kernel did not run a
    /// program.
    pub(crate) fn lost_events(&self) -> Result<u64, BpfError> {
        let mut lost = self.counters.value(0)?;
        for program in &self.programs {
            lost += program.misses()?;
        }
        Ok(lost)
    }
}

impl UsdtEvent {
    fn read(event: &[u8; EVENT_BYTES], sites: &[UsdtSite]) -> Option<Self> {
        let number = |at: i16| {
            let bytes = event[at as usize..].first_chunk().expect("fields lie within the event");
            u64::from_ne_bytes(*bytes)
        };
        let site = sites.get(usize::try_from(number(SITE)).ok()?)?;
        let mut arguments = [None; ARGUMENTS_MAX];
        for (index, (argument, to)) in site.arguments.iter().zip(&mut arguments).enumerate() {
            if number(UNREADABLE) >> index & 1 == 0 {
                *to = Some(sign_extend(argument, number(ARGUMENT[index])));
            }
        }
        let pid = (number(THREAD) >> 32) as u32;
        Some(Self { probe: site.probe, monotonic_ns: number(TIME), pid, arguments })
    }
}

/// Returns the value of an argument: its lowest bytes, sign-extended if it is signed.
fn sign_extend(argument: &UsdtArgument, read: u64) -> i64 {
    let unused = 64 - 8 * u32::from(argument.bytes);
    let shifted = read << unused;
    if argument.is_signed {
        shifted.cast_signed() >> unused
    } else {
        (shifted >> unused).cast_signed()
    }
}

/// Builds the program of a probe site.
fn assemble(
    server: &RunningServer,
    traced: &TracedServer<'_>,
    probe: &UsdtProbe,
    site: usize,
    ring: &RingBuffer,
    counters: &CounterMap,
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
        .set_wide(Register::R1, site as u64)
        .store(Size::Double, Register::R10, EVENT + SITE, Register::R1)
        .store_value(Size::Double, Register::R10, EVENT + UNREADABLE, 0);
    for (index, at) in ARGUMENT.into_iter().enumerate() {
        let at = EVENT + at;
        program.store_value(Size::Double, Register::R10, at, 0);
        if let Some(argument) = probe.arguments.get(index)
            && !read_argument(&mut program, server, argument, at, index)
        {
            mark_unreadable(&mut program, index);
        }
    }
    ring.send(&mut program, EVENT, i32::from(-SCRATCH - EVENT - 8));
    program.jump_if(Register::R0, 0, end);
    counters.increment(&mut program, 0, SCRATCH);
    program.bind(end).exit();
    program
}

/// Emits code that marks an argument as unreadable in the event.
fn mark_unreadable(program: &mut Assembler, index: usize) {
    program
        .load(Register::R1, Size::Double, Register::R10, EVENT + UNREADABLE)
        .add(Register::R1, 1 << index)
        .store(Size::Double, Register::R10, EVENT + UNREADABLE, Register::R1);
}

/// Emits code that stores an argument on the stack at offset `at`. Returns false, and emits
/// nothing, if the operand is not supported.
fn read_argument(
    program: &mut Assembler,
    server: &RunningServer,
    argument: &UsdtArgument,
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
            let Some(address) = server.binary().find_address(symbol) else { return false };
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
    mark_unreadable(program, index);
    program.bind(read);
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn argument(bytes: u8, is_signed: bool) -> UsdtArgument {
        UsdtArgument { bytes, is_signed, operand: Operand::Constant(0) }
    }

    #[test]
    fn arguments_are_extended_by_size_and_sign() {
        assert_eq!(sign_extend(&argument(4, true), 0xdead_beef_ffff_ffff), -1);
        assert_eq!(sign_extend(&argument(4, false), 0xdead_beef_ffff_ffff), 0xffff_ffff);
        assert_eq!(sign_extend(&argument(1, true), 0x1ff), -1);
        assert_eq!(sign_extend(&argument(8, true), u64::MAX), -1);
    }

    #[test]
    fn unreadable_arguments_are_none() {
        let arguments = vec![argument(4, true), argument(4, true)];
        let sites = [UsdtSite { probe: 3, arguments }];
        let mut event = Vec::new();
        for number in [5_u64, 77 << 32 | 78, 0, 0b10, 42, 99, 0, 0, 0, 0] {
            event.extend(number.to_ne_bytes());
        }
        let event = event.first_chunk().expect("all fields are present");
        let mark = UsdtEvent::read(event, &sites).expect("the site exists");
        assert_eq!((mark.probe, mark.monotonic_ns, mark.pid), (3, 5, 77));
        assert_eq!(mark.arguments, [Some(42), None, None, None, None, None]);
        assert_eq!(UsdtEvent::read(event, &[]), None);
    }
}
