//! Throughput over time as SVG: a line for each way, the steady rate, and a mark where 90 % of it was
//! reached.

use std::fmt::Write as _;

use howdah_chart::{Svg, ticks};

use crate::experiment::{Findings, Run, Way};

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 76.0;
const RIGHT: f64 = 24.0;
const TOP: f64 = 20.0;
const BOTTOM: f64 = 48.0;

/// The colour class of a way; [`crate::page()`] gives the colours.
pub(crate) fn class(way: Way) -> &'static str {
    match way {
        Way::Nothing => "nothing",
        Way::Autoprewarm => "autoprewarm",
        Way::Howdah => "howdah",
    }
}

/// Where a time and a rate lie.
struct Axes {
    seconds: f64,
    rate: f64,
}

impl Axes {
    fn x(&self, seconds: f64) -> f64 {
        LEFT + seconds / self.seconds * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, rate: f64) -> f64 {
        HEIGHT - BOTTOM - rate / self.rate * (HEIGHT - TOP - BOTTOM)
    }
}

/// The chart.
pub(crate) fn chart(findings: &Findings) -> String {
    let step = findings.step.as_secs_f64();
    let count = findings.runs.iter().map(|run| run.steps.len()).max().unwrap_or(1).max(1);
    let counts = findings.runs.iter().flat_map(|run| &run.steps).map(|step| step.transactions);
    let highest = counts.max().unwrap_or(0) as f64 / step;
    let axes =
        Axes { seconds: step * count as f64, rate: (highest.max(findings.steady) * 1.06).max(1.0) };
    let mut svg = Svg::new();
    svg.put(format_args!(
        r#"<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="Reads a second after a restart">"#
    ));
    grid(&mut svg, &axes);
    steady(&mut svg, &axes, findings.steady);
    for run in &findings.runs {
        line(&mut svg, &axes, run, step);
    }
    svg.put(format_args!("</svg>"));
    svg.into_string()
}

fn grid(svg: &mut Svg, axes: &Axes) {
    let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
    for rate in ticks(axes.rate, 5.0) {
        let y = axes.y(rate);
        svg.put(format_args!(
            r#"<line class="grid" x1="{LEFT}" y1="{y:.1}" x2="{right}" y2="{y:.1}"/>"#
        ));
        let (x, y, text) = (LEFT - 8.0, y + 4.0, thousands(rate));
        svg.put(format_args!(r#"<text class="tick end" x="{x}" y="{y:.1}">{text}</text>"#));
    }
    for seconds in ticks(axes.seconds, 5.0) {
        let (x, y) = (axes.x(seconds), bottom + 18.0);
        svg.put(format_args!(r#"<text class="tick mid" x="{x:.1}" y="{y}">{seconds}</text>"#));
    }
    let (x, y) = ((LEFT + right) / 2.0, HEIGHT - 10.0);
    svg.put(format_args!(
        r#"<text class="axis mid" x="{x}" y="{y}">seconds since the server lets clients in</text>"#
    ));
    let y = (TOP + bottom) / 2.0;
    svg.put(format_args!(
            r#"<text class="axis mid" x="16" y="{y}" transform="rotate(-90 16 {y})">reads a second</text>"#
        ),
    );
}

fn steady(svg: &mut Svg, axes: &Axes, rate: f64) {
    let (y, right) = (axes.y(rate), WIDTH - RIGHT);
    svg.put(format_args!(
        r#"<line class="steady" x1="{LEFT}" y1="{y:.1}" x2="{right}" y2="{y:.1}"/>"#
    ));
    let y = y - 5.0;
    svg.put(format_args!(r#"<text class="tick end" x="{right}" y="{y:.1}">steady</text>"#));
}

/// A step is drawn at its middle.
fn line(svg: &mut Svg, axes: &Axes, run: &Run, step: f64) {
    let class = class(run.way);
    let place = |at: usize| {
        let rate = run.steps[at].transactions as f64 / step;
        (axes.x((at as f64 + 0.5) * step), axes.y(rate))
    };
    let points = (0..run.steps.len()).fold(String::new(), |mut points, at| {
        let (x, y) = place(at);
        // Writing to a String cannot fail.
        let _ = write!(points, "{x:.1},{y:.1} ");
        points
    });
    svg.put(format_args!(r#"<polyline class="line {class}" points="{}"/>"#, points.trim_end()));
    let Some(time) = run.curve.to_ninety else { return };
    let at = (time.as_secs_f64() / step).round() as usize;
    if at < run.steps.len() {
        let (x, y) = place(at);
        svg.put(format_args!(r#"<circle class="mark {class}" cx="{x:.1}" cy="{y:.1}" r="5"/>"#));
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
    use crate::document::tests::findings;

    #[test]
    fn rates_are_short() {
        assert_eq!(thousands(12_500.0), "12.5 k");
        assert_eq!(thousands(500.0), "500");
    }

    #[test]
    fn every_way_is_a_line_and_who_arrived_has_a_mark() {
        let svg = chart(&findings());
        assert_eq!(svg.matches("<polyline").count(), 3);
        assert_eq!(svg.matches("<circle").count(), 2);
        assert!(svg.contains(r#"<circle class="mark howdah""#));
    }
}
