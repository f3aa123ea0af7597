//! Tests the renderings of a small benchmark.

use std::time::Duration;

use howdah_warm::benchmark::{
    BenchmarkResults, BenchmarkRun, ThroughputStep, ThroughputSummary, WarmMethod, WarmingCost,
};

/// Returns results like those of a small benchmark.
pub(super) fn results() -> BenchmarkResults {
    let run = |method, counts: &[u64], warming| {
        let steps: Vec<_> = counts
            .iter()
            .map(|&transactions| ThroughputStep { transactions, p99_us: 1000 - transactions })
            .collect();
        let summary = ThroughputSummary::from_steps(&steps, Duration::from_millis(500), 1800.0);
        BenchmarkRun { method, steps, summary, p99_us: 812, max_us: 20_100, warming }
    };
    let warming = |wall, cpu, share, tenth| WarmingCost {
        wall: Duration::from_millis(wall),
        is_done: true,
        server_cpu: Some(Duration::from_millis(cpu)),
        own_cpu: Duration::from_millis(20),
        read_bytes: Some(312 << 20),
        resident_share: share,
        tenth_at: tenth,
    };
    BenchmarkResults {
        server: "17.5".to_owned(),
        scale: 20,
        step: Duration::from_millis(500),
        duration: Duration::from_secs(4),
        skew: None,
        pages: (38_300, 8192),
        steady: 1800.0,
        steady_p99_us: 95,
        runs: vec![
            run(WarmMethod::NoWarming, &[50, 80, 120, 200, 310, 520, 700, 780], None),
            run(
                WarmMethod::Autoprewarm,
                &[60, 200, 500, 860, 900, 910, 890, 905],
                Some(warming(1520, 610, None, None)),
            ),
            run(
                WarmMethod::Howdah,
                &[420, 850, 905, 900, 890, 910, 900, 904],
                Some(warming(640, 550, Some(0.998), Some(Duration::from_millis(70)))),
            ),
        ],
        notes: vec![
            "before each restart: 31 data files, 312 MiB, were dropped from the system's cache"
                .to_owned(),
        ],
    }
}
