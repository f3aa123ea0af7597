//! Draws a profile of stacks as a flame graph: a self-contained SVG without scripts.
//!
//! A box is a function that was called from the box below it, as wide as the time in it. Boxes next
//! to each other are sorted by name, so that graphs of different profiles can be compared; the
//! horizontal axis is not time. Hovering over a box shows its figures.

use std::{collections::BTreeMap, time::Duration};

use howdah_probe::stacks::profile::{StackProfile, StackWeight};

use crate::chart::{Svg, escaped};

const WIDTH: f64 = 1200.0;
const MARGIN: f64 = 10.0;
/// Space for the title and the remark.
const TOP: f64 = 56.0;
const ROW: f64 = 17.0;
/// Width of a character of the font, in pixels.
const CHAR: f64 = 6.7;
/// Narrower boxes are not drawn, in pixels.
const BOX_MIN: f64 = 0.4;
/// Narrower boxes have no text, in pixels.
const TEXT_MIN: f64 = 24.0;

const STYLE: &str = "\
    text{font:12px ui-monospace,Menlo,Consolas,monospace;fill:#1c1c1c}\
    .title{font:600 16px system-ui,sans-serif}.remark{font:12px system-ui,sans-serif;fill:#555}\
    rect{stroke:#fff;stroke-width:.5}rect.page{fill:#fff;stroke:none}\
    g:hover>rect{stroke:#000;stroke-width:1}";

/// A function with its callers, and the functions called from it.
#[derive(Debug, Default)]
struct FlameFrame<'p> {
    weight: StackWeight,
    callees: BTreeMap<&'p str, FlameFrame<'p>>,
}

impl<'p> FlameFrame<'p> {
    fn add(&mut self, stack: &'p str, weight: StackWeight) {
        self.weight.count += weight.count;
        self.weight.time += weight.time;
        let mut frame = self;
        for name in stack.split(';') {
            frame = frame.callees.entry(name).or_default();
            frame.weight.count += weight.count;
            frame.weight.time += weight.time;
        }
    }

    /// Returns the number of rows of boxes above this one.
    fn depth(&self) -> usize {
        self.callees.values().map(|callee| 1 + callee.depth()).max().unwrap_or(0)
    }
}

/// Draws a flame graph. `title` says what was measured; `unit` is what is counted, such as
/// `samples`.
pub fn flame_graph(profile: &StackProfile, title: &str, unit: &str) -> String {
    let mut root = FlameFrame::default();
    profile.stacks.iter().for_each(|(stack, weight)| root.add(stack, *weight));
    let height = TOP + ROW * (root.depth() + 1) as f64 + MARGIN;
    let mut svg = Svg::new();
    svg.push(format_args!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="Flame graph">"#
    ));
    svg.push(format_args!("<style>{STYLE}</style>"));
    svg.push(format_args!(r#"<rect class="page" width="{WIDTH}" height="{height}"/>"#));
    let title = escaped(title);
    svg.push(format_args!(r#"<text class="title" x="{MARGIN}" y="24">{title}</text>"#));
    let remark = if profile.stacks.is_empty() {
        "nothing was recorded"
    } else {
        "a box is a function, called from the one below it; its width is its share of the time"
    };
    svg.push(format_args!(r#"<text class="remark" x="{MARGIN}" y="43">{remark}</text>"#));
    let mut drawing = Drawing { svg, total: root.weight.time, unit, bottom: height - MARGIN };
    drawing.frame("all", &root, 0, MARGIN);
    let mut svg = drawing.svg;
    svg.push(format_args!("</svg>"));
    svg.into_string()
}

struct Drawing<'t> {
    svg: Svg,
    total: Duration,
    unit: &'t str,
    bottom: f64,
}

impl Drawing<'_> {
    /// Draws a box whose left edge is at `x`, and all boxes above it.
    fn frame(&mut self, name: &str, frame: &FlameFrame<'_>, depth: usize, x: f64) {
        let share = frame.weight.time.as_secs_f64() / self.total.as_secs_f64().max(1e-12);
        let width = share * (WIDTH - 2.0 * MARGIN);
        if width < BOX_MIN {
            return;
        }
        let y = self.bottom - ROW * (depth + 1) as f64;
        let StackWeight { count, time } = frame.weight;
        let (percent, seconds, unit) = (100.0 * share, time.as_secs_f64(), self.unit);
        let text = escaped(name);
        self.svg.push(format_args!(
            "<g><title>{text}: {percent:.2} %, {seconds:.3} s, {count} {unit}</title>"
        ));
        let fill = colour(name);
        self.svg.push(format_args!(
            r#"<rect x="{x:.2}" y="{y:.1}" width="{width:.2}" height="{ROW}" fill="{fill}"/>"#
        ));
        if width >= TEXT_MIN {
            let (x, y) = (x + 3.0, y + 12.5);
            let text = escaped(&shortened(name, ((width - 6.0) / CHAR) as usize));
            self.svg.push(format_args!(r#"<text x="{x:.2}" y="{y:.1}">{text}</text>"#));
        }
        self.svg.push(format_args!("</g>"));
        let mut left = x;
        for (name, callee) in &frame.callees {
            self.frame(name, callee, depth + 1, left);
            let share = callee.weight.time.as_secs_f64() / self.total.as_secs_f64().max(1e-12);
            left += share * (WIDTH - 2.0 * MARGIN);
        }
    }
}

/// Returns the text, or its beginning with an ellipsis if it has more characters than fit.
pub(super) fn shortened(text: &str, chars: usize) -> String {
    if text.chars().count() <= chars {
        return text.to_owned();
    }
    let start: String = text.chars().take(chars.saturating_sub(1)).collect();
    format!("{start}…")
}

/// Returns a warm colour that depends on the name only; grey for other boxes.
fn colour(name: &str) -> String {
    if name.starts_with('[') || name == "all" {
        return "#d0d0d0".to_owned();
    }
    // FNV-1a, so that a function has the same colour in every graph.
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let (hue, light) = (10 + hash % 40, 62 + (hash >> 16) % 14);
    format!("hsl({hue} 90% {light}%)")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(stacks: &[(&str, u64)]) -> StackProfile {
        let weight = |ms| StackWeight { count: ms, time: Duration::from_millis(ms) };
        StackProfile {
            stacks: stacks.iter().map(|&(stack, ms)| (stack.into(), weight(ms))).collect(),
            ..StackProfile::default()
        }
    }

    #[test]
    fn boxes_are_as_wide_as_their_share() {
        let profile = profile(&[("client backend;main;<f>", 750), ("client backend;main;g", 250)]);
        let svg = flame_graph(&profile, "CPU time & more", "samples");
        assert!(svg.contains("CPU time &amp; more"));
        assert!(svg.contains("<title>main: 100.00 %, 1.000 s, 1000 samples</title>"), "{svg}");
        assert!(svg.contains("<title>&lt;f&gt;: 75.00 %, 0.750 s, 750 samples</title>"), "{svg}");
        assert!(svg.contains(r#"width="885.00""#), "{svg}");
        assert!(!svg.contains("<script"));
    }

    #[test]
    fn empty_profile_says_so() {
        let svg = flame_graph(&StackProfile::default(), "CPU time", "samples");
        assert!(svg.contains("nothing was recorded") && svg.trim_end().ends_with("</svg>"));
    }

    #[test]
    fn long_names_are_shortened() {
        assert_eq!(shortened("ExecProcNode", 12), "ExecProcNode");
        assert_eq!(shortened("ExecProcNode", 5), "Exec…");
    }
}
