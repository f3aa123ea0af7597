//! Programs attached to points of a binary. They stay while the link is held, and go with the process that
//! holds it, however that ends.
//!
//! Points are attached in the file, for all processes that run it: a filter by process id costs more than
//! the hits that it spares, and programs look for themselves whose they were run for.

use std::{
    ffi::CString,
    fs, io,
    os::{fd::AsFd as _, fd::OwnedFd, unix::ffi::OsStrExt as _},
    path::Path,
    thread,
};

use super::{program::Program, sys};
use crate::error::BpfError;

/// A place in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Point {
    /// Where its instruction lies in the file.
    pub(crate) offset: u64,
    /// Where the counter lies in the file that tells the code that somebody listens.
    pub(crate) semaphore: Option<u64>,
}

/// Places of one file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Points<'a> {
    /// The file: `/proc/PID/exe`, so that it is the one that runs.
    pub(crate) binary: &'a Path,
    pub(crate) points: &'a [Point],
}

/// When a program is run at a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Entry,
    Return,
}

/// An attachment.
#[derive(Debug)]
pub(crate) struct Link {
    _handles: Vec<OwnedFd>,
}

impl Link {
    /// Attaches a program to all `points`.
    pub(crate) fn attach(
        program: &Program,
        points: Points<'_>,
        side: Side,
    ) -> Result<Self, BpfError> {
        let Points { binary, points } = points;
        let path = CString::new(binary.as_os_str().as_bytes())
            .map_err(|error| BpfError::attach(program.name(), error.into()))?;
        let handles = if program.is_multi() {
            many(program, &path, points, side).map(|link| vec![link])
        } else {
            one_by_one(program, &path, points, side)
        };
        match handles {
            Ok(handles) => Ok(Self { _handles: handles }),
            Err(error) if is_denied(&error) => {
                Err(BpfError::denied("attach programs to another process"))
            }
            Err(source) => Err(BpfError::attach(program.name(), source)),
        }
    }
}

/// Attachments that are let go together. Before each, the kernel waits until no processor can be in its
/// program, some 50 ms; so they wait side by side.
#[derive(Debug, Default)]
pub(crate) struct Links(Vec<Link>);

impl Links {
    pub(crate) fn push(&mut self, link: Link) {
        self.0.push(link);
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        thread::scope(|scope| {
            for link in self.0.drain(..) {
                // Without a thread, the link goes with the closure: here and now.
                let _ = thread::Builder::new().spawn_scoped(scope, move || drop(link));
            }
        });
    }
}

fn is_denied(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EPERM | libc::EACCES))
}

fn many(program: &Program, path: &CString, points: &[Point], side: Side) -> io::Result<OwnedFd> {
    let offsets: Vec<_> = points.iter().map(|point| point.offset).collect();
    let semaphores: Vec<_> = match points.iter().any(|point| point.semaphore.is_some()) {
        true => points.iter().map(|point| point.semaphore.unwrap_or(0)).collect(),
        false => Vec::new(),
    };
    sys::attach_many(program.fd(), path, &offsets, &semaphores, side == Side::Return)
}

fn one_by_one(
    program: &Program,
    path: &CString,
    points: &[Point],
    side: Side,
) -> io::Result<Vec<OwnedFd>> {
    let event_type = fs::read_to_string("/sys/bus/event_source/devices/uprobe/type")?;
    let event_type = event_type.trim().parse().map_err(io::Error::other)?;
    let mut handles = Vec::new();
    for point in points {
        let semaphore = point.semaphore.unwrap_or(0);
        let at_return = side == Side::Return;
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
        bpf::{Assembler, Counters, has_multi},
        calibrate::own_offset,
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

    /// A program that counts its runs.
    fn counting(counters: &Counters) -> Assembler {
        let mut program = Assembler::default();
        counters.count(&mut program, 0, -8);
        program.exit();
        program
    }

    #[test]
    fn links_go_together() {
        if !Capabilities::own().may_trace() {
            return;
        }
        let offset = own_offset(watched_together as *const () as u64).unwrap();
        let points = [Point { offset, semaphore: None }];
        let points = Points { binary: Path::new("/proc/self/exe"), points: &points };
        let counters = Counters::new(1).unwrap();
        let program = Program::load("count", counting(&counters)).unwrap();
        let mut links = Links::default();
        (0..5).for_each(|_| links.push(Link::attach(&program, points, Side::Entry).unwrap()));
        watched_together();
        drop(links);
        watched_together();
        assert_eq!(counters.value(0).unwrap(), 5);
    }

    #[test]
    fn both_kinds_of_links_see_every_hit_until_they_are_dropped() {
        if !Capabilities::own().may_trace() {
            return;
        }
        let offset = own_offset(watched as *const () as u64).unwrap();
        let point = Point { offset, semaphore: None };
        let points = Points { binary: Path::new("/proc/self/exe"), points: &[point] };
        let kinds: &[bool] = if has_multi() { &[true, false] } else { &[false] };
        for is_multi in kinds {
            for side in [Side::Entry, Side::Return] {
                let counters = Counters::new(1).unwrap();
                let program = Program::load_as("count", counting(&counters), *is_multi).unwrap();
                let link = Link::attach(&program, points, side).unwrap();
                (0..10).for_each(|_| watched());
                drop(link);
                watched();
                assert_eq!(counters.value(0).unwrap(), 10, "{is_multi} {side:?}");
            }
        }
    }
}
