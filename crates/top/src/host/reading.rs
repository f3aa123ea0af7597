//! Counters of a host and of processes at one moment, from `/proc`. An agent sends them as they
//! are; rates are computed where the figures are shown.

use std::fs;

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// Counters and figures of a host at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct HostReading {
    /// Load average over the last minute.
    pub(super) load: Option<f64>,
    /// Total memory in bytes.
    pub(super) memory_bytes: Option<i64>,
    /// Memory available without swapping, in bytes.
    pub(super) available_bytes: Option<i64>,
    /// Total swap space in bytes.
    pub(super) swap_bytes: Option<i64>,
    /// Used swap space in bytes.
    pub(super) swap_used_bytes: Option<i64>,
    /// Counters since the host booted.
    pub(super) counters: Option<HostCounters>,
}

/// Counters of a host, which start at zero when it boots. Ticks are hundredths of a second, of all
/// processors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct HostCounters {
    /// Time of the reading, in microseconds since the host booted.
    pub(super) at_us: u64,
    /// Ticks in which processors were busy.
    pub(super) busy_ticks: u64,
    /// Ticks in which processors were idle while disk I/O was outstanding.
    pub(super) io_wait_ticks: u64,
    /// Ticks of any kind, idle ones included.
    pub(super) all_ticks: u64,
    /// Bytes read from disks.
    pub(super) read_bytes: u64,
    /// Bytes written to disks.
    pub(super) written_bytes: u64,
}

/// Counters and memory of a process at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProcessReading {
    /// Process id in the server's pid namespace.
    pub(super) pid: i32,
    /// Clock ticks from the host's boot to the start of the process: tells it from a later process
    /// with the same id.
    pub(super) started_ticks: u64,
    /// Time of the reading, in microseconds since the host booted.
    pub(super) at_us: u64,
    /// Processor time in clock ticks.
    pub(super) cpu_ticks: u64,
    /// Memory that is not shared and not a file's, in bytes.
    pub(super) memory_bytes: Option<i64>,
    /// Bytes read from disks. Like `written_bytes` `None` unless the reader may see it: as root or
    /// as the server's user.
    pub(super) read_bytes: Option<u64>,
    /// Bytes written to disks.
    pub(super) written_bytes: Option<u64>,
}

/// Bytes of a sector in the kernel's disk statistics, whatever the disk's own sector size
/// (`Documentation/admin-guide/iostats`).
const SECTOR_BYTES: u64 = 512;

impl HostReading {
    /// Reads this host's counters.
    pub(super) fn of_this_host() -> Self {
        let file = |path| fs::read_to_string(path).unwrap_or_default();
        let memory = file("/proc/meminfo");
        let kilobytes = |name| parse_field(&memory, name).map(|kilobytes| kilobytes * 1024);
        Self {
            load: file("/proc/loadavg").split(' ').next().and_then(|load| load.parse().ok()),
            memory_bytes: kilobytes("MemTotal:"),
            available_bytes: kilobytes("MemAvailable:"),
            swap_bytes: kilobytes("SwapTotal:"),
            swap_used_bytes: kilobytes("SwapTotal:")
                .zip(kilobytes("SwapFree:"))
                .map(|(total, free)| total.saturating_sub(free)),
            counters: parse_counters(&file("/proc/stat"), &file("/proc/diskstats")),
        }
    }
}

impl ProcessReading {
    /// Reads the counters of the child `pid` of the process `parent`; `None` if it is not a child
    /// of it.
    pub(super) fn of_child(pid: i32, parent: i32) -> Option<Self> {
        let file = |name| fs::read_to_string(format!("/proc/{pid}/{name}")).ok();
        let stat = file("stat")?;
        // The ticks and their time are read together: rates divide one by the other.
        let at_us = since_boot_us();
        let stat = ProcessStat::parse(&stat).filter(|stat| stat.parent == parent)?;
        let status = file("status");
        let status = status.as_deref();
        let disk = file("io").as_deref().and_then(parse_disk_bytes);
        Some(Self {
            pid: status.and_then(parse_inner_pid).unwrap_or(pid),
            started_ticks: stat.started,
            at_us,
            cpu_ticks: stat.ticks,
            memory_bytes: status.and_then(parse_private_bytes),
            read_bytes: disk.map(|(read, _)| read),
            written_bytes: disk.map(|(_, written)| written),
        })
    }
}

/// Returns the time at which this host booted, in seconds since 1970.
pub(super) fn booted_s() -> Option<i64> {
    parse_field(&fs::read_to_string("/proc/stat").ok()?, "btime")
}

/// Returns the time since this host booted, in microseconds.
fn since_boot_us() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    let part = |number: i64| u64::try_from(number).unwrap_or_default();
    part(now.tv_sec) * 1_000_000 + part(now.tv_nsec) / 1000
}

/// The fields of `/proc/PID/stat` in use. Its format is `PID (name) state ppid … utime stime …
/// starttime …`, where the name may contain any character (proc_pid_stat(5)).
pub(super) struct ProcessStat {
    pub(super) parent: i32,
    ticks: u64,
    pub(super) started: u64,
}

impl ProcessStat {
    pub(super) fn parse(stat: &str) -> Option<Self> {
        // The first field after the name is field 3.
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
        Some(Self {
            parent: fields.get(1)?.parse().ok()?,
            ticks: number(14)?.checked_add(number(15)?)?,
            started: number(22)?,
        })
    }
}

/// Returns the number that follows `name` at the start of a line.
fn parse_field(text: &str, name: &str) -> Option<i64> {
    let line = text.lines().find(|line| line.split_whitespace().next() == Some(name))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

/// Returns the bytes read from and written to disks in `/proc/PID/io` (proc_pid_io(5)).
fn parse_disk_bytes(io: &str) -> Option<(u64, u64)> {
    let bytes = |name| u64::try_from(parse_field(io, name)?).ok();
    Some((bytes("read_bytes:")?, bytes("write_bytes:")?))
}

/// Returns the private memory in `/proc/PID/status`, in bytes (proc_pid_status(5)).
fn parse_private_bytes(status: &str) -> Option<i64> {
    parse_field(status, "RssAnon:")?.checked_mul(1024)
}

/// Returns the process id in the innermost pid namespace of the process, which is the one that its
/// server reports.
fn parse_inner_pid(status: &str) -> Option<i32> {
    status
        .lines()
        .find_map(|line| line.strip_prefix("NSpid:"))?
        .split_whitespace()
        .last()?
        .parse()
        .ok()
}

pub(super) fn parse_counters(stat: &str, disks: &str) -> Option<HostCounters> {
    let line = stat.lines().find(|line| line.starts_with("cpu "))?;
    let ticks: Vec<u64> =
        line.split_whitespace().skip(1).filter_map(|ticks| ticks.parse().ok()).collect();
    // user nice system idle iowait irq softirq steal; guest time is included in user.
    let all = ticks.iter().take(8).sum();
    let (idle, io_wait) = (*ticks.get(3)?, *ticks.get(4)?);
    let (mut read, mut written) = (0, 0);
    for line in disks.lines() {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let number = |at: usize| fields.get(at).and_then(|field| field.parse::<u64>().ok());
        let is_whole = fields.get(2).is_some_and(|name| is_whole_disk(name));
        if let (true, Some(sectors_read), Some(sectors_written)) = (is_whole, number(5), number(9))
        {
            read += sectors_read * SECTOR_BYTES;
            written += sectors_written * SECTOR_BYTES;
        }
    }
    Some(HostCounters {
        at_us: since_boot_us(),
        busy_ticks: all - idle - io_wait,
        io_wait_ticks: io_wait,
        all_ticks: all,
        read_bytes: read,
        written_bytes: written,
    })
}

/// Whether a device is a whole disk. Partitions and devices that are backed by others, such as
/// RAID and device mapper, are excluded, so that each byte is counted once.
fn is_whole_disk(name: &str) -> bool {
    let ends_in_digit = name.ends_with(|c: char| c.is_ascii_digit());
    let is_made =
        ["loop", "ram", "dm-", "md", "zram", "sr"].iter().any(|kind| name.starts_with(kind));
    let is_numbered = ["nvme", "mmcblk", "nbd"].iter().any(|kind| name.starts_with(kind));
    match (is_made, is_numbered) {
        (true, _) => false,
        (_, true) => !name.contains('p') && ends_in_digit,
        _ => !ends_in_digit,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_disks_count() {
        let names =
            ["sda", "sda1", "nvme0n1", "nvme0n1p2", "dm-0", "loop3", "vda", "mmcblk0", "md127"];
        let whole: Vec<_> = names.into_iter().filter(|name| is_whole_disk(name)).collect();
        assert_eq!(whole, ["sda", "nvme0n1", "vda", "mmcblk0"]);
    }

    #[test]
    fn files_of_a_process_are_parsed() {
        let stat = "4711 (postgres: a) b) S 99 1 1 0 -1 4 1 0 0 0 70 30 0 0 20 0 1 0 12345 1 1";
        let stat = ProcessStat::parse(stat).unwrap();
        assert_eq!((stat.parent, stat.ticks, stat.started), (99, 100, 12_345));
        assert!(ProcessStat::parse("4711 (postgres) S 99 1").is_none());
        assert!(ProcessStat::parse("").is_none());
        let io = "rchar: 9\nwchar: 8\nread_bytes: 4096\nwrite_bytes: 8192\n";
        assert_eq!(parse_disk_bytes(io), Some((4096, 8192)));
        assert_eq!(parse_disk_bytes("rchar: 9\n"), None);
        assert_eq!(parse_private_bytes("VmRSS:\t 90 kB\nRssAnon:\t 30 kB\n"), Some(30_720));
        assert_eq!(parse_private_bytes("VmRSS:\t 90 kB\n"), None);
        assert_eq!(parse_inner_pid("Pid:\t4711\nNSpid:\t4711\t12\n"), Some(12));
        assert_eq!(parse_inner_pid("Pid:\t4711\n"), None);
    }
}
