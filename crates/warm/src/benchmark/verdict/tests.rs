//! Verdicts on recorded series of steps.

use super::*;
use crate::benchmark::{
    BenchmarkRun, HostInfo, Interference, MethodMeasurement, ThroughputStep, ThroughputSummary,
    WarmingCost,
};

const STEP: Duration = Duration::from_millis(500);
const STEPS: usize = 30;
/// Reads in each step of a warm server.
const STEADY: u64 = 1000;

/// A measurement that reaches `steady` reads per step after `warm_at` steps, or never.
fn measurement(method: WarmMethod, warm_at: Option<usize>, steady: u64) -> MethodMeasurement {
    let count = |at: usize| match warm_at {
        Some(warm_at) if at >= warm_at => steady,
        _ => steady / 10,
    };
    let step = |at| ThroughputStep { transactions: count(at), ..ThroughputStep::default() };
    let cost = |warm_at: usize| WarmingCost {
        wall: STEP * warm_at as u32,
        is_done: true,
        server_cpu: None,
        own_cpu: Duration::ZERO,
        read_bytes: None,
        resident_share: None,
        tenth_at: None,
    };
    MethodMeasurement {
        method,
        steps: (0..STEPS).map(step).collect(),
        p99_us: 0,
        max_us: 0,
        warming: warm_at.filter(|_| method != WarmMethod::NoWarming).map(cost),
        interference: Interference::default(),
        steady: None,
        summary: ThroughputSummary::default(),
    }
}

/// Results of one run for each element: the step in which autoprewarm and Howdah are warm.
fn results(warm_at: &[(Option<usize>, Option<usize>)]) -> BenchmarkResults {
    let runs = warm_at.iter().map(|&(autoprewarm, howdah)| BenchmarkRun {
        measurements: vec![
            measurement(WarmMethod::NoWarming, None, STEADY),
            measurement(WarmMethod::Autoprewarm, autoprewarm, STEADY),
            measurement(WarmMethod::Howdah, howdah, STEADY),
        ],
    });
    let mut results = BenchmarkResults {
        server: "17.5".into(),
        host: HostInfo::default(),
        scale: 1,
        step: STEP,
        duration: STEP * STEPS as u32,
        skew: None,
        pages: (1, 8192),
        steady_before: STEADY as f64 / STEP.as_secs_f64(),
        steady_p99_us: 0,
        steady: 0.0,
        runs: runs.collect(),
        notes: Vec::new(),
    };
    results.summarize();
    results
}

fn verdicts(warm_at: &[(Option<usize>, Option<usize>)]) -> (WarmingVerdict, WarmingVerdict) {
    let verdict = results(warm_at).verdict();
    assert_eq!(verdict.obstacles, []);
    (verdict.comparisons[0].verdict, verdict.comparisons[1].verdict)
}

fn runs(warm_at: [(usize, usize); 3]) -> [(Option<usize>, Option<usize>); 3] {
    warm_at.map(|(autoprewarm, howdah)| (Some(autoprewarm), Some(howdah)))
}

#[test]
fn separate_bands_have_a_faster_method() {
    use WarmingVerdict::{Faster, Slower};
    assert_eq!(verdicts(&runs([(9, 4), (8, 3), (10, 5)])), (Faster, Faster));
    assert_eq!(verdicts(&runs([(4, 9), (3, 8), (5, 10)])), (Slower, Faster));
    let results = results(&runs([(4, 9), (3, 8), (5, 10)]));
    let verdict = results.verdict();
    assert_eq!(verdict.overall(), Slower);
    let MethodComparison { runs, earlier, later, .. } = verdict.comparisons[0];
    assert_eq!((runs, earlier, later), (3, 0, 3));
    assert_eq!(verdict.comparisons[2].verdict, Faster, "autoprewarm, compared to no warming");
}

#[test]
fn equal_medians_are_no_difference() {
    let (autoprewarm, none) = verdicts(&runs([(4, 5), (5, 4), (6, 5)]));
    assert_eq!((autoprewarm, none), (WarmingVerdict::NoDifference, WarmingVerdict::Faster));
    // Separate, but by less than a step can show.
    assert_eq!(verdicts(&runs([(4, 5), (4, 5), (4, 5)])).0, WarmingVerdict::NoDifference);
}

#[test]
fn overlapping_bands_with_different_medians_are_undecided() {
    let undecided = WarmingVerdict::NotComparable(IndecisionReason::Overlap);
    assert_eq!(verdicts(&runs([(4, 8), (5, 9), (10, 3)])).0, undecided);
    // The zone between "no difference" and "faster".
    assert_eq!(verdicts(&runs([(6, 4), (6, 4), (6, 4)])).0, undecided);
    assert_eq!(results(&runs([(4, 8), (5, 9), (10, 3)])).verdict().overall(), undecided);
}

#[test]
fn method_that_is_warm_in_some_runs_is_undecided() {
    let mixed = [(Some(4), Some(4)), (Some(4), None), (Some(4), None)];
    let (autoprewarm, _) = verdicts(&mixed);
    assert_eq!(autoprewarm, WarmingVerdict::NotComparable(IndecisionReason::ReachedInSomeRuns));
    let summary = results(&mixed).method_summary(WarmMethod::Howdah).unwrap();
    assert_eq!((summary.reached, summary.counted), (1, 3));
    assert_eq!(summary.time_to_90, RunSpread { min: Some(STEP * 4), median: None, max: None });
    let never = [(Some(4), None); 3];
    let (autoprewarm, none) = verdicts(&never);
    assert_eq!(autoprewarm, WarmingVerdict::Slower);
    assert_eq!(none, WarmingVerdict::NotComparable(IndecisionReason::NeitherReached));
}

#[test]
fn fewer_than_three_runs_have_no_verdict() {
    let verdict = results(&runs([(9, 4), (8, 3), (10, 5)])[..2]).verdict();
    assert_eq!(verdict.obstacles, [BenchmarkObstacle::TooFewRuns { runs: 2 }]);
    let obstacle = WarmingVerdict::NotComparable(IndecisionReason::Obstacle);
    assert!(verdict.comparisons.iter().all(|it| it.verdict == obstacle), "{verdict:?}");
    assert_eq!(verdict.overall(), obstacle);
}

/// Marks measurements, given by run and position, as disturbed.
fn disturb(results: &mut BenchmarkResults, positions: &[(usize, usize)]) {
    for &(run, position) in positions {
        let interference = &mut results.runs[run].measurements[position].interference;
        interference.wait_share_when_warm = Some(0.4);
    }
    results.summarize();
}

#[test]
fn few_disturbed_measurements_are_left_out() {
    let mut results = results(&runs([(9, 4), (8, 3), (10, 20)]));
    disturb(&mut results, &[(2, 2)]);
    let verdict = results.verdict();
    assert_eq!((verdict.overall(), verdict.comparisons[0].runs), (WarmingVerdict::Faster, 2));
    let summary = results.method_summary(WarmMethod::Howdah).unwrap();
    assert_eq!((summary.measured, summary.disturbed, summary.counted), (3, 1, 2));
    assert_eq!(summary.time_to_90.max, Some(STEP * 4));
    assert_eq!(summary.rates[6], RunSpread { min: 2000.0, median: 2000.0, max: 2000.0 });
}

#[test]
fn many_disturbed_measurements_are_not_comparable() {
    let example = Disturbance::ProcessorWait(0.4);
    for positions in [&[(0, 0), (1, 1), (2, 2), (0, 1)][..], &[(0, 1), (1, 1)]] {
        let mut results = results(&runs([(9, 4), (8, 3), (10, 5)]));
        disturb(&mut results, positions);
        let verdict = results.verdict();
        let disturbed = positions.len();
        let expected = BenchmarkObstacle::Disturbed { disturbed, measurements: 9, example };
        assert_eq!(verdict.obstacles, [expected]);
        assert!(!verdict.overall().is_decided());
    }
}

#[test]
fn different_steady_rates_are_not_comparable() {
    let mut results = results(&runs([(9, 4), (8, 3), (10, 5)]));
    results.runs[1].measurements[2] = measurement(WarmMethod::Howdah, Some(3), STEADY / 5);
    results.summarize();
    // Compared to the rate of the others, it never recovers.
    assert_eq!(results.runs[1].measurements[2].summary.time_to_90, None);
    let verdict = results.verdict();
    let rates = RunSpread { min: 400.0, median: 2000.0, max: 2000.0 };
    assert_eq!(verdict.obstacles, [BenchmarkObstacle::SteadyRatesDiffer { rates }]);
    assert!(!verdict.overall().is_decided());
}

#[test]
fn slightly_slower_measurement_is_compared_to_its_own_rate() {
    let mut results = results(&runs([(9, 4), (8, 3), (10, 5)]));
    results.runs[1].measurements[2] = measurement(WarmMethod::Howdah, Some(3), 880);
    results.summarize();
    // 880 is below 90 % of 1000.
    assert_eq!(results.runs[1].measurements[2].summary.time_to_90, Some(STEP * 3));
    assert_eq!(results.verdict().overall(), WarmingVerdict::Faster);
}

#[test]
fn howdah_is_compared_to_no_warming_without_autoprewarm() {
    let mut results = results(&runs([(9, 4), (8, 3), (10, 5)]));
    for run in &mut results.runs {
        run.measurements.remove(1);
    }
    results.summarize();
    let verdict = results.verdict();
    assert_eq!(verdict.comparisons.len(), 1);
    assert_eq!(verdict.comparisons[0].baseline, WarmMethod::NoWarming);
    assert_eq!(verdict.overall(), WarmingVerdict::Faster);
}
