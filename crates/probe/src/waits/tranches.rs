//! What extensions called their lightweight locks.
//!
//! An extension that is loaded with the server (`shared_preload_libraries`) asks for its locks by name then.
//! `NamedLWLockTrancheArray` points to as many entries as `NamedLWLockTrancheRequests` says, 16 bytes each:
//! the number, at 0, and a pointer to the name, at 8, all in shared memory. Source:
//! `NamedLWLockTranche` in `lwlock.h`, the same in 14 to 18; numbers are given out from the first one free on
//! (`InitializeLWLocks()` in `lwlock.c`), by which the layout is checked.
//!
//! Locks that an extension makes later have names only in the processes that asked for one, and those
//! stay numbers here.

use std::{
    collections::HashSet,
    sync::{Mutex, PoisonError},
};

use howdah_inspect::{Error, Memory, Server};

/// The names, from the first number that extensions get. None where they cannot be read: the numbers do
/// without.
pub(super) fn of(server: &Server, first: u16) -> Vec<&'static str> {
    read(server, first).ok().flatten().unwrap_or_default()
}

/// `None` where what is there cannot be the array.
fn read(server: &Server, first: u16) -> Result<Option<Vec<&'static str>>, Error> {
    let (memory, binary) = (server.memory(), server.binary());
    let count = memory.int(binary.address("NamedLWLockTrancheRequests")?)?;
    let Some(count) = u16::try_from(count).ok().filter(|&count| count <= NAMES_MAX) else {
        return Ok(None);
    };
    let array = memory.pointer(binary.address("NamedLWLockTrancheArray")?)?;
    (0..count).map(|index| entry(memory, array + u64::from(index) * 16, first + index)).collect()
}

fn entry(memory: Memory, address: u64, number: u16) -> Result<Option<&'static str>, Error> {
    if memory.int(address)? != i32::from(number) {
        return Ok(None);
    }
    let name = memory.text(memory.pointer(address + 8)?, NAME_BYTES)?;
    let name = String::from_utf8_lossy(&name);
    let is_name = !name.is_empty() && !name.contains(char::is_control);
    Ok(if is_name { kept(&name) } else { None })
}

/// The name, kept as long as this process runs, so that an event is a small value whichever server it is
/// of. Few: a name is kept once, and after [`NAMES_MAX`] there is no room for others.
pub(super) fn kept(name: &str) -> Option<&'static str> {
    static NAMES: Mutex<Option<HashSet<&'static str>>> = Mutex::new(None);
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    let names = names.get_or_insert_default();
    if let Some(&name) = names.get(name) {
        return Some(name);
    }
    let has_room = names.len() < usize::from(NAMES_MAX);
    has_room.then(|| {
        let name: &'static str = Box::leak(name.into());
        names.insert(name);
        name
    })
}

/// More than any server has.
const NAMES_MAX: u16 = 1000;

/// `NAMEDATALEN` with its NUL, to which the server holds.
const NAME_BYTES: usize = 64;

#[test]
fn a_name_is_kept_once() {
    let again = String::from("pg_stat_statements");
    let (first, again) = (kept("pg_stat_statements"), kept(&again));
    assert!(first.is_some_and(|first| again.is_some_and(|again| std::ptr::eq(first, again))));
}
