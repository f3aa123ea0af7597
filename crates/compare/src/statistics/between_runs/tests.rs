use super::*;
use crate::statistics::{fdr::benjamini_hochberg, random::SeededRandom};

const LIMITS: ShiftLimits = ShiftLimits { minimum: 0.182, machine: 0.0 };

/// Generates unchanged queries. `effect` and `rest` are the standard deviations of the model.
fn unchanged(
    queries: usize,
    runs: usize,
    (effect, rest): (f64, f64),
    random: &mut SeededRandom,
) -> Vec<QueryRuns> {
    let effects: Vec<f64> = (0..2 * runs).map(|_| effect * random.normal()).collect();
    let mut level =
        |run: usize| Some(RunLevel { level: effects[run] + rest * random.normal(), variance: 0.0 });
    (0..queries)
        .map(|_| QueryRuns {
            base: (0..runs).map(&mut level).collect(),
            run: (runs..2 * runs).map(&mut level).collect(),
        })
        .collect()
}

/// Returns the share of 500 comparisons in which any query counts as changed.
fn false_alarms(queries: usize, runs: usize, spread: (f64, f64)) -> f64 {
    const ROUNDS: u32 = 500;
    let mut random = SeededRandom::new(9);
    let alarms = (0..ROUNDS).filter(|_| {
        let shifts = run_shifts(&unchanged(queries, runs, spread, &mut random));
        let p_values: Vec<f64> =
            shifts.iter().flatten().map(|shift| shift.p_change(LIMITS)).collect();
        benjamini_hochberg(&p_values).iter().any(|q| *q <= 0.01)
    });
    alarms.count() as f64 / f64::from(ROUNDS)
}

#[test]
fn unchanged_queries_are_called_changed_as_rarely_as_the_level_says() {
    for (queries, runs, spread) in [
        (12, 3, (0.0, 0.05)),
        (12, 3, (0.2, 0.05)),
        (40, 3, (0.05, 0.1)),
        (3, 3, (0.1, 0.05)),
        (12, 2, (0.1, 0.05)),
        (12, 6, (0.1, 0.02)),
        (40, 3, (0.1, 0.15)),
    ] {
        let share = false_alarms(queries, runs, spread);
        // The level is 0.01; 500 comparisons may exceed it by chance.
        assert!(share <= 0.02, "{queries} queries, {runs} runs, {spread:?}: {share}");
    }
}

#[test]
fn change_of_one_query_is_found_among_quiet_runs() {
    let mut random = SeededRandom::new(3);
    const ROUNDS: usize = 200;
    let found = (0..ROUNDS).filter(|_| {
        let mut queries = unchanged(10, 3, (0.02, 0.03), &mut random);
        for run in queries[4].run.iter_mut().flatten() {
            run.level += 1.3_f64.ln();
        }
        let shifts = run_shifts(&queries);
        let p_values: Vec<f64> =
            shifts.iter().flatten().map(|shift| shift.p_change(LIMITS)).collect();
        benjamini_hochberg(&p_values)[4] <= 0.01
    });
    let share = found.count() as f64 / ROUNDS as f64;
    assert!(share >= 0.8, "{share}");
}

#[test]
fn shift_smaller_than_that_of_the_machine_is_no_change() {
    let mut random = SeededRandom::new(4);
    let mut queries = unchanged(10, 3, (0.0, 0.02), &mut random);
    for run in queries[4].run.iter_mut().flatten() {
        run.level += 0.3;
    }
    let p = |machine| {
        let shifts = run_shifts(&queries);
        shifts[4].expect("six runs").p_change(ShiftLimits { machine, ..LIMITS })
    };
    assert!(p(0.0) < 0.001, "{}", p(0.0));
    assert_eq!(p(0.4), 1.0);
}

#[test]
fn variance_within_runs_is_a_floor() {
    let level = |level| Some(RunLevel { level, variance: 0.04 });
    let agreeing = QueryRuns {
        base: vec![level(1.0), level(1.001), level(0.999)],
        run: vec![level(1.3), level(1.301), level(1.299)],
    };
    let [Some(shift)] = run_shifts(&[agreeing])[..] else { panic!("one shift") };
    assert!((shift.absolute.estimate - 0.3).abs() < 1e-9);
    let floor = (0.04_f64 * 2.0 / 3.0).sqrt();
    assert!((shift.absolute.standard_error / floor - 1.0).abs() < 1e-9, "{shift:?}");
}

#[test]
fn runs_without_the_query_are_left_out() {
    let level = |level| Some(RunLevel { level, variance: 0.0 });
    let query = |base: Vec<Option<RunLevel>>, run| QueryRuns { base, run };
    let shifts = run_shifts(&[
        query(vec![level(1.0), None, level(1.2)], vec![level(2.0), level(2.2), None]),
        query(vec![level(1.0), None, None], vec![level(2.0), level(2.2), None]),
        query(vec![None, None, None], vec![level(2.0), level(2.2), level(2.1)]),
    ]);
    assert!((shifts[0].expect("four runs").absolute.estimate - 1.0).abs() < 1e-9);
    assert_eq!(shifts[1..], [None, None]);
}

/// Smyth's estimate recovers the parameters of the distribution from which variances are drawn,
/// except that the limits of extreme variances make the others look more alike.
#[test]
fn prior_is_recovered_from_drawn_variances() {
    let mut random = SeededRandom::new(5);
    let mut chi_square = |df: usize| (0..df).map(|_| random.normal().powi(2)).sum::<f64>();
    let variances: Vec<(f64, f64)> = (0..4_000)
        .map(|_| {
            let truth = 0.3 * 8.0 / chi_square(8);
            (truth * chi_square(4) / 4.0, 4.0)
        })
        .collect();
    let prior = Prior::fit(&variances).expect("enough variances");
    assert!((prior.variance / 0.3 - 1.0).abs() < 0.25, "{prior:?}");
    assert!(prior.df >= 8.0, "{prior:?}");
}
