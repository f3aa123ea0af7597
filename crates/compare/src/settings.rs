//! [`CompareSettings`]: the thresholds that define a change.

use std::{fmt, str::FromStr, time::Duration};

/// The thresholds that define which differences between runs count as a change.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CompareSettings {
    /// Minimum factor of a change, in either direction. Default 1.25.
    ///
    /// Two replays of one capture against one server differ by up to a fifth on shared machines,
    /// because of slow periods that outlast a run and that the statistics of two runs cannot
    /// detect. 1.25 is above such differences, and far enough below 1.5 for the confidence interval
    /// of a query with a few dozen executions.
    pub change_min: ChangeFactor,
    /// Minimum factor of a change when at least four runs are compared, because these show how much
    /// runs differ. Default 1.2.
    pub change_min_between_runs: ChangeFactor,
    /// Minimum change of a typical execution. Default 50 µs.
    ///
    /// Smaller differences may come from the operating system's scheduler on either machine. With a
    /// control run, which measures such noise, a fifth of the floor is used.
    pub floor: Duration,
    /// Minimum change of a typical execution when at least four runs are compared. Default 10 µs:
    /// smaller changes rarely matter to applications.
    pub floor_between_runs: Duration,
    /// Maximum factor of change, in either direction, that the interval of a query may contain for
    /// the verdict "no change" of four or more runs. Default 1.5.
    pub no_change_max: ChangeFactor,
    /// Maximum share of the base's total time that undecided queries may have added for the verdict
    /// on the workload to be "no change". Default 0.1.
    pub undecided_share_max: f64,
    /// Minimum number of successful executions of a query on each side, over all its runs. Default
    /// 15.
    pub executions_min: u64,
    /// Level of the confidence intervals for the change of typical executions. Default 0.95.
    pub confidence: f64,
    /// Maximum expected share of false discoveries among the queries reported as changed. Default
    /// 0.01.
    pub false_discoveries_max: f64,
}

impl CompareSettings {
    /// Returns the settings with `change_min` as the minimum factor for any number of runs; without
    /// a value, returns them unchanged.
    #[must_use]
    pub fn with_change_min(self, change_min: Option<ChangeFactor>) -> Self {
        Self {
            change_min: change_min.unwrap_or(self.change_min),
            change_min_between_runs: change_min.unwrap_or(self.change_min_between_runs),
            ..self
        }
    }
}

impl Default for CompareSettings {
    fn default() -> Self {
        Self {
            change_min: ChangeFactor::DEFAULT,
            change_min_between_runs: ChangeFactor::BETWEEN_RUNS,
            floor: Duration::from_micros(50),
            floor_between_runs: Duration::from_micros(10),
            no_change_max: ChangeFactor::NO_CHANGE,
            undecided_share_max: 0.1,
            executions_min: 15,
            confidence: 0.95,
            false_discoveries_max: 0.01,
        }
    }
}

/// A factor of change above 1, which applies in either direction: `1.25x`.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct ChangeFactor(f64);

impl ChangeFactor {
    /// The default of [`CompareSettings::change_min`]: 1.25.
    pub const DEFAULT: Self = Self(1.25);

    /// The default of [`CompareSettings::change_min_between_runs`]: 1.2.
    pub const BETWEEN_RUNS: Self = Self(1.2);

    /// The default of [`CompareSettings::no_change_max`]: 1.5.
    pub const NO_CHANGE: Self = Self(1.5);

    /// Returns the factor, or `None` unless it is a number above 1.
    pub fn new(factor: f64) -> Option<Self> {
        (factor.is_finite() && factor > 1.0).then_some(Self(factor))
    }

    /// Returns the factor as a number.
    pub fn get(self) -> f64 {
        self.0
    }
}

impl FromStr for ChangeFactor {
    type Err = ParseChangeFactorError;

    /// Parses `1.25x` (also with `X` or `×`), `1.25` or `25%`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = |digits: &str| digits.trim().parse::<f64>().ok();
        let factor = match text.trim().strip_suffix('%') {
            Some(percent) => number(percent).map(|percent| 1.0 + percent / 100.0),
            None => number(text.trim().trim_end_matches(['x', 'X', '×'])),
        };
        factor.and_then(Self::new).ok_or_else(|| ParseChangeFactorError { text: text.to_owned() })
    }
}

impl fmt::Display for ChangeFactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x", self.0)
    }
}

/// The text is not a factor of change.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a factor above 1 such as 1.25x or 25%")]
pub struct ParseChangeFactorError {
    text: String,
}

#[test]
fn factors_are_parsed_in_three_spellings() {
    for text in ["1.25x", "1.25", "25%", " 25 % ", "1.25×"] {
        assert_eq!(text.parse(), Ok(ChangeFactor::DEFAULT), "{text}");
    }
    assert_eq!(ChangeFactor::DEFAULT.to_string().parse(), Ok(ChangeFactor::DEFAULT));
    for text in ["1x", "0.5x", "-3%", "0%", "x", "", "inf", "NaN", "1.5ms"] {
        assert!(text.parse::<ChangeFactor>().is_err(), "{text}");
    }
}
