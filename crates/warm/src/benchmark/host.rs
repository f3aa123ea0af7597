//! Measures the conditions on the host while a client reads: waits for a processor, pressure, load,
//! and time that a hypervisor gave to other guests.
//!
//! Sources: sched-stats.rst and psi.rst of the kernel, proc_stat(5), proc_pid_stat(5),
//! proc_loadavg(5). In a container, the host's figures are those of the whole host. Files that
//! cannot be read or have an unexpected form yield no figure.

use std::{fs, time::Duration};

/// Properties of the host on which the benchmark runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostInfo {
    /// Number of processors, if known.
    pub processors: Option<u32>,
    /// Memory in bytes, if known.
    pub memory_bytes: Option<u64>,
}

impl HostInfo {
    /// Queries the properties of this host.
    pub fn query() -> Self {
        let processors = read("/proc/stat");
        let memory = read("/proc/meminfo");
        Self {
            processors: u32::try_from(processor_lines(&processors)).ok().filter(|count| *count > 0),
            memory_bytes: parse_memory(&memory),
        }
    }
}

/// The conditions during one step. Figures that cannot be read on this host are `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepConditions {
    /// Time for which the client's thread was runnable and waited for a processor.
    pub client_wait: Option<Duration>,
    /// Time for which the client's backend was runnable and waited for a processor; `None` if it
    /// does not run on this host.
    pub backend_wait: Option<Duration>,
    /// Page faults without I/O of the client's backend. After a restart it takes one for each 4 kB
    /// of the cache that it touches for the first time, however the cache was warmed.
    pub backend_faults: Option<u64>,
    /// Time for which at least one task on the host waited for a processor.
    pub cpu_pressure: Option<Duration>,
    /// Time for which at least one task on the host waited for I/O.
    pub io_pressure: Option<Duration>,
    /// Processor time, over all processors, for which a hypervisor ran other guests.
    pub steal: Option<Duration>,
    /// Load average of the last minute at the end of the step.
    pub load: Option<f64>,
}

impl StepConditions {
    /// Returns the time for which the client or its backend waited for a processor. The two work in
    /// turn, so this is at most the length of the step.
    pub fn processor_wait(&self) -> Option<Duration> {
        Some(self.client_wait? + self.backend_wait.unwrap_or_default())
    }
}

/// Reads the conditions step by step. The client's thread is the one that calls it.
#[derive(Debug)]
pub(crate) struct ConditionSampler {
    thread: rustix::thread::Pid,
    backend: Option<i32>,
    before: Counters,
}

/// Counters since the start of the host or of the process.
#[derive(Clone, Copy, Debug, Default)]
struct Counters {
    client_wait: Option<u64>,
    backend_wait: Option<u64>,
    backend_faults: Option<u64>,
    cpu_pressure_us: Option<u64>,
    io_pressure_us: Option<u64>,
    steal_ticks: Option<u64>,
}

impl ConditionSampler {
    /// Starts sampling for the calling thread, and for a backend on this host.
    pub(crate) fn start(backend: Option<i32>) -> Self {
        let mut sampler =
            Self { thread: rustix::thread::gettid(), backend, before: Counters::default() };
        sampler.before = sampler.counters();
        sampler
    }

    /// Returns the conditions since the previous call, or since the start.
    pub(crate) fn sample(&mut self) -> StepConditions {
        let now = self.counters();
        let before = std::mem::replace(&mut self.before, now);
        let nanos = |get: fn(&Counters) -> Option<u64>| difference(get(&now), get(&before));
        StepConditions {
            client_wait: nanos(|at| at.client_wait).map(Duration::from_nanos),
            backend_wait: nanos(|at| at.backend_wait).map(Duration::from_nanos),
            backend_faults: nanos(|at| at.backend_faults),
            cpu_pressure: nanos(|at| at.cpu_pressure_us).map(Duration::from_micros),
            io_pressure: nanos(|at| at.io_pressure_us).map(Duration::from_micros),
            steal: nanos(|at| at.steal_ticks).map(ticks),
            load: load_average(),
        }
    }

    fn counters(&self) -> Counters {
        let thread = self.thread.as_raw_nonzero();
        let pressure = |name| parse_pressure(&read(&format!("/proc/pressure/{name}")));
        let backend = |name| Some(read(&format!("/proc/{}/{name}", self.backend?)));
        Counters {
            client_wait: parse_wait(&read(&format!("/proc/self/task/{thread}/schedstat"))),
            backend_wait: backend("schedstat").and_then(|text| parse_wait(&text)),
            backend_faults: backend("stat").and_then(|text| parse_faults(&text)),
            cpu_pressure_us: pressure("cpu"),
            io_pressure_us: pressure("io"),
            steal_ticks: HostTime::parse(&read("/proc/stat")).map(|time| time.steal),
        }
    }
}

/// Time of all processors since the host started, in clock ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HostTime {
    total: u64,
    busy: u64,
    steal: u64,
}

impl HostTime {
    /// Reads the current counters.
    pub(crate) fn now() -> Option<Self> {
        Self::parse(&read("/proc/stat"))
    }

    /// Returns shares of the processors' capacity since `before`: the time used by tasks other than
    /// `own`, and the time for which a hypervisor ran other guests. `None` if no tick passed.
    pub(crate) fn shares_since(self, before: Self, own: Option<Duration>) -> Option<HostShares> {
        let total = self.total.checked_sub(before.total).filter(|total| *total > 0)?;
        let capacity = ticks(total).as_secs_f64();
        let share = |time: Duration| (time.as_secs_f64() / capacity).min(1.0);
        let busy = ticks(self.busy.saturating_sub(before.busy));
        Some(HostShares {
            steal: share(ticks(self.steal.saturating_sub(before.steal))),
            others: own.map(|own| share(busy.saturating_sub(own))),
        })
    }

    /// Parses the line `cpu user nice system idle iowait irq softirq steal guest guest_nice`. The
    /// time of guests is part of `user` and `nice`.
    fn parse(text: &str) -> Option<Self> {
        let mut fields = text.lines().next()?.split_ascii_whitespace();
        (fields.next() == Some("cpu")).then_some(())?;
        let ticks: Vec<u64> = fields.take(8).map(str::parse).collect::<Result<_, _>>().ok()?;
        let &[user, nice, system, idle, iowait, irq, softirq, steal] = ticks.as_slice() else {
            return None;
        };
        let sum = |ticks: &[u64]| ticks.iter().try_fold(0_u64, |sum, one| sum.checked_add(*one));
        let busy = sum(&[user, nice, system, irq, softirq])?;
        Some(Self { total: sum(&[busy, idle, iowait, steal])?, busy, steal })
    }
}

/// Shares of the processors' capacity, 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct HostShares {
    pub(crate) steal: f64,
    /// `None` if the usage of the server's own processes is unknown.
    pub(crate) others: Option<f64>,
}

/// Returns the load average of the last minute.
pub(crate) fn load_average() -> Option<f64> {
    read("/proc/loadavg").split(' ').next()?.parse().ok().filter(|load: &f64| load.is_finite())
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// Converts clock ticks: `USER_HZ` is 100 on all supported platforms.
fn ticks(count: u64) -> Duration {
    Duration::from_millis(count.saturating_mul(10))
}

/// A counter that decreased belongs to another process, so there is then no figure.
fn difference(after: Option<u64>, before: Option<u64>) -> Option<u64> {
    after?.checked_sub(before?)
}

/// Parses the second field of `schedstat`, the time spent waiting for a processor in ns.
fn parse_wait(text: &str) -> Option<u64> {
    text.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// Parses field 10 of `/proc/PID/stat`, `minflt`. Field 2, the command, may contain spaces.
fn parse_faults(text: &str) -> Option<u64> {
    text.rsplit_once(')')?.1.split_ascii_whitespace().nth(7)?.parse().ok()
}

/// Parses the total of the line `some avg10=0.00 avg60=0.00 avg300=0.00 total=12345`, in µs.
fn parse_pressure(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("some "))?;
    line.split(' ').find_map(|field| field.strip_prefix("total="))?.parse().ok()
}

fn processor_lines(text: &str) -> usize {
    let is_processor = |line: &&str| {
        line.strip_prefix("cpu").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    text.lines().filter(is_processor).count()
}

/// Parses the line `MemTotal: 12345 kB` of `/proc/meminfo`.
fn parse_memory(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.split_ascii_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &str = "cpu  100 20 30 400 50 6 4 10 7 0\ncpu0 1 2 3\ncpu1 1 2 3\nintr 5\n";

    #[test]
    fn files_of_proc_are_parsed() {
        assert_eq!(parse_wait("631199 56669 1\n"), Some(56_669));
        assert_eq!(parse_faults("7 (a (b) c) S 1 7 7 0 -1 4194560 321 200 0 0 12 30"), Some(321));
        let pressure = "some avg10=0.00 avg60=0.03 avg300=2.40 total=1008\nfull total=7\n";
        assert_eq!(parse_pressure(pressure), Some(1008));
        assert_eq!(parse_memory("MemTotal:  2048 kB\nMemFree: 1 kB\n"), Some(2 << 20));
        assert_eq!(processor_lines(STAT), 2);
        let time = HostTime { total: 620, busy: 160, steal: 10 };
        assert_eq!(HostTime::parse(STAT), Some(time));
        for text in ["", "x", "cpu a b c d e f g h"] {
            assert_eq!(HostTime::parse(text), None, "{text}");
            assert_eq!((parse_wait(text), parse_faults(text)), (None, None));
            assert_eq!((parse_pressure(text), parse_memory(text)), (None, None));
        }
    }

    #[test]
    fn shares_are_of_the_capacity_of_all_processors() {
        let before = HostTime { total: 1000, busy: 100, steal: 0 };
        let after = HostTime { total: 1200, busy: 220, steal: 10 };
        let shares = after.shares_since(before, Some(Duration::from_secs(1))).unwrap();
        assert_eq!((shares.steal, shares.others), (0.05, Some(0.1)));
        assert_eq!(after.shares_since(before, None).unwrap().others, None);
        assert_eq!(before.shares_since(before, None), None);
    }

    #[test]
    fn waits_of_the_calling_thread_increase_only() {
        let mut sampler = ConditionSampler::start(None);
        let conditions = sampler.sample();
        assert_eq!((conditions.backend_wait, conditions.backend_faults), (None, None));
        // Where the kernel counts waits, the client's are known without a backend.
        assert_eq!(conditions.processor_wait(), conditions.client_wait);
    }
}
