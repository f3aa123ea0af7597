//! Breakpoints in the server's code, and how those are taken out that nobody holds any more.
//!
//! The kernel takes a tracer's breakpoints out when the tracer ends, however it ends, but for one case: a
//! process that is killed (SIGKILL) while it attaches. Then the kernel gives up writing to the other
//! processes' code for the signal that waits, and as it takes back what it wrote it gives up for the same
//! reason; see `register_for_each_vma` in `kernel/events/uprobes.c` and `fatal_signal_pending` in
//! `mm/gup.c`. Nothing crashes, but each hit still costs, until the server is started again or the same
//! place is attached to and detached from once more. That is what [`clear`] does.

use std::collections::BTreeMap;

use howdah_inspect::{CodeMap, PatchedCode, Server, Symbol};

use crate::{
    bpf::{Assembler, Link, Point, Points, Program, Side},
    error::{BpfError, Error},
};

/// Where the code of any of the server's processes is not as in its file, by the names of functions.
///
/// # Errors
///
/// The server is gone, or is not ours to read.
pub fn places(server: &Server) -> Result<Vec<Symbol>, howdah_inspect::Error> {
    let altered = altered(server)?;
    if altered.is_empty() {
        return Ok(Vec::new());
    }
    let code = CodeMap::of(server.postmaster())?;
    Ok(altered.into_values().filter_map(|address| code.place(address)).collect())
}

/// Addresses by where they are in the file. All processes of a server are copies of the first, so what it has,
/// they have; but a breakpoint may be left in some of them only.
fn altered(server: &Server) -> Result<BTreeMap<u64, u64>, howdah_inspect::Error> {
    let postmaster = server.postmaster();
    let mut altered: Vec<PatchedCode> = postmaster.altered_code()?;
    for child in postmaster.children()? {
        // It may be ending, or be a program that the server runs.
        if child.runs_same_binary(postmaster).unwrap_or(false) {
            altered.extend(child.altered_code().unwrap_or_default());
        }
    }
    Ok(altered.into_iter().map(|place| (place.offset, place.address)).collect())
}

/// Takes out all breakpoints in the server's processes that no tracer holds. Those of a tracer that runs stay.
///
/// # Errors
///
/// Programs may not be run; the server is gone, or is not ours to read.
pub fn clear(server: &Server) -> Result<(), Error> {
    let postmaster = server.postmaster();
    let mut nothing = Assembler::default();
    nothing.exit();
    let program = Program::load("nothing", nothing)?;
    let binary = postmaster.executable();
    for offset in altered(server)?.into_keys() {
        let points = [Point { offset, semaphore: None }];
        let points = Points { binary: &binary, points: &points };
        // What is there by now may be no instruction that the kernel takes: then it is not a breakpoint.
        match Link::attach(&program, points, Side::Entry) {
            Ok(link) => drop(link),
            Err(error @ BpfError::Denied { .. }) => return Err(error.into()),
            Err(_) => {}
        }
    }
    Ok(())
}
