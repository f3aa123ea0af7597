//! Small figures within the HTML: factors with their intervals, and histograms of latencies.

use super::{FactorInterval, LatencyHistogram, Page, PageQuery, PageQueryVerdict};
use crate::{
    chart::{Axis, Svg, decade_ticks},
    text,
};

/// Width and height of the figure for a factor.
const BAR: (f64, f64) = (170.0, 22.0);
/// Space at either side for the end of a whisker.
const BAR_MARGIN: f64 = 4.0;

/// The logarithmic axis on which all queries draw their factors, symmetrical about 1.
pub(super) struct FactorAxis {
    axis: Axis,
    limit: f64,
    change_min: f64,
}

impl FactorAxis {
    /// Creates an axis for all factors of the page, limited to a hundredfold in either direction.
    pub(super) fn new(page: &Page) -> Self {
        let factors = page.queries.iter().filter_map(PageQuery::verdict_factor);
        let ends = factors.flat_map(|factor| [factor.low, factor.high, factor.estimate]);
        let logs = ends.filter(|end| *end > 0.0 && end.is_finite()).map(|end| end.ln().abs());
        let limit = logs.fold(2.5_f64.ln(), f64::max).min(100_f64.ln());
        // Without this margin, only half of a factor at the very end would be visible.
        let limit = limit + 0.1;
        let axis = Axis::new((-limit, limit), (BAR_MARGIN, BAR.0 - BAR_MARGIN));
        Self { axis, limit, change_min: page.change_min.max(1.0) }
    }

    fn x(&self, factor: f64) -> f64 {
        self.axis.position(factor.max(1e-9).ln())
    }

    /// Renders the scale, for the head of the column.
    pub(super) fn scale(&self) -> String {
        let limit = self.limit.exp();
        let steps: &[f64] = match limit {
            limit if limit >= 50.0 => &[50.0],
            limit if limit >= 10.0 => &[10.0],
            limit if limit >= 5.0 => &[5.0],
            _ => &[2.0],
        };
        let (width, height) = (BAR.0, 14.0);
        let mut svg = Svg::new();
        svg.push(format_args!(
            r#"<svg class="factor scale" viewBox="0 0 {width} {height}" width="{width}" height="{height}" aria-hidden="true">"#
        ));
        let mut tick = |factor: f64, label: String| {
            let x = self.x(factor);
            svg.push(format_args!(r#"<text x="{x:.1}" y="11">{label}</text>"#));
        };
        for step in steps {
            tick(1.0 / step, format!("1/{step}"));
            tick(*step, format!("{step}×"));
        }
        tick(1.0, "1×".to_owned());
        svg.push(format_args!("</svg>"));
        svg.into_string()
    }

    /// Renders a factor as a bar from 1, with its interval as a whisker. The shaded band shows
    /// which factors do not count as a change.
    pub(super) fn bar(&self, factor: FactorInterval, verdict: PageQueryVerdict) -> String {
        let (width, height) = BAR;
        let middle = height / 2.0;
        let [one, estimate, low, high] =
            [1.0, factor.estimate, factor.low, factor.high].map(|factor| self.x(factor));
        let class = match verdict {
            PageQueryVerdict::Slower => "slower",
            PageQueryVerdict::Faster => "faster",
            _ => "same",
        };
        let mut svg = Svg::new();
        svg.push(format_args!(
            r#"<svg class="factor {class}" viewBox="0 0 {width} {height}" width="{width}" height="{height}" aria-hidden="true">"#
        ));
        let (from, to) = (self.x(1.0 / self.change_min), self.x(self.change_min));
        svg.push(format_args!(
            r#"<rect class="band" x="{from:.1}" y="0" width="{:.1}" height="{height}"/>"#,
            to - from
        ));
        svg.push(format_args!(
            r#"<rect class="bar" x="{:.1}" y="6" width="{:.1}" height="10"/>"#,
            one.min(estimate),
            (estimate - one).abs().max(1.0)
        ));
        svg.push(format_args!(
            r#"<path class="one" d="M{one:.1} 0V{height}"/><path class="whisker" d="M{low:.1} {middle}H{high:.1}M{low:.1} 7.5V14.5M{high:.1} 7.5V14.5"/>"#
        ));
        svg.push(format_args!(r#"<circle class="point" cx="{estimate:.1}" cy="{middle}" r="3"/>"#));
        svg.push(format_args!("</svg>"));
        svg.into_string()
    }
}

const WIDTH: f64 = 420.0;
const HEIGHT: f64 = 168.0;
/// Top of the plot. Above it are the labels of the medians, one line each.
const PLOT_TOP: f64 = 34.0;
const PLOT_BOTTOM: f64 = 142.0;
const MARGIN: f64 = 8.0;

/// Renders the executions of both sides by latency; `None` if the bins have no valid edges or not
/// one count each. Each side is drawn as shares of its own executions, because the numbers of
/// executions may differ.
pub(super) fn histogram(latencies: &LatencyHistogram, query: &PageQuery) -> Option<String> {
    let edges = &latencies.edges_us;
    let (first, last) = (*edges.first()?, *edges.last()?);
    let bins = edges.len().checked_sub(1).filter(|bins| *bins > 0)?;
    if latencies.base.len() != bins || latencies.change.len() != bins || first <= 0.0 {
        return None;
    }
    let shares = |counts: &[u64]| -> Vec<f64> {
        let all = counts.iter().sum::<u64>().max(1) as f64;
        counts.iter().map(|count| *count as f64 / all).collect()
    };
    let (base, change) = (shares(&latencies.base), shares(&latencies.change));
    let highest = base.iter().chain(&change).copied().fold(0.0, f64::max);
    let x = Axis::new((first.ln(), last.ln()), (MARGIN, WIDTH - MARGIN));
    let y = Axis::new((0.0, highest), (PLOT_BOTTOM, PLOT_TOP));
    let mut svg = Svg::new();
    svg.push(format_args!(
        r#"<svg class="histogram" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="Distribution of latencies; its percentiles are in the table beside it">"#
    ));
    // Half of a tick's text must fit on either side of it.
    let has_room = |at: &f64| (22.0..=WIDTH - 22.0).contains(at);
    let ticks = decade_ticks(first, last).into_iter();
    for (tick, at) in ticks.map(|tick| (tick, x.position(tick.ln()))).filter(|(_, at)| has_room(at))
    {
        svg.push(format_args!(
            r#"<path class="grid" d="M{at:.1} {PLOT_TOP}V{PLOT_BOTTOM}"/><text class="tick" x="{at:.1}" y="{:.1}">{}</text>"#,
            PLOT_BOTTOM + 14.0,
            text::duration(tick).replace(".00 ", " ").replace(".0 ", " ")
        ));
    }
    for (class, shares) in [("base", &base), ("change", &change)] {
        let mut path = format!("M{:.1} {PLOT_BOTTOM}", x.position(first.ln()));
        for (bin, share) in shares.iter().enumerate() {
            let (top, right) = (y.position(*share), x.position(edges[bin + 1].ln()));
            path.push_str(&format!("V{top:.1}H{right:.1}"));
        }
        svg.push(format_args!(r#"<path class="area {class}" d="{path}V{PLOT_BOTTOM}Z"/>"#));
    }
    svg.push(format_args!(
        r#"<path class="axis" d="M{MARGIN} {PLOT_BOTTOM}H{:.1}"/>"#,
        WIDTH - MARGIN
    ));
    let medians = [("base", query.base, 11.0), ("change", query.change, 26.0)];
    for (class, side, label_y) in medians {
        let Some(p50) = side.map(|side| side.p50_us).filter(|p50| *p50 > 0.0) else { continue };
        let at = x.position(p50.ln());
        let (anchor, beside) = if at < WIDTH / 2.0 { ("start", 4.0) } else { ("end", -4.0) };
        svg.push(format_args!(
            r#"<path class="median {class}" d="M{at:.1} {:.1}V{PLOT_BOTTOM}"/><text class="label {class}" x="{:.1}" y="{label_y}" text-anchor="{anchor}">{class}: median {}</text>"#,
            label_y - 8.0,
            at + beside,
            text::duration(p50)
        ));
    }
    for bin in 0..bins {
        let (left, right) = (x.position(edges[bin].ln()), x.position(edges[bin + 1].ln()));
        svg.push(format_args!(
            r#"<rect class="hover" x="{left:.1}" y="{PLOT_TOP}" width="{:.1}" height="{:.1}"><title>{} to {}: base {} ({:.1} %), change {} ({:.1} %)</title></rect>"#,
            right - left,
            PLOT_BOTTOM - PLOT_TOP,
            text::duration(edges[bin]),
            text::duration(edges[bin + 1]),
            latencies.base[bin],
            base[bin] * 100.0,
            latencies.change[bin],
            change[bin] * 100.0
        ));
    }
    svg.push(format_args!("</svg>"));
    Some(svg.into_string())
}
