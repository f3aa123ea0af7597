//! Etsy's statistics of a timer, operation for operation, so that the last bit agrees.
//!
//! `v` are the samples in ascending order, `n` of them. Sums are prefix sums over `v`, so their
//! rounding is that of etsy's server. For each percentile `p`, if `n > 1`: `k = round(|p| / 100 * n)`
//! in exactly this order of operations, halves rounded up; none is calculated if `k` is 0. For
//! `p > 0` the `k` smallest samples count and `upper_p` is the largest of them; for `p < 0` the `k`
//! largest count and `lower_p` is the smallest of them.
//!
//! Other than there, a negative percentile that takes in all samples gives their sums, not `NaN`.

use std::sync::Arc;

use super::Summary;
use crate::{
    aggregate::Sketched,
    grammar::TimingUnit,
    js::Number,
    settings::{Aggregation, Bin, HistogramRule},
};

/// What the settings say about timers, with the names it gives.
#[derive(Clone, Debug)]
pub(super) struct Rules {
    percentiles: Vec<Percentile>,
    histogram: Vec<HistogramRule>,
    /// Names of the fields that need no percentile, with whether they are wanted.
    plain: [(Arc<str>, bool); 9],
    histogram_wanted: bool,
}

#[derive(Clone, Debug)]
struct Percentile {
    percent: f64,
    /// `count_90`, `mean_90`, `upper_90`, `sum_90`, `sum_squares_90`, with whether it is wanted.
    names: [(Arc<str>, bool); 5],
}

/// `fields` and `summary` of a [`super::Timer`].
pub(super) type Calculated = (Box<[(Arc<str>, f64)]>, Option<Summary>);

const PLAIN: [&str; 9] =
    ["std", "upper", "lower", "count", "count_ps", "sum", "sum_squares", "mean", "median"];

impl Rules {
    pub(super) fn new(settings: &Aggregation) -> Self {
        let wanted = |name: &str| {
            let general = match name.rsplit_once('_') {
                // /_(top)?\d+$/: the digits behind the last underscore only, so `upper_99_9` cannot
                // be asked for by `upper_percent`; etsy's server has it so.
                Some((front, end)) if is_percent(end) => format!("{front}_percent"),
                _ => name.to_owned(),
            };
            settings.calculated.is_empty() || settings.calculated.contains(&general)
        };
        let named = |name: String| {
            let is_wanted = wanted(&name);
            (Arc::from(name), is_wanted)
        };
        let percentile = |percent: &f64| {
            let label = Number(*percent).to_string().replacen('.', "_", 1).replacen('-', "top", 1);
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
            plain: PLAIN.map(|name| named(name.to_owned())),
            histogram_wanted: wanted("histogram"),
        }
    }

    /// The statistics of samples kept one by one. Sorts them. `count` is their number scaled up by
    /// their rates, `seconds` the configured interval.
    pub(super) fn exact(
        &self,
        key: &str,
        samples: &mut [f64],
        count: f64,
        seconds: f64,
        scratch: &mut PrefixSums,
    ) -> Calculated {
        if samples.is_empty() {
            return self.idle(count, seconds);
        }
        samples.sort_unstable_by(f64::total_cmp);
        scratch.fill(samples);
        let mean = scratch.sums[samples.len() - 1] / samples.len() as f64;
        let squares: f64 = samples.iter().fold(0.0, |sum, v| sum + (v - mean) * (v - mean));
        let exact = Exact { samples, prefix: scratch };
        self.of(key, &exact, count, seconds, (squares / samples.len() as f64).sqrt())
    }

    /// The statistics of samples that a sketch stands for.
    pub(super) fn sketched(
        &self,
        key: &str,
        samples: &Sketched,
        unit: TimingUnit,
        count: f64,
        seconds: f64,
    ) -> Calculated {
        if samples.samples == 0 {
            return self.idle(count, seconds);
        }
        let n = samples.samples as f64;
        let mean = samples.sum / n;
        let variance = (samples.sum_squares / n - mean * mean).max(0.0);
        self.of(key, &Approximate { samples, unit }, count, seconds, variance.sqrt())
    }

    fn idle(&self, count: f64, seconds: f64) -> Calculated {
        let fields = [(3, count), (4, count / seconds)];
        let wanted = fields.into_iter().filter(|(at, _)| self.plain[*at].1);
        (wanted.map(|(at, value)| (self.plain[at].0.clone(), value)).collect(), None)
    }

    fn of(
        &self,
        key: &str,
        samples: &impl Ordered,
        count: f64,
        seconds: f64,
        std: f64,
    ) -> Calculated {
        let n = samples.len();
        let mut fields = Vec::with_capacity(5 * self.percentiles.len() + PLAIN.len());
        let mut quantiles = Vec::new();
        for percentile in &self.percentiles {
            let Some(values) = at_percentile(samples, percentile.percent) else { continue };
            if percentile.percent > 0.0 {
                quantiles.push((percentile.percent, values[2]));
            }
            let named = percentile.names.iter().zip(values).filter(|((_, wanted), _)| *wanted);
            fields.extend(named.map(|((name, _), value)| (name.clone(), value)));
        }
        let (sum, sum_squares) = samples.up_to(n);
        let middle = n / 2;
        let median = match n % 2 {
            1 => samples.at(middle),
            _ => f64::midpoint(samples.at(middle - 1), samples.at(middle)),
        };
        let summary = Summary {
            samples: n as u64,
            count,
            lower: samples.at(0),
            upper: samples.at(n - 1),
            sum,
            sum_squares,
            mean: sum / n as f64,
            median,
            std,
            quantiles,
        };
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
        let named = self.plain.iter().zip(values).filter(|((_, wanted), _)| *wanted);
        fields.extend(named.map(|((name, _), value)| (name.clone(), value)));
        if self.histogram_wanted {
            self.bins(key, samples, &mut fields);
        }
        (fields.into(), Some(summary))
    }

    /// Counts per bin, by the first rule whose text is part of the key.
    fn bins(&self, key: &str, samples: &impl Ordered, fields: &mut Vec<(Arc<str>, f64)>) {
        let rule = self.histogram.iter().find(|rule| key.contains(&rule.metric));
        let mut before = 0;
        for bin in rule.map(|rule| &rule.bins[..]).unwrap_or_default() {
            let (label, below) = match bin {
                Bin::Below(bound) => {
                    let label = Number(*bound).to_string().replacen('.', "_", 1);
                    (label, samples.below(*bound).max(before))
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

/// Number, mean, boundary, sum and sum of squares of the samples within a percentile.
fn at_percentile(samples: &impl Ordered, percent: f64) -> Option<[f64; 5]> {
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
trait Ordered {
    /// How many; never 0.
    fn len(&self) -> usize;
    /// The one at `index`, from 0.
    fn at(&self, index: usize) -> f64;
    /// Sum and sum of squares of the first `count`; (0, 0) for none.
    fn up_to(&self, count: usize) -> (f64, f64);
    /// How many are below `bound`.
    fn below(&self, bound: f64) -> usize;
}

/// Prefix sums of sorted samples and of their squares. Kept between timers for its memory.
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
            // Not begun with 0: 0 + -0 would lose the sign that etsy's sums keep.
            let next = sum.map_or(*value, |sum: f64| value + sum);
            let next_squares = squares.map_or(value * value, |sum: f64| value * value + sum);
            self.sums.push(next);
            self.squares.push(next_squares);
            (sum, squares) = (Some(next), Some(next_squares));
        }
    }
}

struct Exact<'s> {
    samples: &'s [f64],
    prefix: &'s PrefixSums,
}

impl Ordered for Exact<'_> {
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

    fn below(&self, bound: f64) -> usize {
        self.samples.partition_point(|value| *value < bound)
    }
}

/// Samples of which only a sketch, exact sums and the exact range are left.
struct Approximate<'s> {
    samples: &'s Sketched,
    unit: TimingUnit,
}

impl Ordered for Approximate<'_> {
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
        let (sum, squares) = self.samples.sketch.lowest(count as f64);
        (sum * self.unit.per_base(), squares * (self.unit.per_base() * self.unit.per_base()))
    }

    fn below(&self, bound: f64) -> usize {
        self.samples.sketch.below(self.unit.to_base(bound)).round() as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(settings: &Aggregation, samples: &[f64], count: f64) -> Vec<(String, f64)> {
        let rules = Rules::new(settings);
        let mut scratch = PrefixSums::default();
        let (fields, _) = rules.exact("a.key", &mut samples.to_vec(), count, 10.0, &mut scratch);
        fields.iter().map(|(name, value)| (name.to_string(), *value)).collect()
    }

    fn value(fields: &[(String, f64)], name: &str) -> f64 {
        fields.iter().find(|(known, _)| known == name).map_or(f64::NAN, |(_, value)| *value)
    }

    #[test]
    fn a_list_of_percentiles() {
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
    fn fifty_eight_percent_of_twenty_five_is_fourteen() {
        let settings = Aggregation { percentiles: vec![58.0], ..Aggregation::default() };
        let samples: Vec<f64> = (1..=25).map(f64::from).collect();
        assert_eq!(value(&fields(&settings, &samples, 25.0), "count_58"), 14.0);
    }

    #[test]
    fn a_negative_percentile_of_everything_is_everything() {
        let settings = Aggregation { percentiles: vec![-100.0], ..Aggregation::default() };
        let fields = fields(&settings, &[1.0, 2.0], 2.0);
        assert_eq!(value(&fields, "sum_top100"), 3.0);
        assert_eq!(value(&fields, "lower_top100"), 1.0);
    }

    #[test]
    fn one_sample_and_none() {
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
    fn bins_exclude_their_bound() {
        let bins = vec![Bin::Below(1.0), Bin::Below(2.5), Bin::Infinite];
        let rule = HistogramRule { metric: "key".to_owned(), bins };
        let settings = Aggregation { histogram: vec![rule.clone()], ..Aggregation::default() };
        let told = fields(&settings, &[0.5, 1.0, 2.5, 9.0], 4.0);
        assert_eq!(value(&told, "histogram.bin_1"), 1.0);
        assert_eq!(value(&told, "histogram.bin_2_5"), 1.0);
        assert_eq!(value(&told, "histogram.bin_inf"), 2.0);
        let none = HistogramRule { metric: "a.".to_owned(), bins: Vec::new() };
        let settings = Aggregation { histogram: vec![none, rule], ..Aggregation::default() };
        assert!(value(&fields(&settings, &[0.5], 1.0), "histogram.bin_1").is_nan());
    }

    #[test]
    fn the_filter_knows_whole_percents_only() {
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
    fn a_sketch_tells_nearly_the_same() {
        let settings = Aggregation {
            percentiles: vec![50.0, 99.0, -10.0],
            histogram: vec![HistogramRule { metric: String::new(), bins: vec![Bin::Below(500.0)] }],
            ..Aggregation::default()
        };
        let samples: Vec<f64> = (1..=10_000).map(|n| f64::from(n) / 10.0).collect();
        let exact = fields(&settings, &samples, 10_000.0);
        let mut sketched = Sketched::default();
        samples.iter().for_each(|value| sketched.add(*value, TimingUnit::Milliseconds));
        let rules = Rules::new(&settings);
        let (told, _) =
            rules.sketched("a.key", &sketched, TimingUnit::Milliseconds, 10_000.0, 10.0);
        assert_eq!(told.len(), exact.len());
        for ((name, told), (_, exact)) in told.iter().zip(&exact) {
            assert!((told / exact - 1.0).abs() < 0.02, "{name}: {told}, exactly {exact}");
        }
    }
}
