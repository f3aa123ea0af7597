//! Reads the host's counters from `/proc`: pressure stall information, and processor time.
//!
//! Sources: Documentation/accounting/psi.rst of the kernel, proc_stat(5). In a container, the
//! counters are those of the host. If a file is missing or has an unexpected form, as
//! `/proc/pressure` in many containers, its figures are left out.

use std::{
    fs::File,
    io::Read as _,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use howdah_dataset::MachineBucket;
use rustix::time::{ClockId, clock_gettime};

use super::micros;

/// Maximum number of bytes read from each file. The relevant lines come first; a processor's line
/// has at most 120 bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Length of a clock tick in microseconds: `USER_HZ` is 100 on every Linux architecture that
/// PostgreSQL supports, independent of the kernel's `CONFIG_HZ`.
const TICK_US: u64 = 10_000;

/// Reads the counters, and computes their differences.
#[derive(Debug)]
pub(super) struct HostSampler {
    proc: PathBuf,
    before: Option<(Instant, ProcCounters)>,
}

/// Counters at one moment, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ProcCounters {
    cpu_pressure: Pressure,
    io_pressure: Pressure,
    memory_pressure: Pressure,
    processors: Option<ProcessorTime>,
    /// Processor time of the replaying process, in microseconds.
    own: u64,
}

/// Time during which tasks waited for a resource, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Pressure {
    /// Time during which at least one task waited.
    some: Option<u64>,
    /// Time during which all non-idle tasks waited.
    full: Option<u64>,
}

/// Time of all processors together since the host started, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ProcessorTime {
    total: u64,
    busy: u64,
    /// Time in which a hypervisor ran other guests; not reported by kernels before 2.6.11.
    steal: Option<u64>,
    /// Idle time while a task waited for a disk; not reported by kernels before 2.5.41.
    iowait: Option<u64>,
}

impl HostSampler {
    /// Creates a sampler that reads files in `proc`.
    pub(super) fn new(proc: impl AsRef<Path>) -> Self {
        Self { proc: proc.as_ref().to_owned(), before: None }
    }

    /// Returns the number of processors of the host; `None` if `/proc/stat` does not list them.
    pub(super) fn processors(&self) -> Option<u32> {
        count_processors(&self.read("stat"))
    }

    /// Reads the counters that the first sample is compared with.
    pub(super) fn start(&mut self) {
        self.before = Some((Instant::now(), self.counters()));
    }

    /// Writes the differences since the previous call, or since [`Self::start`], into a bucket.
    pub(super) fn sample(&mut self, bucket: &mut MachineBucket) {
        let (now, counters) = (Instant::now(), self.counters());
        if let Some((at, before)) = self.before.replace((now, counters)) {
            write_differences(now.saturating_duration_since(at), &before, &counters, bucket);
        }
    }

    fn counters(&self) -> ProcCounters {
        let pressure = |name| parse_pressure(&self.read(name));
        let own = clock_gettime(ClockId::ProcessCPUTime);
        ProcCounters {
            cpu_pressure: pressure("pressure/cpu"),
            io_pressure: pressure("pressure/io"),
            memory_pressure: pressure("pressure/memory"),
            processors: parse_processor_time(&self.read("stat")),
            own: own.tv_sec.unsigned_abs() * 1_000_000 + own.tv_nsec.unsigned_abs() / 1_000,
        }
    }

    /// Returns the start of a file; empty if the file cannot be read.
    fn read(&self, name: &str) -> String {
        let mut text = String::new();
        let read = File::open(self.proc.join(name))
            .and_then(|file| file.take(FILE_BYTES_MAX).read_to_string(&mut text));
        read.map(|_| text).unwrap_or_default()
    }
}

fn write_differences(
    interval: Duration,
    before: &ProcCounters,
    after: &ProcCounters,
    bucket: &mut MachineBucket,
) {
    // A counter that decreased was reset or is unreliable (iowait), so there is then no figure.
    let difference = |get: fn(&ProcCounters) -> Option<u64>| get(after)?.checked_sub(get(before)?);
    *bucket = MachineBucket {
        interval_us: Some(micros(interval)),
        cpu_some_us: difference(|counters| counters.cpu_pressure.some),
        cpu_full_us: difference(|counters| counters.cpu_pressure.full),
        io_some_us: difference(|counters| counters.io_pressure.some),
        io_full_us: difference(|counters| counters.io_pressure.full),
        memory_some_us: difference(|counters| counters.memory_pressure.some),
        memory_full_us: difference(|counters| counters.memory_pressure.full),
        cpu_total_us: difference(|counters| Some(counters.processors?.total)),
        cpu_busy_us: difference(|counters| Some(counters.processors?.busy)),
        cpu_steal_us: difference(|counters| counters.processors?.steal),
        cpu_iowait_us: difference(|counters| counters.processors?.iowait),
        replay_cpu_us: difference(|counters| Some(counters.own)),
        ..*bucket
    };
}

/// Parses a file of `/proc/pressure`. Each line is
/// `some avg10=0.00 avg60=0.00 avg300=0.00 total=12345`, where the total is in microseconds.
fn parse_pressure(text: &str) -> Pressure {
    let total = |kind: &str| {
        text.lines().find_map(|line| {
            let mut fields = line.split_ascii_whitespace();
            (fields.next() == Some(kind)).then_some(())?;
            fields.find_map(|field| field.strip_prefix("total="))?.parse().ok()
        })
    };
    Pressure { some: total("some"), full: total("full") }
}

/// Parses the line `cpu user nice system idle iowait irq softirq steal guest guest_nice` of
/// `/proc/stat`. The time of guests is part of `user` and `nice`.
fn parse_processor_time(text: &str) -> Option<ProcessorTime> {
    let mut fields = text.lines().next()?.split_ascii_whitespace();
    (fields.next() == Some("cpu")).then_some(())?;
    let ticks: Vec<u64> = fields.take(8).map(str::parse).collect::<Result<_, _>>().ok()?;
    let (&[user, nice, system, idle], later) = ticks.split_first_chunk::<4>()?;
    let field = |index: usize| later.get(index).copied();
    let [iowait, irq, softirq, steal] = [0, 1, 2, 3].map(field);
    let sum = |ticks: &[u64]| ticks.iter().try_fold(0_u64, |sum, one| sum.checked_add(*one));
    let busy = sum(&[user, nice, system, irq.unwrap_or(0), softirq.unwrap_or(0)])?;
    let total = sum(&[busy, idle, iowait.unwrap_or(0), steal.unwrap_or(0)])?;
    let time = |ticks: u64| ticks.checked_mul(TICK_US);
    Some(ProcessorTime {
        total: time(total)?,
        busy: time(busy)?,
        steal: steal.and_then(time),
        iowait: iowait.and_then(time),
    })
}

/// Counts the lines of processors in `/proc/stat`: `cpu0`, `cpu1`, …
fn count_processors(text: &str) -> Option<u32> {
    let is_processor = |line: &&str| {
        line.strip_prefix("cpu").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    u32::try_from(text.lines().filter(is_processor).count()).ok().filter(|count| *count > 0)
}

#[cfg(test)]
mod tests;
