//! Decides whether other work on the host disturbed a measurement.

use std::{fmt, time::Duration};

use crate::benchmark::{host::HostShares, read_client::ThroughputStep};

/// Other work of the host during a measurement. Figures that are not available on the host are
/// `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Interference {
    /// Share of the time for which the client or its backend waited for a processor, 0 to 1.
    pub wait_share: Option<f64>,
    /// The same for the time after warming had finished: the whole measurement without warming,
    /// `None` if warming did not finish.
    pub wait_share_when_warm: Option<f64>,
    /// Share of the capacity of all processors that was used by neither the server nor the
    /// benchmark, 0 to 1; `None` if the server does not run on this host.
    pub others_share: Option<f64>,
    /// Share of the capacity of all processors that a hypervisor gave to other guests, 0 to 1.
    pub steal_share: Option<f64>,
    /// Load average of the last minute before the restart.
    pub load_before: Option<f64>,
}

/// The reason why a measurement is disturbed, with the share that exceeded its limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Disturbance {
    /// The client or its backend waited for a processor while nothing was being warmed.
    ProcessorWait(f64),
    /// The client or its backend waited for a processor, and other programs used this share of all
    /// processors.
    OtherPrograms(f64),
    /// A hypervisor gave this share of all processors to other guests.
    Steal(f64),
}

/// Largest share of the time that the client and its backend may wait for a processor.
pub const WAIT_SHARE_MAX: f64 = 0.10;
/// Largest share of the processors that other programs may use while the client waits that long.
pub const OTHERS_SHARE_MAX: f64 = 0.10;
/// Largest share of the processors that a hypervisor may give to other guests.
pub const STEAL_SHARE_MAX: f64 = 0.05;

impl Interference {
    /// Summarizes the conditions of a measurement. Warming finished `warm_at` after the start;
    /// `None` if it did not.
    pub(crate) fn new(
        steps: &[ThroughputStep],
        step: Duration,
        warm_at: Option<Duration>,
        shares: Option<HostShares>,
        load_before: Option<f64>,
    ) -> Self {
        let first_warm = |at: Duration| (at.as_secs_f64() / step.as_secs_f64()).ceil() as usize;
        Self {
            wait_share: wait_share(steps, step),
            wait_share_when_warm: warm_at
                .and_then(|at| steps.get(first_warm(at)..))
                .and_then(|steps| wait_share(steps, step)),
            others_share: shares.and_then(|shares| shares.others),
            steal_share: shares.map(|shares| shares.steal),
            load_before,
        }
    }

    /// Returns the reason why the measurement is disturbed, if it is.
    ///
    /// Waiting that the warming itself causes is part of its cost. While the cache is being warmed,
    /// the client's wait therefore counts only if other programs used the processors.
    pub fn disturbance(&self) -> Option<Disturbance> {
        let exceeds = |share: Option<f64>, limit| share.filter(|share| *share > limit);
        if let Some(share) = exceeds(self.steal_share, STEAL_SHARE_MAX) {
            return Some(Disturbance::Steal(share));
        }
        if let Some(share) = exceeds(self.wait_share_when_warm, WAIT_SHARE_MAX) {
            return Some(Disturbance::ProcessorWait(share));
        }
        exceeds(self.wait_share, WAIT_SHARE_MAX)?;
        exceeds(self.others_share, OTHERS_SHARE_MAX).map(Disturbance::OtherPrograms)
    }
}

/// Returns the share of the steps' time for which the client waited; `None` without steps, or if
/// the waits are unknown.
fn wait_share(steps: &[ThroughputStep], step: Duration) -> Option<f64> {
    let waits = steps.iter().map(|step| step.conditions.processor_wait());
    let waited: Duration = waits.sum::<Option<Duration>>()?;
    let time = step.as_secs_f64() * steps.len() as f64;
    (time > 0.0).then(|| (waited.as_secs_f64() / time).min(1.0))
}

impl fmt::Display for Disturbance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = |share: &f64| share * 100.0;
        match self {
            Self::ProcessorWait(share) => {
                write!(f, "the client waited for a processor {:.0} % of the time", percent(share))
            }
            Self::OtherPrograms(share) => {
                write!(f, "other programs used {:.0} % of the processors", percent(share))
            }
            Self::Steal(share) => {
                write!(f, "other guests used {:.0} % of the processors", percent(share))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::benchmark::host::StepConditions;

    const STEP: Duration = Duration::from_millis(100);

    fn steps(waits: &[u64]) -> Vec<ThroughputStep> {
        let step = |ms| ThroughputStep {
            conditions: StepConditions {
                client_wait: Some(Duration::from_millis(ms)),
                ..StepConditions::default()
            },
            ..ThroughputStep::default()
        };
        waits.iter().copied().map(step).collect()
    }

    fn disturbance(
        waits: &[u64],
        warm_at: Option<Duration>,
        others: f64,
        steal: f64,
    ) -> Option<Disturbance> {
        let shares = HostShares { steal, others: Some(others) };
        Interference::new(&steps(waits), STEP, warm_at, Some(shares), None).disturbance()
    }

    #[test]
    fn waits_caused_by_warming_do_not_disturb() {
        let waits = [60, 60, 0, 5, 5];
        assert_eq!(disturbance(&waits, Some(STEP * 2), 0.05, 0.0), None);
        assert_eq!(
            disturbance(&waits, Some(STEP * 2), 0.3, 0.0),
            Some(Disturbance::OtherPrograms(0.3))
        );
        let without_warming = disturbance(&waits, Some(Duration::ZERO), 0.05, 0.0);
        assert_eq!(without_warming, Some(Disturbance::ProcessorWait(0.26)));
    }

    #[test]
    fn busy_host_without_waits_does_not_disturb() {
        assert_eq!(disturbance(&[5, 5, 5], Some(Duration::ZERO), 0.8, 0.0), None);
        assert_eq!(disturbance(&[5, 5, 5], None, 0.8, 0.0), None);
    }

    #[test]
    fn steal_disturbs() {
        let found = disturbance(&[0], Some(Duration::ZERO), 0.0, 0.06);
        assert_eq!(found, Some(Disturbance::Steal(0.06)));
    }

    #[test]
    fn unknown_figures_do_not_disturb() {
        let steps = [ThroughputStep::default()];
        let interference = Interference::new(&steps, STEP, Some(Duration::ZERO), None, None);
        assert_eq!(interference, Interference::default());
        assert_eq!(interference.disturbance(), None);
    }
}
