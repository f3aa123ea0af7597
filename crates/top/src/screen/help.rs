//! The help page: all keys, in two columns where there is space.

use ratatui::text::{Line, Span};

use super::{Theme, rows::fitted};
use crate::{Model, ScreenKind, keys::HELP};

/// Width from which there are two columns.
const TWO_COLUMNS: u16 = 76;

/// Terminal columns for the names of keys.
const KEYS_WIDTH: u16 = 10;

/// Returns the lines of the page, generated from the keymap in use.
pub(super) fn lines(
    model: &Model,
    theme: &Theme,
    (width, height): (u16, u16),
) -> Vec<Line<'static>> {
    let inner = width.saturating_sub(2);
    let mut lines = screens(theme, inner);
    lines.push(Line::raw(
        "marks: ! slow, L waits for a lock, B blocks others, x idle in tx, + tagged",
    ));
    let groups = groups(model, theme);
    if width < TWO_COLUMNS {
        lines.extend(groups.into_iter().flatten());
        return lines;
    }
    // The gap between groups is omitted on a low screen.
    let all: usize = groups.iter().map(Vec::len).sum();
    let has_gaps = usize::from(height) > lines.len() + all / 2 + 6;
    let (mut left, mut right): (Vec<Line<'static>>, Vec<Line<'static>>) = (Vec::new(), Vec::new());
    for group in groups {
        // A group is put into the left column if more of it fits into the left half.
        let column =
            if left.len() + group.len() / 2 < all.div_ceil(2) { &mut left } else { &mut right };
        if has_gaps && !column.is_empty() {
            column.push(Line::raw(""));
        }
        column.extend(group);
    }
    if has_gaps {
        lines.push(Line::raw(""));
    }
    let half = usize::from(inner / 2);
    for at in 0..left.len().max(right.len()) {
        let mut line = left.get(at).cloned().unwrap_or_default();
        let gap = half.saturating_sub(line.width());
        line.push_span(Span::raw(" ".repeat(gap)));
        line.spans.extend(right.get(at).cloned().unwrap_or_default().spans);
        lines.push(line);
    }
    lines
}

/// Returns the names of the screens with their digits, on as few lines as they need.
fn screens(theme: &Theme, width: u16) -> Vec<Line<'static>> {
    let mut texts = vec![String::new()];
    for (at, screen) in ScreenKind::all().enumerate() {
        let name = match at {
            0..=8 => format!("{}:{}", at + 1, screen.name()),
            9 => format!("0:{}", screen.name()),
            _ => screen.name().to_owned(),
        };
        match texts.last_mut() {
            Some(last) if last.is_empty() => last.push_str(&name),
            Some(last) if last.len() + 1 + name.len() <= usize::from(width) => {
                last.push(' ');
                last.push_str(&name);
            }
            _ => texts.push(name),
        }
    }
    texts.into_iter().map(|text| Line::styled(text, theme.strong)).collect()
}

/// Returns the lines of each group, its title first.
fn groups(model: &Model, theme: &Theme) -> Vec<Vec<Line<'static>>> {
    let settings = &model.settings;
    let mut groups = Vec::new();
    for group in HELP {
        let mut lines = vec![Line::styled(group.title, theme.strong)];
        for (commands, help) in group.lines {
            let width = usize::from(KEYS_WIDTH);
            let keys = settings.keymap.key_names(commands, settings.is_read_only, width);
            if !keys.is_empty() {
                lines.push(Line::raw(format!(" {} {help}", fitted(&keys, KEYS_WIDTH, false))));
            }
        }
        if lines.len() > 1 {
            groups.push(lines);
        }
    }
    groups
}
