//! Clicks and the wheel.

use ratatui::crossterm::event::{MouseButton, MouseEvent, MouseEventKind};

use super::{Model, Overlay};

/// Where the last picture has what; the screen says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Geometry {
    /// The line of the titles.
    pub heads_y: u16,
    /// How many lines of rows there are below it.
    pub rows: u16,
    /// The row of the table that stands in the first of them.
    pub first_row: usize,
    /// Columns: from where, to where (not included), and which.
    pub columns: Vec<(u16, u16, &'static str)>,
}

/// Rows that a notch of the wheel is.
const NOTCH: isize = 3;

impl Model {
    pub(super) fn mouse(&mut self, event: MouseEvent) {
        match &self.overlay {
            Overlay::None => {}
            // A list that waits for a yes, or a line that is typed, is not for a mouse.
            Overlay::Confirm(_) | Overlay::Prompt(_) => return,
            _ => {
                match event.kind {
                    MouseEventKind::ScrollUp => self.scroll = self.scroll.saturating_sub(3),
                    MouseEventKind::ScrollDown => self.scroll += 3,
                    MouseEventKind::Down(_) => (self.overlay, self.scroll) = (Overlay::None, 0),
                    _ => {}
                }
                return;
            }
        }
        match event.kind {
            MouseEventKind::ScrollUp => self.select(-NOTCH),
            MouseEventKind::ScrollDown => self.select(NOTCH),
            MouseEventKind::ScrollLeft => self.shift = self.shift.saturating_sub(1),
            MouseEventKind::ScrollRight => self.shift += 1,
            MouseEventKind::Down(MouseButton::Left) => self.click(event.column, event.row),
            _ => {}
        }
    }

    /// A click on a title sorts by it, and again the other way round; on a row it selects it.
    fn click(&mut self, x: u16, y: u16) {
        let Geometry { heads_y, rows, first_row, columns } = &self.geometry;
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
