//! Confidence intervals of the ratio of means or percentiles, by resampling blocks of time.

use crate::statistics::{BLOCKS, blocks, random::SeededRandom};

/// Number of resamples per interval: enough to place the ends of a 99 % interval.
const ROUNDS: usize = 400;

/// Returns the interval that contains the share `confidence` of the ratios `metric(run) /
/// metric(base)` when blocks of neighbours in time are drawn with replacement.
///
/// Each side has at least one value, in order of time; `metric` may reorder its argument. An
/// outlier that happened once is in one block, which is absent from a third of the resamples, so it
/// widens the interval instead of moving it. Deterministic for a `seed`.
///
/// Source: Künsch 1989, with blocks that do not overlap (Carlstein 1986).
pub(crate) fn ratio_interval(
    (base, run): (&[f64], &[f64]),
    metric: impl Fn(&mut [f64]) -> f64,
    confidence: f64,
    seed: u64,
) -> (f64, f64) {
    let mut random = SeededRandom::new(seed);
    let mut scratch = Vec::new();
    let mut ratios: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let [run, base] = [run, base].map(|values| {
                resample(values, &mut random, &mut scratch);
                metric(&mut scratch)
            });
            run / base.max(f64::MIN_POSITIVE)
        })
        .collect();
    ratios.sort_by(f64::total_cmp);
    let cut = ((1.0 - confidence) / 2.0 * ROUNDS as f64) as usize;
    (ratios[cut], ratios[ROUNDS - 1 - cut])
}

fn resample(values: &[f64], random: &mut SeededRandom, into: &mut Vec<f64>) {
    into.clear();
    let count = BLOCKS.min(values.len());
    for _ in 0..count {
        let block = random.below(count as u64) as usize;
        into.extend(blocks(values, BLOCKS).nth(block).into_iter().flatten());
    }
}

#[cfg(test)]
fn mean(values: &mut [f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

#[test]
fn one_outlier_is_not_a_change() {
    let mut random = SeededRandom::new(3);
    let base: Vec<f64> = (0..400).map(|_| 10.0 + random.unit()).collect();
    let mut run: Vec<f64> = (0..400).map(|_| 10.0 + random.unit()).collect();
    run[123] = 50_000.0;
    let (low, high) = ratio_interval((&base, &run), mean, 0.99, 1);
    assert!(low < 1.1 && high > 10.0, "{low} {high}");
}

#[test]
fn interval_has_nominal_coverage() {
    let mut random = SeededRandom::new(4);
    const ROUNDS: usize = 150;
    let holds = (0..ROUNDS).filter(|&round| {
        let base: Vec<f64> = (0..200).map(|_| random.normal().exp()).collect();
        let run: Vec<f64> = (0..200).map(|_| 2.0 * random.normal().exp()).collect();
        let (low, high) = ratio_interval((&base, &run), mean, 0.95, round as u64);
        low <= 2.0 && 2.0 <= high
    });
    let share = holds.count() as f64 / ROUNDS as f64;
    assert!((0.87..=1.0).contains(&share), "{share}");
}

#[test]
fn interval_is_deterministic_for_a_seed() {
    let values: Vec<f64> = (1..100).map(f64::from).collect();
    let once = ratio_interval((&values, &values), mean, 0.95, 9);
    assert_eq!(ratio_interval((&values, &values), mean, 0.95, 9), once);
}
