//! Summarizes steps: when throughput returned to normal, and how many reads were lost until then.

use std::time::Duration;

use crate::benchmark::read_client::ThroughputStep;

/// A summary of throughput: when it returned to normal, and how many reads were lost until then.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ThroughputSummary {
    /// Time from the start to the first step that reached 90 % of the steady rate, both alone and
    /// on average with the next two steps (fewer at the end); `None` if no step did.
    pub time_to_90: Option<Duration>,
    /// Transactions that a warm server would have served until that time (or until the end), minus
    /// those that this server served.
    pub lost: u64,
    /// Number of transactions in the whole run.
    pub transactions: u64,
}

/// Number of steps whose mean must also reach the threshold: a single good step may be luck.
const WINDOW: usize = 3;
const REACHED_SHARE: f64 = 0.9;

/// Returns the steady rate per second: the median of the second half of `steps`.
pub(crate) fn steady_rate(steps: &[ThroughputStep], step: Duration) -> f64 {
    let half = &steps[steps.len() / 2..];
    let mut rates: Vec<_> = half.iter().map(|step| step.transactions).collect();
    rates.sort_unstable();
    let median = rates.get(rates.len() / 2).copied().unwrap_or(0);
    median as f64 / step.as_secs_f64()
}

impl ThroughputSummary {
    /// Summarizes steps of length `step`, compared to a steady rate per second.
    pub fn from_steps(steps: &[ThroughputStep], step: Duration, steady: f64) -> Self {
        let per_step = steady * step.as_secs_f64();
        let is_reached = |window: &[ThroughputStep]| {
            let sum: u64 = window.iter().map(|step| step.transactions).sum();
            sum as f64 >= REACHED_SHARE * per_step * window.len() as f64
        };
        let at = (0..steps.len()).find(|&at| {
            let window = &steps[at..steps.len().min(at + WINDOW)];
            is_reached(&window[..1]) && is_reached(window)
        });
        let until = at.unwrap_or(steps.len());
        let served: u64 = steps[..until].iter().map(|step| step.transactions).sum();
        let lost = (per_step * until as f64 - served as f64).max(0.0);
        Self {
            time_to_90: at.map(|at| step * at as u32),
            lost: lost.round() as u64,
            transactions: steps.iter().map(|step| step.transactions).sum(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(counts: &[u64]) -> Vec<ThroughputStep> {
        counts.iter().map(|&transactions| ThroughputStep { transactions, p99_us: 0 }).collect()
    }

    const HALF: Duration = Duration::from_millis(500);

    #[test]
    fn losses_are_counted_until_throughput_recovers() {
        let summary = ThroughputSummary::from_steps(
            &steps(&[10, 40, 95, 50, 92, 97, 99, 80, 100]),
            HALF,
            200.0,
        );
        assert_eq!(summary.time_to_90, Some(Duration::from_secs(2)), "95 alone was luck");
        assert_eq!((summary.lost, summary.transactions), (400 - 195, 663));
    }

    #[test]
    fn losses_are_counted_to_the_end_without_recovery() {
        let summary = ThroughputSummary::from_steps(&steps(&[10, 20, 30]), HALF, 200.0);
        assert_eq!(summary, ThroughputSummary { time_to_90: None, lost: 240, transactions: 60 });
    }

    #[test]
    fn warm_start_has_no_losses() {
        let summary = ThroughputSummary::from_steps(&steps(&[99, 101]), HALF, 200.0);
        assert_eq!((summary.time_to_90, summary.lost), (Some(Duration::ZERO), 0));
        assert_eq!(ThroughputSummary::from_steps(&[], HALF, 200.0).time_to_90, None);
    }

    #[test]
    fn steady_rate_is_median_of_second_half() {
        assert_eq!(steady_rate(&steps(&[1, 2, 3, 100, 500, 110]), HALF), 220.0);
    }
}
