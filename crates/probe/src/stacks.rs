//! Where in the server's code a process was: the stack that the kernel walked, in names, and how far it is
//! to be believed.
//!
//! The kernel follows frame pointers. Debian's and PGDG's servers are built with them, and their stacks
//! are whole, down to `main`. In a build without, the register holds something else: then there is
//! the calling function, which is right, and behind it nothing, or numbers that are no return addresses. Those
//! are found out by the code before them, which has to be a call, and are left out.

use std::{collections::HashMap, fmt, time::Duration};

use howdah_inspect::{CodeMap, Memory, Process, Server, Symbol, ends_with_call};

use crate::{
    bpf::{Assembler, Register, Size, Stacks},
    error::BpfError,
};

/// The number of a stack; see [`CodeNames::stack`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StackId(u32);

/// Which events get a stack.
#[derive(Debug)]
pub(crate) struct LongStacks {
    stacks: Stacks,
    least: Duration,
}

/// In an event: no stack.
pub(crate) const NO_STACK: i32 = -1;

impl LongStacks {
    /// Those that took at least so long.
    pub(crate) fn of_at_least(least: Duration) -> Result<Self, BpfError> {
        Ok(Self { stacks: Stacks::new()?, least })
    }

    /// Has a program take the stack if what began at the time at `begun` on the stack has taken long, the time
    /// now being at `ended`. `into` gets its number. `context` has what the program was called with.
    fn take(&self, program: &mut Assembler, context: Register, times: [i16; 2], into: i16) {
        let [begun, ended] = times;
        let short = program.label();
        program
            .load(Register::R1, Size::Double, Register::R10, ended)
            .load(Register::R2, Size::Double, Register::R10, begun)
            .subtract(Register::R1, Register::R2)
            .set_wide(Register::R2, u64::try_from(self.least.as_nanos()).unwrap_or(u64::MAX))
            .jump_if_below(Register::R1, Register::R2, short);
        self.stacks.take(program, context, into);
        program.place(short);
    }

    pub(crate) fn addresses(&self, id: StackId) -> Result<Vec<u64>, BpfError> {
        self.stacks.of(id.0)
    }
}

/// The same where stacks may not be wanted: `into` is filled in any case.
pub(crate) fn take_if_long(
    stacks: Option<&LongStacks>,
    program: &mut Assembler,
    context: Register,
    times: [i16; 2],
    into: i16,
) {
    program.store_value(Size::Double, Register::R10, into, NO_STACK);
    if let Some(stacks) = stacks {
        stacks.take(program, context, times, into);
    }
}

impl StackId {
    /// Of what a program left in an event.
    pub(crate) fn of_event(number: u64) -> Option<Self> {
        u32::try_from(number.cast_signed()).ok().map(Self)
    }
}

/// A stack in names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stack {
    /// From the innermost on: the function that called what was measured comes first.
    pub frames: Vec<Symbol>,
    /// How it ends.
    pub end: StackEnd,
}

/// How a stack ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StackEnd {
    /// With the function that the process began with: all of it is there.
    Whole,
    /// Before that: deeper than is looked, or the code keeps no frame pointers.
    Cut,
    /// What came next is no return address: the code keeps no frame pointers.
    NotBelieved,
    /// The process is gone, and with it the names.
    Gone,
}

/// The names of code, process by process.
#[derive(Debug, Default)]
pub struct CodeNames {
    processes: HashMap<u32, Option<Code>>,
    /// Who has the server's own code at the same addresses, should a process be gone.
    postmaster: Option<u32>,
}

/// The code of a process, and whose memory holds it.
#[derive(Debug)]
struct Code {
    names: CodeMap,
    memory: Memory,
}

/// Processes whose names are kept.
const PROCESSES_MAX: usize = 1000;

impl CodeNames {
    /// Those of a server. A process that has ended is named by its postmaster's code: what was loaded
    /// later, as extensions mostly are, has no names then.
    #[must_use]
    pub fn of_server(server: &Server) -> Self {
        Self { postmaster: Some(server.postmaster().pid()), ..Self::default() }
    }

    /// A stack in names. `pid` is the process that it was of.
    #[must_use]
    pub fn stack(&mut self, pid: u32, addresses: &[u64]) -> Stack {
        if self.processes.len() >= PROCESSES_MAX {
            self.processes.clear();
        }
        let look = || code_of(pid).or_else(|| code_of(self.postmaster?));
        let code = self.processes.entry(pid).or_insert_with(look);
        // What was mapped since, such as an extension, is looked for once more.
        if let (Some(first), Some(known)) = (addresses.first(), &code)
            && !known.names.has(*first)
        {
            *code = look();
        }
        let Some(code) = code else { return Stack { frames: Vec::new(), end: StackEnd::Gone } };
        let is_call = |address: u64| {
            code.memory.bytes(address.wrapping_sub(8)).is_ok_and(|code| ends_with_call(&code))
        };
        walk(addresses, &code.names, is_call)
    }
}

fn code_of(pid: u32) -> Option<Code> {
    let names = CodeMap::of(Process::of(pid).ok()?).ok()?;
    Some(Code { names, memory: Memory::of(pid) })
}

/// Takes what can be believed. The first address is where the process was, the others are returned to.
fn walk(addresses: &[u64], code: &CodeMap, is_call: impl Fn(u64) -> bool) -> Stack {
    let mut frames = Vec::new();
    for (depth, &address) in addresses.iter().enumerate() {
        // A call may be the last of its function; then what is returned to is already the next one.
        let place = match depth {
            0 => code.place(address),
            _ => code.place(address - 1).filter(|_| is_call(address)),
        };
        let Some(place) = place else { return Stack { frames, end: StackEnd::NotBelieved } };
        let is_first = place.is_inside && place.function.as_deref() == Some("main");
        frames.push(place);
        if is_first {
            return Stack { frames, end: StackEnd::Whole };
        }
    }
    Stack { frames, end: StackEnd::Cut }
}

impl StackEnd {
    /// What to say of it, if it is not whole.
    #[must_use]
    pub fn remark(self) -> Option<&'static str> {
        match self {
            Self::Whole => None,
            Self::Cut => Some("cut: deeper than is looked, or the build keeps no frame pointers"),
            Self::NotBelieved => {
                Some("what follows is no return address: the build keeps no frame pointers")
            }
            Self::Gone => Some("the process ended before its code could be named"),
        }
    }
}

/// As flame graphs want it: outermost first, between semicolons, `[cut]` where outer functions are missing.
impl fmt::Display for Stack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.end != StackEnd::Whole {
            f.write_str("[cut]")?;
        }
        for (index, frame) in self.frames.iter().rev().enumerate() {
            if index > 0 || self.end != StackEnd::Whole {
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
        code_of as *const () as u64
    }

    #[test]
    fn what_is_no_return_address_ends_a_stack() {
        let mut names = CodeNames::default();
        let stack = names.stack(std::process::id(), &[here() + 1, 0x10]);
        assert_eq!((stack.frames.len(), stack.end), (1, StackEnd::NotBelieved));
        assert!(stack.to_string().starts_with("[cut];"), "{stack}");
        // A function's own beginning is in code, and nothing was called before it.
        let stack = names.stack(std::process::id(), &[here() + 1, here()]);
        assert_eq!((stack.frames.len(), stack.end), (1, StackEnd::NotBelieved));
        let stack = names.stack(std::process::id(), &[here() + 1]);
        assert_eq!((stack.frames.len(), stack.end), (1, StackEnd::Cut));
    }

    #[test]
    fn a_process_that_is_gone_has_no_names() {
        // Process ids end below 2²².
        let stack = CodeNames::default().stack(1 << 22, &[here()]);
        assert_eq!(stack, Stack { frames: Vec::new(), end: StackEnd::Gone });
    }

    #[test]
    fn an_event_without_a_stack_says_so() {
        assert_eq!(StackId::of_event(7), Some(StackId(7)));
        for none in [-1_i64, -17, -14] {
            assert_eq!(StackId::of_event(none.cast_unsigned()), None);
        }
    }
}
