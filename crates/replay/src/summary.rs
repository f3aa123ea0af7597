//! A report as JSON, for programs and the run's manifest, and as text for people.

use std::{
    fmt::{self, Write as _},
    time::Duration,
};

use howdah_dataset::MachineSeries;
use howdah_stats::Percentiles;
use serde_json::{Value, json};

use crate::{
    outcome_writer::{ComparedCounts, EndCounts, FailureSummary, ReplayTotals},
    pace::Rate,
    run::ReplayReport,
};

/// Version of [`ReplayReport::json`]; incremented when a key changes its meaning or is removed.
const REPORT_VERSION: u32 = 1;

impl ReplayReport {
    /// Returns all figures. Durations are in microseconds unless the key says otherwise; a
    /// distribution without values is null.
    pub fn json(&self, rate: Rate) -> Value {
        let ReplayTotals { latency, schedule_error, dependency_lag, input_late, .. } = &self.tally;
        let by_code = |count: fn(&FailureSummary) -> u64| -> serde_json::Map<_, _> {
            let errors = self.tally.errors.iter();
            errors.map(|(code, failures)| (code.clone(), count(failures).into())).collect()
        };
        let kinds: serde_json::Map<_, _> = self
            .tally
            .events
            .iter()
            .map(|(kind, ends)| (kind.as_str().to_owned(), ends_json(*ends)))
            .collect();
        let typed = self.tally.typed_statements.iter();
        let fingerprints: Vec<_> = typed.map(ToString::to_string).collect();
        json!({
            "version": REPORT_VERSION,
            "rate": rate.to_string(),
            "rate_changes": self.rate_changes.iter().map(|change| {
                json!({ "at_s": change.at.as_secs_f64(), "rate": change.rate })
            }).collect::<Vec<_>>(),
            "lag_abort": self.lag_abort.as_ref().map(|abort| json!({
                "session": &*abort.session,
                "lag_s": abort.lag.as_secs_f64(),
                "limit_s": abort.limit.as_secs_f64(),
            })),
            "complete": !self.is_interrupted && self.source_error.is_none(),
            "elapsed_s": self.elapsed.as_secs_f64(),
            "captured_s": self.played_span().as_secs_f64(),
            "idle_skipped_s": self.idle_skipped.as_secs_f64(),
            "first_to_last_send_s": self.send_span().map(|span| span.as_secs_f64()),
            "events_read": self.events_read,
            "events": ends_json(self.tally.total()),
            "executions": ends_json(self.tally.executions()),
            "by_kind": kinds,
            "errors": by_code(|failures| failures.count),
            "errors_captured_too":
                self.has_outcomes.then(|| by_code(|failures| failures.captured_too)),
            "failed_only_when_captured":
                self.has_outcomes.then_some(self.tally.failed_only_when_captured),
            "skipped": self.tally.skipped,
            "dropped": self.tally.dropped,
            "row_counts": compared_json(self.tally.row_counts),
            "results": compared_json(self.tally.results),
            "activity": self.tally.activity.json(),
            "types_deduced": {
                "executions": self.tally.types_deduced,
                "statements": fingerprints,
            },
            "rows": self.tally.rows,
            "latency_us": percentiles_json(latency),
            "schedule_error_us": percentiles_json(schedule_error),
            "dependency_lag_us": percentiles_json(dependency_lag),
            "input_late_us": percentiles_json(input_late),
            "order_wait_us":
                self.order_inversions.map(|_| percentiles_json(&self.tally.order_wait)),
            "order_inversions": self.order_inversions,
            "machine": self.machine_json(),
            "sessions": self.sessions,
            "connections": self.connections,
            "connections_max": self.connections_max,
            "connections_lost": self.connections_lost,
            "closed_in_transaction": self.closed_in_transaction,
        })
    }

    /// Returns the most important figures as aligned text; each line ends with a newline.
    pub fn lines(&self, rate: Rate) -> String {
        let mut out = String::new();
        // Writing to a string cannot fail.
        let _ = self.write_lines(rate, &mut out);
        out
    }

    fn write_lines(&self, rate: Rate, out: &mut String) -> fmt::Result {
        writeln!(
            out,
            "replayed {} of captured traffic in {}, {}{}",
            ShortDuration(self.played_span()),
            ShortDuration(self.elapsed),
            describe_pace(rate),
            if self.is_interrupted { ", until it was interrupted" } else { "" }
        )?;
        if !self.idle_skipped.is_zero() {
            let skipped = ShortDuration(self.idle_skipped);
            line(out, "idle time", &format!("{skipped} left out, in which no statement ran"))?;
        }
        for change in &self.rate_changes {
            let (at, rate) = (ShortDuration(change.at), change.rate);
            line(out, "  rate", &format!("{rate} from {at} on"))?;
        }
        line(out, "events", &describe_counts(self.tally.total()))?;
        line(out, "executions", &describe_counts(self.tally.executions()))?;
        for (code, failures) in &self.tally.errors {
            line(out, "  errors", &describe_failures(code, failures, self.has_outcomes))?;
        }
        if self.has_outcomes && self.tally.failed_only_when_captured > 0 {
            let count = self.tally.failed_only_when_captured;
            line(out, "  no errors", &format!("{count}  failed when captured, but not here"))?;
        }
        for (reason, count) in &self.tally.skipped {
            line(out, "  skipped", &format!("{count}  {reason}"))?;
        }
        for (reason, count) in &self.tally.dropped {
            line(out, "  dropped", &format!("{count}  {reason}"))?;
        }
        for (counts, what) in [
            (self.tally.row_counts, "another number of rows than captured"),
            (self.tally.results, "other rows than captured"),
        ] {
            if counts.different > 0 {
                let ComparedCounts { compared, different } = counts;
                line(out, "  different", &format!("{different} of {compared} returned {what}"))?;
            }
        }
        if self.tally.types_deduced > 0 {
            let deduced = format!(
                "{} executions of {} statements: the capture has no parameter types",
                self.tally.types_deduced,
                self.tally.typed_statements.len()
            );
            line(out, "types deduced", &deduced)?;
        }
        line(out, "latency", &describe_percentiles(&self.tally.latency))?;
        if self.tally.schedule_error.count() > 0 {
            let ours = describe_percentiles(&self.tally.schedule_error);
            let theirs = describe_percentiles(&self.tally.dependency_lag);
            line(
                out,
                "schedule error",
                &format!("{ours}  (session free, but sent late: the replay's)"),
            )?;
            line(out, "dependency lag", &format!("{theirs}  (session busy: the database's)"))?;
        }
        let late = self.tally.input_late.summary().filter(|summary| summary.max_us > 0);
        if late.is_some() {
            let input = describe_percentiles(&self.tally.input_late);
            line(out, "input late", &format!("{input}  (read after it was due: the source's)"))?;
        }
        if let Some(inversions) = self.order_inversions {
            let wait = describe_percentiles(&self.tally.order_wait);
            let held = self.tally.order_wait.count();
            line(out, "commit order", &format!("{held} statements held back: {wait}"))?;
            if inversions > 0 {
                let why = "ran ahead of others, which waited for its locks";
                line(out, "  inversions", &format!("{inversions}  a transaction {why}"))?;
            }
        }
        if let (Some(captured), replayed) = self.tally.activity.averages() {
            let active =
                format!("{replayed:.2} statements at once on average, {captured:.2} when captured");
            line(out, "running", &active)?;
        }
        line(out, "machine", &describe_machine(&self.machine))?;
        let sessions = format!(
            "{}, {} connections open at most, {} lost or refused",
            self.sessions, self.connections_max, self.connections_lost
        );
        line(out, "sessions", &sessions)?;
        if self.closed_in_transaction > 0 {
            let closed = format!(
                "{}  closed inside a transaction, which rolled it back: the capture ends there",
                self.closed_in_transaction
            );
            line(out, "  cut open", &closed)?;
        }
        Ok(())
    }

    fn machine_json(&self) -> Value {
        let MachineSeries { is_server_local, processors, calibration, .. } = &self.machine;
        let mut json = json!(self.machine.summary());
        json["server_is_local"] = (*is_server_local).into();
        json["processors"] = (*processors).into();
        json["calibration_end"] = json!(calibration.end);
        json
    }

    /// Returns the captured time from the first event to the last; for an interrupted replay, to
    /// the last event that was replayed.
    pub fn played_span(&self) -> Duration {
        self.tally.played.map_or(Duration::ZERO, |(first, last)| last.saturating_since(first))
    }

    /// Returns the time from the first execution sent to the last; `None` if no execution was sent.
    pub fn send_span(&self) -> Option<Duration> {
        self.tally.sends.map(|(first, last)| last - first)
    }
}

fn describe_pace(rate: Rate) -> String {
    match rate {
        Rate::Max => "as fast as possible".to_owned(),
        Rate::Times(1.0) => "at the captured pace".to_owned(),
        Rate::Times(rate) if rate > 1.0 => format!("{rate} times as fast as captured"),
        Rate::Times(rate) => format!("slowed down to {rate} of the captured pace"),
    }
}

/// Formats failures: `10  23505, 5 failed there too, 5 only here, such as: duplicate key …`.
fn describe_failures(code: &str, failures: &FailureSummary, outcomes_known: bool) -> String {
    let FailureSummary { count, captured_too, sample } = failures;
    let code = if code.is_empty() { "no code" } else { code };
    let compared = match (*captured_too, count - captured_too) {
        _ if !outcomes_known => String::new(),
        (0, _) => ", only here".to_owned(),
        (_, 0) => ", failed there too".to_owned(),
        (too, new) => format!(", {too} failed there too, {new} only here"),
    };
    let sample: String = sample.chars().filter(|c| !c.is_control()).take(80).collect();
    format!("{count}  {code}{compared}, such as: {sample}")
}

/// Formats `calibration p50 1.10 ms (900 µs to 3.40 ms), CPU pressure 12 %, …`, without figures
/// that were not measured.
fn describe_machine(machine: &MachineSeries) -> String {
    let summary = machine.summary();
    let short = |us| ShortDuration(Duration::from_micros(us));
    let medians =
        [summary.calibration_p50_us, summary.calibration_low_us, summary.calibration_high_us];
    let calibration = match (medians, &machine.calibration.end) {
        ([Some(p50), Some(low), Some(high)], _) => {
            format!("calibration p50 {} ({} to {})", short(p50), short(low), short(high))
        }
        (_, Some(end)) => format!("no calibration: {}", end.message),
        _ => "no calibration: the replay was too short".to_owned(),
    };
    let percent = |label: &str, share: Option<f64>| {
        share.map(|share| format!("{label} {:.0} %", share * 100.0))
    };
    let parts = [
        Some(calibration),
        percent("CPU pressure", summary.cpu_pressure),
        percent("I/O pressure", summary.io_pressure),
        percent("steal", summary.steal),
        summary.wakeup_delay_max_us.map(|us| format!("woken up to {} late", short(us))),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

fn line(out: &mut String, label: &str, value: &str) -> fmt::Result {
    writeln!(out, "  {label:<15} {value}")
}

fn ends_json(ends: EndCounts) -> Value {
    let EndCounts { done, failed, skipped, dropped } = ends;
    json!({
        "done": done, "failed": failed, "skipped": skipped, "dropped": dropped,
        "total": ends.total(),
    })
}

/// Returns the counts, or null if nothing was compared.
fn compared_json(counts: ComparedCounts) -> Value {
    let ComparedCounts { compared, different } = counts;
    if compared == 0 {
        return Value::Null;
    }
    json!({ "compared": compared, "different": different })
}

fn describe_counts(ends: EndCounts) -> String {
    let EndCounts { done, failed, skipped, dropped } = ends;
    let dropped = if dropped > 0 { format!(", {dropped} dropped") } else { String::new() };
    format!("{}: {done} done, {failed} failed, {skipped} skipped{dropped}", ends.total())
}

fn percentiles_json(percentiles: &Percentiles) -> Value {
    percentiles.summary().map_or(Value::Null, |sum| {
        json!({
            "count": sum.count, "mean": sum.mean_us, "p50": sum.p50_us, "p90": sum.p90_us,
            "p95": sum.p95_us, "p99": sum.p99_us, "p999": sum.p999_us, "max": sum.max_us,
        })
    })
}

fn describe_percentiles(percentiles: &Percentiles) -> String {
    let Some(sum) = percentiles.summary() else { return "nothing measured".to_owned() };
    [
        ("p50", sum.p50_us),
        ("p90", sum.p90_us),
        ("p95", sum.p95_us),
        ("p99", sum.p99_us),
        ("max", sum.max_us),
    ]
    .map(|(name, us)| format!("{name} {}", ShortDuration(Duration::from_micros(us))))
    .join("  ")
}

/// Formats a duration in seconds, milliseconds or microseconds, with at most two decimals.
struct ShortDuration(Duration);

impl fmt::Display for ShortDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs_f64();
        let (value, unit) = match seconds {
            s if s >= 1.0 => (s, "s"),
            s if s >= 1e-3 => (s * 1e3, "ms"),
            s => (s * 1e6, "µs"),
        };
        let digits = match value {
            v if v >= 100.0 || unit == "µs" => 0,
            v if v >= 10.0 => 1,
            _ => 2,
        };
        write!(f, "{value:.digits$} {unit}")
    }
}

#[test]
fn durations_have_three_significant_digits() {
    let shown = |micros| ShortDuration(Duration::from_micros(micros)).to_string();
    assert_eq!(shown(0), "0 µs");
    assert_eq!(shown(999), "999 µs");
    assert_eq!(shown(1_234), "1.23 ms");
    assert_eq!(shown(45_678), "45.7 ms");
    assert_eq!(shown(345_678), "346 ms");
    assert_eq!(shown(20_012_345), "20.0 s");
}

#[test]
fn paces_and_failures_are_described() {
    assert_eq!(describe_pace(Rate::Times(1.0)), "at the captured pace");
    assert_eq!(describe_pace(Rate::Times(2.5)), "2.5 times as fast as captured");
    assert_eq!(describe_pace(Rate::Times(0.5)), "slowed down to 0.5 of the captured pace");
    let failures =
        |captured_too| FailureSummary { count: 10, captured_too, sample: "no\nroom".to_owned() };
    let told = |captured_too| describe_failures("53300", &failures(captured_too), true);
    assert_eq!(told(5), "10  53300, 5 failed there too, 5 only here, such as: noroom");
    assert_eq!(told(10), "10  53300, failed there too, such as: noroom");
    assert_eq!(told(0), "10  53300, only here, such as: noroom");
    assert_eq!(describe_failures("", &failures(0), false), "10  no code, such as: noroom");
}

#[test]
fn machine_is_described_as_far_as_measured() {
    use howdah_dataset::{CalibrationEnd, CalibrationEndReason, CalibrationInfo, MachineBucket};

    let end = CalibrationEnd {
        reason: CalibrationEndReason::Disabled,
        message: "it is switched off".to_owned(),
        at_us: None,
    };
    let mut machine = MachineSeries {
        bucket_us: MachineSeries::BUCKET_US,
        is_server_local: false,
        processors: None,
        calibration: CalibrationInfo { interval_us: 250_000, end: None },
        buckets: Vec::new(),
    };
    assert_eq!(describe_machine(&machine), "no calibration: the replay was too short");
    machine.calibration.end = Some(end);
    machine.buckets = vec![MachineBucket {
        wakeup_delay_max_us: Some(4_000),
        interval_us: Some(1_000_000),
        cpu_some_us: Some(124_000),
        ..MachineBucket::default()
    }];
    assert_eq!(
        describe_machine(&machine),
        "no calibration: it is switched off, CPU pressure 12 %, woken up to 4.00 ms late"
    );
    // Figures until the end are shown.
    machine.buckets[0].calibration_p50_us = Some(1_100);
    assert_eq!(
        describe_machine(&machine),
        "calibration p50 1.10 ms (1.10 ms to 1.10 ms), CPU pressure 12 %, woken up to 4.00 ms late"
    );
}
