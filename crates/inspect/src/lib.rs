//! Inspects a running PostgreSQL server from another process: its processes, its binary and its
//! shared memory.
//!
//! Nothing here takes a lock, runs SQL, stops a process or slows the server down. Memory is copied
//! with `process_vm_readv(2)`; names are resolved through the dynamic symbols that a stripped
//! server still exports. The location of each structure is determined anew for every binary, and
//! what is read from it is checked for plausibility: a failed check is an error, never a wrong
//! number.
//!
//! ```no_run
//! let server = howdah_inspect::RunningServer::in_data_dir("/var/lib/postgresql/15/main")?;
//! let dirty = server.buffers()?.read()?.filter(|buffer| buffer.is_dirty).count();
//! println!("{dirty} dirty buffers, hand at {:?}", server.clock_sweep()?.read()?);
//! # Ok::<(), howdah_inspect::InspectError>(())
//! ```
//!
//! Requirements: the server's own user (where Yama's `ptrace_scope` is 0) or `CAP_SYS_PTRACE`;
//! Linux on x86-64; PostgreSQL 14 to 18. Files are read through `/proc/PID`, so a server in a
//! container, or one whose binary was replaced on disk, is inspected in the same way.

mod binary;
mod buffers;
mod child_list;
mod clock_sweep;
mod code;
mod container;
mod error;
mod memory;
mod patched_code;
mod process;
mod server;
mod usdt;
mod watched_words;

pub use binary::{Binary, BuildId};
pub use buffers::{BufferDesc, BufferDescIter, BufferMap, Fork};
pub use child_list::ChildList;
pub use clock_sweep::{ClockSweep, SweepState};
pub use code::{CodeMap, Symbol, ends_with_call};
pub use container::{ContainerId, ContainerIdError};
pub use error::{BinaryError, InspectError, LayoutError, MemoryError, ProcessError};
pub use memory::ProcessMemory;
pub use patched_code::PatchedCode;
pub use process::{ExecutableState, OsProcess, RunState};
pub use server::{LockFile, MAJORS, RunningServer};
pub use usdt::{Operand, UsdtArgument, UsdtProbe};
pub use watched_words::WatchedWords;
