//! The picture of a model: a pure function of it and of the size of the terminal.

mod alerts;
mod chart;
mod header;
mod overlay;
mod past;
mod rows;
mod theme;

use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
    text::{Line, Span},
    widgets::Paragraph,
};

pub use self::theme::Palette;
pub(crate) use self::theme::Theme;
use crate::{
    Screen,
    model::{Model, Overlay},
};

/// Below that there is no room for a picture.
const SIZE_MIN: (u16, u16) = (40, 8);

/// Draws the model. The page it says how many rows fit.
pub(crate) fn draw(frame: &mut Frame<'_>, model: &mut Model, theme: &Theme) {
    let area = frame.area();
    if area.width < SIZE_MIN.0 || area.height < SIZE_MIN.1 {
        frame.render_widget(Paragraph::new("too small: at least 40×8"), area);
        return;
    }
    let header_lines = header::lines(model, theme, area.width);
    let header_height = u16::try_from(header_lines.len()).unwrap_or(4);
    let parts = Layout::vertical([
        Constraint::Length(header_height),
        Constraint::Min(2),
        Constraint::Length(1),
    ]);
    let [head, middle, foot] = parts.areas(area);
    frame.render_widget(Paragraph::new(header_lines), head);
    let rows = above_rows(frame, middle, model, theme);
    model.page = usize::from(rows.height.saturating_sub(1));
    model.geometry = rows::draw(frame, rows, model, theme);
    draw_foot(frame, foot, model, theme);
    let scroll_max = overlay::draw(frame, over(area), model, theme);
    model.scroll = model.scroll.min(scroll_max);
}

/// Draws the last line. While somebody types, the cursor is in the picture, whatever is left of it is not.
fn draw_foot(frame: &mut Frame<'_>, area: Rect, model: &Model, theme: &Theme) {
    let mut foot = Paragraph::new(footer(model, theme));
    if let Overlay::Prompt(prompt) = &model.overlay {
        let before = prompt.asked.label().chars().count() + 2;
        let typed = Span::raw(&prompt.text[..prompt.cursor]).width();
        let column = u16::try_from(before + typed).unwrap_or(u16::MAX);
        let hidden = column.saturating_sub(area.width - 1);
        foot = foot.scroll((0, hidden));
        frame.set_cursor_position((area.x + column - hidden, area.y));
    }
    frame.render_widget(foot, area);
}

/// Draws what stands above the rows of a screen, and gives the place that is left for them.
fn above_rows(frame: &mut Frame<'_>, area: Rect, model: &Model, theme: &Theme) -> Rect {
    let Some(snapshot) = model.snapshot().filter(|_| model.screen == Screen::Waits) else {
        return area;
    };
    if area.height < CHART_MIN + 3 {
        return area;
    }
    let chart_height = (area.height * 3 / 5).clamp(CHART_MIN, CHART_MAX);
    let parts = Layout::vertical([Constraint::Length(chart_height), Constraint::Min(3)]);
    let [chart, rows] = parts.areas(area);
    chart::draw(frame, chart, &snapshot.waits, snapshot.seen_us, theme);
    rows
}

/// Lines of a chart: with fewer it says nothing, with more it says no more.
const CHART_MIN: u16 = 6;
const CHART_MAX: u16 = 24;

/// Where pages lie: a little in from the sides.
fn over(area: Rect) -> Rect {
    let (x, y) = (area.width / 12, area.height / 8);
    Rect { x, y, width: area.width - 2 * x, height: area.height - 2 * y }
}

fn footer<'a>(model: &'a Model, theme: &Theme) -> Line<'a> {
    if let Overlay::Prompt(prompt) = &model.overlay {
        let label = Span::styled(format!("{}: ", prompt.asked.label()), theme.strong);
        return Line::from(vec![label, Span::raw(&prompt.text)]);
    }
    if let Some(notice) = &model.notice {
        let style = if notice.is_bad { theme.bad } else { theme.strong };
        return Line::styled(notice.text.as_str(), style);
    }
    let mut words = vec![format!("{} ", model.screen.name())];
    let order = model.order.or(model.screen.order());
    words.extend(
        order.map(|order| format!("by {order}{} ", if model.is_ascending { " ↑" } else { " ↓" })),
    );
    if !model.filter.1.is_empty() {
        words.push(format!("where {} ", model.filter.1));
    }
    if !model.tagged.is_empty() {
        words.push(format!("{} tagged ", model.tagged.len()));
    }
    if model.is_paused {
        words.push("PAUSED ".to_owned());
    }
    if model.settings.is_read_only {
        words.push("read only ".to_owned());
    }
    words.push(" ?:help /:filter Tab:screens q:quit".to_owned());
    Line::styled(words.concat(), theme.faint)
}

#[cfg(test)]
mod speed;
#[cfg(test)]
mod tests;
