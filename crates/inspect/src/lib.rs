//! A running PostgreSQL server seen from outside: its processes, its binary, and its shared memory
//! read by another process.
//!
//! Nothing here takes a lock, runs SQL, stops a process or costs the server time: memory is copied
//! with `process_vm_readv(2)`, names become addresses through the dynamic symbols that a stripped
//! server still exports. Where a structure lies and what it looks like is found out anew for every
//! binary, and each reading checks invariants of what it reads; a reading that fails its check is an
//! error, never a number.
//!
//! ```no_run
//! let server = howdah_inspect::Server::in_data_dir("/var/lib/postgresql/15/main")?;
//! let dirty = server.buffers()?.read()?.filter(|buffer| buffer.is_dirty).count();
//! println!("{dirty} dirty buffers, hand at {:?}", server.clock_sweep()?.read()?);
//! # Ok::<(), howdah_inspect::Error>(())
//! ```
//!
//! Who may: the server's own user (where Yama's `ptrace_scope` is 0), or a process with
//! `CAP_SYS_PTRACE`. Where: Linux on x86-64, PostgreSQL 14 to 18. Everything goes through `/proc/PID`,
//! so a server in a container, or one whose binary was replaced under it, reads the same.

mod altered;
mod binary;
mod buffers;
mod child_list;
mod clock_sweep;
mod code;
mod container;
mod error;
mod markers;
mod memory;
mod process;
mod server;
mod words;

pub use altered::PatchedCode;
pub use binary::{Binary, BuildId};
pub use buffers::{Buffer, BufferMap, Buffers, Fork};
pub use child_list::ChildList;
pub use clock_sweep::{ClockSweep, SweepState};
pub use code::{CodeMap, Symbol, ends_with_call};
pub use container::{ContainerId, ContainerIdError};
pub use error::{BinaryError, Error, LayoutError, MemoryError, ProcessError};
pub use markers::{Argument, Operand, UsdtProbe};
pub use memory::Memory;
pub use process::{ExecutableState, Process, RunState};
pub use server::{LockFile, MAJORS, Server};
pub use words::Words;
