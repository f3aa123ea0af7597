//! Summarizes steps: when throughput returned to normal, and how many reads were lost until then.

use std::time::Duration;

use crate::benchmark::read_client::ThroughputStep;

/// A summary of throughput: when it returned to normal, and how many reads were lost until then.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ThroughputSummary {
    /// Time from the start to the first step that reached 90 % of the steady rate and from which
    /// the median of five steps (fewer at the end, at least three) reached it as well; `None` if no
    /// step did.
    pub time_to_90: Option<Duration>,
    /// Transactions that a warm server would have served until that time (or until the end), minus
    /// those that this server served.
    pub lost: u64,
    /// Number of transactions in the whole run.
    pub transactions: u64,
}

/// Number of steps whose median must also reach the threshold. The median tolerates single slow
/// steps of a server that is warm, and is not deceived by single fast ones of a server that is not.
const WINDOW: usize = 5;
/// Minimum number of steps for a median.
const WINDOW_MIN: usize = 3;
const REACHED_SHARE: f64 = 0.9;

/// Returns the median of the rates per second in the second half of `steps`, without the steps that
/// began before `warm_at`; `None` if fewer than three steps remain.
pub(crate) fn steady_rate(
    steps: &[ThroughputStep],
    step: Duration,
    warm_at: Duration,
) -> Option<f64> {
    let first_warm = (warm_at.as_secs_f64() / step.as_secs_f64()).ceil() as usize;
    let steady = steps.get((steps.len() / 2).max(first_warm)..)?;
    (steady.len() >= WINDOW_MIN).then(|| median_transactions(steady) / step.as_secs_f64())
}

/// Returns the median of the transactions in steps; the mean of the middle two of an even number.
fn median_transactions(steps: &[ThroughputStep]) -> f64 {
    let mut counts: Vec<_> = steps.iter().map(|step| step.transactions).collect();
    counts.sort_unstable();
    let middle = |index: usize| counts.get(index).copied().unwrap_or(0) as f64;
    (middle(counts.len().saturating_sub(1) / 2) + middle(counts.len() / 2)) / 2.0
}

impl ThroughputSummary {
    /// Summarizes steps of length `step`, compared to a steady rate per second.
    pub fn from_steps(steps: &[ThroughputStep], step: Duration, steady: f64) -> Self {
        let per_step = steady * step.as_secs_f64();
        let is_reached = |at: &usize| {
            let window = &steps[*at..steps.len().min(*at + WINDOW)];
            window[0].transactions as f64 >= REACHED_SHARE * per_step
                && window.len() >= WINDOW_MIN
                && median_transactions(window) >= REACHED_SHARE * per_step
        };
        let at = (0..steps.len()).find(is_reached);
        let until = at.unwrap_or(steps.len());
        let served: u64 = steps[..until].iter().map(|step| step.transactions).sum();
        let lost = (per_step * until as f64 - served as f64).max(0.0);
        Self {
            time_to_90: at.map(|at| step * u32::try_from(at).unwrap_or(u32::MAX)),
            lost: lost.round() as u64,
            transactions: steps.iter().map(|step| step.transactions).sum(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(counts: &[u64]) -> Vec<ThroughputStep> {
        counts
            .iter()
            .map(|&transactions| ThroughputStep { transactions, ..ThroughputStep::default() })
            .collect()
    }

    const HALF: Duration = Duration::from_millis(500);

    #[test]
    fn losses_are_counted_until_throughput_recovers() {
        let counts = [10, 40, 95, 50, 60, 70, 92, 97, 99, 80, 100];
        let summary = ThroughputSummary::from_steps(&steps(&counts), HALF, 200.0);
        assert_eq!(summary.time_to_90, Some(Duration::from_secs(3)), "95 alone was luck");
        assert_eq!((summary.lost, summary.transactions), (600 - 325, 793));
    }

    #[test]
    fn slow_steps_of_a_warm_server_do_not_delay_recovery() {
        let counts = [10, 95, 20, 98, 30, 97, 99, 98];
        let summary = ThroughputSummary::from_steps(&steps(&counts), HALF, 200.0);
        assert_eq!(summary.time_to_90, Some(HALF));
    }

    #[test]
    fn losses_are_counted_to_the_end_without_recovery() {
        let summary = ThroughputSummary::from_steps(&steps(&[10, 20, 99]), HALF, 200.0);
        assert_eq!(summary, ThroughputSummary { time_to_90: None, lost: 171, transactions: 129 });
    }

    #[test]
    fn warm_start_has_no_losses() {
        let summary = ThroughputSummary::from_steps(&steps(&[99, 101, 100]), HALF, 200.0);
        assert_eq!((summary.time_to_90, summary.lost), (Some(Duration::ZERO), 0));
        assert_eq!(ThroughputSummary::from_steps(&[], HALF, 200.0).time_to_90, None);
    }

    #[test]
    fn steady_rate_is_median_of_warm_steps_in_second_half() {
        let found = |warm_at| steady_rate(&steps(&[1, 2, 3, 100, 500, 110]), HALF, warm_at);
        assert_eq!(found(Duration::ZERO), Some(220.0));
        assert_eq!(found(Duration::from_millis(1500)), Some(220.0));
        assert_eq!(found(Duration::from_millis(1501)), None, "two steps show no steady rate");
        assert_eq!(found(Duration::from_secs(60)), None);
    }
}
