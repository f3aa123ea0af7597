//! The table, as much of it as fits.

use howdah_collect::Unit;
use ratatui::{
    Frame,
    layout::Rect,
    text::{Line, Span},
    widgets::Paragraph,
};

use super::Theme;
use crate::{
    Model, Table,
    model::Geometry,
    table::{Head, Row},
    units::shown,
};

/// How wide the column is that takes what is left, at least: that many columns, or a third of all.
const REST_MIN: u16 = 20;

/// Columns in front of all others: the mark, and the tag.
const GUTTER: u16 = 2;

/// Draws the table and says where what is.
pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, model: &Model, theme: &Theme) -> Geometry {
    let Some(table) = model.table() else {
        let reason = model.snapshot().and_then(|snapshot| model.screen.why_not(snapshot));
        let text = reason.unwrap_or_else(|| match model.past {
            Some(_) => "that was not read at that moment".to_owned(),
            None => "waiting for the server".to_owned(),
        });
        frame.render_widget(Paragraph::new(Line::styled(text, theme.bad)), area);
        return Geometry::default();
    };
    let order = model.order.or(model.screen.order());
    let columns = columns(&table, area.width, model.shift, order);
    let mut lines = vec![heads(&table, &columns, model, theme, area.width)];
    if table.rows.is_empty() {
        let filtered = if model.filter.0.is_empty() { "" } else { " that pass the filter" };
        lines.push(Line::styled(format!("  no rows{filtered}"), theme.faint));
    }
    let height = usize::from(area.height.saturating_sub(1));
    let selected = model.selected_at(&table);
    // The selection is always in the picture, and the first page stays while it is on it.
    let first = if selected < height { 0 } else { selected + 1 - height };
    for (at, row) in table.rows.iter().enumerate().skip(first).take(height) {
        let is_selected = at == selected;
        let is_tagged = model.tagged.contains(&row.key);
        lines.push(line(&table, row, &columns, theme, is_selected, is_tagged));
    }
    frame.render_widget(Paragraph::new(lines), area);
    Geometry {
        heads_y: area.y,
        rows: area.height.saturating_sub(1),
        first_row: first,
        columns: places(&table, &columns),
    }
}

/// From where to where each column stands.
fn places(table: &Table, columns: &[(usize, u16)]) -> Vec<(u16, u16, &'static str)> {
    let mut from = GUTTER;
    let mut places = Vec::new();
    for &(at, width) in columns {
        places.push((from, from + width, table.columns[at].name));
        from += width + 1;
    }
    places
}

/// Which columns are shown, in their order, each with its width.
///
/// The column that rows are sorted by always is. Of the others those of the lowest ranks are, as many as fit. From
/// `shift` on, columns are shown by position, from that one, so that each can be reached; the first stays.
fn columns(table: &Table, width: u16, shift: usize, order: Option<&str>) -> Vec<(usize, u16)> {
    let heads = &table.columns;
    let hidden = shift.min(heads.len().saturating_sub(2));
    let is_order = |at: usize| order == Some(heads[at].name);
    let is_reached = |at: usize| at == 0 || at > hidden || is_order(at);
    let width_of =
        |at: usize| (at, if heads[at].shrinks { needed(table, at) } else { heads[at].width });
    let mut ranked: Vec<usize> =
        (0..heads.len()).filter(|&at| heads[at].width > 0 && is_reached(at)).collect();
    ranked.sort_by_key(|&at| {
        let rank = if hidden == 0 { heads[at].rank } else { u8::from(at > 0) };
        (!is_order(at), rank, at)
    });
    let mut left = width.saturating_sub(GUTTER);
    let mut rest = heads.iter().position(|head| head.width == 0).filter(|&at| is_reached(at));
    let rest_min = REST_MIN.max(width / 3);
    if rest.is_some() {
        // Where both do not fit, what rows are sorted by is worth more than what is left over.
        let is_tight = |&at: &usize| is_order(at) && width_of(at).1 + rest_min + 2 > left;
        rest = rest.filter(|_| !ranked.iter().any(is_tight));
    }
    if rest.is_some() {
        left = left.saturating_sub(rest_min + 1);
    }
    let mut chosen = Vec::new();
    for (at, width) in ranked.into_iter().map(width_of) {
        if width < left {
            left -= width + 1;
            chosen.push((at, width));
        } else if hidden > 0 {
            break;
        }
    }
    chosen.extend(rest.map(|at| (at, rest_min + left)));
    chosen.sort_unstable();
    chosen
}

/// How wide a column that shrinks has to be for its title, with the arrow of the order, and for its values.
fn needed(table: &Table, at: usize) -> u16 {
    let head = &table.columns[at];
    let most = usize::from(head.width);
    let mut needed = head.title.chars().count() + 1;
    for row in &table.rows {
        if needed >= most {
            return head.width;
        }
        needed = match row.cells[at].text() {
            Some(text) => needed.max(Span::raw(text).width()),
            None => needed.max(shown(&row.cells[at], head.unit).len()),
        };
    }
    u16::try_from(needed.min(most)).unwrap_or(head.width)
}

fn heads(
    table: &Table,
    columns: &[(usize, u16)],
    model: &Model,
    theme: &Theme,
    width: u16,
) -> Line<'static> {
    let order = model.order.or(model.screen.order());
    let mut text = " ".repeat(usize::from(GUTTER));
    for &(at, width) in columns {
        let head = &table.columns[at];
        let arrow = match order == Some(head.name) {
            true if model.is_ascending => "↑",
            true => "↓",
            false => "",
        };
        text.push_str(&fitted(&format!("{}{arrow}", head.title), width, is_right(head)));
        text.push(' ');
    }
    let missing = usize::from(width).saturating_sub(text.chars().count());
    text.push_str(&" ".repeat(missing));
    Line::styled(text, theme.heads)
}

fn line(
    table: &Table,
    row: &Row,
    columns: &[(usize, u16)],
    theme: &Theme,
    is_selected: bool,
    is_tagged: bool,
) -> Line<'static> {
    let tag = if is_tagged { '+' } else { ' ' };
    let mut text = format!("{}{tag}", row.mark.letter());
    for &(at, width) in columns {
        let head = &table.columns[at];
        let mut cell = shown(&row.cells[at], head.unit);
        let is_tree = at == 0 && row.depth > 0;
        if is_tree {
            cell = format!("{}└{cell}", " ".repeat(row.depth.min(8) - 1));
        }
        text.push_str(&fitted(&cell, width, is_right(head) && !is_tree));
        text.push(' ');
    }
    let style = theme.mark(row.mark);
    let style = if is_selected { style.patch(theme.selected) } else { style };
    Line::from(Span::styled(text, style))
}

fn is_right(head: &Head) -> bool {
    head.unit != Unit::Text
}

/// `text` in exactly `width` columns of a terminal. A character may take two.
fn fitted(text: &str, width: u16, is_right: bool) -> String {
    let width = usize::from(width);
    let taken = Span::raw(text).width();
    if taken <= width {
        let pad = " ".repeat(width - taken);
        return if is_right { pad + text } else { text.to_owned() + &pad };
    }
    let mut kept = String::new();
    let mut used = 0;
    for c in text.chars() {
        let size = Span::raw(c.to_string()).width();
        if used + size + 1 > width {
            break;
        }
        used += size;
        kept.push(c);
    }
    kept.push('…');
    kept.push_str(&" ".repeat(width.saturating_sub(used + 1)));
    kept
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn table_of(heads: Vec<Head>, values: &[&str]) -> Table {
        let row = Row::plain(values.iter().map(|value| (*value).into()).collect());
        Table { columns: heads, rows: vec![row] }
    }

    fn names(table: &Table, width: u16, shift: usize, order: &str) -> String {
        let columns = columns(table, width, shift, Some(order));
        let names: Vec<&str> = columns.iter().map(|(at, _)| table.columns[*at].name).collect();
        names.join(" ")
    }

    fn some() -> Table {
        let head = |name, width| Head::new(name, name, Unit::Text, width, "");
        let heads = vec![
            Head { rank: 0, ..head("pid", 8) },
            head("a", 20),
            Head { rank: 1, ..head("b", 12) },
            head("c", 10),
            head("d", 10),
            head("query", 0),
        ];
        table_of(heads, &["1", "", "", "", "", ""])
    }

    #[test]
    fn sort_column_is_visible_at_every_width_and_shift() {
        for width in 13..200 {
            for shift in 0..7 {
                let shown = names(&some(), width, shift, "d");
                assert!(shown.split(' ').any(|name| name == "d"), "{width} {shift}: {shown}");
            }
        }
    }

    #[test]
    fn narrow_screen_shows_columns_of_the_lowest_ranks() {
        assert_eq!(names(&some(), 60, 0, "pid"), "pid b c query");
        assert_eq!(names(&some(), 60, 0, "a"), "pid a query");
        assert_eq!(names(&some(), 200, 0, "pid"), "pid a b c d query");
        // By position, once the right arrow is pressed.
        assert_eq!(names(&some(), 60, 2, "pid"), "pid c d query");
        assert_eq!(names(&some(), 60, 4, "pid"), "pid query");
    }

    #[test]
    fn shrinking_column_is_as_wide_as_its_widest_value() {
        let head = Head { shrinks: true, ..Head::new("user", "User", Unit::Text, 14, "") };
        for (value, width) in
            [("", 5), ("app", 5), ("postgres", 8), ("日本語の人", 10), ("a-very-long-name", 14)]
        {
            assert_eq!(needed(&table_of(vec![head], &[value]), 0), width, "{value}");
        }
    }

    #[test]
    fn text_fits_its_columns() {
        assert_eq!(fitted("abc", 5, false), "abc  ");
        assert_eq!(fitted("12", 5, true), "   12");
        assert_eq!(fitted("abcdef", 5, true), "abcd…");
        assert_eq!(fitted("日本語", 5, false), "日本…");
        assert_eq!(fitted("日本語", 4, false), "日… ");
    }

    proptest! {
        #[test]
        fn every_text_takes_exactly_its_columns(text in "\\PC{0,30}", width in 1..40_u16) {
            prop_assert_eq!(Span::raw(fitted(&text, width, false)).width(), usize::from(width));
        }
    }
}
