//! Figures of the header: a label and a number that stands out, and which of them fit a line.

use ratatui::text::{Line, Span};

use super::Theme;

/// A number in the header, with its label and its urgency.
#[derive(Clone, Debug)]
pub(super) struct HeaderFigure {
    label: &'static str,
    value: String,
    /// Display priority if space is scarce: lower ranks first, equal ranks from left to right.
    rank: u8,
    level: FigureLevel,
}

/// How much a figure needs attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum FigureLevel {
    Normal,
    Warn,
    Bad,
}

impl HeaderFigure {
    pub(super) fn new(label: &'static str, value: String) -> Self {
        Self { label, value, rank: 1, level: FigureLevel::Normal }
    }

    /// Sets the rank, which is 1 by default.
    pub(super) fn ranked(self, rank: u8) -> Self {
        Self { rank, ..self }
    }

    /// Draws attention to the figure, and shows it before all others.
    pub(super) fn warn_if(self, needs_attention: bool) -> Self {
        if needs_attention { self.with_level(FigureLevel::Warn) } else { self }
    }

    /// Draws attention to the figure if at least three quarters, or nine tenths, of a limit are
    /// used. A limit of less than four can be used up at any time.
    pub(super) fn level_of_share(self, used: i64, limit: i64) -> Self {
        match limit {
            4.. if used.saturating_mul(10) >= limit.saturating_mul(9) => {
                self.with_level(FigureLevel::Bad)
            }
            4.. if used.saturating_mul(4) >= limit.saturating_mul(3) => {
                self.with_level(FigureLevel::Warn)
            }
            _ => self,
        }
    }

    fn with_level(self, level: FigureLevel) -> Self {
        Self { level: self.level.max(level), ..self }
    }

    fn width(&self) -> usize {
        let gap = usize::from(!self.label.is_empty());
        self.label.len() + gap + Span::raw(self.value.as_str()).width()
    }

    /// Whether the value is zero or missing, and need not stand out.
    fn is_nothing(&self) -> bool {
        matches!(self.value.as_str(), "0" | "0/s" | "0B/s" | "-" | "-/s" | "n/a" | "0.0%")
            || self.value.starts_with("0/")
    }
}

/// Returns a line with the figures that fit completely, in order: those that need attention first,
/// then those of the lowest ranks. A truncated figure could be misread. If not even the first one
/// fits, it is truncated by the terminal.
pub(super) fn line(figures: Vec<HeaderFigure>, theme: &Theme, width: u16) -> Line<'static> {
    let mut ranked: Vec<usize> = (0..figures.len()).collect();
    ranked.sort_by_key(|&at| {
        let figure = &figures[at];
        (std::cmp::Reverse(figure.level), figure.rank, at)
    });
    let mut left = usize::from(width);
    let mut shown = vec![false; figures.len()];
    for (number, at) in ranked.into_iter().enumerate() {
        let needed = figures[at].width() + if number == 0 { 0 } else { 2 };
        if needed <= left || number == 0 {
            left = left.saturating_sub(needed);
            shown[at] = true;
        }
    }
    let mut spans: Vec<Span<'static>> = Vec::new();
    let shown = figures.into_iter().zip(shown).filter(|(_, is_shown)| *is_shown);
    for (figure, _) in shown {
        if !spans.is_empty() {
            spans.push(Span::raw("  "));
        }
        let style = match figure.level {
            FigureLevel::Bad => theme.bad,
            FigureLevel::Warn => theme.warn,
            FigureLevel::Normal if figure.is_nothing() => theme.faint,
            FigureLevel::Normal => theme.strong,
        };
        if !figure.label.is_empty() {
            spans.push(Span::raw(format!("{} ", figure.label)));
        }
        spans.push(Span::styled(figure.value, style));
    }
    Line::from(spans)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::screen::Palette;

    fn text(figures: &[HeaderFigure], width: u16) -> String {
        line(figures.to_vec(), &Theme::new(Palette::Dark), width).to_string()
    }

    #[test]
    fn figures_are_shown_by_level_and_rank() {
        let figure = |label, value: &str| HeaderFigure::new(label, value.to_owned());
        let figures = [
            figure("a", "1"),
            figure("b", "22").ranked(9),
            figure("c", "3").ranked(2),
            figure("d", "4").ranked(8).warn_if(true),
        ];
        assert_eq!(text(&figures, 40), "a 1  b 22  c 3  d 4");
        assert_eq!(text(&figures, 15), "a 1  c 3  d 4");
        assert_eq!(text(&figures, 8), "a 1  d 4");
        assert_eq!(text(&figures, 3), "d 4");
        assert_eq!(text(&[], 3), "");
    }

    #[test]
    fn used_up_limit_is_conspicuous() {
        let level =
            |used, limit| HeaderFigure::new("x", String::new()).level_of_share(used, limit).level;
        assert_eq!(level(74, 100), FigureLevel::Normal);
        assert_eq!(level(75, 100), FigureLevel::Warn);
        assert_eq!(level(90, 100), FigureLevel::Bad);
        assert_eq!(level(3, 3), FigureLevel::Normal);
    }

    #[test]
    fn numbers_stand_out_and_zeros_do_not() {
        let theme = Theme::new(Palette::Dark);
        let figures = ["12", "0", "0/s", "-"].map(|it| HeaderFigure::new("x", it.to_owned()));
        let line = line(figures.to_vec(), &theme, 80);
        let styles: Vec<_> = line.spans.iter().skip(1).step_by(3).map(|span| span.style).collect();
        assert_eq!(styles, [theme.strong, theme.faint, theme.faint, theme.faint]);
    }
}
