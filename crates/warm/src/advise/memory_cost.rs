//! Estimates the cost of shared memory itself: a page fault for each memory page when it is first
//! touched, and a page table in each session.
//!
//! With pages of 4 kB, a newly started server takes two page faults per buffer it fills, and every
//! session needs 8 bytes of page table for each 4 kB it has ever touched (x86-64:
//! `pgtable_types.h`). Huge pages of 2 MB divide both by 512.

use howdah_connect::Client;
use howdah_inspect::{OsProcess, RunningServer};

use super::MemoryInfo;

/// Time of the first access to 4 kB of shared memory, in µs, measured on a virtual machine
/// (PostgreSQL 15, by loading the same pages twice). Bare metal is faster; only the order of
/// magnitude matters.
pub const FAULT_US: f64 = 1.67;

/// Size of a regular memory page and of a page table entry, in bytes.
const PAGE_BYTES: u64 = 4096;
const ENTRY_BYTES: u64 = 8;

/// The cost of page faults and page tables for shared memory, estimated for memory pages of 4 kB.
#[derive(Clone, Debug, PartialEq)]
pub struct MemoryCost {
    /// Size of shared memory in bytes; the size of the buffers if the server does not report it.
    pub bytes: u64,
    /// Page faults taken to fill the whole cache after a start, one per 4 kB.
    pub faults: u64,
    /// Processor time of these page faults, in seconds, at [`FAULT_US`] each.
    pub fault_seconds: f64,
    /// Page table of a session that has touched all of shared memory, in bytes.
    pub table_bytes_per_session: u64,
    /// Page tables of all current sessions, if each has touched all of shared memory, in bytes.
    pub table_bytes_now: u64,
    /// Page tables of `max_connections` sessions, if each has touched all of shared memory, in
    /// bytes.
    pub table_bytes_max: u64,
    /// Measured page tables of all processes of the server, in bytes; `None` if the server does not
    /// run on this host or cannot be inspected.
    pub table_bytes_measured: Option<u64>,
}

impl MemoryCost {
    pub(super) fn estimate(
        memory_info: &MemoryInfo,
        page_bytes: u64,
        buffers: u64,
        client: &mut Client,
    ) -> Self {
        let cache_bytes = page_bytes * buffers;
        let bytes = memory_info.shared_memory_bytes.unwrap_or(cache_bytes);
        let faults = cache_bytes / PAGE_BYTES;
        let table = bytes / PAGE_BYTES * ENTRY_BYTES;
        Self {
            bytes,
            faults,
            fault_seconds: faults as f64 * FAULT_US / 1e6,
            table_bytes_per_session: table,
            table_bytes_now: table * memory_info.sessions,
            table_bytes_max: table * memory_info.max_connections,
            table_bytes_measured: measure_page_tables(client),
        }
    }
}

/// Sums the page tables of the server's processes, `VmPTE` of proc_pid_status(5).
fn measure_page_tables(client: &mut Client) -> Option<u64> {
    let server = crate::dump::local_server(client).ok()?;
    Some(page_tables_bytes(&server))
}

fn page_tables_bytes(server: &RunningServer) -> u64 {
    let postmaster = server.postmaster();
    let children = postmaster.children().unwrap_or_default();
    children.into_iter().chain([postmaster]).map(table_bytes).sum()
}

fn table_bytes(process: OsProcess) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.pid()));
    status.ok().and_then(|status| table_kb(&status)).unwrap_or(0) << 10
}

fn table_kb(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmPTE:"))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok()
}

#[test]
fn page_table_size_is_parsed_from_status() {
    assert_eq!(table_kb("Name:\tpostgres\nVmPTE:\t     488 kB\nVmSwap:\t 0 kB\n"), Some(488));
    assert_eq!(table_kb("Name:\tkthread\n"), None);
    let own = std::fs::read_to_string("/proc/self/status").unwrap();
    assert!(table_kb(&own).is_some_and(|kb| kb > 0));
}
