//! The chart: all lanes, one below the other, share a time axis from left to right.
//!
//! Lanes from top to bottom: checkpoints with nested phases; waits to extend relations, on a
//! logarithmic scale; the clock sweep; wait events of clients, stacked; sessions that wait for
//! locks; commits; idle and background processes, separately; the pressure on the host; and traced
//! calls, where an episode has some. Write and sync phases are shaded through the lanes below the
//! checkpoints. Hovering over a column shows its figures.
//!
//! A [`figure`] beside a paragraph of the story has one lane below the checkpoints.

mod counters;
mod lanes;
mod waits;

use howdah_probe::{
    analysis::{PhaseSpan, RecordingWindow, StoryTopic, TimeBucket, units},
    checkpoints::CheckpointPhase,
};

use crate::chart::{Axis, Svg, escaped, time_ticks};

const WIDTH: f64 = 1200.0;
/// Width of a figure beside text, which is shown in this size on narrow screens, too.
const FIGURE_WIDTH: f64 = 480.0;
const LEFT: f64 = 84.0;
const RIGHT: f64 = 16.0;
/// Space at the top, for threshold flags above the first lane's title.
const TOP: f64 = 42.0;
const GAP: f64 = 30.0;
const PHASE_ROW: f64 = 17.0;
/// Maximum number of columns; narrower ones could not be distinguished.
const BUCKETS_MAX: i64 = 900;
const FIGURE_BUCKETS_MAX: i64 = 240;

/// Renders a recording as a self-contained chart, readable on light and dark backgrounds.
pub fn svg(window: &RecordingWindow) -> String {
    let (buckets, bucket_us) = window.buckets(BUCKETS_MAX);
    let mut canvas = Canvas::new(window, WIDTH, bucket_us);
    canvas.checkpoints(window);
    let first = canvas.y;
    canvas.extension_lane(&buckets);
    canvas.sweep_lane(&buckets);
    canvas.waits_lane(&buckets);
    canvas.locks_lane(&buckets);
    canvas.commits_lane(window, &buckets);
    canvas.idle_lane(&buckets);
    canvas.pressure_lane(window, &buckets);
    canvas.traced_calls_lane(window);
    canvas.into_svg(window, first, "Server activity", |svg, x, (top, bottom)| {
        threshold_flags(svg, window, x, bottom);
        hover_columns(svg, window, &buckets, x, bucket_us, (top, bottom));
    })
}

/// Renders the picture that belongs to a paragraph of the story: checkpoints, and one lane on the
/// same time axis. Its styles are those of the [chart](svg).
pub(super) fn figure(window: &RecordingWindow, topic: StoryTopic) -> String {
    let (buckets, bucket_us) = window.buckets(FIGURE_BUCKETS_MAX);
    let mut canvas = Canvas::new(window, FIGURE_WIDTH, bucket_us);
    canvas.checkpoints(window);
    let first = canvas.y;
    let label = match topic {
        StoryTopic::Checkpoints => {
            canvas.storage_lane(&buckets);
            "Checkpoints, and sessions that wait for storage"
        }
        StoryTopic::Extension => {
            canvas.extension_lane(&buckets);
            "Checkpoints, and waits to extend relations"
        }
        StoryTopic::ClockSweep => {
            canvas.sweep_lane(&buckets);
            "Checkpoints, and the clock sweep"
        }
    };
    canvas.into_svg(window, first, label, |_, _, _| {})
}

/// The chart while its lanes are drawn.
struct Canvas {
    svg: Svg,
    width: f64,
    x: Axis,
    bucket_us: i64,
    /// Top of the next lane.
    y: f64,
}

impl Canvas {
    fn new(window: &RecordingWindow, width: f64, bucket_us: i64) -> Self {
        let span = window.span();
        let seconds = |at_us: i64| at_us as f64 / 1e6;
        let x = Axis::new((seconds(span.from_us), seconds(span.to_us)), (LEFT, width - RIGHT));
        Self { svg: Svg::new(), width, x, bucket_us, y: TOP }
    }

    /// Finishes the picture, whose second lane starts at `first`. `add` draws above all lanes.
    fn into_svg(
        mut self,
        window: &RecordingWindow,
        first: f64,
        label: &str,
        add: impl FnOnce(&mut Svg, Axis, (f64, f64)),
    ) -> String {
        let bottom = self.y - GAP + 6.0;
        let (width, height, x) = (self.width, bottom + 40.0, self.x);
        self.clock(window, bottom);
        let lanes = self.svg.into_string();
        let mut svg = Svg::new();
        svg.push(format_args!(
            r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img" aria-label="{label}">"#
        ));
        svg.push(format_args!("<style>{CHART_STYLE}</style>"));
        svg.push(format_args!(r#"<rect class="page" width="{width}" height="{height}"/>"#));
        shade_phases(&mut svg, window, x, first - GAP / 2.0, bottom);
        svg.push(format_args!("{}", lanes.trim_end()));
        add(&mut svg, x, (first - GAP / 2.0, bottom));
        svg.push(format_args!("</svg>"));
        svg.into_string()
    }

    fn at(&self, at_us: i64) -> f64 {
        self.x.position(at_us as f64 / 1e6)
    }

    /// Returns the left and right edge of a bucket.
    fn column(&self, bucket: &TimeBucket) -> (f64, f64) {
        (self.at(bucket.at_us), self.at(bucket.at_us + self.bucket_us))
    }

    /// Starts a lane with its title above it and its ticks on the left. Returns the lane's top and
    /// bottom.
    fn lane(&mut self, name: &str, height: f64, ticks: &[(f64, String)]) -> (f64, f64) {
        let (top, bottom) = (self.y, self.y + height);
        let above = top - 7.0;
        self.svg.push(format_args!(
            r#"<text class="lane" x="{LEFT}" y="{above:.1}">{}</text>"#,
            escaped(name)
        ));
        let right = self.width - RIGHT;
        for (y, text) in ticks {
            let (beside, middle) = (LEFT - 8.0, y + 4.0);
            self.svg.push(format_args!(
                r#"<line class="grid" x1="{LEFT}" y1="{y:.1}" x2="{right}" y2="{y:.1}"/>"#
            ));
            self.svg.push(format_args!(
                r#"<text class="tick end" x="{beside}" y="{middle:.1}">{}</text>"#,
                escaped(text)
            ));
        }
        self.y = bottom + GAP;
        (top, bottom)
    }

    /// Draws an empty lane that states the reason.
    fn empty_lane(&mut self, name: &str, why: &str) {
        self.lane(name, 16.0, &[]);
        let y = self.y - GAP + 2.0;
        self.svg.push(format_args!(
            r#"<text class="tick" x="{LEFT}" y="{y:.1}">{}</text>"#,
            escaped(why)
        ));
    }

    fn checkpoints(&mut self, window: &RecordingWindow) {
        let rows = 1 + window.phases.iter().map(|phase| phase.depth.min(4)).max().unwrap_or(0);
        if window.phases.is_empty() {
            self.empty_lane("checkpoints", "none while it was recorded");
            return;
        }
        let (top, _) = self.lane("checkpoints", f64::from(rows) * PHASE_ROW, &[]);
        for phase in &window.phases {
            self.phase(phase, top + f64::from(phase.depth.min(4)) * PHASE_ROW);
        }
    }

    fn phase(&mut self, phase: &PhaseSpan, y: f64) {
        let (from, to) = (self.at(phase.span.from_us), self.at(phase.span.to_us));
        let width = (to - from).max(1.5);
        let (class, height) = (phase.phase.as_str(), PHASE_ROW - 3.0);
        let title = escaped(&phase_title(phase));
        self.svg.push(format_args!(
            r#"<rect class="phase {class}" x="{from:.1}" y="{y:.1}" width="{width:.1}" height="{height}" rx="2"><title>{title}</title></rect>"#
        ));
        // A character is about seven units wide.
        if width > 7.0 * class.len() as f64 + 8.0 {
            let (x, y) = (from + 4.0, y + height - 3.5);
            self.svg
                .push(format_args!(r#"<text class="within" x="{x:.1}" y="{y:.1}">{class}</text>"#));
        }
    }

    /// Draws the time axis below all lanes.
    fn clock(&mut self, window: &RecordingWindow, bottom: f64) {
        let span = window.span();
        let right = self.width - RIGHT;
        self.svg.push(format_args!(
            r#"<line class="base" x1="{LEFT}" y1="{bottom:.1}" x2="{right}" y2="{bottom:.1}"/>"#
        ));
        let ticks = time_ticks(span.from_us as f64 / 1e6, span.to_us as f64 / 1e6);
        // A time of day is about 60 units wide.
        let every = (60.0 * ticks.len() as f64 / (right - LEFT)).ceil().max(1.0) as usize;
        for seconds in ticks.into_iter().step_by(every) {
            let (x, below) = (self.x.position(seconds), bottom + 16.0);
            let (end, text) = (bottom + 4.0, units::time_of_day((seconds * 1e6) as i64));
            self.svg.push(format_args!(
                r#"<line class="base" x1="{x:.1}" y1="{bottom:.1}" x2="{x:.1}" y2="{end:.1}"/>"#
            ));
            self.svg.push(format_args!(
                r#"<text class="tick mid" x="{x:.1}" y="{below:.1}">{text}</text>"#
            ));
        }
        let (x, y) = ((LEFT + right) / 2.0, bottom + 33.0);
        let day = units::timestamp(span.from_us);
        let day = day.split('T').next().unwrap_or_default();
        let bucket = self.bucket_us / 1_000_000;
        self.svg.push(format_args!(
            r#"<text class="tick mid" x="{x:.1}" y="{y:.1}">time of day, UTC, {day}; a column is {bucket} s</text>"#
        ));
    }
}

fn phase_title(phase: &PhaseSpan) -> String {
    let took =
        units::micros(phase.span.to_us.saturating_sub(phase.span.from_us).max(0).cast_unsigned());
    let mut told =
        format!("{} from {}: {took}", phase.phase.as_str(), units::time_of_day(phase.span.from_us));
    if phase.is_open {
        told.push_str(", its end was not recorded");
    }
    if let Some(buffers) = phase.buffers {
        told.push_str(&format!(", {buffers} buffers"));
    }
    if let Some(files) = phase.files {
        told.push_str(&format!(", {files} files"));
    }
    told
}

/// Shades the write and sync phases.
fn shade_phases(svg: &mut Svg, window: &RecordingWindow, x: Axis, top: f64, bottom: f64) {
    for phase in &window.phases {
        if !matches!(phase.phase, CheckpointPhase::Write | CheckpointPhase::Sync) {
            continue;
        }
        let (from, to) = (
            x.position(phase.span.from_us as f64 / 1e6),
            x.position(phase.span.to_us as f64 / 1e6),
        );
        let (class, width, height) = (phase.phase.as_str(), (to - from).max(1.0), bottom - top);
        svg.push(format_args!(
            r#"<rect class="shade {class}" x="{from:.1}" y="{top:.1}" width="{width:.1}" height="{height:.1}"/>"#
        ));
    }
}

fn threshold_flags(svg: &mut Svg, window: &RecordingWindow, x: Axis, bottom: f64) {
    for fired in &window.crossings {
        let (at, title) = (x.position(fired.at_us as f64 / 1e6), escaped(&fired.to_string()));
        let (left, right, tip) = (at - 5.0, at + 5.0, TOP - 36.0);
        let top = TOP - 27.0;
        svg.push(format_args!(
            r#"<line class="trigger" x1="{at:.1}" y1="{top}" x2="{at:.1}" y2="{bottom:.1}"/>"#
        ));
        svg.push(format_args!(
            r#"<path class="flag" d="M{left:.1} {tip}H{right:.1}L{at:.1} {top}Z"><title>{} {title}</title></path>"#,
            units::time_of_day(fired.at_us)
        ));
    }
}

/// Draws an invisible column per bucket, with the bucket's figures as its tooltip.
fn hover_columns(
    svg: &mut Svg,
    window: &RecordingWindow,
    buckets: &[TimeBucket],
    x: Axis,
    bucket_us: i64,
    (top, bottom): (f64, f64),
) {
    let height = bottom - top;
    for bucket in buckets {
        let from = x.position(bucket.at_us as f64 / 1e6);
        let width = (x.position((bucket.at_us + bucket_us) as f64 / 1e6) - from).max(0.5);
        let title = escaped(&lanes::bucket_title(window, bucket));
        svg.push(format_args!(
            r#"<rect class="hover" x="{from:.1}" y="{top:.1}" width="{width:.1}" height="{height:.1}"><title>{title}</title></rect>"#
        ));
    }
}

/// The styles of the chart. Its colours also differ in lightness, so that colour-blind readers can
/// distinguish them.
pub(super) const CHART_STYLE: &str = "
svg { --ink: #1c2330; --soft: #647084; --grid: #e4e8ee; --page: #fff; --wait: #1463c4; --band: #a9c8ef; --sweep: #7a4fb5;
  --write: #f3c77a; --sync: #d9634f; --phase: #c9d2de; --trigger: #b3261e;
  --cpu: #5aa469; --io: #1463c4; --lock: #c0392b; --lwlock: #e39a2d; --ipc: #7a4fb5; --timeout: #8a94a6; --rest: #38a3a5; }
@media (prefers-color-scheme: dark) { svg { --ink: #e8ecf3; --soft: #97a3b6; --grid: #2c3442; --page: #161a21; --wait: #5aa2f5;
  --band: #2d4f7c; --sweep: #b392f0; --write: #8a6420; --sync: #b8452f; --phase: #3b4657; --trigger: #ff8a80;
  --cpu: #57a56b; --io: #4a90e2; --lock: #e5604d; --lwlock: #f0a848; --ipc: #a584e0; --timeout: #8f99aa; --rest: #4dbdc0; } }
text { font-family: system-ui, sans-serif; } .page { fill: var(--page); }
.lane { fill: var(--ink); font-size: 13px; font-weight: 600; } .tick { fill: var(--soft); font-size: 11px; }
.end { text-anchor: end; } .mid { text-anchor: middle; } .within { fill: var(--ink); font-size: 11px; pointer-events: none; }
.grid { stroke: var(--grid); } .base { stroke: var(--soft); }
.phase { fill: var(--phase); } .phase.write { fill: var(--write); } .phase.sync { fill: var(--sync); }
.untraced { fill: var(--grid); opacity: .55; }
.shade { opacity: .16; } .shade.write { fill: var(--write); opacity: .28; } .shade.sync { fill: var(--sync); }
.band { fill: var(--band); } .middle { fill: none; stroke: var(--wait); stroke-width: 1.8; stroke-linejoin: round; }
.range { stroke: var(--soft); opacity: .55; } .dot { fill: var(--wait); } .sweep { fill: none; stroke: var(--sweep); stroke-width: 1.8; }
.trigger { stroke: var(--trigger); stroke-dasharray: 3 3; pointer-events: none; } .flag { fill: var(--trigger); }
.hover { fill: var(--ink); opacity: 0; } .hover:hover { opacity: .1; }
.cpu { fill: var(--cpu); } .io { fill: var(--io); } .lock { fill: var(--lock); } .lwlock { fill: var(--lwlock); }
.ipc { fill: var(--ipc); } .timeout { fill: var(--timeout); } .rest { fill: var(--rest); }
.line { fill: none; stroke-width: 1.6; } .line.cpu { stroke: var(--cpu); fill: none; } .line.io { stroke: var(--io); fill: none; }
.line.lock { stroke: var(--lock); fill: none; } .line.lwlock { stroke: var(--lwlock); fill: none; }
.line.ipc { stroke: var(--ipc); fill: none; } .line.timeout { stroke: var(--timeout); fill: none; } .line.rest { stroke: var(--rest); fill: none; }
";
