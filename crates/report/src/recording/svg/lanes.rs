//! Lanes of extension waits, the clock sweep and traced calls, and the tooltip of a column.

use std::{collections::BTreeMap, fmt::Write as _, time::Duration};

use howdah_probe::{
    analysis::{RecordingWindow, TimeBucket, units},
    recorder::TracedCalls,
    waits::TimeCategory,
};

use super::{Canvas, GAP, RIGHT, WIDTH};
use crate::chart::{Axis, decade_ticks, escaped, ticks};

const EXTENSION: &str = "waits to extend relations: median to 99th percentile, line to the longest";

const FIGURE_EXTENSION: &str = "waits to extend relations";

const EXTENSION_HEIGHT: f64 = 130.0;

impl Canvas {
    /// Draws waits to extend relations: a band from the median to the 99th percentile, a line
    /// through the 99th percentiles, and a stroke up to each maximum.
    pub(super) fn extension_lane(&mut self, buckets: &[TimeBucket]) {
        // The long title does not fit into a figure.
        let title = if self.width < WIDTH { FIGURE_EXTENSION } else { EXTENSION };
        let waits = |bucket: &'_ TimeBucket| {
            bucket
                .extension
                .as_ref()
                .map(|extension| extension.waits.clone())
                .filter(|waits| waits.count() > 0)
        };
        let with_data: Vec<_> =
            buckets.iter().filter_map(|bucket| Some((bucket, waits(bucket)?))).collect();
        let s = |duration: Duration| duration.as_secs_f64().max(1e-7);
        let Some(most) = with_data.iter().map(|(_, waits)| s(waits.max())).reduce(f64::max) else {
            let is_traced = buckets.iter().any(|bucket| bucket.extension.is_some());
            let why = if is_traced { "none" } else { "not traced: see Lock:extend below" };
            self.empty_lane(title, why);
            return;
        };
        let least = with_data.iter().map(|(_, waits)| s(waits.quantile(0.5))).fold(most, f64::min);
        let decades = decade_ticks(least, most);
        let (from, to) = (decades[0].log10(), decades[decades.len() - 1].log10());
        let y = Axis::new((from, to), (self.y + EXTENSION_HEIGHT, self.y));
        let named = |s: &f64| (y.position(s.log10()), decade(*s));
        self.lane(title, EXTENSION_HEIGHT, &decades.iter().map(named).collect::<Vec<_>>());
        self.shade_untraced(buckets);
        let mut line: Vec<(f64, f64)> = Vec::new();
        for (bucket, waits) in &with_data {
            let (left, right) = self.column(bucket);
            let [p50, p99, max] = [waits.quantile(0.5), waits.quantile(0.99), waits.max()]
                .map(|duration| y.position(s(duration).log10()));
            let (middle, width) = (f64::midpoint(left, right), (right - left).max(1.0));
            self.svg.push(format_args!(
                r#"<rect class="band" x="{left:.1}" y="{p99:.1}" width="{width:.1}" height="{:.1}"/>"#,
                (p50 - p99).max(1.0)
            ));
            self.svg.push(format_args!(
                r#"<line class="range" x1="{middle:.1}" y1="{max:.1}" x2="{middle:.1}" y2="{p99:.1}"/>"#
            ));
            line.push((middle, p99));
        }
        self.line("middle", &line);
    }

    /// Shades the time in which extension locks were not traced: missing data there does not mean
    /// that there were no waits.
    fn shade_untraced(&mut self, buckets: &[TimeBucket]) {
        let (top, height) = (self.y - GAP - EXTENSION_HEIGHT, EXTENSION_HEIGHT);
        let away = |bucket: &TimeBucket| bucket.extension.is_none();
        for run in
            buckets.chunk_by(|one, other| away(one) == away(other)).filter(|run| away(&run[0]))
        {
            let (from, to) = (self.column(&run[0]).0, self.column(&run[run.len() - 1]).1);
            let (width, middle, y) = (to - from, f64::midpoint(from, to), top + height / 2.0);
            self.svg.push(format_args!(
                r#"<rect class="untraced" x="{from:.1}" y="{top:.1}" width="{width:.1}" height="{height}"/>"#
            ));
            if width > 70.0 {
                self.svg.push(format_args!(
                    r#"<text class="tick mid" x="{middle:.1}" y="{y:.1}">not traced</text>"#
                ));
            }
        }
    }

    /// Draws buffers examined per allocation.
    pub(super) fn sweep_lane(&mut self, buckets: &[TimeBucket]) {
        const NAME: &str = "clock sweep: buffers examined per allocation";
        // With few allocations, the counting error would dominate the ratio.
        let enough =
            |bucket: &&TimeBucket| bucket.sweep.is_some_and(|sweep| sweep.allocations >= 10);
        let each =
            |bucket: &TimeBucket| Some((self.column(bucket), bucket.examined_per_allocation()?));
        let with_data: Vec<_> = buckets.iter().filter(enough).filter_map(each).collect();
        let most = with_data.iter().map(|(_, each)| *each).fold(0.0, f64::max);
        if with_data.is_empty() || most == 0.0 {
            let why = if with_data.is_empty() {
                "too few buffer allocations"
            } else {
                "free buffers were available: no sweep"
            };
            self.empty_lane(NAME, why);
            return;
        }
        let y = Axis::new((0.0, most * 1.05), (self.y + 70.0, self.y));
        let named: Vec<_> = ticks(most * 1.05, 3.0)
            .into_iter()
            .map(|each| (y.position(each), format!("{each}")))
            .collect();
        self.lane(NAME, 70.0, &named);
        let line: Vec<_> = with_data
            .iter()
            .map(|((from, to), each)| (f64::midpoint(*from, *to), y.position(*each)))
            .collect();
        self.line("sweep", &line);
    }

    /// Draws the 99th percentiles of traced calls, one line per operation.
    pub(super) fn traced_calls_lane(&mut self, window: &RecordingWindow) {
        const NAME: &str = "traced calls during episodes: 99th percentile";
        let mut operations: BTreeMap<String, Vec<&TracedCalls>> = BTreeMap::new();
        for exact in window.traced_calls.iter().filter(|exact| exact.calls.count() > 0) {
            operations
                .entry(format!("{} {}", exact.metric, exact.operation))
                .or_default()
                .push(exact);
        }
        if operations.is_empty() {
            return;
        }
        let p99 = |exact: &TracedCalls| exact.calls.quantile(0.99).as_secs_f64().max(1e-7);
        let all = || operations.values().flatten().map(|exact| p99(exact));
        let decades = decade_ticks(all().fold(1.0, f64::min), all().fold(1e-6, f64::max));
        let (from, to) = (decades[0].log10(), decades[decades.len() - 1].log10());
        let y = Axis::new((from, to), (self.y + 80.0, self.y));
        let named = |s: &f64| (y.position(s.log10()), decade(*s));
        let (top, _) = self.lane(NAME, 80.0, &decades.iter().map(named).collect::<Vec<_>>());
        const CLASSES: [&str; 7] = ["io", "lock", "lwlock", "ipc", "cpu", "rest", "timeout"];
        let mut names = Vec::new();
        for ((name, calls), class) in operations.iter().zip(CLASSES.iter().cycle()) {
            names.push((*class, name.as_str()));
            let mut line: Vec<(f64, f64)> = Vec::new();
            for exact in calls {
                let x = self.at(exact.at_us.saturating_add(500_000));
                line.push((x, y.position(p99(exact).log10())));
            }
            self.line(&format!("line {class}"), &line);
        }
        self.legend(&names, top - 7.0);
    }

    /// Draws a line, interrupted where two or more successive columns have no data.
    pub(super) fn line(&mut self, class: &str, points: &[(f64, f64)]) {
        let column = self.x.length(self.bucket_us as f64 / 1e6 * 2.5);
        let (mut path, mut last) = (String::new(), f64::NEG_INFINITY);
        for (index, (x, y)) in points.iter().enumerate() {
            let is_apart = x - last > column.max(2.0);
            let is_alone = points.get(index + 1).is_none_or(|(next, _)| next - x > column.max(2.0));
            if is_apart && is_alone {
                self.svg.push(format_args!(
                    r#"<circle class="{class}" cx="{x:.1}" cy="{y:.1}" r="1.2"/>"#
                ));
            }
            // Writing to a String cannot fail.
            let _ = write!(path, "{}{x:.1} {y:.1}", if is_apart { 'M' } else { 'L' });
            last = *x;
        }
        self.svg.push(format_args!(r#"<path class="{class}" d="{path}"/>"#));
    }

    /// Draws a right-aligned legend: each name after a square in its colour.
    pub(super) fn legend(&mut self, names: &[(&str, &str)], y: f64) {
        let mut x = self.width - RIGHT;
        for (class, name) in names.iter().rev() {
            self.svg.push(format_args!(
                r#"<text class="tick end" x="{x:.1}" y="{y:.1}">{}</text>"#,
                escaped(name)
            ));
            x -= 6.8 * name.chars().count() as f64 + 14.0;
            let top = y - 9.0;
            self.svg.push(format_args!(
                r#"<rect class="{class}" x="{x:.1}" y="{top:.1}" width="10" height="10" rx="2"/>"#
            ));
            x -= 12.0;
        }
    }
}

/// Returns the figures of a bucket, one per line, for its tooltip.
pub(super) fn bucket_title(window: &RecordingWindow, bucket: &TimeBucket) -> String {
    let mut told = units::time_of_day(bucket.at_us);
    if let Some(extension) =
        bucket.extension.as_ref().filter(|extension| extension.waits.count() > 0)
    {
        let waits = &extension.waits;
        let [p50, p99, max] =
            [waits.quantile(0.5), waits.quantile(0.99), waits.max()].map(units::duration);
        let _ = write!(
            told,
            "\nextension: {} waits, p50 {p50}, p99 {p99}, longest {max}",
            waits.count()
        );
        for of in extension.relations.iter().take(2) {
            let _ = write!(
                told,
                "\n  {}: {} in {}",
                window.relation_name(of),
                units::micros(of.total_us),
                of.waits
            );
        }
    }
    if let (Some(sweep), Some(each)) = (&bucket.sweep, bucket.examined_per_allocation()) {
        let _ = write!(
            told,
            "\nclock sweep: {each:.1} buffers examined per allocation, {} allocations",
            sweep.allocations
        );
    }
    let mut events: Vec<_> =
        bucket.waits.iter().filter(|((group, ..), _)| *group == TimeCategory::Database).collect();
    events.sort_by(|(_, one), (_, other)| other.total_cmp(one));
    for ((_, _, event), seconds) in events.into_iter().take(6) {
        let _ = write!(told, "\n{event}: {:.2} sessions", seconds / bucket.seconds().max(1e-9));
    }
    told
}

/// Formats a power of ten of seconds: `100 µs`, `1 ms`, `10 s`.
fn decade(seconds: f64) -> String {
    match seconds {
        s if s < 0.95e-6 => format!("{:.0} ns", s * 1e9),
        s if s < 0.95e-3 => format!("{:.0} µs", s * 1e6),
        s if s < 0.95 => format!("{:.0} ms", s * 1e3),
        s => format!("{s:.0} s"),
    }
}

#[test]
fn decades_have_no_fraction() {
    assert_eq!([1e-7, 1e-5, 1e-3, 10.0].map(decade), ["100 ns", "10 µs", "1 ms", "10 s"]);
}
