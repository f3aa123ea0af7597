//! CPU, memory and disk figures from `/proc`, if the server runs on this host: those of the host,
//! and of each process of the server.
//!
//! The server is local if a process of this host has the pid and start time of the backend that
//! serves our connection, and a name that starts with `postgres`. Addresses prove nothing, because
//! of tunnels and containers.

mod processes;

use std::{collections::HashMap, fs, time::Instant};

use howdah_collect::BackendProcess;

pub use self::processes::ProcessFigures;
use self::processes::{ProcessMonitor, ProcessStat};

/// Figures of a host at one moment. CPU and disk figures are averages since the previous sample,
/// and `None` in the first.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct HostFigures {
    /// CPU time in use, in percent of the time of all processors.
    pub cpu_percent: Option<f64>,
    /// Time that processors were idle while disk I/O was outstanding, in percent.
    pub io_wait_percent: Option<f64>,
    /// Load average over the last minute.
    pub load: Option<f64>,
    /// Total memory in bytes.
    pub memory_bytes: Option<i64>,
    /// Memory available without swapping, in bytes.
    pub available_bytes: Option<i64>,
    /// Bytes read from disks per second.
    pub read_bytes: Option<f64>,
    /// Bytes written to disks per second.
    pub write_bytes: Option<f64>,
    /// Total swap space in bytes.
    pub swap_bytes: Option<i64>,
    /// Used swap space in bytes.
    pub swap_used_bytes: Option<i64>,
}

impl HostFigures {
    /// Number of integers that encode the figures.
    pub(crate) const FIELDS: usize = 9;

    /// Encodes the figures as integers for a recording; fractional ones in thousandths.
    pub(crate) fn fields(&self) -> [Option<i64>; Self::FIELDS] {
        #[expect(clippy::cast_possible_truncation, reason = "saturates")]
        let thousandths = |number: Option<f64>| number.map(|number| (number * 1000.0) as i64);
        [
            thousandths(self.cpu_percent),
            thousandths(self.io_wait_percent),
            thousandths(self.load),
            self.memory_bytes,
            self.available_bytes,
            thousandths(self.read_bytes),
            thousandths(self.write_bytes),
            self.swap_bytes,
            self.swap_used_bytes,
        ]
    }

    /// Decodes the integers of [`Self::fields`]; `None` if all are missing.
    pub(crate) fn from_fields(fields: &[Option<i64>; Self::FIELDS]) -> Option<Self> {
        #[expect(clippy::cast_precision_loss, reason = "figures for looking at")]
        let number = |at: usize| fields[at].map(|number| number as f64 / 1000.0);
        fields.iter().any(Option::is_some).then(|| Self {
            cpu_percent: number(0),
            io_wait_percent: number(1),
            load: number(2),
            memory_bytes: fields[3],
            available_bytes: fields[4],
            read_bytes: number(5),
            write_bytes: number(6),
            swap_bytes: fields[7],
            swap_used_bytes: fields[8],
        })
    }
}

/// Reads figures of the host on which both the server and this program run.
#[derive(Debug)]
pub(crate) struct HostMonitor {
    before: Option<HostCounters>,
    processes: ProcessMonitor,
}

/// Counters of the host, which start at zero when it boots.
#[derive(Clone, Copy, Debug)]
struct HostCounters {
    at: Instant,
    /// CPU ticks of all processors: busy, waiting for disks, total.
    work: u64,
    io_wait: u64,
    all: u64,
    /// Bytes read from disks; `written` counts those written.
    read: u64,
    written: u64,
}

/// Maximum difference between the start times that PostgreSQL and the kernel report for the same
/// process. The kernel's boot time has whole seconds.
const CLOCK_TOLERANCE_SECONDS: i64 = 2;

/// Bytes of a sector in the kernel's disk statistics, whatever the disk's own sector size
/// (`Documentation/admin-guide/iostats`).
const SECTOR_BYTES: u64 = 512;

/// Clock ticks per second in `/proc`: `USER_HZ`, which is 100 on every Linux architecture that
/// PostgreSQL supports.
const TICKS_PER_SECOND: i64 = 100;

impl HostMonitor {
    /// Returns a monitor if `process` runs on this host.
    pub(crate) fn local(process: BackendProcess) -> Option<Self> {
        let read = |path: &str| fs::read_to_string(path).ok();
        let stat = read(&format!("/proc/{}/stat", process.pid))?;
        let booted = parse_field(&read("/proc/stat")?, "btime")?;
        if !is_process(&stat, booted, process) {
            return None;
        }
        Some(Self { before: None, processes: ProcessMonitor::of_backend(&stat)? })
    }

    /// Reads the figures of server processes, and computes the rates since the previous call.
    pub(crate) fn read_processes(
        &mut self,
        pids: impl Iterator<Item = i32>,
    ) -> HashMap<i32, ProcessFigures> {
        self.processes.read(pids)
    }

    /// Reads the counters, and computes the rates since the previous call.
    pub(crate) fn read(&mut self) -> HostFigures {
        let file = |path| fs::read_to_string(path).unwrap_or_default();
        let memory = file("/proc/meminfo");
        let kilobytes = |name| parse_field(&memory, name).map(|kilobytes| kilobytes * 1024);
        let now = parse_counters(&file("/proc/stat"), &file("/proc/diskstats"));
        let before = std::mem::replace(&mut self.before, now);
        let mut figures = HostFigures {
            load: file("/proc/loadavg").split(' ').next().and_then(|load| load.parse().ok()),
            memory_bytes: kilobytes("MemTotal:"),
            available_bytes: kilobytes("MemAvailable:"),
            swap_bytes: kilobytes("SwapTotal:"),
            swap_used_bytes: kilobytes("SwapTotal:")
                .zip(kilobytes("SwapFree:"))
                .map(|(total, free)| total.saturating_sub(free)),
            ..HostFigures::default()
        };
        if let Some((before, now)) = before.zip(now) {
            figures.set_rates(&before, &now);
        }
        figures
    }
}

impl HostFigures {
    #[expect(clippy::cast_precision_loss, reason = "figures for looking at")]
    fn set_rates(&mut self, before: &HostCounters, now: &HostCounters) {
        let seconds = now.at.saturating_duration_since(before.at).as_secs_f64();
        let rate = |before: u64, now: u64| {
            now.checked_sub(before).filter(|_| seconds > 0.0).map(|bytes| bytes as f64 / seconds)
        };
        let ticks = now.all.checked_sub(before.all).filter(|ticks| *ticks > 0);
        let share =
            |before: u64, now: u64| Some(100.0 * now.checked_sub(before)? as f64 / ticks? as f64);
        self.cpu_percent = share(before.work, now.work);
        self.io_wait_percent = share(before.io_wait, now.io_wait);
        self.read_bytes = rate(before.read, now.read);
        self.write_bytes = rate(before.written, now.written);
    }
}

/// Whether `stat`, the content of `/proc/PID/stat`, describes `process`. Its format is
/// `PID (name) state ppid … starttime`, where the name may contain any character
/// (proc_pid_stat(5)).
fn is_process(stat: &str, booted: i64, process: BackendProcess) -> bool {
    let Some((front, _)) = stat.rsplit_once(')') else { return false };
    let is_postgres = front.split_once('(').is_some_and(|(_, name)| name.starts_with("postgres"));
    let ticks = ProcessStat::parse(stat).and_then(|stat| i64::try_from(stat.started).ok());
    let started = ticks.map(|ticks| booted + ticks / TICKS_PER_SECOND);
    is_postgres
        && started.is_some_and(|started| {
            (started - process.started_us / 1_000_000).abs() <= CLOCK_TOLERANCE_SECONDS
        })
}

/// Returns the number that follows `name` at the start of a line.
fn parse_field(text: &str, name: &str) -> Option<i64> {
    let line = text.lines().find(|line| line.split_whitespace().next() == Some(name))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

fn parse_counters(stat: &str, disks: &str) -> Option<HostCounters> {
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
        at: Instant::now(),
        work: all - idle - io_wait,
        io_wait,
        all,
        read,
        written,
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

    const STAT: &str = "4711 (postgres: a) b) S 1 1 1 0 -1 4 1 0 0 0 0 0 0 0 20 0 1 0 12345 1 1";

    #[test]
    fn server_is_local_if_its_process_is() {
        let of = |started: i64| BackendProcess { pid: 4711, started_us: started * 1_000_000 };
        assert!(is_process(STAT, 1_000, of(1_123)));
        assert!(is_process(STAT, 1_000, of(1_125)));
        assert!(!is_process(STAT, 1_000, of(1_126)), "the same id, another process");
        assert!(!is_process(&STAT.replace("postgres: a", "bash"), 1_000, of(1_123)));
        assert!(!is_process("", 1_000, of(1_123)));
        assert!(HostMonitor::local(BackendProcess { pid: 1, started_us: 0 }).is_none());
    }

    #[test]
    fn only_whole_disks_count() {
        let names =
            ["sda", "sda1", "nvme0n1", "nvme0n1p2", "dm-0", "loop3", "vda", "mmcblk0", "md127"];
        let whole: Vec<_> = names.into_iter().filter(|name| is_whole_disk(name)).collect();
        assert_eq!(whole, ["sda", "nvme0n1", "vda", "mmcblk0"]);
    }

    #[test]
    fn rates_cover_the_time_between_samples() {
        let before =
            parse_counters("cpu  100 0 100 700 100 0 0 0 0 0\n", "8 0 sda 1 0 100 0 1 0 50 0");
        let mut now = parse_counters(
            "cpu  150 0 150 750 150 0 0 0 0 0\n",
            "8 0 sda 1 0 300 0 1 0 150 0\n8 1 sda1 1 0 300 0 1 0 150 0",
        );
        if let (Some(now), Some(before)) = (&mut now, &before) {
            now.at = before.at + std::time::Duration::from_secs(2);
        }
        let mut figures = HostFigures::default();
        figures.set_rates(&before.unwrap(), &now.unwrap());
        assert_eq!((figures.cpu_percent, figures.io_wait_percent), (Some(50.0), Some(25.0)));
        assert_eq!((figures.read_bytes, figures.write_bytes), (Some(51_200.0), Some(25_600.0)));
    }

    #[test]
    fn this_host_has_figures() {
        let stat = fs::read_to_string("/proc/self/stat").unwrap();
        let processes = ProcessMonitor::of_backend(&stat).unwrap();
        let mut host = HostMonitor { before: None, processes };
        host.read();
        let figures = host.read();
        assert!(figures.memory_bytes > figures.available_bytes);
        assert!(figures.load.is_some());
        let kept = HostFigures::from_fields(&figures.fields()).unwrap();
        assert_eq!(kept.memory_bytes, figures.memory_bytes);
    }
}
