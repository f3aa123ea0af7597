//! Tests the renderings of a small benchmark.

use std::time::Duration;

use howdah_warm::benchmark::{
    BenchmarkResults, BenchmarkRun, HostInfo, Interference, MethodMeasurement, StepConditions,
    ThroughputStep, ThroughputSummary, WarmMethod, WarmingCost,
};

/// Reads in each step, of a server that is not warmed, by autoprewarm, and by Howdah.
const COUNTS: [[u64; 16]; 3] = [
    [48, 80, 120, 160, 200, 250, 310, 370, 440, 520, 580, 630, 670, 700, 740, 780],
    [60, 110, 200, 330, 500, 860, 890, 900, 905, 890, 905, 900, 910, 895, 900, 905],
    [420, 850, 900, 890, 905, 900, 910, 890, 900, 905, 890, 910, 895, 900, 904, 905],
];

fn measurement(method: WarmMethod, run: u64) -> MethodMeasurement {
    let steps = COUNTS[method as usize].iter().map(|count| {
        let transactions = count * (100 + run) / 100;
        let conditions = StepConditions {
            client_wait: Some(Duration::from_millis(10)),
            backend_faults: Some(250),
            ..StepConditions::default()
        };
        ThroughputStep { transactions, p99_us: 1000 - transactions, conditions }
    });
    let warming = |wall, cpu, share, tenth| WarmingCost {
        wall: Duration::from_millis(wall + 40 * run),
        is_done: true,
        server_cpu: Some(Duration::from_millis(cpu + 30 * run)),
        own_cpu: Duration::from_millis(20),
        read_bytes: Some(312 << 20),
        resident_share: share,
        tenth_at: tenth,
    };
    MethodMeasurement {
        method,
        steps: steps.collect(),
        p99_us: 812 + run,
        max_us: 20_100,
        warming: match method {
            WarmMethod::NoWarming => None,
            WarmMethod::Autoprewarm => Some(warming(2520, 610, None, None)),
            WarmMethod::Howdah => {
                Some(warming(640, 550, Some(0.998), Some(Duration::from_millis(70))))
            }
        },
        interference: Interference {
            wait_share: Some(0.02),
            wait_share_when_warm: Some(0.02),
            others_share: Some(0.01 * run as f64),
            steal_share: Some(0.0),
            load_before: Some(0.5),
        },
        steady: None,
        summary: ThroughputSummary::default(),
    }
}

/// Returns results like those of a small benchmark in which Howdah is faster.
pub(super) fn results() -> BenchmarkResults {
    let run = |number: usize| {
        let mut methods = WarmMethod::ALL;
        methods.rotate_left(number);
        let measurements = methods.map(|method| measurement(method, number as u64));
        BenchmarkRun { measurements: measurements.into() }
    };
    let mut results = BenchmarkResults {
        server: "17.5".to_owned(),
        host: HostInfo { processors: Some(2), memory_bytes: Some(8 << 30) },
        scale: 20,
        step: Duration::from_millis(500),
        duration: Duration::from_secs(8),
        skew: None,
        pages: (38_300, 8192),
        steady_before: 1800.0,
        steady_p99_us: 95,
        steady: 0.0,
        runs: (0..3).map(run).collect(),
        notes: vec![
            "before each restart: 31 data files, 312 MiB, were dropped from the system's cache"
                .to_owned(),
        ],
    };
    results.summarize();
    results
}

/// Returns results in which two of three runs of Howdah and one of autoprewarm were disturbed.
pub(super) fn disturbed_results() -> BenchmarkResults {
    let mut results = results();
    let disturbed =
        [(0, WarmMethod::Howdah), (1, WarmMethod::Howdah), (1, WarmMethod::Autoprewarm)];
    for (run, method) in disturbed {
        for measurement in &mut results.runs[run].measurements {
            if measurement.method == method {
                measurement.interference.wait_share_when_warm = Some(0.37);
            }
        }
    }
    results.summarize();
    results
}
