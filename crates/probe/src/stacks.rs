//! Resolves stacks collected by the kernel to function names, and checks up to which frame they are
//! reliable.
//!
//! The kernel follows frame pointers. Servers of Debian and PGDG are built with them, and their
//! stacks are usually complete, down to `main`. In a build without them, the frame register holds
//! something else: the stack then has the correct calling function, followed by nothing or by
//! numbers that are not return addresses. These are detected, because no call instruction precedes
//! such an address, and omitted.

pub mod profile;

use std::{collections::HashMap, fmt, time::Duration};

use howdah_inspect::{CodeMap, OsProcess, ProcessMemory, RunningServer, Symbol, ends_with_call};

use crate::{
    bpf::{Assembler, Register, Size, StackMap},
    error::BpfError,
};

/// Id of a stack, valid for the tracer that reported it: see
/// [`CallDurations::addresses`](crate::durations::CallDurations::addresses) and
/// [`ExtensionLocks::addresses`](crate::extend::ExtensionLocks::addresses).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StackId(u32);

/// Collects the stacks of calls that take at least a threshold.
#[derive(Debug)]
pub(crate) struct SlowCallStacks {
    stacks: StackMap,
    threshold: Duration,
}

/// Stack id in an event without a stack.
pub(crate) const NO_STACK: i32 = -1;

impl SlowCallStacks {
    /// Creates the map of stacks for calls that take `least` or longer.
    pub(crate) fn with_threshold(least: Duration) -> Result<Self, BpfError> {
        Ok(Self { stacks: StackMap::new()?, threshold: least })
    }

    /// Emits code that stores the stack in the map if at least `threshold` lies between the two
    /// times stored on the program's stack at the offsets `times`. The id of the stored stack is
    /// written at `into`. The register `context` holds the program's context.
    fn capture(&self, program: &mut Assembler, context: Register, times: [i16; 2], into: i16) {
        let [start, end] = times;
        let short = program.label();
        program
            .load(Register::R1, Size::Double, Register::R10, end)
            .load(Register::R2, Size::Double, Register::R10, start)
            .subtract(Register::R1, Register::R2)
            .set_wide(Register::R2, u64::try_from(self.threshold.as_nanos()).unwrap_or(u64::MAX))
            .jump_if_below(Register::R1, Register::R2, short);
        self.stacks.capture(program, context, into);
        program.bind(short);
    }

    pub(crate) fn addresses(&self, id: StackId) -> Result<Vec<u64>, BpfError> {
        self.stacks.addresses(id.0)
    }
}

/// Like [`SlowCallStacks::capture`], but stores [`NO_STACK`] at `into` if the call was fast or no
/// stacks are requested.
pub(crate) fn capture_if_slow(
    stacks: Option<&SlowCallStacks>,
    program: &mut Assembler,
    context: Register,
    times: [i16; 2],
    into: i16,
) {
    program.store_value(Size::Double, Register::R10, into, NO_STACK);
    if let Some(stacks) = stacks {
        stacks.capture(program, context, times, into);
    }
}

impl StackId {
    /// Decodes the stack id in an event; negative means none.
    pub(crate) fn from_event(number: u64) -> Option<Self> {
        u32::try_from(number.cast_signed()).ok().map(Self)
    }
}

/// A stack, resolved to functions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallStack {
    /// Frames, innermost first. The first is the caller of the traced function, or the function
    /// that contains the probe point if that is not at an entry or a return.
    pub frames: Vec<Symbol>,
    /// Whether the outermost frame is `main`, or why it is missing.
    pub end: StackEnd,
}

/// The end of a stack: `main`, or the reason why outer frames are missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StackEnd {
    /// The stack ends with `main`, so it is complete.
    Complete,
    /// The stack ends before `main`: deeper than the depth limit, or the code has no frame
    /// pointers.
    Truncated,
    /// The stack ends at a number that is not a return address or not in a mapped file, usually
    /// because the code has no frame pointers.
    NoReturnAddress,
    /// The process's code map cannot be read, usually because it has exited, and neither can the
    /// postmaster's.
    ProcessGone,
}

/// Resolves code addresses, process by process.
#[derive(Debug, Default)]
pub struct Symbolizer {
    processes: HashMap<u32, Option<ProcessCode>>,
    /// Process id of the postmaster, which has the server's own code at the same addresses as a
    /// process that is gone.
    postmaster: Option<u32>,
}

/// The code map of a process, and its memory.
#[derive(Debug)]
struct ProcessCode {
    map: CodeMap,
    memory: ProcessMemory,
}

/// Maximum number of processes whose code maps are cached.
const PROCESSES_MAX: usize = 1000;

impl Symbolizer {
    /// Creates a symbolizer for a server. If the code map of a process cannot be read, because the
    /// process has exited, its stacks are resolved with the postmaster's, in which libraries loaded
    /// after the fork, such as most extensions, are missing.
    pub fn for_server(server: &RunningServer) -> Self {
        Self { postmaster: Some(server.postmaster().pid()), ..Self::default() }
    }

    /// Resolves a stack of process `pid`, given by its addresses.
    pub fn resolve(&mut self, pid: u32, addresses: &[u64]) -> CallStack {
        if self.processes.len() >= PROCESSES_MAX {
            self.processes.clear();
        }
        let load = || process_code(pid).or_else(|| process_code(self.postmaster?));
        let code = self.processes.entry(pid).or_insert_with(load);
        // Code mapped since, such as that of an extension, requires a new code map.
        if let (Some(first), Some(known)) = (addresses.first(), &code)
            && !known.map.contains(*first)
        {
            *code = load();
        }
        let Some(code) = code else {
            return CallStack { frames: Vec::new(), end: StackEnd::ProcessGone };
        };
        let is_call = |address: u64| {
            code.memory.bytes(address.wrapping_sub(8)).is_ok_and(|code| ends_with_call(&code))
        };
        resolve_frames(addresses, &code.map, is_call)
    }
}

fn process_code(pid: u32) -> Option<ProcessCode> {
    let names = CodeMap::for_process(OsProcess::from_pid(pid).ok()?).ok()?;
    Some(ProcessCode { map: names, memory: ProcessMemory::for_pid(pid) })
}

/// Resolves the reliable frames. The first address is the process's position, the others are return
/// addresses.
fn resolve_frames(addresses: &[u64], code: &CodeMap, is_call: impl Fn(u64) -> bool) -> CallStack {
    let mut frames = Vec::new();
    for (depth, &address) in addresses.iter().enumerate() {
        // A call may be the last instruction of its function. Its return address then belongs to
        // the next function.
        let symbol = match depth {
            0 => code.symbol_at(address),
            // Without frame pointers, an address may be any number.
            _ => code.symbol_at(address.wrapping_sub(1)).filter(|_| is_call(address)),
        };
        let Some(symbol) = symbol else {
            return CallStack { frames, end: StackEnd::NoReturnAddress };
        };
        let is_first = symbol.is_inside && symbol.function.as_deref() == Some("main");
        frames.push(symbol);
        if is_first {
            return CallStack { frames, end: StackEnd::Complete };
        }
    }
    CallStack { frames, end: StackEnd::Truncated }
}

impl StackEnd {
    /// Returns the reason why the stack is incomplete, as text; `None` if it is complete.
    pub fn explanation(self) -> Option<&'static str> {
        match self {
            Self::Complete => None,
            Self::Truncated => {
                Some("incomplete: deeper than the limit, or the build has no frame pointers")
            }
            Self::NoReturnAddress => Some(
                "incomplete: next value is not a return address: the build has no frame pointers",
            ),
            Self::ProcessGone => Some("the process exited before its code could be resolved"),
        }
    }
}

/// Formats the stack for flame graphs (folded format): outermost first, separated by semicolons,
/// starting with `[cut]` if outer frames are missing.
impl fmt::Display for CallStack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.end != StackEnd::Complete {
            f.write_str("[cut]")?;
        }
        for (index, frame) in self.frames.iter().rev().enumerate() {
            if index > 0 || self.end != StackEnd::Complete {
                f.write_str(";")?;
            }
            write!(f, "{frame}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn here() -> u64 {
        process_code as *const () as u64
    }

    #[test]
    fn non_return_address_ends_the_stack() {
        let mut names = Symbolizer::default();
        let stack = names.resolve(std::process::id(), &[here() + 1, 0x10]);
        assert_eq!((stack.frames.len(), stack.end), (1, StackEnd::NoReturnAddress));
        assert!(stack.to_string().starts_with("[cut];"), "{stack}");
        // A function's entry is in code, but not preceded by a call.
        let stack = names.resolve(std::process::id(), &[here() + 1, here()]);
        assert_eq!((stack.frames.len(), stack.end), (1, StackEnd::NoReturnAddress));
        let stack = names.resolve(std::process::id(), &[here() + 1]);
        assert_eq!((stack.frames.len(), stack.end), (1, StackEnd::Truncated));
    }

    #[test]
    fn ended_process_has_no_frames() {
        // Process ids are below 2²².
        let stack = Symbolizer::default().resolve(1 << 22, &[here()]);
        assert_eq!(stack, CallStack { frames: Vec::new(), end: StackEnd::ProcessGone });
    }

    #[test]
    fn negative_stack_id_means_no_stack() {
        assert_eq!(StackId::from_event(7), Some(StackId(7)));
        for none in [-1_i64, -17, -14] {
            assert_eq!(StackId::from_event(none.cast_unsigned()), None);
        }
    }
}
