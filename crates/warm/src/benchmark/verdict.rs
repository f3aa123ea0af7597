//! Decides which method warms faster, or that the measurements do not show it.
//!
//! A method is faster only if its times to 90 % of steady throughput are separate from the other's
//! in all runs, and the medians differ by more than chance and the length of a step explain.
//! Between "faster" and "no difference" there is a zone without a verdict, so that repeated
//! benchmarks do not alternate between the two.

use std::{fmt, time::Duration};

use crate::benchmark::{
    interference::Disturbance,
    method_summary::{MethodSummary, compare_times},
    results::{BenchmarkResults, STEADY_MARGIN, WarmMethod},
    spread::RunSpread,
};

/// The verdict of a benchmark: how each method compares to the others.
#[derive(Clone, Debug, PartialEq)]
pub struct BenchmarkVerdict {
    /// Reasons why no methods can be compared; then no comparison has a verdict.
    pub obstacles: Vec<BenchmarkObstacle>,
    /// Howdah compared to autoprewarm and to no warming, then autoprewarm to no warming, as far as
    /// they were measured.
    pub comparisons: Vec<MethodComparison>,
}

/// One method compared to another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MethodComparison {
    /// The method that is faster or slower.
    pub method: WarmMethod,
    /// The method to which it is compared.
    pub baseline: WarmMethod,
    /// Whether the method is faster.
    pub verdict: WarmingVerdict,
    /// Number of runs in which both measurements are undisturbed.
    pub runs: usize,
    /// Number of these runs in which the method reached 90 % earlier than the baseline.
    pub earlier: usize,
    /// Number of these runs in which it reached 90 % later.
    pub later: usize,
}

/// Whether a method warms faster than another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WarmingVerdict {
    /// Its times are separate from the other's, and smaller.
    Faster,
    /// Its times are separate from the other's, and larger.
    Slower,
    /// The medians differ by no more than one step or a tenth.
    NoDifference,
    /// The measurements do not show which one is faster.
    NotComparable(IndecisionReason),
}

/// The reason why two methods have no verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IndecisionReason {
    /// No methods can be compared: see [`BenchmarkVerdict::obstacles`].
    Obstacle,
    /// Neither method reached 90 % within the measurement, at least in half of the runs.
    NeitherReached,
    /// A method reached 90 % in some runs and not in others.
    ReachedInSomeRuns,
    /// The medians differ, but the times overlap or are too close to each other.
    Overlap,
}

/// A reason why no methods can be compared.
#[derive(Clone, Debug, PartialEq)]
pub enum BenchmarkObstacle {
    /// There are fewer than [`MIN_RUNS`] runs.
    TooFewRuns {
        /// Number of runs.
        runs: usize,
    },
    /// More than a third of the measurements are disturbed, or fewer than two of a method are not.
    Disturbed {
        /// Number of disturbed measurements.
        disturbed: usize,
        /// Number of measurements.
        measurements: usize,
        /// The disturbance of one of them.
        example: Disturbance,
    },
    /// The steady rates of warmed measurements differ by more than [`STEADY_MARGIN`] of their
    /// median.
    SteadyRatesDiffer {
        /// RunSpread of the steady rates, in reads per second.
        rates: RunSpread<f64>,
    },
}

/// Minimum number of runs for a verdict: two equal methods are separate by chance in one of three
/// benchmarks with two runs, but in one of ten with three.
pub const MIN_RUNS: usize = 3;
/// Minimum number of undisturbed measurements of each method.
const MIN_UNDISTURBED: usize = 2;

impl BenchmarkResults {
    /// Returns the verdict on the methods that were measured. Requires [`Self::summarize`].
    pub fn verdict(&self) -> BenchmarkVerdict {
        use WarmMethod::{Autoprewarm, Howdah, NoWarming};
        let obstacles = self.obstacles();
        let pairs = [(Howdah, Autoprewarm), (Howdah, NoWarming), (Autoprewarm, NoWarming)];
        let compare = |(method, baseline)| self.compare(method, baseline, !obstacles.is_empty());
        let comparisons = pairs.into_iter().filter_map(compare).collect();
        BenchmarkVerdict { obstacles, comparisons }
    }

    fn obstacles(&self) -> Vec<BenchmarkObstacle> {
        let mut obstacles = Vec::new();
        if self.runs.len() < MIN_RUNS {
            obstacles.push(BenchmarkObstacle::TooFewRuns { runs: self.runs.len() });
        }
        let measurements = self.all_measurements().count();
        let disturbances: Vec<_> =
            self.all_measurements().filter_map(|it| it.interference.disturbance()).collect();
        let summaries = self.method_summaries();
        let is_scarce = |it: &MethodSummary| it.measured - it.disturbed < MIN_UNDISTURBED;
        let is_disturbed = disturbances.len() * 3 > measurements
            || (self.runs.len() >= MIN_RUNS && summaries.iter().any(is_scarce));
        if let Some(&example) = disturbances.first().filter(|_| is_disturbed) {
            let disturbed = disturbances.len();
            obstacles.push(BenchmarkObstacle::Disturbed { disturbed, measurements, example });
        }
        let undisturbed =
            self.all_measurements().filter(|it| it.interference.disturbance().is_none());
        let rates = RunSpread::new(undisturbed.filter_map(|it| it.steady), f64::total_cmp);
        let differs = |rates: &RunSpread<f64>| rates.max - rates.min > STEADY_MARGIN * rates.median;
        if let Some(rates) = rates.filter(differs) {
            obstacles.push(BenchmarkObstacle::SteadyRatesDiffer { rates });
        }
        obstacles
    }

    fn compare(
        &self,
        method: WarmMethod,
        baseline: WarmMethod,
        is_obstructed: bool,
    ) -> Option<MethodComparison> {
        let (ours, theirs) = (self.method_summary(method)?, self.method_summary(baseline)?);
        let verdict = if is_obstructed {
            WarmingVerdict::NotComparable(IndecisionReason::Obstacle)
        } else {
            compare_spreads(&ours, &theirs, self.step, self.duration)
        };
        let time_in = |run: usize, method| {
            let run = &self.runs[run].measurements;
            let undisturbed = run.iter().filter(|it| it.interference.disturbance().is_none());
            undisturbed.into_iter().find(|it| it.method == method).map(|it| it.summary.time_to_90)
        };
        let orders: Vec<_> = (0..self.runs.len())
            .filter_map(|run| Some(compare_times(time_in(run, method)?, time_in(run, baseline)?)))
            .collect();
        Some(MethodComparison {
            method,
            baseline,
            verdict,
            runs: orders.len(),
            earlier: orders.iter().filter(|order| order.is_lt()).count(),
            later: orders.iter().filter(|order| order.is_gt()).count(),
        })
    }
}

/// Compares the times to 90 % of two methods.
fn compare_spreads(
    ours: &MethodSummary,
    theirs: &MethodSummary,
    step: Duration,
    duration: Duration,
) -> WarmingVerdict {
    let (a, b) = (ours.time_to_90, theirs.time_to_90);
    if a.median.is_none() && b.median.is_none() {
        return WarmingVerdict::NotComparable(IndecisionReason::NeitherReached);
    }
    // A time that was not reached is at least the duration.
    let seconds = |time: Option<Duration>| time.unwrap_or(duration).as_secs_f64();
    let (ours_median, theirs_median) = (seconds(a.median), seconds(b.median));
    let difference = (ours_median - theirs_median).abs();
    let larger = ours_median.max(theirs_median);
    let exceeds = |steps: f64, share: f64| {
        // Times are multiples of the step, so allow for rounding.
        difference > (steps * step.as_secs_f64()).max(share * larger) + 1e-9
    };
    let is_clear = exceeds(2.0, 0.2);
    if is_clear && compare_times(a.max, b.min).is_lt() {
        return WarmingVerdict::Faster;
    }
    if is_clear && compare_times(b.max, a.min).is_lt() {
        return WarmingVerdict::Slower;
    }
    let is_mixed = |it: &MethodSummary| it.reached > 0 && it.reached < it.counted;
    if is_mixed(ours) || is_mixed(theirs) {
        return WarmingVerdict::NotComparable(IndecisionReason::ReachedInSomeRuns);
    }
    if exceeds(1.0, 0.1) {
        return WarmingVerdict::NotComparable(IndecisionReason::Overlap);
    }
    WarmingVerdict::NoDifference
}

impl BenchmarkVerdict {
    /// Returns the verdict on Howdah: compared to autoprewarm if that was measured, otherwise to no
    /// warming. If one of Howdah's comparisons is undecided, so is the whole.
    pub fn overall(&self) -> WarmingVerdict {
        let mut verdicts = self
            .comparisons
            .iter()
            .filter(|comparison| comparison.method == WarmMethod::Howdah)
            .map(|comparison| comparison.verdict);
        let undecided = WarmingVerdict::NotComparable(IndecisionReason::Obstacle);
        let first = verdicts.next().unwrap_or(undecided);
        verdicts
            .find(|verdict| !verdict.is_decided())
            .filter(|_| first.is_decided())
            .unwrap_or(first)
    }
}

impl WarmingVerdict {
    /// Whether the measurements show which method is faster, or that they do not differ.
    pub fn is_decided(self) -> bool {
        !matches!(self, Self::NotComparable(_))
    }

    /// Returns the verdict's name in output and files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Faster => "faster",
            Self::Slower => "slower",
            Self::NoDifference => "no difference",
            Self::NotComparable(_) => "not comparable",
        }
    }
}

impl fmt::Display for IndecisionReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Obstacle => "the measurements are not comparable",
            Self::NeitherReached => {
                "neither reached 90 %, at least in half of the runs: a longer --duration may show more"
            }
            Self::ReachedInSomeRuns => {
                "90 % was reached in some runs and not in others: more --runs or a longer \
                 --duration may show more"
            }
            Self::Overlap => {
                "the times differ too little for their spread: more --runs or a shorter --step may \
                 show more"
            }
        })
    }
}

impl fmt::Display for BenchmarkObstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooFewRuns { runs } => {
                write!(f, "{runs} of at least {MIN_RUNS} runs that a verdict needs: use --runs")
            }
            Self::Disturbed { disturbed, measurements, example } => write!(
                f,
                "{disturbed} of {measurements} measurements were disturbed, such as: {example}; \
                 measure on an idle machine"
            ),
            Self::SteadyRatesDiffer { rates } => write!(
                f,
                "the steady rates of warm servers differ, from {:.0} to {:.0} reads per second: the \
                 host changed its speed meanwhile",
                rates.min, rates.max
            ),
        }
    }
}

#[cfg(test)]
mod tests;
