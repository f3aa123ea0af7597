//! The source positions that contended spinlocks were requested from, read from the server's
//! memory.
//!
//! `s_lock(lock, file, line, func)` is called with pointers to constant strings of the binary or of
//! a library. The BPF program sends the pointers; the strings are read here, once for each
//! position.

use std::{borrow::Cow, collections::HashMap};

use howdah_inspect::ProcessMemory;

/// A source position in the server, as [`CallDurations::caller`](super::CallDurations::caller)
/// names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CallerId(u32);

/// The arguments of `s_lock` that name its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct CallerArgs {
    pub(super) file: u64,
    pub(super) line: u32,
    pub(super) function: u64,
}

/// The positions seen so far.
#[derive(Debug)]
pub(super) struct Callers {
    /// Memory of the postmaster, which has the strings of the binary and of preloaded libraries at
    /// the same addresses as its children.
    postmaster: ProcessMemory,
    /// `None` for a position that cannot be read.
    ids: HashMap<CallerArgs, Option<CallerId>>,
    names: Vec<String>,
}

/// Maximum number of positions; the server's code has some 200. The callers of others are unknown.
const CALLERS_MAX: usize = 4096;
/// Maximum length of a path and of a function's name, in bytes.
const TEXT_MAX: usize = 256;

impl Callers {
    pub(super) fn new(postmaster: ProcessMemory) -> Self {
        Self { postmaster, ids: HashMap::new(), names: Vec::new() }
    }

    /// Returns the position that the arguments of a call by process `pid` name; `None` if they
    /// cannot be read.
    pub(super) fn resolve(&mut self, pid: u32, args: CallerArgs) -> Option<CallerId> {
        if let Some(id) = self.ids.get(&args) {
            return *id;
        }
        if self.ids.len() >= CALLERS_MAX {
            return None;
        }
        // The process may have exited, but only it has the strings of a library that it has loaded
        // itself.
        let name = caller_name(self.postmaster, args)
            .or_else(|| caller_name(ProcessMemory::for_pid(pid), args));
        let id = name.and_then(|name| {
            let id = CallerId(u32::try_from(self.names.len()).ok()?);
            self.names.push(name);
            Some(id)
        });
        self.ids.insert(args, id);
        id
    }

    pub(super) fn name(&self, id: CallerId) -> Option<&str> {
        self.names.get(id.0 as usize).map(String::as_str)
    }
}

fn caller_name(memory: ProcessMemory, args: CallerArgs) -> Option<String> {
    let text = |address| memory.text(address, TEXT_MAX).ok().filter(|text| !text.is_empty());
    let (file, function) = (text(args.file)?, text(args.function)?);
    Some(position(&file, args.line, &function))
}

/// Formats a position as `XLogInsertRecord (xlog.c:950)`.
fn position(path: &[u8], line: u32, function: &[u8]) -> String {
    let file = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
    let [file, function] = [file, function].map(String::from_utf8_lossy);
    let [file, function] = [&file, &function]
        .map(|text: &Cow<'_, str>| howdah_collect::sanitized_line(text).into_owned());
    format!("{function} ({file}:{line})")
}

#[test]
fn position_has_the_file_without_its_folders() {
    let text = position(b"./build/../src/backend/access/transam/xlog.c", 950, b"XLogInsertRecord");
    assert_eq!(text, "XLogInsertRecord (xlog.c:950)");
    assert_eq!(position(b"a.c", 1, b"f\x1b[2J\xff").matches('\u{1b}').count(), 0);
}

#[test]
fn callers_are_read_once_and_unreadable_ones_are_unknown() {
    let pid = std::process::id();
    let (file, function) = (c"src/a.c", c"acquire");
    let args =
        CallerArgs { file: file.as_ptr() as u64, line: 7, function: function.as_ptr() as u64 };
    let mut callers = Callers::new(ProcessMemory::for_pid(pid));
    // The process is gone: the postmaster has the same strings.
    let id = callers.resolve(u32::MAX, args).expect("strings of this process can be read");
    assert_eq!(callers.name(id), Some("acquire (a.c:7)"));
    assert_eq!(callers.resolve(pid, args), Some(id));
    let unreadable = CallerArgs { file: 8, ..args };
    assert_eq!([callers.resolve(pid, unreadable), callers.resolve(pid, unreadable)], [None; 2]);
    assert_eq!(callers.ids.len(), 2);
    // A library that the postmaster has not loaded.
    let mut callers = Callers::new(ProcessMemory::for_pid(u32::MAX));
    assert!(callers.resolve(pid, args).is_some());
}
