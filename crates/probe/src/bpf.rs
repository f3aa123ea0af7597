//! Programs for the kernel's virtual machine: written down here, checked and run by the kernel.
//!
//! ```text
//! assembler ─► program (verified, loaded) ─► link (attached to points of a binary)
//!                  │ uses                         │ hit by a process
//!                  ▼                              ▼
//!                maps: what is open, counters ─► ring: events for us
//! ```
//!
//! Programs are put together while we run, because what they read differs from server to server: where
//! a field lies, in which register an argument is, at which address a variable is mapped. They have some
//! dozens of instructions each, so nothing but the kernel is needed to build them, and nothing is kept
//! compiled. `docs/decisions/018-bpf-assembled-at-run-time.md` says what this was weighed against.
//!
//! Source: `include/uapi/linux/bpf.h`; `Documentation/bpf/standardization/instruction-set.rst` and
//! `Documentation/bpf/ringbuf.rst` of the kernel.

mod assembler;
mod link;
mod maps;
mod program;
mod ring;
mod sys;

pub(crate) use self::{
    assembler::{Assembler, Helper, Label, Register, Size},
    link::{Link, Links, Point, Points, Side},
    maps::{Counters, Hash, Stacks},
    program::{Program, has_multi},
    ring::Ring,
};
