//! BPF programs: assembled here, verified and run by the kernel.
//!
//! ```text
//! assembler ─► program (verified, loaded) ─► link (attached to points of a binary)
//!                  │ uses                         │ hit by a process
//!                  ▼                              ▼
//!                maps: open calls, counters ─► ring: events for us
//! ```
//!
//! Programs are assembled at run time, because they differ from server to server: the offset of a
//! field, the register of an argument, the address of a variable. They have a few dozen
//! instructions each, so neither a compiler nor precompiled files are needed.
//! `docs/decisions/018-bpf-assembled-at-run-time.md` discusses the alternatives.
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
    assembler::{Assembler, Helper, JumpLabel, Register, Size},
    link::{BpfLink, BpfLinks, FilePoints, Point, UprobeKind},
    maps::{CounterMap, LruHashMap, StackMap},
    program::{Program, supports_uprobe_multi},
    ring::RingBuffer,
};
