//! Attaches programs to points of a binary. They stay attached while the link is held, and are
//! detached when the process exits, however it exits.
//!
//! Programs are attached to the file, for all processes that run it: a kernel filter by process id
//! costs more than the hits it saves, so programs check the process themselves.

use std::{
    ffi::CString,
    fs, io,
    os::{fd::AsFd as _, fd::OwnedFd, unix::ffi::OsStrExt as _},
    path::Path,
    thread,
};

use super::{program::Program, sys};
use crate::error::BpfError;

/// A probe point in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Point {
    /// File offset of the instruction.
    pub(crate) offset: u64,
    /// File offset of the semaphore of a USDT probe.
    pub(crate) semaphore: Option<u64>,
}

/// Probe points of one file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FilePoints<'a> {
    /// The file's path: `/proc/PID/exe`, which is the running executable even if it was replaced on
    /// disk.
    pub(crate) binary: &'a Path,
    pub(crate) points: &'a [Point],
}

/// The kind of a uprobe: at an instruction, or at the return of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UprobeKind {
    Entry,
    Return,
}

/// An attached program, which is detached when the value is dropped.
#[derive(Debug)]
pub(crate) struct BpfLink {
    _handles: Vec<OwnedFd>,
}

impl BpfLink {
    /// Attaches a program to all `points`.
    pub(crate) fn attach(
        program: &Program,
        points: FilePoints<'_>,
        side: UprobeKind,
    ) -> Result<Self, BpfError> {
        let FilePoints { binary, points } = points;
        let path = CString::new(binary.as_os_str().as_bytes())
            .map_err(|error| BpfError::attach(program.name(), error.into()))?;
        let handles = if program.is_multi() {
            attach_multi(program, &path, points, side).map(|link| vec![link])
        } else {
            attach_perf_events(program, &path, points, side)
        };
        match handles {
            Ok(handles) => Ok(Self { _handles: handles }),
            Err(error) if is_denied(&error) => Err(BpfError::denied("attach BPF programs")),
            Err(source) => Err(BpfError::attach(program.name(), source)),
        }
    }
}

/// Links that are detached together. Detaching one takes some 50 ms, until no processor can be in
/// its program; so they are dropped in parallel.
#[derive(Debug, Default)]
pub(crate) struct BpfLinks(Vec<BpfLink>);

impl BpfLinks {
    pub(crate) fn push(&mut self, link: BpfLink) {
        self.0.push(link);
    }
}

impl Drop for BpfLinks {
    fn drop(&mut self) {
        thread::scope(|scope| {
            for link in self.0.drain(..) {
                // If no thread can be started, the closure and its link are dropped here and now.
                let _ = thread::Builder::new().spawn_scoped(scope, move || drop(link));
            }
        });
    }
}

fn is_denied(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EPERM | libc::EACCES))
}

fn attach_multi(
    program: &Program,
    path: &CString,
    points: &[Point],
    side: UprobeKind,
) -> io::Result<OwnedFd> {
    let offsets: Vec<_> = points.iter().map(|point| point.offset).collect();
    let semaphores: Vec<_> = if points.iter().any(|point| point.semaphore.is_some()) {
        points.iter().map(|point| point.semaphore.unwrap_or(0)).collect()
    } else {
        Vec::new()
    };
    sys::attach_multi(program.fd(), path, &offsets, &semaphores, side == UprobeKind::Return)
}

fn attach_perf_events(
    program: &Program,
    path: &CString,
    points: &[Point],
    side: UprobeKind,
) -> io::Result<Vec<OwnedFd>> {
    let event_type = fs::read_to_string("/sys/bus/event_source/devices/uprobe/type")?;
    let event_type = event_type.trim().parse().map_err(io::Error::other)?;
    let mut handles = Vec::new();
    for point in points {
        let semaphore = point.semaphore.unwrap_or(0);
        let at_return = side == UprobeKind::Return;
        let event = sys::open_uprobe(event_type, path, point.offset, semaphore, at_return)?;
        handles.push(sys::attach_to_event(program.fd(), event.as_fd())?);
        handles.push(event);
    }
    Ok(handles)
}

#[cfg(test)]
mod tests {
    use std::arch::naked_asm;

    use super::*;
    use crate::{
        bpf::{Assembler, CounterMap, supports_uprobe_multi},
        calibrate::own_file_offset,
        capability::Capabilities,
    };

    #[unsafe(naked)]
    extern "C" fn watched() {
        naked_asm!("push rbp", "pop rbp", "ret")
    }

    #[unsafe(naked)]
    extern "C" fn watched_together() {
        naked_asm!("push rbp", "pop rbp", "nop", "ret")
    }

    /// A program that counts its hits.
    fn counting_program(counters: &CounterMap) -> Assembler {
        let mut program = Assembler::default();
        counters.increment(&mut program, 0, -8);
        program.exit();
        program
    }

    #[test]
    fn dropping_links_detaches_all() {
        if !Capabilities::current().may_trace() {
            return;
        }
        let offset = own_file_offset(watched_together as *const () as u64).unwrap();
        let points = [Point { offset, semaphore: None }];
        let points = FilePoints { binary: Path::new("/proc/self/exe"), points: &points };
        let counters = CounterMap::new(1).unwrap();
        let program = Program::load("count", counting_program(&counters)).unwrap();
        let mut links = BpfLinks::default();
        (0..5).for_each(|_| {
            links.push(BpfLink::attach(&program, points, UprobeKind::Entry).unwrap());
        });
        watched_together();
        drop(links);
        watched_together();
        assert_eq!(counters.value(0).unwrap(), 5);
    }

    #[test]
    fn both_link_kinds_see_every_hit_until_dropped() {
        if !Capabilities::current().may_trace() {
            return;
        }
        let offset = own_file_offset(watched as *const () as u64).unwrap();
        let point = Point { offset, semaphore: None };
        let points = FilePoints { binary: Path::new("/proc/self/exe"), points: &[point] };
        let kinds: &[bool] = if supports_uprobe_multi() { &[true, false] } else { &[false] };
        for is_multi in kinds {
            for side in [UprobeKind::Entry, UprobeKind::Return] {
                let counters = CounterMap::new(1).unwrap();
                let program =
                    Program::load_as("count", counting_program(&counters), *is_multi).unwrap();
                let link = BpfLink::attach(&program, points, side).unwrap();
                (0..10).for_each(|_| watched());
                drop(link);
                watched();
                assert_eq!(counters.value(0).unwrap(), 10, "{is_multi} {side:?}");
            }
        }
    }
}
