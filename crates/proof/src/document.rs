//! Findings for programs: one JSON document, versioned, and the steps as CSV.

use std::fmt::Write as _;

use serde::Serialize;

use crate::experiment::{Findings, Run, Warming};

/// Version of [`Document`], in its `version` field.
pub const VERSION: u32 = 1;

/// The document. Times are in seconds but where a name says otherwise; what is not known is `null`.
#[derive(Debug, Serialize)]
#[non_exhaustive]
pub struct Document {
    /// Always `howdah-warm-proof`.
    pub format: &'static str,
    /// See [`VERSION`].
    pub version: u32,
    server: String,
    scale: u32,
    seconds: f64,
    step_seconds: f64,
    zipf: Option<f64>,
    cached_pages: u64,
    page_bytes: u32,
    steady_per_second: f64,
    steady_p99_us: u64,
    runs: Vec<RunDocument>,
    notes: Vec<String>,
}

#[derive(Debug, Serialize)]
struct RunDocument {
    way: &'static str,
    to_ninety_percent_seconds: Option<f64>,
    lost_transactions: u64,
    transactions: u64,
    p99_us: u64,
    max_us: u64,
    /// Of the steady rate, when a tenth of the pages was loaded.
    share_after_a_tenth: Option<f64>,
    warming: Option<WarmingDocument>,
    steps: Vec<u64>,
}

#[derive(Debug, Serialize)]
struct WarmingDocument {
    wall_seconds: f64,
    done: bool,
    server_cpu_seconds: Option<f64>,
    own_cpu_seconds: f64,
    read_bytes: Option<u64>,
    resident_share: Option<f64>,
    tenth_at_seconds: Option<f64>,
}

/// The document of findings.
#[must_use]
pub fn document(findings: &Findings) -> Document {
    Document {
        format: "howdah-warm-proof",
        version: VERSION,
        server: findings.server.clone(),
        scale: findings.scale,
        seconds: findings.duration.as_secs_f64(),
        step_seconds: findings.step.as_secs_f64(),
        zipf: findings.skew,
        cached_pages: findings.pages.0,
        page_bytes: findings.pages.1,
        steady_per_second: findings.steady,
        steady_p99_us: findings.steady_p99_us,
        runs: findings.runs.iter().map(|run| RunDocument::of(run, findings)).collect(),
        notes: findings.notes.clone(),
    }
}

impl RunDocument {
    fn of(run: &Run, findings: &Findings) -> Self {
        Self {
            way: run.way.name(),
            to_ninety_percent_seconds: run.curve.to_ninety.map(|time| time.as_secs_f64()),
            lost_transactions: run.curve.lost,
            transactions: run.curve.transactions,
            p99_us: run.p99_us,
            max_us: run.max_us,
            share_after_a_tenth: run.share_after_a_tenth(findings.steady, findings.step),
            warming: run.warming.as_ref().map(WarmingDocument::of),
            steps: run.steps.iter().map(|step| step.transactions).collect(),
        }
    }
}

impl WarmingDocument {
    fn of(warming: &Warming) -> Self {
        Self {
            wall_seconds: warming.wall.as_secs_f64(),
            done: warming.is_done,
            server_cpu_seconds: warming.server_cpu.map(|time| time.as_secs_f64()),
            own_cpu_seconds: warming.own_cpu.as_secs_f64(),
            read_bytes: warming.read_bytes,
            resident_share: warming.share,
            tenth_at_seconds: warming.tenth_at.map(|time| time.as_secs_f64()),
        }
    }
}

/// A line for each step of each way: way, the step's end in seconds, reads a second, p99 in microseconds.
#[must_use]
pub fn steps_csv(findings: &Findings) -> String {
    let step_seconds = findings.step.as_secs_f64();
    let mut text = String::from("way,seconds,transactions_per_second,p99_us\n");
    for run in &findings.runs {
        for (step, number) in run.steps.iter().zip(1_u32..) {
            let seconds = step_seconds * f64::from(number);
            let rate = step.transactions as f64 / step_seconds;
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{},{seconds:.3},{rate:.1},{}", run.way.name(), step.p99_us);
        }
    }
    text
}

#[cfg(test)]
pub(crate) mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{curve::Curve, experiment::Way, points::Step};

    /// Findings such as they come from a small run.
    pub(crate) fn findings() -> Findings {
        let run = |way, counts: &[u64], warming| {
            let steps: Vec<_> = counts
                .iter()
                .map(|&transactions| Step { transactions, p99_us: 1000 - transactions })
                .collect();
            let curve = Curve::of(&steps, Duration::from_millis(500), 1800.0);
            Run { way, steps, curve, p99_us: 812, max_us: 20_100, warming }
        };
        let warming = |wall, cpu, share, tenth| Warming {
            wall: Duration::from_millis(wall),
            is_done: true,
            server_cpu: Some(Duration::from_millis(cpu)),
            own_cpu: Duration::from_millis(20),
            read_bytes: Some(312 << 20),
            share,
            tenth_at: tenth,
        };
        Findings {
            server: "17.5".to_owned(),
            scale: 20,
            step: Duration::from_millis(500),
            duration: Duration::from_secs(4),
            skew: None,
            pages: (38_300, 8192),
            steady: 1800.0,
            steady_p99_us: 95,
            runs: vec![
                run(Way::Nothing, &[50, 80, 120, 200, 310, 520, 700, 780], None),
                run(
                    Way::Autoprewarm,
                    &[60, 200, 500, 860, 900, 910, 890, 905],
                    Some(warming(1520, 610, None, None)),
                ),
                run(
                    Way::Howdah,
                    &[420, 850, 905, 900, 890, 910, 900, 904],
                    Some(warming(640, 550, Some(0.998), Some(Duration::from_millis(70)))),
                ),
            ],
            notes: vec!["before each start 31 data files, 312 MiB, were thrown out".to_owned()],
        }
    }

    #[test]
    fn every_step_is_a_line() {
        let csv = steps_csv(&findings());
        let lines: Vec<_> = csv.lines().collect();
        assert_eq!(lines.len(), 1 + 3 * 8);
        assert_eq!(lines[1], "no warming,0.500,100.0,950");
        assert_eq!(lines[24], "howdah,4.000,1808.0,96");
    }

    #[test]
    fn the_document_holds_what_was_found() {
        let document = serde_json::to_value(document(&findings())).unwrap();
        assert_eq!(document["format"], "howdah-warm-proof");
        assert_eq!(document["runs"][0]["to_ninety_percent_seconds"], serde_json::Value::Null);
        assert_eq!(document["runs"][2]["to_ninety_percent_seconds"], 0.5);
        assert_eq!(document["runs"][2]["warming"]["resident_share"], 0.998);
        // A tenth was loaded in the first step; the one after it is the first that shows it.
        let share = document["runs"][2]["share_after_a_tenth"].as_f64().unwrap();
        assert!((share - 850.0 / 900.0).abs() < 1e-9);
    }
}
