use proptest::prelude::*;

use super::*;
use crate::statistics::random::SeededRandom;

fn brute_force(base: &[f64], run: &[f64]) -> Vec<f64> {
    let mut all: Vec<f64> =
        base.iter().flat_map(|base| run.iter().map(move |run| run - base)).collect();
    all.sort_by(f64::total_cmp);
    all
}

fn normal(random: &mut SeededRandom, count: usize, mean: f64, deviation: f64) -> Vec<f64> {
    (0..count).map(|_| mean + deviation * random.normal()).collect()
}

/// Generates autocorrelated values: each depends on the previous one.
fn autocorrelated(random: &mut SeededRandom, count: usize, memory: f64) -> Vec<f64> {
    let mut level = random.normal();
    let fresh = (1.0 - memory * memory).sqrt();
    (0..count)
        .map(|_| {
            level = memory * level + fresh * random.normal();
            level
        })
        .collect()
}

#[test]
fn median_of_differences_by_hand() {
    // 4-1, 4-2, 4-3, 6-1, 6-2, 6-3 = 3 2 1 5 4 3, sorted 1 2 3 3 4 5.
    let differences = Differences::new(&[1.0, 2.0, 3.0], &[4.0, 6.0]);
    assert!((differences.median() - 3.0).abs() < 1e-12);
    assert!((differences.smallest(1) - 1.0).abs() < 1e-12);
    assert!((differences.smallest(6) - 5.0).abs() < 1e-12);
}

proptest! {
    #[test]
    fn every_rank_matches_brute_force(
        base in prop::collection::vec(-20..20_i8, 1..30),
        run in prop::collection::vec(-20..20_i8, 1..30),
    ) {
        let base: Vec<f64> = base.into_iter().map(f64::from).collect();
        let run: Vec<f64> = run.into_iter().map(f64::from).collect();
        let differences = Differences::new(&base, &run);
        for (index, expected) in brute_force(&base, &run).into_iter().enumerate() {
            prop_assert!((differences.smallest(index + 1) - expected).abs() < 1e-9);
        }
    }

    #[test]
    fn theta_matches_brute_force(
        base in prop::collection::vec(0..9_u8, 1..30),
        run in prop::collection::vec(0..9_u8, 1..30),
    ) {
        let base: Vec<f64> = base.into_iter().map(f64::from).collect();
        let run: Vec<f64> = run.into_iter().map(f64::from).collect();
        let above = |difference: &f64| {
            if *difference > 0.0 {
                1.0
            } else if *difference == 0.0 {
                0.5
            } else {
                0.0
            }
        };
        let all = brute_force(&base, &run);
        let expected = all.iter().map(above).sum::<f64>() / all.len() as f64;
        let theta = mean(&placements(&run, &Differences::new(&base, &run).base, 0.0));
        prop_assert!((theta - expected).abs() < 1e-9);
    }

    #[test]
    fn constant_shift_is_found_exactly(
        base in prop::collection::vec(0.0..10.0_f64, 15..40), by in -3.0..3.0_f64,
    ) {
        let run: Vec<f64> = base.iter().map(|value| value + by).collect();
        let shift = shift(&base, &run, 0.95, 0.1);
        prop_assert!((shift.estimate - by).abs() < 1e-6);
        prop_assert!(shift.low <= shift.estimate && shift.estimate <= shift.high);
    }
}

/// For independent values without ties, the clustered variance estimates the textbook variance, (n
/// + m + 1) / 12nm.
#[test]
fn variance_matches_mann_whitney_for_independent_values() {
    let mut random = SeededRandom::new(11);
    let mut ratios = 0.0;
    const ROUNDS: usize = 200;
    for _ in 0..ROUNDS {
        let (base, run) = (normal(&mut random, 60, 0.0, 1.0), normal(&mut random, 90, 0.0, 1.0));
        let (error, _) = standard_error(&base, &run, 0.0, &Differences::new(&base, &run));
        ratios += error * error / ((60.0 + 90.0 + 1.0) / (12.0 * 60.0 * 90.0));
    }
    let ratio = ratios / ROUNDS as f64;
    assert!((0.95..1.4).contains(&ratio), "{ratio}");
}

/// Returns the shares of equal pairs with p < 0.05, and with zero outside the interval: about 5 %
/// each.
fn false_alarms(mut pair: impl FnMut(&mut SeededRandom) -> (Vec<f64>, Vec<f64>)) -> (f64, f64) {
    const ROUNDS: usize = 1000;
    let mut random = SeededRandom::new(5);
    let (mut rejected, mut missed) = (0, 0);
    for _ in 0..ROUNDS {
        let (base, run) = pair(&mut random);
        let shift = shift(&base, &run, 0.95, 0.1);
        rejected += usize::from(shift.p < 0.05);
        missed += usize::from(shift.low > 0.0 || shift.high < 0.0);
    }
    (rejected as f64 / ROUNDS as f64, missed as f64 / ROUNDS as f64)
}

#[test]
fn equal_samples_are_rejected_at_nominal_rate() {
    for (n, m) in [(15, 15), (30, 200), (400, 400)] {
        let (rejected, missed) =
            false_alarms(|random| (normal(random, n, 0.0, 1.0), normal(random, m, 0.0, 1.0)));
        assert!((0.01..0.07).contains(&rejected), "{n} {m}: {rejected}");
        assert!((0.01..0.07).contains(&missed), "{n} {m}: {missed}");
    }
}

#[test]
fn unequal_spread_is_not_a_shift() {
    let (rejected, _) =
        false_alarms(|random| (normal(random, 200, 0.0, 1.0), normal(random, 40, 0.0, 4.0)));
    assert!(rejected < 0.09, "{rejected}");
}

/// With correlation over about ten executions, the textbook variance would reject most equal pairs.
#[test]
fn autocorrelation_is_not_a_shift() {
    let (rejected, missed) =
        false_alarms(|random| (autocorrelated(random, 600, 0.9), autocorrelated(random, 600, 0.9)));
    assert!(rejected < 0.12, "{rejected}");
    assert!(missed < 0.12, "{missed}");
}

#[test]
fn tied_values_are_not_a_shift() {
    let shift = shift(&[3.0; 40], &[3.0; 40], 0.95, 0.1);
    assert_eq!((shift.estimate, shift.low, shift.high), (0.0, 0.0, 0.0));
    assert_eq!(shift.p, 1.0);
}

#[test]
fn shift_must_exceed_margin() {
    let mut random = SeededRandom::new(8);
    let base = normal(&mut random, 400, 0.0, 1.0);
    let run = normal(&mut random, 400, 0.5, 1.0);
    let with_margin = |margin| shift(&base, &run, 0.95, margin).p_beyond_margin;
    let plain = shift(&base, &run, 0.95, 0.0);
    assert_eq!(plain.p, plain.p_beyond_margin);
    assert!(with_margin(0.2) > plain.p && with_margin(0.2) < 0.01);
    assert!(with_margin(0.45) > 0.05);
    assert_eq!(with_margin(2.0), 1.0);
}

#[test]
fn disjoint_samples_are_significant() {
    let base: Vec<f64> = (0..15).map(f64::from).collect();
    let run: Vec<f64> = (100..115).map(f64::from).collect();
    let shift = shift(&base, &run, 0.95, 0.1);
    assert!((shift.estimate - 100.0).abs() < 1e-9);
    assert!(shift.p < 1e-3 && shift.low > 90.0 && shift.high < 110.0, "{shift:?}");
}
