//! From steps to what is said about them: when the client was served as before, and what it lost until
//! then.

use std::time::Duration;

use crate::points::Step;

/// What a sequence of steps comes to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Curve {
    /// From the start until throughput was 90 % of the steady one and stayed there for the next steps,
    /// exact to a step; `None` if it never was.
    pub to_ninety: Option<Duration>,
    /// Transactions that a warm server would have served until then (or until the end), and this one
    /// did not.
    pub lost: u64,
    /// Transactions of the whole run.
    pub transactions: u64,
}

/// A step counts as reached if the mean of it and of the next ones is: one lucky step is not enough.
const WINDOW: usize = 3;
const SHARE: f64 = 0.9;

/// The rate of a sequence of steps that is steady: the median of its second half, per second.
pub(crate) fn steady_rate(steps: &[Step], step: Duration) -> f64 {
    let half = &steps[steps.len() / 2..];
    let mut rates: Vec<_> = half.iter().map(|found| found.transactions).collect();
    rates.sort_unstable();
    let median = rates.get(rates.len() / 2).copied().unwrap_or(0);
    median as f64 / step.as_secs_f64()
}

impl Curve {
    /// The curve of steps of length `step` against a steady rate per second.
    pub(crate) fn of(steps: &[Step], step: Duration, steady: f64) -> Self {
        let wanted = steady * step.as_secs_f64();
        let is_there = |window: &[Step]| {
            let sum: u64 = window.iter().map(|found| found.transactions).sum();
            sum as f64 >= SHARE * wanted * window.len() as f64
        };
        let at = (0..steps.len()).find(|&at| {
            let window = &steps[at..steps.len().min(at + WINDOW)];
            is_there(&window[..1]) && is_there(window)
        });
        let until = at.unwrap_or(steps.len());
        let served: u64 = steps[..until].iter().map(|found| found.transactions).sum();
        let lost = (wanted * until as f64 - served as f64).max(0.0);
        Self {
            to_ninety: at.map(|at| step * at as u32),
            lost: lost.round() as u64,
            transactions: steps.iter().map(|found| found.transactions).sum(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(counts: &[u64]) -> Vec<Step> {
        counts.iter().map(|&transactions| Step { transactions, p99_us: 0 }).collect()
    }

    const HALF: Duration = Duration::from_millis(500);

    #[test]
    fn what_is_lost_is_counted_until_it_is_served_as_before() {
        let curve = Curve::of(&steps(&[10, 40, 95, 50, 92, 97, 99, 80, 100]), HALF, 200.0);
        assert_eq!(curve.to_ninety, Some(Duration::from_secs(2)), "95 alone was luck");
        assert_eq!((curve.lost, curve.transactions), (400 - 195, 663));
    }

    #[test]
    fn who_never_gets_there_loses_to_the_end() {
        let curve = Curve::of(&steps(&[10, 20, 30]), HALF, 200.0);
        assert_eq!(curve, Curve { to_ninety: None, lost: 240, transactions: 60 });
    }

    #[test]
    fn a_warm_start_loses_nothing() {
        let curve = Curve::of(&steps(&[99, 101]), HALF, 200.0);
        assert_eq!((curve.to_ninety, curve.lost), (Some(Duration::ZERO), 0));
        assert_eq!(Curve::of(&[], HALF, 200.0).to_ninety, None);
    }

    #[test]
    fn the_steady_rate_is_that_of_the_second_half() {
        assert_eq!(steady_rate(&steps(&[1, 2, 3, 100, 500, 110]), HALF), 220.0);
    }
}
