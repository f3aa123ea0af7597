//! What warming costs the host: processor time and bytes read, of the server's processes and of our own.
//!
//! Sources: proc_pid_stat(5), proc_pid_io(5), sched-stats.rst. A process that ended and was waited for is
//! counted with its parent, the postmaster, in both.

use std::{fs, io, time::Duration};

use howdah_inspect::Process;

/// What was used so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Used {
    pub(crate) cpu: Duration,
    /// Bytes that came from a disk, not from the operating system's cache.
    pub(crate) read_bytes: u64,
}

impl Used {
    /// What was used since `before`.
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

/// What all processes of a server used, those that ended included.
pub(crate) fn of_server(postmaster: Process) -> io::Result<Used> {
    let own = of_process(postmaster.pid(), With::Ended)?;
    let children = postmaster.children().map_err(io::Error::other)?;
    // One that ends meanwhile is either still here or already with the postmaster, read before.
    let sum = |sum: Used, used: Used| sum.plus(used);
    Ok(children
        .iter()
        .filter_map(|child| of_process(child.pid(), With::Nobody).ok())
        .fold(own, sum))
}

/// What one process used; nothing once it is gone.
pub(crate) fn of_one(pid: Option<i32>) -> Used {
    let pid = pid.and_then(|pid| u32::try_from(pid).ok());
    pid.and_then(|pid| of_process(pid, With::Nobody).ok()).unwrap_or_default()
}

/// Processor time of this process.
pub(crate) fn of_us() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

/// Processor time of a thread of ours.
pub(crate) fn of_thread(thread: rustix::thread::Pid) -> Duration {
    let path = format!("/proc/self/task/{}/schedstat", thread.as_raw_nonzero());
    let text = fs::read_to_string(path).unwrap_or_default();
    let nanos = text.split_ascii_whitespace().next().and_then(|word| word.parse().ok());
    Duration::from_nanos(nanos.unwrap_or(0))
}

/// Whether children that ended count.
#[derive(Clone, Copy, PartialEq, Eq)]
enum With {
    Nobody,
    Ended,
}

fn of_process(pid: u32, with: With) -> io::Result<Used> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let cpu =
        cpu(&stat, with).ok_or_else(|| io::Error::other("/proc/PID/stat has another form"))?;
    // Whose io may not be read still has a processor time.
    let io = fs::read_to_string(format!("/proc/{pid}/io")).unwrap_or_default();
    Ok(Used { cpu, read_bytes: read_bytes(&io).unwrap_or(0) })
}

/// Length of a tick: `USER_HZ` is 100 wherever this runs, whatever the kernel's own is.
const TICK: Duration = Duration::from_millis(10);

/// Fields 14 and 15, and with ended children 16 and 17. The second may hold spaces and parentheses.
fn cpu(stat: &str, with: With) -> Option<Duration> {
    let (_, rest) = stat.rsplit_once(')')?;
    let fields = rest.split_ascii_whitespace().skip(11);
    let count = if with == With::Ended { 4 } else { 2 };
    let ticks: Vec<u32> = fields.take(count).map(str::parse).collect::<Result<_, _>>().ok()?;
    (ticks.len() == count).then(|| TICK * ticks.iter().sum::<u32>())
}

fn read_bytes(io: &str) -> Option<u64> {
    io.lines().find_map(|line| line.strip_prefix("read_bytes: "))?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_those_of_the_process_and_of_ended_children() {
        let stat = "7 (a (b) c) S 1 7 7 0 -1 4194560 100 200 0 0 12 30 400 5 20 0 1 0 99";
        assert_eq!(cpu(stat, With::Nobody), Some(Duration::from_millis(420)));
        assert_eq!(cpu(stat, With::Ended), Some(Duration::from_millis(4470)));
        assert_eq!(cpu("7 (a) S 1", With::Nobody), None);
    }

    #[test]
    fn bytes_that_came_from_a_disk() {
        let io = "rchar: 1\nwchar: 2\nsyscr: 3\nsyscw: 4\nread_bytes: 4096\nwrite_bytes: 0\n";
        assert_eq!(read_bytes(io), Some(4096));
    }

    #[test]
    fn our_own_time_goes_on() {
        let before = (of_us(), of_thread(rustix::thread::gettid()));
        let mut sum = 0_u64;
        while of_us() < before.0 + Duration::from_millis(30) {
            sum = std::hint::black_box(sum.wrapping_mul(31) + 1);
        }
        assert!(of_thread(rustix::thread::gettid()) > before.1);
    }
}
