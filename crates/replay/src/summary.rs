//! A report as JSON, for programs and the run's manifest, and as lines for a person.

use std::{
    fmt::{self, Write as _},
    time::Duration,
};

use howdah_stats::Percentiles;
use serde_json::{Value, json};

use crate::{
    pace::Rate,
    recorder::{Ends, Tally},
    run::Report,
};

/// Version of [`Report::json`]; grows when a key changes its meaning or goes away.
const VERSION: u32 = 1;

impl Report {
    /// Every number. Durations are in microseconds unless the key says otherwise; a distribution
    /// of nothing is null.
    pub fn json(&self, rate: Rate) -> Value {
        let Tally { latency, schedule_error, dependency_lag, .. } = &self.tally;
        let kinds: serde_json::Map<_, _> = self
            .tally
            .events
            .iter()
            .map(|(kind, ends)| (kind.as_str().to_owned(), ends_json(*ends)))
            .collect();
        json!({
            "version": VERSION,
            "rate": rate.to_string(),
            "complete": !self.interrupted && self.feed_error.is_none(),
            "elapsed_s": self.elapsed.as_secs_f64(),
            "captured_s": self.captured_span().as_secs_f64(),
            "first_to_last_send_s": self.send_span().map(|span| span.as_secs_f64()),
            "events_read": self.events_read,
            "events": ends_json(self.tally.total()),
            "executions": ends_json(self.tally.executions()),
            "by_kind": kinds,
            "errors": self.tally.errors,
            "skipped": self.tally.skipped,
            "rows": self.tally.rows,
            "latency_us": percentiles_json(latency),
            "schedule_error_us": percentiles_json(schedule_error),
            "dependency_lag_us": percentiles_json(dependency_lag),
            "sessions": self.sessions,
            "connections": self.connections,
            "connections_max": self.connections_max,
            "connections_lost": self.connections_lost,
        })
    }

    /// The numbers that matter, aligned, each line ending in a newline.
    pub fn lines(&self, rate: Rate) -> String {
        let mut out = String::new();
        // Writing to a string cannot fail.
        let _ = self.write_lines(rate, &mut out);
        out
    }

    fn write_lines(&self, rate: Rate, out: &mut String) -> fmt::Result {
        let pace = match rate {
            Rate::Max => "as fast as it goes".to_owned(),
            Rate::Times(rate) => format!("at {rate} times the captured pace"),
        };
        writeln!(
            out,
            "replayed {} of captured traffic in {}, {pace}",
            Shown(self.captured_span()),
            Shown(self.elapsed)
        )?;
        line(out, "events", &ends_words(self.tally.total()))?;
        line(out, "executions", &ends_words(self.tally.executions()))?;
        for (code, count) in &self.tally.errors {
            let sample = self.tally.error_samples.get(code).map_or("", String::as_str);
            let sample: String = sample.chars().filter(|c| !c.is_control()).take(80).collect();
            let code = if code.is_empty() { "no code" } else { code };
            line(out, "  errors", &format!("{count}  {code}, such as: {sample}"))?;
        }
        for (reason, count) in &self.tally.skipped {
            line(out, "  skipped", &format!("{count}  {reason}"))?;
        }
        line(out, "latency", &percentiles_words(&self.tally.latency))?;
        if self.tally.schedule_error.count() > 0 {
            let ours = percentiles_words(&self.tally.schedule_error);
            let theirs = percentiles_words(&self.tally.dependency_lag);
            line(out, "schedule error", &format!("{ours}  (session free, sent late: ours)"))?;
            line(out, "dependency lag", &format!("{theirs}  (session busy: the database's)"))?;
        }
        let sessions = format!(
            "{}, {} connections open at most, {} lost or refused",
            self.sessions, self.connections_max, self.connections_lost
        );
        line(out, "sessions", &sessions)
    }

    /// Captured time from the first event to the last.
    pub fn captured_span(&self) -> Duration {
        self.captured.map_or(Duration::ZERO, |(first, last)| last.saturating_since(first))
    }

    /// From the first send of an execution to the last; `None` if nothing was sent.
    pub fn send_span(&self) -> Option<Duration> {
        self.tally.sends.map(|(first, last)| last - first)
    }
}

fn line(out: &mut String, label: &str, value: &str) -> fmt::Result {
    writeln!(out, "  {label:<15} {value}")
}

fn ends_json(ends: Ends) -> Value {
    json!({ "done": ends.done, "failed": ends.failed, "skipped": ends.skipped, "total": ends.total() })
}

fn ends_words(ends: Ends) -> String {
    let Ends { done, failed, skipped } = ends;
    format!("{}: {done} done, {failed} failed, {skipped} skipped", ends.total())
}

fn percentiles_json(percentiles: &Percentiles) -> Value {
    percentiles.summary().map_or(Value::Null, |sum| {
        json!({
            "count": sum.count, "mean": sum.mean_us, "p50": sum.p50_us, "p90": sum.p90_us,
            "p95": sum.p95_us, "p99": sum.p99_us, "p999": sum.p999_us, "max": sum.max_us,
        })
    })
}

fn percentiles_words(percentiles: &Percentiles) -> String {
    let Some(sum) = percentiles.summary() else { return "nothing measured".to_owned() };
    [
        ("p50", sum.p50_us),
        ("p90", sum.p90_us),
        ("p95", sum.p95_us),
        ("p99", sum.p99_us),
        ("max", sum.max_us),
    ]
    .map(|(name, us)| format!("{name} {}", Shown(Duration::from_micros(us))))
    .join("  ")
}

/// A duration with three digits and the unit that fits.
struct Shown(Duration);

impl fmt::Display for Shown {
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
fn durations_show_three_digits() {
    let shown = |micros| Shown(Duration::from_micros(micros)).to_string();
    assert_eq!(shown(0), "0 µs");
    assert_eq!(shown(999), "999 µs");
    assert_eq!(shown(1_234), "1.23 ms");
    assert_eq!(shown(45_678), "45.7 ms");
    assert_eq!(shown(345_678), "346 ms");
    assert_eq!(shown(20_012_345), "20.0 s");
}
