//! CPU, memory and disk figures of a server's host and of each process of the server.
//!
//! ```text
//! this host's /proc ──► HostMonitor ─────────────────────────────────┐
//!                                                                    ├──► HostRates ──► figures
//! another host's /proc ──► AgentServer ──HTTP──► AgentMonitor ───────┘
//!                          (howdah agent)       (howdah top --agent)
//! ```
//!
//! The server is local if a process of this host has the pid and start time of the backend that
//! serves our connection, and a name that starts with `postgres`. Addresses prove nothing, because
//! of tunnels and containers.

pub mod agent;
mod processes;
mod reading;
mod remote;

use std::{collections::HashMap, fs};

use howdah_collect::BackendProcess;

pub use self::{processes::ProcessFigures, remote::AgentEndpoint};
use self::{
    processes::ProcessRates,
    reading::{HostCounters, HostReading, ProcessReading, ProcessStat, booted_s},
};
pub(crate) use self::{remote::AgentMonitor, remote::MonitoredServer};

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
    /// The postmaster, which is the parent of all other processes of the server.
    postmaster: i32,
    rates: HostRates,
}

/// The previous readings of a host and its processes, from which rates are computed.
#[derive(Debug, Default)]
struct HostRates {
    before: Option<HostCounters>,
    processes: ProcessRates,
}

/// Maximum difference between the start times that PostgreSQL and the kernel report for the same
/// process. The kernel's boot time has whole seconds.
const CLOCK_TOLERANCE_SECONDS: u64 = 2;

/// Maximum number of processes that are read in a sample, at some 50 µs each.
const PROCESSES_MAX: usize = 2000;

/// Clock ticks per second in `/proc`: `USER_HZ`, which is 100 on every Linux architecture that
/// PostgreSQL supports.
const TICKS_PER_SECOND: i64 = 100;

impl HostMonitor {
    /// Returns a monitor if `process` runs on this host.
    pub(crate) fn local(process: BackendProcess) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", process.pid)).ok()?;
        if !is_process(&stat, booted_s()?, process) {
            return None;
        }
        let postmaster = ProcessStat::parse(&stat)?.parent;
        Some(Self { postmaster, rates: HostRates::default() })
    }

    /// Reads the figures of server processes, and computes the rates since the previous call.
    pub(crate) fn read_processes(
        &mut self,
        pids: impl Iterator<Item = i32>,
    ) -> HashMap<i32, ProcessFigures> {
        let parent = self.postmaster;
        let readings = pids.take(PROCESSES_MAX);
        self.rates
            .processes
            .update(readings.filter_map(|pid| ProcessReading::of_child(pid, parent)))
    }

    /// Reads the counters, and computes the rates since the previous call.
    pub(crate) fn read(&mut self) -> HostFigures {
        self.rates.update(&HostReading::of_this_host())
    }
}

impl HostRates {
    /// Whether the last update was with the same reading.
    fn is_last(&self, reading: &HostReading) -> bool {
        self.before.is_some() && self.before == reading.counters
    }

    /// Returns the figures of the host, with rates since the previous call.
    fn update(&mut self, reading: &HostReading) -> HostFigures {
        let before = std::mem::replace(&mut self.before, reading.counters);
        let mut figures = HostFigures {
            load: reading.load,
            memory_bytes: reading.memory_bytes,
            available_bytes: reading.available_bytes,
            swap_bytes: reading.swap_bytes,
            swap_used_bytes: reading.swap_used_bytes,
            ..HostFigures::default()
        };
        if let Some((before, now)) = before.zip(reading.counters) {
            figures.set_rates(&before, &now);
        }
        figures
    }
}

impl HostFigures {
    #[expect(clippy::cast_precision_loss, reason = "figures for looking at")]
    fn set_rates(&mut self, before: &HostCounters, now: &HostCounters) {
        let seconds = now.at_us.saturating_sub(before.at_us) as f64 / 1e6;
        let rate = |before: u64, now: u64| {
            now.checked_sub(before).filter(|_| seconds > 0.0).map(|bytes| bytes as f64 / seconds)
        };
        let ticks = now.all_ticks.checked_sub(before.all_ticks).filter(|ticks| *ticks > 0);
        let share =
            |before: u64, now: u64| Some(100.0 * now.checked_sub(before)? as f64 / ticks? as f64);
        self.cpu_percent = share(before.busy_ticks, now.busy_ticks);
        self.io_wait_percent = share(before.io_wait_ticks, now.io_wait_ticks);
        self.read_bytes = rate(before.read_bytes, now.read_bytes);
        self.write_bytes = rate(before.written_bytes, now.written_bytes);
    }
}

/// Whether `stat`, the content of `/proc/PID/stat`, describes `process`. Its format is
/// `PID (name) state ppid … starttime`, where the name may contain any character
/// (proc_pid_stat(5)).
fn is_process(stat: &str, booted: i64, process: BackendProcess) -> bool {
    let Some((front, _)) = stat.rsplit_once(')') else { return false };
    let is_postgres = front.split_once('(').is_some_and(|(_, name)| name.starts_with("postgres"));
    is_postgres
        && ProcessStat::parse(stat)
            .is_some_and(|stat| has_started(booted, stat.started, process.started_us))
}

/// Whether a process that started `ticks` after the host had booted is one that started at
/// `started_us` according to PostgreSQL.
fn has_started(booted_s: i64, ticks: u64, started_us: i64) -> bool {
    let seconds = i64::try_from(ticks).unwrap_or(i64::MAX) / TICKS_PER_SECOND;
    let difference = booted_s.saturating_add(seconds).abs_diff(started_us / 1_000_000);
    difference <= CLOCK_TOLERANCE_SECONDS
}

#[cfg(test)]
mod tests {
    use super::{reading::parse_counters, *};

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
    fn rates_cover_the_time_between_samples() {
        let before =
            parse_counters("cpu  100 0 100 700 100 0 0 0 0 0\n", "8 0 sda 1 0 100 0 1 0 50 0");
        let mut now = parse_counters(
            "cpu  150 0 150 750 150 0 0 0 0 0\n",
            "8 0 sda 1 0 300 0 1 0 150 0\n8 1 sda1 1 0 300 0 1 0 150 0",
        );
        if let (Some(now), Some(before)) = (&mut now, &before) {
            now.at_us = before.at_us + 2_000_000;
        }
        let mut figures = HostFigures::default();
        figures.set_rates(&before.unwrap(), &now.unwrap());
        assert_eq!((figures.cpu_percent, figures.io_wait_percent), (Some(50.0), Some(25.0)));
        assert_eq!((figures.read_bytes, figures.write_bytes), (Some(51_200.0), Some(25_600.0)));
    }

    #[test]
    fn this_host_has_figures() {
        let mut host = HostMonitor { postmaster: 1, rates: HostRates::default() };
        host.read();
        let figures = host.read();
        assert!(figures.memory_bytes > figures.available_bytes);
        assert!(figures.load.is_some());
        let kept = HostFigures::from_fields(&figures.fields()).unwrap();
        assert_eq!(kept.memory_bytes, figures.memory_bytes);
    }
}
