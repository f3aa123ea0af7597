//! The host of a server, if it is this one: processors, memory and disks, from `/proc`.
//!
//! A server is here if a process of this host has the id and the start of the one that serves our connection,
//! and is called as PostgreSQL calls its processes. Addresses prove nothing: there are tunnels and containers.

use std::{fs, time::Instant};

use howdah_collect::ServedBy;

/// Figures of a host at one moment, rates since the reading before.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct HostFigures {
    /// Processors at work, in hundredths of all of them.
    pub cpu_percent: Option<f64>,
    /// Of which waiting for disks.
    pub io_wait_percent: Option<f64>,
    /// The mean number of processes that ran or waited for a disk, over the last minute.
    pub load: Option<f64>,
    /// Bytes of memory.
    pub memory_bytes: Option<i64>,
    /// Bytes of it that can still be had, without swapping.
    pub available_bytes: Option<i64>,
    /// Bytes read from disks per second.
    pub read_bytes: Option<f64>,
    /// Bytes written to disks per second.
    pub write_bytes: Option<f64>,
}

impl HostFigures {
    /// How many numbers it has.
    pub(crate) const SLOTS: usize = 7;

    /// Its numbers, for a file: fractions in thousandths.
    pub(crate) fn slots(&self) -> [Option<i64>; Self::SLOTS] {
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
        ]
    }

    /// The figures of such numbers; `None` if there are none.
    pub(crate) fn of_slots(slots: &[Option<i64>; Self::SLOTS]) -> Option<Self> {
        #[expect(clippy::cast_precision_loss, reason = "figures for looking at")]
        let number = |at: usize| slots[at].map(|number| number as f64 / 1000.0);
        slots.iter().any(Option::is_some).then(|| Self {
            cpu_percent: number(0),
            io_wait_percent: number(1),
            load: number(2),
            memory_bytes: slots[3],
            available_bytes: slots[4],
            read_bytes: number(5),
            write_bytes: number(6),
        })
    }
}

/// Reads the host of a server again and again.
#[derive(Debug)]
pub(crate) struct Host {
    before: Option<Counters>,
}

/// Sums since the host was started.
#[derive(Clone, Copy, Debug)]
struct Counters {
    at: Instant,
    /// Ticks of all processors: at work, waiting for disks, all.
    work: u64,
    io_wait: u64,
    all: u64,
    /// Bytes.
    read: u64,
    written: u64,
}

/// How far two clocks may be apart: the kernel tells when it was started in whole seconds.
const SLACK_SECONDS: i64 = 2;

/// A sector, in the kernel's statistics of disks, whatever the disk says (`Documentation/admin-guide/iostats`).
const SECTOR_BYTES: u64 = 512;

/// Ticks of a second in `/proc`: `USER_HZ`, which is 100 on every architecture of Linux that PostgreSQL runs on.
const TICKS: i64 = 100;

impl Host {
    /// The host of the server that has this process, if it is ours.
    pub(crate) fn of(process: ServedBy) -> Option<Self> {
        let read = |path: &str| fs::read_to_string(path).ok();
        let stat = read(&format!("/proc/{}/stat", process.pid))?;
        let booted = field_of(&read("/proc/stat")?, "btime")?;
        is_process(&stat, booted, process).then_some(Self { before: None })
    }

    /// Its figures now.
    pub(crate) fn read(&mut self) -> HostFigures {
        let file = |path| fs::read_to_string(path).unwrap_or_default();
        let memory = file("/proc/meminfo");
        let kilobytes = |name| field_of(&memory, name).map(|kilobytes| kilobytes * 1024);
        let now = counters(&file("/proc/stat"), &file("/proc/diskstats"));
        let before = std::mem::replace(&mut self.before, now);
        let mut figures = HostFigures {
            load: file("/proc/loadavg").split(' ').next().and_then(|load| load.parse().ok()),
            memory_bytes: kilobytes("MemTotal:"),
            available_bytes: kilobytes("MemAvailable:"),
            ..HostFigures::default()
        };
        if let Some((before, now)) = before.zip(now) {
            figures.since(&before, &now);
        }
        figures
    }
}

impl HostFigures {
    #[expect(clippy::cast_precision_loss, reason = "figures for looking at")]
    fn since(&mut self, before: &Counters, now: &Counters) {
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

/// Whether `/proc/PID/stat` is of that process: `PID (name) state ppid … starttime`, where the name may have
/// anything in it (proc_pid_stat(5)).
fn is_process(stat: &str, booted: i64, process: ServedBy) -> bool {
    let Some((front, back)) = stat.rsplit_once(')') else { return false };
    let is_postgres = front.split_once('(').is_some_and(|(_, name)| name.starts_with("postgres"));
    // The start is the 22nd field, and the first behind the name is the third.
    let ticks = back.split_whitespace().nth(19).and_then(|ticks| ticks.parse::<i64>().ok());
    let started = ticks.map(|ticks| booted + ticks / TICKS);
    is_postgres
        && started.is_some_and(|started| {
            (started - process.started_us / 1_000_000).abs() <= SLACK_SECONDS
        })
}

/// The number behind a name at the beginning of a line.
fn field_of(text: &str, name: &str) -> Option<i64> {
    let line = text.lines().find(|line| line.split_whitespace().next() == Some(name))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

fn counters(stat: &str, disks: &str) -> Option<Counters> {
    let line = stat.lines().find(|line| line.starts_with("cpu "))?;
    let ticks: Vec<u64> =
        line.split_whitespace().skip(1).filter_map(|ticks| ticks.parse().ok()).collect();
    // user nice system idle iowait irq softirq steal; guests are in user already.
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
    Some(Counters { at: Instant::now(), work: all - idle - io_wait, io_wait, all, read, written })
}

/// Whether it is a disk and not a part of one, nor made of others: each byte is to be counted once.
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
    fn a_server_is_here_if_its_process_is() {
        let of = |started: i64| ServedBy { pid: 4711, started_us: started * 1_000_000 };
        assert!(is_process(STAT, 1_000, of(1_123)));
        assert!(is_process(STAT, 1_000, of(1_125)));
        assert!(!is_process(STAT, 1_000, of(1_126)), "the same id, another process");
        assert!(!is_process(&STAT.replace("postgres: a", "bash"), 1_000, of(1_123)));
        assert!(!is_process("", 1_000, of(1_123)));
        assert!(Host::of(ServedBy { pid: 1, started_us: 0 }).is_none());
    }

    #[test]
    fn only_whole_disks_count() {
        let names =
            ["sda", "sda1", "nvme0n1", "nvme0n1p2", "dm-0", "loop3", "vda", "mmcblk0", "md127"];
        let whole: Vec<_> = names.into_iter().filter(|name| is_whole_disk(name)).collect();
        assert_eq!(whole, ["sda", "nvme0n1", "vda", "mmcblk0"]);
    }

    #[test]
    fn figures_are_what_happened_between_two_readings() {
        let before = counters("cpu  100 0 100 700 100 0 0 0 0 0\n", "8 0 sda 1 0 100 0 1 0 50 0");
        let mut now = counters(
            "cpu  150 0 150 750 150 0 0 0 0 0\n",
            "8 0 sda 1 0 300 0 1 0 150 0\n8 1 sda1 1 0 300 0 1 0 150 0",
        );
        if let (Some(now), Some(before)) = (&mut now, &before) {
            now.at = before.at + std::time::Duration::from_secs(2);
        }
        let mut figures = HostFigures::default();
        figures.since(&before.unwrap(), &now.unwrap());
        assert_eq!((figures.cpu_percent, figures.io_wait_percent), (Some(50.0), Some(25.0)));
        assert_eq!((figures.read_bytes, figures.write_bytes), (Some(51_200.0), Some(25_600.0)));
    }

    #[test]
    fn what_is_here_is_read() {
        let mut host = Host { before: None };
        host.read();
        let figures = host.read();
        assert!(figures.memory_bytes > figures.available_bytes);
        assert!(figures.load.is_some());
        let kept = HostFigures::of_slots(&figures.slots()).unwrap();
        assert_eq!(kept.memory_bytes, figures.memory_bytes);
    }
}
