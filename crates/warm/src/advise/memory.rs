//! What shared memory costs before it holds anything: a page fault for each page of the processor that
//! is touched the first time, and a page table in each session.
//!
//! With pages of 4 kB, a just started server faults once for each half of a buffer it fills, and every
//! session needs 8 bytes of page table for each 4 kB that it ever touched (x86-64: `pgtable_types.h`).
//! Huge pages of 2 MB take one of 512 of both.

use howdah_connect::Client;
use howdah_inspect::{Process, Server};

use super::Facts;

/// Microseconds that a first touch of 4 kB of shared memory took on one machine with virtual processors
/// (PostgreSQL 15, from timing the same load twice). Bare metal is faster; it is the order that counts.
pub const FAULT_US: f64 = 1.67;

/// Bytes of a common page, and of an entry in a page table.
const PAGE_BYTES: u64 = 4096;
const ENTRY_BYTES: u64 = 8;

/// What the memory itself costs.
#[derive(Clone, Debug, PartialEq)]
pub struct MemoryCost {
    /// Shared memory in bytes; where the server does not say, that of its buffers.
    pub bytes: u64,
    /// First touches, one for each 4 kB, until all of the cache is filled after a start.
    pub faults: u64,
    /// Seconds of processor time they take, at [`FAULT_US`] each.
    pub fault_seconds: f64,
    /// Page table of a session that has touched all of it.
    pub table_bytes_per_session: u64,
    /// The same for as many sessions as there are now.
    pub table_bytes_now: u64,
    /// The same for as many sessions as there may be.
    pub table_bytes_max: u64,
    /// Page tables of all processes of the server at this moment, if it runs on this host.
    pub table_bytes_measured: Option<u64>,
}

impl MemoryCost {
    pub(super) fn of(facts: &Facts, page_bytes: u64, buffers: u64, client: &mut Client) -> Self {
        let cache_bytes = page_bytes * buffers;
        let bytes = facts.shared_memory_bytes.unwrap_or(cache_bytes);
        let faults = cache_bytes / PAGE_BYTES;
        let table = bytes / PAGE_BYTES * ENTRY_BYTES;
        Self {
            bytes,
            faults,
            fault_seconds: faults as f64 * FAULT_US / 1e6,
            table_bytes_per_session: table,
            table_bytes_now: table * facts.sessions,
            table_bytes_max: table * facts.max_connections,
            table_bytes_measured: measured(client),
        }
    }
}

/// Page tables of the server's processes, `VmPTE` of proc_pid_status(5).
fn measured(client: &mut Client) -> Option<u64> {
    let server = crate::dump::local_server(client).ok()?;
    Some(of_processes(&server))
}

fn of_processes(server: &Server) -> u64 {
    let postmaster = server.postmaster();
    let children = postmaster.children().unwrap_or_default();
    children.into_iter().chain([postmaster]).map(table_bytes).sum()
}

fn table_bytes(process: Process) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.pid()));
    status.ok().and_then(|status| table_kb(&status)).unwrap_or(0) << 10
}

fn table_kb(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmPTE:"))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok()
}

#[test]
fn the_kernel_tells_the_size_of_page_tables() {
    assert_eq!(table_kb("Name:\tpostgres\nVmPTE:\t     488 kB\nVmSwap:\t 0 kB\n"), Some(488));
    assert_eq!(table_kb("Name:\tkthread\n"), None);
    let own = std::fs::read_to_string("/proc/self/status").unwrap();
    assert!(table_kb(&own).is_some_and(|kb| kb > 0));
}
