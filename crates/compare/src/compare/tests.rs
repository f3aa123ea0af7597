use howdah_dataset::ReplayOutcome;

use super::*;
use crate::{
    ChangeFactor, ChangedPart, MachineLoad, RunInfo, statistics::random::SeededRandom,
    testing::RunBuilder,
};

fn verdict(comparison: &Comparison, query: u64) -> QueryVerdict {
    find_query(comparison, query).verdict
}

fn find_query(comparison: &Comparison, query: u64) -> &QueryComparison {
    comparison.queries.iter().find(|found| found.fingerprint.0 == query).expect("it was recorded")
}

fn compare_pair(base: &RunBuilder, run: &RunBuilder) -> Comparison {
    compare(&base.samples, &run.samples, None, &CompareSettings::default())
}

#[test]
fn only_the_injected_change_is_found() {
    let (mut base, mut run) = (RunBuilder::new(1), RunBuilder::new(2));
    for query in 0..20 {
        base.record_many(query, 300, 1000.0 * (query + 1) as f64, 0.4);
        run.record_many(
            query,
            300,
            1000.0 * (query + 1) as f64 * if query == 3 { 1.5 } else { 1.0 },
            0.4,
        );
    }
    let comparison = compare_pair(&base, &run);
    assert_eq!(comparison.verdict, Overall::Slower);
    assert_eq!(comparison.slower().map(|query| query.fingerprint.0).collect::<Vec<_>>(), [3]);
    assert_eq!(verdict(&comparison, 3), QueryVerdict::Slower(ChangedPart::Typical));
    let factor = find_query(&comparison, 3).change.expect("300 executions").factor;
    assert!(factor.low < 1.5 && 1.5 < factor.high && factor.high - factor.low < 0.4, "{factor:?}");
    let back = compare_pair(&run, &base);
    assert_eq!(verdict(&back, 3), QueryVerdict::Faster(ChangedPart::Typical));
    assert_eq!(back.verdict, Overall::Faster);
}

#[test]
fn large_change_of_rare_query_is_found() {
    let (mut base, mut run) = (RunBuilder::new(1), RunBuilder::new(2));
    for query in 0..30 {
        base.record_many(query, 16, 200.0, 0.5);
        run.record_many(query, 16, if query == 7 { 2900.0 } else { 200.0 }, 0.5);
    }
    let comparison = compare_pair(&base, &run);
    assert_eq!(comparison.slower().map(|query| query.fingerprint.0).collect::<Vec<_>>(), [7]);
}

/// Generates a run without changes: random differences per execution, slow periods that last for
/// dozens of executions, and a machine that is up to a tenth slower overall.
fn unchanged(seed: u64, queries: u64, executions: usize) -> RunBuilder {
    let mut maker = RunBuilder::new(seed);
    let pace = 1.0 + 0.1 * maker.random.unit();
    let mut slowdown = 0.0;
    for execution in 0..executions {
        slowdown = 0.97 * slowdown + 0.24 * 0.15 * maker.random.normal();
        for query in 0..queries {
            // Not every query is frequent.
            if execution % (query as usize % 7 + 1) == 0 {
                let median_us = 60.0 * 2.0_f64.powf(query as f64 * 0.5);
                let outlier = if maker.random.below(200) == 0 { 30.0 } else { 1.0 };
                let noise = (0.5 * maker.random.normal() + slowdown).exp();
                maker.record_done(query, median_us * pace * noise * outlier);
            }
        }
    }
    maker
}

#[test]
fn identical_setups_show_no_change() {
    const PAIRS: u64 = 100;
    let mut alarms = 0;
    for pair in 0..PAIRS {
        let (base, run) = (unchanged(2 * pair + 1, 20, 400), unchanged(2 * pair + 2, 20, 400));
        let comparison = compare_pair(&base, &run);
        alarms += usize::from(comparison.verdict != Overall::NoChange);
    }
    assert!(alarms <= 1, "{alarms} of {PAIRS} pairs of equal runs were called different");
}

#[test]
fn factor_of_one_and_a_half_is_found_in_noise() {
    const PAIRS: u64 = 20;
    let mut found = 0;
    for pair in 0..PAIRS {
        let base = unchanged(2 * pair + 1, 10, 400);
        let mut run = unchanged(2 * pair + 2, 10, 400);
        let (mut base, pace) = (base, 1.0 + 0.1 * run.random.unit());
        base.record_many(77, 400, 1_000.0, 0.5);
        run.record_many(77, 400, 1_500.0 * pace, 0.5);
        let comparison = compare_pair(&base, &run);
        found += usize::from(comparison.slower().map(|query| query.fingerprint.0).eq([77]));
    }
    assert!(found >= PAIRS as usize - 1, "found in {found} of {PAIRS}");
}

#[test]
fn slow_tail_is_found_with_unchanged_median() {
    let (mut base, mut run) = (RunBuilder::new(1), RunBuilder::new(2));
    base.record_many(1, 1000, 1_000.0, 0.4);
    for round in 0..1000 {
        run.record_many(1, 1, if round % 20 == 7 { 400_000.0 } else { 1_000.0 }, 0.4);
    }
    let comparison = compare_pair(&base, &run);
    assert_eq!(verdict(&comparison, 1), QueryVerdict::Slower(ChangedPart::Tail));
    let mean = find_query(&comparison, 1).mean_change.expect("it was computed");
    assert!(mean.low > 5.0 && mean.high > mean.estimate, "{mean:?}");
}

#[test]
fn single_stall_is_not_a_slow_tail() {
    let (mut base, mut run) = (RunBuilder::new(1), RunBuilder::new(2));
    base.record_many(1, 1000, 1_000.0, 0.4);
    run.record_many(1, 500, 1_000.0, 0.4);
    run.record_many(1, 30, 300_000.0, 0.4);
    run.record_many(1, 470, 1_000.0, 0.4);
    assert_eq!(verdict(&compare_pair(&base, &run), 1), QueryVerdict::NoChange);
}

#[test]
fn small_absolute_or_relative_changes_are_ignored() {
    let (mut base, mut run) = (RunBuilder::new(1), RunBuilder::new(2));
    base.record_many(1, 500, 40.0, 0.2);
    run.record_many(1, 500, 70.0, 0.2);
    base.record_many(2, 500, 1_000.0, 0.2);
    run.record_many(2, 500, 1_150.0, 0.2);
    let comparison = compare_pair(&base, &run);
    assert_eq!(verdict(&comparison, 1), QueryVerdict::NoChange, "1.75x, but 30 us");
    assert_eq!(verdict(&comparison, 2), QueryVerdict::NoChange, "150 us, but 1.15x");
    let strict = CompareSettings {
        change_min: ChangeFactor::new(1.1).expect("above 1"),
        floor: std::time::Duration::from_micros(10),
        ..CompareSettings::default()
    };
    let comparison = compare(&base.samples, &run.samples, None, &strict);
    assert!(verdict(&comparison, 1).is_slower() && verdict(&comparison, 2).is_slower());
}

#[test]
fn control_run_measures_noise() {
    let (mut base, mut run, mut control) =
        (RunBuilder::new(1), RunBuilder::new(2), RunBuilder::new(3));
    for query in 0..10 {
        base.record_many(query, 200, 1_000.0, 0.3);
        run.record_many(query, 200, if query < 5 { 1_500.0 } else { 1_000.0 }, 0.3);
        control.record_many(query, 200, if query == 0 { 1_400.0 } else { 1_000.0 }, 0.3);
    }
    base.record_many(99, 300, 60.0, 0.2);
    run.record_many(99, 300, 90.0, 0.2);
    control.record_many(99, 300, 61.0, 0.2);
    let comparison =
        compare(&base.samples, &run.samples, Some(&control.samples), &CompareSettings::default());
    assert_eq!(verdict(&comparison, 0), QueryVerdict::Undecided, "it differs by itself");
    assert!(find_query(&comparison, 0).noise.is_some_and(|noise| (1.3..1.5).contains(&noise)));
    assert!((1..5).all(|query| verdict(&comparison, query).is_slower()));
    assert!(verdict(&comparison, 99).is_slower(), "below the floor, but the control shows calm");
    assert!(comparison.control.is_some_and(|control| control.noise < 1.1));
}

#[test]
fn missing_or_rare_queries_are_classified_first() {
    let (mut base, mut run) = (RunBuilder::new(1), RunBuilder::new(2));
    base.record_many(1, 20, 100.0, 0.1);
    run.record_many(2, 20, 100.0, 0.1);
    base.record_many(3, 14, 100.0, 0.1);
    run.record_many(3, 500, 900.0, 0.1);
    let comparison = compare_pair(&base, &run);
    assert_eq!(verdict(&comparison, 1), QueryVerdict::OnlyInBase);
    assert_eq!(verdict(&comparison, 2), QueryVerdict::OnlyInRun);
    assert_eq!(verdict(&comparison, 3), QueryVerdict::TooFew);
    assert_eq!(comparison.verdict, Overall::TooFew);
    assert_eq!(compare_pair(&RunBuilder::new(1), &RunBuilder::new(2)).verdict, Overall::TooFew);
}

#[test]
fn errors_and_rows_are_compared() {
    let (mut base, mut run) = (RunBuilder::new(1), RunBuilder::new(2));
    base.record_many(1, 20, 100.0, 0.1);
    run.record_many(1, 18, 100.0, 0.1);
    for code in ["23505", "40001"] {
        base.record_failed(1, code);
    }
    for code in ["23505", "42P01", "42P01"] {
        run.record_failed(1, code);
    }
    base.record_many(2, 20, 100.0, 0.1);
    let outcome = ReplayOutcome { rows: Some(3), ..run.outcome(2, 100.0) };
    (0..20).for_each(|_| run.samples.record(&outcome));
    let comparison = compare_pair(&base, &run);
    let changes: Vec<_> = find_query(&comparison, 1)
        .errors
        .iter()
        .map(|change| (change.sqlstate.expect("given").to_string(), change.base, change.run))
        .collect();
    assert_eq!(changes, [("40001".to_owned(), 1, 0), ("42P01".to_owned(), 0, 2)]);
    assert!(
        find_query(&comparison, 1).errors[1].is_new()
            && find_query(&comparison, 1).errors[0].is_gone()
    );
    assert!(!find_query(&comparison, 1).rows_differ() && find_query(&comparison, 2).rows_differ());
    assert_eq!((comparison.base.calls, comparison.base.errors), (42, 2));
    assert_eq!(find_query(&comparison, 1).run.map(|run| (run.calls, run.timed)), Some((21, 18)));
}

#[test]
fn queries_are_sorted_by_total_time_lost() {
    let (mut base, mut run) = (RunBuilder::new(1), RunBuilder::new(2));
    base.record_many(1, 20, 1_000.0, 0.01);
    run.record_many(1, 20, 10_000.0, 0.01);
    base.record_many(2, 1_000, 1_000.0, 0.01);
    run.record_many(2, 1_000, 2_000.0, 0.01);
    base.record_many(3, 20, 9_000.0, 0.01);
    run.record_many(3, 20, 1_000.0, 0.01);
    let comparison = compare_pair(&base, &run);
    let order: Vec<u64> = comparison.queries.iter().map(|query| query.fingerprint.0).collect();
    assert_eq!(order, [2, 1, 3]);
    assert_eq!(comparison.verdict, Overall::Mixed);
    let total = |side: Option<Measures>| side.expect("executed").total_us as f64;
    let two = find_query(&comparison, 2);
    assert!((two.impact_us - (total(two.run) - total(two.base))).abs() < 1.0);
}

#[test]
fn incomparable_runs_have_caveats() {
    let mut run = RunBuilder::new(2);
    let mut base = RunBuilder::new(1);
    for query in 0..6 {
        base.record_many(query, 50, 1_000.0, 0.2);
        run.record_many(query, 50, 2_000.0, 0.2);
    }
    let about =
        RunInfo { capture: "b".into(), rate: "2".into(), name: "run".into(), ..RunInfo::default() };
    run.samples = run.samples.with_info(about);
    assert_eq!(
        compare_pair(&base, &run).caveats,
        [
            Caveat::DifferentCaptures,
            Caveat::DifferentRates,
            Caveat::Incomplete { name: "run".into(), missing_workers: Vec::new() },
            Caveat::RunsVary { queries: 6 },
            Caveat::EverythingMoved,
        ]
    );
}

#[test]
fn drift_needs_nearly_all_queries_to_move() {
    let settings = CompareSettings::default();
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
    let (mut base, mut run) = (RunBuilder::new(1), RunBuilder::new(2));
    for query in 0..3 {
        base.record_many(query, 20, 1_000.0, 0.1);
        run.record_many(query, 20, 1_000.0, 0.1);
    }
    base.samples.mark_deduced_types(Fingerprint(1));
    run.samples.mark_deduced_types(Fingerprint(2));
    let comparison = compare_pair(&base, &run);
    let marked = [0, 1, 2].map(|query| find_query(&comparison, query).types_deduced);
    assert_eq!(marked, [false, true, true]);
    assert_eq!(comparison.caveats, [Caveat::TypesDeduced { queries: 2 }]);
}

#[test]
fn percentiles_are_nearest_ranks() {
    let mut base = RunBuilder::new(1);
    (1..=100).for_each(|service_us| base.record_done(1, f64::from(service_us)));
    let comparison = compare_pair(&base, &base);
    let base = find_query(&comparison, 1).base.expect("executed");
    assert_eq!(
        (base.p50_us, base.p90_us, base.p95_us, base.p99_us, base.max_us),
        (50, 90, 95, 99, 100)
    );
    assert_eq!((base.mean_us, base.total_us), (50.5, 5050));
}

#[test]
fn long_run_keeps_percentiles_in_bounded_memory() {
    let (mut base, mut run) = (RunBuilder::new(1), RunBuilder::new(2));
    base.record_many(1, 50_000, 1_000.0, 0.5);
    run.record_many(1, 50_000, 1_500.0, 0.5);
    let comparison = compare_pair(&base, &run);
    assert!(verdict(&comparison, 1).is_slower());
    let base = find_query(&comparison, 1).base.expect("executed");
    // For a log-normal distribution: exp(0.5 z) with z = 0, 1.2816, 2.3263.
    for (got, want) in [(base.p50_us, 1_000.0), (base.p90_us, 1_898.0), (base.p99_us, 3_200.0)] {
        assert!((got as f64 / want - 1.0).abs() < 0.03, "{got} for {want}");
    }
    assert_eq!(base.calls, 50_000);
}

/// Generates several runs of one setup. Each has slow periods, and the runs differ overall by a
/// log-normal factor with this spread.
fn setup(seed: u64, count: u64, spread: f64, factor_of: impl Fn(u64) -> f64) -> Vec<Samples> {
    let one = |run: u64| {
        let mut builder = RunBuilder::new(1_000 * seed + run);
        let pace = (spread * builder.random.normal()).exp();
        let mut slowdown = 0.0;
        for _ in 0..120 {
            slowdown = 0.97 * slowdown + 0.01 * builder.random.normal();
            for query in 0..12 {
                let typical_us = 200.0 * (query + 1) as f64 * factor_of(query) * pace;
                let noise = (0.25 * builder.random.normal() + slowdown).exp();
                builder.record_done(query, typical_us * noise);
            }
        }
        let calibration_us = Some(1_000.0 * pace);
        builder.samples.with_machine(MachineLoad { calibration_us, ..MachineLoad::default() })
    };
    (0..count).map(one).collect()
}

fn compare_setups(base: &[Samples], run: &[Samples]) -> Comparison {
    compare_runs(base, run, &CompareSettings::default())
}

#[test]
fn unchanged_setup_is_never_called_changed_however_much_its_runs_differ() {
    let mut verdicts = BTreeMap::new();
    for seed in 0..60 {
        for spread in [0.01, 0.1, 0.4] {
            let (base, run) =
                (setup(2 * seed, 3, spread, |_| 1.0), setup(2 * seed + 1, 3, spread, |_| 1.0));
            let verdict = compare_setups(&base, &run).verdict;
            *verdicts.entry(((spread * 100.0) as u64, verdict.as_str())).or_insert(0) += 1;
        }
    }
    let count = |key| verdicts.get(&key).copied().unwrap_or(0);
    let decided = |spread| count((spread, "no change")) + count((spread, "not comparable"));
    assert_eq!((decided(1), decided(10), decided(40)), (60, 60, 60), "{verdicts:?}");
    assert!(count((1, "no change")) >= 58, "{verdicts:?}");
}

#[test]
fn one_changed_query_is_found_in_several_quiet_runs() {
    const ROUNDS: u64 = 40;
    let slower = |query| if query == 7 { 1.3 } else { 1.0 };
    let found = (0..ROUNDS).filter(|seed| {
        let base = setup(2 * seed, 3, 0.01, |_| 1.0);
        let comparison = compare_setups(&base, &setup(2 * seed + 1, 3, 0.01, slower));
        let names: Vec<u64> = comparison.slower().map(|query| query.fingerprint.0).collect();
        names == [7] && comparison.verdict == Overall::Slower
    });
    assert!(found.count() as u64 >= ROUNDS * 8 / 10);
}

/// Adds a query whose executions all begin in the same 5 ms of a run, `typical_us` long.
fn with_burst(mut run: Samples, query: u64, typical_us: f64) -> Samples {
    let mut builder = RunBuilder::new(query);
    for execution in 0..100 {
        let service_us = typical_us * (0.1 * builder.random.normal()).exp();
        let sent_us = Some(execution * 50);
        run.record(&ReplayOutcome { sent_us, ..builder.outcome(query, service_us) });
    }
    run
}

#[test]
fn burst_of_executions_says_little_about_the_next_run() {
    // Medians of one such burst in 24 runs on an unchanged server, in microseconds.
    const TYPICAL_US: [f64; 24] = [
        64.0, 27.0, 85.0, 28.0, 15.0, 17.0, 71.0, 71.0, 27.0, 62.0, 25.0, 29.0, 16.0, 17.0, 58.0,
        68.0, 16.0, 105.0, 14.0, 15.0, 28.0, 16.0, 14.0, 16.0,
    ];
    const BURST: u64 = 99;
    let runs: Vec<Samples> = setup(1, 24, 0.01, |_| 1.0)
        .into_iter()
        .zip(TYPICAL_US)
        .map(|(run, typical_us)| with_burst(run, BURST, typical_us))
        .collect();
    let mut random = SeededRandom::new(1);
    for _ in 0..100 {
        let mut chosen = runs.clone();
        random.truncate_to_sample(&mut chosen, 6);
        let comparison = compare_setups(&chosen[..3], &chosen[3..]);
        let verdict = verdict(&comparison, BURST);
        assert!(!verdict.is_slower() && !verdict.is_faster(), "{verdict:?}");
    }
    let side = |seed, typical_us: f64| -> Vec<Samples> {
        let runs = setup(seed, 3, 0.01, |_| 1.0).into_iter();
        runs.map(|run| with_burst(run, BURST, typical_us)).collect()
    };
    let comparison = compare_setups(&side(1, 30.0), &side(2, 3_000.0));
    assert!(verdict(&comparison, BURST).is_slower());
}

#[test]
fn large_change_on_a_busy_machine_is_found_and_never_called_no_change() {
    for seed in 0..20 {
        let slower = |query| if query == 7 { 8.0 } else { 1.0 };
        let base = setup(2 * seed, 3, 0.15, |_| 1.0);
        let comparison = compare_setups(&base, &setup(2 * seed + 1, 3, 0.15, slower));
        let verdict = verdict(&comparison, 7);
        assert_ne!(verdict, QueryVerdict::NoChange, "{seed}");
        assert_ne!(comparison.verdict, Overall::NoChange, "{seed}");
        assert!(!verdict.is_faster(), "{seed}");
    }
}

#[test]
fn slower_machine_is_named_and_explains_what_all_queries_share() {
    let base = setup(1, 3, 0.01, |_| 1.0);
    let busy = setup(2, 3, 0.01, |_| 1.6);
    let busier = |runs: Vec<Samples>, factor: f64| -> Vec<Samples> {
        let load = MachineLoad { calibration_us: Some(1_000.0 * factor), ..MachineLoad::default() };
        runs.into_iter().map(|run| run.with_machine(load)).collect()
    };
    let explained = compare_setups(&busier(base.clone(), 1.0), &busier(busy.clone(), 1.5));
    assert_eq!(explained.verdict, Overall::NotComparable);
    assert!(explained.caveats.contains(&Caveat::MachineChanged), "{:?}", explained.caveats);
    let unexplained = compare_setups(&busier(base, 1.0), &busier(busy, 1.0));
    assert_eq!(unexplained.verdict, Overall::Slower);
    assert_eq!(unexplained.slower().count(), 12);
    assert!(!unexplained.caveats.contains(&Caveat::MachineChanged));
}

#[test]
fn sides_are_the_sums_of_their_runs() {
    let base = setup(1, 3, 0.01, |_| 1.0);
    let run = setup(2, 2, 0.01, |_| 1.0);
    let comparison = compare_setups(&base, &run);
    assert_eq!((comparison.base_runs.len(), comparison.run_runs.len()), (3, 2));
    let calls: u64 = comparison.base_runs.iter().map(|side| side.calls).sum();
    assert_eq!((comparison.base.calls, calls), (3 * 120 * 12, 3 * 120 * 12));
    let query = find_query(&comparison, 3);
    assert_eq!(query.base.expect("executed").timed, 360);
    let each: Vec<u64> = query.run_runs.iter().flatten().map(|side| side.timed).collect();
    assert_eq!(each, [120, 120]);
    assert!(query.detectable.expect("several runs") >= 1.2 - 1e-9);
}

#[test]
fn two_runs_in_which_everything_moved_are_not_comparable() {
    let (mut base, mut run) = (RunBuilder::new(1), RunBuilder::new(2));
    for query in 0..8 {
        base.record_many(query, 300, 1_000.0, 0.3);
        run.record_many(query, 300, 1_600.0, 0.3);
    }
    let comparison = compare_pair(&base, &run);
    assert_eq!(comparison.verdict, Overall::NotComparable);
    assert!(comparison.caveats.contains(&Caveat::EverythingMoved));
}
