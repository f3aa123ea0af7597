//! Throughput over time as an SVG chart: one line per method, the steady rate, and a mark where 90
//! % of it was reached.

use std::fmt::Write as _;

use howdah_warm::benchmark::{BenchmarkResults, BenchmarkRun, WarmMethod};

use crate::chart::{Svg, ticks};

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 76.0;
const RIGHT: f64 = 24.0;
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
    seconds: f64,
    rate: f64,
}

impl ChartAxes {
    fn x(&self, seconds: f64) -> f64 {
        LEFT + seconds / self.seconds * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, rate: f64) -> f64 {
        HEIGHT - BOTTOM - rate / self.rate * (HEIGHT - TOP - BOTTOM)
    }
}

/// Renders the results of a benchmark as a chart.
pub(super) fn svg(results: &BenchmarkResults) -> String {
    let step = results.step.as_secs_f64();
    let count = results.runs.iter().map(|run| run.steps.len()).max().unwrap_or(1).max(1);
    let counts = results.runs.iter().flat_map(|run| &run.steps).map(|step| step.transactions);
    let highest = counts.max().unwrap_or(0) as f64 / step;
    let axes = ChartAxes {
        seconds: step * count as f64,
        rate: (highest.max(results.steady) * 1.06).max(1.0),
    };
    let mut canvas = Svg::new();
    canvas.push(format_args!(
        r#"<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="Reads per second after a restart">"#
    ));
    grid(&mut canvas, &axes);
    steady(&mut canvas, &axes, results.steady);
    for run in &results.runs {
        line(&mut canvas, &axes, run, step);
    }
    canvas.push(format_args!("</svg>"));
    canvas.into_string()
}

fn grid(svg: &mut Svg, axes: &ChartAxes) {
    let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
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
    let (x, y) = ((LEFT + right) / 2.0, HEIGHT - 10.0);
    svg.push(format_args!(
        r#"<text class="axis mid" x="{x}" y="{y}">seconds since the server accepted connections</text>"#
    ));
    let y = (TOP + bottom) / 2.0;
    svg.push(format_args!(
            r#"<text class="axis mid" x="16" y="{y}" transform="rotate(-90 16 {y})">reads per second</text>"#
        ),
    );
}

fn steady(svg: &mut Svg, axes: &ChartAxes, rate: f64) {
    let (y, right) = (axes.y(rate), WIDTH - RIGHT);
    svg.push(format_args!(
        r#"<line class="steady" x1="{LEFT}" y1="{y:.1}" x2="{right}" y2="{y:.1}"/>"#
    ));
    let y = y - 5.0;
    svg.push(format_args!(r#"<text class="tick end" x="{right}" y="{y:.1}">steady</text>"#));
}

/// Draws the line of one method, with a point at the middle of each step, and a mark where 90 % of
/// the steady rate was reached.
fn line(svg: &mut Svg, axes: &ChartAxes, run: &BenchmarkRun, step: f64) {
    let class = css_class(run.method);
    let position = |at: usize| {
        let rate = run.steps[at].transactions as f64 / step;
        (axes.x((at as f64 + 0.5) * step), axes.y(rate))
    };
    let points = (0..run.steps.len()).fold(String::new(), |mut points, at| {
        let (x, y) = position(at);
        // Writing to a String cannot fail.
        let _ = write!(points, "{x:.1},{y:.1} ");
        points
    });
    svg.push(format_args!(r#"<polyline class="line {class}" points="{}"/>"#, points.trim_end()));
    let Some(time) = run.summary.time_to_90 else { return };
    let at = (time.as_secs_f64() / step).round() as usize;
    if at < run.steps.len() {
        let (x, y) = position(at);
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
    fn every_method_has_a_line_and_recovered_ones_a_mark() {
        let svg = svg(&results());
        assert_eq!(svg.matches("<polyline").count(), 3);
        assert_eq!(svg.matches("<circle").count(), 2);
        assert!(svg.contains(r#"<circle class="mark howdah""#));
    }
}
