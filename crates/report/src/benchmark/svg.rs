//! Throughput over time as an SVG chart: for each method, the median of the runs as a line in the
//! band of their range, the steady rate, and a mark where 90 % of it was reached.

use std::fmt::Write as _;

use howdah_warm::benchmark::{BenchmarkResults, MethodSummary, WarmMethod};

use crate::chart::{Svg, ticks};

/// The size of a chart: its text has the same size in both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChartSize {
    /// For a desktop.
    Wide,
    /// For a phone.
    Narrow,
}

impl ChartSize {
    fn css_class(self) -> &'static str {
        match self {
            Self::Wide => "wide",
            Self::Narrow => "narrow",
        }
    }

    fn width(self) -> f64 {
        match self {
            Self::Wide => 960.0,
            Self::Narrow => 370.0,
        }
    }

    fn height(self) -> f64 {
        match self {
            Self::Wide => 420.0,
            Self::Narrow => 300.0,
        }
    }
}

const LEFT: f64 = 64.0;
const RIGHT: f64 = 10.0;
const TOP: f64 = 20.0;
const BOTTOM: f64 = 48.0;

/// Returns the CSS class of a method; [`super::page()`] defines its colours.
pub(super) fn css_class(method: WarmMethod) -> &'static str {
    match method {
        WarmMethod::NoWarming => "nothing",
        WarmMethod::Autoprewarm => "autoprewarm",
        WarmMethod::Howdah => "howdah",
    }
}

/// The axes of the chart, which map times and rates to coordinates.
struct ChartAxes {
    size: ChartSize,
    seconds: f64,
    rate: f64,
}

impl ChartAxes {
    fn right(&self) -> f64 {
        self.size.width() - RIGHT
    }

    fn bottom(&self) -> f64 {
        self.size.height() - BOTTOM
    }

    fn x(&self, seconds: f64) -> f64 {
        LEFT + seconds / self.seconds * (self.right() - LEFT)
    }

    fn y(&self, rate: f64) -> f64 {
        self.bottom() - rate / self.rate * (self.bottom() - TOP)
    }
}

/// Renders the results of a benchmark as a chart.
pub(super) fn svg(results: &BenchmarkResults, size: ChartSize) -> String {
    let step = results.step.as_secs_f64();
    let methods = results.method_summaries();
    let count = methods.iter().map(|it| it.rates.len()).max().unwrap_or(1).max(1);
    let highest = methods.iter().flat_map(|it| &it.rates).map(|rates| rates.max);
    let highest = highest.fold(results.steady, f64::max);
    let axes = ChartAxes { size, seconds: step * count as f64, rate: (highest * 1.08).max(1.0) };
    let mut canvas = Svg::new();
    let (class, width, height) = (size.css_class(), size.width(), size.height());
    canvas.push(format_args!(
        r#"<svg class="{class}" viewBox="0 0 {width} {height}" role="img" aria-label="Reads per second after a restart">"#
    ));
    grid(&mut canvas, &axes);
    steady(&mut canvas, &axes, results.steady);
    // Bands first, so that none of them hides a line.
    for method in methods.iter().filter(|it| it.counted > 1) {
        band(&mut canvas, &axes, method, step);
    }
    for method in &methods {
        line(&mut canvas, &axes, method, step);
    }
    canvas.push(format_args!("</svg>"));
    canvas.into_string()
}

fn grid(svg: &mut Svg, axes: &ChartAxes) {
    let (right, bottom) = (axes.right(), axes.bottom());
    for rate in ticks(axes.rate, 5.0) {
        let y = axes.y(rate);
        svg.push(format_args!(
            r#"<line class="grid" x1="{LEFT}" y1="{y:.1}" x2="{right}" y2="{y:.1}"/>"#
        ));
        let (x, y, text) = (LEFT - 8.0, y + 4.0, thousands(rate));
        svg.push(format_args!(r#"<text class="tick end" x="{x}" y="{y:.1}">{text}</text>"#));
    }
    for seconds in ticks(axes.seconds, 5.0) {
        let (x, y) = (axes.x(seconds), bottom + 18.0);
        svg.push(format_args!(r#"<text class="tick mid" x="{x:.1}" y="{y}">{seconds}</text>"#));
    }
    let (x, y) = ((LEFT + right) / 2.0, axes.size.height() - 10.0);
    svg.push(format_args!(
        r#"<text class="axis mid" x="{x}" y="{y}">seconds since the server accepted connections</text>"#
    ));
    let y = (TOP + bottom) / 2.0;
    svg.push(format_args!(
        r#"<text class="axis mid" x="14" y="{y}" transform="rotate(-90 14 {y})">reads per second</text>"#
    ));
}

fn steady(svg: &mut Svg, axes: &ChartAxes, rate: f64) {
    let (y, right) = (axes.y(rate), axes.right());
    svg.push(format_args!(
        r#"<line class="steady" x1="{LEFT}" y1="{y:.1}" x2="{right}" y2="{y:.1}"/>"#
    ));
    // At the left, where the lines are lowest.
    let (x, y) = (LEFT + 4.0, y - 5.0);
    svg.push(format_args!(r#"<text class="tick" x="{x}" y="{y:.1}">steady</text>"#));
}

/// Returns the points of a line through the middle of each step.
fn points(axes: &ChartAxes, rates: impl Iterator<Item = (usize, f64)>, step: f64) -> String {
    let mut points = String::new();
    for (at, rate) in rates {
        let (x, y) = (axes.x((at as f64 + 0.5) * step), axes.y(rate));
        let separator = if points.is_empty() { "" } else { " " };
        // Writing to a String cannot fail.
        let _ = write!(points, "{separator}{x:.1},{y:.1}");
    }
    points
}

/// Draws the range of the rates of a method: along the largest ones, and back along the smallest.
fn band(svg: &mut Svg, axes: &ChartAxes, method: &MethodSummary, step: f64) {
    let rates = || method.rates.iter().enumerate();
    let largest = rates().map(|(at, rate)| (at, rate.max));
    let smallest = rates().rev().map(|(at, rate)| (at, rate.min));
    let (class, points) = (css_class(method.method), points(axes, largest.chain(smallest), step));
    svg.push(format_args!(r#"<polygon class="band {class}" points="{points}"/>"#));
}

/// Draws the medians of a method, and a mark where 90 % of the steady rate was reached.
fn line(svg: &mut Svg, axes: &ChartAxes, method: &MethodSummary, step: f64) {
    let class = css_class(method.method);
    let medians = method.rates.iter().enumerate().map(|(at, rate)| (at, rate.median));
    let points = points(axes, medians, step);
    svg.push(format_args!(r#"<polyline class="line {class}" points="{points}"/>"#));
    let Some(time) = method.time_to_90.median else { return };
    let at = (time.as_secs_f64() / step).round() as usize;
    if let Some(rate) = method.rates.get(at) {
        let (x, y) = (axes.x((at as f64 + 0.5) * step), axes.y(rate.median));
        svg.push(format_args!(r#"<circle class="mark {class}" cx="{x:.1}" cy="{y:.1}" r="5"/>"#));
    }
}

fn thousands(number: f64) -> String {
    match number {
        number if number >= 1000.0 => format!("{} k", (number / 100.0).round() / 10.0),
        number => format!("{number}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::benchmark::tests::results;

    #[test]
    fn rates_above_thousand_are_abbreviated() {
        assert_eq!(thousands(12_500.0), "12.5 k");
        assert_eq!(thousands(500.0), "500");
    }

    #[test]
    fn every_method_has_a_line_and_a_band_and_recovered_ones_a_mark() {
        for size in [ChartSize::Wide, ChartSize::Narrow] {
            let svg = svg(&results(), size);
            assert_eq!(svg.matches("<polyline").count(), 3);
            assert_eq!(svg.matches("<polygon").count(), 3);
            assert_eq!(svg.matches("<circle").count(), 2);
            assert!(svg.contains(r#"<circle class="mark howdah""#));
        }
    }

    #[test]
    fn single_run_has_no_band() {
        let mut results = results();
        results.runs.truncate(1);
        results.summarize();
        assert!(!svg(&results, ChartSize::Wide).contains("<polygon"));
    }
}
