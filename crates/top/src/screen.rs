//! The picture of a model: a pure function of it and of the size of the terminal.

mod header;
mod overlay;
mod rows;
mod theme;

use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
    text::{Line, Span},
    widgets::Paragraph,
};

pub(crate) use self::theme::Theme;
use crate::model::{Model, Overlay};

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
    model.page = usize::from(middle.height.saturating_sub(1));
    rows::draw(frame, middle, model, theme);
    frame.render_widget(Paragraph::new(footer(model, theme)), foot);
    overlay::draw(frame, over(area), model, theme);
    if let Overlay::Prompt(prompt) = &model.overlay {
        let before = prompt.asked.label().chars().count() + 2;
        let typed = Span::raw(&prompt.text[..prompt.cursor]).width();
        let column = u16::try_from(before + typed).unwrap_or(u16::MAX).min(area.width - 1);
        frame.set_cursor_position((column, foot.y));
    }
}

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
mod tests;
