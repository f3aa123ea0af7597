//! Mouse clicks and the wheel.

use ratatui::crossterm::event::{MouseButton, MouseEvent, MouseEventKind};

use super::{Model, ModelEffect, Overlay, session_page};

/// Layout of the last drawn table; set when drawing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableGeometry {
    /// Screen line of the column titles, from 0.
    pub titles_y: u16,
    /// Number of screen lines for rows, below the titles.
    pub rows: u16,
    /// Index of the first visible row.
    pub first_row: usize,
    /// Displayed columns: start and end (exclusive) on the screen, and name.
    pub columns: Vec<(u16, u16, &'static str)>,
}

/// Number of rows by which one step of the mouse wheel moves the selection.
const WHEEL_ROWS: isize = 3;

impl Model {
    pub(super) fn mouse(&mut self, event: MouseEvent) -> Vec<ModelEffect> {
        match &self.overlay {
            Overlay::None => {}
            // Confirmations and prompts ignore the mouse.
            Overlay::Confirm(_) | Overlay::Prompt(_) => return Vec::new(),
            _ => {
                match event.kind {
                    MouseEventKind::ScrollUp => self.scroll = self.scroll.saturating_sub(3),
                    MouseEventKind::ScrollDown => self.scroll += 3,
                    MouseEventKind::Down(_) => return close_overlay(self),
                    _ => {}
                }
                return Vec::new();
            }
        }
        match event.kind {
            MouseEventKind::ScrollUp => self.select(-WHEEL_ROWS),
            MouseEventKind::ScrollDown => self.select(WHEEL_ROWS),
            MouseEventKind::ScrollLeft => self.shift = self.shift.saturating_sub(1),
            MouseEventKind::ScrollRight => self.shift += 1,
            MouseEventKind::Down(MouseButton::Left) => self.click(event.column, event.row),
            _ => {}
        }
        Vec::new()
    }

    /// Handles a click: on a title, sorts by that column or reverses the order; on a row, selects
    /// the row.
    fn click(&mut self, x: u16, y: u16) {
        let TableGeometry { titles_y: heads_y, rows, first_row, columns } = &self.geometry;
        if y == *heads_y {
            let clicked = columns.iter().find(|(from, to, _)| (*from..*to).contains(&x));
            let Some(&(_, _, name)) = clicked else { return };
            if self.order.or(self.screen.order()) == Some(name) {
                self.is_ascending = !self.is_ascending;
            } else {
                (self.order, self.is_ascending) = (Some(name), false);
            }
        } else if let Some(line) = y.checked_sub(heads_y + 1).filter(|line| line < rows) {
            let at = first_row + usize::from(line);
            let row = self.table().and_then(|table| Some(table.rows.get(at)?.key.clone()));
            if row.is_some() {
                self.selected = row;
            }
        }
    }
}

/// Closes what is shown above the table. Above the session's page, that is the page or another
/// overlay, which the page survives.
fn close_overlay(model: &mut Model) -> Vec<ModelEffect> {
    let is_page = matches!(model.overlay, Overlay::Session);
    (model.overlay, model.scroll) = (Overlay::None, 0);
    match &model.choices.session {
        Some(_) if is_page => session_page::close(model),
        Some(_) => {
            model.overlay = Overlay::Session;
            Vec::new()
        }
        None => Vec::new(),
    }
}
