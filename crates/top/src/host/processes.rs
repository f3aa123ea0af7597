//! Processor time, memory and disk bytes of the server's processes, from `/proc`.

use std::{collections::HashMap, fs, time::Instant};

use super::{TICKS_PER_SECOND, parse_field};

/// Figures of a server process at one moment. Rates are averages since the previous sample, and
/// `None` in the first.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ProcessFigures {
    /// Processor time, in percent of one processor: that of a process with one thread is at most
    /// 100.
    pub cpu_percent: Option<f64>,
    /// Memory that is not shared and not a file's, in bytes: without shared buffers and program
    /// code.
    pub memory_bytes: Option<i64>,
    /// Bytes per second that the process had read from disks. Like `write_bytes` `None` unless this
    /// program may see it: as root or as the server's user.
    pub read_bytes: Option<f64>,
    /// Bytes per second that the process caused to be written to disks.
    pub write_bytes: Option<f64>,
}

impl ProcessFigures {
    /// Number of integers that encode the figures.
    pub(crate) const FIELDS: usize = 4;

    /// Encodes the figures as integers for a recording: hundredths of a percent, and bytes.
    pub(crate) fn fields(&self) -> [Option<i64>; Self::FIELDS] {
        #[expect(clippy::cast_possible_truncation, reason = "saturates")]
        let integer = |number: Option<f64>, factor: f64| number.map(|it| (it * factor) as i64);
        [
            integer(self.cpu_percent, 100.0),
            self.memory_bytes,
            integer(self.read_bytes, 1.0),
            integer(self.write_bytes, 1.0),
        ]
    }

    /// Decodes the integers of [`Self::fields`]; `None` if all are missing.
    pub(crate) fn from_fields(fields: &[Option<i64>; Self::FIELDS]) -> Option<Self> {
        #[expect(clippy::cast_precision_loss, reason = "figures for looking at")]
        let number = |at: usize, factor: f64| fields[at].map(|it| it as f64 / factor);
        fields.iter().any(Option::is_some).then(|| Self {
            cpu_percent: number(0, 100.0),
            memory_bytes: fields[1],
            read_bytes: number(2, 1.0),
            write_bytes: number(3, 1.0),
        })
    }
}

/// Reads figures of the processes of a server on this host.
#[derive(Debug)]
pub(super) struct ProcessMonitor {
    /// The postmaster, which is the parent of all other processes of the server.
    postmaster: i32,
    before: HashMap<i32, ProcessCounters>,
}

/// Counters of a process, which start at zero with it.
#[derive(Clone, Copy, Debug)]
struct ProcessCounters {
    at: Instant,
    /// Clock ticks from the host's boot to the start of the process: tells it from a later process
    /// with the same id.
    started: u64,
    /// Clock ticks on a processor.
    ticks: u64,
    /// Bytes read from disks, and bytes written.
    disk: Option<(u64, u64)>,
}

/// Maximum number of processes that are read in a sample, at some 50 µs each.
const PROCESSES_MAX: usize = 2000;

impl ProcessMonitor {
    /// Returns a monitor for the server whose backend `stat`, the content of `/proc/PID/stat`,
    /// describes.
    pub(super) fn of_backend(stat: &str) -> Option<Self> {
        Some(Self { postmaster: ProcessStat::parse(stat)?.parent, before: HashMap::new() })
    }

    /// Reads the figures of those of the processes `pids` that are the server's.
    pub(super) fn read(&mut self, pids: impl Iterator<Item = i32>) -> HashMap<i32, ProcessFigures> {
        let mut counters = HashMap::new();
        let mut figures = HashMap::new();
        for pid in pids.take(PROCESSES_MAX) {
            let file = |name| fs::read_to_string(format!("/proc/{pid}/{name}")).ok();
            let stat = file("stat");
            let Some(stat) = stat.as_deref().and_then(ProcessStat::parse) else { continue };
            if stat.parent != self.postmaster {
                continue;
            }
            let now = ProcessCounters {
                at: Instant::now(),
                started: stat.started,
                ticks: stat.ticks,
                disk: file("io").as_deref().and_then(parse_disk_bytes),
            };
            let before = self.before.get(&pid).filter(|before| before.started == now.started);
            let mut found = before.map_or_else(ProcessFigures::default, |it| rates(it, &now));
            found.memory_bytes = file("status").as_deref().and_then(parse_private_bytes);
            figures.insert(pid, found);
            counters.insert(pid, now);
        }
        self.before = counters;
        figures
    }
}

#[expect(clippy::cast_precision_loss, reason = "figures for looking at")]
fn rates(before: &ProcessCounters, now: &ProcessCounters) -> ProcessFigures {
    let seconds = now.at.saturating_duration_since(before.at).as_secs_f64();
    let rate = |before: u64, now: u64| {
        now.checked_sub(before).filter(|_| seconds > 0.0).map(|more| more as f64 / seconds)
    };
    let disk = now.disk.zip(before.disk);
    ProcessFigures {
        cpu_percent: rate(before.ticks, now.ticks)
            .map(|ticks| 100.0 * ticks / TICKS_PER_SECOND as f64),
        memory_bytes: None,
        read_bytes: disk.and_then(|(now, before)| rate(before.0, now.0)),
        write_bytes: disk.and_then(|(now, before)| rate(before.1, now.1)),
    }
}

/// The fields of `/proc/PID/stat` in use. Its format is `PID (name) state ppid … utime stime …
/// starttime …`, where the name may contain any character (proc_pid_stat(5)).
pub(super) struct ProcessStat {
    parent: i32,
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

/// Returns the bytes read from and written to disks in `/proc/PID/io` (proc_pid_io(5)).
fn parse_disk_bytes(io: &str) -> Option<(u64, u64)> {
    let bytes = |name| u64::try_from(parse_field(io, name)?).ok();
    Some((bytes("read_bytes:")?, bytes("write_bytes:")?))
}

/// Returns the private memory in `/proc/PID/status`, in bytes (proc_pid_status(5)).
fn parse_private_bytes(status: &str) -> Option<i64> {
    parse_field(status, "RssAnon:")?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

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
    }

    #[test]
    fn rates_cover_the_time_between_samples() {
        let at = Instant::now();
        let counters = |seconds, ticks, disk| ProcessCounters {
            at: at + Duration::from_secs(seconds),
            started: 1,
            ticks,
            disk,
        };
        let found = rates(&counters(0, 100, Some((0, 10))), &counters(2, 200, Some((2048, 10))));
        assert_eq!(found.cpu_percent, Some(50.0));
        assert_eq!((found.read_bytes, found.write_bytes), (Some(1024.0), Some(0.0)));
        let hidden = rates(&counters(0, 100, None), &counters(2, 200, Some((2048, 10))));
        assert_eq!((hidden.cpu_percent, hidden.read_bytes), (Some(50.0), None));
        let same_moment = rates(&counters(0, 100, None), &counters(0, 100, None));
        assert_eq!(same_moment.cpu_percent, None);
    }

    #[test]
    fn only_children_of_the_same_parent_are_read() {
        let own = i32::try_from(std::process::id()).unwrap();
        let stat = fs::read_to_string("/proc/self/stat").unwrap();
        let mut monitor = ProcessMonitor::of_backend(&stat).unwrap();
        let first = monitor.read([own, 1].into_iter());
        assert_eq!(first.keys().collect::<Vec<_>>(), [&own]);
        assert!(first[&own].memory_bytes > Some(0) && first[&own].cpu_percent.is_none());
        let second = monitor.read([own].into_iter());
        assert!(second[&own].cpu_percent.is_some() && second[&own].read_bytes.is_some());
        let fields = second[&own].fields();
        assert_eq!(
            ProcessFigures::from_fields(&fields).unwrap().memory_bytes,
            second[&own].memory_bytes
        );
        assert_eq!(ProcessFigures::from_fields(&[None; ProcessFigures::FIELDS]), None);
    }
}
