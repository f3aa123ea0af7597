//! The timer statistics of etsy's server, with the same order of operations so that results are
//! bit-identical.
//!
//! Let `v` be the `n` samples in ascending order. Sums are prefix sums over `v`, so they round as
//! in etsy's server. For each percentile `p`, if `n > 1`: `k = round(|p| / 100 * n)` in exactly
//! this order of operations, halves rounded up; the percentile is skipped if `k` is 0. For `p > 0`
//! the `k` smallest samples count and `upper_p` is their maximum; for `p < 0` the `k` largest count
//! and `lower_p` is their minimum.
//!
//! Unlike in etsy's server, a negative percentile that covers all samples yields their sums, not
//! `NaN`.

use std::sync::Arc;

use super::TimerSummary;
use crate::{
    aggregate::{Sketched, WeightTotals},
    grammar::TimingUnit,
    js::JsNumber,
    settings::{Aggregation, Bin, HistogramRule},
};

/// The settings for timers, with the resulting field names.
#[derive(Clone, Debug)]
pub(super) struct TimerRules {
    percentiles: Vec<Percentile>,
    histogram: Vec<HistogramRule>,
    /// Fields without a percentile, and whether each is enabled.
    plain: [(Arc<str>, bool); 9],
    histogram_enabled: bool,
    /// Whether to calculate fields and quantiles.
    fields: bool,
}

#[derive(Clone, Debug)]
struct Percentile {
    percent: f64,
    /// The names of its fields, such as `count_90`, `mean_90`, `upper_90`, `sum_90` and
    /// `sum_squares_90`, and whether each is enabled.
    names: [(Arc<str>, bool); 5],
}

/// The `fields` and the `summary` of a [`super::TimerMetric`].
pub(super) type TimerStatistics = (Box<[(Arc<str>, f64)]>, Option<TimerSummary>);

const PLAIN_FIELDS: [&str; 9] =
    ["std", "upper", "lower", "count", "count_ps", "sum", "sum_squares", "mean", "median"];

impl TimerRules {
    pub(super) fn new(settings: &Aggregation, fields: bool) -> Self {
        let is_enabled = |name: &str| {
            let general = match name.rsplit_once('_') {
                // /_(top)?\d+$/ matches only the digits after the last underscore, so
                // `upper_percent` does not enable `upper_99_9`, as in etsy's server.
                Some((front, end)) if is_percent(end) => format!("{front}_percent"),
                _ => name.to_owned(),
            };
            settings.calculated.is_empty() || settings.calculated.contains(&general)
        };
        let named = |name: String| {
            let enabled = is_enabled(&name);
            (Arc::from(name), enabled)
        };
        let percentile = |percent: &f64| {
            let label =
                JsNumber(*percent).to_string().replacen('.', "_", 1).replacen('-', "top", 1);
            let bound = if *percent > 0.0 { "upper" } else { "lower" };
            let names = ["count", "mean", bound, "sum", "sum_squares"];
            Percentile {
                percent: *percent,
                names: names.map(|name| named(format!("{name}_{label}"))),
            }
        };
        Self {
            percentiles: settings.percentiles.iter().map(percentile).collect(),
            histogram: settings.histogram.clone(),
            plain: PLAIN_FIELDS.map(|name| named(name.to_owned())),
            histogram_enabled: is_enabled("histogram"),
            fields,
        }
    }

    /// Sorts exact samples and calculates their statistics. `seconds` is the length of the
    /// interval.
    pub(super) fn exact(
        &self,
        key: &str,
        samples: &mut [f64],
        weights: WeightTotals,
        seconds: f64,
        scratch: &mut PrefixSums,
    ) -> TimerStatistics {
        if samples.is_empty() {
            return self.idle(weights.count, seconds);
        }
        samples.sort_unstable_by(f64::total_cmp);
        scratch.fill(samples);
        let mean = scratch.sums[samples.len() - 1] / samples.len() as f64;
        let squares: f64 = samples.iter().fold(0.0, |sum, v| sum + (v - mean) * (v - mean));
        let exact = ExactSamples { samples, prefix: scratch };
        self.calculate(key, &exact, weights, seconds, (squares / samples.len() as f64).sqrt())
    }

    /// Calculates the statistics of sketched samples.
    pub(super) fn sketched(
        &self,
        key: &str,
        samples: &Sketched,
        unit: TimingUnit,
        weights: WeightTotals,
        seconds: f64,
    ) -> TimerStatistics {
        if samples.samples == 0 {
            return self.idle(weights.count, seconds);
        }
        let n = samples.samples as f64;
        let mean = samples.sum / n;
        let variance = (samples.sum_squares / n - mean * mean).max(0.0);
        self.calculate(key, &SketchedSamples { samples, unit }, weights, seconds, variance.sqrt())
    }

    fn idle(&self, count: f64, seconds: f64) -> TimerStatistics {
        if !self.fields {
            return TimerStatistics::default();
        }
        let fields = [(3, count), (4, count / seconds)];
        let enabled = fields.into_iter().filter(|(at, _)| self.plain[*at].1);
        (enabled.map(|(at, value)| (self.plain[at].0.clone(), value)).collect(), None)
    }

    fn calculate(
        &self,
        key: &str,
        samples: &impl OrderedSamples,
        weights: WeightTotals,
        seconds: f64,
        std: f64,
    ) -> TimerStatistics {
        let (n, count) = (samples.len(), weights.count);
        let percentiles = if self.fields { &self.percentiles[..] } else { &[] };
        let mut fields = Vec::new();
        if self.fields {
            fields.reserve(5 * self.percentiles.len() + PLAIN_FIELDS.len());
        }
        let mut quantiles = Vec::new();
        for percentile in percentiles {
            let Some(values) = at_percentile(samples, percentile.percent) else { continue };
            if percentile.percent > 0.0 {
                quantiles.push((percentile.percent, values[2]));
            }
            let named = percentile.names.iter().zip(values).filter(|((_, enabled), _)| *enabled);
            fields.extend(named.map(|((name, _), value)| (name.clone(), value)));
        }
        let (sum, sum_squares) = samples.up_to(n);
        let middle = n / 2;
        let median = match n % 2 {
            1 => samples.at(middle),
            _ => f64::midpoint(samples.at(middle - 1), samples.at(middle)),
        };
        let summary = TimerSummary {
            samples: n as u64,
            count,
            lower: samples.at(0),
            upper: samples.at(n - 1),
            sum,
            weighted_sum: sum + weights.excess,
            sum_squares,
            mean: sum / n as f64,
            median,
            std,
            quantiles,
        };
        if !self.fields {
            return (Box::default(), Some(summary));
        }
        let values = [
            std,
            summary.upper,
            summary.lower,
            count,
            count / seconds,
            sum,
            sum_squares,
            summary.mean,
            median,
        ];
        let named = self.plain.iter().zip(values).filter(|((_, enabled), _)| *enabled);
        fields.extend(named.map(|((name, _), value)| (name.clone(), value)));
        if self.histogram_enabled {
            self.bins(key, samples, &mut fields);
        }
        (fields.into(), Some(summary))
    }

    /// Adds counts per bin, by the first rule whose text is part of the key.
    fn bins(&self, key: &str, samples: &impl OrderedSamples, fields: &mut Vec<(Arc<str>, f64)>) {
        let rule = self.histogram.iter().find(|rule| key.contains(&rule.metric));
        let mut before = 0;
        for bin in rule.map(|rule| &rule.bins[..]).unwrap_or_default() {
            let (label, below) = match bin {
                Bin::Below(bound) => {
                    let label = JsNumber(*bound).to_string().replacen('.', "_", 1);
                    (label, samples.count_below(*bound).max(before))
                }
                Bin::Infinite => ("inf".to_owned(), samples.len()),
            };
            fields.push((format!("histogram.bin_{label}").into(), (below - before) as f64));
            before = below;
        }
    }
}

fn is_percent(text: &str) -> bool {
    let digits = text.strip_prefix("top").unwrap_or(text);
    !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
}

/// Returns the number, mean, boundary, sum and sum of squares of the samples within a percentile;
/// `None` if there are too few samples.
fn at_percentile(samples: &impl OrderedSamples, percent: f64) -> Option<[f64; 5]> {
    let n = samples.len();
    if n == 1 {
        let only = samples.at(0);
        return Some([1.0, only, only, only, only * only]);
    }
    let within = (percent.abs() / 100.0 * n as f64 + 0.5).floor();
    if within < 1.0 {
        return None;
    }
    let k = (within as usize).min(n);
    let (all, below) = (samples.up_to(n), samples.up_to(n - k));
    let (boundary, (sum, squares)) = match percent > 0.0 {
        true => (samples.at(k - 1), samples.up_to(k)),
        false if k == n => (samples.at(0), all),
        false => (samples.at(n - k), (all.0 - below.0, all.1 - below.1)),
    };
    Some([k as f64, sum / k as f64, boundary, sum, squares])
}

/// Samples in ascending order.
trait OrderedSamples {
    /// Returns the number of samples; never 0.
    fn len(&self) -> usize;
    /// Returns the sample at `index`, from 0.
    fn at(&self, index: usize) -> f64;
    /// Returns the sum and the sum of squares of the first `count` samples; (0, 0) for none.
    fn up_to(&self, count: usize) -> (f64, f64);
    /// Returns the number of samples below `bound`.
    fn count_below(&self, bound: f64) -> usize;
}

/// Prefix sums of sorted samples and of their squares. Reused for all timers to avoid allocations.
#[derive(Debug, Default)]
pub(super) struct PrefixSums {
    sums: Vec<f64>,
    squares: Vec<f64>,
}

impl PrefixSums {
    fn fill(&mut self, samples: &[f64]) {
        self.sums.clear();
        self.squares.clear();
        let (mut sum, mut squares) = (None, None);
        for value in samples {
            // The sums do not start from 0, because 0 + -0 would lose the sign, which etsy's sums
            // retain.
            let next = sum.map_or(*value, |sum: f64| value + sum);
            let next_squares = squares.map_or(value * value, |sum: f64| value * value + sum);
            self.sums.push(next);
            self.squares.push(next_squares);
            (sum, squares) = (Some(next), Some(next_squares));
        }
    }
}

struct ExactSamples<'s> {
    samples: &'s [f64],
    prefix: &'s PrefixSums,
}

impl OrderedSamples for ExactSamples<'_> {
    fn len(&self) -> usize {
        self.samples.len()
    }

    fn at(&self, index: usize) -> f64 {
        self.samples[index]
    }

    fn up_to(&self, count: usize) -> (f64, f64) {
        match count.checked_sub(1) {
            Some(last) => (self.prefix.sums[last], self.prefix.squares[last]),
            None => (0.0, 0.0),
        }
    }

    fn count_below(&self, bound: f64) -> usize {
        self.samples.partition_point(|value| *value < bound)
    }
}

/// Samples represented by a sketch, exact sums and the exact range.
struct SketchedSamples<'s> {
    samples: &'s Sketched,
    unit: TimingUnit,
}

impl OrderedSamples for SketchedSamples<'_> {
    fn len(&self) -> usize {
        usize::try_from(self.samples.samples).unwrap_or(usize::MAX)
    }

    fn at(&self, index: usize) -> f64 {
        let (lower, upper) = self.samples.range.unwrap_or_default();
        match index {
            0 => lower,
            _ if index + 1 >= self.len() => upper,
            _ => {
                let share = (index as f64 + 1.0) / self.samples.samples as f64;
                let value = self.samples.sketch.quantile(share).unwrap_or(upper);
                (value * self.unit.per_base()).clamp(lower, upper)
            }
        }
    }

    fn up_to(&self, count: usize) -> (f64, f64) {
        if count >= self.len() {
            return (self.samples.sum, self.samples.sum_squares);
        }
        let (sum, squares) = self.samples.sketch.smallest_sums(count as f64);
        (sum * self.unit.per_base(), squares * (self.unit.per_base() * self.unit.per_base()))
    }

    fn count_below(&self, bound: f64) -> usize {
        self.samples.sketch.count_below(self.unit.to_base(bound)).round() as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(settings: &Aggregation, samples: &[f64], count: f64) -> Vec<(String, f64)> {
        let rules = TimerRules::new(settings, true);
        let mut scratch = PrefixSums::default();
        let weights = WeightTotals { count, excess: 0.0 };
        let (fields, _) = rules.exact("a.key", &mut samples.to_vec(), weights, 10.0, &mut scratch);
        fields.iter().map(|(name, value)| (name.to_string(), *value)).collect()
    }

    fn value(fields: &[(String, f64)], name: &str) -> f64 {
        fields.iter().find(|(known, _)| known == name).map_or(f64::NAN, |(_, value)| *value)
    }

    #[test]
    fn all_percentiles_are_calculated() {
        let settings =
            Aggregation { percentiles: vec![90.0, 99.9, -20.0], ..Aggregation::default() };
        let samples: Vec<f64> = (1..=10).rev().map(f64::from).collect();
        let fields = fields(&settings, &samples, 20.0);
        let names: Vec<&str> = fields.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names[..5], ["count_90", "mean_90", "upper_90", "sum_90", "sum_squares_90"]);
        assert_eq!(value(&fields, "upper_90"), 9.0);
        assert_eq!(value(&fields, "sum_90"), 45.0);
        assert_eq!(value(&fields, "upper_99_9"), 10.0);
        assert_eq!(value(&fields, "lower_top20"), 9.0);
        assert_eq!(value(&fields, "sum_top20"), 19.0);
        assert_eq!(value(&fields, "mean_top20"), 9.5);
        assert_eq!(value(&fields, "count"), 20.0);
        assert_eq!(value(&fields, "count_ps"), 2.0);
        assert_eq!(value(&fields, "median"), 5.5);
        assert_eq!(value(&fields, "std"), 8.25_f64.sqrt());
    }

    #[test]
    fn percentile_rank_rounds_like_etsy() {
        let settings = Aggregation { percentiles: vec![58.0], ..Aggregation::default() };
        let samples: Vec<f64> = (1..=25).map(f64::from).collect();
        assert_eq!(value(&fields(&settings, &samples, 25.0), "count_58"), 14.0);
    }

    #[test]
    fn minus_hundred_percentile_covers_all_samples() {
        let settings = Aggregation { percentiles: vec![-100.0], ..Aggregation::default() };
        let fields = fields(&settings, &[1.0, 2.0], 2.0);
        assert_eq!(value(&fields, "sum_top100"), 3.0);
        assert_eq!(value(&fields, "lower_top100"), 1.0);
    }

    #[test]
    fn single_and_missing_samples_are_handled() {
        let one = fields(&Aggregation::default(), &[7.0], 1.0);
        assert_eq!(value(&one, "count_90"), 1.0);
        assert_eq!(value(&one, "sum_squares_90"), 49.0);
        assert_eq!(value(&one, "median"), 7.0);
        let none = fields(&Aggregation::default(), &[], 0.0);
        assert_eq!(none, [("count".into(), 0.0), ("count_ps".into(), 0.0)]);
    }

    #[test]
    fn few_samples_skip_small_percentiles() {
        let settings = Aggregation { percentiles: vec![10.0], ..Aggregation::default() };
        assert!(value(&fields(&settings, &[1.0, 2.0], 2.0), "count_10").is_nan());
    }

    #[test]
    fn histogram_bins_exclude_upper_bound() {
        let bins = vec![Bin::Below(1.0), Bin::Below(2.5), Bin::Infinite];
        let rule = HistogramRule { metric: "key".to_owned(), bins };
        let settings = Aggregation { histogram: vec![rule.clone()], ..Aggregation::default() };
        let values = fields(&settings, &[0.5, 1.0, 2.5, 9.0], 4.0);
        assert_eq!(value(&values, "histogram.bin_1"), 1.0);
        assert_eq!(value(&values, "histogram.bin_2_5"), 1.0);
        assert_eq!(value(&values, "histogram.bin_inf"), 2.0);
        let none = HistogramRule { metric: "a.".to_owned(), bins: Vec::new() };
        let settings = Aggregation { histogram: vec![none, rule], ..Aggregation::default() };
        assert!(value(&fields(&settings, &[0.5], 1.0), "histogram.bin_1").is_nan());
    }

    #[test]
    fn field_filter_matches_integer_percents_only() {
        let settings = Aggregation {
            percentiles: vec![90.0, 99.9, -10.0],
            calculated: vec!["upper_percent".into(), "lower_percent".into(), "count".into()],
            ..Aggregation::default()
        };
        let samples: Vec<f64> = (1..=10).map(f64::from).collect();
        let fields = fields(&settings, &samples, 10.0);
        let names: Vec<&str> = fields.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["upper_90", "lower_top10", "count"]);
    }

    #[test]
    fn sketch_approximates_exact_statistics() {
        let settings = Aggregation {
            percentiles: vec![50.0, 99.0, -10.0],
            histogram: vec![HistogramRule { metric: String::new(), bins: vec![Bin::Below(500.0)] }],
            ..Aggregation::default()
        };
        let samples: Vec<f64> = (1..=10_000).map(|n| f64::from(n) / 10.0).collect();
        let exact = fields(&settings, &samples, 10_000.0);
        let mut sketched = Sketched::default();
        samples.iter().for_each(|value| sketched.add(*value, TimingUnit::Milliseconds));
        let rules = TimerRules::new(&settings, true);
        let weights = WeightTotals { count: 10_000.0, excess: 0.0 };
        let (approximate, _) =
            rules.sketched("a.key", &sketched, TimingUnit::Milliseconds, weights, 10.0);
        assert_eq!(approximate.len(), exact.len());
        for ((name, value), (_, exact)) in approximate.iter().zip(&exact) {
            assert!((value / exact - 1.0).abs() < 0.02, "{name}: {value}, exactly {exact}");
        }
    }
}
