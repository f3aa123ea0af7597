//! Reads the names of the lightweight lock tranches of extensions.
//!
//! An extension loaded at server start (`shared_preload_libraries`) requests its locks by name at
//! that time. `NamedLWLockTrancheArray` points to `NamedLWLockTrancheRequests` entries of 16 bytes:
//! the tranche id at 0 and a pointer to the name at 8, all in shared memory. Source:
//! `NamedLWLockTranche` in `lwlock.h`, identical in 14 to 18. Ids are assigned consecutively from
//! the first free one (`InitializeLWLocks()` in `lwlock.c`), which serves to check the layout.
//!
//! Tranches registered later have a name only in the processes that registered them, so they are
//! reported by id.

use std::collections::HashSet;

use howdah_inspect::{InspectError, ProcessMemory, RunningServer};
use parking_lot::Mutex;

/// Returns the names of the tranches, in the order of their ids from `first` on. Empty if they
/// cannot be read; the locks are then shown by id.
pub(super) fn extension_tranches(server: &RunningServer, first: u16) -> Vec<&'static str> {
    read_tranches(server, first).ok().flatten().unwrap_or_default()
}

/// Reads the array; `None` if the memory is not such an array.
fn read_tranches(
    server: &RunningServer,
    first: u16,
) -> Result<Option<Vec<&'static str>>, InspectError> {
    let (memory, binary) = (server.memory(), server.binary());
    let count = memory.int(binary.address("NamedLWLockTrancheRequests")?)?;
    let Some(count) = u16::try_from(count).ok().filter(|&count| count <= NAMES_MAX) else {
        return Ok(None);
    };
    let array = memory.pointer(binary.address("NamedLWLockTrancheArray")?)?;
    (0..count)
        .map(|index| read_tranche(memory, array + u64::from(index) * 16, first + index))
        .collect()
}

fn read_tranche(
    memory: ProcessMemory,
    address: u64,
    number: u16,
) -> Result<Option<&'static str>, InspectError> {
    if memory.int(address)? != i32::from(number) {
        return Ok(None);
    }
    let name = memory.text(memory.pointer(address + 8)?, NAME_BYTES)?;
    let name = String::from_utf8_lossy(&name);
    let is_name = !name.is_empty() && !name.contains(char::is_control);
    Ok(if is_name { intern(&name) } else { None })
}

/// Interns a name for the life of this process, so that an event is a small value even if its name
/// is not built in. Returns `None` beyond [`NAMES_MAX`] names.
pub(super) fn intern(name: &str) -> Option<&'static str> {
    static NAMES: Mutex<Option<HashSet<&'static str>>> = Mutex::new(None);
    let mut names = NAMES.lock();
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

/// Maximum number of interned names, more than any server has.
const NAMES_MAX: u16 = 1000;

/// Size of a tranche name, `NAMEDATALEN`, including the NUL.
const NAME_BYTES: usize = 64;

#[test]
fn tranche_name_is_interned_once() {
    let again = String::from("pg_stat_statements");
    let (first, again) = (intern("pg_stat_statements"), intern(&again));
    assert!(first.is_some_and(|first| again.is_some_and(|again| std::ptr::eq(first, again))));
}
