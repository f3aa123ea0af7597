//! Finds breakpoints in the server's code, and removes those that no tracer owns any more.
//!
//! The kernel removes a tracer's breakpoints when the tracer exits, however it exits, with one
//! exception: a process that is killed (SIGKILL) while attaching. Because of the pending signal the
//! kernel stops writing to the code of the other processes, and for the same reason it fails to
//! undo what it wrote; see `register_for_each_vma` in `kernel/events/uprobes.c` and
//! `fatal_signal_pending` in `mm/gup.c`. Nothing crashes, but each hit costs time until the server
//! restarts, or until a tracer attaches to the same place and detaches again. [`clear_breakpoints`]
//! does the latter.

use std::collections::BTreeMap;

use howdah_inspect::{CodeMap, PatchedCode, RunningServer, Symbol};

use crate::{
    bpf::{Assembler, BpfLink, FilePoints, Point, Program, UprobeKind},
    error::{BpfError, ProbeError},
};

/// Returns the functions whose code differs from the executable file in at least one process of the
/// server.
///
/// # Errors
///
/// The server is gone or cannot be read.
pub fn patched_symbols(
    server: &RunningServer,
) -> Result<Vec<Symbol>, howdah_inspect::InspectError> {
    let patches = patched_offsets(server)?;
    if patches.is_empty() {
        return Ok(Vec::new());
    }
    let code = CodeMap::for_process(server.postmaster())?;
    Ok(patches.into_values().filter_map(|address| code.symbol_at(address)).collect())
}

/// Returns the addresses of patches by file offset. All processes are forked from the postmaster
/// and share its patches, but a breakpoint may remain in only some of them.
fn patched_offsets(
    server: &RunningServer,
) -> Result<BTreeMap<u64, u64>, howdah_inspect::InspectError> {
    let postmaster = server.postmaster();
    let mut patches: Vec<PatchedCode> = postmaster.patched_code()?;
    for child in postmaster.children()? {
        // The child may be exiting, or be another program that the server runs.
        if child.runs_same_binary(postmaster).unwrap_or(false) {
            patches.extend(child.patched_code().unwrap_or_default());
        }
    }
    Ok(patches.into_iter().map(|place| (place.offset, place.address)).collect())
}

/// Removes the breakpoints in the server's processes that no tracer owns, as far as the kernel
/// allows. Those of a running tracer remain.
///
/// # Errors
///
/// BPF programs are not permitted, or the server is gone or cannot be read.
pub fn clear_breakpoints(server: &RunningServer) -> Result<(), ProbeError> {
    let postmaster = server.postmaster();
    let mut empty = Assembler::default();
    empty.exit();
    let program = Program::load("empty", empty)?;
    let binary = postmaster.executable();
    for offset in patched_offsets(server)?.into_keys() {
        let points = [Point { offset, semaphore: None }];
        let points = FilePoints { binary: &binary, points: &points };
        // Other errors are ignored: by now the code may hold an instruction that the kernel does
        // not probe, and so no breakpoint.
        match BpfLink::attach(&program, points, UprobeKind::Entry) {
            Ok(link) => drop(link),
            Err(error @ BpfError::Denied { .. }) => return Err(error.into()),
            Err(_) => {}
        }
    }
    Ok(())
}
