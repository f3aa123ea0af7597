//! The page of a warming benchmark in a headless Chromium.

use std::time::Duration;

use howdah_warm::benchmark::{
    BenchmarkResults, BenchmarkRun, HostInfo, Interference, MethodMeasurement, ThroughputStep,
    ThroughputSummary, WarmMethod, WarmingCost,
};
use serde_json::json;

use crate::{browser::Browser, folder};

const STEPS: u64 = 80;

/// A measurement whose rate rises to 4000 reads a step within `warm_ms`, with some noise.
fn measurement(method: WarmMethod, warm_ms: u64, wait: f64) -> MethodMeasurement {
    let step = |at: u64| {
        let risen = (at * 250 + 125).min(warm_ms) as f64 / warm_ms as f64;
        let noise = (at * 7919 + warm_ms) % 211;
        let transactions = 300 + (3700.0 * risen * risen) as u64 - noise.min(250);
        ThroughputStep { transactions, p99_us: 90, ..ThroughputStep::default() }
    };
    let warming = WarmingCost {
        wall: Duration::from_millis(warm_ms),
        is_done: true,
        server_cpu: Some(Duration::from_millis(1200)),
        own_cpu: Duration::from_millis(35),
        read_bytes: Some(480 << 20),
        resident_share: (method == WarmMethod::Howdah).then_some(1.0),
        tenth_at: (method == WarmMethod::Howdah).then_some(Duration::from_millis(150)),
    };
    MethodMeasurement {
        method,
        steps: (0..STEPS).map(step).collect(),
        p99_us: 640,
        max_us: 31_000,
        warming: (method != WarmMethod::NoWarming).then_some(warming),
        interference: Interference {
            wait_share: Some(wait),
            wait_share_when_warm: Some(wait),
            others_share: Some(0.03),
            steal_share: Some(0.0),
            load_before: Some(0.4),
        },
        steady: None,
        summary: ThroughputSummary::default(),
    }
}

fn results(wait: f64) -> BenchmarkResults {
    let run = |number: u64| {
        let mut measurements = vec![
            measurement(WarmMethod::NoWarming, 26_000 + 900 * number, 0.01),
            measurement(WarmMethod::Autoprewarm, 4200 + 400 * number, wait),
            measurement(WarmMethod::Howdah, 1400 + 350 * number, wait),
        ];
        measurements.rotate_left(number as usize);
        BenchmarkRun { measurements }
    };
    let mut results = BenchmarkResults {
        server: "17.5 (Debian 17.5-1.pgdg120+1)".to_owned(),
        host: HostInfo { processors: Some(2), memory_bytes: Some(8 << 30) },
        scale: 30,
        step: Duration::from_millis(250),
        duration: Duration::from_secs(20),
        skew: None,
        pages: (57_800, 8192),
        steady_before: 15_700.0,
        steady_p99_us: 95,
        steady: 0.0,
        runs: (0..3).map(run).collect(),
        notes: vec![
            "before each restart: 965 data files, 480 MiB, were dropped from the system's cache"
                .to_owned(),
        ],
    };
    results.summarize();
    results
}

/// Opens the page at this width.
fn open(test: &str, width: u32, scheme: &str, wait: f64) -> Browser {
    let file = folder().join(format!("{test}.html"));
    std::fs::write(&file, howdah_report::benchmark::page(&results(wait))).unwrap();
    let mut browser = Browser::start(test);
    browser.resize(width, 900);
    browser.set_scheme(scheme);
    browser.open(&file);
    assert_eq!(browser.problems(&file), [""; 0]);
    browser.screenshot(&folder().join(format!("{test}.png")), true);
    browser
}

/// The smallest size of text in charts that are shown, in pixels of the screen.
const SMALLEST_TEXT: &str = "Math.min(...Array.from(document.querySelectorAll('svg'))\
    .filter((svg) => svg.getBoundingClientRect().width > 0)\
    .flatMap((svg) => Array.from(svg.querySelectorAll('text'), (text) => \
    svg.getBoundingClientRect().width / svg.viewBox.baseVal.width * \
    parseFloat(getComputedStyle(text).fontSize))))";

/// The number of charts that are shown.
const CHARTS: &str = "Array.from(document.querySelectorAll('svg'))\
    .filter((svg) => svg.getBoundingClientRect().width > 0).length";

#[test]
fn benchmark_is_readable_at_desktop_and_phone_width() {
    for (test, width, scheme) in [
        ("benchmark-desktop", 1280, "light"),
        ("benchmark-desktop-dark", 1280, "dark"),
        ("benchmark-phone", 360, "light"),
        ("benchmark-phone-dark", 360, "dark"),
    ] {
        let mut browser = open(test, width, scheme, 0.01);
        assert_eq!(browser.eval("document.documentElement.scrollWidth"), json!(width), "{test}");
        assert_eq!(browser.eval(CHARTS), json!(1), "{test}");
        let smallest = browser.eval(SMALLEST_TEXT).as_f64().unwrap();
        assert!(smallest >= 10.5, "{test}: {smallest}");
        let headline = browser.eval("document.querySelector('h1').textContent");
        let headline = headline.as_str().unwrap();
        assert!(
            headline.starts_with("Howdah warms the cache faster than autoprewarm"),
            "{headline}"
        );
    }
}

#[test]
fn disturbed_benchmark_has_no_verdict() {
    let mut browser = open("benchmark-disturbed", 800, "light", 0.4);
    assert_eq!(browser.eval("document.querySelector('.badge').textContent"), "not comparable");
    assert_eq!(browser.eval("document.querySelectorAll('.notice li').length"), json!(6));
}
