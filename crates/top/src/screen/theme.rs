//! Colours: never the only sign of anything, and none where the terminal or its user wants none.
//!
//! Blue and orange instead of green and red, which one man in twelve cannot tell apart. The sixteen colours
//! of every terminal are used, so its own palette decides what they look like.

use ratatui::style::{Color, Modifier, Style};

use crate::table::Mark;

/// The styles of a screen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Theme {
    /// Titles of columns.
    pub(crate) heads: Style,
    /// What stands out.
    pub(crate) strong: Style,
    /// What stands back.
    pub(crate) faint: Style,
    /// What did not go well.
    pub(crate) bad: Style,
    /// The selected row.
    pub(crate) selected: Style,
    marks: [Style; 6],
}

impl Theme {
    /// With colours.
    pub(crate) fn colours() -> Self {
        let plain = Style::new();
        Self {
            heads: plain.fg(Color::Black).bg(Color::Gray),
            strong: plain.add_modifier(Modifier::BOLD),
            faint: plain.fg(Color::DarkGray),
            bad: plain.fg(Color::LightRed).add_modifier(Modifier::BOLD),
            selected: plain.add_modifier(Modifier::REVERSED),
            marks: [
                plain,
                plain.fg(Color::DarkGray),
                plain.fg(Color::Magenta),
                plain.fg(Color::LightBlue),
                plain.fg(Color::LightBlue).add_modifier(Modifier::BOLD),
                plain.fg(Color::Yellow).add_modifier(Modifier::BOLD),
            ],
        }
    }

    /// Without: bold, faint and reversed only.
    pub(crate) fn mono() -> Self {
        let plain = Style::new();
        let bold = plain.add_modifier(Modifier::BOLD);
        Self {
            heads: plain.add_modifier(Modifier::REVERSED),
            strong: bold,
            faint: plain.add_modifier(Modifier::DIM),
            bad: bold,
            selected: plain.add_modifier(Modifier::REVERSED),
            marks: [plain, plain.add_modifier(Modifier::DIM), plain, plain, bold, bold],
        }
    }

    pub(crate) fn mark(&self, mark: Mark) -> Style {
        self.marks[mark as usize]
    }
}
