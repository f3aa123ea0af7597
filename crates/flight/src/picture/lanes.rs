//! Lanes of extension waits, the sweep and exact calls, and what a column tells.

use std::{collections::BTreeMap, fmt::Write as _, time::Duration};

use howdah_chart::{Axis, decade_ticks, escaped, ticks};
use howdah_probe::{recorder::Exact, waits::Group};

use super::{Canvas, GAP, RIGHT, WIDTH};
use crate::{
    timeline::{Step, Timeline},
    units,
};

const EXTENSION: &str = "waits to extend relations: median to 99th percentile, line to the longest";

const EXTENSION_HEIGHT: f64 = 130.0;

impl Canvas {
    /// Median and 99th percentile as a band, the 99th as a line, the longest as a stroke above.
    pub(super) fn extension(&mut self, steps: &[Step]) {
        let waits = |step: &'_ Step| {
            step.extension
                .as_ref()
                .map(|extension| extension.waits.clone())
                .filter(|waits| waits.count() > 0)
        };
        let seen: Vec<_> = steps.iter().filter_map(|step| Some((step, waits(step)?))).collect();
        let s = |duration: Duration| duration.as_secs_f64().max(1e-7);
        let Some(most) = seen.iter().map(|(_, waits)| s(waits.max())).reduce(f64::max) else {
            let is_traced = steps.iter().any(|step| step.extension.is_some());
            let why =
                if is_traced { "none" } else { "not traced: see Lock:extend among the waits" };
            self.nothing(EXTENSION, why);
            return;
        };
        let least = seen.iter().map(|(_, waits)| s(waits.quantile(0.5))).fold(most, f64::min);
        let decades = decade_ticks(least, most);
        let (from, to) = (decades[0].log10(), decades[decades.len() - 1].log10());
        let y = Axis::new((from, to), (self.y + EXTENSION_HEIGHT, self.y));
        let named = |s: &f64| (y.at(s.log10()), units::decade(*s));
        self.lane(EXTENSION, EXTENSION_HEIGHT, &decades.iter().map(named).collect::<Vec<_>>());
        self.untraced(steps);
        let mut line: Vec<(f64, f64)> = Vec::new();
        for (step, waits) in &seen {
            let (left, right) = self.column(step);
            let [p50, p99, max] = [waits.quantile(0.5), waits.quantile(0.99), waits.max()]
                .map(|duration| y.at(s(duration).log10()));
            let (middle, width) = (f64::midpoint(left, right), (right - left).max(1.0));
            self.svg.put(format_args!(
                r#"<rect class="band" x="{left:.1}" y="{p99:.1}" width="{width:.1}" height="{:.1}"/>"#,
                (p50 - p99).max(1.0)
            ));
            self.svg.put(format_args!(
                r#"<line class="range" x1="{middle:.1}" y1="{max:.1}" x2="{middle:.1}" y2="{p99:.1}"/>"#
            ));
            line.push((middle, p99));
        }
        self.line("middle", &line);
    }

    /// Where extension locks were left alone: nothing there is not the same as none there.
    fn untraced(&mut self, steps: &[Step]) {
        let (top, height) = (self.y - GAP - EXTENSION_HEIGHT, EXTENSION_HEIGHT);
        let away = |step: &Step| step.extension.is_none();
        for run in steps.chunk_by(|one, other| away(one) == away(other)).filter(|run| away(&run[0]))
        {
            let (from, to) = (self.column(&run[0]).0, self.column(&run[run.len() - 1]).1);
            let (width, middle, y) = (to - from, f64::midpoint(from, to), top + height / 2.0);
            self.svg.put(format_args!(
                r#"<rect class="untraced" x="{from:.1}" y="{top:.1}" width="{width:.1}" height="{height}"/>"#
            ));
            if width > 70.0 {
                self.svg.put(format_args!(
                    r#"<text class="tick mid" x="{middle:.1}" y="{y:.1}">not traced</text>"#
                ));
            }
        }
    }

    /// Buffers looked at for one handed out.
    pub(super) fn sweep(&mut self, steps: &[Step]) {
        const NAME: &str = "clock sweep: buffers looked at for one handed out";
        // Of a few, the one that was counted away with the rest may be most.
        let enough = |step: &&Step| step.sweep.is_some_and(|sweep| sweep.allocations >= 10);
        let each = |step: &Step| Some((self.column(step), step.examined_each()?));
        let seen: Vec<_> = steps.iter().filter(enough).filter_map(each).collect();
        let most = seen.iter().map(|(_, each)| *each).fold(0.0, f64::max);
        if seen.is_empty() || most == 0.0 {
            let why = match seen.is_empty() {
                true => "hardly a buffer was handed out",
                false => "free buffers were left: nothing was swept",
            };
            self.nothing(NAME, why);
            return;
        }
        let y = Axis::new((0.0, most * 1.05), (self.y + 70.0, self.y));
        let named: Vec<_> = ticks(most * 1.05, 3.0)
            .into_iter()
            .map(|each| (y.at(each), format!("{each}")))
            .collect();
        self.lane(NAME, 70.0, &named);
        let line: Vec<_> = seen
            .iter()
            .map(|((from, to), each)| (f64::midpoint(*from, *to), y.at(*each)))
            .collect();
        self.line("sweep", &line);
    }

    /// 99th percentiles of exact calls, an operation a line.
    pub(super) fn exact(&mut self, timeline: &Timeline) {
        const NAME: &str = "exact calls while triggers held: 99th percentile";
        let mut operations: BTreeMap<String, Vec<&Exact>> = BTreeMap::new();
        for exact in timeline.exact.iter().filter(|exact| exact.calls.count() > 0) {
            operations
                .entry(format!("{} {}", exact.figure, exact.operation))
                .or_default()
                .push(exact);
        }
        if operations.is_empty() {
            return;
        }
        let p99 = |exact: &Exact| exact.calls.quantile(0.99).as_secs_f64().max(1e-7);
        let all = || operations.values().flatten().map(|exact| p99(exact));
        let decades = decade_ticks(all().fold(1.0, f64::min), all().fold(1e-6, f64::max));
        let (from, to) = (decades[0].log10(), decades[decades.len() - 1].log10());
        let y = Axis::new((from, to), (self.y + 80.0, self.y));
        let named = |s: &f64| (y.at(s.log10()), units::decade(*s));
        let (top, _) = self.lane(NAME, 80.0, &decades.iter().map(named).collect::<Vec<_>>());
        const CLASSES: [&str; 7] = ["io", "lock", "lwlock", "ipc", "cpu", "rest", "timeout"];
        let mut names = Vec::new();
        for ((name, calls), class) in operations.iter().zip(CLASSES.iter().cycle()) {
            names.push((*class, name.as_str()));
            let mut line: Vec<(f64, f64)> = Vec::new();
            for exact in calls {
                let x = self.at(exact.at_us.saturating_add(500_000));
                line.push((x, y.at(p99(exact).log10())));
            }
            self.line(&format!("line {class}"), &line);
        }
        self.legend(&names, top - 7.0);
    }

    /// A line, broken where there is nothing for more than two columns.
    pub(super) fn line(&mut self, class: &str, points: &[(f64, f64)]) {
        let column = self.x.length(self.step_us as f64 / 1e6 * 2.5);
        let (mut path, mut last) = (String::new(), f64::NEG_INFINITY);
        for (place, (x, y)) in points.iter().enumerate() {
            let is_apart = x - last > column.max(2.0);
            let is_alone = points.get(place + 1).is_none_or(|(next, _)| next - x > column.max(2.0));
            if is_apart && is_alone {
                self.svg.put(format_args!(
                    r#"<circle class="{class}" cx="{x:.1}" cy="{y:.1}" r="1.2"/>"#
                ));
            }
            // Writing to a String cannot fail.
            let _ = write!(path, "{}{x:.1} {y:.1}", if is_apart { 'M' } else { 'L' });
            last = *x;
        }
        self.svg.put(format_args!(r#"<path class="{class}" d="{path}"/>"#));
    }

    /// Names with their colours, from the right.
    pub(super) fn legend(&mut self, names: &[(&str, &str)], y: f64) {
        let mut x = WIDTH - RIGHT;
        for (class, name) in names.iter().rev() {
            self.svg.put(format_args!(
                r#"<text class="tick end" x="{x:.1}" y="{y:.1}">{}</text>"#,
                escaped(name)
            ));
            x -= 6.8 * name.chars().count() as f64 + 14.0;
            let top = y - 9.0;
            self.svg.put(format_args!(
                r#"<rect class="{class}" x="{x:.1}" y="{top:.1}" width="10" height="10" rx="2"/>"#
            ));
            x -= 12.0;
        }
    }
}

/// The figures of a step, a line each.
pub(super) fn told(timeline: &Timeline, step: &Step) -> String {
    let mut told = units::time_of_day(step.at_us);
    if let Some(extension) = step.extension.as_ref().filter(|extension| extension.waits.count() > 0)
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
                timeline.name(of),
                units::micros(of.total_us),
                of.waits
            );
        }
    }
    if let (Some(sweep), Some(each)) = (&step.sweep, step.examined_each()) {
        let _ = write!(
            told,
            "\nsweep: {each:.1} looked at for each of {} handed out",
            sweep.allocations
        );
    }
    let mut events: Vec<_> =
        step.waits.iter().filter(|((group, ..), _)| *group == Group::Database).collect();
    events.sort_by(|(_, one), (_, other)| other.total_cmp(one));
    for ((_, _, event), seconds) in events.into_iter().take(6) {
        let _ = write!(told, "\n{event}: {:.2} sessions", seconds / step.seconds().max(1e-9));
    }
    told
}
