//! Chart of average active sessions over time, stacked by wait event class.

use howdah_collect::BackendWait;
use ratatui::{
    Frame,
    layout::Rect,
    text::{Line, Span},
    widgets::Paragraph,
};

use super::{
    Theme,
    theme::{WAIT_CLASSES, WaitClass},
};
use crate::{units::format_duration, waits::WaitHistory};

/// Width of the axis labels, in terminal columns.
const AXIS_WIDTH: u16 = 7;

/// Average number of sessions per wait event class, in the order of [`WAIT_CLASSES`].
type ClassStack = [f64; WAIT_CLASSES.len()];

/// Possible lengths of the period that one column covers, in seconds.
const STEPS: [i64; 8] = [1, 2, 5, 10, 15, 30, 60, 120];

/// Draws title, bars and legend. `now_us` is the displayed time.
pub(super) fn draw(
    frame: &mut Frame<'_>,
    area: Rect,
    waits: &WaitHistory,
    now_us: i64,
    theme: &Theme,
) {
    let height = usize::from(area.height.saturating_sub(2));
    let width = usize::from(area.width.saturating_sub(AXIS_WIDTH));
    let chart = Chart::new(waits, width);
    let mut lines = vec![title(&chart, waits, now_us, theme)];
    for row in (0..height).rev() {
        lines.push(chart.line(row, height, theme));
    }
    lines.push(chart.legend(theme));
    frame.render_widget(Paragraph::new(lines), area);
}

fn title(chart: &Chart, waits: &WaitHistory, now_us: i64, theme: &Theme) -> Line<'static> {
    #[expect(clippy::cast_precision_loss, reason = "an hour of seconds")]
    let seconds = |seconds: i64| format_duration(seconds as f64);
    let storm = if waits.is_in_storm(now_us) { "  STORM: ten samples a second" } else { "" };
    let text = format!(
        "average active sessions, the last {}, {} a column{storm}",
        seconds(chart.step * i64::try_from(chart.columns.len()).unwrap_or(0)),
        seconds(chart.step),
    );
    Line::styled(text, theme.strong)
}

/// The chart's data and scale.
#[derive(Debug)]
struct Chart {
    /// One column per step, from oldest to latest; `None` where nothing was sampled.
    columns: Vec<Option<ClassStack>>,
    /// Length of the period that one column covers, in seconds.
    step: i64,
    /// Number of sessions at the top of the chart.
    max: f64,
}

impl Chart {
    fn new(waits: &WaitHistory, width: usize) -> Self {
        let first = waits.seconds().next().map_or(0, |second| second.second);
        let last = waits.seconds().next_back().map_or(0, |second| second.second);
        let fits = |step: &&i64| {
            let columns = last.div_euclid(**step) - first.div_euclid(**step) + 1;
            usize::try_from(columns).is_ok_and(|columns| columns <= width)
        };
        let step = STEPS.iter().find(fits).copied().unwrap_or(STEPS[STEPS.len() - 1]);
        // Columns start at multiples of their step, so that they do not change as time passes.
        let end = last.div_euclid(step);
        let mut sums: Vec<(ClassStack, u32)> = vec![(ClassStack::default(), 0); width];
        for second in waits.seconds() {
            let ago = usize::try_from(end - second.second.div_euclid(step)).unwrap_or(usize::MAX);
            let Some((stack, count)) = width.checked_sub(ago + 1).and_then(|at| sums.get_mut(at))
            else {
                continue;
            };
            *count += 1;
            for (wait, mean) in second.means() {
                stack[WaitClass::index(wait.map(|wait: &BackendWait| &*wait.class))] += mean;
            }
        }
        let mean = |(stack, count): (ClassStack, u32)| {
            (count > 0).then(|| stack.map(|sum| sum / f64::from(count)))
        };
        let columns: Vec<Option<ClassStack>> = sums.into_iter().map(mean).collect();
        let totals = columns.iter().flatten().map(|stack| stack.iter().sum::<f64>());
        Self { max: round_up(totals.fold(0.0, f64::max)), columns, step }
    }

    /// Returns one line of the chart; row 0 is the lowest.
    fn line(&self, row: usize, height: usize, theme: &Theme) -> Line<'static> {
        #[expect(clippy::cast_precision_loss, reason = "lines of a terminal")]
        let (row_f, height_f) = (row as f64, height.max(1) as f64);
        let is_labelled = row + 1 == height || row == height / 2 || row == 0;
        let value = self.max * (row_f + 1.0) / height_f;
        let label = if is_labelled { format!("{value:>6.1}") } else { " ".repeat(6) };
        let mut spans = vec![Span::styled(format!("{label}│"), theme.faint)];
        let middle = self.max * (row_f + 0.5) / height_f;
        for stack in &self.columns {
            spans.push(match stack.as_ref().and_then(|stack| class_at(stack, middle, row)) {
                Some(class) => Span::styled(class.letter.to_string(), theme.wait(class)),
                None => Span::raw(" "),
            });
        }
        Line::from(spans)
    }

    /// Returns the line that explains the symbols of the classes in the chart, with their means.
    fn legend(&self, theme: &Theme) -> Line<'static> {
        let sampled = self.columns.iter().flatten().count().max(1);
        let mut spans = vec![Span::raw(" ".repeat(usize::from(AXIS_WIDTH)))];
        for (at, class) in WAIT_CLASSES.iter().enumerate() {
            let sum: f64 = self.columns.iter().flatten().map(|stack| stack[at]).sum();
            if sum > 0.0 {
                #[expect(clippy::cast_precision_loss, reason = "columns of a terminal")]
                let mean = sum / sampled as f64;
                spans.push(Span::styled(class.letter.to_string(), theme.wait(class)));
                spans.push(Span::raw(format!(" {} {mean:.1}  ", class.name)));
            }
        }
        Line::from(spans)
    }
}

/// Returns the class that a stack has at `height`, in sessions; `None` above the stack. In the
/// lowest row, a stack below `height` shows its largest class.
fn class_at(stack: &ClassStack, height: f64, row: usize) -> Option<&'static WaitClass> {
    let mut top = 0.0;
    for (at, sessions) in stack.iter().enumerate() {
        top += sessions;
        if top > height {
            return Some(&WAIT_CLASSES[at]);
        }
    }
    let most = || {
        let largest = stack.iter().enumerate().max_by(|one, other| one.1.total_cmp(other.1))?;
        (*largest.1 > 0.0).then_some(&WAIT_CLASSES[largest.0])
    };
    if row == 0 { most() } else { None }
}

/// Rounds up to 1, 2 or 5 times a power of ten, at least 1, so that the axis has simple labels.
fn round_up(value: f64) -> f64 {
    let mut unit = 1.0;
    while unit < 1e9 {
        for step in [1.0, 2.0, 5.0] {
            if value <= step * unit {
                return step * unit;
            }
        }
        unit *= 10.0;
    }
    value
}

#[cfg(test)]
mod tests {
    use howdah_collect::{WaitCount, WaitCounts};
    use ratatui::{Terminal, backend::TestBackend};

    use super::*;
    use crate::screen::Palette;

    fn history(seconds: i64) -> WaitHistory {
        let mut waits = WaitHistory::default();
        let of = |class: &str, sessions| WaitCount {
            wait: Some(BackendWait { class: class.into(), event: "x".into() }),
            sessions,
        };
        for second in (0..seconds).filter(|second| !(20..25).contains(second)) {
            let locked = if second > 30 { 12 } else { 0 };
            let counts = [
                WaitCount { wait: None, sessions: 2 },
                of("IO", u32::try_from(second % 4).unwrap_or(0)),
                of("Lock", locked),
            ];
            waits.add((1_000_000 + second) * 1_000_000, &WaitCounts::new(counts));
        }
        waits
    }

    fn drawn(waits: &WaitHistory, palette: Palette, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        let theme = Theme::new(palette);
        let now_us = 1_000_059 * 1_000_000;
        terminal.draw(|frame| draw(frame, frame.area(), waits, now_us, &theme)).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn bars_are_stacked_and_gaps_stay_empty() {
        insta::assert_snapshot!(drawn(&history(60), Palette::Mono, 70, 12));
    }

    #[test]
    fn letters_are_shown_with_colours_too() {
        let waits = history(60);
        assert_eq!(drawn(&waits, Palette::Dark, 70, 12), drawn(&waits, Palette::Mono, 70, 12));
    }

    #[test]
    fn hour_fits_any_width_and_empty_history_draws() {
        let waits = history(3600);
        for width in [0, 1, 7, 8, 40, 300] {
            for height in [0, 1, 2, 3, 50] {
                let chart = Chart::new(&waits, usize::from(width));
                assert_eq!(chart.columns.len(), usize::from(width));
                if width > 0 && height > 0 {
                    drawn(&waits, Palette::Dark, width, height);
                    drawn(&WaitHistory::default(), Palette::Dark, width, height);
                }
            }
        }
        assert_eq!(Chart::new(&waits, 60).step, 120);
        assert!((Chart::new(&waits, 60).max - 20.0).abs() < 1e-9);
        assert!((round_up(0.0) - 1.0).abs() < 1e-9);
    }
}
