//! Draws the rows and columns of the table that fit on the screen.

use std::borrow::Cow;

use howdah_collect::{BackendState, ColumnUnit};
use ratatui::{
    Frame,
    layout::Rect,
    text::{Line, Span},
    widgets::Paragraph,
};

use super::Theme;
use crate::{
    Model, ScreenTable,
    model::TableGeometry,
    table::{TableColumn, TableRow},
    units::format_cell,
};

/// Minimum width of the flexible column; from [`WIDE`] on a third of the screen's width.
const FLEX_WIDTH_MIN: u16 = 20;

/// Width from which the flexible column has a third of the screen.
const WIDE: u16 = 100;

/// Width of the mark and the tag before the first column.
const GUTTER: u16 = 2;

/// Draws the table, and returns its layout.
pub(super) fn draw(
    frame: &mut Frame<'_>,
    area: Rect,
    model: &Model,
    theme: &Theme,
) -> TableGeometry {
    let Some(table) = model.table() else {
        let reason =
            model.snapshot().and_then(|snapshot| model.screen.unavailable_reason(snapshot));
        let text = reason.unwrap_or_else(|| match model.past {
            Some(_) => "not sampled at that time".to_owned(),
            None => "waiting for the server".to_owned(),
        });
        frame.render_widget(Paragraph::new(Line::styled(text, theme.bad)), area);
        return TableGeometry::default();
    };
    let order = model.order.or(model.screen.order());
    let is_chosen = |name: &str| model.choices.columns.is_visible(model.screen, name);
    let columns = columns(&table, area.width, model.shift, order, is_chosen);
    let mut lines = vec![title_line(&table, &columns, model, theme, area.width)];
    if table.rows.is_empty() {
        let filtered = if model.filter.0.is_empty() { "" } else { " match the filter" };
        lines.push(Line::styled(format!("  no rows{filtered}"), theme.faint));
    }
    let height = usize::from(area.height.saturating_sub(1));
    let selected = model.selected_at(&table);
    // Scroll only as far as needed to keep the selection visible.
    let first = if selected < height { 0 } else { selected + 1 - height };
    for (at, row) in table.rows.iter().enumerate().skip(first).take(height) {
        let is_selected = at == selected;
        let is_tagged = model.tagged.contains(&row.key);
        lines.push(line(&table, row, &columns, theme, is_selected, is_tagged));
    }
    frame.render_widget(Paragraph::new(lines), area);
    TableGeometry {
        titles_y: area.y,
        rows: area.height.saturating_sub(1),
        first_row: first,
        columns: column_spans(&table, &columns),
    }
}

/// Returns start and end (exclusive) on the screen, and name, of each displayed column.
fn column_spans(table: &ScreenTable, columns: &[(usize, u16)]) -> Vec<(u16, u16, &'static str)> {
    let mut from = GUTTER;
    let mut spans = Vec::new();
    for &(at, width) in columns {
        spans.push((from, from + width, table.columns[at].name));
        from += width + 1;
    }
    spans
}

/// Selects the columns to display, in order, with their widths.
///
/// The sort column is taken first, even if it is not chosen, then as many of the chosen ones as
/// fit, lowest ranks first. With a `shift`, that many columns after the first are skipped, and the
/// others are taken in table order, so that every column can be reached. The flexible column gets
/// the remaining width.
fn columns(
    table: &ScreenTable,
    width: u16,
    shift: usize,
    order: Option<&str>,
    is_chosen: impl Fn(&str) -> bool,
) -> Vec<(usize, u16)> {
    let table_columns = &table.columns;
    let hidden = shift.min(table_columns.len().saturating_sub(2));
    let is_order = |at: usize| order == Some(table_columns[at].name);
    let is_reached =
        |at: usize| is_order(at) || (at == 0 || at > hidden) && is_chosen(table_columns[at].name);
    let width_of = |at: usize| {
        (
            at,
            if table_columns[at].is_shrinkable {
                content_width(table, at)
            } else {
                table_columns[at].width
            },
        )
    };
    let mut ranked: Vec<usize> = (0..table_columns.len())
        .filter(|&at| table_columns[at].width > 0 && is_reached(at))
        .collect();
    ranked.sort_by_key(|&at| {
        let rank = if hidden == 0 { table_columns[at].rank } else { u8::from(at > 0) };
        (!is_order(at), rank, at)
    });
    let mut left = width.saturating_sub(GUTTER);
    let mut flexible =
        table_columns.iter().position(|head| head.width == 0).filter(|&at| is_reached(at));
    let flexible_min = if width < WIDE { FLEX_WIDTH_MIN } else { width / 3 };
    if flexible.is_some() {
        // If both do not fit, the sort column takes precedence over the flexible one.
        let is_tight = |&at: &usize| is_order(at) && width_of(at).1 + flexible_min + 2 > left;
        flexible = flexible.filter(|_| !ranked.iter().any(is_tight));
    }
    if flexible.is_some() {
        left = left.saturating_sub(flexible_min + 1);
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
    chosen.extend(flexible.map(|at| (at, flexible_min + left)));
    chosen.sort_unstable();
    chosen
}

/// Returns the width that a shrinkable column needs for its title with the sort arrow and for its
/// values, at most its full width.
fn content_width(table: &ScreenTable, at: usize) -> u16 {
    let head = &table.columns[at];
    let most = usize::from(head.width);
    let mut needed = head.title.chars().count() + 1;
    for row in &table.rows {
        if needed >= most {
            return head.width;
        }
        let branch = if at == 0 { row.depth.min(8) } else { 0 };
        needed = match row.cells[at].text() {
            Some(text) => needed.max(branch + Span::raw(text).width()),
            None => needed.max(format_cell(&row.cells[at], head.unit).len()),
        };
    }
    u16::try_from(needed.min(most)).unwrap_or(head.width)
}

fn title_line(
    table: &ScreenTable,
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
        text.push_str(&fitted(&format!("{}{arrow}", head.title), width, is_right_aligned(head)));
        text.push(' ');
    }
    let missing = usize::from(width).saturating_sub(text.chars().count());
    text.push_str(&" ".repeat(missing));
    Line::styled(text, theme.column_titles)
}

fn line(
    table: &ScreenTable,
    row: &TableRow,
    columns: &[(usize, u16)],
    theme: &Theme,
    is_selected: bool,
    is_tagged: bool,
) -> Line<'static> {
    let tag = if is_tagged { '+' } else { ' ' };
    let mut text = format!("{}{tag}", row.mark.letter());
    for &(at, width) in columns {
        let head = &table.columns[at];
        let mut cell = match row.cells[at].text().and_then(short_state) {
            Some(state) if matches!(head.name, "state" | "session") => state.to_owned(),
            _ => format_cell(&row.cells[at], head.unit),
        };
        let is_tree = at == 0 && row.depth > 0;
        if is_tree {
            cell = format!("{}└{cell}", " ".repeat(row.depth.min(8) - 1));
        }
        text.push_str(&fitted(&cell, width, is_right_aligned(head) && !is_tree));
        text.push(' ');
    }
    let style = theme.mark(row.mark);
    let style = if is_selected { style.patch(theme.selected) } else { style };
    Line::from(Span::styled(text, style))
}

/// Returns the short name of a session state whose name does not fit its column. Truncated, two of
/// them would look alike.
fn short_state(state: &str) -> Option<&'static str> {
    Some(match BackendState::parse(state)? {
        BackendState::IdleInTransaction => "idle in tx",
        BackendState::IdleInFailedTransaction => "failed tx",
        BackendState::FastPath => "fastpath",
        _ => return None,
    })
}

fn is_right_aligned(head: &TableColumn) -> bool {
    head.unit != ColumnUnit::Text
}

/// Replaces tabs by spaces up to the next multiple of eight columns: the terminal library drops
/// tabs.
pub(super) fn with_spaces(line: &str) -> Cow<'_, str> {
    if !line.contains('\t') {
        return line.into();
    }
    let mut spaced = String::new();
    for (at, part) in line.split('\t').enumerate() {
        if at > 0 {
            let gap = 8 - Span::raw(spaced.as_str()).width() % 8;
            spaced.push_str(&" ".repeat(gap));
        }
        spaced.push_str(part);
    }
    spaced.into()
}

/// Pads or truncates `text` to exactly `width` terminal columns. A character may take two.
pub(super) fn fitted(text: &str, width: u16, is_right: bool) -> String {
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

    fn table_with_row(table_columns: Vec<TableColumn>, values: &[&str]) -> ScreenTable {
        let row = TableRow::from_cells(values.iter().map(|value| (*value).into()).collect());
        ScreenTable { columns: table_columns, rows: vec![row] }
    }

    fn names(table: &ScreenTable, width: u16, shift: usize, order: &str) -> String {
        let columns = columns(table, width, shift, Some(order), |_| true);
        let names: Vec<&str> = columns.iter().map(|(at, _)| table.columns[*at].name).collect();
        names.join(" ")
    }

    fn sample_table() -> ScreenTable {
        let head = |name, width| TableColumn::new(name, name, ColumnUnit::Text, width, "");
        let table_columns = vec![
            TableColumn { rank: 0, ..head("pid", 8) },
            head("a", 20),
            TableColumn { rank: 1, ..head("b", 12) },
            head("c", 10),
            head("d", 10),
            head("query", 0),
        ];
        table_with_row(table_columns, &["1", "", "", "", "", ""])
    }

    #[test]
    fn sort_column_is_visible_at_every_width_and_shift() {
        for width in 13..200 {
            for shift in 0..7 {
                let shown = names(&sample_table(), width, shift, "d");
                assert!(shown.split(' ').any(|name| name == "d"), "{width} {shift}: {shown}");
            }
        }
    }

    #[test]
    fn hidden_columns_are_shown_only_to_sort_by_them() {
        let table = sample_table();
        let names = |order| {
            let chosen = columns(&table, 200, 0, Some(order), |name| matches!(name, "a" | "c"));
            let names: Vec<&str> = chosen.iter().map(|(at, _)| table.columns[*at].name).collect();
            names.join(" ")
        };
        assert_eq!(names("a"), "a c");
        assert_eq!(names("d"), "a c d");
    }

    #[test]
    fn narrow_screen_shows_columns_of_the_lowest_ranks() {
        assert_eq!(names(&sample_table(), 60, 0, "pid"), "pid b c query");
        assert_eq!(names(&sample_table(), 60, 0, "a"), "pid a query");
        assert_eq!(names(&sample_table(), 200, 0, "pid"), "pid a b c d query");
        // In table order once the right arrow is pressed.
        assert_eq!(names(&sample_table(), 60, 2, "pid"), "pid c d query");
        assert_eq!(names(&sample_table(), 60, 4, "pid"), "pid query");
    }

    #[test]
    fn shrinking_column_is_as_wide_as_its_widest_value() {
        let head = TableColumn {
            is_shrinkable: true,
            ..TableColumn::new("user", "User", ColumnUnit::Text, 14, "")
        };
        for (value, width) in
            [("", 5), ("app", 5), ("postgres", 8), ("日本語の人", 10), ("a-very-long-name", 14)]
        {
            assert_eq!(content_width(&table_with_row(vec![head], &[value]), 0), width, "{value}");
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
        fn fitted_text_has_exact_width(text in "\\PC{0,30}", width in 1..40_u16) {
            prop_assert_eq!(Span::raw(fitted(&text, width, false)).width(), usize::from(width));
        }
    }
}
