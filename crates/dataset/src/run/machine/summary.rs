//! [`MachineSummary`]: figures of the machine over a whole run.

use serde::Serialize;

use super::MachineBucket;

/// Figures of the machine over a whole run; `None` for figures that were not measured.
///
/// Shares are between 0 and 1. They are relative to the measured time, so a long bucket counts more
/// than a short one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct MachineSummary {
    /// Median over the buckets of their median calibration time, in microseconds.
    pub calibration_p50_us: Option<u64>,
    /// The lowest of the buckets' median calibration times, in microseconds.
    pub calibration_low_us: Option<u64>,
    /// The highest of the buckets' median calibration times, in microseconds.
    pub calibration_high_us: Option<u64>,
    /// Number of successful executions of the calibration statement.
    pub calibration_count: u64,
    /// 99th percentile over the buckets of their longest wake-up delay, in microseconds.
    pub wakeup_delay_p99_us: Option<u64>,
    /// The longest wake-up delay, in microseconds.
    pub wakeup_delay_max_us: Option<u64>,
    /// Share of the time in which some task waited for a processor.
    pub cpu_pressure: Option<f64>,
    /// Share of the time in which some task waited for a disk.
    pub io_pressure: Option<f64>,
    /// Share of the time in which some task waited for memory.
    pub memory_pressure: Option<f64>,
    /// Share of processor time that a hypervisor gave to other guests.
    pub steal: Option<f64>,
    /// Share of processor time in use.
    pub busy: Option<f64>,
    /// Share of processor time spent idle while a task waited for a disk.
    pub iowait: Option<f64>,
    /// Processor time used by the replay per elapsed time: 1 is one processor in use all the time.
    pub replay_processors: Option<f64>,
}

impl MachineSummary {
    pub(super) fn new(buckets: &[MachineBucket]) -> Self {
        let medians = sorted(buckets, |bucket| bucket.calibration_p50_us);
        let delays = sorted(buckets, |bucket| bucket.wakeup_delay_max_us);
        let interval = |bucket: &MachineBucket| bucket.interval_us;
        let of_time = |get| share(buckets, get, interval);
        let of_cpu = |get| share(buckets, get, |bucket| bucket.cpu_total_us);
        Self {
            calibration_p50_us: quantile(&medians, 0.5),
            calibration_low_us: medians.first().copied(),
            calibration_high_us: medians.last().copied(),
            calibration_count: buckets.iter().filter_map(|bucket| bucket.calibration_count).sum(),
            wakeup_delay_p99_us: quantile(&delays, 0.99),
            wakeup_delay_max_us: delays.last().copied(),
            cpu_pressure: of_time(|bucket| bucket.cpu_some_us),
            io_pressure: of_time(|bucket| bucket.io_some_us),
            memory_pressure: of_time(|bucket| bucket.memory_some_us),
            steal: of_cpu(|bucket| bucket.cpu_steal_us),
            busy: of_cpu(|bucket| bucket.cpu_busy_us),
            iowait: of_cpu(|bucket| bucket.cpu_iowait_us),
            replay_processors: of_time(|bucket| bucket.replay_cpu_us),
        }
    }
}

fn sorted(buckets: &[MachineBucket], get: fn(&MachineBucket) -> Option<u64>) -> Vec<u64> {
    let mut values: Vec<_> = buckets.iter().filter_map(get).collect();
    values.sort_unstable();
    values
}

/// Returns the smallest value that at least this share of the values does not exceed.
fn quantile(sorted: &[u64], share: f64) -> Option<u64> {
    let rank = (sorted.len() as f64 * share).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied()
}

/// Returns the sum of one figure divided by that of another, over the buckets that have both.
fn share(
    buckets: &[MachineBucket],
    part: fn(&MachineBucket) -> Option<u64>,
    whole: fn(&MachineBucket) -> Option<u64>,
) -> Option<f64> {
    let both = buckets.iter().filter_map(|bucket| part(bucket).zip(whole(bucket)));
    let (part, whole) = both.fold((0_u128, 0_u128), |(parts, wholes), (part, whole)| {
        (parts + u128::from(part), wholes + u128::from(whole))
    });
    (whole > 0).then(|| part as f64 / whole as f64)
}
