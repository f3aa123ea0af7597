//! System calls: `bpf(2)`, `perf_event_open(2)` and the shared mapping of a ring. Results are owned
//! file descriptors and plain values.

#![expect(unsafe_code, reason = "the system calls have no safe wrapper without a C library")]

use std::{
    ffi::{CStr, c_int, c_long, c_void},
    io,
    os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd},
    ptr::{self, NonNull},
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
};

use super::assembler::BpfInstruction;

/// Commands of bpf(2): `enum bpf_cmd`.
#[derive(Clone, Copy)]
#[repr(i32)]
enum BpfCommand {
    MapCreate = 0,
    MapLookup = 1,
    ProgramLoad = 5,
    InfoByFd = 15,
    LinkCreate = 28,
}

/// Kinds of maps: `enum bpf_map_type`.
#[derive(Clone, Copy)]
#[repr(u32)]
pub(super) enum MapType {
    Array = 2,
    Stacks = 7,
    LruHash = 9,
    Ring = 27,
}

/// `BPF_PROG_TYPE_KPROBE`, which uprobes use as well.
const PROGRAM_TYPE: u32 = 2;
/// `BPF_TRACE_UPROBE_MULTI`.
pub(super) const UPROBE_MULTI: u32 = 48;
/// `BPF_PERF_EVENT`.
const PERF_EVENT: u32 = 41;
/// `BPF_F_UPROBE_MULTI_RETURN`.
const MULTI_RETURN: u32 = 1;

/// The part of `union bpf_attr` used to create a map.
#[repr(C)]
struct MapCreate {
    map_type: u32,
    key_bytes: u32,
    value_bytes: u32,
    entries_max: u32,
}

#[repr(C)]
struct MapElement {
    map_fd: u32,
    padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

#[repr(C)]
struct ProgramLoad {
    program_type: u32,
    instruction_count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_bytes: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
    interface: u32,
    expected_attach_type: u32,
}

#[repr(C)]
struct LinkCreate {
    program_fd: u32,
    target_fd: u32,
    attach_type: u32,
    flags: u32,
    /// The cookie for a perf event; the path for many uprobes.
    first: u64,
    offsets: u64,
    semaphores: u64,
    cookies: u64,
    count: u32,
    multi_flags: u32,
    pid: u32,
    padding: u32,
}

#[repr(C)]
struct InfoByFd {
    fd: u32,
    info_bytes: u32,
    info: u64,
}

/// The first fields of `struct perf_event_attr`: 64 bytes (`PERF_ATTR_SIZE_VER0`) and eight more.
#[repr(C)]
struct PerfEvent {
    event_type: u32,
    bytes: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    breakpoint_type: u32,
    /// Address of the binary's path, in the memory of this process.
    config1: u64,
    /// Offset of the instruction in the binary.
    config2: u64,
}

fn bpf<T>(command: BpfCommand, attributes: &mut T) -> io::Result<c_long> {
    let bytes = size_of::<T>();
    // SAFETY: the attributes are a structure of plain numbers that lives through the call. Pointers
    // in it are to memory that the caller borrows until the call returns.
    let result =
        unsafe { libc::syscall(libc::SYS_bpf, command as c_int, ptr::from_mut(attributes), bytes) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn into_owned_fd(result: io::Result<c_long>) -> io::Result<OwnedFd> {
    let fd = c_int::try_from(result?).map_err(io::Error::other)?;
    // SAFETY: the system call has just created the descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn raw_fd(fd: BorrowedFd<'_>) -> u32 {
    fd.as_raw_fd().unsigned_abs()
}

fn address<T: ?Sized>(of: &T) -> u64 {
    ptr::from_ref(of).cast::<c_void>() as u64
}

/// Creates a map with keys and values of fixed size.
pub(super) fn create_map(
    map_type: MapType,
    key_bytes: u32,
    value_bytes: u32,
    entries_max: u32,
) -> io::Result<OwnedFd> {
    let map_type = map_type as u32;
    let mut attributes = MapCreate { map_type, key_bytes, value_bytes, entries_max };
    into_owned_fd(bpf(BpfCommand::MapCreate, &mut attributes))
}

/// Copies the value of a four-byte key into `value`, which has the length of the map's values.
pub(super) fn lookup_value(map: BorrowedFd<'_>, key: u32, value: &mut [u64]) -> io::Result<()> {
    let mut attributes = MapElement {
        map_fd: raw_fd(map),
        padding: 0,
        key: address(&key),
        value: value.as_mut_ptr() as u64,
        flags: 0,
    };
    bpf(BpfCommand::MapLookup, &mut attributes).map(drop)
}

/// Verifies and loads a program. The verifier's messages go to `log` unless it is empty.
pub(super) fn load_program(
    name: &str,
    code: &[BpfInstruction],
    expected_attach_type: u32,
    log: &mut [u8],
) -> io::Result<OwnedFd> {
    let mut short_name = [0; 16];
    for (to, from) in short_name.iter_mut().take(15).zip(name.bytes()) {
        *to = from;
    }
    // Helpers that read memory require a GPL-compatible licence.
    let license = c"GPL";
    let mut attributes = ProgramLoad {
        program_type: PROGRAM_TYPE,
        instruction_count: u32::try_from(code.len()).unwrap_or(u32::MAX),
        instructions: code.as_ptr() as u64,
        license: license.as_ptr() as u64,
        log_level: u32::from(!log.is_empty()),
        log_bytes: u32::try_from(log.len()).unwrap_or(0),
        log: if log.is_empty() { 0 } else { log.as_mut_ptr() as u64 },
        kernel_version: 0,
        flags: 0,
        name: short_name,
        interface: 0,
        expected_attach_type,
    };
    into_owned_fd(bpf(BpfCommand::ProgramLoad, &mut attributes))
}

/// Returns the number of hits at which the kernel did not run the program, because another BPF
/// program was running on the processor: `recursion_misses` of `struct bpf_prog_info`.
pub(super) fn recursion_misses(program: BorrowedFd<'_>) -> io::Result<u64> {
    const MISSES_AT: usize = 208;
    let mut info = [0_u8; MISSES_AT + 8];
    let mut attributes = InfoByFd {
        fd: raw_fd(program),
        info_bytes: info.len() as u32,
        info: info.as_mut_ptr() as u64,
    };
    bpf(BpfCommand::InfoByFd, &mut attributes)?;
    let misses = info.last_chunk().copied().unwrap_or_default();
    Ok(u64::from_ne_bytes(misses))
}

/// Attaches a program to many points of a file at once. `semaphores` is empty or as long as
/// `offsets`.
pub(super) fn attach_multi(
    program: BorrowedFd<'_>,
    path: &CStr,
    offsets: &[u64],
    semaphores: &[u64],
    at_return: bool,
) -> io::Result<OwnedFd> {
    let mut attributes = LinkCreate {
        program_fd: raw_fd(program),
        target_fd: 0,
        attach_type: UPROBE_MULTI,
        flags: 0,
        first: path.as_ptr() as u64,
        offsets: offsets.as_ptr() as u64,
        semaphores: if semaphores.is_empty() { 0 } else { semaphores.as_ptr() as u64 },
        cookies: 0,
        count: u32::try_from(offsets.len()).unwrap_or(u32::MAX),
        multi_flags: if at_return { MULTI_RETURN } else { 0 },
        pid: 0,
        padding: 0,
    };
    into_owned_fd(bpf(BpfCommand::LinkCreate, &mut attributes))
}

/// Opens a perf event of type `event_type` for one point of a file, for all processes. `semaphore`
/// is 0 if there is none.
pub(super) fn open_uprobe(
    event_type: u32,
    path: &CStr,
    offset: u64,
    semaphore: u64,
    at_return: bool,
) -> io::Result<OwnedFd> {
    /// `PERF_FLAG_FD_CLOEXEC`.
    const CLOSE_ON_EXEC: u64 = 8;
    let event = PerfEvent {
        event_type,
        bytes: size_of::<PerfEvent>() as u32,
        config: u64::from(at_return) | semaphore << 32,
        sample_period: 0,
        sample_type: 0,
        read_format: 0,
        flags: 0,
        wakeup_events: 0,
        breakpoint_type: 0,
        config1: path.as_ptr() as u64,
        config2: offset,
    };
    let (any_process, first_processor, no_group) = (-1, 0, -1);
    // SAFETY: the event is a structure of plain numbers; the path in it lives through the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            ptr::from_ref(&event),
            any_process,
            first_processor,
            no_group,
            CLOSE_ON_EXEC,
        )
    };
    into_owned_fd(if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) })
}

/// Attaches a program to a perf event.
pub(super) fn attach_to_event(
    program: BorrowedFd<'_>,
    event: BorrowedFd<'_>,
) -> io::Result<OwnedFd> {
    let mut attributes = LinkCreate {
        program_fd: raw_fd(program),
        target_fd: raw_fd(event),
        attach_type: PERF_EVENT,
        flags: 0,
        first: 0,
        offsets: 0,
        semaphores: 0,
        cookies: 0,
        count: 0,
        multi_flags: 0,
        pid: 0,
        padding: 0,
    };
    into_owned_fd(bpf(BpfCommand::LinkCreate, &mut attributes))
}

/// The two mappings of a ring: one page that this process writes, and the part that the kernel
/// writes.
#[derive(Debug)]
pub(super) struct RingMemory {
    consumer: NonNull<u8>,
    producer: NonNull<u8>,
    page_bytes: usize,
    data_bytes: usize,
}

// SAFETY: the mappings belong to the process, not to the thread that created them.
unsafe impl Send for RingMemory {}

impl RingMemory {
    /// Maps a ring of `data_bytes`.
    pub(super) fn map(ring: BorrowedFd<'_>, data_bytes: usize) -> io::Result<Self> {
        // SAFETY: only returns a number.
        let page_bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        let page_bytes = usize::try_from(page_bytes).map_err(io::Error::other)?;
        let consumer = map(ring, page_bytes, 0, libc::PROT_READ | libc::PROT_WRITE)?;
        // The data is mapped twice in a row, so no record is split at the ring's end.
        let producer = map(ring, page_bytes + 2 * data_bytes, page_bytes, libc::PROT_READ);
        let producer = producer.inspect_err(|_| unmap(consumer, page_bytes))?;
        Ok(Self { consumer, producer, page_bytes, data_bytes })
    }

    /// Returns the position up to which this process has read.
    pub(super) fn consumed(&self) -> &AtomicU64 {
        // SAFETY: the mapping starts with the position, aligned, and lives as long as `self`; the
        // kernel reads it, and nothing else is derived from it here.
        unsafe { self.consumer.cast::<AtomicU64>().as_ref() }
    }

    /// Returns the position up to which the kernel has written.
    pub(super) fn produced(&self) -> u64 {
        // SAFETY: as above, for the other mapping, which the kernel writes.
        let position = unsafe { self.producer.cast::<AtomicU64>().as_ref() };
        position.load(Ordering::Acquire)
    }

    /// Returns the header of the record at `position`: length and state.
    pub(super) fn header(&self, position: u64) -> u32 {
        // SAFETY: the position is taken modulo the ring, and records are aligned to eight bytes.
        let header = unsafe { self.data(position).cast::<AtomicU32>().as_ref() };
        header.load(Ordering::Acquire)
    }

    /// Returns the payload of the record at `position`, which must be complete.
    pub(super) fn record(&self, position: u64, bytes: usize) -> &[u8] {
        let bytes = bytes.min(self.data_bytes);
        // SAFETY: the kernel does not write to a finished record until `RingBuffer` marks it as
        // consumed, which it does after releasing the slice; the record ends within the second
        // mapping of the data.
        unsafe { std::slice::from_raw_parts(self.data(position).add(8).as_ptr(), bytes) }
    }

    fn data(&self, position: u64) -> NonNull<u8> {
        let at = (position as usize & (self.data_bytes - 1)) & !7;
        // SAFETY: within the mapping: `at` is less than the ring, which is a power of two.
        unsafe { self.producer.add(self.page_bytes + at) }
    }
}

impl Drop for RingMemory {
    fn drop(&mut self) {
        unmap(self.consumer, self.page_bytes);
        unmap(self.producer, self.page_bytes + 2 * self.data_bytes);
    }
}

fn map(
    of: BorrowedFd<'_>,
    bytes: usize,
    offset: usize,
    protection: c_int,
) -> io::Result<NonNull<u8>> {
    let offset = libc::off_t::try_from(offset).map_err(io::Error::other)?;
    // SAFETY: a new mapping, at an address of the kernel's choice.
    let memory = unsafe {
        libc::mmap(ptr::null_mut(), bytes, protection, libc::MAP_SHARED, of.as_raw_fd(), offset)
    };
    if memory == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(memory.cast::<u8>()).ok_or_else(io::Error::last_os_error)
}

fn unmap(memory: NonNull<u8>, bytes: usize) {
    // SAFETY: the mapping is ours and nothing borrows from it any more.
    unsafe { libc::munmap(memory.as_ptr().cast(), bytes) };
}
