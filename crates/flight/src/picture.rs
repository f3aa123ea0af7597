//! The picture: one clock from left to right, and everything that happened above each other.
//!
//! Lanes from top to bottom: checkpoints, their phases nested; waits to extend relations, on a logarithmic
//! scale; the clock sweep; what sessions wait for, stacked; who has nothing to do, apart; and exact calls, where
//! an episode has some. Phases that write and sync are shaded through all lanes. A column of the picture tells its
//! figures when the mouse rests on it.

mod lanes;
mod waits;

use howdah_chart::{Axis, Svg, escaped, time_ticks};
use howdah_probe::checkpoints::Phase;

use crate::{
    timeline::{PhaseSpan, Step, Timeline},
    units,
};

pub(crate) const WIDTH: f64 = 1200.0;
const LEFT: f64 = 84.0;
const RIGHT: f64 = 16.0;
/// Flags of triggers are above the first lane's name.
const TOP: f64 = 42.0;
const GAP: f64 = 30.0;
const PHASE_ROW: f64 = 17.0;
/// Columns that can be told apart.
const STEPS_MAX: i64 = 900;

/// A recording as a picture that stands alone, readable on light and on dark ground.
#[must_use]
pub fn picture(timeline: &Timeline) -> String {
    let span = timeline.span();
    let (steps, step_us) = timeline.steps(STEPS_MAX);
    let seconds = |at_us: i64| at_us as f64 / 1e6;
    let x = Axis::new((seconds(span.from_us), seconds(span.to_us)), (LEFT, WIDTH - RIGHT));
    let mut canvas = Canvas { svg: Svg::new(), x, step_us, y: TOP };
    let rows = 1 + timeline.phases.iter().map(|phase| phase.depth.min(4)).max().unwrap_or(0);
    canvas.checkpoints(timeline, rows);
    let first = canvas.y;
    canvas.extension(&steps);
    canvas.sweep(&steps);
    canvas.waits(&steps);
    canvas.idle(&steps);
    canvas.exact(timeline);
    let bottom = canvas.y - GAP + 6.0;
    let height = bottom + 40.0;
    canvas.clock(timeline, bottom);
    let lanes = canvas.svg.into_string();
    let mut svg = Svg::new();
    svg.put(format_args!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="What the server did">"#
    ));
    svg.put(format_args!("<style>{STYLE}</style>"));
    svg.put(format_args!(r#"<rect class="page" width="{WIDTH}" height="{height}"/>"#));
    shades(&mut svg, timeline, x, first - GAP / 2.0, bottom);
    svg.put(format_args!("{}", lanes.trim_end()));
    triggers(&mut svg, timeline, x, bottom);
    hover(&mut svg, timeline, &steps, x, step_us, (first - GAP / 2.0, bottom));
    svg.put(format_args!("</svg>"));
    svg.into_string()
}

/// What lanes are drawn on.
struct Canvas {
    svg: Svg,
    x: Axis,
    step_us: i64,
    /// Where the next lane begins.
    y: f64,
}

impl Canvas {
    fn at(&self, at_us: i64) -> f64 {
        self.x.at(at_us as f64 / 1e6)
    }

    /// From where to where a step is.
    fn column(&self, step: &Step) -> (f64, f64) {
        (self.at(step.at_us), self.at(step.at_us + self.step_us))
    }

    /// Begins a lane: its name above, its ticks on the left. Gives where values lie.
    fn lane(&mut self, name: &str, height: f64, ticks: &[(f64, String)]) -> (f64, f64) {
        let (top, bottom) = (self.y, self.y + height);
        let above = top - 7.0;
        self.svg.put(format_args!(
            r#"<text class="lane" x="{LEFT}" y="{above:.1}">{}</text>"#,
            escaped(name)
        ));
        let right = WIDTH - RIGHT;
        for (y, text) in ticks {
            let (beside, middle) = (LEFT - 8.0, y + 4.0);
            self.svg.put(format_args!(
                r#"<line class="grid" x1="{LEFT}" y1="{y:.1}" x2="{right}" y2="{y:.1}"/>"#
            ));
            self.svg.put(format_args!(
                r#"<text class="tick end" x="{beside}" y="{middle:.1}">{}</text>"#,
                escaped(text)
            ));
        }
        self.y = bottom + GAP;
        (top, bottom)
    }

    /// Says that there is nothing in a lane, and why.
    fn nothing(&mut self, name: &str, why: &str) {
        self.lane(name, 16.0, &[]);
        let y = self.y - GAP + 2.0;
        self.svg.put(format_args!(
            r#"<text class="tick" x="{LEFT}" y="{y:.1}">{}</text>"#,
            escaped(why)
        ));
    }

    fn checkpoints(&mut self, timeline: &Timeline, rows: u32) {
        if timeline.phases.is_empty() {
            self.nothing("checkpoints", "none while it was recorded");
            return;
        }
        let (top, _) = self.lane("checkpoints", f64::from(rows) * PHASE_ROW, &[]);
        for phase in &timeline.phases {
            self.phase(phase, top + f64::from(phase.depth.min(4)) * PHASE_ROW);
        }
    }

    fn phase(&mut self, phase: &PhaseSpan, y: f64) {
        let (from, to) = (self.at(phase.span.from_us), self.at(phase.span.to_us));
        let width = (to - from).max(1.5);
        let (class, height) = (phase.phase.as_str(), PHASE_ROW - 3.0);
        let title = escaped(&told(phase));
        self.svg.put(format_args!(
            r#"<rect class="phase {class}" x="{from:.1}" y="{y:.1}" width="{width:.1}" height="{height}" rx="2"><title>{title}</title></rect>"#
        ));
        // A letter is some seven wide.
        if width > 7.0 * class.len() as f64 + 8.0 {
            let (x, y) = (from + 4.0, y + height - 3.5);
            self.svg
                .put(format_args!(r#"<text class="within" x="{x:.1}" y="{y:.1}">{class}</text>"#));
        }
    }

    /// The clock below all lanes.
    fn clock(&mut self, timeline: &Timeline, bottom: f64) {
        let span = timeline.span();
        let right = WIDTH - RIGHT;
        self.svg.put(format_args!(
            r#"<line class="base" x1="{LEFT}" y1="{bottom:.1}" x2="{right}" y2="{bottom:.1}"/>"#
        ));
        for seconds in time_ticks(span.from_us as f64 / 1e6, span.to_us as f64 / 1e6) {
            let (x, below) = (self.x.at(seconds), bottom + 16.0);
            let (end, text) = (bottom + 4.0, units::time_of_day((seconds * 1e6) as i64));
            self.svg.put(format_args!(
                r#"<line class="base" x1="{x:.1}" y1="{bottom:.1}" x2="{x:.1}" y2="{end:.1}"/>"#
            ));
            self.svg.put(format_args!(
                r#"<text class="tick mid" x="{x:.1}" y="{below:.1}">{text}</text>"#
            ));
        }
        let (x, y) = ((LEFT + right) / 2.0, bottom + 33.0);
        let day = units::moment(span.from_us);
        let day = day.split('T').next().unwrap_or_default();
        let step = self.step_us / 1_000_000;
        self.svg.put(format_args!(
            r#"<text class="tick mid" x="{x:.1}" y="{y:.1}">time of day, UTC, {day}; a column is {step} s</text>"#
        ));
    }
}

fn told(phase: &PhaseSpan) -> String {
    let took =
        units::micros(phase.span.to_us.saturating_sub(phase.span.from_us).max(0).cast_unsigned());
    let mut told =
        format!("{} from {}: {took}", phase.phase.as_str(), units::time_of_day(phase.span.from_us));
    if phase.is_open {
        told.push_str(", its end was not seen");
    }
    if let Some(buffers) = phase.buffers {
        told.push_str(&format!(", {buffers} buffers"));
    }
    if let Some(files) = phase.files {
        told.push_str(&format!(", {files} files"));
    }
    told
}

/// Where buffers were written and files synced.
fn shades(svg: &mut Svg, timeline: &Timeline, x: Axis, top: f64, bottom: f64) {
    for phase in &timeline.phases {
        if !matches!(phase.phase, Phase::Write | Phase::Sync) {
            continue;
        }
        let (from, to) =
            (x.at(phase.span.from_us as f64 / 1e6), x.at(phase.span.to_us as f64 / 1e6));
        let (class, width, height) = (phase.phase.as_str(), (to - from).max(1.0), bottom - top);
        svg.put(format_args!(
            r#"<rect class="shade {class}" x="{from:.1}" y="{top:.1}" width="{width:.1}" height="{height:.1}"/>"#
        ));
    }
}

fn triggers(svg: &mut Svg, timeline: &Timeline, x: Axis, bottom: f64) {
    for fired in &timeline.fired {
        let (at, title) = (x.at(fired.at_us as f64 / 1e6), escaped(&fired.to_string()));
        let (left, right, tip) = (at - 5.0, at + 5.0, TOP - 36.0);
        let top = TOP - 27.0;
        svg.put(format_args!(
            r#"<line class="trigger" x1="{at:.1}" y1="{top}" x2="{at:.1}" y2="{bottom:.1}"/>"#
        ));
        svg.put(format_args!(
            r#"<path class="flag" d="M{left:.1} {tip}H{right:.1}L{at:.1} {top}Z"><title>{} {title}</title></path>"#,
            units::time_of_day(fired.at_us)
        ));
    }
}

/// A column over all lanes that tells the figures of a step.
fn hover(
    svg: &mut Svg,
    timeline: &Timeline,
    steps: &[Step],
    x: Axis,
    step_us: i64,
    (top, bottom): (f64, f64),
) {
    let height = bottom - top;
    for step in steps {
        let from = x.at(step.at_us as f64 / 1e6);
        let width = (x.at((step.at_us + step_us) as f64 / 1e6) - from).max(0.5);
        let title = escaped(&lanes::told(timeline, step));
        svg.put(format_args!(
            r#"<rect class="hover" x="{from:.1}" y="{top:.1}" width="{width:.1}" height="{height:.1}"><title>{title}</title></rect>"#
        ));
    }
}

/// Colours are told apart by those who see few: they differ in lightness, too.
const STYLE: &str = "
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
