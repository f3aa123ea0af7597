use howdah_dataset::ReplayOutcome;

use super::*;
use crate::{About, ChangeFactor, Part, testing::Maker};

fn verdict(comparison: &Comparison, query: u64) -> Verdict {
    of(comparison, query).verdict
}

fn of(comparison: &Comparison, query: u64) -> &QueryComparison {
    comparison.queries.iter().find(|found| found.fingerprint.0 == query).expect("it was recorded")
}

fn compared(base: &Maker, run: &Maker) -> Comparison {
    compare(&base.samples, &run.samples, None, &Settings::default())
}

#[test]
fn the_planted_change_is_found_and_only_that() {
    let (mut base, mut run) = (Maker::new(1), Maker::new(2));
    for query in 0..20 {
        base.many(query, 300, 1000.0 * (query + 1) as f64, 0.4);
        run.many(query, 300, 1000.0 * (query + 1) as f64 * if query == 3 { 1.5 } else { 1.0 }, 0.4);
    }
    let comparison = compared(&base, &run);
    assert_eq!(comparison.verdict, Overall::Slower);
    assert_eq!(comparison.slower().map(|query| query.fingerprint.0).collect::<Vec<_>>(), [3]);
    assert_eq!(verdict(&comparison, 3), Verdict::Slower(Part::Typical));
    let factor = of(&comparison, 3).change.expect("300 executions").factor;
    assert!(factor.low < 1.5 && 1.5 < factor.high && factor.high - factor.low < 0.4, "{factor:?}");
    let back = compared(&run, &base);
    assert_eq!(verdict(&back, 3), Verdict::Faster(Part::Typical));
    assert_eq!(back.verdict, Overall::Faster);
}

#[test]
fn a_large_change_of_a_rare_query_is_found() {
    let (mut base, mut run) = (Maker::new(1), Maker::new(2));
    for query in 0..30 {
        base.many(query, 16, 200.0, 0.5);
        run.many(query, 16, if query == 7 { 2900.0 } else { 200.0 }, 0.5);
    }
    let comparison = compared(&base, &run);
    assert_eq!(comparison.slower().map(|query| query.fingerprint.0).collect::<Vec<_>>(), [7]);
}

/// What two runs of one setup may differ by: each execution at random, moods that last for dozens
/// of executions, and a machine that is up to a tenth slower as a whole.
fn unchanged(seed: u64, queries: u64, executions: usize) -> Maker {
    let mut maker = Maker::new(seed);
    let pace = 1.0 + 0.1 * maker.random.unit();
    let mut mood = 0.0;
    for execution in 0..executions {
        mood = 0.97 * mood + 0.24 * 0.15 * maker.random.normal();
        for query in 0..queries {
            // Not every query is frequent.
            if execution % (query as usize % 7 + 1) == 0 {
                let median_us = 60.0 * 2.0_f64.powf(query as f64 * 0.5);
                let outlier = if maker.random.below(200) == 0 { 30.0 } else { 1.0 };
                let noise = (0.5 * maker.random.normal() + mood).exp();
                maker.done(query, median_us * pace * noise * outlier);
            }
        }
    }
    maker
}

#[test]
fn identical_setups_are_no_change() {
    const PAIRS: u64 = 100;
    let mut alarms = 0;
    for pair in 0..PAIRS {
        let (base, run) = (unchanged(2 * pair + 1, 20, 400), unchanged(2 * pair + 2, 20, 400));
        let comparison = compared(&base, &run);
        alarms += usize::from(comparison.verdict != Overall::NoChange);
    }
    assert!(alarms <= 1, "{alarms} of {PAIRS} pairs of equal runs were called different");
}

#[test]
fn a_frequent_query_at_one_and_a_half_is_found_in_the_noise() {
    const PAIRS: u64 = 20;
    let mut found = 0;
    for pair in 0..PAIRS {
        let base = unchanged(2 * pair + 1, 10, 400);
        let mut run = unchanged(2 * pair + 2, 10, 400);
        let (mut base, pace) = (base, 1.0 + 0.1 * run.random.unit());
        base.many(77, 400, 1_000.0, 0.5);
        run.many(77, 400, 1_500.0 * pace, 0.5);
        let comparison = compared(&base, &run);
        found += usize::from(comparison.slower().map(|query| query.fingerprint.0).eq([77]));
    }
    assert!(found >= PAIRS as usize - 1, "found in {found} of {PAIRS}");
}

#[test]
fn a_slow_tail_is_found_though_the_median_stands() {
    let (mut base, mut run) = (Maker::new(1), Maker::new(2));
    base.many(1, 1000, 1_000.0, 0.4);
    for round in 0..1000 {
        run.many(1, 1, if round % 20 == 7 { 400_000.0 } else { 1_000.0 }, 0.4);
    }
    let comparison = compared(&base, &run);
    assert_eq!(verdict(&comparison, 1), Verdict::Slower(Part::Tail));
    let mean = of(&comparison, 1).mean_change.expect("it was looked at");
    assert!(mean.low > 5.0 && mean.high > mean.estimate, "{mean:?}");
}

#[test]
fn one_stall_is_no_slow_tail() {
    let (mut base, mut run) = (Maker::new(1), Maker::new(2));
    base.many(1, 1000, 1_000.0, 0.4);
    run.many(1, 500, 1_000.0, 0.4);
    run.many(1, 30, 300_000.0, 0.4);
    run.many(1, 470, 1_000.0, 0.4);
    assert_eq!(verdict(&compared(&base, &run), 1), Verdict::NoChange);
}

#[test]
fn microseconds_are_no_verdict() {
    let (mut base, mut run) = (Maker::new(1), Maker::new(2));
    base.many(1, 500, 40.0, 0.2);
    run.many(1, 500, 70.0, 0.2);
    base.many(2, 500, 1_000.0, 0.2);
    run.many(2, 500, 1_150.0, 0.2);
    let comparison = compared(&base, &run);
    assert_eq!(verdict(&comparison, 1), Verdict::NoChange, "1.75x, but 30 us");
    assert_eq!(verdict(&comparison, 2), Verdict::NoChange, "150 us, but 1.15x");
    let strict = Settings {
        change_min: ChangeFactor::new(1.1).expect("above 1"),
        floor: std::time::Duration::from_micros(10),
        ..Settings::default()
    };
    let comparison = compare(&base.samples, &run.samples, None, &strict);
    assert!(verdict(&comparison, 1).is_slower() && verdict(&comparison, 2).is_slower());
}

#[test]
fn a_control_run_measures_the_noise() {
    let (mut base, mut run, mut control) = (Maker::new(1), Maker::new(2), Maker::new(3));
    for query in 0..10 {
        base.many(query, 200, 1_000.0, 0.3);
        run.many(query, 200, 1_500.0, 0.3);
        control.many(query, 200, if query == 0 { 1_400.0 } else { 1_000.0 }, 0.3);
    }
    base.many(99, 300, 60.0, 0.2);
    run.many(99, 300, 90.0, 0.2);
    control.many(99, 300, 61.0, 0.2);
    let comparison =
        compare(&base.samples, &run.samples, Some(&control.samples), &Settings::default());
    assert_eq!(verdict(&comparison, 0), Verdict::NoChange, "it differs by itself");
    assert!(of(&comparison, 0).noise.is_some_and(|noise| (1.3..1.5).contains(&noise)));
    assert!((1..10).all(|query| verdict(&comparison, query).is_slower()));
    assert!(verdict(&comparison, 99).is_slower(), "below the floor, but the control shows calm");
    assert!(comparison.control.is_some_and(|control| control.noise < 1.1));
}

#[test]
fn presence_and_number_decide_before_statistics() {
    let (mut base, mut run) = (Maker::new(1), Maker::new(2));
    base.many(1, 20, 100.0, 0.1);
    run.many(2, 20, 100.0, 0.1);
    base.many(3, 14, 100.0, 0.1);
    run.many(3, 500, 900.0, 0.1);
    let comparison = compared(&base, &run);
    assert_eq!(verdict(&comparison, 1), Verdict::OnlyInBase);
    assert_eq!(verdict(&comparison, 2), Verdict::OnlyInRun);
    assert_eq!(verdict(&comparison, 3), Verdict::TooFew);
    assert_eq!(comparison.verdict, Overall::TooFew);
    assert_eq!(compared(&Maker::new(1), &Maker::new(2)).verdict, Overall::TooFew);
}

#[test]
fn errors_and_rows_are_held_against_each_other() {
    let (mut base, mut run) = (Maker::new(1), Maker::new(2));
    base.many(1, 20, 100.0, 0.1);
    run.many(1, 18, 100.0, 0.1);
    for code in ["23505", "40001"] {
        base.failed(1, code);
    }
    for code in ["23505", "42P01", "42P01"] {
        run.failed(1, code);
    }
    base.many(2, 20, 100.0, 0.1);
    let outcome = ReplayOutcome { rows: Some(3), ..run.outcome(2, 100.0) };
    (0..20).for_each(|_| run.samples.record(&outcome));
    let comparison = compared(&base, &run);
    let changes: Vec<_> = of(&comparison, 1)
        .errors
        .iter()
        .map(|change| (change.sqlstate.expect("given").to_string(), change.base, change.run))
        .collect();
    assert_eq!(changes, [("40001".to_owned(), 1, 0), ("42P01".to_owned(), 0, 2)]);
    assert!(of(&comparison, 1).errors[1].is_new() && of(&comparison, 1).errors[0].is_gone());
    assert!(!of(&comparison, 1).rows_differ() && of(&comparison, 2).rows_differ());
    assert_eq!((comparison.base.calls, comparison.base.errors), (42, 2));
    assert_eq!(of(&comparison, 1).run.map(|run| (run.calls, run.timed)), Some((21, 18)));
}

#[test]
fn worst_is_what_costs_most_time() {
    let (mut base, mut run) = (Maker::new(1), Maker::new(2));
    base.many(1, 20, 1_000.0, 0.01);
    run.many(1, 20, 10_000.0, 0.01);
    base.many(2, 1_000, 1_000.0, 0.01);
    run.many(2, 1_000, 2_000.0, 0.01);
    base.many(3, 20, 9_000.0, 0.01);
    run.many(3, 20, 1_000.0, 0.01);
    let comparison = compared(&base, &run);
    let order: Vec<u64> = comparison.queries.iter().map(|query| query.fingerprint.0).collect();
    assert_eq!(order, [2, 1, 3]);
    assert_eq!(comparison.verdict, Overall::Mixed);
    let total = |side: Option<Measures>| side.expect("executed").total_us as f64;
    let two = of(&comparison, 2);
    assert!((two.impact_us - (total(two.run) - total(two.base))).abs() < 1.0);
}

#[test]
fn runs_that_hardly_compare_say_so() {
    let mut run = Maker::new(2);
    let mut base = Maker::new(1);
    for query in 0..6 {
        base.many(query, 50, 1_000.0, 0.2);
        run.many(query, 50, 2_000.0, 0.2);
    }
    let about =
        About { capture: "b".into(), rate: "2".into(), name: "run".into(), ..About::default() };
    run.samples = run.samples.with_about(about);
    assert_eq!(
        compared(&base, &run).caveats,
        [
            Caveat::DifferentCaptures,
            Caveat::DifferentRates,
            Caveat::Incomplete { name: "run".into() },
            Caveat::EverythingMoved,
        ]
    );
}

#[test]
fn drift_is_noted_only_where_nearly_all_queries_moved_alike() {
    let settings = Settings::default();
    for (factors, expected) in [
        // Real comparisons of runs of one setup.
        (&[80.0, 1.61, 1.27, 1.01, 0.94][..], false),
        (&[3.48, 0.49, 0.33, 0.54, 0.24], false),
        (&[1.52, 1.45, 1.5, 1.41, 1.6], true),
        (&[0.5, 0.52, 0.49, 0.47, 3.0], true),
        (&[0.5, 0.52, 0.49, 1.0, 3.0], false),
        // Too few queries, and too small a drift.
        (&[2.0, 2.0, 2.0], false),
        (&[1.1, 1.1, 1.1, 1.1, 1.1], false),
    ] {
        let drift = median(factors.iter().copied()).unwrap();
        assert_eq!(moved_together(factors, drift, &settings), expected, "{factors:?}");
    }
}

#[test]
fn queries_with_deduced_types_are_marked() {
    let (mut base, mut run) = (Maker::new(1), Maker::new(2));
    for query in 0..3 {
        base.many(query, 20, 1_000.0, 0.1);
        run.many(query, 20, 1_000.0, 0.1);
    }
    base.samples.mark_deduced_types(Fingerprint(1));
    run.samples.mark_deduced_types(Fingerprint(2));
    let comparison = compared(&base, &run);
    let marked = [0, 1, 2].map(|query| of(&comparison, query).types_deduced);
    assert_eq!(marked, [false, true, true]);
    assert_eq!(comparison.caveats, [Caveat::TypesDeduced { queries: 2 }]);
}

#[test]
fn percentiles_are_nearest_ranks() {
    let mut base = Maker::new(1);
    (1..=100).for_each(|service_us| base.done(1, f64::from(service_us)));
    let comparison = compared(&base, &base);
    let base = of(&comparison, 1).base.expect("executed");
    assert_eq!(
        (base.p50_us, base.p90_us, base.p95_us, base.p99_us, base.max_us),
        (50, 90, 95, 99, 100)
    );
    assert_eq!((base.mean_us, base.total_us), (50.5, 5050));
}

#[test]
fn a_long_run_keeps_its_percentiles_in_bounded_memory() {
    let (mut base, mut run) = (Maker::new(1), Maker::new(2));
    base.many(1, 50_000, 1_000.0, 0.5);
    run.many(1, 50_000, 1_500.0, 0.5);
    let comparison = compared(&base, &run);
    assert!(verdict(&comparison, 1).is_slower());
    let base = of(&comparison, 1).base.expect("executed");
    // Of a log-normal distribution: exp(0.5 z) with z = 0, 1.2816, 2.3263.
    for (got, want) in [(base.p50_us, 1_000.0), (base.p90_us, 1_898.0), (base.p99_us, 3_200.0)] {
        assert!((got as f64 / want - 1.0).abs() < 0.03, "{got} for {want}");
    }
    assert_eq!(base.calls, 50_000);
}
