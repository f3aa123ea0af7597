//! Measures CPU time and bytes read from disk by the server's processes, and CPU time of the
//! benchmark itself.
//!
//! Sources: proc_pid_stat(5), proc_pid_io(5), sched-stats.rst. `/proc/PID/stat` and `/proc/PID/io`
//! count a process that has exited and been waited for as part of its parent, the postmaster.

use std::{fs, io, time::Duration};

use howdah_inspect::OsProcess;

/// Resources used by processes since they started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ResourceUsage {
    pub(crate) cpu: Duration,
    /// Bytes read from a disk, not from the operating system's cache; 0 if `/proc/PID/io` cannot be
    /// read.
    pub(crate) read_bytes: u64,
}

impl ResourceUsage {
    /// Returns this usage minus `before`, an earlier reading or the usage of some of the processes.
    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            cpu: self.cpu.saturating_sub(before.cpu),
            read_bytes: self.read_bytes.saturating_sub(before.read_bytes),
        }
    }

    fn plus(self, other: Self) -> Self {
        Self { cpu: self.cpu + other.cpu, read_bytes: self.read_bytes + other.read_bytes }
    }
}

/// Returns the usage of all processes of a server, including exited ones.
pub(crate) fn server_usage(postmaster: OsProcess) -> io::Result<ResourceUsage> {
    let postmaster_usage = read_process(postmaster.pid(), ExitedChildren::Include)?;
    let children = postmaster.children().map_err(io::Error::other)?;
    // A child that exits meanwhile is either still in /proc, or skipped: the postmaster, which
    // inherits its usage, was read before.
    let sum = |sum: ResourceUsage, used: ResourceUsage| sum.plus(used);
    Ok(children
        .iter()
        .filter_map(|child| read_process(child.pid(), ExitedChildren::Exclude).ok())
        .fold(postmaster_usage, sum))
}

/// Returns the usage of one process; zero without a `pid`, or if the usage cannot be read.
pub(crate) fn process_usage(pid: Option<i32>) -> ResourceUsage {
    let pid = pid.and_then(|pid| u32::try_from(pid).ok());
    pid.and_then(|pid| read_process(pid, ExitedChildren::Exclude).ok()).unwrap_or_default()
}

/// Returns the CPU time that the calling process has used.
pub(crate) fn own_cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

/// Returns the CPU time of a thread of the calling process; zero if it cannot be read.
pub(crate) fn thread_cpu(thread: rustix::thread::Pid) -> Duration {
    let path = format!("/proc/self/task/{}/schedstat", thread.as_raw_nonzero());
    let text = fs::read_to_string(path).unwrap_or_default();
    let nanos = text.split_ascii_whitespace().next().and_then(|field| field.parse().ok());
    Duration::from_nanos(nanos.unwrap_or(0))
}

/// Handling of the usage of exited children.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ExitedChildren {
    Exclude,
    Include,
}

fn read_process(pid: u32, exited: ExitedChildren) -> io::Result<ResourceUsage> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let cpu = parse_cpu(&stat, exited)
        .ok_or_else(|| io::Error::other("unexpected format of /proc/PID/stat"))?;
    // The CPU time is readable even where /proc/PID/io is not.
    let io = fs::read_to_string(format!("/proc/{pid}/io")).unwrap_or_default();
    Ok(ResourceUsage { cpu, read_bytes: parse_read_bytes(&io).unwrap_or(0) })
}

/// Length of a tick: `USER_HZ` is 100 on all supported platforms, independent of the kernel's
/// `CONFIG_HZ`.
const TICK: Duration = Duration::from_millis(10);

/// Sums fields 14 and 15 (utime, stime) of `/proc/PID/stat`; with exited children, also 16 and 17
/// (cutime, cstime). Field 2, the command, may contain spaces and parentheses.
fn parse_cpu(stat: &str, exited: ExitedChildren) -> Option<Duration> {
    let (_, rest) = stat.rsplit_once(')')?;
    let fields = rest.split_ascii_whitespace().skip(11);
    let count = if exited == ExitedChildren::Include { 4 } else { 2 };
    let ticks: Vec<u32> = fields.take(count).map(str::parse).collect::<Result<_, _>>().ok()?;
    (ticks.len() == count).then(|| TICK * ticks.iter().sum::<u32>())
}

/// Parses the `read_bytes` line of `/proc/PID/io`.
fn parse_read_bytes(io: &str) -> Option<u64> {
    io.lines().find_map(|line| line.strip_prefix("read_bytes: "))?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_includes_exited_children_on_request() {
        let stat = "7 (a (b) c) S 1 7 7 0 -1 4194560 100 200 0 0 12 30 400 5 20 0 1 0 99";
        assert_eq!(parse_cpu(stat, ExitedChildren::Exclude), Some(Duration::from_millis(420)));
        assert_eq!(parse_cpu(stat, ExitedChildren::Include), Some(Duration::from_millis(4470)));
        assert_eq!(parse_cpu("7 (a) S 1", ExitedChildren::Exclude), None);
    }

    #[test]
    fn only_disk_reads_are_counted() {
        let io = "rchar: 1\nwchar: 2\nsyscr: 3\nsyscw: 4\nread_bytes: 4096\nwrite_bytes: 0\n";
        assert_eq!(parse_read_bytes(io), Some(4096));
    }

    #[test]
    fn own_cpu_time_increases() {
        let before = (own_cpu(), thread_cpu(rustix::thread::gettid()));
        let mut sum = 0_u64;
        while own_cpu() < before.0 + Duration::from_millis(30) {
            sum = std::hint::black_box(sum.wrapping_mul(31) + 1);
        }
        assert!(thread_cpu(rustix::thread::gettid()) > before.1);
    }
}
