//! Draws the model on the terminal.

mod alerts;
mod chart;
mod figure;
mod header;
mod help;
mod overlay;
mod playback;
mod rows;
mod session;
mod theme;

use jiff::{Timestamp, tz::TimeZone};
use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
    style::Style,
    text::{Line, Span},
    widgets::Paragraph,
};

pub use self::theme::Palette;
pub(crate) use self::theme::Theme;
use crate::{
    ScreenKind,
    model::{Model, Overlay},
    units::format_duration,
    waits::WaitDimension,
};

/// Minimum size of the terminal, in columns and lines.
const SIZE_MIN: (u16, u16) = (40, 8);

/// Draws the model, and stores the resulting layout in it.
pub(crate) fn draw(frame: &mut Frame<'_>, model: &mut Model, theme: &Theme) {
    let area = frame.area();
    if area.width < SIZE_MIN.0 || area.height < SIZE_MIN.1 {
        frame.render_widget(Paragraph::new("too small: at least 40×8"), area);
        return;
    }
    let header_lines = header::lines(model, theme, (area.width, area.height));
    let header_height = u16::try_from(header_lines.len()).unwrap_or(4);
    let parts = Layout::vertical([
        Constraint::Length(header_height),
        Constraint::Min(2),
        Constraint::Length(1),
    ]);
    let [head, middle, foot] = parts.areas(area);
    frame.render_widget(Paragraph::new(header_lines), head);
    let rows = draw_chart(frame, middle, model, theme);
    model.page = usize::from(rows.height.saturating_sub(1));
    model.geometry = rows::draw(frame, rows, model, theme);
    draw_foot(frame, foot, model, theme);
    // The help page and a session's page need the whole screen, except for the last line.
    let page = match model.overlay {
        Overlay::Help | Overlay::Session => Rect { height: area.height - 1, ..area },
        _ => page_area(area),
    };
    let scroll_max = overlay::draw(frame, page, model, theme);
    model.scroll = model.scroll.min(scroll_max);
}

/// Draws the last line. While a prompt is edited, it is scrolled so that the cursor stays visible.
fn draw_foot(frame: &mut Frame<'_>, area: Rect, model: &Model, theme: &Theme) {
    let mut foot = Paragraph::new(footer(model, theme));
    if let Overlay::Prompt(prompt) = &model.overlay {
        let before = prompt.kind.label().chars().count() + 2;
        let typed = Span::raw(&prompt.text[..prompt.cursor]).width();
        let column = u16::try_from(before + typed).unwrap_or(u16::MAX);
        let hidden = column.saturating_sub(area.width - 1);
        foot = foot.scroll((0, hidden));
        frame.set_cursor_position((area.x + column - hidden, area.y));
    }
    frame.render_widget(foot, area);
}

/// Draws the chart if the waits screen is displayed and the area is tall enough. Returns the area
/// left for the rows.
fn draw_chart(frame: &mut Frame<'_>, area: Rect, model: &Model, theme: &Theme) -> Rect {
    let Some(snapshot) = model.snapshot().filter(|_| model.screen == ScreenKind::Waits) else {
        return area;
    };
    if area.height < CHART_MIN + 3 {
        return area;
    }
    // By dimension, the rows matter more.
    let chart_height = match model.choices.dimension {
        WaitDimension::Event => (area.height * 3 / 5).clamp(CHART_MIN, CHART_MAX),
        _ => CHART_MIN,
    };
    let parts = Layout::vertical([Constraint::Length(chart_height), Constraint::Min(3)]);
    let [chart, rows] = parts.areas(area);
    chart::draw(frame, chart, &snapshot.waits, snapshot.sampled_us, theme);
    rows
}

/// Minimum and maximum height of the chart in lines. More lines would show no more detail.
const CHART_MIN: u16 = 6;
const CHART_MAX: u16 = 24;

/// Returns the area of overlay pages, inset from the borders.
fn page_area(area: Rect) -> Rect {
    let (x, y) = (area.width / 12, area.height / 8);
    Rect { x, y, width: area.width - 2 * x, height: area.height - 2 * y }
}

fn footer<'a>(model: &'a Model, theme: &Theme) -> Line<'a> {
    if let Overlay::Prompt(prompt) = &model.overlay {
        let label = Span::styled(format!("{}: ", prompt.kind.label()), theme.strong);
        let style = if prompt.is_suggestion { theme.selected } else { Style::new() };
        return Line::from(vec![label, Span::styled(&prompt.text, style)]);
    }
    if let Some(notice) = &model.notice {
        let style = if notice.is_bad { theme.bad } else { theme.strong };
        return Line::styled(notice.text.as_str(), style);
    }
    let mut parts = vec![format!("{} ", model.screen.name())];
    let order = model.order.or(model.screen.order());
    parts.extend(
        order.map(|order| format!("by {order}{} ", if model.is_ascending { " ↑" } else { " ↓" })),
    );
    if model.screen == ScreenKind::Waits {
        parts.push(waits_period(model));
    }
    if !model.filter.1.is_empty() {
        parts.push(format!("where {} ", model.filter.1));
    }
    if !model.tagged.is_empty() {
        parts.push(format!("{} tagged ", model.tagged.len()));
    }
    if model.is_paused {
        parts.push("PAUSED ".to_owned());
    }
    if model.settings.is_read_only {
        parts.push("read only ".to_owned());
    }
    parts.push(" ?:help /:filter Tab:screens q:quit".to_owned());
    Line::styled(parts.concat(), theme.faint)
}

/// Formats the dimension and the period of the waits screen, if the user has chosen them.
fn waits_period(model: &Model) -> String {
    let dimension = model.choices.dimension;
    let mut text = match dimension {
        WaitDimension::Event => String::new(),
        dimension => format!("per {} ", dimension.name()),
    };
    let until_us = model.snapshot().map(|snapshot| snapshot.sampled_us);
    if let Some((since_us, until_us)) = crate::model::wait_period_start(model).zip(until_us) {
        #[expect(clippy::cast_precision_loss, reason = "a span of less than a century")]
        let seconds = (until_us - since_us) as f64 / 1e6;
        let since = Timestamp::from_microsecond(since_us).unwrap_or_default();
        let since = since.to_zoned(TimeZone::system()).strftime("%H:%M:%S");
        text.push_str(&format!("since {since} ({}) ", format_duration(seconds)));
    }
    text
}

#[cfg(test)]
mod speed;
#[cfg(test)]
mod tests;
