//! [`MachineLoad`]: the state of the machine during a run, and by how much it differs between two
//! sides.

use howdah_dataset::MachineSeries;

use crate::statistics::median;

/// The state of the machine during one run. A figure that was not measured is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MachineLoad {
    /// Typical time of the calibration statement, which does the same work in every run and reads
    /// no table, in microseconds.
    pub calibration_us: Option<f64>,
    /// 99th percentile, over the seconds of the run, of the longest delay with which the host of
    /// the replay woke a sleeping thread, in microseconds.
    pub scheduling_delay_us: Option<f64>,
    /// Share of time in which a process on the host of the replay waited for a processor, from 0 to
    /// 1.
    pub cpu_pressure: Option<f64>,
    /// Share of time in which a process on the host of the replay waited for I/O, from 0 to 1.
    pub io_pressure: Option<f64>,
    /// Share of processor time that the hypervisor gave to other guests, from 0 to 1.
    pub steal: Option<f64>,
}

impl MachineLoad {
    /// Computes the figures of a whole run from what the replay measured.
    ///
    /// The time of the calibration statement is the geometric mean over the buckets, so a machine
    /// that is busy for half of the run counts as half as busy. It is `None` if the statement was
    /// never executed, or stopped before the end of the run.
    pub fn from_series(series: &MachineSeries) -> Self {
        let summary = series.summary();
        let medians = series.buckets.iter().filter_map(|bucket| bucket.calibration_p50_us);
        let logarithms: Vec<f64> = medians.map(|us| (us.max(1) as f64).ln()).collect();
        let mean = logarithms.iter().sum::<f64>() / logarithms.len() as f64;
        let is_whole = series.calibration.end.is_none() && !logarithms.is_empty();
        Self {
            calibration_us: is_whole.then(|| mean.exp()),
            scheduling_delay_us: summary.wakeup_delay_p99_us.map(|us| us as f64),
            cpu_pressure: summary.cpu_pressure,
            io_pressure: summary.io_pressure,
            steal: summary.steal,
        }
    }
}

/// Returns the factor by which the calibration statement was slower in `run` than in `base`, as a
/// logarithm; `None` unless it was measured in all runs.
pub(crate) fn calibration_shift<'a>(
    base: impl Iterator<Item = Option<&'a MachineLoad>>,
    run: impl Iterator<Item = Option<&'a MachineLoad>>,
) -> Option<f64> {
    Some(level(run)? - level(base)?)
}

fn level<'a>(runs: impl Iterator<Item = Option<&'a MachineLoad>>) -> Option<f64> {
    let times: Option<Vec<f64>> = runs.map(|run| run?.calibration_us).collect();
    median(times?.into_iter().map(|time| time.max(1.0).ln()))
}

#[test]
fn calibration_is_compared_only_where_all_runs_have_it() {
    let load = |calibration_us| MachineLoad { calibration_us, ..MachineLoad::default() };
    let [quiet, busy, unknown] = [load(Some(1_000.0)), load(Some(2_000.0)), load(None)];
    let shift = |base: &[MachineLoad], run: &[MachineLoad]| {
        calibration_shift(base.iter().map(Some), run.iter().map(Some))
    };
    let doubled = shift(&[quiet, quiet, busy], &[busy, busy]).expect("measured");
    assert!((doubled - 2.0_f64.ln()).abs() < 1e-12);
    assert_eq!(shift(&[quiet], &[unknown]), None);
    assert_eq!(calibration_shift([Some(&quiet)].into_iter(), [None].into_iter()), None);
}
