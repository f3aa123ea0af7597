//! Kernel events of one process with their user stacks: `perf_event_open(2)` and its ring of
//! records.
//!
//! Source: the manual page; `include/uapi/linux/perf_event.h`.

#![expect(unsafe_code, reason = "the system calls have no safe wrapper without a C library")]

use std::{
    ffi::{c_int, c_long},
    io,
    os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd},
    ptr::{self, NonNull},
    sync::atomic::{AtomicU64, Ordering},
};

/// The events to record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StackEvent {
    /// Samples while the process runs, in Hz of its CPU time.
    OnCpu {
        frequency: u32,
        /// Whether samples in the kernel count, which needs permission.
        has_kernel: bool,
    },
    /// Each time that the process leaves the CPU, and each time that it returns.
    Switches,
}

/// A decoded record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PerfRecord {
    /// The process was sampled on the CPU, or leaves it.
    Stack {
        /// Nanoseconds of `CLOCK_MONOTONIC`.
        time_ns: u64,
        in_kernel: bool,
        /// Code addresses in user space, innermost first.
        addresses: Vec<u64>,
    },
    /// The process has left the CPU.
    Out { is_preempted: bool },
    /// The process is on the CPU again.
    In { time_ns: u64 },
    /// The ring was full: number of lost records.
    Lost(u64),
}

/// An event that is being recorded.
#[derive(Debug)]
pub(super) struct ProcessEvents {
    _fd: OwnedFd,
    ring: PerfRing,
}

/// The mapped ring: a page of positions, and the data.
#[derive(Debug)]
struct PerfRing {
    memory: NonNull<u8>,
    page_bytes: usize,
    data_bytes: usize,
}

/// `struct perf_event_attr` up to `PERF_ATTR_SIZE_VER5`.
#[repr(C)]
struct EventAttributes {
    event_type: u32,
    bytes: u32,
    config: u64,
    period_or_frequency: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    breakpoint_type: u32,
    config1: u64,
    config2: u64,
    branch_sample_type: u64,
    sample_regs_user: u64,
    sample_stack_user: u32,
    clock: i32,
    sample_regs_intr: u64,
    aux_watermark: u32,
    sample_max_stack: u16,
    padding: u16,
}

const TYPE_SOFTWARE: u32 = 1;
const CPU_CLOCK: u64 = 0;
const CONTEXT_SWITCHES: u64 = 3;
/// `PERF_SAMPLE_TID`, `PERF_SAMPLE_TIME` and `PERF_SAMPLE_CALLCHAIN`.
const SAMPLE_TYPE: u64 = 1 << 1 | 1 << 2 | 1 << 5;
const EXCLUDE_KERNEL: u64 = 1 << 5;
const EXCLUDE_HYPERVISOR: u64 = 1 << 6;
const IS_FREQUENCY: u64 = 1 << 10;
const SAMPLE_ID_ALL: u64 = 1 << 18;
const EXCLUDE_CALLCHAIN_KERNEL: u64 = 1 << 21;
const USE_CLOCK: u64 = 1 << 25;
const CONTEXT_SWITCH: u64 = 1 << 26;
/// `PERF_FLAG_FD_CLOEXEC`.
const CLOSE_ON_EXEC: u64 = 8;

const RECORD_LOST: u32 = 2;
const RECORD_SAMPLE: u32 = 9;
const RECORD_SWITCH: u32 = 14;
const MODE_MASK: u16 = 7;
const MODE_KERNEL: u16 = 1;
const SWITCH_OUT: u16 = 1 << 13;
const SWITCH_OUT_PREEMPTED: u16 = 1 << 14;
/// Values from here on mark what kind of addresses come next (`PERF_CONTEXT_MAX`).
const CONTEXT_MARKS: u64 = 4095_u64.wrapping_neg();

/// Offsets in `struct perf_event_mmap_page`.
const HEAD_AT: usize = 1024;
const TAIL_AT: usize = 1032;
const HEADER_BYTES: u64 = 8;

/// Maximum number of addresses of a stack.
pub(super) const STACK_MAX: u16 = 127;

impl ProcessEvents {
    /// Starts recording the events of the process. The ring has `data_pages`, a power of two.
    pub(super) fn open(pid: u32, event: StackEvent, data_pages: usize) -> io::Result<Self> {
        let common = EXCLUDE_HYPERVISOR | SAMPLE_ID_ALL | EXCLUDE_CALLCHAIN_KERNEL | USE_CLOCK;
        let (config, period_or_frequency, flags) = match event {
            StackEvent::OnCpu { frequency, has_kernel } => {
                let kernel = if has_kernel { 0 } else { EXCLUDE_KERNEL };
                (CPU_CLOCK, u64::from(frequency), IS_FREQUENCY | kernel)
            }
            StackEvent::Switches => (CONTEXT_SWITCHES, 1, CONTEXT_SWITCH),
        };
        let attributes = EventAttributes {
            event_type: TYPE_SOFTWARE,
            bytes: size_of::<EventAttributes>() as u32,
            config,
            period_or_frequency,
            sample_type: SAMPLE_TYPE,
            read_format: 0,
            flags: common | flags,
            wakeup_events: 0,
            breakpoint_type: 0,
            config1: 0,
            config2: 0,
            branch_sample_type: 0,
            sample_regs_user: 0,
            sample_stack_user: 0,
            clock: libc::CLOCK_MONOTONIC,
            sample_regs_intr: 0,
            aux_watermark: 0,
            sample_max_stack: STACK_MAX,
            padding: 0,
        };
        let pid = c_int::try_from(pid).map_err(io::Error::other)?;
        let (any_processor, no_group) = (-1, -1);
        // SAFETY: the attributes are a structure of plain numbers that lives through the call.
        let result: c_long = unsafe {
            libc::syscall(
                libc::SYS_perf_event_open,
                ptr::from_ref(&attributes),
                pid,
                any_processor,
                no_group,
                CLOSE_ON_EXEC,
            )
        };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        let fd = c_int::try_from(result).map_err(io::Error::other)?;
        // SAFETY: the system call has just created the descriptor, and nothing else owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let ring = PerfRing::map(&fd, data_pages)?;
        Ok(Self { _fd: fd, ring })
    }

    /// Passes all available records to `visit`.
    pub(super) fn drain(&mut self, mut visit: impl FnMut(PerfRecord)) {
        let head = self.ring.position(HEAD_AT).load(Ordering::Acquire);
        let mut tail = self.ring.position(TAIL_AT).load(Ordering::Relaxed);
        let mut record = Vec::new();
        while tail < head {
            record.clear();
            self.ring.copy(tail, HEADER_BYTES, &mut record);
            let bytes = u64::from(u16_at(&record, 6));
            // Cannot happen, and would never end.
            if bytes < HEADER_BYTES || bytes > head - tail {
                tail = head;
                break;
            }
            self.ring.copy(tail + HEADER_BYTES, bytes - HEADER_BYTES, &mut record);
            if let Some(record) = decode(&record) {
                visit(record);
            }
            tail += bytes;
        }
        // From here on the kernel may overwrite the records.
        self.ring.position(TAIL_AT).store(tail, Ordering::Release);
    }
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    let found = bytes.get(at..).and_then(|rest| rest.first_chunk());
    u16::from_ne_bytes(found.copied().unwrap_or_default())
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let found = bytes.get(at..).and_then(|rest| rest.first_chunk());
    u32::from_ne_bytes(found.copied().unwrap_or_default())
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let found = bytes.get(at..).and_then(|rest| rest.first_chunk());
    u64::from_ne_bytes(found.copied().unwrap_or_default())
}

/// Decodes a record with its header; `None` if its kind is of no interest.
///
/// After the header, a sample has process and thread id, time, number of addresses and addresses; a
/// switch has process and thread id and time; a loss has the event's id and the number of records.
fn decode(record: &[u8]) -> Option<PerfRecord> {
    let misc = u16_at(record, 4);
    match u32_at(record, 0) {
        RECORD_SAMPLE => {
            let count = usize::try_from(u64_at(record, 24)).unwrap_or(usize::MAX);
            let addresses = record.get(32..)?.as_chunks::<8>().0.iter().take(count);
            let addresses = addresses.map(|bytes| u64::from_ne_bytes(*bytes));
            Some(PerfRecord::Stack {
                time_ns: u64_at(record, 16),
                in_kernel: misc & MODE_MASK == MODE_KERNEL,
                addresses: addresses
                    .filter(|address| (1..CONTEXT_MARKS).contains(address))
                    .collect(),
            })
        }
        RECORD_SWITCH if misc & SWITCH_OUT != 0 => {
            Some(PerfRecord::Out { is_preempted: misc & SWITCH_OUT_PREEMPTED != 0 })
        }
        RECORD_SWITCH => Some(PerfRecord::In { time_ns: u64_at(record, 16) }),
        RECORD_LOST => Some(PerfRecord::Lost(u64_at(record, 16))),
        _ => None,
    }
}

impl PerfRing {
    fn map(fd: &OwnedFd, data_pages: usize) -> io::Result<Self> {
        // SAFETY: only returns a number.
        let page_bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        let page_bytes = usize::try_from(page_bytes).map_err(io::Error::other)?;
        let data_bytes = data_pages * page_bytes;
        // SAFETY: a new mapping, at an address of the kernel's choice.
        let memory = unsafe {
            libc::mmap(
                ptr::null_mut(),
                page_bytes + data_bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                fd.as_raw_fd(),
                0,
            )
        };
        if memory == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let memory = NonNull::new(memory.cast::<u8>()).ok_or_else(io::Error::last_os_error)?;
        Ok(Self { memory, page_bytes, data_bytes })
    }

    /// Returns a position in the first page: up to where the kernel has written, or this process
    /// has read.
    fn position(&self, at: usize) -> &AtomicU64 {
        // SAFETY: both offsets are aligned and inside the first page, which lives as long as
        // `self` and is accessed through atomics only.
        unsafe { self.memory.add(at).cast::<AtomicU64>().as_ref() }
    }

    /// Appends `bytes` from `position` on, which may continue at the ring's start.
    fn copy(&self, position: u64, bytes: u64, into: &mut Vec<u8>) {
        let bytes = usize::try_from(bytes).unwrap_or(0).min(self.data_bytes);
        let at = position as usize & (self.data_bytes - 1);
        let first = bytes.min(self.data_bytes - at);
        for (at, bytes) in [(at, first), (0, bytes - first)] {
            // SAFETY: inside the data, and before the kernel's position, which the caller has read
            // with acquire ordering; the kernel writes there only after `drain` moves the tail.
            let data = unsafe {
                std::slice::from_raw_parts(self.memory.add(self.page_bytes + at).as_ptr(), bytes)
            };
            into.extend_from_slice(data);
        }
    }
}

impl Drop for PerfRing {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and nothing borrows from it any more.
        unsafe { libc::munmap(self.memory.as_ptr().cast(), self.page_bytes + self.data_bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(kind: u32, misc: u16, fields: &[u64]) -> Vec<u8> {
        let mut bytes = kind.to_ne_bytes().to_vec();
        bytes.extend(misc.to_ne_bytes());
        bytes.extend((8 + 8 * fields.len() as u16).to_ne_bytes());
        fields.iter().for_each(|field| bytes.extend(field.to_ne_bytes()));
        bytes
    }

    #[test]
    fn records_are_decoded() {
        let marker = 512_u64.wrapping_neg();
        let sample = record(RECORD_SAMPLE, MODE_KERNEL, &[1, 5, 3, marker, 0x10, 0x20]);
        assert_eq!(
            decode(&sample),
            Some(PerfRecord::Stack { time_ns: 5, in_kernel: true, addresses: vec![0x10, 0x20] })
        );
        let out = SWITCH_OUT | SWITCH_OUT_PREEMPTED;
        let out = decode(&record(RECORD_SWITCH, out, &[1, 6]));
        assert_eq!(out, Some(PerfRecord::Out { is_preempted: true }));
        assert_eq!(decode(&record(RECORD_SWITCH, 0, &[1, 7])), Some(PerfRecord::In { time_ns: 7 }));
        assert_eq!(decode(&record(RECORD_LOST, 0, &[1, 8])), Some(PerfRecord::Lost(8)));
        assert_eq!(decode(&record(3, 0, &[1])), None);
    }

    #[test]
    fn truncated_record_does_not_panic() {
        let sample = record(RECORD_SAMPLE, 0, &[1, 5, u64::MAX, 0x10]);
        (0..=sample.len()).for_each(|end| drop(decode(&sample[..end])));
    }

    #[test]
    fn busy_thread_is_sampled() {
        let event = StackEvent::OnCpu { frequency: 999, has_kernel: false };
        // SAFETY: only returns a number.
        let thread = unsafe { libc::gettid() }.unsigned_abs();
        // The kernel may forbid it (`kernel.perf_event_paranoid`, seccomp).
        let Ok(mut event) = ProcessEvents::open(thread, event, 8) else { return };
        let start = std::time::Instant::now();
        let mut samples = 0;
        while samples == 0 {
            assert!(start.elapsed().as_secs() < 60, "no sample");
            for number in 0..100_000_u64 {
                let _ = std::hint::black_box(number);
            }
            event.drain(|record| {
                samples += u32::from(matches!(record, PerfRecord::Stack { .. }));
            });
        }
    }
}
